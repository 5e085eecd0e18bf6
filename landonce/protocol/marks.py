"""Marks: what a table says of the pipeline, and what that means for the next commit to it. Pure.

A mark is written in the same atomic commit as the rows, so it is the truth about its table: everything below its position
that is meant for the table is in it, once. The ledger of a fan-out only says how far the pipeline is as a whole.

    mark of the table            ledger says             then
    ───────────────────────────  ──────────────────────  ────────────────────────────────────────────────────────────
    of the batch it knows        that batch              in step: takes what is new (an idle table's mark is old, and
                                                         right: nothing was meant for it since)
    of a later batch             an earlier one, or      committed and not recorded (a crash), or the ledger is stale:
                                 nothing                 what lies below the mark's position is there already
    of an earlier batch, none    a later one             rolled back: it takes nothing new until the removed ranges
                                                         were delivered again
    none that counts             a table                 its history expired with the mark: nobody can tell how far it is
    another table by that name   a table                 dropped and made again: nobody but a person knows what to do
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from landonce import errors
from landonce.errors import PositionUncertain, TableReplaced
from landonce.protocol.blocks import Kind, Plan
from landonce.protocol.ledger import LedgerState, Position, TableMark
from landonce.protocol.ranges import Partition, Range

Floors = tuple[tuple[Partition, int], ...]


@dataclass(frozen=True)
class Mark:
    """The pipeline's state as one commit wrote it into one table."""

    state: LedgerState
    started: Floors = ()
    """Where the pipeline as a whole stood before the batch of this commit."""
    behind: bool = False
    """The table was rolled back and is being filled up again: its position is its own, below the ledger's."""
    snapshot: int = 0
    letters: tuple[str, ...] = ()
    """The dead-letter files of the batch. They count from this commit on."""
    letters_in: str = ""
    """Their folder."""
    tops: Floors = ()
    """The last row that the table got in each partition: what shows, once snapshots have expired, that this commit is in it."""
    commit: str = ""
    """The id of the attempt that became this commit. Empty where the sink gives none."""

    @property
    def batch(self) -> int:
        return self.state.batch


@dataclass(frozen=True)
class TableView:
    """One table as it is now. `latest` is the last batch that it ever carried a mark of, in whatever snapshot."""

    table: str
    uuid: str = ""
    """Empty if the table is not there."""
    mark: Mark | None = None
    latest: int = 0
    uncertain: bool = False
    """The history that held the mark is gone, and nothing shows whether its commit is part of what is left."""

    @property
    def batch(self) -> int:
        return max(self.latest, self.mark.batch if self.mark is not None else 0)

    def holds(self, batch: int) -> bool:
        """Whether this was the last batch that it got."""
        return self.mark is not None and self.mark.batch == batch


class Verdict(str, Enum):
    """What an attempt to commit may do, judged on the very metadata that the attempt is made against."""

    GO = "go"
    DONE = "done"
    """This commit is there already: its answer was lost."""
    MOVED = "moved"
    """The table's mark is not the one that the rows were written for."""
    FENCED = "fenced"
    """Somebody else took the table that is the ledger."""


@dataclass(frozen=True)
class TableStatus:
    """What the next commit to a table may hold: rows at or above `floors`, or nothing while it is `behind`."""

    view: TableView
    floors: Floors = ()
    behind: bool = False


def status_of(ledger: LedgerState, view: TableView) -> TableStatus:
    """Compares a table with the ledger."""
    known = dict(ledger.tables).get(view.table)
    if known is not None:
        _same_table(view, known)
    if view.uncertain:
        raise PositionUncertain(
            f"the history of {view.table} is cut off, and the mark of its last batch, {view.latest}, with it. Either "
            "snapshots expired, or the table was rolled back and then snapshots expired: landonce cannot tell which.",
            safe="Nothing was written.",
            command=f"`landonce state accept-position {{file}} {view.table} --by-rows` delivers again what the table's "
            "rows lack. Without --by-rows, the last commit counts as present",
        )
    mark, last = view.mark, max(known.batch if known else 0, view.latest)
    if mark is None and last == 0:
        return TableStatus(view)
    if mark is None:
        return TableStatus(view, tuple((each, at.first) for each, at in ledger.positions), behind=True)
    floors = _floors(ledger, mark)
    if mark.batch < last or mark.behind:
        return TableStatus(view, floors, behind=True)
    committed = ledger.committed()
    in_step = known is not None and mark.batch == known.batch and all(at <= committed[each] for each, at in floors)
    return TableStatus(view) if in_step else TableStatus(view, floors)


