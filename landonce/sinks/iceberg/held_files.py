"""A table at one snapshot of a branch, pinned when it is opened: its live files, which rows of them are deleted, and the rows that are left.

Of a data file some columns are read, found by field id at every depth, some thousand rows at a time and in the order of the file. Arrow
reads Parquet and ORC; PyIceberg's reader of manifests reads Avro, row by row and so more slowly. Columns that a file lacks are reported:
the table did not have them when the file was written.

Deletes are position deletes (v2), deletion vectors (v3), and equality deletes; each delete file is read once. By sequence number, a
position delete applies to data files that are not newer than it, and an equality delete to older ones only: if a file was registered again
after the delete, only the first registration is affected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from itertools import islice
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyiceberg.avro.file import AvroFile
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, IcebergType, ListType, LongType, MapType, NestedField, StringType, StructType
from pyroaring import BitMap64

from landonce.config.secrets import redact
from landonce.errors import TableUnfit, TargetUnavailable
from landonce.sinks.audit import Reference
from landonce.sinks.iceberg.catalog import CatalogSpec, catalog_errors, read_doubles_whole

COORDINATES = ("_topic", "_kafka_partition", "_offset")
"""Iceberg's readers have their own column `_partition`."""
Positions = npt.NDArray[np.int64]
Scope = tuple[int, Record] | None
"""Where equality deletes count: in one partition of one spec, or in the whole table."""
MayHold = Callable[[pq.RowGroupMetaData], bool]
"""Whether a row group of Parquet may hold wanted rows, by its statistics."""
_NONE: Positions = np.empty(0, np.int64)
_IDS = (b"PARQUET:field_id", b"iceberg.id")
_AT_ONCE = 20_000
_FLAT_AT_ONCE = 100_000
_LISTED = 10


@dataclass(frozen=True)
class LiveFile:
    """An entry of a manifest that counts in the snapshot."""

    file: DataFile
    sequence: int
    reference: Reference


@dataclass(frozen=True)
class Projected:
    """Some rows of a file."""

    count: int
    rows: pa.Table
    """Without the columns that are absent. It may have none."""
    absent: frozenset[str] = frozenset()
    """Columns that the file lacks, entirely or in part."""
    single: frozenset[str] = frozenset()
    """Columns of doubles that are floats in the file."""


