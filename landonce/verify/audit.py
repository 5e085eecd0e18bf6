"""The audit itself: partition by partition, window by window, all tables at once. `opened_audit` builds it from a pipeline file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from landonce.engine.retention import Retention
from landonce.engine.spark.session import open_session, session_if_needed
from landonce.protocol.ledger import LedgerState
from landonce.protocol.source import SourceView
from landonce.sinks.audit import HeldKeys, HeldTables
from landonce.sinks.parts import Parts
from landonce.verify.expect import Decoded, Expectation, Transformed
from landonce.verify.judge import Bounds, Fates, Place, bounds, judge_letters, notes
from landonce.verify.report import PartitionReport, Report
from landonce.verify.table import KeyedAudit, RowsAudit, Stretch, TableAudit, cut
from landonce.verify.topic import Letters, PlainReader, Window
from landonce.verify.values import ValueAudit

Progress = Callable[[int], None]
"""Called with the number of offsets that were judged."""


@contextmanager
def opened_audit(parts: Parts, *, to_end: bool = False, values: bool = False) -> Iterator[Auditor]:
    """An audit that is ready to run. It closes what it opens, and starts Spark only if there is an expression to evaluate."""
    config, kafka = parts.config, parts.config.source.kafka
    with ExitStack() as stack:
        state, view = parts.ledger.load(), parts.source()
        tables = parts.sink.held(parts, state)
        stack.callback(tables.close)
        expectation: Expectation = Decoded(tables)
        if tables.recipe.transforms:
            session = stack.enter_context(session_if_needed(lambda: open_session(config.pipeline, config.spark)))
            expectation = Transformed(tables, session())
        reader = PlainReader(kafka.bootstrap_servers, kafka.options, keys=parts.sink.changes_rows)
        stack.callback(reader.close)
        labels = {(state.labelled(each) if state is not None else each).topic for each, _ in view.extents}
        retention = Retention(kafka.bootstrap_servers, kafka.options)
        yield Auditor(
            pipeline=config.pipeline,
            state=state,
            view=view,
            survey=parts.source,
            reader=reader,
            expectation=expectation,
            tables=tables,
            values=values,
            letters=Letters(config.dead_letters.path, config.pipeline, labels),
            to_end=to_end,
            from_start=kafka.start == "earliest",
            compacted=frozenset(topic for topic in kafka.topics if retention.compacted(topic)),
        )


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
    tables: HeldTables
    values: bool
    """Whether values are compared too."""
    letters: Letters
    to_end: bool
    from_start: bool
    compacted: frozenset[str]
    """Topics in which a record may be gone although its row is correct."""

    def bounds(self) -> tuple[Bounds, ...]:
        return bounds(self.state, self.view, to_end=self.to_end, from_start=self.from_start)

    def size(self) -> int:
        """Offsets to judge, for a progress bar."""
        return sum(each.end - each.start for each in self.bounds())

    def audit(self, progress: Progress = lambda _: None) -> Report:
        """Judges every partition. Changes nothing anywhere."""
        tables = _Tables(self.tables, self.values)
        found = [_begun(each, tables) for each in self.bounds()]
        topics = tuple(self._partition(each, tables, progress) for each in found)
        for table in tables:
            for each in found:
                table.close(each, compacted=each.partition.topic in self.compacted)
        reports = tuple(table.report(found, lambda name: self._later(name, found)) for table in tables)
        return Report(self.pipeline, topics, reports, notes(self.state, self.view, to_end=self.to_end))

    def _partition(self, bound: Bounds, tables: _Tables, progress: Progress) -> PartitionReport:
        report = PartitionReport.of(bound)
        letters = self.letters.of(bound.label)
        report.note_repeated(Place.DEAD_LETTERS, letters.between(0, bound.start))
        compacted = bound.partition.topic in self.compacted
        for window in self.reader.windows(bound.partition, bound.start, bound.end):
            fates = self._fates(bound, window)
            for first, end in cut(window.first, window.end):
                parts = fates.between(first, end), letters.between(first, end)
                _judge(Stretch(bound, first, end, *parts, compacted), tables, report)
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


class _Tables:
    """The tables of one audit, opened when they are first needed, each with the audit that suits it."""

    def __init__(self, held: HeldTables, values: bool) -> None:
        self._held = held
        self._values = values
        self._opened = {name: self._open(name) for name in held.known()}

    def _open(self, name: str) -> TableAudit:
        held = self._held.open(name)
        values = ValueAudit(held.values()) if self._values else None
        if isinstance(held, HeldKeys):
            return KeyedAudit(held, self._held.identity, values)
        return RowsAudit(held, values)

    def __iter__(self) -> Iterator[TableAudit]:
        return iter(self._opened.values())

    def concerned(self, stretch: Stretch) -> Iterator[TableAudit]:
        """Every table that a record names, or that holds anything here."""
        for name in stretch.fates.lands:
            if name not in self._opened:
                self._opened[name] = self._open(name)
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
    report.read += len(stretch.fates.offsets)
    report.filtered += int(np.count_nonzero(~(stretch.fates.landing | stretch.fates.dead)))
    report.dead_lettered += judged.right
    report.add(judged)
