"""Going on where the source is not what the ledger says: records were deleted before they were read, or the topic or the cluster is another
one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from landonce.errors import ClusterChanged, NothingToDo, PlanPending, TopicRecreated
from landonce.protocol.blocks import Kind, Plan, token
from landonce.protocol.ledger import LedgerState, Position, TableMark, bound, taken
from landonce.protocol.letters import keep_letters
from landonce.protocol.marks import Mark, TableStatus, behind_ranges, raised
from landonce.protocol.operate.decision import Decision, Restated, listed
from landonce.protocol.ranges import Partition, Range, generation_of, span_of
from landonce.protocol.source import Extent, SourceView, Start
from landonce.protocol.target import TargetView

Starts = Mapping[Partition, int]
_ID_LETTERS = 8


def changed_topics(state: LedgerState, view: SourceView) -> frozenset[str]:
    """Topics of the ledger that are other ones now, though they have the same name."""
    present = dict(view.topic_ids)
    return frozenset(topic for topic, known in state.topic_ids if present.get(topic, known) != known)


def same_source(state: LedgerState, view: SourceView) -> None:
    """Offsets only mean something in the topic that the positions belong to."""
    safe = "Nothing was changed. Offsets mean something only in the topic that the positions belong to."
    if state.cluster_id != view.cluster_id:
        raise ClusterChanged(
            f"the ledger belongs to Kafka cluster {state.cluster_id}, and these brokers are cluster {view.cluster_id}.",
            safe=safe,
            command="landonce state rebase {file}, or correct bootstrap_servers",
        )
    for topic in sorted(changed_topics(state, view)):
        raise TopicRecreated(
            f"topic {topic!r} was deleted and created again.", safe=safe, command="landonce state rebase {file}"
        )


def _bound_afresh(state: LedgerState, view: SourceView, to: Start) -> LedgerState:
    """As a first start would bind it; the version is still the one that is compared."""
    firsts = {partition: _edge(extent, to) for partition, extent in view.extents}
    return replace(bound(state, view.cluster_id, dict(view.topic_ids), firsts), version=state.version)


def _edge(extent: Extent, to: Start) -> int:
    return extent.start if to is Start.EARLIEST else extent.stable_end


# Records were deleted before they were read.


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
        new = replace(_bound_afresh(taken(state, owner), view, Start.EARLIEST), version=state.version + 1)
        does = tuple(
            f"{each}: the position is {extent.start}, where the topic begins." for each, extent in view.extents
        )
        cost = "What was deleted before these offsets and is not in the target will never be delivered."
        return Decision("accept-gap", new, does, (cost,))
    same_source(state, view)
    starts = {partition: extent.start for partition, extent in view.extents}
    gaps = _gaps(state.committed().items(), starts)
    behind = [(each, lacks) for each in statuses if each.behind and (lacks := _gaps(each.floors, starts))]
    pending = _cropped(state.pending, starts, landed) if state.pending else None
    if not gaps and not behind and pending == state.pending:
        raise NothingToDo("there is no gap: Kafka has deleted nothing that was not read.", safe="Nothing was changed.")
    positions = ((each, replace(at, committed=max(at.committed, starts.get(each, 0)))) for each, at in state.positions)
    known = {each.view.table: TableMark(each.view.uuid, _last_batch(state, each)) for each, _ in behind}
    tables = tuple(sorted({**dict(state.tables), **known}.items()))
    new = replace(taken(state, owner), positions=tuple(positions), pending=pending, tables=tables)
    does = (
        *(f"{gap.partition}: the position moves from {gap.first} to {gap.end}." for gap in gaps),
        *_say_cropped(state.pending, pending),
        *(
            f"{each.view.table}, which was rolled back, is filled up again from where the topics begin now: "
            f"{listed(f'{gap.partition} at {gap.end}' for gap in lacks)}."
            for each, lacks in behind
        ),
    )
    never = f"At most {span_of(gaps)} records in {len(gaps)} partition(s) will never be delivered, unless they landed before."
    costs = (
        *((never,) if gaps else ()),
        *(
            f"At most {span_of(lacks)} records that the rollback removed from {each.view.table} never come back to it: {listed(lacks)}."
            for each, lacks in behind
        ),
    )
    marks = tuple(Restated(each.view, _restated(new, each, starts)) for each, _ in behind)
    return Decision("accept-gap", new, does, costs, gaps, marks)


def _gaps(positions: Iterable[tuple[Partition, int]], starts: Starts) -> tuple[Range, ...]:
    return tuple(Range(each, at, starts[each]) for each, at in positions if starts.get(each, 0) > at)


def _last_batch(state: LedgerState, each: TableStatus) -> int:
    """The ledger takes the table for one that carries its last batch, as the restated mark says."""
    known = dict(state.tables).get(each.view.table)
    return max(each.view.batch, known.batch if known is not None else 0)


def _restated(new: LedgerState, each: TableStatus, starts: Starts) -> Mark:
    """The table's own position, as far as the topics still go back. No later mark can make it look rolled back again."""
    floors = dict(each.floors)
    positions = tuple(
        (partition, replace(position, committed=max(floors[partition], starts.get(partition, 0))))
        for partition, position in new.positions
    )
    own = replace(new, positions=positions, batch=_last_batch(new, each), pending=None, tables=())
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
            replace(each, first=max(each.first, starts.get(each.partition, 0)))
            for each in block.ranges
            if each.end > starts.get(each.partition, 0)
        )
        if block.number in landed:
            blocks.append(block)
        elif ranges:
            blocks.append(replace(block, ranges=ranges))
    return replace(plan, blocks=tuple(blocks)) if blocks else None


