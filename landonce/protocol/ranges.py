"""Partitions and half-open ranges of offsets.

Offsets have gaps (compaction, aborted transactions): `end - first` is an upper bound of the records in a range and is
good for sizing only. Records are counted, never computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

NO_END = 2**63 - 1
"""Past every offset."""


@dataclass(frozen=True, order=True)
class Partition:
    """One partition of one topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"


@dataclass(frozen=True, order=True)
class Range:
    """Offsets `[first, end)` of one partition. Never empty."""

    partition: Partition
    first: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end:
            raise ValueError(f"not a range: [{self.first}, {self.end})")

    def __str__(self) -> str:
        return f"{self.partition} [{self.first}, {self.end})"

    @property
    def span(self) -> int:
        """At most this many records."""
        return self.end - self.first

    def holds(self, offset: int) -> bool:
        return self.first <= offset < self.end


def span_of(ranges: Iterable[Range]) -> int:
    """At most this many records in all of them."""
    return sum(each.span for each in ranges)


def without(whole: Range, gone: Iterable[Range]) -> tuple[Range, ...]:
    """What is left of a range, in order."""
    left = [(whole.first, whole.end)]
    for each in (each for each in gone if each.partition == whole.partition):
        pieces = (((first, min(end, each.first)), (max(first, each.end), end)) for first, end in left)
        left = [(first, end) for both in pieces for first, end in both if first < end]
    return tuple(replace(whole, first=first, end=end) for first, end in left)


def label_of(labels: Mapping[str, str], partition: Partition) -> str:
    """What the target's `_topic` holds for a partition: its own label (under `topic[number]`), or its topic's, or the name."""
    return labels.get(str(partition), labels.get(partition.topic, partition.topic))


def generation_of(label: str) -> int:
    """How often the topic of a label was bound again: 0 for its plain name. Later rows of a topic have the higher number."""
    _, again, made = label.partition("@")
    number = made.rpartition(".")[2] if "." in made else ""
    return int(number) if number else int(bool(again))


def topics_of(labels: Mapping[str, str]) -> dict[str, str]:
    """The way back: which topic a label is for. No topic has a bracket in its name."""
    return {label: of.partition("[")[0] for of, label in labels.items()}
