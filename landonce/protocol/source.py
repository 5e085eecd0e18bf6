"""The first source of ranges: what brokers have, and what it means for a pipeline's positions. Pure.

The second one is what Spark brings with a micro-batch of a user's own query (`match_ranges.Incoming`). Both answer the same questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum

from landonce import errors
from landonce.protocol import ledger as states
from landonce.protocol.ledger import LedgerState
from landonce.protocol.ranges import Partition, Range


class Start(str, Enum):
    """Where a pipeline begins that has no position yet. A partition that appears later always begins at its start."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True)
class StartAt:
    """As `Start`, at a place that the brokers are asked for (`begin_since`, `begin_at`, `begin_after`): one of the three."""

    timestamp: int | None = None
    """Milliseconds since 1970."""
    offsets: tuple[tuple[Partition, int], ...] = ()
    group: str = ""

    def __str__(self) -> str:
        if self.timestamp is not None:
            moment = datetime.fromtimestamp(self.timestamp / 1000, timezone.utc)
            return f"timestamp {moment.isoformat().replace('+00:00', 'Z')}"
        return f"group {self.group}" if self.group else "offsets"


@dataclass(frozen=True)
class Extent:
    """Of one partition: the first offset that is still there, and the end up to which records are stable."""

    start: int
    stable_end: int


@dataclass(frozen=True)
class SourceView:
    """One look at the brokers."""

    cluster_id: str
    topic_ids: tuple[tuple[str, str], ...]
    extents: tuple[tuple[Partition, Extent], ...]
    begins: tuple[tuple[Partition, int], ...] = ()
    """For a ledger that is new, and a `StartAt`: where each partition begins."""

    @property
    def view(self) -> SourceView:
        """What can be read."""
        return self

    def bound(self, state: LedgerState, start: Start | StartAt) -> LedgerState:
        """The ledger, tied to this cluster and these topics. Raises the named error that says why it cannot be."""
        binding = bind(state, self, start)
        return states.bound(state, binding.cluster_id, binding.topic_ids, binding.added)

    def partitions(self, state: LedgerState) -> frozenset[Partition]:
        """Those of the ledger that are read."""
        topics = dict(self.topic_ids)
        return frozenset(partition for partition, _ in state.positions if partition.topic in topics)

    def undelivered(self, state: LedgerState) -> tuple[Range, ...]:
        """What is stable and not committed yet."""
        return available(state, self)


@dataclass(frozen=True)
class Binding:
    """What the ledger has to learn before the pipeline may go on: nothing, where `added` is empty and it was bound."""

    cluster_id: str
    topic_ids: Mapping[str, str]
    added: Mapping[Partition, int]


def bind(ledger: LedgerState, view: SourceView, start: Start | StartAt) -> Binding:
    """Ties the ledger to this cluster and these topics, or raises the named error that says why it cannot.

    Committed offsets that retention has eaten, a topic that was created again and a partition that is gone are all found
    here, before anything is planned.
    """
    topic_ids = dict(view.topic_ids)
    extents = dict(view.extents)
    if not ledger.fresh:
        _same_cluster(ledger, view)
        _same_topics(ledger, topic_ids)
    pending = ledger.pending.ends() if ledger.pending else {}
    for partition, committed in ledger.committed().items():
        if partition.topic in topic_ids:
            _still_there(partition, max(committed, pending.get(partition, 0)), committed, extents, bool(ledger.pending))
    known, begins = ledger.committed(), dict(view.begins)
    latest, chosen = (ledger.fresh and start is Start.LATEST), (ledger.fresh and isinstance(start, StartAt))
    added = {
        partition: begins[partition] if chosen else extent.stable_end if latest else extent.start
        for partition, extent in extents.items()
        if partition not in known
    }
    return Binding(view.cluster_id, {**dict(ledger.topic_ids), **topic_ids}, added)


def available(ledger: LedgerState, view: SourceView) -> tuple[Range, ...]:
    """What is stable and not committed yet."""
    extents = dict(view.extents)
    return tuple(
        Range(partition, committed, extents[partition].stable_end)
        for partition, committed in ledger.committed().items()
        if partition in extents and extents[partition].stable_end > committed
    )


def everything(view: SourceView) -> tuple[Range, ...]:
    """All that is stable, wherever the ledger is."""
    return tuple(
        Range(partition, extent.start, extent.stable_end)
        for partition, extent in view.extents
        if extent.stable_end > extent.start
    )


def _same_cluster(ledger: LedgerState, view: SourceView) -> None:
    if ledger.cluster_id != view.cluster_id:
        raise errors.ClusterChanged(
            f"the ledger belongs to Kafka cluster {ledger.cluster_id}, and these brokers are cluster {view.cluster_id}.",
            safe="Nothing was read or written. Offsets of one cluster mean nothing in another.",
            command="landonce state rebase {file}   (if the topics were migrated), or correct bootstrap_servers",
        )


def _same_topics(ledger: LedgerState, topic_ids: Mapping[str, str]) -> None:
    for topic, topic_id in ledger.topic_ids:
        if topic in topic_ids and topic_ids[topic] != topic_id:
            raise errors.TopicRecreated(
                f"topic {topic!r} was deleted and created again: the ledger knows id {topic_id}, the broker has "
                f"{topic_ids[topic]}.",
                safe="Nothing was read or written. Offsets of the old topic mean nothing in the new one.",
                command="landonce state rebase {file}" + (" --drop-pending" if ledger.pending else ""),
            )


