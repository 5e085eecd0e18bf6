"""A write that always takes longer than its deadline gets a later one each time, and lands before the run stalls."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from landonce.config.model import Batch
from landonce.engine.driver import Driver
from landonce.engine.observe import Silent
from landonce.engine.perform import InsertPerformer
from landonce.engine.publish import Letters
from landonce.ledger.memory import MemoryLedger
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.packing import Pace
from landonce.protocol.ranges import Partition
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.protocol.source import Extent, SourceView
from landonce.protocol.target import TargetView
from landonce.read.kafka.records import NoRecords, RecordSource
from landonce.sinks.worker import Task

NEEDED = 9_000
"""Milliseconds that a block takes from the plan to the table."""


@dataclass
class Clock:
    """A target whose time passes only while somebody writes."""

    at: int = 1_000_000

    def now(self) -> int:
        return self.at

    def kill(self) -> None: ...

    def look(self, _: object) -> TargetView:
        return TargetView(())

    def count(self, _: object) -> int:
        return 0


@dataclass
class Anything:
    """A recipe that nobody reads."""

    dead_letters: Path = Path()
    halts: bool = False
    records: RecordSource = field(default_factory=NoRecords)


@dataclass
class SlowWorkers:
    clock: Clock
    given: list[int] = field(default_factory=list)
    incoming: None = None

    def write(self, recipe: object, tasks: list[Task]) -> tuple[BlockResult, ...]:
        self.given.append(tasks[0].deadline - self.clock.at)
        self.clock.at += NEEDED
        if self.clock.at > tasks[0].deadline:
            return tuple(BlockResult(task.index, Fate.LATE) for task in tasks)
        return tuple(BlockResult(task.index, Fate.LANDED, Receipt(10, 10)) for task in tasks)


def test_what_came_too_late_gets_more_time(tmp_path: Path) -> None:
    clock = Clock()
    workers = SlowWorkers(clock)
    view = SourceView("cluster", (("t", "id"),), ((Partition("t", 0), Extent(0, 10)),))
    driver = Driver(
        pipeline="p",
        topics=("t",),
        broker=SimpleNamespace(survey=lambda _: view, record_bytes=lambda _: None),  # type: ignore[arg-type]
        ledger=MemoryLedger("p"),
        performer=InsertPerformer(
            settings=Deduplicating("table", "fingerprint", once=True),
            recipe=Anything(),  # type: ignore[arg-type]
            target=clock,  # type: ignore[arg-type]
            workers=workers,  # type: ignore[arg-type]
            letters=Letters(tmp_path / "dead", "p"),
        ),
        pace=Pace(Batch(), 2.0, 1),
        stall=60.0,
        observer=Silent(),
    )
    assert driver.run().landed == 10
    assert workers.given == [2_000, 4_000, 8_000, 16_000]
