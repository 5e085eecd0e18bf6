"""A table's folders: what lies in them, and deleting."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider

from landonce.config.secrets import redact
from landonce.errors import TargetUnavailable
from landonce.sinks.iceberg.maintain.orphans import Found
from landonce.sinks.iceberg.scratch import FOLDER

_AT_ONCE = 8
_METADATA, _COMPRESSED = ".metadata.json", ".gz.metadata.json"
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([0-9A-Fa-f-]{36})"')
_BEGINNING, _GZIP = 65_536, 31


def folders_of(table: Table, *, shared: bool) -> tuple[str, ...]:
    """Where the pipeline's workers write for this table.

    `shared`: the pipeline has other tables too. Then a folder outside of the table's own may be theirs as well, and a file
    in it that this table does not name may be named by another: it is left out.
    """
    location = table.location().rstrip("/")
    data = load_location_provider(location, table.properties).data_path
    own = data.startswith(f"{location}/")
    return (*((data,) if own or not shared else ()), f"{location}/{FOLDER}")


def listed(table: Table, folders: Iterable[str], others: Sequence[str] = ()) -> tuple[Found, ...]:
    """Every file in the folders, but for what lies at the location of another table."""
    io = _arrow(table)
    foreign = tuple(f"{each.rstrip('/')}/" for each in others)
    try:
        found = [each for folder in folders for each in _files(io, folder)]
    except (OSError, ValueError) as error:
        raise TargetUnavailable(f"the storage cannot be listed: {redact(str(error))}") from None
    return tuple(each for each in found if not each.path.startswith(foreign))


def shares_location(table: Table) -> bool:
    """Whether another table's metadata lies where this one's does: it was renamed, or dropped with its files kept, and this one
    was made in its place. Then a file that no snapshot names may be the other's."""
    io = _arrow(table)
    known = {table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)}
    mine = str(table.metadata.table_uuid)
    listed = _files(io, f"{table.location().rstrip('/')}/metadata")
    unknown = [each.path for each in listed if each.name.endswith(_METADATA) and each.path not in known]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return any(whose != mine for whose in pool.map(lambda path: _uuid_in(io, path), unknown))


def _uuid_in(io: PyArrowFileIO, path: str) -> str:
    """It stands near the beginning. Empty where it cannot be told."""
    with io.new_input(path).open() as file:
        told = file.read(_BEGINNING)
    with suppress(zlib.error):
        text = zlib.decompressobj(_GZIP).decompress(told) if path.endswith(_COMPRESSED) else told
        found = _UUID.search(text)
        return found[1].decode().lower() if found else ""
    return ""


def _files(io: PyArrowFileIO, folder: str) -> Iterable[Found]:
    scheme, host, path = io.parse_location(folder, io.properties)
    root = path.rstrip("/")
    selector = fs.FileSelector(root, allow_not_found=True, recursive=True)
    for each in io.fs_by_scheme(scheme, host).get_file_info(selector):
        if each.type is fs.FileType.File:
            yield Found(folder + each.path[len(root) :], each.size, each.mtime)


def delete(table: Table, paths: Iterable[str]) -> int:
    """Deletes files, and says how many it could not. One that is not there any more counts as deleted.

    In a folder of this machine, Spark leaves a checksum beside every file that it writes.
    """
    io = _arrow(table)

    def gone(path: str) -> bool:
        if path.startswith("file:"):
            folder, _, name = path.rpartition("/")
            _gone(io, f"{folder}/.{name}.crc")
        return _gone(io, path)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return sum(not done for done in pool.map(gone, paths))


def _gone(io: PyArrowFileIO, path: str) -> bool:
    try:
        io.delete(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _arrow(table: Table) -> PyArrowFileIO:
    """Arrow lists folders, which Iceberg's own interface cannot."""
    return table.io if isinstance(table.io, PyArrowFileIO) else PyArrowFileIO(table.io.properties)
