"""What becomes of the rows that expressions were evaluated on: the same account in every kind of sink, and rows that are there once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from sql_sites import Site
from test_push_ledgers import prepared as pushes_prepared

import landonce
from landonce.engine.task import write_half
from landonce.errors import TransformFailed
from landonce.ledger.block_ledgers import PushPlace
from landonce.protocol.block_rows import Claim
from landonce.protocol.blocks import Block, Kind
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.protocol.settle import Mode
from landonce.read.block import ReadAccount
from landonce.read.decoding import Decoding
from landonce.read.kafka.records import NoRecords
from landonce.read.rows import KEEP
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.claimed import PushTask
from landonce.sinks.deduplicating import InsertRecipe, InsertTask
from landonce.sinks.sql.worker import SqlRecipe
from landonce.sinks.transactional import TransactionTask
from landonce.sinks.wrapped.worker import WrappedRecipe
from landonce.testing.reference_sinks import SqliteSink

SCHEMA = parse_schema("id BIGINT, word STRING")
RANGE = Range(Partition("t", 0), 0, 5)
LABELS = (("t", "label"),)
LANDS = [("label", 0, 0, 10, "a"), ("label", 0, 1, 11, None), ("label", 0, 4, 14, "e")]

Write = Callable[[Any], BlockResult]
Ask = Callable[[], list[tuple[Any, ...]]]


def rows() -> pa.Table:
    """Five records under the name that the target knows their topic by; `where` keeps three."""
    return pa.table(
        {
            "_topic": pa.array(["label"] * 5),
            "_partition": pa.array([0] * 5, pa.int32()),
            "_offset": pa.array(range(5), pa.int64()),
            KEEP: pa.array([True, True, False, None, True]),
            "id": pa.array(range(10, 15), pa.int64()),
            "word": pa.array(["a", None, "c", "d", "e"]),
        }
    )


def settings(folder: Path) -> dict[str, Any]:
    """What every recipe says."""
    return {
        "pipeline": "contract",
        "records": NoRecords(),
        "dead_letters": folder / "dead",
        "decoding": Decoding(max_record_bytes=1_000),
        "block_bytes": 1_000,
        "source": SCHEMA,
        "target": SCHEMA,
        "where": "id <> 12",
    }


def writing(recipe: Any, task: Any) -> Write:
    """As workers get them."""
    return lambda account: write_half(*cloudpickle.loads(cloudpickle.dumps((recipe, task))), rows(), account)


def in_file(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return sorted(connection.execute("SELECT _topic, _partition, _offset, id, word FROM events"))


def deduplicating(folder: Path) -> tuple[Write, Ask]:
    sink = SqliteSink(folder / "events.db")
    sink.target().create(SCHEMA)
    recipe = InsertRecipe(**settings(folder), sink=sink)
    task = InsertTask(
        index=0,
        batch=1,
        plan="plan",
        block=Block((RANGE,), "events"),
        token="token",
        deadline=sink.target().now() + 600_000,
        mode=Mode.RESOLVE,
        kind=Kind.DELIVER,
        labels=LABELS,
    )
    return writing(recipe, task), lambda: in_file(folder / "events.db")


def transactional(folder: Path) -> tuple[Write, Ask]:
    path = folder / "target.db"
    site = Site(f"sqlite:///{path}", lambda _: [])
    site.made("id BIGINT, word STRING").close()
    state = site.prepared((0, 5))
    assert state.pending is not None
    block, claim = state.pending.blocks[0], Claim.of(state)
    task = TransactionTask(index=0, batch=state.pending.batch, plan="plan", block=block, claim=claim, labels=LABELS)
    return writing(SqlRecipe(**settings(folder), sink=site.sink), task), lambda: in_file(path)


def pushed(folder: Path) -> tuple[Write, Ask]:
    place, path = PushPlace(folder / "ledger", "p"), folder / "blocks"

    def push(block: landonce.PushedBlock) -> None:
        with path.open("ab") as file:
            file.write(block.json_lines())

    with closing(place.open()) as ledger:
        state = pushes_prepared(ledger)
    assert state.pending is not None
    task = PushTask(
        index=0,
        batch=state.pending.batch,
        plan="plan",
        block=state.pending.blocks[0],
        key="key",
        claim=Claim.of(state),
        labels=LABELS,
    )
    sink = landonce.wrap(push, idempotent=False, settles_within=600, name="s")
    recipe = WrappedRecipe(**settings(folder), sink=sink, ledger=place)
    return (
        writing(recipe, task),
        lambda: [tuple(json.loads(line).values()) for line in path.read_text().splitlines()] if path.exists() else [],
    )


@pytest.mark.parametrize("kind", [deduplicating, transactional, pushed])
def test_one_account_and_every_row_once(kind: Callable[[Path], tuple[Write, Ask]], tmp_path: Path) -> None:
    write, ask = kind(tmp_path)
    broken = write(TransformFailed("a value", command=""))
    assert broken.fate is Fate.HALTED
    assert isinstance(broken.error, TransformFailed)
    assert ask() == []
    account = Receipt(read=5, landed=3, filtered=2, bytes_read=100)
    for _ in range(2):
        result = write(ReadAccount(read=5, bytes_read=100, rejected=()))
        assert (result.fate, result.receipt) == (Fate.LANDED, account), result
        assert ask() == LANDS
