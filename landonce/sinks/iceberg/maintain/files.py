"""The files of a table: what lies in its folders, what snapshots name, which of the others may be deleted, and deleting.

A file's name says which epoch and batch of the pipeline wrote it. Its driver had looked at the table before, and its
commit is refused if the table's mark is not the one that it saw. A driver writes under an epoch past those of all marks
that it saw, or under its own with a later batch. So, of a file that no snapshot names, with M the newest mark of the pipeline
in the table:

    file of (epoch, batch)       then
    ───────────────────────────  ─────────────────────────────────────────────────────────────────────────────────────
    at or before M               its driver looked before M was there, or made M: it can never commit this file
    after M, by a driver that    it may still be paused before its commit, and nothing in this table refuses it: deleted
    another one took over from   only after a long time
    after M, by the driver that  in flight, or left by a crash, which the next start makes an earlier driver's: never
    has the pipeline now

The table's own mark counts: in a fan-out, an older driver may still commit to a table that the newer one has not committed to
yet. If a pipeline works on several branches of the table, all their marks have to agree, since a name says nothing of branches.

Files are listed before the metadata is loaded, so one that is committed in between is seen to be named by a snapshot. Every manifest
is read once, however many snapshots share it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pyarrow import fs
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from landonce.config.secrets import redact
from landonce.errors import TargetUnavailable
from landonce.sinks.iceberg.files import FOLDER
from landonce.sinks.iceberg.marks import copy_name, own_view
from landonce.sinks.iceberg.spark import stage_of
from landonce.sinks.snapshot import origin_of

_AT_ONCE = 8
_METADATA, _COMPRESSED = ".metadata.json", ".gz.metadata.json"
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([0-9A-Fa-f-]{36})"')
_BEGINNING, _GZIP = 65_536, 31
Moment = tuple[int, int]
"""An epoch, and a batch in it."""
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
    with _listing():
        found = [each for folder in folders for each in _files(io, folder)]
    return tuple(each for each in found if not each.path.startswith(foreign))


@contextmanager
def _listing() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise TargetUnavailable(f"the storage cannot be listed: {redact(str(error))}") from None


def shares_location(table: Table) -> bool:
    """Whether another table's metadata is in this table's folder: that table was renamed, or dropped with its files kept, and this
    one was created in its place. Then a file that no snapshot names may belong to the other."""
    io, mine = _arrow(table), str(table.metadata.table_uuid)

    def uuid_in(path: str) -> str:
        """It is near the beginning of a metadata file. Empty if it cannot be read."""
        try:
            with io.new_input(path).open() as file:
                beginning = file.read(_BEGINNING)
        except FileNotFoundError:  # a commit removed this table's oldest one meanwhile
            return mine
        with suppress(zlib.error):
            text = zlib.decompressobj(_GZIP).decompress(beginning) if path.endswith(_COMPRESSED) else beginning
            found = _UUID.search(text)
            return found[1].decode().lower() if found else ""
        return ""

    known = {table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)}
    with _listing():
        there = _files(io, f"{table.location().rstrip('/')}/metadata")
        unknown = [each.path for each in there if each.name.endswith(_METADATA) and each.path not in known]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return any(whose != mine for whose in pool.map(uuid_in, unknown))


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

    def failed(path: str) -> bool:
        if path.startswith("file:"):
            folder, _, name = path.rpartition("/")
            with suppress(OSError):
                io.delete(f"{folder}/.{name}.crc")
        try:
            io.delete(path)
        except OSError as error:
            return not isinstance(error, FileNotFoundError)
        return False

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return sum(pool.map(failed, paths))


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
    data: dict[str, int] = {}
    metadata: dict[str, int] = {}
    for snapshot in (each for each in before.snapshots if each.snapshot_id in ids):
        own: dict[str, ManifestFile] = {}
        try:
            found = _manifests(io, [snapshot])
            own = {path: each for path, each in found.items() if path not in after.metadata and path not in metadata}
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
    io: FileIO, manifests: Collection[ManifestFile], advance: Advance = lambda _done, _all: None
) -> dict[str, int]:
    found: dict[str, int] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        entries = pool.map(lambda each: each.fetch_manifest_entry(io, discard_deleted=True), manifests)
        for done, some in enumerate(entries, 1):
            found.update((each.data_file.file_path, each.data_file.file_size_in_bytes) for each in some)
            advance(done, len(manifests))
    return found


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


# Which of the files that no snapshot names may be deleted. Pure.


@dataclass(frozen=True)
class TableBounds:
    """How far a table is, for one pipeline."""

    mark: Moment | None = None
    """The newest mark; the lowest of them, if there are several branches. None if a branch has no valid mark."""
    owner: int = 0
    """The epoch of the driver that has the pipeline now."""

    def passed(self, at: Moment) -> bool:
        """Whether the table is past that batch, so that nothing of it can be committed any more."""
        return self.mark is not None and at <= self.mark

    def dead(self, at: Moment, age: timedelta, limit: timedelta) -> bool:
        """Whether a file that no snapshot names may be deleted."""
        return self.passed(at) or (at[0] < self.owner and age > limit)


def bounds(metadata: TableMetadata, pipeline: str, branch: str, ledger_epoch: int | None = None) -> TableBounds:
    """From the marks of the pipeline's branch, and of others that it works on: those have a copy of the mark.

    `ledger_epoch`: the epoch in the ledger, if that is not the table.
    """
    others = [
        name
        for name, ref in metadata.refs.items()
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH
        and name != branch
        and copy_name(pipeline, name) in metadata.properties
    ]
    views = [own_view(metadata, pipeline, name) for name in (branch, *others)]
    marks = [(view.mark.state.epoch, view.mark.batch) for view in views if view.mark is not None]
    owners = [view.last.state.epoch if view.last is not None else 0 for view in views]
    if ledger_epoch is not None:
        owners[0] = ledger_epoch
    return TableBounds(min(marks) if len(marks) == len(views) else None, min(owners))


def moment_of(name: str, pipeline: str) -> Moment | None:
    """The epoch and batch in which the pipeline wrote a file of this name; None for files of others."""
    origin = origin_of(name) if name.startswith(f"landonce-{pipeline}-e") else None
    return (origin.epoch, origin.batch) if origin is not None and origin.pipeline == pipeline else None


@dataclass(frozen=True)
class Orphans:
    """The pipeline's files that no snapshot names."""

    dead: tuple[FoundFile, ...] = ()
    waiting: tuple[FoundFile, ...] = ()
    """Perhaps in flight."""


def orphans(
    found: Iterable[FoundFile], named: Collection[str], pipeline: str, at: TableBounds, now: datetime, limit: timedelta
) -> Orphans:
    """Sorts the files that were listed. `named`: the names of all files of all snapshots, wherever they are."""
    dead: list[FoundFile] = []
    waiting: list[FoundFile] = []
    for each in found:
        moment = moment_of(each.name, pipeline)
        if moment is None or each.name in named:
            continue
        (dead if at.dead(moment, now - each.modified, limit) else waiting).append(each)
    return Orphans(tuple(dead), tuple(waiting))


def dead_stages(metadata: TableMetadata, pipeline: str, at: TableBounds) -> tuple[str, ...]:
    """Staging branches of the pipeline that will never be published. Like files, their names state epoch and batch."""
    whose = ((name, of) for name in sorted(metadata.refs) if (of := stage_of(name)) is not None)
    return tuple(name for name, of in whose if of.pipeline == pipeline and at.passed((of.epoch, of.batch)))
