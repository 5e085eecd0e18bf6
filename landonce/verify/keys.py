"""Keys of rows that records change: the last change of each, collected window by window. Pure.

All data is columnar. Memory grows with the number of distinct keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from landonce.verify.judge import Mask, Offsets

PLACE, LAST, OFFSET = "__landonce_place", "__landonce_last", "__landonce_offset"
UNKNOWN = -1
"""The place of a row whose coordinates belong to no judged partition."""
_OFTEN = 1_000_000


class LastChanges:
    """The last change of every key, per partition: twice its offset, and one more for a deletion."""

    def __init__(self, identity: Sequence[str]) -> None:
        self._by = [*identity, PLACE]
        self._parts: list[pa.Table] = []
        self._packed = 0
        self.changes = 0

    def add(self, keys: pa.Table, place: int, offsets: Offsets, deleted: Mask) -> None:
        """Changes of one partition, which has the number `place`."""
        rows = plain(keys).append_column(PLACE, pa.array(np.full(len(offsets), place, np.int32)))
        self._parts.append(rows.append_column(LAST, pa.array(offsets * 2 + deleted)))
        self.changes += len(offsets)
        if sum(each.num_rows for each in self._parts) > 2 * self._packed + _OFTEN:
            self.table()

    def table(self) -> pa.Table | None:
        """One row for each key and partition; None if nothing changed."""
        if len(self._parts) > 1 or self._packed == 0:
            self._parts = [_last(pa.concat_tables(self._parts), self._by)] if self._parts else []
            self._packed = sum(each.num_rows for each in self._parts)
        return self._parts[0] if self._parts else None


def _last(rows: pa.Table, by: list[str]) -> pa.Table:
    last = rows.group_by(by).aggregate([(LAST, "max")])
    return last.rename_columns([LAST if name == f"{LAST}_max" else name for name in last.column_names])


def plain(keys: pa.Table) -> pa.Table:
    """Key columns in common types, so that they compare equal, with 64-bit offsets that cannot overflow."""
    return pa.table([_plain(column) for column in keys.columns], names=keys.column_names)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(pa.chunked_array([each.storage for each in column.chunks], kind.storage_type))
    if pt.is_dictionary(kind):
        return _plain(column.cast(kind.value_type))
    if pt.is_integer(kind):
        return column if pt.is_uint64(kind) else column.cast(pa.int64())
    if pt.is_string(kind):
        return column.cast(pa.large_string())
    if pt.is_binary(kind) or pt.is_fixed_size_binary(kind):
        return column.cast(pa.binary()).cast(pa.large_binary())
    return column
