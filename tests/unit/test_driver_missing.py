"""A topic that the pipeline knows may be unknown to a broker for a moment. It is missing only if it stays away."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from landonce.config.model import Batch
from landonce.engine import driver as drivers
from landonce.engine.driver import Driver
from landonce.engine.observe import Silent
from landonce.engine.perform import InsertPerformer
from landonce.engine.publish import Letters
from landonce.errors import TopicMissing
from landonce.ledger.memory import MemoryLedger
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.packing import Pace
from landonce.protocol.ranges import Partition
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.protocol.source import Extent, SourceView
from landonce.protocol.target import TargetView
from landonce.read.kafka.records import NoRecords, RecordSource
from landonce.sinks.worker import Task


class Brokers:
    """Say that there is no such topic, at some looks of the driver."""

    def __init__(self, away: Callable[[int], bool]) -> None:
        self.away = away
        self.looks = 0

    def survey(self, _: object) -> SourceView:
        self.looks += 1
        if self.away(self.looks):
            raise TopicMissing("topic 't' is not there.")
        return SourceView("cluster", (("t", "id"),), ((Partition("t", 0), Extent(0, 10)),))

    def record_bytes(self, _: object) -> None: ...


@dataclass
class Anything:
    """A recipe that nobody reads."""

    dead_letters: Path = Path()
    halts: bool = False
    records: RecordSource = field(default_factory=NoRecords)


def driver(brokers: Brokers, folder: Path) -> Driver:
    target = SimpleNamespace(now=lambda: 0, kill=lambda: None, look=lambda _: TargetView(()), count=lambda _: 0)

    def write(_: object, tasks: list[Task]) -> tuple[BlockResult, ...]:
        return tuple(BlockResult(task.index, Fate.LANDED, Receipt(10, 10)) for task in tasks)

    return Driver(
        pipeline="p",
        topics=("t",),
        broker=brokers,  # type: ignore[arg-type]
        ledger=MemoryLedger("p"),
        performer=InsertPerformer(
            settings=Deduplicating("table", "fingerprint", once=True),
            recipe=Anything(),  # type: ignore[arg-type]
            target=target,  # type: ignore[arg-type]
            workers=SimpleNamespace(write=write, incoming=None),  # type: ignore[arg-type]
            letters=Letters(folder / "dead", "p"),
        ),
        pace=Pace(Batch(), 2.0, 1),
        stall=60.0,
        observer=Silent(),
    )


def test_a_topic_that_comes_back_is_waited_for(tmp_path: Path) -> None:
    brokers = Brokers(lambda look: look in (2, 3))
    assert driver(brokers, tmp_path).run().landed == 10
    assert brokers.looks == 4


def test_a_topic_that_stays_away_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "_UNKNOWN_FOR", 0.5)
    brokers, began = Brokers(lambda look: look > 1), time.monotonic()
    with pytest.raises(TopicMissing, match="'t'"):
        driver(brokers, tmp_path).run()
    assert 0.5 < time.monotonic() - began < 10
    assert brokers.looks > 2


def test_a_topic_that_was_never_there_is_missing_at_once(tmp_path: Path) -> None:
    brokers = Brokers(lambda _: True)
    with pytest.raises(TopicMissing, match="'t'"):
        driver(brokers, tmp_path).run()
    assert brokers.looks == 1


def test_what_a_query_asks_is_waited_for_too(tmp_path: Path) -> None:
    """Spark has seen its topics."""
    brokers = Brokers(lambda look: look < 3)
    assert driver(brokers, tmp_path).ask(lambda: brokers.survey("t")).cluster_id == "cluster"
    assert brokers.looks == 3


def test_what_a_query_asks_is_missing_if_it_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each micro-batch may wait as long, however long the last one waited."""
    monkeypatch.setattr(drivers, "_UNKNOWN_FOR", 0.5)
    brokers = Brokers(lambda _: True)
    asking = driver(brokers, tmp_path)
    for _ in range(2):
        before, began = brokers.looks, time.monotonic()
        with pytest.raises(TopicMissing, match="'t'"):
            asking.ask(lambda: brokers.survey("t"))
        assert 0.5 < time.monotonic() - began < 10
        assert brokers.looks > before + 1
