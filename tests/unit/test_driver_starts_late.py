"""A driver whose workers start late: they are there before a plan is durable, and not before there is something to write."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from landonce.config.model import Batch
from landonce.engine.driver import Driver
from landonce.engine.observe import Silent
from landonce.engine.perform import InsertPerformer
from landonce.engine.publish import Letters
from landonce.errors import ConfigError
from landonce.ledger.memory import MemoryLedger
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.packing import Pace
from landonce.protocol.ranges import Partition
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.protocol.source import Extent, SourceView
from landonce.protocol.target import TargetView
from landonce.read.kafka.records import NoRecords, RecordSource


@dataclass
class Anything:
    """A recipe that nobody reads."""

    dead_letters: Path = Path()
    halts: bool = False
    records: RecordSource = field(default_factory=NoRecords)


def driver(tmp_path: Path, records: int, ledger: MemoryLedger) -> Driver:
    view = SourceView("cluster", (("t", "id"),), ((Partition("t", 0), Extent(0, records)),))
    workers = SimpleNamespace(
        incoming=None,
        write=lambda _, tasks: tuple(BlockResult(each.index, Fate.LANDED, Receipt(records, records)) for each in tasks),
    )
    return Driver(
        pipeline="p",
        topics=("t",),
        broker=SimpleNamespace(survey=lambda _: view, record_bytes=lambda _: None),  # type: ignore[arg-type]
        ledger=ledger,
        performer=InsertPerformer(
            settings=Deduplicating("table", "fingerprint", once=True),
            recipe=Anything(),  # type: ignore[arg-type]
            target=SimpleNamespace(now=lambda: 0, kill=lambda: None, look=lambda _: TargetView(()), count=lambda _: 0),  # type: ignore[arg-type]
            workers=workers,  # type: ignore[arg-type]
            letters=Letters(tmp_path / "dead", "p"),
        ),
        pace=Pace(Batch(), 2.0, 1),
        stall=60.0,
        observer=Silent(),
        start_late=True,
    )


def refuse() -> int:
    raise ConfigError("there is no Java")


def test_they_do_not_start_where_there_is_nothing_to_write(tmp_path: Path) -> None:
    idle = driver(tmp_path, 0, MemoryLedger("p"))
    idle.start_workers = refuse
    assert idle.run().read == 0


def test_a_plan_that_nobody_can_write_is_not_made_durable(tmp_path: Path) -> None:
    """Records that came after the look that decided to start late."""
    ledger = MemoryLedger("p")
    busy = driver(tmp_path, 10, ledger)
    busy.start_workers = refuse
    with pytest.raises(ConfigError):
        busy.run()
    state = ledger.load()
    assert state is not None
    assert state.pending is None
    again = driver(tmp_path, 10, ledger)
    started: list[int] = []
    again.start_workers = lambda: started.append(1) or 4  # type: ignore[func-returns-value]
    assert again.run().landed == 10
    assert started == [1]
    assert again.pace.parallelism == 4


def test_otherwise_they_start_before_the_pipeline_is_taken(tmp_path: Path) -> None:
    ledger = MemoryLedger("p")
    early = driver(tmp_path, 10, ledger)
    early.start_late, early.start_workers = False, refuse
    with pytest.raises(ConfigError):
        early.run()
    assert ledger.load() is None
