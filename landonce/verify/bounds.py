"""The range of an audit: what the ledger says was delivered, as far as Kafka still holds it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from landonce.errors import ClusterChanged, TopicRecreated
from landonce.protocol.ledger import LedgerState
from landonce.protocol.operate import changed_topics
from landonce.protocol.ranges import Partition
from landonce.protocol.source import SourceView


@dataclass(frozen=True)
class Bounds:
    """One partition: the first offset that the pipeline covers, and the range `[start, end)` that can be judged."""

    partition: Partition
    label: Partition
    """The partition under its label in the target."""
    first: int | None
    """None if unknown: there is no ledger, and the pipeline did not start at the beginning."""
    start: int
    end: int


def bounds(state: LedgerState | None, view: SourceView, *, to_end: bool, from_start: bool) -> tuple[Bounds, ...]:
    """`from_start`: without a ledger, assume that the pipeline starts where the topic starts."""
    if state is None or state.fresh:
        return tuple(
            Bounds(partition, partition, extent.start if from_start else None, extent.start, extent.stable_end)
            for partition, extent in view.extents
        )
    _same_source(state, view)
    positions = dict(state.positions)
    found = []
    for partition, extent in view.extents:
        position = positions.get(partition)
        first = position.first if position else extent.start
        committed = position.committed if position else extent.start
        end = extent.stable_end if to_end else min(committed, extent.stable_end)
        start = min(max(first, extent.start), max(end, first))
        label = state.labelled(partition)
        found.append(Bounds(partition, label, first, start, max(end, start)))
    return tuple(found)


def notes(state: LedgerState | None, view: SourceView, *, to_end: bool) -> tuple[str, ...]:
    """What a reader of the report must know about its bounds."""
    notes = []
    if state is None or state.fresh:
        notes.append("There is no ledger yet: everything up to the stable end of the topic was judged.")
        return tuple(notes)
    extents = dict(view.extents)
    for partition, position in state.positions:
        extent = extents.get(partition)
        if extent is None and partition.topic in dict(view.topic_ids):
            notes.append(f"{partition} is in the ledger and not in the topic: what it held cannot be proved.")
        elif extent is not None and position.committed > extent.stable_end:
            notes.append(
                f"{partition}: the ledger is at {position.committed} and the topic ends at {extent.stable_end}: "
                "what is in between cannot be proved."
            )
    if state.pending is not None and not to_end:
        notes.append(f"Batch {state.pending.batch} is pending: its rows are counted as in flight and not judged.")
    for of, label in state.labels:
        notes.append(f"{of} was rebased: only rows of it with _topic = {label!r} were judged.")
    return tuple(notes)


def _same_source(state: LedgerState, view: SourceView) -> None:
    safe = "Nothing was compared: offsets of one topic mean nothing in another."
    if state.cluster_id != view.cluster_id:
        raise ClusterChanged(
            f"the ledger belongs to Kafka cluster {state.cluster_id}, and these brokers are cluster {view.cluster_id}.",
            safe=safe,
            command="correct bootstrap_servers in {file}, or: landonce state rebase {file}",
        )
    for topic in sorted(changed_topics(state, view)):
        raise TopicRecreated(
            f"topic {topic!r} was deleted and created again since the ledger saw it.",
            safe=safe,
            command="landonce state rebase {file}",
        )
