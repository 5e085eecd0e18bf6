"""What an Iceberg table holds, at one snapshot of a branch that is pinned when the audit opens the table.

Every live file is read once, only its coordinates, without the rows that position deletes or deletion vectors
remove, into an index of offsets. Equality deletes are refused. Read-only.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import pyarrow as pa
from pyiceberg.catalog import Catalog

from landonce.protocol.ranges import Partition
from landonce.sinks.iceberg.catalog import CatalogSpec
from landonce.verify.held.offsets import OffsetIndex, split
from landonce.verify.held.port import LAST, Doubled, Held
from landonce.verify.held.scan import COORDINATES, PinnedTable
from landonce.verify.held.spans import Spans
from landonce.verify.judge import Counted


class IcebergRows(Held):
    """The coordinates in one table. A missing table or branch holds nothing, and `notes` say so.

    `catalog`: the catalog of `spec`, if it is already open.
    """

    def __init__(
        self, spec: CatalogSpec, identifier: str, branch: str = "main", catalog: Catalog | None = None
    ) -> None:
        self.name = identifier
        self.table = PinnedTable(spec, identifier, branch, catalog)

    def counted(self, partition: Partition, first: int, end: int) -> Counted:
        return self._read.index.counted(partition, first, end)

    def repeated(self, partition: Partition, first: int, end: int) -> Counted:
        return self._read.index.repeated(partition, first, end)

    def count(self, partition: Partition, first: int, end: int = LAST) -> int:
        return self._read.index.count(partition, first, end)

    def lowest(self, partition: Partition, first: int, end: int = LAST) -> int | None:
        return self._read.index.lowest(partition, first, end)

    def partitions(self, labels: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
        wanted = set(labels)
        return tuple((at.topic, at.number, rows) for at, rows in self._read.index.rows().items() if at.topic in wanted)

    def doubled(self) -> tuple[Doubled, ...]:
        return self._read.spans.doubled()

    def as_of(self) -> str:
        return self.table.as_of()

    def notes(self) -> tuple[str, ...]:
        without = self._read.without
        notes = (f"{self.name}: {without} rows have no coordinates and were not judged.",) if without else ()
        return (*self.table.notes(), *notes)

    @cached_property
    def _read(self) -> _Read:
        read = _Read(self.table)
        for live, batch in self.table.rows(COORDINATES):
            read.add(live.file.file_path, batch)
        read.index.optimize()
        return read


class _Read:
    """The result of one pass over the table."""

    def __init__(self, table: PinnedTable) -> None:
        self.index = OffsetIndex()
        self.spans = Spans(table)
        self.without = 0
        """Rows without a coordinate: another writer added them."""

    def add(self, path: str, batch: pa.RecordBatch) -> None:
        whole = batch.drop_null()
        self.without += batch.num_rows - whole.num_rows
        for partition, offsets in split(*whole.columns):
            self.index.add(partition, offsets)
            self.spans.add(path, partition, offsets)
