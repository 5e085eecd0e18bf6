"""What an operator may decide, as pure transitions of the ledger.

Every function looks at the ledger's state and at the world, and gives back a `Decision`: the new state, what it does in
words, what it costs in numbers, and the note for the journal. Nothing is done here. The new state takes the next epoch,
so that the one compare-and-set that records it also fences a driver that still runs.

    accept_gap      records were deleted before they were read     go on behind the gap, and say what never came
    rebase          the topic or the cluster is another one        offsets begin anew, under a label of their own
    fill            a pending block is there in part               what is missing is written
    accept_change   a pending plan was made by another file        it is settled by the present one
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from landonce.errors import ClusterChanged, NothingToDo, PlanPending, TopicRecreated
from landonce.plan.blocks import Block, Kind, Plan
from landonce.plan.ranges import Partition, Range
from landonce.read.source import Extent, SourceView, Start
from landonce.record.ledger import LedgerState, Note, Position, bound, taken
from landonce.write.target import TargetView

_ID_LETTERS = 8


@dataclass(frozen=True)
class Decision:
    """One change that an operator may make, before it is made."""

    action: str
    new: LedgerState
    does: tuple[str, ...]
    """What the command will do, line by line."""
    costs: tuple[str, ...]
    """What that means, in numbers where there are any."""
    lost: tuple[Range, ...] = ()
    """Offsets that will never be delivered, unless they are in the target already."""

    def note(self) -> Note:
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return Note(at, self.action, " ".join((*self.does, *self.costs)))


def accept_gap(state: LedgerState, view: SourceView, owner: str) -> Decision:
    """Positions move to the start of the topic where it is behind them; a pending plan keeps what is left of it.

    A ledger that was never bound, because nobody knows what a lost one had delivered, is bound at the topics' starts.
    """
    if state.fresh:
        return _accept_unbound(state, view, owner)
    _same_source(state, view)
    starts = {partition: extent.start for partition, extent in view.extents}
    gaps = tuple(
        Range(partition, committed, starts[partition])
        for partition, committed in state.committed().items()
        if starts.get(partition, 0) > committed
    )
    if not gaps:
        raise NothingToDo(
            "there is no gap: every position is still inside its topic.", safe="Nothing was changed.", command=""
        )
    positions = tuple(
        (partition, replace(position, committed=max(position.committed, starts.get(partition, 0))))
        for partition, position in state.positions
    )
    pending = _cropped(state.pending, starts) if state.pending else None
    new = replace(taken(state, owner), positions=positions, pending=pending)
    does = [f"{gap.partition}: the position moves from {gap.first} to {gap.end}." for gap in gaps]
    if state.pending is not None:
        does.append(_say_crop(state.pending, pending))
    total = sum(gap.span for gap in gaps)
    costs = (
        f"At most {total} records in {len(gaps)} partition(s) will never be delivered, unless they landed before.",
    )
    return Decision("accept-gap", new, tuple(does), costs, gaps)


def _accept_unbound(state: LedgerState, view: SourceView, owner: str) -> Decision:
    new = replace(_bound_afresh(taken(state, owner), view, Start.EARLIEST), version=state.version + 1)
    does = tuple(
        f"{partition}: the position is {extent.start}, where the topic begins." for partition, extent in view.extents
    )
    costs = ("What was deleted before these offsets and is not in the target will never be delivered.",)
    return Decision("accept-gap", new, does, costs)


def _cropped(plan: Plan, starts: dict[Partition, int]) -> Plan | None:
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
        if ranges:
            blocks.append(block if ranges == block.ranges else replace(block, ranges=ranges))
    return replace(plan, blocks=tuple(blocks)) if blocks else None


def _say_crop(old: Plan, new: Plan | None) -> str:
    if new is None:
        return f"Batch {old.batch}, which is pending, is over: nothing of its ranges is left to read."
    if new == old:
        return f"Batch {old.batch} is pending and not touched by this."
    return f"Batch {old.batch}, which is pending, keeps what is left: {len(new.blocks)} of {len(old.blocks)} blocks."


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
) -> Decision:
    """Binds the ledger to the cluster and the topics that are there now.

    A topic that is another one begins at `to`. Where only a partition moved (it vanished, or ended before its position),
    only that one does. Either way its new rows get a label of their own in `_topic` if old ones may be in the target.
    Topics that did not change keep their positions. A ledger that was never bound, because the target holds rows that
    the topic cannot have, is bound here.
    """
    if state.fresh:
        state = _bound_afresh(state, view, to)
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
    return Decision("rebase", new, does, _rebase_costs(state, new, view, to))


def _bound_afresh(state: LedgerState, view: SourceView, to: Start) -> LedgerState:
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


def _pending(plan: Plan) -> PlanPending:
    return PlanPending(
        f"batch {plan.batch} is pending, with ranges {_ranges(plan.blocks)}: some of its rows may be in the target, and "
        "which ones can only be found out by settling it.",
        safe="Nothing was changed.",
        command="landonce run {file} --once   (if its topics are still there), or: "
        "landonce state rebase {file} --drop-pending   (forgets it)",
    )


def fill(state: LedgerState, owner: str) -> Decision:
    """The pending plan's missing rows are written, even where a block is there in part."""
    plan = state.pending
    if plan is None:
        raise NothingToDo("no plan is pending, so there is nothing to fill.", safe="Nothing was changed.")
    if plan.kind is Kind.FILL:
        raise NothingToDo(
            f"batch {plan.batch} is to be filled already.",
            safe="Nothing was changed.",
            command="landonce run {file}",
        )
    new = replace(taken(state, owner), pending=replace(plan, kind=Kind.FILL))
    does = (f"At the next start, rows of batch {plan.batch} that the target lacks are written, and no others.",)
    costs = (
        f"Ranges: {_ranges(plan.blocks)}; at most {sum(block.span for block in plan.blocks)} records.",
        "Rows of these ranges that somebody deleted on purpose, or that a TTL took, come back.",
    )
    return Decision("fill", new, does, costs)


