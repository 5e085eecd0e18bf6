"""Values that have no partition: what a transform makes of them does not fit its type.

`truncate` rounds down, so that the least values of a type come out below it: PyIceberg's kernel and Java's wrap around, to a value
by which readers skip the file, or refuse the whole file. `hour` counts in 32 bits, which end before 64 bits of microseconds do.
Years, months, days and buckets always fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import HourTransform, TruncateTransform
from pyiceberg.types import DecimalType, IcebergType, IntegerType, LongType, TimestampType, TimestamptzType

from landonce.sinks.iceberg.arrow import fields_along, path_of
from landonce.sinks.iceberg.partitioning import spell

_HOUR = 3_600_000_000
_INT, _LONG = 2**31, 2**63


@dataclass(frozen=True)
class Limit:
    """The least and the greatest value of a column, or of a field in it, that a partition can hold. Picklable."""

    path: tuple[str, ...]
    term: str
    type: str
    """What the partition's values are."""
    low: int
    high: int
    scale: int = 0
    """Digits behind the point of a decimal, whose limits are counted in its last digit."""

    def exceeded(self, rows: pa.Table) -> Iterator[tuple[int, str]]:
        """Each row that is beyond, with the reason."""
        if self.path[0] not in rows.column_names:
            return
        column = rows.column(self.path[0]).combine_chunks()
        values = pc.struct_field(column, list(self.path[1:])) if self.path[1:] else column
        low, high = (self._scalar(each, values.type) for each in (self.low, self.high))
        plain = values.view(pa.int64()) if pt.is_timestamp(values.type) else values
        beyond = pc.fill_null(pc.or_(pc.less(plain, low), pc.greater(plain, high)), False)
        for at in np.flatnonzero(beyond.to_numpy(zero_copy_only=False)):
            value = plain[int(at)].as_py()
            yield (
                int(at),
                f"{'.'.join(self.path)}: {self.term} of {value} does not fit {self.type}: no partition takes it",
            )

    def _scalar(self, limit: int, kind: pa.DataType) -> pa.Scalar:
        if pt.is_decimal(kind):
            return pa.scalar(Decimal(f"{limit}E-{self.scale}"), kind)
        return pa.scalar(limit, pa.int64() if pt.is_timestamp(kind) else kind)


def limits_of(spec: PartitionSpec, schema: Schema) -> tuple[Limit, ...]:
    """What a table's partitions cannot hold."""
    return tuple(each for each in (_limit(field, schema) for field in spec.fields) if each is not None)


def beyond(limits: Iterable[Limit], rows: pa.Table) -> dict[int, str]:
    """The rows that have no partition, with the reason. Columns are found by name; one that is not there is null."""
    found: dict[int, str] = {}
    for limit in limits:
        for at, reason in limit.exceeded(rows):
            found.setdefault(at, reason)
    return found


def _limit(field: PartitionField, schema: Schema) -> Limit | None:
    path = path_of(schema, field.source_id)
    bounds = _bounds(field.transform, schema.find_type(field.source_id)) if path is not None else None
    if path is None or bounds is None:
        return None
    low, high, kind, scale = bounds
    names = tuple(each.name for each in fields_along(schema, path))
    return Limit(names, spell(field.transform, ".".join(names)), kind, low, high, scale)


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
