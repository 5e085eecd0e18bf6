"""Binding a ledger to the cluster and the topics that are there now. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from landonce.errors import NothingToDo, PlanPending
from landonce.protocol.blocks import Kind, Plan, token
from landonce.protocol.ledger import LedgerState, Position, bound, taken
from landonce.protocol.letters import keep_letters
from landonce.protocol.marks import TableStatus, behind_ranges
from landonce.protocol.operate.decision import Decision, listed
from landonce.protocol.ranges import Partition, Range, generation_of
from landonce.protocol.source import Extent, SourceView, Start
from landonce.protocol.target import TargetView

_ID_LETTERS = 8


@dataclass(frozen=True)
class _Moved:
    """Why a partition cannot go on where it is."""

    partition: Partition
    why: str


def rebase(
    state: LedgerState,
    view: SourceView,
    target: TargetView,
    owner: str,
    *,
    to: Start = Start.EARLIEST,
    drop_pending: bool = False,
    statuses: Iterable[TableStatus] = (),
) -> Decision:
    """Binds the ledger to the cluster and the topics that are there now.

    A topic that is another one begins at `to`. Where only a partition moved (it vanished, or ended before its position),
    only that one does; but where this ledger never made a plan, what the target holds is of another topic altogether. New rows
    of a topic or partition that begins again get a label of their own in `_topic` if old ones may be in the target. Whatever
    did not change keeps its label, its position and its part of a pending plan, so that what landed of it is known.

    A ledger that was never bound, because the target holds rows that the topic cannot have, is bound here. `target` says how
    far it holds each partition, with what landed of the plan. `statuses` are
    the tables of a fan-out: what one that is behind lacks of what begins again cannot be delivered any more. One that holds a
    pending plan of letters holds rows of theirs: then the plan cannot be forgotten.
    """
    tables = tuple(statuses)
    if not drop_pending or any(state.pending and each.view.holds(state.pending.batch) for each in tables):
        keep_letters(state.pending)
    if state.fresh:
        state = bound_afresh(state, view, to)
    remade = changed_topics(state, view)
    moved = _moved(state, view, target, remade)
    if state.batch == 0:
        remade, moved = remade | {each.partition.topic for each in moved}, ()
    left = _left(state.pending, view, remade, moved) if state.pending else None
    changed = bool(remade or moved) or left != state.pending or state.cluster_id != view.cluster_id
    if not changed and not (drop_pending and state.pending):
        raise NothingToDo(
            "the ledger and the brokers agree on the cluster, the topics and the positions.",
            safe="Nothing was changed.",
        )
    if state.pending is not None and left != state.pending and not drop_pending:
        raise _pending(state.pending, left)
    relabelled = _relabelled(state, view, target, remade, moved)
    pending = left if changed else None
    new = replace(
        taken(state, owner),
        lineage=state.lineage if pending is not None else owner,
        cluster_id=view.cluster_id,
        topic_ids=tuple(sorted({**dict(state.topic_ids), **dict(view.topic_ids)}.items())),
        positions=tuple(sorted(_rebased_positions(state, view, remade, moved, to).items())),
        pending=pending,
        labels=_labels(state, relabelled),
    )
    reset = frozenset(each for each, _ in state.positions if _begins_again(each, remade, moved))
    return Decision(
        "rebase",
        new,
        (*_say_rebase(state, view, remade, moved, relabelled, to), *_say_plan(state, new)),
        (
            *_rebase_costs(state, new, view, moved, to),
            *_plan_costs(state, new, reset),
            *_never_filled_up(state, tables, reset),
        ),
    )


def landed_too(held: TargetView, plan: Plan | None, landed: Collection[int]) -> TargetView:
    """As `held`, with the blocks of the plan (by number) that are known to have landed."""
    ends = dict(held.ends)
    for block in plan.blocks if plan is not None else ():
        for each in block.ranges if block.number in landed else ():
            ends[each.partition] = max(each.end, ends.get(each.partition, 0))
    return TargetView(tuple(sorted(ends.items())))


def bound_afresh(state: LedgerState, view: SourceView, to: Start) -> LedgerState:
    """As a first start would bind it; the version is still the one that is compared."""
    firsts = {partition: _edge(extent, to) for partition, extent in view.extents}
    return replace(bound(state, view.cluster_id, dict(view.topic_ids), firsts), version=state.version)


def changed_topics(state: LedgerState, view: SourceView) -> frozenset[str]:
    """Topics of the ledger that are other ones now, though they have the same name."""
    present = dict(view.topic_ids)
    return frozenset(topic for topic, known in state.topic_ids if present.get(topic, known) != known)


def _moved(state: LedgerState, view: SourceView, target: TargetView, remade: frozenset[str]) -> tuple[_Moved, ...]:
    extents = dict(view.extents)
    topics = dict(view.topic_ids)
    held = dict(target.ends)
    moved = []
    for partition, committed in state.committed().items():
        if partition.topic not in topics or partition.topic in remade:
            continue
        extent = extents.get(partition)
        if extent is None:
            moved.append(_Moved(partition, "is gone"))
        elif extent.stable_end < committed:
            moved.append(_Moved(partition, f"ends at {extent.stable_end}, before its position {committed}"))
        elif held.get(partition, 0) > extent.stable_end:
            moved.append(_Moved(partition, f"ends at {extent.stable_end}, and the target holds {held[partition] - 1}"))
    return tuple(moved)


def _begins_again(partition: Partition, remade: frozenset[str], moved: Iterable[_Moved]) -> bool:
    return partition.topic in remade or partition in {each.partition for each in moved}


def _left(plan: Plan, view: SourceView, remade: frozenset[str], moved: tuple[_Moved, ...]) -> Plan | None:
    """What of the plan can still be read as it was made; None if nothing can. Its deadline stays. Letters that are dropped stay letters."""
    if plan.kind is Kind.LETTERS:
        return None
    ends = {partition: extent.stable_end for partition, extent in view.extents}
    blocks = []
    for block in plan.blocks:
        ranges = tuple(
            each
            for each in block.ranges
            if not _begins_again(each.partition, remade, moved) and ends.get(each.partition, each.end) >= each.end
        )
        if ranges:
            blocks.append(replace(block, ranges=ranges))
    return replace(plan, blocks=tuple(blocks)) if blocks else None


def _relabelled(
    state: LedgerState, view: SourceView, target: TargetView, remade: frozenset[str], moved: Iterable[_Moved]
) -> dict[str, str]:
    """New labels, by topic or by partition, where old rows may be in the target: it holds some, or a plan was ever made."""
    held = {partition.topic for partition, _ in target.ends}
    affected = {topic: topic for topic in remade} | {str(each.partition): each.partition.topic for each in moved}
    return {of: _new_label(state, view, topic) for of, topic in affected.items() if state.batch > 0 or topic in held}


def _new_label(state: LedgerState, view: SourceView, topic: str) -> str:
    """`topic@` and the beginning of the topic's id; from the second time on with a number behind it, which only grows: sinks that change
    rows order the labels of a topic by it."""
    topic_id = dict(view.topic_ids)[topic].replace("/", "_").replace("+", "-")
    label = f"{topic}@{topic_id[:_ID_LETTERS]}"
    before = max((generation_of(each) for of, each in state.labels if of.partition("[")[0] == topic), default=0)
    return f"{label}.{before + 1}" if before else label


def _labels(state: LedgerState, relabelled: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """A topic's new label is that of all its partitions."""
    kept = {of: label for of, label in state.labels if of.partition("[")[0] not in relabelled}
    return tuple(sorted({**kept, **relabelled}.items()))


