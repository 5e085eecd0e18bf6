"""Rows by partition: one pass that sorts them, and not one over all rows for each partition.

Bucket and truncate come from PyIceberg's compiled kernels. Its kernels for years and months give null for times far
away, and a null is a wrong partition, so times are computed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TimeTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record

from landonce.sinks.iceberg.arrow import at_path, path_of

_DAY = 86_400_000_000
_HOUR = 3_600_000_000

Codes = npt.NDArray[np.int64]


def by_partition(spec: PartitionSpec, schema: Schema, rows: pa.Table) -> Iterator[tuple[Record, pa.Table]]:
    """Each partition's values, as a manifest holds them, with its rows in their order.

    The columns of `rows` are those of `schema`, in its order.
    """
    real = [at for at, each in enumerate(spec.fields) if not isinstance(each.transform, VoidTransform)]
    codes: Codes = np.zeros(rows.num_rows, dtype=np.int64)
    keys: list[tuple[Any, ...]] = [()]
    for at in real:
        codes, keys = _refined(codes, keys, partition_values(spec.fields[at], schema, rows))
    records = [_record(len(spec.fields), real, key) for key in keys]
    if len(records) == 1:
        yield records[0], rows
        return
    ordered = rows if bool((codes[1:] >= codes[:-1]).all()) else _sorted(rows, codes, len(keys))
    ends = np.cumsum(np.bincount(codes, minlength=len(keys)))
    for record, start, end in zip(records, [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        yield record, ordered.slice(start, end - start)


def _sorted(rows: pa.Table, codes: Codes, count: int) -> pa.Table:
    """By partition. NumPy sorts small integers by radix, in linear time."""
    small = codes.astype(np.uint16 if count <= 2**16 else np.uint32)
    return rows.combine_chunks().take(pa.array(np.argsort(small, kind="stable")))


def _refined(codes: Codes, keys: list[tuple[Any, ...]], values: pa.Array) -> tuple[Codes, list[tuple[Any, ...]]]:
    """Groups divided further by one more field, numbered as they first appear."""
    encoded = values.dictionary_encode(null_encoding="encode")
    inner: Codes = encoded.indices.to_numpy().astype(np.int64)
    known = _plain(encoded.dictionary).to_pylist()
    if len(keys) == 1:
        return inner, [(*keys[0], value) for value in known]
    both = pa.array(codes * len(known) + inner).dictionary_encode()
    pairs = [divmod(pair, len(known)) for pair in both.dictionary.to_pylist()]
    return both.indices.to_numpy().astype(np.int64), [(*keys[outer], known[at]) for outer, at in pairs]


def _record(count: int, real: list[int], key: tuple[Any, ...]) -> Record:
    values: list[Any] = [None] * count
    for at, value in zip(real, key, strict=True):
        values[at] = value
    return Record(*values)


def partition_values(field: PartitionField, schema: Schema, rows: pa.Table) -> pa.Array:
    """One partition field's value for each row."""
    column = _source(schema, field.source_id, rows)
    transform = field.transform
    if isinstance(transform, IdentityTransform):
        return column
    if isinstance(transform, TimeTransform):
        return _time(transform, column)
    return transform.pyarrow_transform(schema.find_type(field.source_id))(column)


def _source(schema: Schema, field_id: int, rows: pa.Table) -> pa.Array:
    path = path_of(schema, field_id)
    assert path is not None, "a partition's source is never inside of a list or a map"
    column = at_path(rows, path)
    if pt.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    array = column.combine_chunks()
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _time(transform: TimeTransform[Any], column: pa.Array) -> pa.Array:
    is_date = pt.is_date32(column.type)
    ticks = column.view(pa.int32() if is_date else pa.int64()).fill_null(0).to_numpy().astype(np.int64)
    if isinstance(transform, HourTransform):
        found = ticks // _HOUR
    else:
        found = _calendar(transform, ticks if is_date else ticks // _DAY)
    return pa.array(found, mask=column.is_null().to_numpy(zero_copy_only=False)).cast(pa.int32())


def _calendar(transform: TimeTransform[Any], days: Codes) -> Codes:
    if isinstance(transform, DayTransform):
        return days
    unit = {YearTransform: "M8[Y]", MonthTransform: "M8[M]"}[type(transform)]
    return days.astype("M8[D]").astype(unit).astype(np.int64)


def _plain(values: pa.Array) -> pa.Array:
    """Dates and times as the integers that a manifest holds."""
    if pt.is_date32(values.type):
        return values.view(pa.int32())
    if pt.is_timestamp(values.type) or pt.is_time64(values.type):
        return values.view(pa.int64())
    return values
