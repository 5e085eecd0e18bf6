"""The audit of one table: by the coordinates of its rows, or, if records change rows, by their keys after everything was read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.protocol.ranges import Partition
from landonce.read.envelopes import DELETE, OPERATION
from landonce.sinks.audit import OFFSET, PLACE, CountedOffsets, Held, HeldKeys, Offsets, plain
from landonce.verify.judge import Bounds, Discrepancy, Expected, Fates, Whereabouts, judge_rows
from landonce.verify.keys import LAST, JudgedKeys, KeyLimits, LastChanges, judge_keys
from landonce.verify.report import LISTED, KeyFault, PartitionReport, Stray, TableReport, Unprovable
from landonce.verify.values import ValueAudit

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
    letters: CountedOffsets
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

    def held(self, bound: Bounds, first: int, end: int) -> Offsets:
        """The offsets that the table holds. With `dedup`, they say which record of an event landed."""
        del bound, first, end
        raise NotImplementedError("rows that records change are not deduplicated")

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
        self._counted: tuple[tuple[Partition, int, int], CountedOffsets] | None = None

    @property
    def table(self) -> Held:
        return self._held

    def held(self, bound: Bounds, first: int, end: int) -> Offsets:
        return self._count(bound, first, end).offsets

    def _count(self, bound: Bounds, first: int, end: int) -> CountedOffsets:
        """The last answer is kept: it may be asked for twice."""
        asked = (bound.label, first, end)
        if self._counted is None or self._counted[0] != asked:
            self._counted = asked, self._held.counted(*asked)
        return self._counted[1]

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
                self._compare(bound, first, end, Expected.none(), CountedOffsets.none(), compacted)
        self._judged[bound.partition] = max(to, self._judged[bound.partition])

    def _compare(
        self, bound: Bounds, first: int, end: int, expected: Expected, letters: CountedOffsets, compacted: bool
    ) -> Offsets:
        report = self._report(bound)
        held = self._count(bound, first, end)
        judged = judge_rows(expected, held, letters, compacted=compacted)
        report.expected += int(np.count_nonzero(expected.lands))
        report.landed += judged.right
        report.add(judged)
        return held.offsets

    def _report(self, bound: Bounds) -> PartitionReport:
        """Below the start there is nothing to compare with, but duplicates are still wrong."""
        if bound.partition in self._reports:
            return self._reports[bound.partition]
        report = PartitionReport.of(bound)
        self._reports[bound.partition], self._judged[bound.partition] = report, bound.start
        report.before = self._held.count(bound.label, 0, bound.start)
        first = bound.first if bound.first is not None else bound.start
        if first < bound.start:
            report.unprovable = Unprovable(first, bound.start, self._held.count(bound.label, first, bound.start))
        lowest = self._held.lowest(bound.label, 0, bound.start) if report.before else None
        if lowest is not None:
            for low, high in cut(lowest, bound.start):
                report.note_repeated(Whereabouts.TARGET, self._held.repeated(bound.label, low, high))
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


class KeyedAudit(TableAudit):
    """Every key is expected with the coordinates of its last change, or not at all."""

    def __init__(self, held: HeldKeys, identity: Sequence[str], values: ValueAudit | None = None) -> None:
        self.name = held.name
        self._held = held
        self._values = values
        self._identity = list(identity)
        self._last = LastChanges(identity)
        self._places: dict[Partition, int] = {}
        self._compacted: dict[Partition, bool] = {}

    def lowest(self, bound: Bounds) -> int | None:
        rows = self._held.rows({bound.label: 0})
        if rows is None:
            return None
        at = rows.filter((pc.field(PLACE) == 0) & (pc.field(OFFSET) >= bound.start)).column(OFFSET)
        found: int | None = pc.min(at).as_py()
        return found

    def concerned(self, bound: Bounds, first: int, end: int) -> bool:
        del bound, first, end
        return False

    def judge(self, stretch: Stretch) -> Offsets:
        changes = stretch.fates.changes.get(self.name)
        if changes is not None and changes.num_rows:
            offsets = stretch.fates.offsets[stretch.fates.lands[self.name]]
            deleted = np.asarray(pc.equal(changes.column(OPERATION), DELETE).to_numpy(), np.bool_)
            self._last.add(changes.select(self._identity), self._place(stretch.bound), offsets, deleted)
            if self._values is not None:
                self._values.compare(self.name, stretch.bound, stretch.first, stretch.end, stretch.fates)
        return np.empty(0, np.int64)

    def close(self, bound: Bounds, *, compacted: bool) -> None:
        self._place(bound)
        self._compacted[bound.label] = compacted

    def report(self, bounds: Sequence[Bounds], later: Later) -> TableReport:
        held, last = self._held.rows(self._places), self._last.table()
        judged = self._judged(bounds, last, held, None)
        if Discrepancy.MISSING in judged.faults:
            changes = later(self.name)
            if changes is not None:
                deleted = changes.filter(pc.equal(changes.column(OPERATION), DELETE))
                judged = self._judged(bounds, last, held, plain(deleted.select(self._identity)))
        doubled = self._held.doubled()
        reports = tuple(self._partition(each, judged) for each in bounds)
        for bound, report in zip(bounds, reports, strict=True):
            report.doubled = tuple(file.path for file in doubled if file.holds(bound.label))
            if self._values is not None:
                self._values.note(bound, report)
        return TableReport(
            self.name,
            reports,
            doubled=doubled,
            notes=(*self._held.notes(), *self._notes(judged)),
            as_of=self._held.as_of(),
            keys=tuple(self._faults(judged)),
            changes=self._last.changes,
            compared=self._values.compared if self._values is not None else None,
        )

    def _judged(
        self, bounds: Sequence[Bounds], last: pa.Table | None, held: pa.Table | None, later: pa.Table | None
    ) -> JudgedKeys:
        known = held if held is not None else last
        if known is None:
            known = pa.table({name: pa.array([], pa.int64()) for name in self._identity})
        keys = known.schema.empty_table().select(self._identity)
        none = pa.array([], pa.int64())
        ordered = sorted(bounds, key=lambda each: self._places[each.label])
        limits = KeyLimits(
            np.array([each.start for each in ordered]),
            np.array([each.end for each in ordered]),
            np.array([self._compacted[each.label] for each in ordered]),
        )
        return judge_keys(
            self._identity,
            last if last is not None else keys.append_column(PLACE, none).append_column(LAST, none),
            held if held is not None else keys.append_column(PLACE, none).append_column(OFFSET, none),
            later if later is not None else keys,
            limits,
        )

    def _partition(self, bound: Bounds, judged: JudgedKeys) -> PartitionReport:
        place = self._places[bound.label]
        report = PartitionReport.of(bound)
        for name in ("expected", "landed", "in_flight", "before", "vanished"):
            setattr(report, name, int(getattr(judged, name)[place]))
        for fault, faulty in judged.faults.items():
            report.note(fault, Whereabouts.TARGET, np.unique(faulty.offsets[faulty.places == place]))
        return report

    def _notes(self, judged: JudgedKeys) -> list[str]:
        found = []
        if judged.scattered:
            found.append(
                f"{self.name}: {judged.scattered} keys have changes in several partitions, which have no order among "
                "them: the last change of any of these was taken."
            )
        if judged.without:
            found.append(f"{self.name}: {judged.without} rows are not of these topics and were not judged.")
        return found

    def _faults(self, judged: JudgedKeys) -> list[KeyFault]:
        partitions = {place: partition for partition, place in self._places.items()}
        found = []
        for fault, faulty in judged.faults.items():
            faults = zip(faulty.places.tolist(), faulty.offsets.tolist(), faulty.keys.tolist(), strict=True)
            for place, offset, key in list(faults)[:LISTED]:
                (row,) = judged.keys.slice(key, 1).to_pylist()
                found.append(KeyFault(fault, row, partitions.get(place), offset))
        return found

    def _place(self, bound: Bounds) -> int:
        return self._places.setdefault(bound.label, len(self._places))