def _rebased_positions(
    state: LedgerState,
    view: SourceView,
    remade: frozenset[str],
    moved: tuple[_Moved, ...],
    to: Start,
) -> dict[Partition, Position]:
    positions = {each: at for each, at in state.positions if not _begins_again(each, remade, moved)}
    for partition, extent in view.extents:
        if _begins_again(partition, remade, moved):
            positions[partition] = Position(_edge(extent, to), _edge(extent, to))
    return positions


def _edge(extent: Extent, to: Start) -> int:
    return extent.start if to is Start.EARLIEST else extent.stable_end


def _say_rebase(
    state: LedgerState,
    view: SourceView,
    remade: frozenset[str],
    moved: Iterable[_Moved],
    relabelled: dict[str, str],
    to: Start,
) -> tuple[str, ...]:
    does = []
    if state.cluster_id != view.cluster_id:
        does.append(f"The ledger is bound to cluster {view.cluster_id} instead of {state.cluster_id}.")
    ids = dict(view.topic_ids)
    does += [
        f"Topic {topic!r} has another id now ({ids[topic]}): it starts at its {to.value} offset."
        for topic in sorted(remade)
    ]
    does += [f"{each.partition} {each.why}: it starts at its {to.value} offset, if it exists." for each in moved]
    does += [
        f"New rows of {of} get _topic = {label!r}, because old rows with the same coordinates may be in the target."
        for of, label in sorted(relabelled.items())
    ]
    kept = sorted(dict(state.topic_ids).keys() - remade - {each.partition.topic for each in moved})
    if kept:
        does.append(f"Unchanged: {', '.join(kept)}.")
    return tuple(does)


