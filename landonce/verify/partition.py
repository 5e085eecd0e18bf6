"""What an audit found in one partition: in numbers and ranges, and whether it is exact.

Offsets at fault are listed as runs, so that a million of them are one line. Everything is counted, and the first runs are listed. A run
consists of neighbours in the sequence of known offsets, not of consecutive numbers: if compaction has left every tenth record, a hundred
missing ones are still one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from landonce.protocol.ranges import Partition
from landonce.sinks.audit import Counted, Mask, Offsets
from landonce.verify.judge import Fates, Fault, Judged, Place

LISTED = 20
"""How many runs are listed per fault, place and partition."""


@dataclass(frozen=True)
class Run:
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
    listed: list[Run] = field(default_factory=list)
    _open: bool = False
    """The last run reached the end of its window, and may continue in the next."""

    def add(self, offsets: Offsets, mask: Mask) -> None:
        """One window: every known offset, and which of them are at fault."""
        edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
        starts, stops = edges[::2], edges[1::2]
        self.records += int(np.count_nonzero(mask))
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            run = Run(int(offsets[start]), int(offsets[stop - 1]) + 1, stop - start)
            self._take(run, goes_on=self._open and start == 0)
        if len(offsets):
            self._open = bool(mask[-1])

    def _take(self, run: Run, *, goes_on: bool) -> None:
        if goes_on and self.more == 0 and self.listed:
            last = self.listed[-1]
            self.listed[-1] = replace(last, end=run.end, records=last.records + run.records)
        elif goes_on and self.more:
            return
        elif len(self.listed) < LISTED:
            self.listed.append(run)
        else:
            self.more += 1


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
    in_flight: int = 0
    """Rows at or above `end`: reported, and not judged."""
    before: int = 0
    """Rows below the range that the pipeline covered, or that Kafka still holds: only checked for duplicates."""
    vanished: int = 0
    """Rows whose records compaction has removed."""
    unprovable: Unprovable | None = None
    faults: dict[tuple[Fault, Place], Runs] = field(default_factory=dict)
    listed_elsewhere: dict[Fault, int] = field(default_factory=dict)
    """Faults that are counted here; the report of their table lists the ranges."""
    doubled: tuple[str, ...] = ()
    """Data files that are registered more than once and hold rows of this partition: these rows are the duplicates."""

    def note_read(self, fates: Fates) -> None:
        """The records of one more window."""
        self.read += len(fates.offsets)
        self.filtered += int(np.count_nonzero(~(fates.landing | fates.dead)))

    def add(self, judged: Judged) -> None:
        """The faults of one more window."""
        self.vanished += judged.vanished
        found = {(fault, place): mask for fault, place, mask in judged.faults}
        for key in found.keys() | self.faults.keys():
            self.faults.setdefault(key, Runs()).add(judged.offsets, found.get(key, judged.offsets < 0))

    def note(self, fault: Fault, place: Place, offsets: Offsets) -> None:
        """Offsets at fault, in order. Runs are consecutive numbers: other known offsets are not available here."""
        if len(offsets):
            around = np.union1d(offsets, offsets + 1)
            self.faults.setdefault((fault, place), Runs()).add(around, np.isin(around, offsets))

    def note_repeated(self, place: Place, counted: Counted) -> None:
        self.note(Fault.DUPLICATED, place, counted.offsets[counted.counts > 1])

    def count(self, fault: Fault) -> int:
        own = sum(runs.records for (each, _), runs in self.faults.items() if each is fault)
        return own + self.listed_elsewhere.get(fault, 0)

    @property
    def exact(self) -> bool:
        return not any(self.count(fault) for fault in Fault)

    def listed(self) -> Iterator[tuple[Fault, Place, Runs]]:
        for fault in Fault:
            for place in Place:
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
            listed_elsewhere={} if alone else {fault: sum(each.count(fault) for each in tables) for fault in Fault},
            doubled=tuple(path for each in tables for path in each.doubled),
        )

    def to_dict(self, faults: Sequence[Fault]) -> dict[str, Any]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.number,
            "label": self.label,
            "judged": [self.first, self.end],
            "read": self.read,
            "expected": self.expected,
            "landed": self.landed,
            "dead_lettered": self.dead_lettered,
            "filtered": self.filtered,
            **self._judged_dict(faults),
        }

    def table_dict(self, faults: Sequence[Fault]) -> dict[str, Any]:
        """As one table holds it: read, dead-lettered and filtered counts do not belong to a table."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.number,
            "label": self.label,
            "judged": [self.first, self.end],
            "expected": self.expected,
            "landed": self.landed,
            **self._judged_dict(faults),
        }

    def _judged_dict(self, faults: Sequence[Fault]) -> dict[str, Any]:
        gone = self.unprovable
        return {
            **{fault.value: self.count(fault) for fault in faults},
            "in_flight": self.in_flight,
            "before": self.before,
            "vanished": self.vanished,
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