def _say_cropped(old: Plan | None, new: Plan | None) -> Iterator[str]:
    if old is not None and new is None:
        yield f"Batch {old.batch}, which is pending, is over: nothing of its ranges is left to read."
    elif old is not None and new == old:
        yield f"Batch {old.batch} is pending and not touched by this."
    elif old is not None and new is not None:
        yield f"Batch {old.batch}, which is pending, keeps what is left: {len(new.blocks)} of {len(old.blocks)} blocks."


# The topic or the cluster is another one.


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
    tables, old = tuple(statuses), state.pending
    if not drop_pending or any(old and each.view.holds(old.batch) for each in tables):
        keep_letters(old)
    if state.fresh:
        state = _bound_afresh(state, view, to)
    remade = changed_topics(state, view)
    moved = _moved(state, view, target, remade)
    if state.batch == 0:
        remade, moved = remade | {each.topic for each in moved}, {}
    partitions = {*dict(state.positions), *dict(view.extents)}
    again = frozenset(each for each in partitions if each.topic in remade or each in moved)
    left = _left(old, view, again) if old else None
    changed = bool(remade or moved) or left != old or state.cluster_id != view.cluster_id
    if not changed and not (drop_pending and old):
        raise NothingToDo(
            "the ledger and the brokers agree on the cluster, the topics and the positions.",
            safe="Nothing was changed.",
        )
    if old is not None and left != old and not drop_pending:
        kept = frozenset(_ranges(left)) if left is not None else frozenset()
        raise PlanPending(
            f"batch {old.batch} is pending, and {listed(each for each in _ranges(old) if each not in kept)} of it cannot be read again. "
            "Some of its rows may be in the target.",
            safe="Nothing was changed.",
            command="landonce state rebase {file} --drop-pending   (forgets these ranges, and keeps what is left of the plan)",
        )
    positions = {each: at for each, at in state.positions if each not in again}
    edges = ((each, _edge(extent, to)) for each, extent in view.extents if each in again)
    positions |= {each: Position(edge, edge) for each, edge in edges}
    relabelled = _relabelled(state, view, target, remade, moved)
    # A topic's new label is that of all its partitions.
    labels = {of: label for of, label in state.labels if of.partition("[")[0] not in relabelled} | relabelled
    pending = left if changed else None
    new = replace(
        taken(state, owner),
        lineage=state.lineage if pending is not None else owner,
        cluster_id=view.cluster_id,
        topic_ids=tuple(sorted({**dict(state.topic_ids), **dict(view.topic_ids)}.items())),
        positions=tuple(sorted(positions.items())),
        pending=pending,
        labels=tuple(sorted(labels.items())),
    )
    does = tuple(_say_rebase(state, new, remade, moved, relabelled, to))
    costs = (*_rebase_costs(state, new, view, moved, to), *_plan_costs(state, new, again))
    never = {each.view.table: [p for p in behind_ranges(state, [each]) if p.partition in again] for each in tables}
    return Decision(
        "rebase",
        new,
        does,
        (
            *costs,
            *(
                f"What was removed from {table} by a rollback never comes back to it: {listed(lacks)}."
                for table, lacks in never.items()
                if lacks
            ),
        ),
    )


def landed_too(held: TargetView, plan: Plan | None, landed: Collection[int]) -> TargetView:
    """As `held`, with the blocks of the plan (by number) that are known to have landed."""
    ends = dict(held.ends)
    for block in plan.blocks if plan is not None else ():
        for each in block.ranges if block.number in landed else ():
            ends[each.partition] = max(each.end, ends.get(each.partition, 0))
    return TargetView(tuple(sorted(ends.items())))


def _moved(state: LedgerState, view: SourceView, target: TargetView, remade: frozenset[str]) -> Mapping[Partition, str]:
    """Partitions that cannot go on where they are, though their topic is the same, and why."""
    extents, topics, held = dict(view.extents), dict(view.topic_ids), dict(target.ends)
    moved = {}
    for partition, committed in state.committed().items():
        if partition.topic not in topics or partition.topic in remade:
            continue
        extent = extents.get(partition)
        if extent is None:
            moved[partition] = "is gone"
        elif extent.stable_end < committed:
            moved[partition] = f"ends at {extent.stable_end}, before its position {committed}"
        elif held.get(partition, 0) > extent.stable_end:
            moved[partition] = f"ends at {extent.stable_end}, and the target holds {held[partition] - 1}"
    return moved


