"""Rows for Spark's own writer: plain Parquet files in a folder of the table, which a MERGE or INSERT then reads.

They are never part of the table. The driver removes them once their batch is committed, and `maintain` what a kill left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table

from landonce.config.secrets import redact
from landonce.errors import TargetRefused, TargetUnavailable
from landonce.sinks.iceberg.plain import plain
from landonce.sinks.snapshot import Origin

FOLDER = "landonce-staged"


@dataclass(frozen=True)
class Scratch:
    """Where a table's rows wait for Spark. Picklable."""

    folder: str
    io: tuple[tuple[str, str], ...] = field(repr=False)
    """What opens the storage: it may hold credentials."""

    @staticmethod
    def of(table: Table) -> Scratch:
        return Scratch(f"{table.location().rstrip('/')}/{FOLDER}", tuple(sorted(table.io.properties.items())))

    def write(self, rows: pa.Table, origin: Origin) -> tuple[str, int]:
        """One file with all the rows; gives its path, and how many its footer says there are."""
        path = f"{self.folder}/{origin.file_name()}"
        footers: list[pq.FileMetaData] = []
        try:
            with self._open().new_output(path).create() as stream:
                pq.write_table(plain(rows), stream, compression="lz4", metadata_collector=footers)
        except PermissionError as error:
            raise TargetRefused(
                f"the storage refused a file: {redact(str(error))}",
                safe="Nothing was committed.",
                command="give landonce the right to read and write the warehouse",
            ) from None
        except OSError as error:
            raise TargetUnavailable(f"the storage did not take a file: {redact(str(error))}") from None
        return path, sum(each.num_rows for each in footers)

    def remove(self, paths: tuple[str, ...]) -> None:
        """What is not needed any more. A file that cannot be removed is left for `maintain`."""
        io = self._open()
        for path in paths:
            try:
                io.delete(path)
            except OSError:
                continue

    def _open(self) -> FileIO:
        return load_file_io(dict(self.io), self.folder)
