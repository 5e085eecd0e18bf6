"""Shards of ClickHouse, as far as no server is needed: the section of the file, the slots of each shard, and what is asked of all of them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import landonce
from landonce.errors import ConfigError, TargetUnavailable
from landonce.protocol.blocks import shard_token
from landonce.protocol.ranges import Partition
from landonce.protocol.settle import Reply
from landonce.protocol.target import TargetView
from landonce.sinks.clickhouse import shards
from landonce.sinks.clickhouse.config import ClickHouse
from landonce.sinks.clickhouse.shards import ShardedTarget, ShardedWriter, ShardMap
from landonce.sinks.contract import Insert
from landonce.sinks.section import from_program

TWO = {"endpoints": ["http://me:word1@one:8123/db", "http://me:word2@two:8123/db"], "table": "t", "shard_by": ["id"]}


def section(**given: Any) -> ClickHouse:
    return from_program(ClickHouse, "clickhouse", **{**TWO, **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "http://h/d"}, "name one server by `url`, or the shards by `endpoints`"),
        ({"endpoints": []}, "name one server by `url`, or the shards by `endpoints`"),
        ({"endpoints": [], "url": "http://h/d"}, "weights, shard_by and hash: go with `endpoints`"),
        ({"shard_by": None}, "say by `shard_by` which rows go to which shard"),
        ({"endpoints": TWO["endpoints"][:1] * 2}, "names one of them twice"),
        ({"weights": [1, 2, 3]}, "one for each of the 2 endpoints"),
        ({"weights": [1, 0]}, "greater than or equal to 1"),
        ({"hash": "md5"}, "cityHash64"),
        ({"hash": "none", "shard_by": ["a", "b"]}, "takes one column, or an expression"),
        ({"hash": "intHash64", "shard_by": ["a", "b"]}, "takes one column, or an expression"),
        ({"mode": "upsert", "key": "id"}, "endpoints: go with neither `mode: upsert` nor `evolve`"),
        ({"evolve": True}, "endpoints: go with neither `mode: upsert` nor `evolve`"),
    ],
)
def test_what_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        section(**given)
    assert said in str(refused.value)
    assert "word1" not in str(refused.value)


def test_what_else_takes_one_server() -> None:
    assert "does not go with `endpoints`" in section().no_dedup
    with pytest.raises(ConfigError, match="dedup: in ClickHouse, takes one server"):
        landonce.exactly_once(section(), "sqlite:///ledger", dedup={"key": ["id"], "store": {"sqlite": "store"}})


@pytest.mark.parametrize(
    ("given", "expression"),
    [
        ({}, "cityHash64(`id`)"),
        ({"shard_by": ["a", "b c"], "hash": "sipHash64"}, "sipHash64(`a`, `b c`)"),
        ({"shard_by": "lower(a), b", "hash": "xxHash64"}, "xxHash64(lower(a), b)"),
        ({"shard_by": "a % 5", "hash": "none"}, "a % 5"),
        ({"shard_by": ["a"], "hash": "none"}, "`a`"),
    ],
)
def test_the_sharding_key(given: dict[str, Any], expression: str) -> None:
    found = section(**given).shard_map
    assert found is not None
    assert found.expression == expression


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_each_shard_has_as_many_slots_as_its_weight_in_order(weights: list[int]) -> None:
    slots = [shard for shard, weight in enumerate(weights) for _ in range(weight)]
    found = ShardMap("id", tuple(weights)).shards_of(np.arange(len(slots)))
    assert found.tolist() == slots


@pytest.mark.parametrize(
    "other",
    [
        {"weights": [1, 2]},
        {"shard_by": ["name"]},
        {"hash": "xxHash64"},
        {"endpoints": TWO["endpoints"][::-1]},
        {"endpoints": TWO["endpoints"][:1]},
        {"endpoints": [TWO["endpoints"][0], "http://me@two:8123/other"]},
    ],
)
def test_another_map_is_another_target_and_another_password_is_not(other: dict[str, Any]) -> None:
    mine = section().to_sink("p")
    assert section(**other).to_sink("p").identity != mine.identity
    assert section(endpoints=[each.replace("word", "pass") for each in TWO["endpoints"]]).to_sink("p").identity == (
        mine.identity
    )
    for said in (repr(mine), str(mine), mine.identity, repr(pickle.loads(pickle.dumps(mine)))):
        assert "word1" not in said
        assert "word2" not in said


class OneShard:
    """A server that answers as it was set up to, and remembers what it was asked."""

    def __init__(self, now: int = 0, end: int = 0, replies: Sequence[Reply] = ()) -> None:
        self.clock, self.end, self.replies = now, end, [*replies]
        self.killed = 0
        self.sent: list[tuple[list[int], str]] = []
        self.said = "what it said"

    def now(self) -> int:
        return self.clock

    def kill(self) -> None:
        self.killed += 1
        if self.clock < 0:
            raise TargetUnavailable("it is down")

    def look(self, floors: Sequence[tuple[Partition, int]]) -> TargetView:
        return TargetView(tuple((partition, self.end) for partition, _ in floors if self.end))

    def exists(self) -> bool:
        return self.end > 0

    def count(self, ranges: object) -> int:
        del ranges
        return self.end

    def send(self, rows: pa.Table, insert: Insert) -> Reply:
        self.sent.append((rows.column("n").to_pylist(), insert.token))
        return self.replies.pop(0)


def target_of(*each: OneShard) -> ShardedTarget:
    return ShardedTarget(ShardMap("id", (1,) * len(each)), [(at, shard) for at, shard in enumerate(each)])  # type: ignore[misc]


def test_a_deadline_is_over_once_it_is_over_on_every_shard() -> None:
    assert target_of(OneShard(now=5_000), OneShard(now=3_000), OneShard(now=9_000)).now() == 3_000


def test_inserts_are_ended_on_every_shard_or_it_is_said_that_they_are_not() -> None:
    both = OneShard(), OneShard()
    target_of(*both).kill()
    assert [each.killed for each in both] == [1, 1]
    with pytest.raises(TargetUnavailable):
        target_of(OneShard(), OneShard(now=-1)).kill()


def test_what_any_shard_holds_is_seen() -> None:
    t = Partition("t", 0)
    target = target_of(OneShard(end=7), OneShard(end=12), OneShard())
    assert target.look([(t, 0)]) == TargetView(((t, 12),))
    assert target.count([]) == 19
    assert not target.exists(), "one of them has no table"


@pytest.mark.parametrize(
    ("replies", "reply", "asked"),
    [
        ([Reply.ACKNOWLEDGED, Reply.ACKNOWLEDGED], Reply.ACKNOWLEDGED, 2),
        ([Reply.ACKNOWLEDGED, Reply.LOST], Reply.LOST, 2),
        ([Reply.ACKNOWLEDGED, Reply.LATE], Reply.LATE, 2),
        ([Reply.REFUSED, Reply.ACKNOWLEDGED], Reply.REFUSED, 1),
        ([Reply.LOST, Reply.ACKNOWLEDGED], Reply.LOST, 1),
    ],
)
def test_a_block_is_acknowledged_once_every_shard_has_acknowledged(
    monkeypatch: pytest.MonkeyPatch, replies: list[Reply], reply: Reply, asked: int
) -> None:
    each = [OneShard(replies=[one]) for one in replies]
    writer = ShardedWriter(ShardMap("n", (1, 1)), each)  # type: ignore[arg-type]
    monkeypatch.setattr(shards.ShardedWriter, "_owners", lambda _, rows: rows.column("n").to_numpy() % 2)
    assert writer.send(pa.table({"n": [1, 2, 3, 4]}), Insert("token", 1, "attempt")) is reply
    tokens = [shard_token("token", 0), shard_token("token", 1)]
    assert [one.sent for one in each] == [[([2, 4], tokens[0])], [([1, 3], tokens[1])]][:asked] + [[]] * (2 - asked)
    assert len({*tokens, "token"}) == 3, "two shards never share a token"
    if reply is not Reply.ACKNOWLEDGED:
        assert "what it said" in writer.said


def test_a_shard_without_rows_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    each = [OneShard(), OneShard(replies=[Reply.ACKNOWLEDGED])]
    writer = ShardedWriter(ShardMap("n", (1, 1)), each)  # type: ignore[arg-type]
    monkeypatch.setattr(shards.ShardedWriter, "_owners", lambda _, rows: rows.column("n").to_numpy() % 2)
    assert writer.send(pa.table({"n": [1, 3]}), Insert("token", 1, "attempt")) is Reply.ACKNOWLEDGED
    assert each[0].sent == []
