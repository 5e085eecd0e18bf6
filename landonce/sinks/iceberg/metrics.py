"""A data file's statistics, read off the Parquet footer that was just written.

Bounds must hold every value of the file, or readers skip rows. So they are made of the footer's raw values, without a
way through Python's dates, and are left out where a row group does not say its own: Parquet leaves out those of long
strings.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import MetricModeTypes, StatisticsCollector, compute_statistics_plan
from pyiceberg.schema import Schema
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
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from landonce.sinks.iceberg.arrow import Path, at_path, path_of

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


def plan_of(schema: Schema, properties: dict[str, str]) -> Plan:
    """What is gathered of each column, by `write.metadata.metrics.*`, in the order of a Parquet file's columns."""
    return tuple(compute_statistics_plan(schema, properties).values())


def measured(footer: pq.FileMetaData, plan: Plan, nans: dict[int, int]) -> dict[str, Any]:
    """The statistics as `DataFile.from_args` takes them."""
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    sizes, counts, nulls = {}, {}, {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for at, told in enumerate(plan):
        chunks = [group.column(at) for group in groups]
        sizes[told.field_id] = sum(chunk.total_compressed_size for chunk in chunks)
        if told.mode.type is MetricModeTypes.NONE:
            continue
        counts[told.field_id] = sum(chunk.num_values for chunk in chunks)
        statistics = [chunk.statistics for chunk in chunks]
        if not all(each is not None and each.has_null_count for each in statistics):
            continue
        nulls[told.field_id] = sum(each.null_count for each in statistics)
        if told.mode.type is not MetricModeTypes.COUNTS and _bounded(statistics):
            _note(lower, told.field_id, _lower(told, [each.min_raw for each in statistics if each.has_min_max]))
            _note(upper, told.field_id, _upper(told, [each.max_raw for each in statistics if each.has_min_max]))
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
    """Whether every row group with values says its bounds. One whose floats are all NaN has none to say."""
    loose = ("FLOAT", "DOUBLE")
    return all(each.has_min_max or not each.num_values or each.physical_type in loose for each in statistics)


def _start(chunk: Any) -> int:
    first = chunk.data_page_offset
    return min(first, chunk.dictionary_page_offset) if chunk.has_dictionary_page else int(first)


def _note(bounds: dict[int, bytes], field_id: int, bound: bytes | None) -> None:
    if bound is not None:
        bounds[field_id] = bound


def _lower(told: StatisticsCollector, raw: list[Any]) -> bytes | None:
    least = _pick(min, told.iceberg_type, raw)
    if least is None or told.mode.length is None:
        return _encoded(told.iceberg_type, least)
    if isinstance(told.iceberg_type, StringType):
        return bytes(least).decode()[: told.mode.length].encode()
    return bytes(least)[: told.mode.length]


def _upper(told: StatisticsCollector, raw: list[Any]) -> bytes | None:
    most = _pick(max, told.iceberg_type, raw)
    if most is None or told.mode.length is None:
        return _encoded(told.iceberg_type, most)
    if isinstance(told.iceberg_type, StringType):
        return _text_above(bytes(most).decode(), told.mode.length)
    return _bytes_above(bytes(most), told.mode.length)


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
    """The text itself if it is short, else the least text of that length above everything that begins like it."""
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
    """The columns that may hold NaN and where they are, without those inside of lists and maps."""
    found = []
    for told in plan:
        path = path_of(schema, told.field_id)
        counted = told.mode.type is not MetricModeTypes.NONE and isinstance(told.iceberg_type, FloatType | DoubleType)
        if counted and path is not None:
            found.append((told.field_id, path))
    return tuple(found)


def count_nans(floats: tuple[tuple[int, Path], ...], rows: pa.Table) -> dict[int, int]:
    return {field_id: pc.sum(pc.is_nan(at_path(rows, path))).as_py() or 0 for field_id, path in floats}
