"""The account of a block that was read: every record is landed, rejected or filtered, counted from rows and not from what was read."""

from __future__ import annotations

import json
import random

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Message

from landonce.protocol.ranges import Partition
from landonce.read.block import ReadBlock, Reader
from landonce.read.formats import Decoded
from landonce.read.kafka.records import Records
from landonce.read.route import Routing, Rule
from landonce.read.rows import NOWHERE, records_of

TABLES = ("a", "b", "c")
P, Q = Partition("t", 0), Partition("u", 0)


def decode(values: pa.BinaryArray, messages: list[Message]) -> Decoded:
    """A record says what becomes of it: so many rows, a reject, or nothing."""
    del messages
    says = [json.loads(each.as_py())["says"] for each in values]
    kept = [at for at, what in enumerate(says) for _ in range(what if isinstance(what, int) else 0)]
    return Decoded(
        pa.table({"id": np.array(kept, np.int64)}),
        np.array(kept, np.int64),
        tuple((at, "bad") for at, what in enumerate(says) if what == "bad"),
        np.array([at for at, what in enumerate(says) if what == "filtered"], np.int64),
    )


def fussy(values: pa.BinaryArray, messages: list[Message]) -> Decoded:
    """Takes one row at most, and filters what another table takes twice."""
    decoded = decode(values, messages)
    once = np.array([at for at in np.unique(decoded.kept) if np.count_nonzero(decoded.kept == at) == 1], np.int64)
    twice = np.setdiff1d(decoded.kept, once)
    return Decoded(pa.table({"id": once}), once, decoded.rejects, np.union1d(decoded.filtered, twice))


def records(dice: random.Random, partition: Partition, first: int) -> Records:
    count = dice.randint(1, 8)
    offsets = sorted(dice.sample(range(first, first + 20), count))
    values = [
        json.dumps({"to": dice.choice(["x", "y", "z", "nobody"]), "says": dice.choice([1, 1, 1, 2, "bad", "filtered"])})
        for _ in range(count)
    ]
    messages = [Message(topic=partition.topic, partition=partition.number, offset=each) for each in offsets]
    return Records(partition, pa.array(offsets), pa.array(values, pa.binary()), messages)


def reader(dice: random.Random) -> Reader:
    by_value = (Rule("a", ("x", "y")), Rule("b", ("y", "z")), Rule("c", match="y|z"))
    everywhere = tuple(Rule(name) for name in TABLES)
    others = frozenset(dice.sample(TABLES, dice.randint(0, 2)))
    floors = {
        name: {each: dice.choice([0, 0, 7, 30, NOWHERE]) for each in (P, Q)} for name in TABLES if dice.random() < 0.5
    }
    return Reader(
        routing=Routing("to", by_value) if dice.random() < 0.7 else Routing(None, everywhere),
        decoders={name: dice.choice([decode, fussy]) for name in TABLES if name not in others},
        floors=floors,
        others=others,
    )


def landed(block: ReadBlock, rows: dict[str, pa.Table]) -> int:
    return block.held - block.shared + sum(map(records_of, rows.values()))


@pytest.mark.parametrize("seeds", [range(each, each + 100) for each in (0, 100, 200)], ids=str)
def test_every_record_is_accounted_for_and_a_lost_one_is_missed(seeds: range) -> None:
    for seed in seeds:
        account_of(seed)


def account_of(seed: int) -> None:
    dice = random.Random(seed)
    how, block = reader(dice), ReadBlock(in_order=False)
    for chunk in range(dice.randint(1, 3)):
        some = records(dice, dice.choice([P, Q]), 20 * chunk)
        how.add(some, some.partition.topic, block)
    rows = {name: table for name in TABLES if (table := block.rows(name)).num_rows}
    assert block.read == landed(block, rows) + len(block.rejected) + block.filtered
    for name, table in rows.items():
        lost = table.column("_offset")[0].as_py(), table.column("_topic")[0].as_py()
        left = [at for at, each in enumerate(table.to_pylist()) if (each["_offset"], each["_topic"]) != lost]
        fewer = rows | {name: table.take(pa.array(left, pa.int64()))}
        assert landed(block, fewer) < block.read - len(block.rejected) - block.filtered
