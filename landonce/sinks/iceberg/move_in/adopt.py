"""What the previous writer of a table left in its snapshots, and a pipeline's first position, from where that writer stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Protocol

from pyiceberg.table import Table

from landonce.errors import ImportRefused, PartitionVanished, PositionBeyondEnd
from landonce.protocol.ledger import LedgerState, bound, taken
from landonce.protocol.operate.decision import Decision, listed, refused
from landonce.protocol.ranges import Partition
from landonce.protocol.source import SourceView, Start, StartAt, bind
from landonce.sinks.iceberg.commit import Attempt, IcebergTable
from landonce.sinks.iceberg.marks import ancestry, is_first, summary_of
from landonce.sinks.iceberg.sink import IcebergSink, catalog_exists, table_names
from landonce.sinks.iceberg.table import live_files
from landonce.sinks.snapshot import TableLedger

if TYPE_CHECKING:
    from landonce.sinks.iceberg.operations import IcebergOperations

_TWICE = "If the tables hold records of these topics already, those land twice."
_FROM_HERE = (
    "Rows from before these offsets are not landonce's: `landonce verify` does not judge them, and a rollback to before this "
    "import does not bring them back."
)
_NEVER_AGAIN = "If {writer} is started again, records land twice."
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
class WriterCommits:
    """Where a writer stopped. Two of these are equal only if nothing happened in between."""

    writer: str
    commits: tuple[LastCommit, ...]
    positions: tuple[tuple[Partition, int], ...]
    """The next offset of each partition that it ever delivered from."""
    notes: tuple[str, ...] = ()
    """What else an operator should know."""
    seen: tuple[object, ...] = ()
    """Values that would have changed if the writer had gone on."""


class Writer(Protocol):
    """The previous writer of the pipeline's tables."""

    def look(self) -> WriterCommits:
        """Where it stopped. Raises `ImportRefused` if it still runs, or if its position is not certain."""

    def last_commit(self, name: str, table: Table) -> LastCommit | None:
        """Its newest commit to the table as it is now."""


def same_topics(writer: str, read: frozenset[str], wanted: frozenset[str]) -> None:
    """Raises unless the writer and the pipeline read the same topics."""
    more, less = (", ".join(map(repr, sorted(each))) for each in (read - wanted, wanted - read))
    if more:
        raise refused(
            f"{writer} reads {more} too, which the pipeline file does not name: those records would land nowhere from now on.",
            "name all of its topics in {file}. Of a connector that does not read one any more: delete its group's offsets there",
        )
    if less:
        raise refused(
            f"{writer} does not read {less}, which the pipeline file names.",
            "take the topic out of {file}, import, then add it again: it begins as a new topic does",
        )


def histories(sink: IcebergSink, says: Says) -> tuple[History, ...]:
    """The history of every table of the pipeline that exists. A table whose name fits the template, and that the writer never
    committed to, is somebody else's."""
    found = []
    for name in table_names(sink, None) if catalog_exists(sink) else ():
        table = sink.place(name).find()
        if table is not None:
            history = history_of(table, name, sink.config.branch, says)
            found.append(history if name in sink.static or history.last is not None else History(name))
    if not found:
        raise refused(f"the catalog has no table of {sink}.", "check `catalog` and `table` in {file}")
    return tuple(found)


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
    """The files that never came into the table; empty if they may have been there and were rewritten since: the history is not
    complete, or something in it removed a file."""
    snapshots = tuple(ancestry(table.metadata, branch))
    removing = any("deleted-data-files" in summary_of(each) for each in snapshots)
    head = table.metadata.snapshot_by_name(branch)
    if head is None or not is_first(snapshots[-1]) or removing:
        return frozenset()
    return files - {each.data_file.file_path for each in live_files(table, branch)} if files else files


