"""A pipeline's first position, from where another writer stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from landonce.errors import PartitionVanished, PositionBeyondEnd
from landonce.protocol.ledger import LedgerState, bound, taken
from landonce.protocol.operate.decision import Decision, listed
from landonce.protocol.ranges import Partition
from landonce.protocol.source import Extent, SourceView, Start, bind
from landonce.sinks.iceberg.commit import Attempt
from landonce.sinks.iceberg.ledger import Build, IcebergTable, empty
from landonce.sinks.iceberg.move_in.history import Found, Writer, refused
from landonce.sinks.snapshot import TableLedger

if TYPE_CHECKING:
    from landonce.sinks.iceberg.operations import IcebergOperations

_TWICE = "If the tables hold records of these topics already, those land twice."
_FROM_HERE = (
    "Rows from before these offsets are not landonce's: `landonce verify` does not judge them, and a rollback to before this "
    "import does not bring them back."
)
_NEVER_AGAIN = "If {writer} is started again, records land twice."


def nothing_known(state: LedgerState | None, marked: str = "") -> None:
    """Raises if the pipeline has a position already. `marked`: a table that carries its mark."""
    if (state is None or state.fresh) and not marked:
        return
    where = f"the table {marked}" if marked else "its ledger"
    name = f"pipeline {state.pipeline!r}" if state is not None else "the pipeline"
    raise refused(
        f"{name} has a position already, in {where}.",
        "landonce run {file}   (it goes on from there), or give the pipeline another name in {file}",
    )


def adopt(state: LedgerState, found: Found, view: SourceView, owner: str) -> Decision:
    """Binds the ledger to the cluster and the topics as they are, at the offsets that were found.

    The pipeline never reads, verifies or delivers what is before them.
    """
    extents, positions = dict(view.extents), dict(found.positions)
    for partition, at in sorted(positions.items()):
        _there(found, partition, at, extents)
    firsts = {partition: positions.get(partition, extent.start) for partition, extent in view.extents}
    new = bound(taken(state, owner), view.cluster_id, dict(view.topic_ids), firsts)
    does = (
        f"{state.pipeline} goes on where {found.writer} stopped, by its last commit in {listed(found.commits)}.",
        *(
            _say(partition, first, extents[partition], known=partition in positions)
            for partition, first in firsts.items()
        ),
    )
    costs = (*found.notes, *_deleted(firsts, extents), _FROM_HERE, _NEVER_AGAIN.format(writer=found.writer))
    return Decision("import", new, does, costs)


def beside(state: LedgerState, view: SourceView, owner: str, start: Start) -> Decision:
    """Binds the ledger where a new pipeline begins: the previous writer brought other topics into the tables."""
    binding = bind(state, view, start)
    new = bound(taken(state, owner), binding.cluster_id, binding.topic_ids, binding.added)
    extents = dict(view.extents)
    does = (
        f"{state.pipeline} begins as a new pipeline does, beside the previous writer of its tables.",
        *(f"{each}: next offset {at}, lag {extents[each].stable_end - at}" for each, at in binding.added.items()),
    )
    return Decision("import", new, does, (_TWICE,))


def _there(found: Found, partition: Partition, at: int, extents: dict[Partition, Extent]) -> None:
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


def _say(partition: Partition, first: int, extent: Extent, *, known: bool) -> str:
    lag = f"lag {max(0, extent.stable_end - first)}"
    return f"{partition}: next offset {first}, {lag}" + ("" if known else "; nothing was delivered from it yet")


def _deleted(firsts: dict[Partition, int], extents: dict[Partition, Extent]) -> tuple[str, ...]:
    gone = [(each, first) for each, first in firsts.items() if extents[each].start > first]
    ranges = listed(f"{each} [{first}, {extents[each].start})" for each, first in gone)
    said = (
        f"Kafka deleted {ranges} before anyone read it: the next start halts until `landonce state accept-gap` says so."
    )
    return (said,) if gone else ()


@dataclass(frozen=True)
class IcebergImport:
    """The position of another writer of the table, found and not yet written."""

    operations: IcebergOperations
    writer: Writer | None
    state: LedgerState
    found: Found | None
    decision: Decision

    def adopt(self) -> None:
        parts, writer, found = self.operations.parts, self.writer, self.found
        with self.operations.committing() as place:
            if writer is not None and found is not None and writer.look() != found:
                raise _went_on(found)
            if not isinstance(parts.ledger, TableLedger):
                parts.ledger.create(self.state)
                parts.ledger.change(self.state, self.decision.new, self.decision.note())
                return
            mine = place(self.operations.sink.static[0])
            build = empty(mine)
            if writer is not None and found is not None:
                build = _only_if_stopped(build, mine.identifier, writer, found)
            parts.ledger.table = IcebergTable(mine, lambda _: build)
            parts.ledger.commit(self.state, self.decision.new, note=self.decision.note())


def _only_if_stopped(build: Build, name: str, writer: Writer, found: Found) -> Build:
    """Checks, on the metadata that each attempt is made against, that the writer did not commit once more."""

    def judged(table: Table, summary: Mapping[str, str], properties: Mapping[str, str]) -> Attempt:
        if (writer.last_commit(name, table),) != found.commits:
            raise _went_on(found)
        return build(table, summary, properties)

    return judged


def _went_on(found: Found) -> Exception:
    return refused(f"{found.writer} went on while this was decided.", "stop it, then import")
