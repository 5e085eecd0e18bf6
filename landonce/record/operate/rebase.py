"""Binding a ledger to the cluster and the topics that are there now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from landonce.errors import NothingToDo, PlanPending
from landonce.plan.blocks import Plan
from landonce.plan.ranges import Partition
from landonce.read.source import Extent, SourceView, Start
from landonce.record.ledger import LedgerState, Position, bound, taken
from landonce.record.operate.decision import Decision, listed
from landonce.write.marks import Stand, behind_ranges
from landonce.write.target import TargetView

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
    stands: Iterable[Stand] = (),
) -> Decision:
    """Binds the ledger to the cluster and the topics that are there now.

    A topic that is another one begins at `to`. Where only a partition moved (it vanished, or ended before its position),
    only that one does. Either way its new rows get a label of their own in `_topic` if old ones may be in the target.
    Topics that did not change keep their positions. A ledger that was never bound, because the target holds rows that
    the topic cannot have, is bound here. `stands` are the tables of a fan-out: what one that is behind lacks of a topic
    that begins anew cannot be delivered any more.
    """
    if state.fresh:
        state = bound_afresh(state, view, to)
    remade = changed_topics(state, view)
    moved = _moved(state, view, target, remade)
    forgets = drop_pending and state.pending is not None
    if not (remade or moved or forgets or state.cluster_id != view.cluster_id):
        raise NothingToDo(
            "the ledger and the brokers agree on the cluster, the topics and the positions.",
            safe="Nothing was changed.",
        )
    if state.pending is not None and not drop_pending:
        raise _pending(state.pending)
    relabelled = {topic: _new_label(state, view, topic) for topic in _needing_labels(state, target, remade, moved)}
    positions = _rebased_positions(state, view, remade, moved, frozenset(relabelled), to)
    new = replace(
        taken(state, owner),
        lineage=owner,
        cluster_id=view.cluster_id,
        topic_ids=tuple(sorted({**dict(state.topic_ids), **dict(view.topic_ids)}.items())),
        positions=tuple(sorted(positions.items())),
        pending=None,
        labels=tuple(sorted({**dict(state.labels), **relabelled}.items())),
    )
    does = _say_rebase(state, view, remade, moved, relabelled, to)
    costs = (*_rebase_costs(state, new, view, to), *_never_filled_up(state, stands, remade | relabelled.keys()))
    return Decision("rebase", new, does, costs)


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


def _needing_labels(
    state: LedgerState, target: TargetView, remade: frozenset[str], moved: Iterable[_Moved]
) -> frozenset[str]:
    """Old rows may be in the target: it holds some, or a plan was ever made."""
    held = {partition.topic for partition, _ in target.ends}
    affected = remade | {each.partition.topic for each in moved}
    return frozenset(topic for topic in affected if state.batch > 0 or topic in held)


def _new_label(state: LedgerState, view: SourceView, topic: str) -> str:
    """`topic@` and the beginning of the topic's id; where that was used before, with the epoch behind it."""
    topic_id = dict(view.topic_ids)[topic].replace("/", "_").replace("+", "-")
    label = f"{topic}@{topic_id[:_ID_LETTERS]}"
    return f"{label}.{state.epoch + 1}" if state.label(topic).startswith(label) else label


def _rebased_positions(
    state: LedgerState,
    view: SourceView,
    remade: frozenset[str],
    moved: Iterable[_Moved],
    relabelled: frozenset[str],
    to: Start,
) -> dict[Partition, Position]:
    extents = dict(view.extents)
    anew = {each.partition for each in moved} | {each for each in extents if each.topic in remade}
    positions = {
        partition: Position(position.committed, position.committed) if partition.topic in relabelled else position
        for partition, position in state.positions
        if partition.topic not in remade and partition not in anew
    }
    for partition in anew & extents.keys():
        first = _edge(extents[partition], to)
        positions[partition] = Position(first, first)
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
        f"Topic {topic!r} is another one (id {ids[topic]}): it begins at its {to.value} offset."
        for topic in sorted(remade)
    ]
    does += [f"{each.partition} {each.why}: it begins at its {to.value} offset, if it is there." for each in moved]
    does += [
        f"New rows of {topic!r} get _topic = {label!r}, because old ones with the same coordinates may be there."
        for topic, label in sorted(relabelled.items())
    ]
    kept = sorted(dict(state.topic_ids).keys() - remade - {each.partition.topic for each in moved})
    if kept:
        does.append(f"Unchanged: {', '.join(kept)}.")
    if state.pending is not None:
        does.append(f"Batch {state.pending.batch}, which is pending, is forgotten.")
    return tuple(does)


def _rebase_costs(state: LedgerState, new: LedgerState, view: SourceView, to: Start) -> tuple[str, ...]:
    extents = dict(view.extents)
    begun = [
        each for each, position in new.positions if dict(state.positions).get(each) != position and each in extents
    ]
    waiting = sum(max(0, extents[each].stable_end - dict(new.positions)[each].committed) for each in begun)
    skipped = sum(_edge(extents[each], to) - extents[each].start for each in begun if to is Start.LATEST)
    costs = [f"At most {waiting} records that are in these partitions now will be delivered."]
    if skipped:
        costs.append(f"At most {skipped} records that are in them now will never be delivered, because of --to latest.")
    costs.append("What the old topic held and was not delivered before cannot be delivered any more.")
    if state.pending is not None:
        costs.append(
            "Rows of the forgotten plan that landed stay. For topics that did not change, the next start recognises "
            "them and does not write them again."
        )
    return tuple(costs)


def _never_filled_up(state: LedgerState, stands: Iterable[Stand], topics: frozenset[str]) -> Iterator[str]:
    for each in stands:
        lacks = [piece for piece in behind_ranges(state, [each]) if piece.partition.topic in topics]
        if lacks:
            yield f"What was removed from {each.view.table} by a rollback never comes back to it: {listed(lacks)}."


def _pending(plan: Plan) -> PlanPending:
    return PlanPending(
        f"batch {plan.batch} is pending, with ranges {listed(each for block in plan.blocks for each in block.ranges)}: some of its rows may be in the target, and "
        "which ones can only be found out by settling it.",
        safe="Nothing was changed.",
        command="landonce run {file} --once   (if its topics are still there), or: "
        "landonce state rebase {file} --drop-pending   (forgets it)",
    )