class PinnedTable:
    """A missing table or branch has no rows; `notes` say so."""

    def __init__(self, identifier: str, table: Table | None, branch: str = "main") -> None:
        self.name, self._table, self._branch = identifier, table, branch
        self._snapshot = table.metadata.snapshot_by_name(branch) if table is not None else None
        self._unequal: dict[tuple[str, int], BitMap64] = {}

    @staticmethod
    def load(spec: CatalogSpec, identifier: str, branch: str = "main", catalog: Catalog | None = None) -> PinnedTable:
        """As it is now."""
        table: Table | None = None
        with catalog_errors(spec), suppress(NoSuchTableError):
            table = (catalog or spec.open()).load_table(identifier)
        return PinnedTable(identifier, table, branch)

    @cached_property
    def _live(self) -> tuple[LiveFile, ...]:
        """All live entries of the snapshot's manifests, of data files and of deletes."""
        if self._table is None or self._snapshot is None:
            return ()
        found, table = [], self._table
        times = {each.snapshot_id: _commit_time(each) for each in table.metadata.snapshots}
        with self._reading("its metadata"):
            for manifest in self._snapshot.manifests(table.io):
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    by = entry.snapshot_id or manifest.added_snapshot_id or 0
                    reference = Reference(by, times.get(by), manifest.manifest_path)
                    found.append(LiveFile(entry.data_file, entry.sequence_number or 0, reference))
        return tuple(found)

    @property
    def has_equality_deletes(self) -> bool:
        return bool(self._of(DataFileContent.EQUALITY_DELETES))

    @property
    def _data(self) -> list[LiveFile]:
        return [each for each in self._live if each.file.content == DataFileContent.DATA]

    def doubled(self) -> dict[str, tuple[Reference, ...]]:
        """Data files that more than one live entry registers, and these entries."""
        found: dict[str, list[Reference]] = defaultdict(list)
        for each in self._data:
            found[each.file.file_path].append(each.reference)
        return {path: tuple(them) for path, them in sorted(found.items()) if len(them) > 1}

    def rows(self, names: Sequence[str]) -> Iterator[tuple[LiveFile, pa.RecordBatch]]:
        """These columns of every live entry, file by file: a file that is registered twice comes twice."""
        if self._table is None or not self._data:
            return
        columns = self._columns(names)
        for live in self._data:
            with self._reading(f"{live.file.file_path}, which snapshot {live.reference.snapshot} registered,"):
                for batch in columns.flat(self._table.io, live.file, self._deleted(live)):
                    yield live, batch

    def has(self, name: str) -> bool:
        """Whether the table has a snapshot and the column."""
        return self._snapshot is not None and name in self._schema().column_names

    def pieces(self, live: LiveFile, names: Sequence[str], may_hold: MayHold) -> Iterator[Projected]:
        """These columns of one live entry with everything inside; skips row groups of Parquet that are not needed."""
        assert self._table is not None
        columns = self._columns(names)
        with self._reading(f"{live.file.file_path}, which snapshot {live.reference.snapshot} registered,"):
            yield from columns.of(self._table.io, live.file, self._deleted(live), may_hold)

    def as_of(self) -> str:
        return f"snapshot {_described([self._snapshot])} of branch {self._branch!r}" if self._snapshot else ""

    def notes(self) -> tuple[str, ...]:
        """Names snapshots that were the head of `main` and are no longer in its history. Other branches have no log."""
        if self._table is None:
            return (f"{self.name}: there is no such table.",)
        if self._snapshot is None:
            return (f"{self.name}: there is no snapshot on branch {self._branch!r}.",)
        if self._branch != MAIN_BRANCH:
            return ()
        metadata = self._table.metadata
        history = {each.snapshot_id for each in ancestors_of(self._snapshot, metadata)}
        known = {each.snapshot_id: each for each in metadata.snapshots}
        heads = dict.fromkeys(each.snapshot_id for each in metadata.snapshot_log)
        undone = [known[each] for each in heads if each in known and each not in history]
        if not undone:
            return ()
        return (f"{self.name}: rolled back and not in the branch's history any more: snapshot {_described(undone)}.",)

    def _of(self, content: DataFileContent) -> list[LiveFile]:
        """The delete files of one kind, each once."""
        return list({each.file.file_path: each for each in self._live if each.file.content == content}.values())

    @cached_property
    def _deletes(self) -> dict[str, list[tuple[int, BitMap64]]]:
        """By data file: the sequence number of each delete file for it, and the positions that it deletes."""
        assert self._table is not None
        found: dict[str, list[tuple[int, BitMap64]]] = defaultdict(list)
        with self._reading("its deletes"):
            for each in self._of(DataFileContent.POSITION_DELETES):
                for path, positions in _read_deletes(self._table.io, each.file).items():
                    found[path].append((each.sequence, positions))
        return found

    @cached_property
    def _equality(self) -> dict[tuple[Scope, tuple[int, ...]], _DeletedKeys]:
        """The keys that equality deletes name, by where they count and by the columns that they compare."""
        assert self._table is not None
        alike: dict[tuple[Scope, tuple[int, ...]], list[LiveFile]] = defaultdict(list)
        for each in self._of(DataFileContent.EQUALITY_DELETES):
            spec = self._table.specs()[each.file.spec_id]
            scope = None if spec.is_unpartitioned() else (each.file.spec_id, each.file.partition)
            alike[scope, tuple(sorted(each.file.equality_ids or ()))].append(each)
        with self._reading("its equality deletes"):
            return {
                where: _DeletedKeys.read(self._table.io, self._key_columns(where[1]), files)
                for where, files in alike.items()
            }

    def _key_columns(self, ids: Iterable[int]) -> _FileColumns:
        """Columns by their ids. One that was dropped since still counts."""
        assert self._table is not None
        schemas = [self._schema(), *sorted(self._table.schemas().values(), key=lambda each: -each.schema_id)]
        fields = []
        for number in ids:
            known = next((each.find_field(number) for each in schemas if number in each.field_ids), None)
            if known is None:
                raise ValueError(f"no schema of the table has the column number {number}")
            fields.append(known)
        if not fields:
            raise ValueError("a file of equality deletes does not say which columns it compares")
        return _FileColumns(Schema(*fields), self._table.metadata.name_mapping())

    def _deleted(self, live: LiveFile) -> Positions:
        """The positions of the entry's deleted rows, in order."""
        union = BitMap64()
        for sequence, positions in self._deletes.get(live.file.file_path, ()):
            if sequence >= live.sequence:
                union |= positions
        union |= self._deleted_by_key(live)
        return np.array(union.to_array(), np.int64)

    def _deleted_by_key(self, live: LiveFile) -> BitMap64:
        """The positions of rows that later commits deleted by their keys."""
        assert self._table is not None
        entry = live.file.file_path, live.sequence
        if entry not in self._unequal:
            found, scopes = BitMap64(), (None, (live.file.spec_id, live.file.partition))
            for (scope, ids), keys in self._equality.items():
                if scope not in scopes or keys.newest <= live.sequence:
                    continue
                first = 0
                for batch in self._key_columns(ids).flat(self._table.io, live.file):
                    found |= BitMap64((first + keys.gone(batch, live.sequence)).astype(np.uint64))
                    first += batch.num_rows
            self._unequal[entry] = found
        return self._unequal[entry]

    def _columns(self, names: Sequence[str]) -> _FileColumns:
        assert self._table is not None
        schema = self._schema()
        absent = [each for each in names if each not in schema.column_names]
        if absent:
            raise TableUnfit(
                f"{self.name} has no column {', '.join(absent)}, so its rows cannot be identified.",
                safe="An audit changes nothing.",
                command="compare row counts yourself, or land into a table with coordinates",
            )
        wanted = Schema(*(schema.find_field(each) for each in names))
        return _FileColumns(wanted, self._table.metadata.name_mapping())

    def _schema(self) -> Schema:
        """Of the table: columns may have been added or renamed since the pinned snapshot was committed."""
        assert self._table is not None
        return self._table.schema()

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise TableUnfit(
                f"{self.name}: {what} cannot be read, because a file is missing: {redact(str(error))}",
                safe="An audit changes nothing. Something else deleted a file that a snapshot names.",
                command="restore the file, or roll the table back to a snapshot before it",
            ) from None
        except OSError as error:
            raise TargetUnavailable(f"{self.name}: {what} could not be read: {redact(str(error))[:500]}") from None
        except (pa.ArrowException, ValueError, NotImplementedError) as error:
            raise TableUnfit(
                f"{self.name}: {what} cannot be read: {redact(str(error))[:500]}", safe="An audit changes nothing."
            ) from None


