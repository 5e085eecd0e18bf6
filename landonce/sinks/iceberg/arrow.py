"""Rows in Arrow: as a table's files hold them (its columns in its order, in its types, with its field ids), as Spark reads them from
staged files, and the statistics of a file, read off the Parquet footer that was just written.

Bounds must cover every value of the file, or readers skip rows. So they are made of the footer's raw values, without a detour
through Python's dates, and are left out if a row group does not state its own: Parquet leaves out those of long strings.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyiceberg.io.pyarrow import MetricModeTypes, StatisticsCollector, compute_statistics_plan, schema_to_pyarrow
from pyiceberg.schema import Accessor, Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from landonce.errors import TableUnfit
from landonce.read.schema.fields import is_uuid

_REFUSED = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)
Path = tuple[int, ...]
_BYTES = 16
_TEXT = 36
_HYPHENS = (8, 13, 18, 23)
Plan = tuple[StatisticsCollector, ...]
_LAST_CHARACTER = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_FIXED_WIDTH: dict[type[PrimitiveType], str] = {
    BooleanType: "<?",
    IntegerType: "<i",
    DateType: "<i",
    LongType: "<q",
    TimeType: "<q",
    TimestampType: "<q",
    TimestamptzType: "<q",
    FloatType: "<f",
    DoubleType: "<d",
}


def arrow_schema(schema: Schema) -> pa.Schema:
    """The table's schema in Arrow's types with 32-bit offsets, as a block's rows have them."""
    return pa.schema([each.with_type(_narrow(each.type)) for each in schema_to_pyarrow(schema)])


def _narrow(kind: pa.DataType) -> pa.DataType:
    if pt.is_large_string(kind):
        return pa.string()
    if pt.is_large_binary(kind):
        return pa.binary()
    if pt.is_large_list(kind):
        return pa.list_(_narrowed(kind.value_field))
    if pt.is_map(kind):
        return pa.map_(_narrowed(kind.key_field), _narrowed(kind.item_field))
    if pt.is_struct(kind):
        return pa.struct([_narrowed(each) for each in kind])
    return kind


def _narrowed(field: pa.Field) -> pa.Field:
    return field.with_type(_narrow(field.type))


def path_of(schema: Schema, field_id: int) -> Path | None:
    """Where a field is: the position of its column, then of the field in each struct. None inside lists and maps."""
    try:
        accessor: Accessor | None = schema.accessor_for_field(field_id)
    except ValueError:
        return None
    path = []
    while accessor is not None:
        path.append(accessor.position)
        accessor = accessor.inner
    return tuple(path)


def fields_along(schema: Schema, path: Path) -> Iterator[NestedField]:
    """The column, and each field in it down to the end of the path."""
    struct = schema.as_struct()
    for position in path:
        field = struct.fields[position]
        yield field
        if isinstance(field.field_type, StructType):
            struct = field.field_type


def at_path(rows: pa.Table, path: Path) -> pa.ChunkedArray:
    """The values there; null where a struct around them is null."""
    column = rows.column(path[0])
    return pc.struct_field(column, list(path[1:])) if path[1:] else column


