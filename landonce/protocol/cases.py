"""What to do with a range that comes from outside: drop it, write it again, write what is new, or refuse. Pure.

A user's `foreachBatch` does not read what the ledger plans: Spark's checkpoint decides, and after a crash, a lost
checkpoint or a rewind it hands over ranges that were seen already, in part, or never. Here each is held against the
last range that the pipeline recorded. This must never guess: what cannot be known is a probe first, or a named error.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from landonce import errors
from landonce.protocol.ranges import Range


class Phase(str, Enum):
    """What the ledger says of the last range."""

    BEFORE = "before"
    """It was about to be written: it landed whole or not at all, and nobody knows which."""
    AFTER = "after"
    """It landed."""


class OnRewind(str, Enum):
    """What a range gets that was delivered long ago."""

    DROP = "drop"
    ERROR = "error"


@dataclass(frozen=True)
class TopicOrigin:
    """Where offsets have a meaning. They mean nothing in another cluster, or in a topic that was created again."""

    cluster_id: str
    topic_id: str


@dataclass(frozen=True)
class Last:
    """The last range `[x, y)` that the ledger recorded for a partition, and `first`, the first offset ever covered."""

    range: Range
    phase: Phase
    first: int
    origin: TopicOrigin

    def __post_init__(self) -> None:
        if self.first > self.range.first:
            raise ValueError(f"{self.range} lies before the first offset {self.first}")


class RangeCase(str, Enum):
    """How an incoming range lies to the last one, once it is cropped to where the last one begins."""

    FIRST = "first"
    SAME = "same"
    OVERLAPPING = "overlapping"
    CONTAINED = "contained"
    CROSSING = "crossing"
    NEXT = "next"
    BEYOND = "beyond"
    WHOLLY_BEFORE = "wholly before"


@dataclass(frozen=True)
class RangeDecision:
    """What becomes of an incoming range. `drop`, `again` and `new` make it up, in this order, without a gap.

    With `resolve` nothing else is decided yet: probe that range (wait out its deadline and kill what runs, as always),
    and ask `resolved`.
    """

    case: RangeCase
    drop: Range | None = None
    """Delivered already."""
    resolve: Range | None = None
    """The last range; whether it landed has to be known first."""
    again: Range | None = None
    """The last range, to be written under the same token: it lands now, or it has landed."""
    new: Range | None = None
    """Never written: under a token of its own, once the rest is done."""


# An incoming [a, b) against the last recorded [x, y); f is the first offset that the pipeline ever covered.
#
#   case                                     last is AFTER                last is BEFORE
#   ───────────────────────────────────────  ───────────────────────────  ────────────────────────────────────────────
#   nothing recorded yet                     write [a, b)                 -
#   same           a = x, b = y              drop                         write [x, y) again, same token
#   overlapping    a = x, b > y              write [y, b)                 write [x, y) again, then [y, b)
#   contained      a ≥ x, b ≤ y, not same    drop                         resolve [x, y): it cannot be rebuilt from this
#   crossing       x < a < y < b             write [y, b)                 resolve [x, y), then write [y, b)
#   next           a = y                     write [a, b)                 resolve [x, y), then write [a, b)
#   beyond         a > y                     GapRefused                   GapRefused
#   starts before  a < x < b                 crop to [x, b), then as above
#   wholly before  f ≤ a, b ≤ x              drop, or RewindRefused with `on_rewind: error`
#   before the beginning  a < f              RewindRefused: never covered, so nobody knows what became of it
#   other cluster, other topic               ClusterChanged, TopicRecreated
#
#   resolve [x, y):  landed      as if AFTER
#                    absent      it never was: the position is x, so [x, b) is new, or GapRefused where a > x
#                    no probe    OutcomeUnknown


def decide(
    incoming: Range,
    last: Last | None,
    origin: TopicOrigin,
    *,
    on_rewind: OnRewind = OnRewind.DROP,
    can_probe: bool = True,
) -> RangeDecision:
    """The table above. Raises the named error where there is nothing exact to do."""
    if last is None:
        return RangeDecision(RangeCase.FIRST, new=incoming)
    _comparable(incoming, last, origin)
    case = classify(incoming, last)
    if case is RangeCase.WHOLLY_BEFORE and on_rewind is OnRewind.ERROR:
        raise errors.RewindRefused(
            f"{incoming} was already delivered: the last range of the pipeline is {last.range}.",
            safe="Nothing was written. The records are in the target, once.",
            command='on_rewind="drop", or correct the offsets that are brought',
        )
    if case is RangeCase.WHOLLY_BEFORE:
        return RangeDecision(case, drop=incoming)
    if case is RangeCase.BEYOND:
        raise _gap(incoming, last.range.end)
    if last.phase is Phase.AFTER:
        return _split(case, incoming, last.range.end)
    if case in (RangeCase.SAME, RangeCase.OVERLAPPING):
        return RangeDecision(
            case,
            drop=_part(incoming, incoming.first, last.range.first),
            again=last.range,
            new=_part(incoming, last.range.end, incoming.end),
        )
    if not can_probe:
        raise errors.OutcomeUnknown(
            f"nobody knows whether {last.range} landed, {incoming} does not contain all of it, and the sink has no probe.",
            safe="Nothing was written, and the position did not move.",
            command="go on where it stopped, so that the whole range comes again, or give the sink a probe",
        )
    return RangeDecision(case, resolve=last.range)


def resolved(incoming: Range, last: Last, *, landed: bool) -> RangeDecision:
    """What follows once the probe has said whether the last range landed. `GapRefused` if what is absent is not here."""
    position = last.range.end if landed else last.range.first
    if incoming.first > position:
        raise _gap(incoming, position)
    return _split(classify(incoming, last), incoming, position)


def classify(incoming: Range, last: Last) -> RangeCase:
    """The row of the table; `starts before` is a crop, and then one of the others."""
    first, end = max(incoming.first, last.range.first), incoming.end
    if end <= last.range.first:
        return RangeCase.WHOLLY_BEFORE
    if first > last.range.end:
        return RangeCase.BEYOND
    if first == last.range.end:
        return RangeCase.NEXT
    if end > last.range.end:
        return RangeCase.OVERLAPPING if first == last.range.first else RangeCase.CROSSING
    return RangeCase.SAME if (first, end) == (last.range.first, last.range.end) else RangeCase.CONTAINED


def _split(case: RangeCase, incoming: Range, position: int) -> RangeDecision:
    """What lies before the position is delivered, the rest is new."""
    return RangeDecision(
        case,
        drop=_part(incoming, incoming.first, min(position, incoming.end)),
        new=_part(incoming, max(position, incoming.first), incoming.end),
    )


def _part(of: Range, first: int, end: int) -> Range | None:
    return Range(of.partition, first, end) if first < end else None


def _comparable(incoming: Range, last: Last, origin: TopicOrigin) -> None:
    if incoming.partition != last.range.partition:
        raise ValueError(f"{incoming} and {last.range} are of different partitions")
    if origin.cluster_id != last.origin.cluster_id:
        raise errors.ClusterChanged(
            f"{incoming.partition}: the ledger belongs to Kafka cluster {last.origin.cluster_id}, and this range comes "
            f"from cluster {origin.cluster_id}.",
            safe="Nothing was written. Offsets of one cluster mean nothing in another.",
            command="landonce state rebase {file}",
        )
    if origin.topic_id != last.origin.topic_id:
        raise errors.TopicRecreated(
            f"{incoming.partition}: the topic was deleted and created again: the ledger knows id "
            f"{last.origin.topic_id}, and this range comes from {origin.topic_id}.",
            safe="Nothing was written. Offsets of the old topic mean nothing in the new one.",
            command="landonce state rebase {file}",
        )
    if incoming.first < last.first:
        raise errors.RewindRefused(
            f"{incoming} begins before offset {last.first}, the first one of this pipeline. Whether [{incoming.first}, "
            f"{min(last.first, incoming.end)}) was ever delivered is not known.",
            safe="Nothing was written.",
            command=f"start at offset {last.first} or later, or use another name for older records",
        )


def _gap(incoming: Range, position: int) -> errors.GapRefused:
    return errors.GapRefused(
        f"{incoming.partition}: the next offset is {position}, and the source continues at {incoming.first}: "
        f"[{position}, {incoming.first}) was skipped.",
        safe="Nothing was written, and the position did not move.",
        command="landonce state accept-gap {file}   (if Kafka no longer has these offsets), or start the query "
        "where it stopped. A function that calls `exactly_once` must call it for empty batches, too. A push says by `first` and "
        "`end` which offsets have no rows",
    )