def verdict(expected: TableView, seen: TableView, after: LedgerState) -> Verdict:
    """May a commit that ends in `after` be made to a table that is `seen` so, where it was planned for one as `expected`?

    Epochs are not compared: a newer driver that committed left another mark, and one that did not has lost nothing by it.
    """
    if seen.uuid != expected.uuid or seen.uncertain:
        return Verdict.MOVED
    last = seen.mark.state if seen.mark is not None else None
    if last is not None and (last.owner, last.batch) == (after.owner, after.batch):
        return Verdict.DONE
    same = _snapshot(seen) == _snapshot(expected) and seen.latest == expected.latest
    return Verdict.GO if same else Verdict.MOVED


def _snapshot(view: TableView) -> int | None:
    return view.mark.snapshot if view.mark is not None else None


def behind_ranges(ledger: LedgerState, statuses: Iterable[TableStatus]) -> tuple[Range, ...]:
    """What is to be read again: from the lowest position of a table that is behind, up to the ledger's."""
    lowest: dict[Partition, int] = {}
    for each in statuses:
        for partition, floor in each.floors if each.behind else ():
            lowest[partition] = min(floor, lowest.get(partition, floor))
    return tuple(
        Range(partition, lowest[partition], committed)
        for partition, committed in ledger.committed().items()
        if lowest.get(partition, committed) < committed
    )


def takes_part(kind: Kind, ranges: Iterable[Range], each: TableStatus) -> bool:
    """New offsets go to the tables that are in step, offsets that are delivered again to those that are behind.

    A table that is behind must not get new rows, nor rows beyond its own position: its mark would then cover ranges that it
    lacks.
    """
    if kind is not Kind.REPLAY:
        return not each.behind
    floors, lowest = dict(each.floors), _lowest(ranges)
    return each.behind and all(first <= floors.get(partition, first) for partition, first in lowest.items())


def _lowest(ranges: Iterable[Range]) -> dict[Partition, int]:
    lowest: dict[Partition, int] = {}
    for each in ranges:
        lowest[each.partition] = min(each.first, lowest.get(each.partition, each.first))
    return lowest


def mark_for(plan: Plan, after: LedgerState, each: TableStatus, started: Floors, tops: Floors = ()) -> Mark:
    """What a commit says of its table. One that is behind or ahead has a position of its own."""
    ends, floors, replay = plan.ends(), dict(each.floors), plan.kind is Kind.REPLAY
    if replay:
        lowest = _lowest(piece for block in plan.blocks for piece in block.ranges)
        started = tuple((partition, min(at, lowest.get(partition, at))) for partition, at in started)
    positions = []
    for partition, position in after.positions:
        floor = floors.get(partition, position.committed)
        reached = min(position.committed, ends.get(partition, 0)) if replay else position.committed
        positions.append((partition, Position(position.first, max(floor, reached))))
    own = replace(after, positions=tuple(positions), tables=())
    whole = after.committed()
    behind = replay and any(at < whole[partition] for partition, at in own.committed().items())
    return Mark(own, started, behind, tops=raised(each.view.mark, after, tops))


def raised(before: Mark | None, after: LedgerState, tops: Floors = ()) -> Floors:
    """The last rows of a table, once these were added. Those of a topic that was rebased mean nothing any more, and those at or
    above the position are not in the table: an operator set it back."""
    kept, ends = dict(before.tops) if before is not None else {}, after.committed()
    same = {
        each: at for each, at in kept.items() if before and same_offsets(after, before, each) and at < ends.get(each, 0)
    }
    return tuple(sorted({**same, **dict(tops)}.items()))


def learnt(ledger: LedgerState, plan: Plan, statuses: Iterable[TableStatus]) -> dict[str, TableMark]:
    """What the ledger learns of the tables when the plan is recorded.

    One that carries a later batch than it knows was committed to. One that was left out of new offsets because it was
    behind is from now on behind this plan too, whatever becomes of its mark.
    """
    before = {table: known.batch for table, known in ledger.tables}
    found = {}
    for each in statuses:
        view = each.view
        if each.behind and plan.kind is not Kind.REPLAY:
            found[view.table] = TableMark(view.uuid, plan.batch)
        elif view.mark is not None and view.mark.batch >= max(view.latest, before.get(view.table, 0) + 1):
            found[view.table] = TableMark(view.uuid, view.mark.batch)
    return found


