"""The audit of one table whose rows are identified by their coordinates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from landonce.protocol.ranges import Partition
from landonce.verify.bounds import Bounds
from landonce.verify.compare import ValueAudit
from landonce.verify.held.port import Held
from landonce.verify.judge import Counted, Expected, Fates, Offsets, Place, judge_rows
from landonce.verify.partition import PartitionReport, Unprovable
from landonce.verify.report import Stray, TableReport

_SPAN = 2_000_000
"""How many offsets are read at once, however few records they hold."""

Later = Callable[[str], pa.Table | None]
"""What records at or above the end of the judged range change in a table."""


@dataclass(frozen=True)
class Stretch:
    """Some offsets `[first, end)` of a partition that are judged at once."""

    bound: Bounds
    first: int
    end: int
    fates: Fates
    letters: Counted
    compacted: bool


class TableAudit(ABC):
    """One table. Partitions come one after the other, and the stretches of a partition in order."""

    name: str

    @abstractmethod
    def lowest(self, bound: Bounds) -> int | None:
        """The lowest offset in the table of what the topic still holds."""

    @abstractmethod
    def concerned(self, bound: Bounds, first: int, end: int) -> bool:
        """Whether a stretch must be judged even if no record of it should land here."""

    @abstractmethod
    def judge(self, stretch: Stretch) -> Offsets:
        """Judges a stretch, and returns the offsets of it that the table holds."""

    @abstractmethod
    def close(self, bound: Bounds, *, compacted: bool) -> None:
        """The partition was read to its end."""

    @abstractmethod
    def report(self, bounds: Sequence[Bounds], later: Later) -> TableReport:
        """The results, once all partitions are closed."""


class RowsAudit(TableAudit):
    """Every coordinate is expected once, or not at all.

    A table may be found late, when the first record names it. Then the offsets before that record are judged too, with
    nothing expected there.
    """

    def __init__(self, held: Held, values: ValueAudit | None = None) -> None:
        self.name = held.name
        self._held = held
        self._values = values
        self._reports: dict[Partition, PartitionReport] = {}
        self._judged: dict[Partition, int] = {}

    def lowest(self, bound: Bounds) -> int | None:
        return self._held.lowest(bound.label, bound.start)

    def concerned(self, bound: Bounds, first: int, end: int) -> bool:
        return self._held.count(bound.label, first, end) > 0

    def judge(self, stretch: Stretch) -> Offsets:
        bound = stretch.bound
        self._catch_up(bound, stretch.first, compacted=stretch.compacted)
        expected = stretch.fates.of(self.name)
        held = self._compare(bound, stretch.first, stretch.end, expected, stretch.letters, stretch.compacted)
        if self._values is not None and len(held):
            self._values.compare(self.name, bound, stretch.first, stretch.end, stretch.fates)
        self._judged[bound.partition] = stretch.end
        return held

    def close(self, bound: Bounds, *, compacted: bool) -> None:
        self._catch_up(bound, bound.end, compacted=compacted)
        report = self._report(bound)
        report.in_flight = self._held.count(bound.label, bound.end)
        if self._values is not None:
            self._values.note(bound, report)

    def report(self, bounds: Sequence[Bounds], later: Later) -> TableReport:
        del later
        doubled = self._held.doubled()
        for each in bounds:
            self._report(each).doubled = tuple(file.path for file in doubled if file.holds(each.label))
        known = _lives(bounds)
        there = self._held.partitions({each.label.topic for each in bounds})
        strays = (Stray(Partition(label, number), rows) for label, number, rows in there)
        return TableReport(
            self.name,
            tuple(self._report(each) for each in bounds),
            tuple(each for each in strays if each.partition not in known),
            doubled,
            self._held.notes(),
            self._held.as_of(),
            compared=self._values.compared if self._values is not None else None,
        )

    def _catch_up(self, bound: Bounds, to: int, *, compacted: bool) -> None:
        self._report(bound)
        for first, end in cut(self._judged[bound.partition], to):
            if self._held.count(bound.label, first, end):
                self._compare(bound, first, end, Expected.none(), Counted.none(), compacted)
        self._judged[bound.partition] = max(to, self._judged[bound.partition])

    def _compare(
        self, bound: Bounds, first: int, end: int, expected: Expected, letters: Counted, compacted: bool
    ) -> Offsets:
        report = self._report(bound)
        held = self._held.counted(bound.label, first, end)
        judged = judge_rows(expected, held, letters, compacted=compacted)
        report.expected += int(np.count_nonzero(expected.lands))
        report.landed += judged.right
        report.add(judged)
        return held.offsets

    def _report(self, bound: Bounds) -> PartitionReport:
        """Below the start there is nothing to compare with, but duplicates are still wrong."""
        if bound.partition in self._reports:
            return self._reports[bound.partition]
        report = PartitionReport(bound.partition, bound.label.topic, bound.start, bound.end)
        self._reports[bound.partition], self._judged[bound.partition] = report, bound.start
        report.before = self._held.count(bound.label, 0, bound.start)
        first = bound.first if bound.first is not None else bound.start
        if first < bound.start:
            report.unprovable = Unprovable(first, bound.start, self._held.count(bound.label, first, bound.start))
        lowest = self._held.lowest(bound.label, 0, bound.start) if report.before else None
        if lowest is not None:
            for low, high in cut(lowest, bound.start):
                report.note_repeated(Place.TARGET, self._held.repeated(bound.label, low, high))
        return report


def _lives(bounds: Sequence[Bounds]) -> set[Partition]:
    """The partitions under every label of their topic: rows from before a rebase are not stray."""
    labels: dict[str, set[str]] = {}
    for each in bounds:
        labels.setdefault(each.partition.topic, set()).add(each.label.topic)
    return {Partition(label, each.partition.number) for each in bounds for label in labels[each.partition.topic]}


def cut(first: int, end: int) -> Iterator[tuple[int, int]]:
    for low in range(first, end, _SPAN):
        yield low, min(low + _SPAN, end)
