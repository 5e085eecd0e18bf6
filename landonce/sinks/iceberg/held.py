"""What Iceberg tables hold, for an audit, each at one snapshot of a branch that is pinned when the audit opens the table. Read-only.

Every live file is read once, only its coordinates, without the rows that position deletes, deletion vectors or equality deletes remove,
into an index of offsets. If records change rows, all keys are held in memory at once, in columns. Of values some thousand rows are read at a time: the
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
from pyiceberg.table import Table
from pyroaring import BitMap64

from landonce.protocol.ledger import LedgerState
from landonce.protocol.ranges import Partition
from landonce.read.changes import Changes
from landonce.read.route import Routing
from landonce.read.schema.fields import ANY_RECORD, Schema
from landonce.sinks.audit import (
    LAST,
    OFFSET,
    PLACE,
    UNKNOWN,
    CountedOffsets,
    Doubled,
    FileSpan,
    Held,
    HeldKeys,
    HeldTables,
    HeldValues,
    Offsets,
    Piece,
    Reference,
    plain,
)
from landonce.sinks.declared import declared_schema, landing_schema
from landonce.sinks.iceberg.catalog import catalog_errors
from landonce.sinks.iceberg.driver import file_recipe
from landonce.sinks.iceberg.held_files import COORDINATES, LiveFile, PinnedTable
from landonce.sinks.iceberg.marks import pipelines_of
from landonce.sinks.iceberg.sink import IcebergSink
from landonce.sinks.iceberg.table import identity_of
from landonce.sinks.iceberg.worker import FileRecipe, TableRecipe, table_recipe
from landonce.sinks.parts import Parts

_TOPIC, _NUMBER, _OFFSET = COORDINATES


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
        return replace(file_recipe(self.parts, self.sink), tables=tuple(each for each in tables if each is not None))

    @property
    def routing(self) -> Routing:
        return self.sink.routing

    def identity(self, table: str) -> tuple[str, ...]:
        there = self._load(table)
        return identity_of(self.sink.config, table, there) if there is not None else self.sink.config.identity

    @property
    def changes(self) -> Changes | None:
        return self.recipe.changes

    def known(self) -> tuple[str, ...]:
        """Of the tables whose names match the template, those that the pipeline has committed to."""
        with catalog_errors(self.sink.spec):
            there = ((name, self._load(name)) for name in self.sink.dynamic())
            found = [
                name for name, each in there if each is not None and self.sink.pipeline in pipelines_of(each.metadata)
            ]
        listed = [name for name, _ in self.state.tables] if self.state is not None else []
        return tuple(dict.fromkeys((*self.sink.static, *found, *listed)))

    def open(self, table: str) -> Held | HeldKeys:
        """A missing table holds nothing, with or without keys."""
        pinned = PinnedTable.load(self.sink.spec, table, self.sink.config.branch, self.sink.catalog)
        if self.sink.config.changes is not None and self._load(table) is not None:
            return IcebergKeys(pinned, self.identity(table))
        return IcebergRows(pinned)

    def schema(self, table: str) -> Schema | None:
        recipe = self._recipe(table)
        return recipe.schema if recipe is not None else None

    def lost(self, table: str) -> Schema | None:
        """What the rows of a missing table could have been: the declared fields, or any. None if the table need not exist."""
        should = self.sink.config.create or table in self.sink.static
        return declared_schema(self.parts.config) or ANY_RECORD if should else None

    def _recipe(self, table: str) -> TableRecipe | None:
        there = self._load(table)
        landing = landing_schema(self.parts.config)
        return table_recipe(self.sink.config, table, there, landing, planned=True) if there is not None else None

    def _load(self, table: str) -> Table | None:
        if table not in self._loaded:
            self._loaded[table] = self.sink.place(table).find()
        return self._loaded[table]


class _OneTable:
    """What rows and keys have in common. A missing table or branch holds nothing, and `notes` say so."""

    def __init__(self, table: PinnedTable) -> None:
        self.name = table.name
        self.table = table
        self._spans = _Spans(table)

    def values(self) -> IcebergValues:
        return IcebergValues(self.table)

    def doubled(self) -> tuple[Doubled, ...]:
        return self._spans.doubled()

    def as_of(self) -> str:
        return self.table.as_of()

    def notes(self) -> tuple[str, ...]:
        return self.table.notes()


class IcebergRows(_OneTable, Held):
    """The coordinates in one table."""

    def __init__(self, table: PinnedTable) -> None:
        super().__init__(table)
        self._without = 0
        """Rows without a coordinate: another writer added them."""

    @cached_property
    def _index(self) -> OffsetIndex:
        """Reads the table, once."""
        index = OffsetIndex()
        for live, batch in self.table.rows(COORDINATES):
            whole = batch.drop_null()
            self._without += batch.num_rows - whole.num_rows
            for partition, offsets in split(*whole.columns):
                index.add(partition, offsets)
                self._spans.add(live.file.file_path, partition, offsets)
        index.optimize()
        return index

    def counted(self, partition: Partition, first: int, end: int) -> CountedOffsets:
        return self._index.counted(partition, first, end)

    def repeated(self, partition: Partition, first: int, end: int) -> CountedOffsets:
        return self._index.repeated(partition, first, end)

    def count(self, partition: Partition, first: int, end: int = LAST) -> int:
        return self._index.count(partition, first, end)

    def lowest(self, partition: Partition, first: int, end: int = LAST) -> int | None:
        return self._index.lowest(partition, first, end)

    def partitions(self, labels: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
        wanted = set(labels)
        return tuple((at.topic, at.number, rows) for at, rows in self._index.rows().items() if at.topic in wanted)

    def doubled(self) -> tuple[Doubled, ...]:
        _ = self._index
        return super().doubled()

    def notes(self) -> tuple[str, ...]:
        _ = self._index
        count = self._without
        notes = (f"{self.name}: {count} rows have no coordinates and were not judged.",) if count else ()
        return (*super().notes(), *notes)


class IcebergKeys(_OneTable, HeldKeys):
    """The keys in one table, with the coordinates of their rows."""

    def __init__(self, table: PinnedTable, identity: Sequence[str]) -> None:
        super().__init__(table)
        self._identity = list(identity)

    def rows(self, places: Mapping[Partition, int]) -> pa.Table | None:
        """Rows without coordinates belong to no partition."""
        self._spans, found = _Spans(self.table), []
        for live, batch in self.table.rows((*self._identity, *COORDINATES)):
            place, offset = np.full((2, batch.num_rows), UNKNOWN, np.int64)
            positions = pa.array(np.arange(batch.num_rows))
            numbered = batch.select(list(COORDINATES)).append_column("at", positions).drop_null()
            for partition, at in split(numbered.column(0), numbered.column(1), numbered.column(3)):
                offset[at] = batch.column(_OFFSET).take(pa.array(at)).to_numpy()
                place[at] = places.get(partition, UNKNOWN)
                self._spans.add(live.file.file_path, partition, offset[at])
            keys = plain(pa.Table.from_batches([batch.select(self._identity)]))
            found.append(keys.append_column(PLACE, pa.array(place)).append_column(OFFSET, pa.array(offset)))
        return pa.concat_tables(found) if found else None


class IcebergValues(HeldValues):
    """The rows of one table. A missing table or branch holds none."""

    def __init__(self, table: PinnedTable) -> None:
        self.name = table.name
        self._table = table

    def read(self, partition: Partition, first: int, end: int, names: Sequence[str]) -> Iterator[Piece]:
        def may_hold(group: pq.RowGroupMetaData) -> bool:
            columns = (group.column(at) for at in range(group.num_columns))
            known = next((each.statistics for each in columns if each.path_in_schema == _OFFSET), None)
            return known is None or not known.has_min_max or bool(known.min < end and known.max >= first)

        here = (pc.field(_TOPIC) == partition.topic) & (pc.field(_NUMBER) == partition.number)
        within = here & (pc.field(_OFFSET) >= pa.scalar(first)) & (pc.field(_OFFSET) < pa.scalar(end))
        known = [name for name in names if self._table.has(name)]
        unknown = frozenset(names) - frozenset(known)
        for live, spans in self._spans:
            span = spans.get(partition)
            if span is None or span.end <= first or span.first >= end:
                continue
            for found in self._table.pieces(live, (*known, *COORDINATES), may_hold):
                rows = found.rows.filter(within)
                if rows.num_rows:
                    yield Piece(rows.drop_columns([_TOPIC, _NUMBER]), found.absent | unknown, found.single)

    @cached_property
    def _spans(self) -> list[tuple[LiveFile, dict[Partition, FileSpan]]]:
        found: list[tuple[LiveFile, dict[Partition, FileSpan]]] = []
        for live, batch in self._table.rows(COORDINATES):
            if not found or found[-1][0] is not live:
                found.append((live, {}))
            for partition, offsets in split(*batch.drop_null().columns):
                _extend(found[-1][1], partition, offsets)
        return found


class _Spans:
    """What files hold that the snapshot registers more than once, collected while the table is read. A file comes once per registration."""

    def __init__(self, table: PinnedTable) -> None:
        self._table = table
        self._found: dict[str, dict[Partition, FileSpan]] = defaultdict(dict)

    @cached_property
    def _twice(self) -> dict[str, tuple[Reference, ...]]:
        return self._table.doubled()

    def add(self, path: str, partition: Partition, offsets: Offsets) -> None:
        if path in self._twice and len(offsets):
            _extend(self._found[path], partition, offsets)

    def doubled(self) -> tuple[Doubled, ...]:
        """These files, and who registered them."""
        return tuple(Doubled(path, them, tuple(self._found[path].values())) for path, them in self._twice.items())


def _extend(spans: dict[Partition, FileSpan], partition: Partition, offsets: Offsets) -> None:
    new = FileSpan.of(partition, offsets)
    spans[partition] = spans[partition].plus(new) if partition in spans else new


class OffsetIndex:
    """Which offsets are present, and how often: bitmaps per partition.

    The first bitmap of a partition holds every offset that is present, the second those that are present at least twice,
    and so on. A bitmap of consecutive offsets takes next to no memory, and any other at most two bytes per offset, so an
    audit of a billion rows still fits into memory.
    """

    def __init__(self) -> None:
        self._levels: dict[Partition, list[BitMap64]] = defaultdict(list)

    def add(self, partition: Partition, offsets: Offsets) -> None:
        """Adds these offsets, in any order, possibly repeated."""
        left = CountedOffsets.of(offsets)
        levels = self._levels[partition]
        while len(left.offsets):
            added = BitMap64(left.offsets.astype(np.uint64))
            for at, level in enumerate(levels):  # offsets that are in a level already go one up
                again = level & added
                level |= added
                levels[at], added = level, again
                if not added:
                    break
            if added:
                levels.append(added)
            more = left.counts > 1
            left = CountedOffsets(left.offsets[more], left.counts[more] - 1)

    def optimize(self) -> None:
        """Compresses runs, once all offsets are added."""
        for levels in self._levels.values():
            for each in levels:
                each.run_optimize()

    def counted(self, partition: Partition, first: int, end: int) -> CountedOffsets:
        levels = self._levels.get(partition, [])
        if first >= end or not levels:
            return CountedOffsets.none()
        window = BitMap64(range(max(first, levels[0].min()), min(end, levels[0].max() + 1)))
        offsets = _numbers(levels[0] & window)
        counts = np.ones(len(offsets), np.int64)
        for each in levels[1:]:
            counts[np.searchsorted(offsets, _numbers(each & window))] += 1
        return CountedOffsets(offsets, counts)

    def repeated(self, partition: Partition, first: int, end: int) -> CountedOffsets:
        if len(self._levels.get(partition, [])) < 2:
            return CountedOffsets.none()
        found = self.counted(partition, first, end)
        again = found.counts > 1
        return CountedOffsets(found.offsets[again], found.counts[again])

    def count(self, partition: Partition, first: int, end: int) -> int:
        return sum(each.range_cardinality(first, end) for each in self._levels.get(partition, []))

    def lowest(self, partition: Partition, first: int, end: int) -> int | None:
        levels = self._levels.get(partition)
        if not levels or not levels[0].range_cardinality(first, end):
            return None
        return int(levels[0].next_set_bit(first))

    def rows(self) -> dict[Partition, int]:
        return {partition: sum(map(len, levels)) for partition, levels in sorted(self._levels.items())}


def _numbers(bitmap: BitMap64) -> Offsets:
    return np.frombuffer(bitmap.to_array(), np.uint64).astype(np.int64) if bitmap else np.empty(0, np.int64)


def split(topics: pa.Array, numbers: pa.Array, offsets: pa.Array) -> list[tuple[Partition, Offsets]]:
    """The offsets of each partition. None of the columns holds a null."""
    coded = topics if pa.types.is_dictionary(topics.type) else topics.dictionary_encode()
    labels = coded.dictionary.to_pylist()
    number = np.asarray(numbers.to_numpy(zero_copy_only=False), np.int64)
    width = int(number.max(initial=0)) + 1
    code = np.asarray(coded.indices.to_numpy(zero_copy_only=False), np.int64) * width + number
    order = np.argsort(code, kind="stable")
    code, sorted_offsets = code[order], np.asarray(offsets.to_numpy(zero_copy_only=False), np.int64)[order]
    edges = np.flatnonzero(np.diff(code)) + 1
    firsts = code[np.concatenate(([0], edges))] if len(code) else code
    parts = np.split(sorted_offsets, edges) if len(code) else []
    found = zip(firsts.tolist(), parts, strict=True)
    return [(Partition(labels[at // width], at % width), part) for at, part in found]
