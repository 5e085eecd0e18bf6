"""The audit itself: partition by partition, window by window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from landonce.plan.ranges import Partition
from landonce.read.source import SourceView
from landonce.record.ledger import LedgerState
from landonce.verify.bounds import Bounds, bounds, notes
from landonce.verify.expect import Expectation
from landonce.verify.held import Held
from landonce.verify.judge import Counted, Fault, Place, judge
from landonce.verify.letters import Letters
from landonce.verify.report import PartitionReport, Report, Unprovable
from landonce.verify.runs import Runs
from landonce.verify.topic import PlainReader, Window

_SPAN = 2_000_000
"""Offsets that are asked for at once, however few records there are among them."""

Progress = Callable[[int], None]
"""Told how many offsets were judged."""


@dataclass(frozen=True)
class Auditor:
    """Everything an audit reads from. The ledger is loaded first and the letters after it: they can only be more."""

    pipeline: str
    state: LedgerState | None
    view: SourceView
    reader: PlainReader
    expectation: Expectation
    held: Held
    letters: Letters
    to_end: bool = False
    from_start: bool = True
    compacted: frozenset[str] = frozenset()
    """Topics in which a record may be gone though its row is rightly there."""

    def bounds(self) -> tuple[Bounds, ...]:
        return bounds(self.state, self.view, to_end=self.to_end, from_start=self.from_start)

    def size(self) -> int:
        """Offsets to judge, for a progress bar."""
        return sum(each.end - each.start for each in self.bounds())

    def audit(self, progress: Progress = lambda _: None) -> Report:
        """Judges every partition. Changes nothing anywhere."""
        found = self.bounds()
        said = list(notes(self.state, self.view, to_end=self.to_end))
        said += self.held.notes()
        reports = tuple(self._partition(each, progress) for each in found)
        return Report(self.pipeline, reports, tuple(said), self._strays(found))

    def _partition(self, bound: Bounds, progress: Progress) -> PartitionReport:
        start = self._start(bound)
        report = PartitionReport(bound.partition, bound.label.topic, start, bound.end)
        letters = self.letters.of(bound.label)
        self._before(bound, start, letters, report)
        for window in self.reader.windows(bound.partition, start, bound.end):
            self._window(bound, window, letters, report)
            progress(window.end - window.first)
        report.in_flight = self.held.count(bound.label, bound.end)
        return report

    def _start(self, bound: Bounds) -> int:
        """Where nobody knows where the pipeline began, what the target holds first is taken for its beginning."""
        if bound.first is not None:
            return bound.start
        lowest = self.held.lowest(bound.label, bound.start)
        return bound.end if lowest is None else min(lowest, bound.end)

    def _window(self, bound: Bounds, window: Window, letters: Counted, report: PartitionReport) -> None:
        expected = self.expectation.of(window)
        compacted = bound.partition.topic in self.compacted
        for first, end in _cut(window.first, window.end):
            part = expected.between(first, end)
            held = self.held.counted(bound.label, first, end)
            report.add(part, judge(part, held, letters.between(first, end), compacted=compacted))

    def _before(self, bound: Bounds, start: int, letters: Counted, report: PartitionReport) -> None:
        """Below `start` there is nothing to compare with, but a coordinate that is there twice is still wrong."""
        report.before = self.held.count(bound.label, 0, start)
        first = bound.first if bound.first is not None else start
        if first < start:
            report.unprovable = Unprovable(first, start, self.held.count(bound.label, first, start))
        lowest = self.held.lowest(bound.label, 0, start) if report.before else None
        if lowest is not None:
            for low, high in _cut(lowest, start):
                _note_repeated(report, Place.TARGET, self.held.repeated(bound.label, low, high))
        _note_repeated(report, Place.DEAD_LETTERS, letters.between(0, start))

    def _strays(self, found: tuple[Bounds, ...]) -> tuple[tuple[str, int, int], ...]:
        known = {each.label for each in found}
        there = self.held.partitions({each.topic for each in known})
        return tuple((label, number, rows) for label, number, rows in there if Partition(label, number) not in known)


def _note_repeated(report: PartitionReport, place: Place, counted: Counted) -> None:
    """Runs over neighbouring numbers: which other offsets there were in between is not known."""
    twice = counted.offsets[counted.counts > 1]
    if len(twice):
        around = np.union1d(twice, twice + 1)
        report.faults.setdefault((Fault.DUPLICATED, place), Runs()).add(around, np.isin(around, twice))


def _cut(first: int, end: int) -> Iterator[tuple[int, int]]:
    for low in range(first, end, _SPAN):
        yield low, min(low + _SPAN, end)