def _still_there(
    partition: Partition, end: int, committed: int, extents: Mapping[Partition, Extent], pending: bool
) -> None:
    extent = extents.get(partition)
    if extent is None:
        raise errors.PartitionVanished(
            f"partition {partition} is in the ledger at offset {committed}, and the topic no longer has it.",
            safe="Nothing was read or written.",
            command="landonce state rebase {file}",
        )
    if extent.start > committed and not pending:
        raise errors.RetentionOverrun(
            f"{partition}: the next offset to read is {committed}, and the topic now begins at {extent.start}; "
            f"offsets [{committed}, {extent.start}) were deleted before landonce read them.",
            safe="Nothing was skipped. The pipeline continues when you accept the gap.",
            command="landonce state accept-gap {file}",
        )
    if extent.stable_end < end:
        raise errors.PositionBeyondEnd(
            f"{partition}: the ledger is at offset {end}, and the topic ends at {extent.stable_end}.",
            safe="Nothing was read or written. The topic was truncated, or is another topic now.",
            command="landonce state rebase {file}",
        )


# Where a pipeline begins whose file names a time, offsets or a consumer group.
#
# It never begins at another place than the one that was asked for:
#
#     start      of a partition                             it begins
#     ─────────  ─────────────────────────────────────────  ─────────────────────────────────────────────────────────────
#     timestamp  has a record of that time or a later one   at the first of them; at the stable end, where that comes first
#                has none, another partition has            at its stable end: all that it has is older
#                has none, nor has any other                refused, unless the topics are empty
#     offsets    is named, the offset is within the topic   there
#                is named, and lies outside                 refused
#                is not named                               refused
#                is named, and the topics lack it           refused
#     group      the group has members                      refused: it goes on meanwhile
#                it has committed an offset                 there, if it is within the topic
#                it has none, or one with metadata          refused: nothing says where it stopped, or not that alone


@dataclass(frozen=True)
class GroupOffsets:
    """A consumer group as it is now."""

    members: int
    committed: Mapping[Partition, int]
    metadata: Mapping[Partition, str]
    """What a client has committed beside the offset, where it is not empty."""


def begin_since(view: SourceView, start: StartAt, since: Mapping[Partition, int]) -> dict[Partition, int]:
    """`since`: the first offset of that time or a later one, asked after the ends of `view`."""
    held = [partition for partition, extent in view.extents if extent.stable_end > extent.start]
    if held and not since:
        raise _refused(
            f"no record of {_topics(view)} has a timestamp at or after that of `start` ({start}).",
            "correct the timestamp in {file}; `start: latest` begins at the end of the topics",
        )
    return {each: min(since.get(each, extent.stable_end), extent.stable_end) for each, extent in view.extents}


def begin_at(view: SourceView, start: StartAt) -> dict[Partition, int]:
    """At the offsets that the file names."""
    named = dict(start.offsets)
    if unknown := named.keys() - dict(view.extents).keys():
        raise _refused(f"`start.offsets` names {_listed(unknown)}, which the topics do not have.", _CORRECT)
    return _within(view, named, "`start.offsets`", _CORRECT)


def begin_after(view: SourceView, start: StartAt, group: GroupOffsets) -> dict[Partition, int]:
    """Where the group stopped."""
    if group.members:
        raise _refused(
            f"the consumer group {start.group!r} has {group.members} active members, so its offsets still move.",
            "stop its consumers, then: landonce run {file}",
        )
    for partition, text in sorted(group.metadata.items()):
        raise _refused(
            f"{partition}: the consumer group {start.group!r} committed metadata ({text[:40]!r}) with its offset. Some clients keep "
            "in it which later records they have processed, and landonce cannot read it.",
            "write the offsets to begin at into {file}: `start: {offsets: …}`",
        )
    return _within(
        view,
        group.committed,
        f"the consumer group {start.group!r}",
        "correct the group's name in {file}, or write the offsets to begin at: `start: {offsets: …}`",
    )


def _within(view: SourceView, named: Mapping[Partition, int], whose: str, command: str) -> dict[Partition, int]:
    if missing := [each for each, _ in view.extents if each not in named]:
        raise _refused(f"{whose} has no offset for {_listed(missing)}.", command)
    begins = {}
    for partition, extent in view.extents:
        begins[partition] = at = named[partition]
        if not extent.start <= at <= extent.stable_end:
            raise _refused(
                f"{partition}: {whose} has offset {at}, and the topic has [{extent.start}, {extent.stable_end}).",
                command,
            )
    return begins


def _topics(view: SourceView) -> str:
    return ", ".join(topic for topic, _ in view.topic_ids)


def _listed(partitions: Iterable[Partition]) -> str:
    return ", ".join(str(each) for each in sorted(partitions))


_CORRECT = "correct `source.kafka.start` in {file}: name every partition, with an offset that the topic has"


def _refused(what: str, command: str) -> errors.StartRefused:
    return errors.StartRefused(
        what, safe="Nothing was read or written, and the pipeline has no position yet.", command=command
    )
