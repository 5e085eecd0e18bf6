"""From the offset log of a checkpoint to true ranges. Pure.

Rows do not say which range they came from: a filter hides both ends. Spark writes where a batch ends to the offset log
before it runs the batch, and runs it between that and where the batch before it ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from landonce.protocol import query_refusals as refusals
from landonce.protocol.ranges import Partition, Range

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
        told = json.loads(text)
        return {Partition(topic, int(number)): int(at) for topic, each in told.items() for number, at in each.items()}
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
                    f"{partition} went back from offset {start} to {end}: the topic was truncated or made anew",
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
    """JSON for Spark's `startingOffsets`: where the ledger stands, and the beginning of what it does not know."""
    told: dict[str, dict[str, int]] = {}
    for each in sorted(partitions):
        told.setdefault(each.topic, {})[str(each.number)] = committed.get(each, _EARLIEST)
    return json.dumps(told, separators=(",", ":"))


_EARLIEST = -2
"""As Spark writes it."""