def _commit_time(snapshot: Snapshot) -> str:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")


def _described(snapshots: Iterable[Snapshot]) -> str:
    listed = [f"{each.snapshot_id} ({_commit_time(each)})" for each in snapshots]
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return ", ".join(listed[:_LISTED]) + more


def _read_deletes(io: FileIO, file: DataFile) -> dict[str, BitMap64]:
    """The positions that a delete file names, by data file."""
    found: dict[str, BitMap64] = defaultdict(BitMap64)

    def add(path: str, positions: pa.Array | pa.ChunkedArray) -> None:
        found[path] |= BitMap64(np.asarray(positions.to_numpy()).astype(np.uint64))

    if file.file_format == FileFormat.PUFFIN:
        with io.new_input(file.file_path).open() as stream:
            puffin = PuffinFile(stream.read())
        for vector in deletion_vectors_from_puffin_file(puffin):
            add(vector.referenced_data_file, vector.to_vector())
        return found
    for batch in _POSITION_DELETES.flat(io, file):
        paths = batch.column("file_path").dictionary_encode()
        indices = paths.indices.to_numpy(zero_copy_only=False)
        for at, path in enumerate(paths.dictionary.to_pylist()):
            add(path, batch.column("pos").filter(pa.array(indices == at)))
    return found


