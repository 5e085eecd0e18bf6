"""One snapshot of a branch, pinned: its live files as in its manifests, and which files they register twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from landonce.errors import TableUnfit
from landonce.verify.held.port import Reference

_LISTED = 10


@dataclass(frozen=True)
class LiveFile:
    """An entry of a manifest that counts in the snapshot."""

    file: DataFile
    sequence: int
    reference: Reference


@dataclass(frozen=True)
class Files:
    """All live entries of a snapshot."""

    data: tuple[LiveFile, ...] = ()
    deletes: tuple[LiveFile, ...] = ()

    def doubled(self) -> dict[str, tuple[Reference, ...]]:
        """Data files that more than one live entry registers, and these entries."""
        found: dict[str, list[Reference]] = defaultdict(list)
        for each in self.data:
            found[each.file.file_path].append(each.reference)
        return {path: tuple(them) for path, them in sorted(found.items()) if len(them) > 1}


def pinned(table: Table, branch: str) -> Snapshot | None:
    """The branch's newest snapshot; None if there is none, or no such branch."""
    reference = table.metadata.refs.get(branch)
    return table.metadata.snapshot_by_id(reference.snapshot_id) if reference is not None else None


def live_files(table: Table, snapshot: Snapshot) -> Files:
    """Every manifest of the snapshot, read once."""
    times = {each.snapshot_id: commit_time(each) for each in table.metadata.snapshots}
    data: list[LiveFile] = []
    deletes: list[LiveFile] = []
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            by = entry.snapshot_id or manifest.added_snapshot_id or 0
            live = LiveFile(
                entry.data_file, entry.sequence_number or 0, Reference(by, times.get(by), manifest.manifest_path)
            )
            (data if entry.data_file.content == DataFileContent.DATA else deletes).append(live)
    _refuse_equality(table, deletes)
    return Files(tuple(data), tuple(deletes))


def _refuse_equality(table: Table, deletes: Iterable[LiveFile]) -> None:
    found = [each for each in deletes if each.file.content == DataFileContent.EQUALITY_DELETES]
    if found:
        raise TableUnfit(
            f"{'.'.join(table.name())} has {len(found)} equality delete files, the first of them added by snapshot "
            f"{found[0].reference.snapshot}: landonce writes none and cannot read them, so it does not know which rows count.",
            safe="An audit changes nothing.",
            command="rewrite the table's data files with the deletes applied (Spark: rewrite_data_files), then verify again",
        )


def rolled_back(table: Table, branch: str) -> tuple[Snapshot, ...]:
    """Snapshots that were the head of `main` and are no longer in its history. Other branches have no log."""
    head = pinned(table, branch)
    if branch != MAIN_BRANCH or head is None:
        return ()
    history = {each.snapshot_id for each in ancestors_of(head, table.metadata)}
    known = {each.snapshot_id: each for each in table.metadata.snapshots}
    were = dict.fromkeys(each.snapshot_id for each in table.metadata.snapshot_log)
    return tuple(known[each] for each in were if each in known and each not in history)


def commit_time(snapshot: Snapshot) -> str:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")


def described(snapshots: Iterable[Snapshot]) -> str:
    """The text for some snapshots: ids and commit times."""
    listed = [f"{each.snapshot_id} ({commit_time(each)})" for each in snapshots]
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return ", ".join(listed[:_LISTED]) + more