def arranged(rows: pa.Table, names: tuple[str, ...], target: pa.Schema, table: str) -> pa.Table:
    """The rows in the schema `target`, whose columns are called `names` in the rows. A missing column is null."""
    strange = sorted(set(rows.column_names) - set(names))
    if strange or len(set(rows.column_names)) < rows.num_columns:
        raise _unfit(table, f"the rows have a column that it does not have, or have one twice: {', '.join(strange)}")
    columns, fields = [], []
    for name, field in zip(names, target, strict=True):
        if name in rows.column_names:
            column = _fitted(rows.column(name), field.type, name, table)
        else:
            column = pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        if column.null_count and not field.nullable:
            raise _unfit(table, f"its column {name} is required, and a row has no value for it")
        columns.append(column)
        fields.append(field.with_type(column.type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _fitted(column: pa.ChunkedArray, wanted: pa.DataType, name: str, table: str) -> pa.ChunkedArray:
    """Losslessly in the table's type. A dictionary of strings stays one: Parquet takes its indices as they are."""
    if column.type.equals(wanted, check_metadata=True):
        return column
    if pt.is_dictionary(column.type):
        if column.type.value_type == wanted and (pt.is_string(wanted) or pt.is_binary(wanted)):
            return column
        column = column.cast(column.type.value_type)
    surplus = _surplus(column.type, wanted)
    if surplus:
        raise _unfit(table, f"the rows have a field in {name} that it does not have: {surplus}")
    try:
        return column.cast(wanted)
    except _REFUSED:
        raise _unfit(table, f"its column {name} cannot hold every value of the rows as {wanted}") from None


def _surplus(given: pa.DataType, wanted: pa.DataType) -> str:
    """A field inside a column that a cast would drop silently; empty if there is none."""
    if pt.is_struct(given) and pt.is_struct(wanted):
        for each in given:
            at = wanted.get_field_index(each.name)
            inner = _surplus(each.type, wanted.field(at).type) if at >= 0 else each.name
            if inner:
                return inner
    if pt.is_map(given) and pt.is_map(wanted):
        return _surplus(given.key_type, wanted.key_type) or _surplus(given.item_type, wanted.item_type)
    if _is_list(given) and _is_list(wanted):
        return _surplus(given.value_type, wanted.value_type)
    return ""


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _unfit(table: str, what: str) -> TableUnfit:
    return TableUnfit(f"{table}: {what}.", safe="Nothing of this block was committed.")


def plain(rows: pa.Table) -> pa.Table:
    """The same rows with every uuid as text, nested ones too."""
    for at, column in enumerate(rows.schema):
        if _holds_uuid(column.type):
            chunks = rows.column(at).chunks or [pa.nulls(0, column.type)]
            rows = rows.set_column(at, column.name, pa.chunked_array([_plain(chunk) for chunk in chunks]))
    return rows


def _holds_uuid(type_: pa.DataType) -> bool:
    return is_uuid(type_) or any(_holds_uuid(type_.field(at).type) for at in range(type_.num_fields))


def _plain(array: pa.Array) -> pa.Array:
    type_ = array.type
    if not _holds_uuid(type_):
        return array
    if array.offset and not is_uuid(type_):
        array = array.take(pa.array(np.arange(len(array))))  # lists with nulls cannot be rebuilt from a slice
    mask = array.is_null() if array.null_count else None
    if pt.is_struct(type_):
        names = [child.name for child in type_]
        return pa.StructArray.from_arrays([_plain(array.field(at)) for at in range(len(names))], names, mask=mask)
    if pt.is_list(type_):
        return pa.ListArray.from_arrays(array.offsets, _plain(array.values), mask=mask)
    if pt.is_map(type_):
        return pa.MapArray.from_arrays(array.offsets, _plain(array.keys), _plain(array.items), mask=mask)
    return _texts(array.storage)


def _texts(storage: pa.FixedSizeBinaryArray) -> pa.Array:
    """`00112233-4455-…` for every 16 bytes."""
    count = len(storage)
    raw = memoryview(storage.buffers()[1])[storage.offset * _BYTES : (storage.offset + count) * _BYTES]
    text = np.full((count, _TEXT), ord("-"), dtype=np.uint8)
    text[:, [at for at in range(_TEXT) if at not in _HYPHENS]] = np.frombuffer(raw.hex().encode(), np.uint8).reshape(
        count, 2 * _BYTES
    )
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_TEXT), count, [None, pa.py_buffer(text.tobytes())])
    texts = fixed.cast(pa.binary()).cast(pa.string())
    return pc.if_else(storage.is_valid(), texts, None) if storage.null_count else texts


def plan_of(schema: Schema, properties: dict[str, str]) -> Plan:
    """Which statistics each column gets, by `write.metadata.metrics.*`, in the order of a Parquet file's columns."""
    return tuple(compute_statistics_plan(schema, properties).values())


