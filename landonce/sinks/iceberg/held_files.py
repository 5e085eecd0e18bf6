"""Some columns of one data file, found by field id at every depth, some thousand rows at a time and in the order of the file.

Arrow reads Parquet and ORC; PyIceberg's reader of manifests reads Avro, row by row and so more slowly. Columns that a file lacks are
reported: the table did not have them when the file was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import DoubleType, IcebergType, ListType, MapType, NestedField, StructType

from landonce.sinks.iceberg.catalog import read_doubles_whole

Positions = npt.NDArray[np.int64]
MayHold = Callable[[pq.RowGroupMetaData], bool]
"""Whether a row group of Parquet may hold wanted rows, by its statistics."""
_NONE: Positions = np.empty(0, np.int64)
_IDS = (b"PARQUET:field_id", b"iceberg.id")
_AT_ONCE = 20_000
_FLAT_AT_ONCE = 100_000


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


class _Absent(Exception):
    """The file was written before there was such a field."""


@dataclass(frozen=True)
class FileColumns:
    """Which columns are read."""

    schema: Schema
    """With the field ids of the table."""
    names: NameMapping | None = None
    """For files without field ids."""

    def flat(self, io: FileIO, file: DataFile, deleted: Positions = _NONE) -> Iterator[pa.RecordBatch]:
        """All rows of a file without those at the `deleted` positions, which are in order. A missing column is null."""
        wanted, count = schema_to_pyarrow(self.schema, include_field_ids=False), 0
        for first, found in self._read(io, file, lambda _: True, _FLAT_AT_ONCE):
            count += found.count
            yield from _filled(_without(found, deleted, first), wanted)
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
                    yield begins, self._projected(batch, physical, there)
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
                yield at, self._projected(batch, physical, there)
                at += batch.num_rows

    def _there(self, physical: pa.Schema) -> dict[int, str]:
        wanted = {each.field_id for each in self.schema.fields}
        return {number: name for number, name in _by_id(physical, self.names).items() if number in wanted}

    def _projected(self, batch: pa.RecordBatch, physical: pa.Schema, there: dict[int, str]) -> Projected:
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
        return Projected(batch.num_rows, pa.table(columns), frozenset(absent), frozenset(single))

    def _avro(self, io: FileIO, file: DataFile, at_once: int) -> Iterator[tuple[int, Projected]]:
        """Reads whole records, row by row: PyIceberg's reader loses its place if it must skip some kinds of columns."""
        read_doubles_whole()
        types = schema_to_pyarrow(self.schema, include_field_ids=False)
        with AvroFile[Any](io.new_input(file.file_path)) as records:
            held = {each.field_id: (at, each) for at, each in enumerate(records.schema.fields)}
            known = [each for each in self.schema.fields if _is_in(each, held)]
            absent = frozenset(each.name for each in self.schema.fields) - {each.name for each in known}
            once, at = (each for each in records), 0
            while rows := list(islice(once, at_once)):
                columns = {}
                for each in known:
                    place, field = held[each.field_id]
                    values = [_plain(row[place], field.field_type, each.field_type) for row in rows]
                    columns[each.name] = pa.array(values, _storage(types.field(each.name).type))
                doubles = {
                    each.name for each in known if _avro_single(held[each.field_id][1].field_type, each.field_type)
                }
                yield at, Projected(len(rows), pa.table(columns), absent, frozenset(doubles))
                at += len(rows)


def _without(found: Projected, deleted: Positions, first: int) -> Projected:
    """Without the rows at these positions. `first`: the position of the first row."""
    low, high = np.searchsorted(deleted, (first, first + found.count))
    if low == high:
        return found
    keep = np.ones(found.count, np.bool_)
    keep[deleted[low:high] - first] = False
    rows = found.rows.filter(pa.array(keep)) if found.rows.num_columns else found.rows
    return replace(found, count=found.count - int(high - low), rows=rows)


def _filled(found: Projected, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """In the types of the table, with nulls in columns that the file lacks."""
    columns = [
        pa.nulls(found.count, each.type) if each.name in found.absent else found.rows.column(each.name).cast(each.type)
        for each in wanted
    ]
    yield from pa.table(columns, names=wanted.names).to_batches()


def _field_id(field: pa.Field) -> int | None:
    """The field id of a column, or of something inside it, in the file."""
    number = next((field.metadata[key] for key in _IDS if field.metadata and key in field.metadata), None)
    return int(number) if number is not None else None


def _by_id(physical: pa.Schema, names: NameMapping | None) -> dict[int, str]:
    """The names of the columns in the file."""
    found = {number: each.name for each in physical if (number := _field_id(each)) is not None}
    if not found and names is not None:
        mapped = {name: entry.field_id for entry in names.root for name in entry.names if entry.field_id is not None}
        found = {mapped[each.name]: each.name for each in physical if each.name in mapped}
    return found


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


def _is_in(wanted: NestedField, held: dict[int, tuple[int, NestedField]]) -> bool:
    if wanted.field_id not in held:
        return False
    return _whole(wanted.field_type, held[wanted.field_id][1].field_type)


def _whole(wanted: IcebergType, held: IcebergType) -> bool:
    if isinstance(wanted, StructType) and isinstance(held, StructType):
        there = {each.field_id: each.field_type for each in held.fields}
        return all(each.field_id in there and _whole(each.field_type, there[each.field_id]) for each in wanted.fields)
    if isinstance(wanted, ListType) and isinstance(held, ListType):
        return _whole(wanted.element_type, held.element_type)
    if isinstance(wanted, MapType) and isinstance(held, MapType):
        return _whole(wanted.value_type, held.value_type)
    return True


def _avro_single(held: IcebergType, wanted: IcebergType) -> bool:
    if isinstance(wanted, StructType) and isinstance(held, StructType):
        there = {each.field_id: each.field_type for each in held.fields}
        return any(_avro_single(there[each.field_id], each.field_type) for each in wanted.fields)
    if isinstance(wanted, ListType) and isinstance(held, ListType):
        return _avro_single(held.element_type, wanted.element_type)
    if isinstance(wanted, MapType) and isinstance(held, MapType):
        return _avro_single(held.value_type, wanted.value_type)
    return isinstance(wanted, DoubleType) and not isinstance(held, DoubleType)


def _plain(value: Any, held: IcebergType, wanted: IcebergType) -> Any:
    """A value of an Avro file in the form that Arrow accepts."""
    if value is None:
        return None
    if isinstance(wanted, StructType) and isinstance(held, StructType):
        there = {each.field_id: (at, each.field_type) for at, each in enumerate(held.fields)}
        places = [(each, *there[each.field_id]) for each in wanted.fields]
        return {each.name: _plain(value[at], type_, each.field_type) for each, at, type_ in places}
    if isinstance(wanted, ListType) and isinstance(held, ListType):
        return [_plain(each, held.element_type, wanted.element_type) for each in value]
    if isinstance(wanted, MapType) and isinstance(held, MapType):
        return [
            (_plain(key, held.key_type, wanted.key_type), _plain(each, held.value_type, wanted.value_type))
            for key, each in value.items()
        ]
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
