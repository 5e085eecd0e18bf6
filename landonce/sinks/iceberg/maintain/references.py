"""What snapshots name: manifests, and the files in them. Every manifest is read once, however many snapshots share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from landonce.config.secrets import redact
from landonce.errors import TargetUnavailable

_AT_ONCE = 8

Advance = Callable[[int, int], None]
"""Is told how many manifests were read, and of how many."""


@dataclass(frozen=True)
class Files:
    """Paths with their sizes; a manifest list says nothing of its own."""

    data: dict[str, int] = field(default_factory=dict)
    """Data and delete files that are alive."""
    metadata: dict[str, int] = field(default_factory=dict)
    """Manifests, manifest lists and statistics."""

    def names(self) -> set[str]:
        """Of the data files, without their folders."""
        return {path.rpartition("/")[2] for path in self.data}


def files_of(io: FileIO, metadata: TableMetadata, advance: Advance = lambda _done, _all: None) -> Files:
    """Everything that the snapshots of the metadata name. Raises if any of it cannot be read: half an answer is none."""
    try:
        manifests = _manifests(io, metadata.snapshots)
        return Files(_alive(io, manifests.values(), advance), _named(metadata, metadata.snapshots, manifests))
    except (OSError, ValueError) as error:
        raise TargetUnavailable(f"the table's manifests cannot be read: {redact(str(error))}") from None


def files_only_in(io: FileIO, before: TableMetadata, gone: Iterable[int], after: Files) -> Files:
    """What snapshots that expired named, and those that are left do not.

    Where their manifests are gone already, since a cleaning was cut short, there is nothing left to find through them.
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
        metadata |= _named(before, [snapshot], own)
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


def _named(
    metadata: TableMetadata, snapshots: Iterable[Snapshot], manifests: dict[str, ManifestFile]
) -> dict[str, int]:
    ids = {each.snapshot_id for each in snapshots}
    statistics = (*metadata.statistics, *metadata.partition_statistics)
    return {
        **{path: each.manifest_length for path, each in manifests.items()},
        **{each.manifest_list: 0 for each in snapshots},
        **{each.statistics_path: each.file_size_in_bytes for each in statistics if each.snapshot_id in ids},
    }
