"""The real driver against a real ClickHouse, without Kafka and without Spark: records are made from their offsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa

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
from landonce.read.kafka.records import NoRecords, RecordSource
from landonce.sinks.clickhouse.sink import ClickHouseSink
from landonce.sinks.deduplicating import InsertTask, land, verdict
from landonce.sinks.worker import failed

Columns = Callable[[np.ndarray], dict[str, pa.Array]]
"""What the records of these offsets decode to."""


@dataclass(frozen=True)
class Recipe:
    """Where the rows go."""

    sink: ClickHouseSink
    dead_letters: Path
    halts: bool = False
    records: RecordSource = field(default_factory=NoRecords)


class Heard(Silent):
    """Keeps what a driver tells people."""

    def __init__(self) -> None:
        self.troubles: list[str] = []

    def trouble(self, what: str) -> None:
        self.troubles.append(what)


@dataclass
class Pipeline:
    """One topic of one partition into one table. Every `run` is a driver of its own; the ledger stays."""

    sink: ClickHouseSink
    columns: Columns
    folder: Path
    records: int = 10
    deadline: float = 0.5
    ledger: MemoryLedger = field(default_factory=lambda: MemoryLedger("orders"))
    before_write: Callable[[], None] = lambda: None
    incoming = None
    heard: Heard = field(default_factory=Heard)

    def run(self) -> int:
        """Until all is landed; gives how many rows this run landed."""
        view = SourceView("cluster", (("t", "id"),), ((Partition("t", 0), Extent(0, self.records)),))
        driver = Driver(
            pipeline="orders",
            topics=("t",),
            broker=SimpleNamespace(survey=lambda _: view, record_bytes=lambda _: None),  # type: ignore[arg-type]
            ledger=self.ledger,
            performer=InsertPerformer(
                settings=Deduplicating(self.sink.table, "fingerprint", once=True),
                recipe=Recipe(self.sink, self.folder),  # type: ignore[arg-type]
                target=self.sink.target(),
                workers=self,
                letters=Letters(self.folder / "dead", "orders"),
            ),
            pace=Pace(Batch(), self.deadline, 1),
            stall=30.0,
            observer=self.heard,
        )
        return driver.run().landed

    def write(self, recipe: Recipe, tasks: Sequence[InsertTask]) -> tuple[BlockResult, ...]:
        """As workers do it, one after the other."""
        self.before_write()
        return tuple(self._write(recipe, task) for task in tasks)

    def _write(self, recipe: Recipe, task: InsertTask) -> BlockResult:
        try:
            rows = self._rows(task)
            settling, said = land(recipe.sink.writer(), task, rows)
        except Exception as error:
            return failed(task, error)
        if settling.fate is not Fate.LANDED:
            return verdict(task, settling, said)
        return BlockResult(task.index, Fate.LANDED, Receipt(rows.num_rows, rows.num_rows))

    def _rows(self, task: InsertTask) -> pa.Table:
        offsets = np.concatenate([np.arange(each.first, each.end) for each in task.block.ranges])
        count = len(offsets)
        return pa.table(
            {
                **self.columns(offsets),
                "_topic": pa.array(["t"] * count, pa.string()),
                "_partition": pa.array([0] * count, pa.int32()),
                "_offset": pa.array(offsets, pa.int64()),
            }
        )


class Killed(Exception):
    """The driver dies where this is raised."""
