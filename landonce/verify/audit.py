"""The audit itself: partition by partition, window by window, all tables at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from landonce.protocol.ledger import LedgerState
from landonce.protocol.source import SourceView
from landonce.verify.bounds import Bounds, bounds, notes
from landonce.verify.expect import Expectation
from landonce.verify.judge import Fates, Place, judge_letters
from landonce.verify.partition import PartitionReport
from landonce.verify.report import Report
from landonce.verify.table import Stretch, TableAudit, cut
from landonce.verify.topic import Letters, PlainReader, Window

Progress = Callable[[int], None]
"""Called with the number of offsets that were judged."""


class Targets(Protocol):
    """The tables of a pipeline."""

    def known(self) -> Iterable[str]:
        """The tables that are known before any record is read: they may hold rows without a record."""

    def open(self, table: str) -> TableAudit:
        """A known table, or one that a record names. It may not exist."""


@dataclass(frozen=True)
class Auditor:
    """Everything an audit reads from. The ledger is loaded before the dead letters, which can only grow."""

    pipeline: str
    state: LedgerState | None
    view: SourceView
    survey: Callable[[], SourceView]
    """Asks the topic again."""
    reader: PlainReader
    expectation: Expectation
    targets: Targets
    letters: Letters
    to_end: bool = False
    from_start: bool = True
    compacted: frozenset[str] = frozenset()
    """Topics in which a record may be gone although its row is correct."""

    def bounds(self) -> tuple[Bounds, ...]:
        return bounds(self.state, self.view, to_end=self.to_end, from_start=self.from_start)

    def size(self) -> int:
        """Offsets to judge, for a progress bar."""
        return sum(each.end - each.start for each in self.bounds())

    def audit(self, progress: Progress = lambda _: None) -> Report:
        """Judges every partition. Changes nothing anywhere."""
        tables = _Tables(self.targets)
        found = [_begun(each, tables) for each in self.bounds()]
        topics = tuple(self._partition(each, tables, progress) for each in found)
        for table in tables:
            for each in found:
                table.close(each, compacted=self._is_compacted(each))
        reports = tuple(table.report(found, lambda name: self._later(name, found)) for table in tables)
        return Report(self.pipeline, topics, reports, notes(self.state, self.view, to_end=self.to_end))

    def _partition(self, bound: Bounds, tables: _Tables, progress: Progress) -> PartitionReport:
        report = PartitionReport(bound.partition, bound.label.topic, bound.start, bound.end)
        letters = self.letters.of(bound.label)
        report.note_repeated(Place.DEAD_LETTERS, letters.between(0, bound.start))
        for window in self.reader.windows(bound.partition, bound.start, bound.end):
            fates = self._fates(bound, window)
            for first, end in cut(window.first, window.end):
                parts = fates.between(first, end), letters.between(first, end)
                _judge(Stretch(bound, first, end, *parts, self._is_compacted(bound)), tables, report)
            progress(window.end - window.first)
        return report

    def _later(self, table: str, found: Iterable[Bounds]) -> pa.Table | None:
        """The changes of records beyond the judged range. Asks the topic again: the pipeline may have continued."""
        ends = {partition: extent.stable_end for partition, extent in self.survey().extents}
        changes = [
            self._fates(bound, window).changes.get(table)
            for bound in found
            for window in self.reader.windows(bound.partition, bound.end, ends.get(bound.partition, bound.end))
        ]
        there = [each for each in changes if each is not None]
        return pa.concat_tables(there) if there else None

    def _fates(self, bound: Bounds, window: Window) -> Fates:
        return self.expectation.of(window).without(self.letters.refused(bound.label))

    def _is_compacted(self, bound: Bounds) -> bool:
        return bound.partition.topic in self.compacted


class _Tables:
    """The tables of one audit, opened when they are first needed."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._opened = {name: targets.open(name) for name in targets.known()}

    def __iter__(self) -> Iterator[TableAudit]:
        return iter(self._opened.values())

    def concerned(self, stretch: Stretch) -> Iterator[TableAudit]:
        """Every table that a record names, or that holds anything here."""
        for name in stretch.fates.lands:
            if name not in self._opened:
                self._opened[name] = self._targets.open(name)
            yield self._opened[name]
        for name, table in self._opened.items():
            if name not in stretch.fates.lands and table.concerned(stretch.bound, stretch.first, stretch.end):
                yield table


def _begun(bound: Bounds, tables: Iterable[TableAudit]) -> Bounds:
    """If the start of the pipeline is unknown, the first offset in the target counts as the start."""
    if bound.first is not None:
        return bound
    lowest = [table.lowest(bound) for table in tables]
    start = min((each for each in lowest if each is not None), default=bound.end)
    return replace(bound, start=min(start, bound.end))


def _judge(stretch: Stretch, tables: _Tables, report: PartitionReport) -> None:
    """Judges the tables first: the dead letters are judged against what any table holds."""
    held = [table.judge(stretch) for table in tables.concerned(stretch)]
    anywhere = np.concatenate([np.empty(0, np.int64), *held])
    judged = judge_letters(stretch.fates, anywhere, stretch.letters, compacted=stretch.compacted)
    report.note_read(stretch.fates)
    report.dead_lettered += judged.right
    report.add(judged)
