"""The sink: one Delta table, and how a worker stages the rows of a block."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler

from landonce.plugin import Origin, SnapshotSink
from landonce_delta.table import DeltaLog, StagedFile, telling


@dataclass(frozen=True)
class DeltaSink(SnapshotSink[StagedFile, DeltaTable]):
    """One Delta table. Holds an address, and nothing that is open."""

    table: str
    pipeline: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    create: bool = False
    follow: bool = True

    @property
    def identity(self) -> str:
        return f"delta {self.table}"

    def open_table(self) -> DeltaLog:
        return DeltaLog(self.table, dict(self.options), self.pipeline)

    def stage(self, rows: pa.Table, origin: Origin) -> tuple[tuple[StagedFile, ...], int]:
        """One Parquet file beside those of the table. A task that runs again writes another one."""
        name = origin.file_name()
        with telling(self.table):
            storage = pafs.PyFileSystem(DeltaStorageHandler(self.table, dict(self.options)))
            topics = rows.column("_topic").cast(pa.string())  # may be a dictionary
            pq.write_table(rows.set_column(0, "_topic", topics), name, filesystem=storage)
            count = pq.read_metadata(name, filesystem=storage).num_rows
            return (StagedFile(name, storage.get_file_info(name).size, count),), count
