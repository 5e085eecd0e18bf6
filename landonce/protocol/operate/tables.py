"""What may be decided about the tables of a fan-out, and about a table that is its own ledger. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from landonce.errors import NothingToDo
from landonce.protocol.ledger import LedgerState, Position, TableMark, taken
from landonce.protocol.marks import Mark, TableView, adopted
from landonce.protocol.operate.decision import Decision, Restated, listed
from landonce.protocol.ranges import Partition, Range, span_of
from landonce.protocol.source import SourceView


def known_state(state: LedgerState, views: Iterable[TableView]) -> LedgerState:
    """What the ledger says, or, where it is new because an old one was lost, what the tables' marks do.

    One that was never bound does not become so by a decision: nothing of what the tables hold would be recognised.
    """
    if not state.fresh:
        return state
    found = adopted(state, views)
    if found is None:
        raise NothingToDo(
            f"pipeline {state.pipeline!r} has no position yet, and none of its tables holds one.",
            safe="Nothing was changed.",
            command="landonce run {file}",
        )
    return found


def accept_own_position(state: LedgerState, copy: Mark, owner: str) -> Decision:
    """The one table counts as being where the copy of its last mark says. `state` is what follows from that."""
    return Decision("accept-position", taken(state, owner), (_counts("The table", copy),), (_IF_NOT,))


def accept_position(state: LedgerState, copies: Sequence[tuple[TableView, Mark]], owner: str) -> Decision:
    """Each of these tables counts as being where the copy of its last mark says."""
    if not copies:
        raise nothing_uncertain()
    known = {view.table: _vouched(state, view, copy) for view, copy in copies}
    new = replace(taken(state, owner), tables=tuple(sorted({**dict(state.tables), **known}.items())))
    marks = tuple(Restated(view, _taken_over(copy, new)) for view, copy in copies)
    return Decision(
        "accept-position", new, tuple(_counts(view.table, copy) for view, copy in copies), (_IF_NOT,), marks=marks
    )


def accept_own_rows(state: LedgerState, tops: Mapping[Partition, int], owner: str) -> Decision:
    """The one table counts as being where its last rows are. As after a rollback, the next mark carries a new batch's number."""
    back = replace(state, positions=_by_rows(state, tops), batch=state.batch + 1)
    return Decision("accept-position", taken(back, owner), (_ends("The table", back),), (_again(back, state),))


def accept_rows(
    state: LedgerState, found: Sequence[tuple[TableView, Mark, Mapping[Partition, int]]], owner: str
) -> Decision:
    """Each of these tables counts as being where its last rows are: it is behind, and gets what it lacks."""
    if not found:
        raise nothing_uncertain()
    known = {view.table: _vouched(state, view, copy) for view, copy, _ in found}
    new = replace(taken(state, owner), tables=tuple(sorted({**dict(state.tables), **known}.items())))
    marks, does, costs = [], [], []
    for view, copy, tops in found:
        back = replace(copy.state, positions=_by_rows(copy.state, tops))
        mark = replace(_taken_over(replace(copy, state=back), new), behind=True, tops=tuple(sorted(tops.items())))
        marks.append(Restated(view, mark))
        does.append(_ends(view.table, back))
        costs.append(_again(back, state))
    return Decision("accept-position", new, tuple(does), tuple(costs), marks=tuple(marks))


def _by_rows(state: LedgerState, tops: Mapping[Partition, int]) -> tuple[tuple[Partition, Position], ...]:
    return tuple(
        (each, replace(at, committed=max(at.first, tops[each] + 1) if each in tops else at.first))
        for each, at in state.positions
    )


def _ends(table: str, back: LedgerState) -> str:
    positions = listed(f"{partition} at {at}" for partition, at in back.committed().items())
    return f"{table} counts as holding everything up to its last rows, and nothing after them: {positions}."


def _again(back: LedgerState, state: LedgerState) -> str:
    now = state.committed()
    lacks = [Range(each, at, now[each]) for each, at in back.committed().items() if at < now.get(each, at)]
    again = f"at most {span_of(lacks)} records, {listed(lacks)}" if lacks else "nothing"
    return f"Delivered again: {again}. Rows at the end that somebody deleted on purpose come back."


