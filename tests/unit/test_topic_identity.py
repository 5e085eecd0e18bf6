"""A worker throws away what it read where the topic is not the plan's any more, and asks the brokers as little as it can."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from landonce.engine import task as engine_task
from landonce.engine.perform import Performer
from landonce.engine.publish import Letters
from landonce.engine.task import stage_letters
from landonce.errors import Halt, SourceUnavailable, TopicMissing, TopicRecreated, Transient
from landonce.protocol.blocks import Block, Kind, Plan
from landonce.protocol.ledger import LedgerState
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Mode
from landonce.protocol.steps import Write
from landonce.read.block import Rejected
from landonce.read.decoding import Decoding
from landonce.read.kafka import broker
from landonce.read.kafka.records import KafkaRecords
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.deduplicating import InsertRecipe, InsertTask
from landonce.sinks.worker import Task
from landonce.testing.reference_sinks import SqliteSink

OLD, NEW = "6hVZB3FmRCu3eFJXKZlJ2g", "yM2Sh1wYQtKkGmSyaBnmXQ"
OPTIONS = {"bootstrap.servers": "nowhere:9092"}


class Brokers:
    """Stands for all clients of one cluster: what it calls topics, how many clients there are, and what they were asked."""

    def __init__(self, **ids: str) -> None:
        self.ids = ids
        self.clients = 0
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, servers: str, options: Mapping[str, Any]) -> Brokers:
        self.clients += 1
        return self

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        self.asked.append(tuple(topics))
        for topic in topics:
            if topic not in self.ids:
                raise TopicMissing(f"topic {topic!r} is not there.")
        return {topic: self.ids[topic] for topic in topics}


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers(t=OLD, u=OLD.lower())
    monkeypatch.setattr(broker, "Broker", made)
    monkeypatch.setattr(broker, "_brokers", {})
    return made


def test_the_same_topics_pass(brokers: Brokers) -> None:
    broker.require_same({"t": OLD, "u": OLD.lower()}, OPTIONS)
    assert brokers.asked == [("t", "u")], "one request for all"


def test_a_topic_made_again_halts_with_the_way_on(brokers: Brokers) -> None:
    brokers.ids["t"] = NEW
    with pytest.raises(TopicRecreated, match=f"'t'.*{OLD}.*{NEW}") as caught:
        broker.require_same({"u": OLD.lower(), "t": OLD}, OPTIONS)
    assert isinstance(caught.value, Halt)
    assert "no row of them was written" in caught.value.safe
    assert caught.value.command == "landonce state rebase {file} --drop-pending"


def test_a_topic_that_is_away_may_come_back(brokers: Brokers) -> None:
    del brokers.ids["t"]
    with pytest.raises(SourceUnavailable, match="'t'") as caught:
        broker.require_same({"t": OLD}, OPTIONS)
    assert isinstance(caught.value, Transient)


@pytest.mark.parametrize("nothing", ["", "AAAAAAAAAAAAAAAAAAAAAA"])
def test_topics_without_ids_are_not_asked_for(brokers: Brokers, nothing: str) -> None:
    broker.require_same({"t": nothing}, OPTIONS)
    broker.require_same({}, OPTIONS)
    assert not brokers.asked


def test_brokers_without_ids_cannot_be_asked(brokers: Brokers) -> None:
    brokers.ids["t"] = "AAAAAAAAAAAAAAAAAAAAAA"
    broker.require_same({"t": OLD}, OPTIONS)


def test_one_client_serves_all_blocks_of_a_process(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        broker.require_same({"t": OLD}, dict(OPTIONS))
    assert (brokers.clients, len(brokers.asked)) == (1, 5)
    broker.require_same({"t": OLD}, {"bootstrap.servers": "elsewhere:9092"})
    assert brokers.clients == 2
    monkeypatch.setattr(os, "getpid", lambda: -1)
    broker.require_same({"t": OLD}, OPTIONS)
    assert brokers.clients == 3, "a forked process cannot use the client of its parent"


def test_a_task_knows_the_topics_of_its_own_block(tmp_path: Path) -> None:
    blocks = tuple(Block((Range(Partition(topic, 0), 0, 5),), "events", number=at) for at, topic in enumerate("tuw"))
    plan = Plan(batch=1, blocks=blocks, fingerprint="f", deadline=0)
    held = LedgerState("p", lineage="l", cluster_id="c", topic_ids=(("t", OLD), ("u", NEW)), pending=plan)
    performer: Any = SimpleNamespace(letters=Letters(tmp_path, "p"))
    write = Write(plan, (0, 1, 2), Mode.FIRST)
    tasks = [Task(**Performer.task(performer, write, index, held)) for index in write.indexes]
    assert [each.topics for each in tasks] == [{"t": OLD}, {"u": NEW}, {}]


def test_dead_letters_that_are_read_again_are_not_another_topics(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What an expression rejects is read once more for its dead letter, and the topic may be another one by then."""
    brokers.ids["t"] = NEW
    schema = parse_schema("id BIGINT")
    recipe = InsertRecipe(
        pipeline="p",
        records=KafkaRecords(tuple(OPTIONS.items())),
        dead_letters=tmp_path / "dead",
        decoding=Decoding(max_record_bytes=1000),
        block_bytes=1000,
        source=schema,
        target=schema,
        sink=SqliteSink(tmp_path / "events.db"),
    )
    task = InsertTask(
        index=0,
        batch=1,
        plan="plan",
        block=Block((Range(Partition("t", 0), 0, 5),), "events"),
        token="token",
        deadline=0,
        mode=Mode.FIRST,
        kind=Kind.DELIVER,
        topic_ids=(("t", OLD),),
    )
    rejected = Rejected(Partition("t", 0), 3, "no number")
    monkeypatch.setattr(engine_task, "find", lambda *_: {})
    with pytest.raises(TopicRecreated):
        stage_letters(recipe, task, (rejected,), {})
    assert not list(tmp_path.glob("dead/*"))