def adopted(fresh: LedgerState, views: Iterable[TableView]) -> LedgerState | None:
    """What a new ledger can know from its tables' marks; None if there is none.

    A batch begins only once the one before it is recorded, so where the newest batch began, everything is done in all
    tables. That batch itself is delivered again, and every table leaves out what it has.
    """
    marks = [view for view in views if view.mark is not None]
    if not marks:
        return None
    newest = max(marks, key=lambda view: view.mark.batch if view.mark else 0)
    assert newest.mark is not None
    last, started = newest.mark.state, dict(newest.mark.started)
    positions = tuple(
        (partition, Position(position.first, started.get(partition, position.first)))
        for partition, position in last.positions
    )
    known = {
        view.table: TableMark(view.uuid, min(view.mark.batch, last.batch - 1))
        for view in marks
        if view.mark is not None
    }
    return replace(
        fresh,
        epoch=max(fresh.epoch, past_epochs(marks)),
        version=fresh.version + 1,
        cluster_id=last.cluster_id,
        topic_ids=last.topic_ids,
        labels=last.labels,
        positions=positions,
        batch=last.batch,
        totals=last.totals,
        lately=last.lately,
        tables=tuple(sorted(known.items())),
    )


def past_epochs(views: Iterable[TableView]) -> int:
    """An epoch past those of all marks, so that the files of two drivers always differ in it."""
    return max((view.mark.state.epoch + 1 for view in views if view.mark is not None), default=0)


def _same_table(view: TableView, known: TableMark) -> None:
    if not view.uuid:
        raise errors.TableReplaced(
            f"the table {view.table} no longer exists.",
            safe="Nothing was written. What it held is not delivered anywhere else.",
            command="restore the table, or `landonce state forget-table {file} " + view.table + "`",
        )
    if view.uuid != known.uuid:
        raise errors.TableReplaced(
            f"the table {view.table} was dropped and created again: the ledger knows UUID {known.uuid}, and the table "
            f"now has UUID {view.uuid}.",
            safe="Nothing was written. What the old table held is not in the new one.",
            command="restore the old table, or `landonce state forget-table {file} " + view.table + "`",
        )


def _floors(ledger: LedgerState, mark: Mark) -> Floors:
    """The mark's position, where it speaks of the topics that the ledger means: the same ones, and not rebased since."""
    known = mark.state.committed()
    return tuple(
        (partition, known.get(partition, position.first) if same_offsets(ledger, mark, partition) else position.first)
        for partition, position in ledger.positions
    )


def same_offsets(ledger: LedgerState, mark: Mark, partition: Partition) -> bool:
    """Whether an offset is the same record in both: of the same topic, and not rebased since."""
    topic = partition.topic
    same_id = dict(ledger.topic_ids).get(topic) == dict(mark.state.topic_ids).get(topic)
    return same_id and ledger.labelled(partition) == mark.state.labelled(partition)


class TableState(str, Enum):
    """In one word or two."""

    UNTOUCHED = "untouched"
    """Nothing was committed to it yet, or it is not made yet."""
    IN_STEP = "in step"
    AHEAD = "ahead"
    BEHIND = "behind"
    UNCERTAIN = "uncertain"
    REPLACED = "replaced"
    MISSING = "missing"


@dataclass(frozen=True)
class MarkReport:
    """A table, what that means, and what goes on where a person is needed."""

    view: TableView
    status: TableState
    words: str
    command: str = ""
    lacks: tuple[Range, ...] = ()
    """What is delivered again to a table that is behind."""


def report_on(ledger: LedgerState, view: TableView) -> MarkReport:
    """As a start would find it."""
    try:
        found = status_of(ledger, view)
    except PositionUncertain as error:
        return MarkReport(view, TableState.UNCERTAIN, error.what, error.command)
    except TableReplaced as error:
        return MarkReport(view, TableState.REPLACED if view.uuid else TableState.MISSING, error.what, error.command)
    if found.behind:
        lacks = behind_ranges(ledger, [found])
        again = ", ".join(map(str, lacks)) or "nothing that was meant for it"
        return MarkReport(view, TableState.BEHIND, f"was rolled back; delivered to it again: {again}", lacks=lacks)
    if view.mark is None:
        there = "nothing was committed to it yet" if view.uuid else "is made once there is something for it"
        return MarkReport(view, TableState.UNTOUCHED, there)
    committed = ledger.committed()
    if any(at > committed[partition] for partition, at in found.floors):
        ahead = f"holds batch {view.mark.batch}, which is not recorded; it is not written again"
        return MarkReport(view, TableState.AHEAD, ahead)
    return MarkReport(view, TableState.IN_STEP, f"batch {view.mark.batch} is the last one that held anything for it")
