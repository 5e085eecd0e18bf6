"""Files that workers wrote, as the driver sees them."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile

from landonce.errors import TableUnfit


def refuse_unseen(table: str, io: FileIO, files: Iterable[DataFile]) -> None:
    """Raises where workers wrote to a disk of their own: the table would name files that nobody else can read."""
    for path in (each.file_path for each in files):
        if urlsplit(path).scheme in ("", "file") and not io.new_input(path).exists():
            raise TableUnfit(
                f"{table}: a worker wrote {path}, and on the driver's machine there is no such file: its warehouse is not a place "
                "that all machines share.",
                safe="Nothing was committed.",
                command="put the warehouse where driver and workers see the same files",
            )
