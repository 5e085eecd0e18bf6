"""Apache Iceberg at the end of a query: workers write files, and the driver commits them with the position, in one commit.

Writing files, judging a commit inside the commit, marks and fencing are those of pipelines. The table is its own ledger.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from landonce.engine.committing import gathered, highest
from landonce.errors import TableReshaped, TableUnfit
from landonce.protocol.batch import Machine, Next, begin
from landonce.protocol.ledger import LedgerState
from landonce.protocol.match_ranges import Incoming, pieces_each
from landonce.protocol.packing import Pace
from landonce.protocol.receipt import BlockResult, Fate
from landonce.protocol.snapshot import Snapshot
from landonce.protocol.steps import (
    Asked,
    CommitTables,
    Committed,
    Effect,
    LookAtTables,
    Looked,
    Moved,
    Reply,
    Stop,
    Write,
)
from landonce.query.fit import declared, refuse_misfits
from landonce.query.performers import BatchPerformer
from landonce.query.rows import write
from landonce.read.route import Routing, Rule
from landonce.sinks.iceberg.catalog import catalog_errors
from landonce.sinks.iceberg.commit import Attempt, Build, IcebergTable, TableBranch, check_visible
from landonce.sinks.iceberg.marks import filled_by, holds
from landonce.sinks.iceberg.partitions import limits_of
from landonce.sinks.iceberg.sink import IcebergSink
from landonce.sinks.iceberg.table import TableShape, create_table, creation, require_spec, require_unchanged, why_spark
from landonce.sinks.iceberg.types import schema_for
from landonce.sinks.iceberg.worker import FileRecipe, TableRecipe, table_fingerprint
from landonce.sinks.snapshot import StageTask, TableLedger

_PAUSE = 1.0


@dataclass
class Committing(BatchPerformer):
    """Performs the effects of a batch machine with the policy `snapshot`."""

    told: IcebergSink
    place: TableBranch
    ledger: TableLedger
    yields: pa.Schema
    """What the query gives."""
    marked: IcebergTable = field(init=False)
    memory: Machine | None = field(default=None, init=False)
    _recipe: FileRecipe | None = field(default=None, init=False)
    _table: Table | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.marked = self.ledger.table = IcebergTable(self.place, self.building)

    def begin(self) -> Next:
        """What is remembered serves once: a table that was rolled back is taken again."""
        before, self.memory = self.memory, None
        return begin(self.settings, before)

    def advance(self, machine: Machine, reply: Reply) -> tuple[Machine, Effect]:
        after, effect = machine.advance(reply)
        if isinstance(effect, Stop):
            self.memory = after
        return after, effect

    def reads_again(self, incoming: Incoming) -> bool:
        most = self.settings.block_rows * pieces_each(incoming.ranges)
        return any(each.span > most for each in incoming.ranges)

    def acquired(self, state: LedgerState) -> str:
        del state
        return self.ledger.noticed

    def perform(self, effect: Asked, held: LedgerState) -> Reply:
        if isinstance(effect, LookAtTables):
            return self._look(held)
        if isinstance(effect, CommitTables):
            try:
                return self._commit(effect, held)
            except TableReshaped:
                return Moved()
        raise TypeError(f"not an effect: {effect!r}")

    @property
    def _opened(self) -> Table:
        if self._table is None:
            raise ValueError("the table was not looked at yet")
        return self._table

    def admit(self, table: Table) -> FileRecipe:
        """What workers are told of the table as it is now. Others may change its columns at any time."""
        if self._recipe is None or self._table is None or table_fingerprint(table) != table_fingerprint(self._table):
            self._recipe, self._table = _recipe_of(self.told, self.place.pipeline, table, self.yields), table
        return self._recipe

    def _look(self, held: LedgerState) -> Looked:
        """Check ownership first: a fenced driver must not act on what it reads. A topic that is new to the ledger may
        not be in the table already."""
        self.ledger.check_owner(held)
        table = self.marked.loaded or self.place.load()
        self.admit(table)
        known, branch = dict(held.topic_ids), self.place.branch
        new = [held.label(topic) for topic, _ in self.batch[0].topic_ids if topic not in known]
        with catalog_errors(self.place.spec):
            writer = filled_by(table, branch) if held.fresh else ""
            found = bool(writer) or (bool(new) and holds(table, branch, new))
        return Looked((), self.place.identifier if found else "", writer)

    def write(self, effect: Write, held: LedgerState) -> tuple[BlockResult, ...]:
        plan = effect.plan
        tasks = [
            StageTask(
                index=index,
                batch=plan.batch,
                epoch=held.epoch,
                plan="",
                block=plan.blocks[index],
                kind=plan.kind,
                floors=(),
                labels=held.labels,
            )
            for index in effect.indexes
        ]
        incoming, frame = self.batch
        results = write(frame, incoming.ranges, self.admit(self._opened), tasks)
        if any(result.fate is Fate.DOUBTFUL for result in results):
            time.sleep(_PAUSE)
        return results

    def _commit(self, effect: CommitTables, held: LedgerState) -> Committed:
        """A commit without an answer is made again, and finds its own mark if it was made. Dead letters that a pipeline of this name
        left stay noted."""
        name = self.told.table
        files = gathered(effect.receipts).get(name, ())
        self.ledger.commit(
            held,
            effect.after,
            files,
            started=tuple(sorted(held.committed().items())),
            tops=highest(effect.receipts).get(name, ()),
        )
        return Committed()

    def building(self, files: tuple[Any, ...]) -> Build:
        """How a commit of these files is made."""
        name = self.told.table
        check_visible(name, self._opened.io, files)

        def build(table: Table, summary: Mapping[str, str], properties: Mapping[str, str]) -> Attempt:
            if files:
                require_unchanged(name, self._opened, table, specs={each.spec_id for each in files})
            return self.place.appending(table, files, summary, properties)

        return build

    def close(self) -> None:
        """The catalog's connections are closed with it."""


def committing(sink: IcebergSink, frame: DataFrame, ledger: TableLedger, settings: Snapshot, pace: Pace) -> Committing:
    """A performer that is ready for micro-batches: the table is there and fit, and the rows fit into it."""
    place, yields = sink.place(sink.table), to_arrow_schema(frame.schema)
    table = place.find()
    if table is None:
        if not sink.config.create:
            raise TableUnfit(
                f"the catalog has no table {sink.table}, or the user may not see it.",
                safe="Nothing was written.",
                command=f'create it, or use landonce.iceberg("{sink.table}", …, create=True)',
            )
        with catalog_errors(sink.spec):
            table = create_table(sink.catalog, sink.table, declared(yields), creation(sink.config))
    performer = Committing(settings, pace, sink, place, ledger, yields)
    performer.admit(table)
    return performer


def _recipe_of(sink: IcebergSink, name: str, table: Table, yields: pa.Schema) -> FileRecipe:
    require_spec(sink.config, sink.table, table)
    if reason := why_spark(table):
        raise TableUnfit(
            f"{sink.table}: Spark's own writer is needed for it, since {reason}, and queries are written by landonce's.",
            safe="Nothing was written.",
            command="write a pipeline file for it, which takes row-wise SQL, too; or name another table",
        )
    target = schema_for(table, coordinates=True)
    refuse_misfits(yields, target, sink.table)
    limits = limits_of(table.spec(), table.schema())
    taken = TableRecipe(sink.table, target, TableShape.of(table), scratch=None, limits=limits)
    return FileRecipe(pipeline=name, routing=Routing(None, (Rule(sink.table),)), tables=(taken,), shuffled=True)
