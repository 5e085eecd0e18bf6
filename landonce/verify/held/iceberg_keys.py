"""The keys in an Iceberg table whose rows records change, at one pinned snapshot. Read-only.

All keys are held in memory at once, in columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog

from landonce.protocol.ranges import Partition
from landonce.sinks.iceberg.catalog import CatalogSpec
from landonce.verify.held.offsets import split
from landonce.verify.held.port import Doubled, HeldKeys
from landonce.verify.held.scan import COORDINATES, PinnedTable
from landonce.verify.held.spans import Spans
from landonce.verify.keys import OFFSET, PLACE, UNKNOWN, plain


class IcebergKeys(HeldKeys):
    """A missing table or branch holds nothing, and `notes` say so."""

    def __init__(
        self,
        spec: CatalogSpec,
        identifier: str,
        identity: Sequence[str],
        branch: str = "main",
        catalog: Catalog | None = None,
    ) -> None:
        self.name = identifier
        self._identity = list(identity)
        self.table = PinnedTable(spec, identifier, branch, catalog)
        self._spans = Spans(self.table)

    def rows(self, places: Mapping[Partition, int]) -> pa.Table | None:
        self._spans, found = Spans(self.table), []
        for live, batch in self.table.rows((*self._identity, *COORDINATES)):
            place, offset = np.full((2, batch.num_rows), UNKNOWN, np.int64)
            for partition, at in _positions(batch):
                offset[at] = batch.column(COORDINATES[2]).take(pa.array(at)).to_numpy()
                place[at] = places.get(partition, UNKNOWN)
                self._spans.add(live.file.file_path, partition, offset[at])
            keys = plain(pa.Table.from_batches([batch.select(self._identity)]))
            found.append(keys.append_column(PLACE, pa.array(place)).append_column(OFFSET, pa.array(offset)))
        return pa.concat_tables(found) if found else None

    def doubled(self) -> tuple[Doubled, ...]:
        return self._spans.doubled()

    def as_of(self) -> str:
        return self.table.as_of()

    def notes(self) -> tuple[str, ...]:
        return self.table.notes()


def _positions(batch: pa.RecordBatch) -> list[tuple[Partition, np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    """For each partition the positions of its rows. Rows without coordinates belong to none."""
    numbered = batch.select(list(COORDINATES)).append_column("at", pa.array(np.arange(batch.num_rows))).drop_null()
    return split(numbered.column(0), numbered.column(1), numbered.column(3))
