"""What the previous writer of a table left in its snapshots. Reads metadata only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from landonce.errors import ImportRefused
from landonce.protocol.ranges import Partition
from landonce.sinks.iceberg.marks import ancestry, is_first, summary_of
from landonce.sinks.iceberg.sink import IcebergSink, catalog_exists, table_names

Says = Callable[[Mapping[str, str]], str | None]
"""What a snapshot's summary says of the writer, if it made that snapshot."""


@dataclass(frozen=True)
class LastCommit:
    """The newest snapshot of the writer in one table."""

    table: str
    snapshot: int
    at: int
    """When it was committed, in milliseconds."""
    text: str
    """What its summary says of the writer's progress."""

    def __str__(self) -> str:
        moment = datetime.fromtimestamp(self.at / 1000, timezone.utc).isoformat(sep=" ", timespec="seconds")
        return f"{self.table}: snapshot {self.snapshot} of {moment}"


@dataclass(frozen=True)
class History:
    """What one table's branch says of a writer."""

    table: str
    last: LastCommit | None = None
    whole: bool = True
    """The history reaches back to the first snapshot, so a writer without a commit in it never committed."""


@dataclass(frozen=True)
class Found:
    """Where a writer stopped. Two of these are equal only if nothing happened in between."""

    writer: str
    commits: tuple[LastCommit, ...]
    positions: tuple[tuple[Partition, int], ...]
    """The next offset of each partition that it ever delivered from."""
    notes: tuple[str, ...] = ()
    """What else an operator should know."""
    seen: tuple[object, ...] = ()
    """Values that would have changed if the writer had gone on."""


def refused(what: str, command: str) -> ImportRefused:
    return ImportRefused(what, safe="Nothing was changed.", command=command)


def same_topics(writer: str, read: frozenset[str], wanted: frozenset[str]) -> None:
    """Raises unless the writer and the pipeline read the same topics."""
    if read - wanted:
        raise refused(
            f"{writer} reads {_list(read - wanted)} too, which the pipeline file does not name: those records would land "
            "nowhere from now on.",
            "name all of its topics in {file}. Of a connector that does not read one any more: delete its group's offsets there",
        )
    if wanted - read:
        raise refused(
            f"{writer} does not read {_list(wanted - read)}, which the pipeline file names.",
            "take the topic out of {file}, import, then add it again: it begins as a new topic does",
        )


def _list(names: frozenset[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def histories(sink: IcebergSink, says: Says) -> tuple[History, ...]:
    """The history of every table of the pipeline that exists."""
    names = table_names(sink, None) if catalog_exists(sink) else ()
    tables = ((name, sink.place(name).find()) for name in names)
    found = tuple(_history(sink, name, table, says) for name, table in tables if table is not None)
    if not found:
        raise refused(f"the catalog has no table of {sink}.", "check `catalog` and `table` in {file}")
    return found


def _history(sink: IcebergSink, name: str, table: Table, says: Says) -> History:
    """A table whose name fits the template, and that the writer never committed to, is somebody else's."""
    history = history_of(table, name, sink.config.branch, says)
    return history if history.table in sink.static or history.last is not None else History(history.table)


def history_of(table: Table, name: str, branch: str, says: Says) -> History:
    """The newest snapshot of the branch that the writer made."""
    oldest = None
    for snapshot in ancestry(table.metadata, branch):
        said = says(summary_of(snapshot))
        if said is not None:
            return History(name, LastCommit(name, snapshot.snapshot_id, snapshot.timestamp_ms, said))
        oldest = snapshot
    return History(name, whole=oldest is None or is_first(oldest))


def missing(table: Table, branch: str, files: frozenset[str]) -> frozenset[str]:
    """The files that never came into the table; empty if they may have been there and were rewritten since."""
    left = set(files)
    head = table.metadata.snapshot_by_name(branch)
    if not left or head is None or not _only_added(table.metadata, branch):
        return frozenset()
    for manifest in head.manifests(table.io):
        left -= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)}
        if not left:
            break
    return frozenset(left)


def _only_added(metadata: TableMetadata, branch: str) -> bool:
    """The history is complete, and nothing in it removed a file."""
    snapshots = tuple(ancestry(metadata, branch))
    removing = any("deleted-data-files" in summary_of(each) for each in snapshots)
    return bool(snapshots) and is_first(snapshots[-1]) and not removing


class Writer(Protocol):
    """The previous writer of the pipeline's tables."""

    def look(self) -> Found:
        """Where it stopped. Raises `ImportRefused` if it still runs, or if its position is not certain."""

    def last_commit(self, name: str, table: Table) -> LastCommit | None:
        """Its newest commit to the table as it is now."""
