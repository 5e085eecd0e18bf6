"""What an audit found: per table and partition, in numbers and ranges, and whether it is exact.

Offsets at fault are listed as runs, so that a million of them are one line. Everything is counted, and the first runs are listed. A run
consists of neighbours in the sequence of known offsets, not of consecutive numbers: if compaction has left every tenth record, a hundred
missing ones are still one run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from landonce.protocol.ranges import Partition
from landonce.sinks.audit import CountedOffsets, Doubled, Mask, Offsets
from landonce.verify.judge import FAULTS, Bounds, Discrepancy, JudgedOffsets, Whereabouts

_OF_TABLES = ("expected", "landed", "in_flight", "before", "vanished")
_OF_TOPICS = ("read", "expected", "landed", "dead_lettered", "filtered", "in_flight", "before", "vanished")
_OF_EVENTS = (
    *("records", "events", "landed", "dead_lettered", "filtered"),
    *("copies", "missing", "twice", "again", "below"),
)
LISTED = 20
"""How many runs are listed per fault, place and partition."""


@dataclass(frozen=True)
class FaultyRange:
    """Offsets `[first, end)`, of which `records` are at fault: all that are known in between."""

    first: int
    end: int
    records: int


@dataclass
class Runs:
    """The runs of one fault in one partition, collected window by window in offset order."""

    records: int = 0
    more: int = 0
    """Runs that are counted and not listed."""
    listed: list[FaultyRange] = field(default_factory=list)
    _open: bool = False
    """The last run reached the end of its window, and may continue in the next."""

    def add(self, offsets: Offsets, mask: Mask) -> None:
        """One window: every known offset, and which of them are at fault."""
        edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
        starts, stops = edges[::2], edges[1::2]
        self.records += int(np.count_nonzero(mask))
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            run = FaultyRange(int(offsets[start]), int(offsets[stop - 1]) + 1, stop - start)
            continues = self._open and start == 0
            if continues and self.more == 0 and self.listed:
                last = self.listed[-1]
                self.listed[-1] = replace(last, end=run.end, records=last.records + run.records)
            elif continues and self.more:
                continue
            elif len(self.listed) < LISTED:
                self.listed.append(run)
            else:
                self.more += 1
        if len(offsets):
            self._open = bool(mask[-1])


@dataclass(frozen=True)
class Unprovable:
    """Offsets `[first, end)` that Kafka no longer holds, and what is still known of them."""

    first: int
    end: int
    rows: int
    """Rows that the target holds there. Duplicates can be found; missing rows cannot."""


@dataclass
class PartitionReport:
    """One partition, of the topic or as one table holds it. `[first, end)` is where every record was compared."""

    partition: Partition
    label: str
    first: int
    end: int
    read: int = 0
    expected: int = 0
    landed: int = 0
    dead_lettered: int = 0
    filtered: int = 0
    copies: int = 0
    """With `dedup`: records whose events landed from other records."""
    in_flight: int = 0
    """Rows at or above `end`: reported, and not judged."""
    before: int = 0
    """Rows below the range that the pipeline covered, or that Kafka still holds: only checked for duplicates."""
    vanished: int = 0
    """Rows whose records compaction has removed."""
    unprovable: Unprovable | None = None
    faults: dict[tuple[Discrepancy, Whereabouts], Runs] = field(default_factory=dict)
    listed_elsewhere: dict[Discrepancy, int] = field(default_factory=dict)
    """Faults that are counted here; the report of their table lists the ranges."""
    doubled: tuple[str, ...] = ()
    """Data files that are registered more than once and hold rows of this partition: these rows are the duplicates."""

    @staticmethod
    def of(bound: Bounds) -> PartitionReport:
        return PartitionReport(bound.partition, bound.label.topic, bound.start, bound.end)

    def add(self, judged: JudgedOffsets) -> None:
        """The faults of one more window."""
        self.vanished += judged.vanished
        found = {(fault, place): mask for fault, place, mask in judged.faults}
        for key in found.keys() | self.faults.keys():
            self.faults.setdefault(key, Runs()).add(judged.offsets, found.get(key, judged.offsets < 0))

    def note(self, fault: Discrepancy, place: Whereabouts, offsets: Offsets) -> None:
        """Offsets at fault, in order. Runs are consecutive numbers: other known offsets are not available here."""
        if len(offsets):
            around = np.union1d(offsets, offsets + 1)
            self.faults.setdefault((fault, place), Runs()).add(around, np.isin(around, offsets))

    def note_repeated(self, place: Whereabouts, counted: CountedOffsets) -> None:
        self.note(Discrepancy.DUPLICATED, place, counted.offsets[counted.counts > 1])

    def count(self, fault: Discrepancy) -> int:
        own = sum(runs.records for (each, _), runs in self.faults.items() if each is fault)
        return own + self.listed_elsewhere.get(fault, 0)

    @property
    def exact(self) -> bool:
        return not any(self.count(fault) for fault in Discrepancy)

    def listed(self) -> Iterator[tuple[Discrepancy, Whereabouts, Runs]]:
        for fault in Discrepancy:
            for place in Whereabouts:
                runs = self.faults.get((fault, place))
                if runs is not None and runs.records:
                    yield fault, place, runs

    def with_tables(self, tables: Sequence[PartitionReport]) -> PartitionReport:
        """This partition of the topic, summed over the tables."""
        gone = [each.unprovable for each in tables if each.unprovable is not None]
        alone = len(tables) == 1
        return replace(
            self,
            expected=sum(each.expected for each in tables),
            landed=sum(each.landed for each in tables),
            in_flight=sum(each.in_flight for each in tables),
            before=sum(each.before for each in tables),
            vanished=self.vanished + sum(each.vanished for each in tables),
            unprovable=replace(gone[0], rows=sum(each.rows for each in gone)) if gone else None,
            faults={**self.faults, **(tables[0].faults if alone else {})},
            listed_elsewhere={}
            if alone
            else {fault: sum(each.count(fault) for each in tables) for fault in Discrepancy},
            doubled=tuple(path for each in tables for path in each.doubled),
        )

    def to_dict(self, counts: Sequence[str], faults: Sequence[Discrepancy]) -> dict[str, Any]:
        gone = self.unprovable
        return {
            "topic": self.partition.topic,
            "partition": self.partition.number,
            "label": self.label,
            "judged": [self.first, self.end],
            **{name: getattr(self, name) for name in counts},
            **{fault.value: self.count(fault) for fault in faults},
            "unprovable": None if gone is None else {"first": gone.first, "end": gone.end, "rows": gone.rows},
            "ranges": [
                {
                    "fault": fault.value,
                    "where": place.value,
                    "records": runs.records,
                    "listed": [[run.first, run.end, run.records] for run in runs.listed],
                    "more": runs.more,
                }
                for fault, place, runs in self.listed()
            ],
            "files_registered_twice": list(self.doubled),
            "exact": self.exact,
        }


@dataclass(frozen=True)
class Difference:
    """One value that differs from its record."""

    partition: Partition
    offset: int
    column: str
    expected: str
    found: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.number,
            "offset": self.offset,
            "column": self.column,
            "expected": self.expected,
            "found": self.found,
        }


@dataclass
class Compared:
    """What a comparison of values found in one table."""

    rows: int = 0
    values: int = 0
    differing: Counter[str] = field(default_factory=Counter)
    """The number of values that differ, by column."""
    empty: Counter[str] = field(default_factory=Counter)
    """The number of these where the table holds NULL."""
    absent: Counter[str] = field(default_factory=Counter)
    """Rows that were written before the table had a column, and were not compared in it."""
    filled: Counter[str] = field(default_factory=Counter)
    """Rows whose records hold nothing for a column with a default of the table: not compared in it."""
    listed: list[Difference] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "values": self.values,
            "differing": dict(self.differing),
            "written_before_the_column": dict(self.absent),
            "filled_by_the_table": dict(self.filled),
            "differences": [each.to_dict() for each in self.listed],
        }


@dataclass(frozen=True)
class Stray:
    """Rows of a partition that the topic does not have."""

    partition: Partition
    rows: int

    def to_dict(self) -> dict[str, Any]:
        return {"label": self.partition.topic, "partition": self.partition.number, "rows": self.rows}


@dataclass(frozen=True)
class KeyFault:
    """A key at fault, and the coordinates to report; these may belong to no partition of the topic."""

    fault: Discrepancy
    key: dict[str, Any]
    partition: Partition | None
    offset: int

    def to_dict(self) -> dict[str, Any]:
        at = self.partition
        return {
            "fault": self.fault.value,
            "key": {name: each if isinstance(each, (int, str, bool)) else str(each) for name, each in self.key.items()},
            "label": at.topic if at is not None else None,
            "partition": at.number if at is not None else None,
            "offset": self.offset,
        }


@dataclass(frozen=True)
class EventFault:
    """A record whose event is missing, or is there from another record already."""

    fault: Discrepancy
    partition: Partition
    offset: int
    key: str
    other: Partition | None = None
    """Where the event landed from already."""
    other_offset: int = 0

    def to_dict(self) -> dict[str, Any]:
        first = None if self.other is None else [self.other.topic, self.other.number, self.other_offset]
        return {
            "fault": self.fault.value,
            "topic": self.partition.topic,
            "partition": self.partition.number,
            "offset": self.offset,
            "key": self.key,
            "landed_from": first,
        }


@dataclass
class EventsReport:
    """With `dedup`: what was found of events. A record is landed, a dead letter, filtered, a copy, or missing."""

    records: int = 0
    """Records that have a key."""
    events: int = 0
    landed: int = 0
    dead_lettered: int = 0
    """Events that could not land."""
    filtered: int = 0
    copies: int = 0
    missing: int = 0
    twice: int = 0
    again: int = 0
    """Events that landed once more, farther apart than the window."""
    below: int = 0
    """Events that landed from records that the topic no longer holds."""
    unjudged: Counter[str] = field(default_factory=Counter)
    """Events of which no record landed, by the reason why they are not called missing."""
    below_unknown: bool = False
    """There are rows whose records the topic no longer holds, and whose keys are unknown."""
    window: str = ""
    faults: tuple[EventFault, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _OF_EVENTS},
            "not_judged": {name: count for name, count in sorted(self.unjudged.items()) if count},
            "window": self.window,
            "samples": [each.to_dict() for each in self.faults],
        }


@dataclass(frozen=True)
class TableReport:
    """One table: what it holds, and what it should hold."""

    table: str
    partitions: tuple[PartitionReport, ...]
    strays: tuple[Stray, ...] = ()
    doubled: tuple[Doubled, ...] = ()
    """Data files that are registered more than once."""
    notes: tuple[str, ...] = ()
    as_of: str = ""
    """The state that was audited, if a table has several."""
    keys: tuple[KeyFault, ...] = ()
    """If records change rows: some of the keys at fault."""
    changes: int | None = None
    """How many records change rows of this table; None if records are rows."""
    compared: Compared | None = None
    """The result of the comparison of values, if requested."""

    @property
    def faults(self) -> tuple[Discrepancy, ...]:
        return _faults([self])

    @property
    def exact(self) -> bool:
        return not self.strays and not self.doubled and all(each.exact for each in self.partitions)

    def count(self, fault: Discrepancy) -> int:
        strays = sum(each.rows for each in self.strays) if fault is Discrepancy.UNEXPECTED else 0
        return strays + sum(each.count(fault) for each in self.partitions)

    def total(self, name: str) -> int:
        return sum(int(getattr(each, name)) for each in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        listed = [each for each in self.partitions if each.expected or each.before or each.in_flight or not each.exact]
        return {
            "table": self.table,
            "as_of": self.as_of,
            "exact": self.exact,
            "totals": {
                **{name: self.total(name) for name in _OF_TABLES},
                **{fault.value: self.count(fault) for fault in self.faults},
                **({"changes": self.changes} if self.changes is not None else {}),
            },
            "partitions": [each.to_dict(_OF_TABLES, self.faults) for each in listed],
            "strays": [each.to_dict() for each in self.strays],
            "files_registered_twice": [_doubled(each) for each in self.doubled],
            **({"keys": [each.to_dict() for each in self.keys]} if self.changes is not None else {}),
            **({"values": self.compared.to_dict()} if self.compared is not None else {}),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Report:
    """A whole audit."""

    pipeline: str
    topics: tuple[PartitionReport, ...]
    """The records that were read, and the dead letters."""
    tables: tuple[TableReport, ...]
    notes: tuple[str, ...] = ()
    events: EventsReport | None = None
    """With `dedup`."""

    @property
    def exact(self) -> bool:
        return all(each.exact for each in self.topics) and all(each.exact for each in self.tables)

    @property
    def faults(self) -> tuple[Discrepancy, ...]:
        """Those that this report has columns for."""
        return (*_faults(self.tables), *((Discrepancy.TWICE,) if self.events is not None else ()))

    @property
    def counts(self) -> tuple[str, ...]:
        return (*_OF_TOPICS, *(("copies",) if self.events is not None else ()))

    @property
    def partitions(self) -> tuple[PartitionReport, ...]:
        """Each partition of the topics, summed over all tables."""
        places: Mapping[Partition, list[PartitionReport]] = {each.partition: [] for each in self.topics}
        for table in self.tables:
            for each in table.partitions:
                places[each.partition].append(each)
        return tuple(each.with_tables(places[each.partition]) for each in self.topics)

    def count(self, fault: Discrepancy) -> int:
        return sum(each.count(fault) for each in self.topics) + sum(each.count(fault) for each in self.tables)

    def total(self, name: str) -> int:
        """The sum of one of the counts over all partitions."""
        return sum(int(getattr(each, name)) for each in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "exact": self.exact,
            "totals": {
                **{name: self.total(name) for name in self.counts},
                **{fault.value: self.count(fault) for fault in self.faults},
            },
            "partitions": [each.to_dict(self.counts, self.faults) for each in self.partitions],
            **({"events": self.events.to_dict()} if self.events is not None else {}),
            "strays": [each.to_dict() for table in self.tables for each in table.strays],
            "tables": [each.to_dict() for each in self.tables],
            "notes": [*self.notes, *(note for each in self.tables for note in each.notes)],
        }


def _faults(tables: Sequence[TableReport]) -> tuple[Discrepancy, ...]:
    """The faults that were checked."""
    stale = (Discrepancy.STALE,) if any(each.changes is not None for each in tables) else ()
    changed = (Discrepancy.CHANGED,) if any(each.compared is not None for each in tables) else ()
    return (*FAULTS, *stale, *changed)


def _doubled(doubled: Doubled) -> dict[str, Any]:
    return {
        "path": doubled.path,
        "snapshots": [asdict(each) for each in doubled.references],
        "ranges": [
            {
                "label": each.partition.topic,
                "partition": each.partition.number,
                "first": each.first,
                "end": each.end,
                "rows": each.rows,
            }
            for each in doubled.spans
        ],
    }
