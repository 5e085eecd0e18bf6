"""What Iceberg tables hold, for an audit, each at one snapshot of a branch that is pinned when the audit opens the table. Read-only.

Every live file is read once, only its coordinates, without the rows that position deletes or deletion vectors remove, into an index of
offsets. If records change rows, all keys are held in memory at once, in columns. Of values some thousand rows are read at a time: the
coordinates say which file holds which offsets, and of a Parquet file only the row groups are read whose statistics match the range; ORC
and Avro files are read whole for every range that they overlap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from landonce.protocol.ledger import LedgerState
from landonce.protocol.ranges import Partition
from landonce.read.changes.decode import Changes
from landonce.read.route import Routing
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.audit import (
    LAST,
    OFFSET,
    PLACE,
    UNKNOWN,
    Counted,
    Doubled,
    Held,
    HeldKeys,
    HeldTables,
    HeldValues,
    Offsets,
    Piece,
    Span,
    plain,
)
from landonce.sinks.declared import declared_schema, landing_schema
from landonce.sinks.iceberg.catalog import catalog_errors
from landonce.sinks.iceberg.driver import file_recipe
from landonce.sinks.iceberg.held_offsets import OffsetIndex, split
from landonce.sinks.iceberg.held_snapshot import COORDINATES, LiveFile, PinnedTable
from landonce.sinks.iceberg.marks import copy_name
from landonce.sinks.iceberg.sink import IcebergSink
from landonce.sinks.iceberg.worker import FileRecipe, TableRecipe, table_recipe
from landonce.sinks.parts import Parts

_TOPIC, _NUMBER, _OFFSET = COORDINATES
_ANY = Schema((Field("__landonce_any", pa.string()),))
"""Any record."""


@dataclass(frozen=True)
class IcebergTables(HeldTables):
    """The tables of a pipeline: those that the file names, those that the ledger knows, and those that records name."""

    parts: Parts
    sink: IcebergSink
    state: LedgerState | None
    _loaded: dict[str, Table | None] = field(default_factory=dict)

    @cached_property
    def recipe(self) -> FileRecipe:
        """What the file says of records, and the columns of the existing tables."""
        tables = (self._recipe(name) for name in self.known())
        return replace(file_recipe(self.parts), tables=tuple(each for each in tables if each is not None))

    @property
    def routing(self) -> Routing:
        return self.sink.routing

    @property
    def identity(self) -> tuple[str, ...]:
        return self.sink.config.identity

    @property
    def changes(self) -> Changes | None:
        return self.recipe.changes

    def known(self) -> tuple[str, ...]:
        """Of the tables whose names match the template, those that the pipeline has committed to."""
        with catalog_errors(self.sink.spec):
            found = [name for name in self.sink.dynamic() if self._ours(name)]
        listed = [name for name, _ in self.state.tables] if self.state is not None else []
        return tuple(dict.fromkeys((*self.sink.static, *found, *listed)))

    def open(self, table: str) -> Held | HeldKeys:
        """A missing table holds nothing, with or without keys."""
        pinned = PinnedTable(self.sink.spec, table, self.sink.config.branch, self.sink.catalog)
        if self.sink.config.changes is not None and self._load(table) is not None:
            return IcebergKeys(pinned, self.identity)
        return IcebergRows(pinned)

    def schema(self, table: str) -> Schema | None:
        recipe = self._recipe(table)
        return recipe.schema if recipe is not None else None

    def lost(self, table: str) -> Schema | None:
        """A missing table that should exist accepts anything."""
        should = self.sink.config.create or table in self.sink.static
        return declared_schema(self.parts.config) or _ANY if should else None

    def _ours(self, table: str) -> bool:
        there = self._load(table)
        if there is None:
            return False
        summaries = (each.summary.additional_properties for each in there.snapshots() if each.summary is not None)
        marked = any(each.get("landonce.pipeline") == self.sink.pipeline for each in summaries)
        return marked or copy_name(self.sink.pipeline, self.sink.config.branch) in there.properties

    def _recipe(self, table: str) -> TableRecipe | None:
        there = self._load(table)
        landing = landing_schema(self.parts.config)
        return table_recipe(self.sink.config, table, there, landing) if there is not None else None

    def _load(self, table: str) -> Table | None:
        if table not in self._loaded:
            with catalog_errors(self.sink.spec):
                try:
                    self._loaded[table] = self.sink.catalog.load_table(table)
                except NoSuchTableError:
                    self._loaded[table] = None
        return self._loaded[table]


class IcebergRows(Held):
    """The coordinates in one table. A missing table or branch holds nothing, and `notes` say so."""

    def __init__(self, table: PinnedTable) -> None:
        self.name = table.name
        self.table = table

    def values(self) -> IcebergValues:
        return IcebergValues(self.table)

    def counted(self, partition: Partition, first: int, end: int) -> Counted:
        return self._read.index.counted(partition, first, end)

    def repeated(self, partition: Partition, first: int, end: int) -> Counted:
        return self._read.index.repeated(partition, first, end)

    def count(self, partition: Partition, first: int, end: int = LAST) -> int:
        return self._read.index.count(partition, first, end)

    def lowest(self, partition: Partition, first: int, end: int = LAST) -> int | None:
        return self._read.index.lowest(partition, first, end)

    def partitions(self, labels: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
        wanted = set(labels)
        return tuple((at.topic, at.number, rows) for at, rows in self._read.index.rows().items() if at.topic in wanted)

    def doubled(self) -> tuple[Doubled, ...]:
        return self._read.spans.doubled()

    def as_of(self) -> str:
        return self.table.as_of()

    def notes(self) -> tuple[str, ...]:
        without = self._read.without
        notes = (f"{self.name}: {without} rows have no coordinates and were not judged.",) if without else ()
        return (*self.table.notes(), *notes)

    @cached_property
    def _read(self) -> _Read:
        read = _Read(self.table)
        for live, batch in self.table.rows(COORDINATES):
            read.add(live.file.file_path, batch)
        read.index.optimize()
        return read


class _Read:
    """The result of one pass over the table."""

    def __init__(self, table: PinnedTable) -> None:
        self.index = OffsetIndex()
        self.spans = _Spans(table)
        self.without = 0
        """Rows without a coordinate: another writer added them."""

    def add(self, path: str, batch: pa.RecordBatch) -> None:
        whole = batch.drop_null()
        self.without += batch.num_rows - whole.num_rows
        for partition, offsets in split(*whole.columns):
            self.index.add(partition, offsets)
            self.spans.add(path, partition, offsets)


class IcebergKeys(HeldKeys):
    """A missing table or branch holds nothing, and `notes` say so."""

    def __init__(self, table: PinnedTable, identity: Sequence[str]) -> None:
        self.name = table.name
        self.table = table
        self._identity = list(identity)
        self._spans = _Spans(table)

    def values(self) -> IcebergValues:
        return IcebergValues(self.table)

    def rows(self, places: Mapping[Partition, int]) -> pa.Table | None:
        self._spans, found = _Spans(self.table), []
        for live, batch in self.table.rows((*self._identity, *COORDINATES)):
            place, offset = np.full((2, batch.num_rows), UNKNOWN, np.int64)
            for partition, at in _positions(batch):
                offset[at] = batch.column(COORDINATES[2]).take(pa.array(at)).to_numpy()
                place[at] = places.get(partition, UNKNOWN)
                self._spans.add(live.file.file_path, partition, offset[at])
            keys = plain(pa.Table.from_batches([batch.select(self._identity)]))
            found.append(keys.append_column(PLACE, pa.array(place)).append_column(OFFSET, pa.array(offset)))
        return pa.concat_tables(found) if found else None

    def doubled(self) -> tuple[Doubled, ...]:
        return self._spans.doubled()

    def as_of(self) -> str:
        return self.table.as_of()

    def notes(self) -> tuple[str, ...]:
        return self.table.notes()


def _positions(batch: pa.RecordBatch) -> list[tuple[Partition, Offsets]]:
    """For each partition the positions of its rows. Rows without coordinates belong to none."""
    numbered = batch.select(list(COORDINATES)).append_column("at", pa.array(np.arange(batch.num_rows))).drop_null()
    return split(numbered.column(0), numbered.column(1), numbered.column(3))


class IcebergValues(HeldValues):
    """The rows of one table. A missing table or branch holds none."""

    def __init__(self, table: PinnedTable) -> None:
        self.name = table.name
        self._table = table

    def read(self, partition: Partition, first: int, end: int, names: Sequence[str]) -> Iterator[Piece]:
        def may_hold(group: pq.RowGroupMetaData) -> bool:
            return _may_hold(group, first, end)

        known = [name for name in names if self._table.has(name)]
        unknown = frozenset(names) - frozenset(known)
        for live, spans in self._spans:
            span = spans.get(partition)
            if span is None or span.end <= first or span.first >= end:
                continue
            for found in self._table.pieces(live, (*known, *COORDINATES), may_hold):
                rows = found.rows.filter(_within(partition, first, end))
                if rows.num_rows:
                    yield Piece(rows.drop_columns([_TOPIC, _NUMBER]), found.absent | unknown, found.single)

    @cached_property
    def _spans(self) -> list[tuple[LiveFile, dict[Partition, Span]]]:
        found: list[tuple[LiveFile, dict[Partition, Span]]] = []
        for live, batch in self._table.rows(COORDINATES):
            if not found or found[-1][0] is not live:
                found.append((live, {}))
            spans = found[-1][1]
            for partition, offsets in split(*batch.drop_null().columns):
                span = Span.of(partition, offsets)
                spans[partition] = spans[partition].plus(span) if partition in spans else span
        return found


def _within(partition: Partition, first: int, end: int) -> pc.Expression:
    here = (pc.field(_TOPIC) == partition.topic) & (pc.field(_NUMBER) == partition.number)
    return here & (pc.field(_OFFSET) >= pa.scalar(first)) & (pc.field(_OFFSET) < pa.scalar(end))


def _may_hold(group: pq.RowGroupMetaData, first: int, end: int) -> bool:
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == _OFFSET:
            statistics = column.statistics
            return not (statistics is not None and statistics.has_min_max) or (
                statistics.min < end and statistics.max >= first
            )
    return True


class _Spans:
    """What files hold that the snapshot registers more than once, collected while the table is read. A file comes once per registration."""

    def __init__(self, table: PinnedTable) -> None:
        self._twice = table.files.doubled()
        self._found: dict[str, dict[Partition, Span]] = defaultdict(dict)

    def add(self, path: str, partition: Partition, offsets: Offsets) -> None:
        if path in self._twice and len(offsets):
            held, new = self._found[path], Span.of(partition, offsets)
            held[partition] = held[partition].plus(new) if partition in held else new

    def doubled(self) -> tuple[Doubled, ...]:
        """These files, and who registered them."""
        return tuple(Doubled(path, them, tuple(self._found[path].values())) for path, them in self._twice.items())
