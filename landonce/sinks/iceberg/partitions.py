"""Partitions: specs as a pipeline file writes them (`country`, `day(at)`, `bucket(16, id)`, `truncate(4, name)`), rows sorted by
partition in one pass, and values that have no partition.

Bucket and truncate come from PyIceberg's compiled kernels. Its kernels for years and months return null for distant times, and a
null is a wrong partition, so times are computed here.

A value has no partition if its transform's result does not fit the result's type. `truncate` rounds down, so the lowest values of
a type fall below it: PyIceberg's kernel and Java's wrap around to a value by which readers skip the file, or refuse the whole
file. `hour` counts in 32 bits, which end before 64 bits of microseconds do. Years, months, days and buckets always fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Accessor, Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TimeTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StructType,
    TimestampType,
    TimestamptzType,
)

from landonce.errors import ConfigError
from landonce.protocol.reasons import Code, Reason

_CALL = re.compile(r"\s*(?P<name>[A-Za-z]+)\s*\((?P<arguments>.*)\)\s*", re.DOTALL)
_PLAIN: dict[str, tuple[Callable[[], Transform[Any, Any]], str]] = {
    "identity": (IdentityTransform, ""),
    "void": (VoidTransform, "_null"),
    "year": (YearTransform, "_year"),
    "month": (MonthTransform, "_month"),
    "day": (DayTransform, "_day"),
    "hour": (HourTransform, "_hour"),
}
_SIZED: dict[str, tuple[Callable[[int], Transform[Any, Any]], str]] = {
    "bucket": (BucketTransform, "_bucket"),
    "truncate": (TruncateTransform, "_trunc"),
}
_KNOWN = "identity, bucket(n, …), truncate(n, …), year, month, day, hour and void"
_DAY = 86_400_000_000
_HOUR = 3_600_000_000
Codes = npt.NDArray[np.int64]
_INT, _LONG = 2**31, 2**63
Path = tuple[int, ...]
"""Where a field is: the position of its column, then of the field in each struct."""


def path_of(schema: Schema, field_id: int) -> Path | None:
    """None inside lists and maps."""
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


def parse_spec(asked: Sequence[str], schema: Schema) -> PartitionSpec:
    """The spec of a table with this schema."""
    fields: list[PartitionField] = []
    taken = set(schema.column_names)
    for number, text in enumerate(asked):
        source, transform, suffix = _term(text, schema)
        plain = isinstance(transform, IdentityTransform)
        if not source.field_type.is_primitive or not transform.can_transform(source.field_type):
            kind = "a column" if plain else str(transform)
            raise _wrong(text, f"{kind} of type {source.field_type} cannot partition a table")
        if path_of(schema, source.field_id) is None:
            raise _wrong(text, "a value inside of a list or a map cannot partition a table")
        for each in fields:
            timed = isinstance(transform, TimeTransform) and isinstance(each.transform, TimeTransform)
            if each.source_id == source.field_id and (timed or each.transform == transform):
                raise _wrong(
                    text, f"{source.name} partitions the table already; of several times, the finest is enough"
                )
        name = str(schema.find_column_name(source.field_id)) + suffix
        if not plain:  # a name that no column and no other partition field has
            similar = (f"{name}_{more}" for more in range(2, len(taken) + 3))
            name = next(each for each in (name, *similar) if each not in taken)
        taken.add(name)
        fields.append(PartitionField(source.field_id, PARTITION_FIELD_ID_START + number, transform, name))
    return PartitionSpec(*fields)


def spec_differs(asked: PartitionSpec, there: PartitionSpec, schema: Schema) -> str:
    """How a table's spec differs from the one that was asked for, in words; empty if it does not.

    The order and the names of the fields do not matter, nor does a dropped field that left a void behind.
    """
    wanted, found = _terms(asked, schema), _terms(there, schema)
    if set(wanted) == set(found):
        return ""
    parts = []
    if lacking := [each for each in wanted if each not in found]:
        parts.append(f"it is not partitioned by {', '.join(lacking)}")
    if surplus := [each for each in found if each not in wanted]:
        parts.append(f"it is partitioned by {', '.join(surplus)}, which was not asked for")
    return "; ".join(parts)


def spelled(spec: PartitionSpec, schema: Schema) -> str:
    """A spec as a pipeline file writes it."""
    return ", ".join(_terms(spec, schema)) or "nothing"


def _terms(spec: PartitionSpec, schema: Schema) -> list[str]:
    fields = [each for each in spec.fields if not isinstance(each.transform, VoidTransform)]
    return [spell(each.transform, schema.find_column_name(each.source_id) or "a dropped column") for each in fields]


def spell(transform: Transform[Any, Any], column: str) -> str:
    """One field of a spec, as a pipeline file writes it."""
    if isinstance(transform, IdentityTransform):
        return column
    if isinstance(transform, BucketTransform):
        return f"bucket({transform.num_buckets}, {column})"
    if isinstance(transform, TruncateTransform):
        return f"truncate({transform.width}, {column})"
    return f"{transform}({column})"


def _term(text: str, schema: Schema) -> tuple[NestedField, Transform[Any, Any], str]:
    """The column, the transform, and the suffix of the partition field's name."""
    if _unquoted(text) in schema.column_names:
        return schema.find_field(_unquoted(text)), IdentityTransform(), ""
    call = _CALL.fullmatch(text)
    if call is None:
        return _column(text, text, schema), IdentityTransform(), ""
    name = call["name"].lower()
    name = name if name in _PLAIN or name in _SIZED else name.removesuffix("s")
    arguments = [each.strip() for each in call["arguments"].rsplit(",", 1)]
    if name in _PLAIN and len(arguments) == 1:
        kind, suffix = _PLAIN[name]
        return _column(arguments[0], text, schema), kind(), suffix
    if name in _SIZED and len(arguments) == 2:
        sized, suffix = _SIZED[name]
        size, column = arguments if arguments[0].isdigit() else arguments[::-1]
        if not size.isdigit() or not 0 < int(size) < 2**31:
            raise _wrong(text, f"{name} takes a number from 1 on and a column, for example {name}(16, id)")
        return _column(column, text, schema), sized(int(size)), suffix
    raise _wrong(text, f"there is no such transform; there are {_KNOWN}")