def accept_change(state: LedgerState, fingerprint: str, owner: str) -> Decision:
    """The pending plan is settled by the present pipeline file instead of the one that made it."""
    plan = state.pending
    if plan is None:
        raise NothingToDo(
            "no plan is pending: a changed pipeline file holds from the next batch on, by itself.",
            safe="Nothing was changed.",
            command="landonce run {file}",
        )
    if plan.fingerprint == fingerprint:
        raise NothingToDo(
            f"batch {plan.batch}, which is pending, was made by this very pipeline file.",
            safe="Nothing was changed.",
            command="landonce run {file}",
        )
    new = replace(taken(state, owner), pending=replace(plan, fingerprint=fingerprint))
    does = (f"Batch {plan.batch}, which is pending, is settled by the present transform, schema and decoder.",)
    costs = (
        f"Ranges: {_ranges(plan.blocks)}; at most {sum(block.span for block in plan.blocks)} records.",
        "Rows of them that are in the target stay as the old file made them; those that are missing are written as the "
        "new file makes them. Each record still lands at most once.",
        "If the two files do not land the same records, `landonce verify` will name the difference, and a block that "
        "is there in part halts with PartialPresence.",
    )
    return Decision("accept-change", new, does, costs)


def _ranges(blocks: Iterable[Block], most: int = 5) -> str:
    listed = [str(each) for block in blocks for each in block.ranges]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def _same_source(state: LedgerState, view: SourceView) -> None:
    """A gap can only be told in the topic that the positions belong to."""
    if state.cluster_id != view.cluster_id:
        raise ClusterChanged(
            f"the ledger belongs to Kafka cluster {state.cluster_id}, and these brokers are cluster {view.cluster_id}.",
            safe="Nothing was changed. A gap can only be told in the topic that the positions belong to.",
            command="landonce state rebase {file}, or correct bootstrap_servers",
        )
    for topic in sorted(changed_topics(state, view)):
        raise TopicRecreated(
            f"topic {topic!r} was deleted and made anew.",
            safe="Nothing was changed. A gap can only be told in the topic that the positions belong to.",
            command="landonce state rebase {file}",
        )