def measured(footer: pq.FileMetaData, plan: Plan, nans: dict[int, int]) -> dict[str, Any]:
    """The statistics as `DataFile.from_args` takes them."""
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    sizes, counts, nulls = {}, {}, {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for at, column in enumerate(plan):
        chunks = [group.column(at) for group in groups]
        sizes[column.field_id] = sum(chunk.total_compressed_size for chunk in chunks)
        if column.mode.type is MetricModeTypes.NONE:
            continue
        counts[column.field_id] = sum(chunk.num_values for chunk in chunks)
        statistics = [chunk.statistics for chunk in chunks]
        if not all(each is not None and each.has_null_count for each in statistics):
            continue
        nulls[column.field_id] = sum(each.null_count for each in statistics)
        if column.mode.type is not MetricModeTypes.COUNTS and _bounded(statistics):
            _note(lower, column.field_id, _lower(column, [each.min_raw for each in statistics if each.has_min_max]))
            _note(upper, column.field_id, _upper(column, [each.max_raw for each in statistics if each.has_min_max]))
    return {
        "record_count": footer.num_rows,
        "column_sizes": sizes,
        "value_counts": counts,
        "null_value_counts": nulls,
        "nan_value_counts": nans,
        "lower_bounds": lower,
        "upper_bounds": upper,
        "split_offsets": sorted(_start(group.column(0)) for group in groups),
    }


def _bounded(statistics: list[Any]) -> bool:
    """Whether every row group with values states its bounds. One whose floats are all NaN has none."""
    loose = ("FLOAT", "DOUBLE")
    return all(each.has_min_max or not each.num_values or each.physical_type in loose for each in statistics)


def _start(chunk: Any) -> int:
    first = chunk.data_page_offset
    return min(first, chunk.dictionary_page_offset) if chunk.has_dictionary_page else int(first)


def _note(bounds: dict[int, bytes], field_id: int, bound: bytes | None) -> None:
    if bound is not None:
        bounds[field_id] = bound


def _lower(column: StatisticsCollector, raw: list[Any]) -> bytes | None:
    least = _pick(min, column.iceberg_type, raw)
    if least is None or column.mode.length is None:
        return _encoded(column.iceberg_type, least)
    if isinstance(column.iceberg_type, StringType):
        return bytes(least).decode()[: column.mode.length].encode()
    return bytes(least)[: column.mode.length]


def _upper(column: StatisticsCollector, raw: list[Any]) -> bytes | None:
    most = _pick(max, column.iceberg_type, raw)
    if most is None or column.mode.length is None:
        return _encoded(column.iceberg_type, most)
    if isinstance(column.iceberg_type, StringType):
        return _text_above(bytes(most).decode(), column.mode.length)
    return _bytes_above(bytes(most), column.mode.length)


def _pick(which: Callable[[Iterable[Any]], Any], kind: PrimitiveType, raw: list[Any]) -> Any:
    if isinstance(kind, DecimalType):
        raw = [int.from_bytes(each, "big", signed=True) if isinstance(each, bytes) else each for each in raw]
    return which(raw) if raw else None


def _encoded(kind: PrimitiveType, value: Any) -> bytes | None:
    """Iceberg's single-value serialization."""
    if value is None:
        return None
    if isinstance(kind, DecimalType):
        width = ((value if value >= 0 else ~value).bit_length() + 8) // 8
        return int(value).to_bytes(width, "big", signed=True)
    if isinstance(kind, StringType | BinaryType | FixedType | UUIDType):
        return bytes(value)
    return struct.pack(_FIXED_WIDTH[type(kind)], value)


def _text_above(text: str, length: int) -> bytes | None:
    """The text itself if it is short, else the lowest text of that length above everything that begins like it."""
    if len(text) <= length:
        return text.encode()
    for at in reversed(range(length)):
        above = ord(text[at]) + 1
        above = _SURROGATES.stop if above in _SURROGATES else above
        if above <= _LAST_CHARACTER:
            return (text[:at] + chr(above)).encode()
    return None


def _bytes_above(value: bytes, length: int) -> bytes | None:
    if len(value) <= length:
        return value
    kept = value[:length].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def floats_of(schema: Schema, plan: Plan) -> tuple[tuple[int, Path], ...]:
    """The columns that may hold NaN, and where they are, without those inside lists and maps."""
    found = []
    for column in plan:
        path = path_of(schema, column.field_id)
        counted = column.mode.type is not MetricModeTypes.NONE and isinstance(
            column.iceberg_type, FloatType | DoubleType
        )
        if counted and path is not None:
            found.append((column.field_id, path))
    return tuple(found)


def count_nans(floats: tuple[tuple[int, Path], ...], rows: pa.Table) -> dict[int, int]:
    return {field_id: pc.sum(pc.is_nan(at_path(rows, path))).as_py() or 0 for field_id, path in floats}