def _column(name: str, text: str, schema: Schema) -> NestedField:
    try:
        return schema.find_field(_unquoted(name))
    except ValueError:
        known = ", ".join(schema.column_names)
        raise _wrong(text, f"the table has no column {_unquoted(name)!r}; it has {known}") from None


def _unquoted(name: str) -> str:
    name = name.strip()
    return name[1:-1].replace("``", "`") if len(name) > 1 and name[0] == name[-1] == "`" else name


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(f"sink.iceberg.partition_by: {text.strip()!r}: {why}.")


def by_partition(spec: PartitionSpec, schema: Schema, rows: pa.Table) -> Iterator[tuple[Record, pa.Table]]:
    """Each partition's values, as a manifest holds them, with its rows in their order.

    The columns of `rows` are those of `schema`, in its order.
    """
    real = [at for at, each in enumerate(spec.fields) if not isinstance(each.transform, VoidTransform)]
    codes: Codes = np.zeros(rows.num_rows, dtype=np.int64)
    keys: list[tuple[Any, ...]] = [()]
    for at in real:
        codes, keys = _refined(codes, keys, partition_values(spec.fields[at], schema, rows))
    records = []
    for key in keys:
        known = dict(zip(real, key, strict=True))
        records.append(Record(*(known.get(at) for at in range(len(spec.fields)))))
    if len(records) == 1:
        yield records[0], rows
        return
    if not bool((codes[1:] >= codes[:-1]).all()):  # NumPy sorts small integers by radix, in linear time
        small = codes.astype(np.uint16 if len(keys) <= 2**16 else np.uint32)
        rows = rows.combine_chunks().take(pa.array(np.argsort(small, kind="stable")))
    ends = np.cumsum(np.bincount(codes, minlength=len(keys)))
    for record, start, end in zip(records, [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        yield record, rows.slice(start, end - start)


def _refined(codes: Codes, keys: list[tuple[Any, ...]], values: pa.Array) -> tuple[Codes, list[tuple[Any, ...]]]:
    """Groups divided by one more field, numbered as they first appear."""
    encoded = values.dictionary_encode(null_encoding="encode")
    inner: Codes = encoded.indices.to_numpy().astype(np.int64)
    known = _plain(encoded.dictionary).to_pylist()
    if len(keys) == 1:
        return inner, [(*keys[0], value) for value in known]
    both = pa.array(codes * len(known) + inner).dictionary_encode()
    pairs = [divmod(pair, len(known)) for pair in both.dictionary.to_pylist()]
    return both.indices.to_numpy().astype(np.int64), [(*keys[outer], known[at]) for outer, at in pairs]


def partition_values(field: PartitionField, schema: Schema, rows: pa.Table) -> pa.Array:
    """One partition field's value for each row."""
    path = path_of(schema, field.source_id)
    assert path is not None, "a partition's source is never inside of a list or a map"
    column = at_path(rows, path)
    if pt.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    array = column.combine_chunks()
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    transform = field.transform
    if isinstance(transform, IdentityTransform):
        return array
    if isinstance(transform, TimeTransform):
        return _time(transform, array)
    return transform.pyarrow_transform(schema.find_type(field.source_id))(array)


def _time(transform: TimeTransform[Any], column: pa.Array) -> pa.Array:
    is_date = pt.is_date32(column.type)
    ticks = column.view(pa.int32() if is_date else pa.int64()).fill_null(0).to_numpy().astype(np.int64)
    if isinstance(transform, HourTransform):
        found = ticks // _HOUR
    else:
        found = ticks if is_date else ticks // _DAY
        if not isinstance(transform, DayTransform):
            unit = {YearTransform: "M8[Y]", MonthTransform: "M8[M]"}[type(transform)]
            found = found.astype("M8[D]").astype(unit).astype(np.int64)
    return pa.array(found, mask=column.is_null().to_numpy(zero_copy_only=False)).cast(pa.int32())


def _plain(values: pa.Array) -> pa.Array:
    """Dates and times as the integers that a manifest holds."""
    if pt.is_date32(values.type):
        return values.view(pa.int32())
    if pt.is_timestamp(values.type) or pt.is_time64(values.type):
        return values.view(pa.int64())
    return values


@dataclass(frozen=True)
class Limit:
    """The lowest and the highest value of a column, or of a field in it, that has a partition. Picklable."""

    path: tuple[str, ...]
    term: str
    type: str
    """The type of the partition's values."""
    low: int
    high: int
    scale: int = 0
    """Digits behind the point of a decimal, whose limits are counted in its last digit."""

    def exceeded(self, rows: pa.Table) -> Iterator[tuple[int, Reason]]:
        """Each row beyond the limit, with the reason."""
        if self.path[0] not in rows.column_names:
            return
        column = rows.column(self.path[0]).combine_chunks()
        values = pc.struct_field(column, list(self.path[1:])) if self.path[1:] else column
        low, high = (self._scalar(each, values.type) for each in (self.low, self.high))
        plain = values.view(pa.int64()) if pt.is_timestamp(values.type) else values
        beyond = pc.fill_null(pc.or_(pc.less(plain, low), pc.greater(plain, high)), False)
        for at in np.flatnonzero(beyond.to_numpy(zero_copy_only=False)):
            value = plain[int(at)].as_py()
            path = ".".join(self.path)
            words = f"{path}: {self.term} of {value} does not fit {self.type}: no partition takes it"
            yield int(at), Reason(words, Code.OUT_OF_RANGE, path)

    def _scalar(self, limit: int, kind: pa.DataType) -> pa.Scalar:
        if pt.is_decimal(kind):
            return pa.scalar(Decimal(f"{limit}E-{self.scale}"), kind)
        return pa.scalar(limit, pa.int64() if pt.is_timestamp(kind) else kind)


def limits_of(spec: PartitionSpec, schema: Schema) -> tuple[Limit, ...]:
    """Which values of a table's columns have no partition."""
    found = []
    for field in spec.fields:
        path = path_of(schema, field.source_id)
        bounds = _bounds(field.transform, schema.find_type(field.source_id)) if path is not None else None
        if path is not None and bounds is not None:
            low, high, kind, scale = bounds
            names = tuple(each.name for each in fields_along(schema, path))
            found.append(Limit(names, spell(field.transform, ".".join(names)), kind, low, high, scale))
    return tuple(found)


def beyond(limits: Iterable[Limit], rows: pa.Table) -> dict[int, Reason]:
    """The rows that have no partition, with the reason. Columns are matched by name; a missing one is null."""
    found: dict[int, Reason] = {}
    for limit in limits:
        for at, reason in limit.exceeded(rows):
            found.setdefault(at, reason)
    return found


def _bounds(transform: Any, kind: IcebergType) -> tuple[int, int, str, int] | None:
    if isinstance(transform, HourTransform) and isinstance(kind, TimestampType | TimestamptzType):
        return -_INT * _HOUR, min(_INT * _HOUR, _LONG) - 1, "int", 0
    if not isinstance(transform, TruncateTransform):
        return None
    if isinstance(kind, IntegerType):
        return -(_INT // transform.width) * transform.width, _INT - 1, str(kind), 0
    if isinstance(kind, LongType):
        return -(_LONG // transform.width) * transform.width, _LONG - 1, str(kind), 0
    if isinstance(kind, DecimalType):
        most = 10**kind.precision - 1
        return -(most // transform.width) * transform.width, most, str(kind), kind.scale
    return None