_IF_NOT = (
    "If it was rolled back before its snapshots expired, what the rollback removed never comes back: use --by-rows in "
    "that case. `landonce verify` shows afterwards what is missing."
)


def nothing_uncertain() -> NothingToDo:
    return NothingToDo(
        "the table's position is not in doubt.",
        safe="Nothing was changed.",
        command="landonce run {file}",
    )


def _vouched(state: LedgerState, view: TableView, copy: Mark) -> TableMark:
    """Where the ledger knows a later batch than the copy, the table missed some: it stays behind."""
    known = dict(state.tables).get(view.table, TableMark(view.uuid, 0))
    if known.uuid != view.uuid:
        raise NothingToDo(
            f"the table {view.table} was dropped and created again, so the last commit to the old one says nothing "
            "about it.",
            safe="Nothing was changed.",
            command=f"landonce state forget-table {{file}} {view.table}",
        )
    return TableMark(view.uuid, max(known.batch, copy.batch))


def _counts(table: str, copy: Mark) -> str:
    positions = listed(f"{partition} at {at}" for partition, at in copy.state.committed().items())
    return f"{table} counts as holding all of batch {copy.batch}, its last one, and all before it: {positions}."


def _taken_over(copy: Mark, new: LedgerState) -> Mark:
    """The same position, under the operator's name."""
    state = replace(copy.state, epoch=new.epoch, owner=new.owner, version=new.version, lineage=new.lineage)
    return replace(copy, state=state, snapshot=0)


def forget_table(
    state: LedgerState, view: TableView, owner: str, *, replay: bool = False, source: SourceView | None = None
) -> Decision:
    """Another table of that name, or none, takes the place of the one that the ledger knows.

    It gets new records only, or (`replay`) everything that it lacks. One that carries marks of this pipeline, because it
    was restored, lacks what lies above its own position.
    """
    known = dict(state.tables).get(view.table)
    if known is None:
        raise NothingToDo(
            f"the ledger knows no table {view.table}; it knows {listed(table for table, _ in state.tables) or 'none'}.",
            safe="Nothing was changed.",
        )
    if known.uuid == view.uuid:
        raise NothingToDo(
            f"the table {view.table} is still the one that the ledger knows.",
            safe="Nothing was changed.",
            command="landonce run {file}",
        )
    if replay and not view.uuid:
        raise NothingToDo(
            f"the table {view.table} does not exist, so there is nothing to fill.",
            safe="Nothing was changed.",
            command=f"create the table, then: landonce state forget-table {{file}} {view.table} --replay",
        )
    tables = {table: mark for table, mark in state.tables if table != view.table}
    if view.uuid and (replay or view.mark is not None):
        carried = view.mark.batch if view.mark is not None else 0
        tables[view.table] = TableMark(view.uuid, max(state.batch, carried) if replay else carried)
    new = replace(taken(state, owner), tables=tuple(sorted(tables.items())))
    if not view.uuid:
        instead = f"A table {view.table} that is created later gets the records from then on."
    elif replay:
        filled = f"is filled up from {'its own position' if view.mark else 'the first offset'} on"
        instead = f"The table {view.table} that exists now ({view.uuid}) {filled}."
    else:
        instead = f"The table {view.table} that exists now ({view.uuid}) gets new records only."
    does = (f"The table {view.table} ({known.uuid}) is forgotten.", instead)
    return Decision("forget-table", new, does, _cost(state, view, source, replay=replay))


def _cost(state: LedgerState, view: TableView, source: SourceView | None, *, replay: bool) -> tuple[str, ...]:
    if not replay:
        return ("What the old table held is delivered to no other one.",)
    floors = view.mark.state.committed() if view.mark is not None else {}
    lacks = [
        Range(partition, floor, at.committed)
        for partition, at in state.positions
        if (floor := floors.get(partition, at.first)) < at.committed
    ]
    extents = dict(source.extents) if source is not None else {}
    gone = [each for each in lacks if each.partition in extents and extents[each.partition].start > each.first]
    costs = [f"At most {span_of(lacks)} records are read again, for this table alone: {listed(lacks)}."]
    if gone:
        costs.append(
            f"Kafka has deleted the beginning of {listed(each.partition for each in gone)}: the next start halts until "
            "`landonce state accept-gap` says that this part is given up."
        )
    return tuple(costs)
