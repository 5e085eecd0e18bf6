"""What an Iceberg table holds, at one snapshot of a branch that is pinned when the audit opens the table.

Every live file is read once, its coordinates only, without the rows that position deletes or deletion vectors take away,
into an index of offsets. Equality deletes are refused. Reads only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

import pyarrow as pa

from landonce.plan.ranges import Partition
from landonce.verify.held.offsets import OffsetIndex, split
from landonce.verify.held.port import LAST, Doubled, Held, Span
from landonce.verify.held.scan import PinnedTable
from landonce.verify.judge import Counted, Offsets
from landonce.write.iceberg.catalog import CatalogSpec

_COORDINATES = ("_topic", "_kafka_partition", "_offset")
"""`_partition` would be Iceberg's own column of that name."""


class IcebergRows(Held):
    """The coordinates in one table. A table or branch that is not there holds nothing, and `notes` say so."""

    def __init__(self, spec: CatalogSpec, identifier: str, branch: str = "main") -> None:
        self.name = identifier
        self._table = PinnedTable(spec, identifier, branch)

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
        spans = self._read.spans
        found = self._table.files.doubled()
        return tuple(Doubled(path, references, tuple(spans[path].values())) for path, references in found.items())

    def notes(self) -> tuple[str, ...]:
        without = self._read.without
        said = (f"{self.name}: {without} rows have no coordinates and were not judged.",) if without else ()
        return (*self._table.notes(), *said)

    @cached_property
    def _read(self) -> _Read:
        read = _Read()
        doubled = self._table.files.doubled()
        for live, batch in self._table.rows(_COORDINATES):
            path = live.file.file_path
            for partition, offsets in read.add(batch):
                if path in doubled:
                    read.note(path, partition, offsets)
        read.index.optimize()
        return read


class _Read:
    """What one pass over the table found."""

    def __init__(self) -> None:
        self.index = OffsetIndex()
        self.without = 0
        """Rows that lack a coordinate: somebody else's."""
        self.spans: dict[str, dict[Partition, Span]] = defaultdict(dict)
        """Per file that is registered twice, what it holds."""

    def add(self, batch: pa.RecordBatch) -> list[tuple[Partition, Offsets]]:
        whole = batch.drop_null()
        self.without += batch.num_rows - whole.num_rows
        found = split(*whole.columns)
        for partition, offsets in found:
            self.index.add(partition, offsets)
        return found

    def note(self, path: str, partition: Partition, offsets: Offsets) -> None:
        held, new = self.spans[path], Span.of(partition, offsets)
        held[partition] = held[partition].plus(new) if partition in held else new
