"""What came with a micro-batch, against what the ledger knows: `protocol.cases`, for all partitions at once. Pure."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from landonce.protocol import ledger as states
from landonce.protocol import query_refusals as refusals
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.cases import Last, OnRewind, Phase, TopicOrigin, decide, resolved
from landonce.protocol.ledger import LedgerState, Position
from landonce.protocol.ranges import NO_END, Partition, Range
from landonce.protocol.source import Extent, SourceView, Start, StartAt

MOST_BLOCKS = 64
"""In one job, unless there are more partitions: Spark decides row by row which block it belongs to."""


@dataclass(frozen=True)
class Incoming:
    """One micro-batch: its true ranges, and where their offsets have a meaning."""

    ranges: tuple[Range, ...]
    cluster_id: str
    topic_ids: tuple[tuple[str, str], ...]
    begun: tuple[Begun, ...] = ()
    """All partitions that the query reads."""

    @property
    def _partitions(self) -> frozenset[Partition]:
        return frozenset(each.partition for each in self.ranges)

    @property
    def starts(self) -> dict[Partition, int]:
        """Where this batch begins in each partition, those of which it brings nothing included."""
        return {each.partition: each.at for each in self.begun} | {each.partition: each.first for each in self.ranges}

    @property
    def view(self) -> SourceView:
        """What can be read: Spark brings again whatever it is asked for."""
        return SourceView(
            self.cluster_id, self.topic_ids, tuple((each, Extent(0, NO_END)) for each in sorted(self._partitions))
        )

    def bound(self, state: LedgerState, start: Start | StartAt) -> LedgerState:
        """The ledger once it knows the cluster, the topics, and where partitions begin that are new to it."""
        del start
        known = state.committed()
        added = {partition: at for partition, at in self.starts.items() if partition not in known}
        topic_ids = {**dict(state.topic_ids), **dict(self.topic_ids)}
        return states.bound(state, self.cluster_id, topic_ids, added)

    def partitions(self, state: LedgerState) -> frozenset[Partition]:
        """Those of which this batch brings something."""
        del state
        return self._partitions

    def undelivered(self, state: LedgerState) -> tuple[Range, ...]:
        """What is new of the micro-batch, in partitions that the ledger knows."""
        committed = state.committed()
        return tuple(
            Range(each.partition, max(each.first, committed[each.partition]), each.end)
            for each in self.ranges
            if committed[each.partition] < each.end
        )

    def of(self, partition: Partition) -> Range | None:
        return next((each for each in self.ranges if each.partition == partition), None)

    def origin(self, partition: Partition) -> TopicOrigin:
        return TopicOrigin(self.cluster_id, dict(self.topic_ids).get(partition.topic, ""))


def refuse_early(state: LedgerState, incoming: Incoming, on_rewind: OnRewind) -> None:
    """Raises where there is nothing exact to do with a range of a partition of which nothing is pending."""
    refusals.same_source(state, incoming.cluster_id, incoming.topic_ids)
    pending = {each.partition for block in (state.pending.blocks if state.pending else ()) for each in block.ranges}
    positions = dict(state.positions)
    for begun in incoming.begun:
        if begun.partition not in positions and begun.at > begun.first:
            raise refusals.unheard_of(begun.partition, begun.first, begun.at)
    for each in incoming.ranges:
        if each.partition in positions and each.partition not in pending:
            _judge(each, positions[each.partition], incoming.origin(each.partition), on_rewind)


def _judge(incoming: Range, position: Position, origin: TopicOrigin, on_rewind: OnRewind) -> None:
    """The ledger knows where the last range ended, and not where it began: its last offset stands for it. Where nothing
    was recorded yet, the position itself is what has to come next."""
    if position.committed > position.first:
        last = Range(incoming.partition, position.committed - 1, position.committed)
        decide(incoming, Last(last, Phase.AFTER, position.first, origin), origin, on_rewind=on_rewind)
        return
    nothing = Last(Range(incoming.partition, position.first, position.first + 1), Phase.BEFORE, position.first, origin)
    if incoming.first < position.first:
        decide(incoming, nothing, origin)
    else:
        resolved(incoming, nothing, landed=False)


def pieces_each(ranges: Sequence[Range]) -> int:
    """How many blocks of each partition go into one commit."""
    return max(1, MOST_BLOCKS // max(1, len(ranges)))


def pieces(whole: Range, offsets: Sequence[int], position: int, pending: int, most: int) -> tuple[Range, ...]:
    """A push that holds many rows, in parts of at most so many new ones each. `offsets` are those of its rows: a range may span billions.

    `position`: what lies before it is delivered and counts for nothing. `pending`: where a pending block ends, which is not cut: it is
    written again as it was, or not at all.
    """
    found, first = list[Range](), whole.first
    at = bisect_left(offsets, max(position, whole.first))
    while first < whole.end:
        end = int(offsets[at + most]) if at + most < len(offsets) else whole.end
        end = min(max(end, pending), whole.end)
        found.append(Range(whole.partition, first, end))
        at, first = bisect_left(offsets, end), end
    return tuple(found)


def cut(ranges: Sequence[Range], table: str, block_rows: int) -> tuple[Block, ...]:
    """The beginning of every range in pieces, which are blocks of one range each: they land together, or not at all."""
    pieces = [
        Range(each.partition, first, min(first + block_rows, each.end))
        for each in ranges
        for first in range(each.first, each.end, block_rows)[: pieces_each(ranges)]
    ]
    return tuple(Block((piece,), table, number=number) for number, piece in enumerate(pieces))


def again(state: LedgerState, plan: Plan, incoming: Incoming, fingerprint: str, on_rewind: OnRewind) -> frozenset[int]:
    """The pending blocks (by index) that are written again: all of them is in this batch, and the query is the same."""
    found = []
    for index, block in enumerate(plan.blocks):
        came, last = incoming.of(block.ranges[0].partition), _last(state, block, incoming)
        if came is not None and decide(came, last, last.origin, on_rewind=on_rewind).again is not None:
            found.append(index)
    return frozenset(found if plan.fingerprint == fingerprint else ())


def follow(state: LedgerState, block: Block, incoming: Incoming, *, landed: bool) -> None:
    """Raises where a pending block turned out absent, and this batch goes on behind it."""
    came = incoming.of(block.ranges[0].partition)
    if came is not None:
        resolved(came, _last(state, block, incoming), landed=landed)


def _last(state: LedgerState, block: Block, incoming: Incoming) -> Last:
    pending = block.ranges[0]
    first = dict(state.positions)[pending.partition].first
    return Last(pending, Phase.BEFORE, first, incoming.origin(pending.partition))


Ends = Mapping[Partition, int]


@dataclass(frozen=True)
class Span:
    """What one source of a query brings to a batch, as Spark's JSON: where the batch begins, where it ends, and where the query began."""

    start: str
    end: str
    initial: str = "{}"


