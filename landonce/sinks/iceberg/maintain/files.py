"""The files of a table: what lies in its folders, what snapshots name, and deleting.

Every manifest is read once, however many snapshots share it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from pyarrow import fs
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from landonce.config.secrets import redact
from landonce.errors import TargetUnavailable
from landonce.sinks.iceberg.files import FOLDER

_AT_ONCE = 8
_METADATA, _COMPRESSED = ".metadata.json", ".gz.metadata.json"
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([0-9A-Fa-f-]{36})"')
_BEGINNING, _GZIP = 65_536, 31
Advance = Callable[[int, int], None]
"""Called with how many manifests were read, and of how many."""


@dataclass(frozen=True)
class FoundFile:
    """A file as the storage lists it."""

    path: str
    size: int
    modified: datetime

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def folders_of(table: Table, *, shared: bool) -> tuple[str, ...]:
    """The folders that the pipeline's workers write to for this table.

    `shared`: the pipeline has other tables too. Then a folder outside the table's own is left out: it may be theirs as well, and
    a file in it that this table does not name may be named by another.
    """
    location = table.location().rstrip("/")
    data = load_location_provider(location, table.properties).data_path
    own = data.startswith(f"{location}/")
    return (*((data,) if own or not shared else ()), f"{location}/{FOLDER}")


def listed(table: Table, folders: Iterable[str], others: Sequence[str] = ()) -> tuple[FoundFile, ...]:
    """Every file in the folders, except those at the location of another table."""
    io = _arrow(table)
    foreign = tuple(f"{each.rstrip('/')}/" for each in others)
    try:
        found = [each for folder in folders for each in _files(io, folder)]
    except (OSError, ValueError) as error:
        raise TargetUnavailable(f"the storage cannot be listed: {redact(str(error))}") from None
    return tuple(each for each in found if not each.path.startswith(foreign))


def shares_location(table: Table) -> bool:
    """Whether another table's metadata is in this table's folder: that table was renamed, or dropped with its files kept, and this
    one was created in its place. Then a file that no snapshot names may belong to the other."""
    io = _arrow(table)
    known = {table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)}
    mine = str(table.metadata.table_uuid)
    listed = _files(io, f"{table.location().rstrip('/')}/metadata")
    unknown = [each.path for each in listed if each.name.endswith(_METADATA) and each.path not in known]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return any(whose != mine for whose in pool.map(lambda path: _uuid_in(io, path), unknown))


def _uuid_in(io: PyArrowFileIO, path: str) -> str:
    """The table's UUID, which is near the beginning of a metadata file. Empty if it cannot be read."""
    with io.new_input(path).open() as file:
        beginning = file.read(_BEGINNING)
    with suppress(zlib.error):
        text = zlib.decompressobj(_GZIP).decompress(beginning) if path.endswith(_COMPRESSED) else beginning
        found = _UUID.search(text)
        return found[1].decode().lower() if found else ""
    return ""


def _files(io: PyArrowFileIO, folder: str) -> Iterable[FoundFile]:
    scheme, host, path = io.parse_location(folder, io.properties)
    root = path.rstrip("/")
    selector = fs.FileSelector(root, allow_not_found=True, recursive=True)
    for each in io.fs_by_scheme(scheme, host).get_file_info(selector):
        if each.type is fs.FileType.File:
            yield FoundFile(folder + each.path[len(root) :], each.size, each.mtime)


def delete(table: Table, paths: Iterable[str]) -> int:
    """Deletes files, and returns how many could not be deleted. A file that no longer exists counts as deleted.

    On a local disk, Spark leaves a checksum beside every file that it writes: that is deleted too.
    """
    io = _arrow(table)

    def deleted(path: str) -> bool:
        if path.startswith("file:"):
            folder, _, name = path.rpartition("/")
            _delete(io, f"{folder}/.{name}.crc")
        return _delete(io, path)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return sum(not done for done in pool.map(deleted, paths))


def _delete(io: PyArrowFileIO, path: str) -> bool:
    try:
        io.delete(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _arrow(table: Table) -> PyArrowFileIO:
    """Arrow can list folders; Iceberg's own interface cannot."""
    return table.io if isinstance(table.io, PyArrowFileIO) else PyArrowFileIO(table.io.properties)


@dataclass(frozen=True)
class Files:
    """Paths with their sizes; 0 for a manifest list, whose size is not recorded."""

    data: dict[str, int] = field(default_factory=dict)
    """Live data and delete files."""
    metadata: dict[str, int] = field(default_factory=dict)
    """Manifests, manifest lists and statistics."""

    def names(self) -> set[str]:
        """The names of the data files, without their folders."""
        return {path.rpartition("/")[2] for path in self.data}


def files_of(io: FileIO, metadata: TableMetadata, advance: Advance = lambda _done, _all: None) -> Files:
    """Everything that the snapshots of the metadata name. Raises if any of it cannot be read: a part of the answer is useless."""
    try:
        manifests = _manifests(io, metadata.snapshots)
        return Files(_alive(io, manifests.values(), advance), _metadata_files(metadata, metadata.snapshots, manifests))
    except (OSError, ValueError) as error:
        raise TargetUnavailable(f"the table's manifests cannot be read: {redact(str(error))}") from None


def files_only_in(io: FileIO, before: TableMetadata, gone: Iterable[int], after: Files) -> Files:
    """The files that only expired snapshots named.

    If their manifests are gone already, because an earlier cleaning was cut short, they name nothing.
    """
    ids = set(gone)
    expired = [each for each in before.snapshots if each.snapshot_id in ids]
    data: dict[str, int] = {}
    metadata: dict[str, int] = {}
    for snapshot in expired:
        try:
            manifests = _manifests(io, [snapshot])
            own = {
                path: each for path, each in manifests.items() if path not in after.metadata and path not in metadata
            }
            data |= _alive(io, own.values())
        except FileNotFoundError:
            own = {}
        except (OSError, ValueError) as error:
            raise TargetUnavailable(f"the table's manifests cannot be read: {redact(str(error))}") from None
        metadata |= _metadata_files(before, [snapshot], own)
    return Files(
        {path: size for path, size in data.items() if path not in after.data},
        {path: size for path, size in metadata.items() if path not in after.metadata},
    )


def _manifests(io: FileIO, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        lists = pool.map(lambda each: each.manifests(io), snapshots)
        return {each.manifest_path: each for manifests in lists for each in manifests}


def _alive(
    io: FileIO, manifests: Iterable[ManifestFile], advance: Advance = lambda _done, _all: None
) -> dict[str, int]:
    wanted = list(manifests)
    found: dict[str, int] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for done, files in enumerate(pool.map(lambda each: list(_entries(io, each)), wanted), 1):
            found.update(files)
            advance(done, len(wanted))
    return found


def _entries(io: FileIO, manifest: ManifestFile) -> Iterator[tuple[str, int]]:
    for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
        yield entry.data_file.file_path, entry.data_file.file_size_in_bytes


def _metadata_files(
    metadata: TableMetadata, snapshots: Iterable[Snapshot], manifests: dict[str, ManifestFile]
) -> dict[str, int]:
    ids = {each.snapshot_id for each in snapshots}
    statistics = (*metadata.statistics, *metadata.partition_statistics)
    return {
        **{path: each.manifest_length for path, each in manifests.items()},
        **{each.manifest_list: 0 for each in snapshots},
        **{each.statistics_path: each.file_size_in_bytes for each in statistics if each.snapshot_id in ids},
    }