def _left(plan: Plan, view: SourceView, again: Collection[Partition]) -> Plan | None:
    """What of the plan can still be read as it was made; None if nothing can. Its deadline stays. Letters that are dropped stay letters."""
    if plan.kind is Kind.LETTERS:
        return None
    ends = {partition: extent.stable_end for partition, extent in view.extents}
    blocks = []
    for block in plan.blocks:
        here = (each for each in block.ranges if each.partition not in again)
        if ranges := tuple(each for each in here if ends.get(each.partition, each.end) >= each.end):
            blocks.append(replace(block, ranges=ranges))
    return replace(plan, blocks=tuple(blocks)) if blocks else None


def _relabelled(
    state: LedgerState, view: SourceView, target: TargetView, remade: Iterable[str], moved: Iterable[Partition]
) -> dict[str, str]:
    """New labels, by topic or by partition, where old rows may be in the target: it holds some, or a plan was ever made.

    `topic@` and the beginning of the topic's id; from the second time on with a number behind it, which only grows: sinks that change
    rows order the labels of a topic by it.
    """
    held, relabelled = {partition.topic for partition, _ in target.ends}, {}
    affected = {topic: topic for topic in remade} | {str(each): each.topic for each in moved}
    for of, topic in affected.items():
        if state.batch > 0 or topic in held:
            topic_id = dict(view.topic_ids)[topic].replace("/", "_").replace("+", "-")
            label = f"{topic}@{topic_id[:_ID_LETTERS]}"
            earlier = (generation_of(each) for known, each in state.labels if known.partition("[")[0] == topic)
            before = max(earlier, default=0)
            relabelled[of] = f"{label}.{before + 1}" if before else label
    return relabelled


def _say_rebase(
    state: LedgerState,
    new: LedgerState,
    remade: frozenset[str],
    moved: Mapping[Partition, str],
    relabelled: Mapping[str, str],
    to: Start,
) -> Iterator[str]:
    if state.cluster_id != new.cluster_id:
        yield f"The ledger is bound to cluster {new.cluster_id} instead of {state.cluster_id}."
    for topic in sorted(remade):
        topic_id = dict(new.topic_ids)[topic]
        yield f"Topic {topic!r} has another id now ({topic_id}): it starts at its {to.value} offset."
    for partition, why in moved.items():
        yield f"{partition} {why}: it starts at its {to.value} offset, if it exists."
    for of, label in sorted(relabelled.items()):
        yield f"New rows of {of} get _topic = {label!r}, because old rows with the same coordinates may be in the target."
    if kept := sorted(dict(state.topic_ids).keys() - remade - {each.topic for each in moved}):
        yield f"Unchanged: {', '.join(kept)}."
    if state.pending is not None and new.pending is None:
        yield f"Batch {state.pending.batch}, which is pending, is forgotten."
    elif state.pending is not None and new.pending is not None:
        yield f"Of batch {state.pending.batch}, which is pending, the next start settles {listed(_ranges(new.pending))}."


def _rebase_costs(
    state: LedgerState, new: LedgerState, view: SourceView, moved: Collection[Partition], to: Start
) -> Iterator[str]:
    extents, before = dict(view.extents), dict(state.positions)
    begun = {each: extents[each] for each, at in new.positions if before.get(each) != at and each in extents}
    waiting = sum(max(0, extent.stable_end - new.committed()[each]) for each, extent in begun.items())
    yield f"At most {waiting} records that are in these partitions now will be delivered."
    if skipped := sum(_edge(extent, to) - extent.start for extent in begun.values()):
        yield f"At most {skipped} records that are in them now will never be delivered, because of --to latest."
    yield "Records of the old topic that were not delivered are lost."
    if moved and to is Start.EARLIEST:
        yield (
            f"Where {listed(moved)} lost only its end, the rest was delivered before, and "
            "is delivered again under the new label. --to latest skips it, and everything else that is there now."
        )


def _plan_costs(state: LedgerState, new: LedgerState, again: Collection[Partition]) -> Iterator[str]:
    """What becomes of rows that landed of the pending plan."""
    if state.pending is None:
        return
    kept = {token(new.identity, block) for block in new.pending.blocks} if new.pending is not None else set()
    other = [
        each for block in state.pending.blocks if token(state.identity, block) not in kept for each in block.ranges
    ]
    if any(each.partition in again for each in other):
        yield "Rows of the plan that landed from partitions that start again stay, under their old label."
    if compared := [each for each in other if each.partition not in again]:
        yield f"The next start recognises what landed of {listed(compared)} and does not write it again."


def _ranges(plan: Plan) -> tuple[Range, ...]:
    return tuple(each for block in plan.blocks for each in block.ranges)
