"""What the previous writer of a table left in its snapshots. Reads metadata only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from landonce.errors import ImportRefused
from landonce.protocol.ranges import Partition
from landonce.sinks.iceberg.marks import ancestry, summary_of
from landonce.sinks.iceberg.sink import IcebergSink, catalog_exists, table_names

Says = Callable[[Mapping[str, str]], str | None]
"""What a snapshot's summary says of the writer, if it made that snapshot."""


@dataclass(frozen=True)
class LastCommit:
    """What the newest snapshot of that writer says in one table."""

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
    """It goes back to the first snapshot, so that a writer whom nothing is told of never committed."""


@dataclass(frozen=True)
class Found:
    """Where a writer stopped. Two of them are equal only if nothing happened in between."""

    writer: str
    commits: tuple[LastCommit, ...]
    positions: tuple[tuple[Partition, int], ...]
    """The next offset of each partition that it ever delivered from."""
    notes: tuple[str, ...] = ()
    """What else an operator should know."""
    seen: tuple[object, ...] = ()
    """What would have changed if the writer had gone on."""


def refused(what: str, command: str) -> ImportRefused:
    return ImportRefused(what, safe="Nothing was changed.", command=command)


def same_topics(writer: str, read: frozenset[str], wanted: frozenset[str]) -> None:
    """Every topic goes on, and no other one begins here."""
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
    """Of every table of the pipeline that is there."""
    tables = ((name, load(sink, name)) for name in _names(sink))
    found = tuple(
        _of_template(history_of(table, name, sink.config.branch, says), sink)
        for name, table in tables
        if table is not None
    )
    if not found:
        raise refused(f"the catalog has no table of {sink}.", "check `catalog` and `table` in {file}")
    return found


def _of_template(history: History, sink: IcebergSink) -> History:
    """A table that only has a fitting name, and that tells nothing, is somebody else's."""
    return history if history.table in sink.static or history.last is not None else History(history.table)


def _names(sink: IcebergSink) -> tuple[str, ...]:
    return table_names(sink, None) if catalog_exists(sink) else ()


def load(sink: IcebergSink, name: str) -> Table | None:
    return sink.place(name).find()


def history_of(table: Table, name: str, branch: str, says: Says) -> History:
    """The newest snapshot of the branch that the writer made."""
    oldest = None
    for snapshot in ancestry(table.metadata, branch):
        said = says(summary_of(snapshot))
        if said is not None:
            return History(name, LastCommit(name, snapshot.snapshot_id, snapshot.timestamp_ms, said))
        oldest = snapshot
    return History(name, whole=oldest is None or _first(oldest))


def missing(table: Table, branch: str, files: frozenset[str]) -> frozenset[str]:
    """Those of the files that never came into the table; none where they may have been, and were rewritten since."""
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
    """The whole history is there, and nothing in it removed a file."""
    snapshots = tuple(ancestry(metadata, branch))
    removing = any("deleted-data-files" in summary_of(each) for each in snapshots)
    return bool(snapshots) and _first(snapshots[-1]) and not removing


def _first(snapshot: Snapshot) -> bool:
    """Whether it is the table's first one. PyIceberg takes the parent away from a snapshot whose parent expires."""
    return snapshot.parent_snapshot_id is None and snapshot.sequence_number == 1


class Writer(Protocol):
    """Somebody who wrote the pipeline's tables before."""

    def look(self) -> Found:
        """Where it stopped. `ImportRefused` if it did not, or if that cannot be told."""

    def last_commit(self, name: str, table: Table) -> LastCommit | None:
        """Its newest commit to a table, as that is now."""