def _say_plan(state: LedgerState, new: LedgerState) -> Iterator[str]:
    if state.pending is None:
        return
    if new.pending is None:
        yield f"Batch {state.pending.batch}, which is pending, is forgotten."
    else:
        yield f"Of batch {state.pending.batch}, which is pending, the next start settles {listed(_ranges(new.pending))}."


def _rebase_costs(
    state: LedgerState, new: LedgerState, view: SourceView, moved: tuple[_Moved, ...], to: Start
) -> tuple[str, ...]:
    extents = dict(view.extents)
    begun = [
        each for each, position in new.positions if dict(state.positions).get(each) != position and each in extents
    ]
    waiting = sum(max(0, extents[each].stable_end - dict(new.positions)[each].committed) for each in begun)
    skipped = sum(_edge(extents[each], to) - extents[each].start for each in begun if to is Start.LATEST)
    costs = [f"At most {waiting} records that are in these partitions now will be delivered."]
    if skipped:
        costs.append(f"At most {skipped} records that are in them now will never be delivered, because of --to latest.")
    costs.append("Records of the old topic that were not delivered are lost.")
    if moved and to is Start.EARLIEST:
        costs.append(
            f"Where {listed(each.partition for each in moved)} lost only its end, the rest was delivered before, and "
            "is delivered again under the new label. --to latest skips it, and everything else that is there now."
        )
    return tuple(costs)


def _plan_costs(state: LedgerState, new: LedgerState, reset: frozenset[Partition]) -> Iterator[str]:
    """What becomes of rows that landed of the pending plan."""
    if state.pending is None:
        return
    kept = {token(new.identity, block) for block in new.pending.blocks} if new.pending is not None else set()
    other = [block for block in state.pending.blocks if token(state.identity, block) not in kept]
    again = [each for block in other for each in block.ranges if each.partition not in reset]
    if any(each.partition in reset for block in other for each in block.ranges):
        yield "Rows of the plan that landed from partitions that start again stay, under their old label."
    if again:
        yield f"The next start recognises what landed of {listed(again)} and does not write it again."


def _ranges(plan: Plan) -> tuple[Range, ...]:
    return tuple(each for block in plan.blocks for each in block.ranges)


def _never_filled_up(state: LedgerState, statuses: Iterable[TableStatus], reset: frozenset[Partition]) -> Iterator[str]:
    for each in statuses:
        lacks = [piece for piece in behind_ranges(state, [each]) if piece.partition in reset]
        if lacks:
            yield f"What was removed from {each.view.table} by a rollback never comes back to it: {listed(lacks)}."


def _pending(plan: Plan, left: Plan | None) -> PlanPending:
    kept = frozenset(_ranges(left)) if left is not None else frozenset()
    lost = [each for each in _ranges(plan) if each not in kept]
    return PlanPending(
        f"batch {plan.batch} is pending, and {listed(lost)} of it cannot be read again. Some of its rows may be in the "
        "target.",
        safe="Nothing was changed.",
        command="landonce state rebase {file} --drop-pending   (forgets these ranges, and keeps what is left of the plan)",
    )