class _DeletedKeys:
    """Keys, and for each of them the sequence number of the last commit that deleted it. Null is a key like any other."""

    def __init__(self, keys: pa.Table, sequences: Positions) -> None:
        self.newest = int(sequences.max(initial=0))
        self._columns: list[tuple[pa.Array, Positions]] = []
        """Of each column the values that occur, and which of them occur together with the columns before."""
        codes = np.zeros(keys.num_rows, np.int64)
        for column in keys.columns:
            values = _storage_of(column).unique()
            both = codes * len(values) + pc.index_in(_storage_of(column), values).to_numpy().astype(np.int64)
            together = np.unique(both)
            self._columns.append((values, together))
            codes = np.searchsorted(together, both)
        self._last = np.zeros(codes.max(initial=-1) + 1, np.int64)
        np.maximum.at(self._last, codes, sequences)

    @staticmethod
    def read(io: FileIO, columns: _FileColumns, files: Sequence[LiveFile]) -> _DeletedKeys:
        read = [(batch, each.sequence) for each in files for batch in columns.flat(io, each.file)]
        sequences = [np.full(batch.num_rows, sequence, np.int64) for batch, sequence in read]
        empty = schema_to_pyarrow(columns.schema, include_field_ids=False).empty_table()
        keys = pa.Table.from_batches([batch for batch, _ in read]) if read else empty
        return _DeletedKeys(keys, np.concatenate([_NONE, *sequences]))

    def gone(self, rows: pa.RecordBatch, sequence: int) -> Positions:
        """Which rows of a file with this sequence number are deleted."""
        codes, known = np.zeros(rows.num_rows, np.int64), np.ones(rows.num_rows, np.bool_)
        for column, (values, together) in zip(rows.columns, self._columns, strict=True):
            inner = pc.index_in(_storage_of(column), values)
            both = codes * len(values) + inner.fill_null(0).to_numpy()
            codes = np.minimum(np.searchsorted(together, both), len(together) - 1)
            known &= np.asarray(inner.is_valid().to_numpy(zero_copy_only=False), np.bool_) & (together[codes] == both)
        return np.flatnonzero(known & (self._last[codes] > sequence)).astype(np.int64)