def parsed(text: str) -> dict[Partition, int]:
    """Spark's JSON for offsets of Kafka: `{"topic": {"0": 17}}`."""
    try:
        topics = json.loads(text)
        return {Partition(topic, int(number)): int(at) for topic, each in topics.items() for number, at in each.items()}
    except (ValueError, AttributeError, TypeError):
        raise refusals.query(f"its offsets are not those of Kafka: {text[:100]}") from None


def ranges_of(spans: Iterable[Span]) -> tuple[Range, ...]:
    """The ranges of all sources. A partition that appeared since the batch before it begins at its first offset."""
    found: dict[Partition, Range] = {}
    for span in spans:
        starts = parsed(span.start)
        for partition, end in parsed(span.end).items():
            start = starts.get(partition, 0)
            if end < start:
                raise refusals.query(
                    f"{partition} went back from offset {start} to {end}: the topic was truncated or created again",
                    "start the query with a new checkpoint",
                )
            if partition in found:
                raise _twice(partition)
            if end > start:
                found[partition] = Range(partition, start, end)
    return tuple(sorted(found.values()))


@dataclass(frozen=True)
class Begun:
    """A partition that the query reads: where it began with it, and where this batch begins in it."""

    partition: Partition
    first: int
    at: int


def begun(spans: Iterable[Span]) -> tuple[Begun, ...]:
    """All partitions of the query, those that bring nothing included. One that appeared later begins at its first offset."""
    found = []
    for span in spans:
        first, at = parsed(span.initial), parsed(span.start)
        found += [Begun(each, first.get(each, 0), at.get(each, 0)) for each in parsed(span.end)]
    return tuple(sorted(found, key=lambda each: each.partition))


def topics_of(spans: Iterable[Span]) -> tuple[str, ...]:
    """All topics of a batch. One that two sources read would bring every coordinate twice."""
    seen: set[str] = set()
    for span in spans:
        topics = {partition.topic for partition in parsed(span.end)}
        if both := seen & topics:
            raise _twice(Partition(min(both), 0))
        seen |= topics
    return tuple(sorted(seen))


def _twice(partition: Partition) -> Exception:
    return refusals.query(
        f"two of its sources read topic {partition.topic!r}, so its records come twice with the same coordinates",
        "read each topic with one source",
    )


def starting_offsets(committed: Ends, partitions: Iterable[Partition]) -> str:
    """JSON for Spark's `startingOffsets`: the ledger's position, and the beginning of what it does not know."""
    offsets: dict[str, dict[str, int]] = {}
    for each in sorted(partitions):
        offsets.setdefault(each.topic, {})[str(each.number)] = committed.get(each, _EARLIEST)
    return json.dumps(offsets, separators=(",", ":"))


_EARLIEST = -2
"""As Spark writes it."""
