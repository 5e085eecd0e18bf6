"""The audit itself: partition by partition, window by window, all tables at once. `opened_audit` builds it from a pipeline file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from landonce.dedup.rule import PUSHED, accepted_schema, key_rule, known_types
from landonce.dedup.store import StorePlace
from landonce.engine.retention import Retention
from landonce.engine.spark.session import open_session, session_if_needed
from landonce.errors import SourceUnavailable
from landonce.protocol.ledger import LedgerState
from landonce.protocol.operate import skipped_ranges
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import SourceView, Start
from landonce.sinks.audit import CountedOffsets, HeldKeys, HeldTables, Mask, Offsets
from landonce.sinks.parts import Parts
from landonce.sinks.worker import Recipe
from landonce.verify.events import ABSENT, EventAudit, Halves, Keyed, KeyReader, Remembered, states
from landonce.verify.expect import DecodedRecordsLand, Expectation, Transformed
from landonce.verify.handled import HandledLetters
from landonce.verify.judge import Bounds, Discrepancy, Fates, Whereabouts, bounds, judge_letters, notes
from landonce.verify.report import EventsReport, PartitionReport, Report
from landonce.verify.table import KeyedAudit, RowsAudit, Stretch, TableAudit, cut
from landonce.verify.topic import LetterOffsets, PlainReader, Window, late_letters
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
        expectation: Expectation = DecodedRecordsLand(tables)
        if tables.recipe.transforms:
            session = stack.enter_context(session_if_needed(lambda: open_session(config.pipeline, config.spark)))
            expectation = Transformed(tables, session())
        events = event_audit(parts, tables) if config.dedup is not None else None
        rule = events.keys.rule if events is not None else None
        reader = PlainReader(
            kafka.bootstrap_servers,
            kafka.options,
            keys=parts.sink.changes_rows or (rule is not None and rule.needs_kafka_key),
            headers=rule.headers if rule is not None else (),
        )
        stack.callback(reader.close)
        folder, recipe = config.dead_letters.path, tables.recipe
        # With `dedup`, events that were accepted and could not land have a folder of their own, and no letter is replayed.
        folders = (folder, folder / PUSHED) if config.dedup is not None else (folder,)
        judgement = recipe.judgement() if isinstance(recipe, Recipe) and config.dedup is None else ""
        labels = {(state.labelled(each) if state is not None else each).topic for each, _ in view.extents}
        compacted, unasked = _compacted(Retention(kafka.bootstrap_servers, kafka.options), view)
        yield Auditor(
            pipeline=config.pipeline,
            skipped=skipped_ranges(parts.ledger.journal()) if state is not None else (),
            state=state,
            view=view,
            survey=parts.source,
            reader=reader,
            expectation=expectation,
            tables=tables,
            values=values,
            letters=LetterOffsets(folders, config.pipeline, labels, judgement),
            handled=HandledLetters.of(folders, config.pipeline, replayable=not parts.sink.no_replay),
            events=events,
            late=late_letters(folder, config.pipeline, labels, events.forgotten_before) if events else {},
            to_end=to_end,
            from_start=parts.start is Start.EARLIEST,
            compacted=compacted,
            unasked=unasked,
        )


def _compacted(retention: Retention, view: SourceView) -> tuple[frozenset[str], tuple[str, ...]]:
    """The compacted topics, and a note on each topic whose settings the user may not read: it is judged as one that is not compacted,
    which may find too many faults and never too few."""
    found, unasked = set[str](), []
    for topic, _ in view.topic_ids:
        try:
            found.update([topic] if retention.compacted(topic) else [])
        except SourceUnavailable as error:
            unasked.append(
                f"{topic}: whether it is compacted cannot be asked ({error.what}). It was judged as if it is not: rows whose records "
                "compaction removed are called unexpected. Allow DescribeConfigs on it if that matters."
            )
    return frozenset(found), tuple(unasked)


def event_audit(parts: Parts, tables: HeldTables) -> EventAudit:
    """The audit of the events of a pipeline with `dedup`."""
    config, dedup = parts.config, parts.config.dedup
    if dedup is None:
        raise ValueError("the pipeline has no `dedup`")
    types = known_types(parts)
    source = accepted_schema(tables.recipe, dedup, types)
    shared: tuple[str, ...] = ()
    if dedup.scope not in (None, config.pipeline):
        store = StorePlace(config.store_place, dedup.scope or "").open()
        with closing(store):
            shared = tuple(each for each in store.pipelines() if each != config.pipeline) if store.look() else ()
    window = Remembered(int(dedup.ttl) * 1000, dedup.late, int(time.time() * 1000))
    return EventAudit(
        KeyReader(key_rule(dedup, source, tables.recipe.decoding, types), source, tables.recipe.decoding),
        window,
        shared,
    )


@dataclass(frozen=True)
class Auditor:
    """Everything an audit reads from. The ledger is loaded before the dead letters, which can only grow."""

    pipeline: str
    skipped: tuple[Range, ...]
    """What operators decided never to deliver."""
    state: LedgerState | None
    view: SourceView
    survey: Callable[[], SourceView]
    """Asks the topic again."""
    reader: PlainReader
    expectation: Expectation
    tables: HeldTables
    values: bool
    """Whether values are compared too."""
    letters: LetterOffsets
    handled: HandledLetters
    to_end: bool
    from_start: bool
    events: EventAudit | None
    """With `dedup`."""
    late: Mapping[Partition, Offsets]
    """With `dedup`: the records that came too late."""
    compacted: frozenset[str]
    """Topics in which a record may be gone although its row is correct."""
    unasked: tuple[str, ...]
    """What a reader must know of topics whose settings cannot be asked."""

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
        events = self._events(self.events, found, topics, tables) if self.events is not None else None
        reports = tuple(table.report(found, lambda name: self._later(name, found)) for table in tables)
        said = (*notes(self.state, self.view, to_end=self.to_end), *self.unasked, *self.handled.notes())
        return Report(self.pipeline, topics, reports, said, events)

    def _partition(self, bound: Bounds, tables: _Tables, progress: Progress) -> PartitionReport:
        report = PartitionReport.of(bound)
        counted = self.letters.of(bound.label)
        report.note_repeated(Whereabouts.DEAD_LETTERS, counted.between(0, bound.start))
        compacted = bound.partition.topic in self.compacted
        for whole in self.reader.windows(bound.partition, bound.start, bound.end):
            held = partial(_held, tables, bound, whole)
            window, letters, dropped = self.handled.judged(bound.label, whole, counted, held)
            fates = self._fates(bound, window, letters)
            fates = fates.left_out(np.isin(fates.offsets, dropped))
            fates = fates.without(self._still_letters(bound, fates, letters, held))
            keyed = self._keyed(bound, window)
            if keyed is not None:
                fates = fates.without(keyed.offsets[~keyed.known])
            for first, end in cut(window.first, window.end):
                parts = fates.between(first, end), letters.between(first, end)
                here = keyed.between(first, end) if keyed is not None else None
                self._judge(Stretch(bound, first, end, *parts, compacted), tables, report, here)
            progress(window.end - window.first)
        return report

    def _judge(self, stretch: Stretch, tables: _Tables, report: PartitionReport, keyed: Keyed | None) -> None:
        """Judges the tables first: the dead letters are judged against what any table holds."""
        concerned = list(tables.concerned(stretch))
        copies = 0
        if self.events is not None and keyed is not None:
            held = [table.held(stretch.bound, stretch.first, stretch.end) for table in concerned]
            anywhere = np.concatenate([np.empty(0, np.int64), *held])
            known = states(stretch.fates, keyed.known, anywhere, stretch.letters.offsets)
            self.events.add(stretch.bound, keyed, known)
            copies = int(np.count_nonzero(known == ABSENT))
            stretch = replace(stretch, fates=stretch.fates.left_out(known == ABSENT))
        held = [table.judge(stretch) for table in concerned]
        anywhere = np.concatenate([np.empty(0, np.int64), *held])
        judged = judge_letters(stretch.fates, anywhere, stretch.letters, compacted=stretch.compacted)
        report.read += len(stretch.fates.offsets)
        report.filtered += int(np.count_nonzero(~(stretch.fates.landing | stretch.fates.dead))) - copies
        report.copies += copies
        report.dead_lettered += judged.right
        report.add(judged)

    def _keyed(self, bound: Bounds, window: Window) -> Keyed | None:
        if self.events is None:
            return None
        return self.events.keys.of(window, bound.label, self.late.get(bound.label, np.empty(0, np.int64)))

    def _events(
        self, audit: EventAudit, found: Sequence[Bounds], topics: Sequence[PartitionReport], tables: _Tables
    ) -> EventsReport:
        """Judges events, once all records were read. What is wrong is noted in the reports of the partitions."""
        above = (self._keyed(bound, window) for bound, window in self._windows_above(found))
        judged = audit.judge(filter(None, above), self._below(audit.keys, found, tables))
        for bound, report in zip(found, topics, strict=True):
            missing, twice = (judged.of(bound, fault) for fault in (Discrepancy.MISSING, Discrepancy.TWICE))
            report.copies -= len(missing)
            report.note(Discrepancy.MISSING, Whereabouts.TARGET, missing)
            report.note(Discrepancy.TWICE, Whereabouts.TARGET, twice)

        def key_of(bound: Bounds, offset: int) -> str:
            windows = self.reader.windows(bound.partition, offset, offset + 1)
            return next((audit.keys.text(window) for window in windows if len(window.offsets)), "?")

        judged.report.faults = judged.samples(key_of)
        return judged.report

    def _windows_above(self, found: Iterable[Bounds]) -> Iterator[tuple[Bounds, Window]]:
        """The records above the judged range. Asks the topic again: the pipeline may have continued."""
        ends = {partition: extent.stable_end for partition, extent in self.survey().extents}
        for bound in found:
            for window in self.reader.windows(bound.partition, bound.end, ends.get(bound.partition, bound.end)):
                yield bound, window

    def _below(
        self, keys: KeyReader, found: Iterable[Bounds], tables: _Tables
    ) -> Iterator[tuple[Halves, Halves] | None]:
        """The ids of the rows whose records the topic no longer holds."""
        for bound in found:
            for table in tables.rows():
                compacted = bound.partition.topic in self.compacted
                end = bound.end if compacted else bound.start
                lowest = table.table.lowest(bound.label, 0, end)
                if lowest is None:
                    continue
                ids = keys.held(self.tables, table.table)
                yield from ids.read(bound.label, lowest, end) if ids is not None else (None,)

    def _later(self, table: str, found: Iterable[Bounds]) -> pa.Table | None:
        """The changes of records above the judged range."""
        changes = [
            self._fates(bound, window, self.letters.of(bound.label)).changes.get(table)
            for bound, window in self._windows_above(found)
        ]
        there = [each for each in changes if each is not None]
        return pa.concat_tables(there) if there else None

    def _fates(self, bound: Bounds, window: Window, letters: CountedOffsets) -> Fates:
        """`letters`: those that still count. What the target refused may have landed in a replay since."""
        refused = self.letters.refused(bound.label)
        fates = self.expectation.of(window).without(refused[np.isin(refused, letters.offsets)])
        return fates.left_out(self._skipped(bound, fates.offsets))

    def _skipped(self, bound: Bounds, offsets: Offsets) -> Mask:
        gone = np.zeros(len(offsets), bool)
        for each in self.skipped:
            if each.partition == bound.partition:
                gone |= (offsets >= each.first) & (offsets < each.end)
        return gone

    def _still_letters(
        self, bound: Bounds, fates: Fates, letters: CountedOffsets, held: Callable[[], Offsets]
    ) -> Offsets:
        """Letters that were made with another file or other columns. They stay letters until they are replayed, also if they would land or
        be filtered now. A record that any table holds is not among them."""
        waiting = np.intersect1d(self.letters.judged_otherwise(bound.label), fates.offsets[~fates.dead])
        waiting = waiting[np.isin(waiting, letters.offsets) & ~self._skipped(bound, waiting)]
        if len(waiting):
            waiting = waiting[~np.isin(waiting, held())]
            self.handled.waiting += len(waiting)
        return waiting


def _held(tables: _Tables, bound: Bounds, window: Window) -> Offsets:
    """What any table holds of a window."""
    return np.concatenate(
        [np.empty(0, np.int64), *(each.held(bound, window.first, window.end) for each in tables.rows())]
    )


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
            return KeyedAudit(held, self._held.identity(name), values)
        return RowsAudit(held, values)

    def __iter__(self) -> Iterator[TableAudit]:
        return iter(self._opened.values())

    def rows(self) -> Iterator[RowsAudit]:
        return (table for table in self if isinstance(table, RowsAudit))

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