def _storage_of(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return whole.storage if isinstance(whole, pa.ExtensionArray) else whole


@dataclass(frozen=True)
class _FileColumns:
    """Which columns of a file are read."""

    schema: Schema
    """With the field ids of the table."""
    names: NameMapping | None = None
    """For files without field ids."""

    def flat(self, io: FileIO, file: DataFile, deleted: Positions = _NONE) -> Iterator[pa.RecordBatch]:
        """All rows of a file in the types of the table, without those at the `deleted` positions, which are in order. A missing column
        is null."""
        wanted, count = schema_to_pyarrow(self.schema, include_field_ids=False), 0
        for first, found in self._read(io, file, lambda _: True, _FLAT_AT_ONCE):
            count += found.count
            left = _without(found, deleted, first)
            columns = [
                pa.nulls(left.count, each.type)
                if each.name in left.absent
                else left.rows.column(each.name).cast(each.type)
                for each in wanted
            ]
            yield from pa.table(columns, names=wanted.names).to_batches()
        if count != file.record_count:
            raise ValueError(f"it holds {count} rows, and the table's metadata say {file.record_count}")

    def of(self, io: FileIO, file: DataFile, deleted: Positions, may_hold: MayHold) -> Iterator[Projected]:
        """The same rows with columns that hold anything, and without those that are missing. Of Parquet: row groups of `may_hold`."""
        for first, found in self._read(io, file, may_hold, _AT_ONCE):
            yield _without(found, deleted, first)

    def _read(self, io: FileIO, file: DataFile, may_hold: MayHold, at_once: int) -> Iterator[tuple[int, Projected]]:
        """Pieces of a file, each with the position of its first row."""
        if file.file_format == FileFormat.AVRO:
            return self._avro(io, file, at_once)
        if file.file_format == FileFormat.ORC:
            return self._orc(io, file, at_once)
        return self._parquet(io, file, may_hold, at_once)

    def _parquet(self, io: FileIO, file: DataFile, may_hold: MayHold, at_once: int) -> Iterator[tuple[int, Projected]]:
        with io.new_input(file.file_path).open() as stream, pq.ParquetFile(stream) as parquet:
            physical = parquet.schema_arrow
            there = self._there(physical)
            at = 0
            for number in range(parquet.num_row_groups):
                group = parquet.metadata.row_group(number)
                begins, at = at, at + group.num_rows
                if not may_hold(group):
                    continue
                for batch in parquet.iter_batches(at_once, row_groups=[number], columns=list(there.values())):
                    yield begins, self._projected(batch, batch.num_rows, physical, there)
                    begins += batch.num_rows

    def _orc(self, io: FileIO, file: DataFile, at_once: int) -> Iterator[tuple[int, Projected]]:
        with io.new_input(file.file_path).open() as stream:
            fragment = ds.OrcFileFormat().make_fragment(stream)
            physical = fragment.physical_schema
            there = self._there(physical)
            scanner = ds.Scanner.from_fragment(
                fragment, schema=physical, columns=list(there.values()), batch_size=at_once, batch_readahead=2
            )
            at = 0
            for batch in scanner.to_batches():
                yield at, self._projected(batch, batch.num_rows, physical, there)
                at += batch.num_rows

    def _avro(self, io: FileIO, file: DataFile, at_once: int) -> Iterator[tuple[int, Projected]]:
        """Reads whole records, row by row: PyIceberg's reader loses its place if it must skip some kinds of columns."""
        read_doubles_whole()
        with AvroFile[Any](io.new_input(file.file_path)) as records:
            physical = schema_to_pyarrow(records.schema)
            there = self._there(physical)
            held = [(at, each) for at, each in enumerate(records.schema.fields) if each.field_id in there]
            once, at = (each for each in records), 0
            while rows := list(islice(once, at_once)):
                columns = {
                    each.name: pa.array(
                        [_plain(row[place], each.field_type) for row in rows], _storage(physical.field(each.name).type)
                    )
                    for place, each in held
                }
                yield at, self._projected(pa.RecordBatch.from_pydict(columns), len(rows), physical, there)
                at += len(rows)

    def _there(self, physical: pa.Schema) -> dict[int, str]:
        """The names in the file of the wanted columns that it has, by field id."""
        found = {number: each.name for each in physical if (number := _field_id(each)) is not None}
        if not found and self.names is not None:
            mapped = {name: each.field_id for each in self.names.root for name in each.names}
            found = {number: each.name for each in physical if (number := mapped.get(each.name)) is not None}
        wanted = {each.field_id for each in self.schema.fields}
        return {number: name for number, name in found.items() if number in wanted}

    def _projected(self, batch: pa.RecordBatch, count: int, physical: pa.Schema, there: dict[int, str]) -> Projected:
        columns, absent, single = {}, set(), set()
        for each in self.schema.fields:
            try:
                if each.field_id not in there:
                    raise _Absent
                held = physical.field(there[each.field_id])
                columns[each.name] = _project(batch.column(held.name), held, each.field_type)
                if _was_single(held.type, each.field_type):
                    single.add(each.name)
            except _Absent:
                absent.add(each.name)
        return Projected(count, pa.table(columns), frozenset(absent), frozenset(single))


_POSITION_DELETES = _FileColumns(
    Schema(
        NestedField(2147483546, "file_path", StringType(), required=True),
        NestedField(2147483545, "pos", LongType(), required=True),
    )
)


class _Absent(Exception):
    """The file was written before there was such a field."""


def _without(found: Projected, deleted: Positions, first: int) -> Projected:
    """Without the rows at these positions. `first`: the position of the first row."""
    low, high = np.searchsorted(deleted, (first, first + found.count))
    if low == high:
        return found
    keep = np.ones(found.count, np.bool_)
    keep[deleted[low:high] - first] = False
    rows = found.rows.filter(pa.array(keep)) if found.rows.num_columns else found.rows
    return replace(found, count=found.count - int(high - low), rows=rows)


def _field_id(field: pa.Field) -> int | None:
    """The field id of a column, or of something inside it, in the file."""
    number = next((field.metadata[key] for key in _IDS if field.metadata and key in field.metadata), None)
    return int(number) if number is not None else None


def _project(array: pa.Array, held: pa.Field, type_: IcebergType) -> pa.Array:
    """The values of a file, with nested fields in the order and under the names of the current table."""
    mask = array.is_null() if array.null_count else None
    if isinstance(type_, StructType):
        children = [_child(array, held.type, each) for each in type_.fields]
        return pa.StructArray.from_arrays(children, names=[each.name for each in type_.fields], mask=mask)
    array = pa.concat_arrays([array, array.slice(0, 0)]) if array.offset and pt.is_nested(array.type) else array
    if isinstance(type_, ListType):
        values = _project(array.values, held.type.value_field, type_.element_type)
        return pa.ListArray.from_arrays(array.offsets, values, mask=mask)
    if isinstance(type_, MapType):
        keys = _project(array.keys, held.type.key_field, type_.key_type)
        items = _project(array.items, held.type.item_field, type_.value_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, mask=mask)
    return array


def _child(array: pa.StructArray, held: pa.DataType, wanted: NestedField) -> pa.Array:
    for at in range(held.num_fields):
        number = _field_id(held.field(at))
        if number == wanted.field_id or (number is None and held.field(at).name == wanted.name):
            return _project(array.field(at), held.field(at), wanted.field_type)
    raise _Absent


def _was_single(held: pa.DataType, type_: IcebergType) -> bool:
    """Whether doubles of the table are floats in the file."""
    if isinstance(type_, ListType):
        return _was_single(held.value_type, type_.element_type)
    if isinstance(type_, MapType):
        return _was_single(held.item_type, type_.value_type)
    if isinstance(type_, StructType):
        by_number = {each.field_id: each for each in type_.fields}
        by_name = {each.name: each for each in type_.fields}
        for at in range(held.num_fields):
            wanted = by_number.get(_field_id(held.field(at)) or 0) or by_name.get(held.field(at).name)
            if wanted is not None and _was_single(held.field(at).type, wanted.field_type):
                return True
        return False
    return bool(pt.is_float32(held)) and isinstance(type_, DoubleType)


def _plain(value: Any, type_: IcebergType) -> Any:
    """A value of an Avro file in the form that Arrow accepts."""
    if value is None:
        return None
    if isinstance(type_, StructType):
        return {each.name: _plain(value[at], each.field_type) for at, each in enumerate(type_.fields)}
    if isinstance(type_, ListType):
        return [_plain(each, type_.element_type) for each in value]
    if isinstance(type_, MapType):
        return [(_plain(key, type_.key_type), _plain(each, type_.value_type)) for key, each in value.items()]
    return value.bytes if isinstance(value, UUID) else value


def _storage(type_: pa.DataType) -> pa.DataType:
    """The type without parts that cannot be built from Python values."""
    if pt.is_struct(type_):
        return pa.struct([pa.field(each.name, _storage(each.type)) for each in type_])
    if pt.is_map(type_):
        return pa.map_(_storage(type_.key_type), _storage(type_.item_type))
    if pt.is_list(type_) or pt.is_large_list(type_):
        return pa.list_(_storage(type_.value_type))
    return pa.binary() if isinstance(type_, pa.BaseExtensionType) or pt.is_fixed_size_binary(type_) else type_
