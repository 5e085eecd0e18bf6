"""Going on behind records that Kafka deleted before they were read. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from landonce.errors import ClusterChanged, NothingToDo, TopicRecreated
from landonce.protocol.blocks import Plan
from landonce.protocol.ledger import LedgerState, Position, TableMark, taken
from landonce.protocol.letters import keep_letters
from landonce.protocol.marks import Mark, TableStatus, raised
from landonce.protocol.operate.decision import Decision, Restated, listed
from landonce.protocol.operate.rebase import bound_afresh, changed_topics
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import SourceView, Start

Starts = Mapping[Partition, int]


def accept_gap(
    state: LedgerState,
    view: SourceView,
    owner: str,
    statuses: Iterable[TableStatus] = (),
    landed: Collection[int] = frozenset(),
) -> Decision:
    """Positions move to the start of the topic where it is behind them; a pending plan keeps what is left of it.

    Blocks whose account is known (`landed`, by their numbers) are never read again, so they stay whole.
    A table of a fan-out that is behind (`statuses`) is filled up again from where the topics begin. A ledger that was never
    bound, because nobody knows what a lost one had delivered, is bound at the topics' starts.
    """
    keep_letters(state.pending)
    if state.fresh:
        return _accept_unbound(state, view, owner)
    same_source(state, view)
    starts = {partition: extent.start for partition, extent in view.extents}
    gaps = _gaps(state.committed().items(), starts)
    behind = [(each, _gaps(each.floors, starts)) for each in statuses if each.behind and _gaps(each.floors, starts)]
    pending = _cropped(state.pending, starts, landed) if state.pending else None
    if not gaps and not behind and pending == state.pending:
        raise NothingToDo("there is no gap: Kafka has deleted nothing that was not read.", safe="Nothing was changed.")
    new = replace(taken(state, owner), positions=_moved(state, starts), pending=pending)
    new = replace(new, tables=_known(new, (status for status, _ in behind)))
    return Decision(
        "accept-gap",
        new,
        (*_say(gaps), *_say_plan(state.pending, pending), *(_say_table(*each) for each in behind)),
        (
            *_cost(gaps),
            *(_cost_table(*each) for each in behind),
        ),
        gaps,
        tuple(Restated(status.view, _restated(new, status, starts)) for status, _ in behind),
    )


def _gaps(positions: Iterable[tuple[Partition, int]], starts: Starts) -> tuple[Range, ...]:
    return tuple(Range(each, at, starts[each]) for each, at in positions if starts.get(each, 0) > at)


def _moved(state: LedgerState, starts: Starts) -> tuple[tuple[Partition, Position], ...]:
    return tuple(
        (partition, replace(position, committed=max(position.committed, starts.get(partition, 0))))
        for partition, position in state.positions
    )


def _known(new: LedgerState, statuses: Iterable[TableStatus]) -> tuple[tuple[str, TableMark], ...]:
    """The ledger takes each table for one that carries its last batch, as the restated mark says."""
    known = {each.view.table: TableMark(each.view.uuid, _last(new, each)) for each in statuses}
    return tuple(sorted({**dict(new.tables), **known}.items()))


def _last(state: LedgerState, each: TableStatus) -> int:
    known = dict(state.tables).get(each.view.table)
    return max(each.view.batch, known.batch if known is not None else 0)


def _restated(new: LedgerState, each: TableStatus, starts: Starts) -> Mark:
    """The table's own position, as far as the topics still go back. No later mark can make it look rolled back again."""
    floors = dict(each.floors)
    positions = tuple(
        (partition, replace(position, committed=max(floors[partition], starts.get(partition, 0))))
        for partition, position in new.positions
    )
    own = replace(new, positions=positions, batch=_last(new, each), pending=None, tables=())
    whole = new.committed()
    behind = any(at < whole[partition] for partition, at in own.committed().items())
    return Mark(own, tuple(sorted(whole.items())), behind, tops=raised(each.view.mark, own))


def _cropped(plan: Plan, starts: Starts, landed: Collection[int]) -> Plan | None:
    """What is left of the plan's ranges, in the same order; None if nothing is.

    The deadline stays: the next driver waits it out before it writes a cropped block under its other token.
    """
    blocks = []
    for block in plan.blocks:
        ranges = tuple(
            Range(each.partition, max(each.first, starts.get(each.partition, 0)), each.end)
            for each in block.ranges
            if each.end > starts.get(each.partition, 0)
        )
        if block.number in landed:
            blocks.append(block)
        elif ranges:
            blocks.append(block if ranges == block.ranges else replace(block, ranges=ranges))
    return replace(plan, blocks=tuple(blocks)) if blocks else None


def _say(gaps: tuple[Range, ...]) -> tuple[str, ...]:
    return tuple(f"{gap.partition}: the position moves from {gap.first} to {gap.end}." for gap in gaps)


def _cost(gaps: tuple[Range, ...]) -> tuple[str, ...]:
    total = sum(gap.span for gap in gaps)
    said = f"At most {total} records in {len(gaps)} partition(s) will never be delivered, unless they landed before."
    return (said,) if gaps else ()


def _say_plan(old: Plan | None, new: Plan | None) -> tuple[str, ...]:
    if old is None:
        return ()
    if new is None:
        return (f"Batch {old.batch}, which is pending, is over: nothing of its ranges is left to read.",)
    if new == old:
        return (f"Batch {old.batch} is pending and not touched by this.",)
    return (f"Batch {old.batch}, which is pending, keeps what is left: {len(new.blocks)} of {len(old.blocks)} blocks.",)


def _say_table(status: TableStatus, gaps: tuple[Range, ...]) -> str:
    starts = listed(f"{each.partition} at {each.end}" for each in gaps)
    return f"{status.view.table}, which was rolled back, is filled up again from where the topics begin now: {starts}."


def _cost_table(status: TableStatus, gaps: tuple[Range, ...]) -> str:
    total = sum(each.span for each in gaps)
    return f"At most {total} records that the rollback removed from {status.view.table} never come back to it: {listed(gaps)}."


def _accept_unbound(state: LedgerState, view: SourceView, owner: str) -> Decision:
    new = replace(bound_afresh(taken(state, owner), view, Start.EARLIEST), version=state.version + 1)
    does = tuple(
        f"{partition}: the position is {extent.start}, where the topic begins." for partition, extent in view.extents
    )
    costs = ("What was deleted before these offsets and is not in the target will never be delivered.",)
    return Decision("accept-gap", new, does, costs)


def same_source(state: LedgerState, view: SourceView) -> None:
    """Offsets only mean something in the topic that the positions belong to."""
    if state.cluster_id != view.cluster_id:
        raise ClusterChanged(
            f"the ledger belongs to Kafka cluster {state.cluster_id}, and these brokers are cluster {view.cluster_id}.",
            safe="Nothing was changed. Offsets mean something only in the topic that the positions belong to.",
            command="landonce state rebase {file}, or correct bootstrap_servers",
        )
    for topic in sorted(changed_topics(state, view)):
        raise TopicRecreated(
            f"topic {topic!r} was deleted and created again.",
            safe="Nothing was changed. Offsets mean something only in the topic that the positions belong to.",
            command="landonce state rebase {file}",
        )
