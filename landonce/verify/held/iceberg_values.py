"""The values in an Iceberg table at one pinned snapshot, some thousand rows at a time. Read-only.

Reading the coordinates of all files once shows which file holds which offsets. Of a Parquet file only the row groups
are read whose statistics match the range; ORC and Avro files are read whole for every range that they overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from landonce.protocol.ranges import Partition
from landonce.verify.held.offsets import split
from landonce.verify.held.port import HeldValues, Piece, Span
from landonce.verify.held.scan import COORDINATES, PinnedTable
from landonce.verify.held.snapshot import LiveFile

_TOPIC, _NUMBER, _OFFSET = COORDINATES


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