def adopt(state: LedgerState, found: WriterCommits, view: SourceView, owner: str) -> Decision:
    """Binds the ledger to the cluster and the topics as they are, at the offsets that were found.

    The pipeline never reads, verifies or delivers what is before them.
    """
    extents, positions = dict(view.extents), dict(found.positions)
    for partition, at in sorted(positions.items()):
        extent = extents.get(partition)
        if extent is None:
            raise PartitionVanished(
                f"{found.writer} stopped at offset {at} of {partition}, and the topic does not have that partition.",
                safe="Nothing was changed.",
                command="correct `source.kafka` in {file}: this is not the topic that was read",
            )
        if at > extent.stable_end:
            raise PositionBeyondEnd(
                f"{found.writer} stopped at offset {at} of {partition}, which ends at {extent.stable_end}.",
                safe="Nothing was changed.",
                command="correct `source.kafka` in {file}: the topic was created again, or is another one. If a producer's transaction "
                "is open, wait for its end",
            )
    firsts = {partition: positions.get(partition, extent.start) for partition, extent in view.extents}
    new = bound(taken(state, owner), view.cluster_id, dict(view.topic_ids), firsts)
    does = [f"{state.pipeline} goes on where {found.writer} stopped, by its last commit in {listed(found.commits)}."]
    for partition, first in firsts.items():
        lag = max(0, extents[partition].stable_end - first)
        untouched = "" if partition in positions else "; nothing was delivered from it yet"
        does.append(f"{partition}: next offset {first}, lag {lag}{untouched}")
    costs = list(found.notes)
    gone = [(each, first, extents[each].start) for each, first in firsts.items() if extents[each].start > first]
    if gone:
        ranges = listed(f"{each} [{first}, {start})" for each, first, start in gone)
        costs.append(
            f"Kafka deleted {ranges} before anyone read it: the next start halts until `landonce state accept-gap` says so."
        )
    costs += [_FROM_HERE, _NEVER_AGAIN.format(writer=found.writer)]
    return Decision("import", new, tuple(does), tuple(costs))


def beside(state: LedgerState, view: SourceView, owner: str, start: Start | StartAt) -> Decision:
    """Binds the ledger where a new pipeline begins: the previous writer brought other topics into the tables."""
    binding = bind(state, view, start)
    new = bound(taken(state, owner), binding.cluster_id, binding.topic_ids, binding.added)
    extents = dict(view.extents)
    does = (
        f"{state.pipeline} begins as a new pipeline does, beside the previous writer of its tables.",
        *(f"{each}: next offset {at}, lag {extents[each].stable_end - at}" for each, at in binding.added.items()),
    )
    return Decision("import", new, does, (_TWICE,))


@dataclass(frozen=True)
class IcebergImport:
    """The position of another writer of the table, found and not yet written."""

    operations: IcebergOperations
    writer: Writer | None
    state: LedgerState
    found: WriterCommits | None
    decision: Decision

    def adopt(self) -> None:
        """Checks, on the metadata that each attempt is made against, that the writer did not commit once more."""
        parts, writer, found = self.operations.parts, self.writer, self.found
        with self.operations.committing() as place:
            if writer is not None and found is not None and writer.look() != found:
                raise _went_on(found)
            if not isinstance(parts.ledger, TableLedger):
                parts.ledger.create(self.state)
                parts.ledger.change(self.state, self.decision.new, self.decision.note())
                return
            mine = place(self.operations.sink.static[0])

            def only_if_stopped(table: Table, summary: Mapping[str, str], properties: Mapping[str, str]) -> Attempt:
                last = writer.last_commit(mine.identifier, table) if writer is not None else None
                if found is not None and (last,) != found.commits:
                    raise _went_on(found)
                return mine.empty(table, summary, properties)

            parts.ledger.table = IcebergTable(mine, lambda _: only_if_stopped)
            parts.ledger.commit(self.state, self.decision.new, note=self.decision.note())


def _went_on(found: WriterCommits) -> ImportRefused:
    return refused(f"{found.writer} went on while this was decided.", "stop it, then import")
