"""What an audit found: per partition, in numbers and ranges, and whether it is exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from landonce.plan.ranges import Partition
from landonce.verify.judge import Expected, Fault, Judged, Place
from landonce.verify.runs import Runs


@dataclass(frozen=True)
class Unprovable:
    """Offsets `[first, end)` that Kafka does not hold any more, and what can still be said of them."""

    first: int
    end: int
    rows: int
    """Rows that the target holds there. That none is missing cannot be proved; that none is there twice, can."""


@dataclass
class PartitionReport:
    """One partition. `judged` is the range in which every record was compared."""

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
    """Rows below what the pipeline covered, or what Kafka still holds: only looked at for duplicates."""
    vanished: int = 0
    """Rows whose records compaction has taken since."""
    unprovable: Unprovable | None = None
    faults: dict[tuple[Fault, Place], Runs] = field(default_factory=dict)

    def add(self, expected: Expected, judged: Judged) -> None:
        """One more window."""
        lands, dead = int(expected.lands.sum()), int(expected.dead.sum())
        self.read += len(expected.offsets)
        self.expected += lands
        self.filtered += len(expected.offsets) - lands - dead
        self.landed += judged.landed
        self.dead_lettered += judged.dead_lettered
        self.vanished += judged.vanished
        found = {(fault, place): mask for fault, place, mask in judged.faults}
        for key in found.keys() | self.faults.keys():
            runs = self.faults.setdefault(key, Runs())
            runs.add(judged.offsets, found.get(key, judged.offsets < 0))

    def count(self, fault: Fault) -> int:
        return sum(runs.records for (each, _), runs in self.faults.items() if each is fault)

    @property
    def exact(self) -> bool:
        return not any(runs.records for runs in self.faults.values())

    def listed(self) -> Iterator[tuple[Fault, Place, Runs]]:
        for fault in Fault:
            for place in Place:
                runs = self.faults.get((fault, place))
                if runs is not None and runs.records:
                    yield fault, place, runs

    def to_dict(self) -> dict[str, Any]:
        unprovable = self.unprovable
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
            **{fault.value: self.count(fault) for fault in Fault},
            "in_flight": self.in_flight,
            "before": self.before,
            "vanished": self.vanished,
            "unprovable": None
            if unprovable is None
            else {"first": unprovable.first, "end": unprovable.end, "rows": unprovable.rows},
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
            "exact": self.exact,
        }


@dataclass(frozen=True)
class Report:
    """A whole audit."""

    pipeline: str
    partitions: tuple[PartitionReport, ...]
    notes: tuple[str, ...] = ()
    strays: tuple[tuple[str, int, int], ...] = ()
    """Rows of partitions that the topic does not have: (label, partition, rows)."""

    @property
    def exact(self) -> bool:
        return not self.strays and all(each.exact for each in self.partitions)

    def count(self, fault: Fault) -> int:
        strays = sum(rows for _, _, rows in self.strays) if fault is Fault.UNEXPECTED else 0
        return strays + sum(each.count(fault) for each in self.partitions)

    def total(self, name: str) -> int:
        """The sum of one of the counts over all partitions."""
        return sum(int(getattr(each, name)) for each in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        sums = ("read", "expected", "landed", "dead_lettered", "filtered", "in_flight", "before", "vanished")
        return {
            "pipeline": self.pipeline,
            "exact": self.exact,
            "totals": {
                **{name: self.total(name) for name in sums},
                **{fault.value: self.count(fault) for fault in Fault},
            },
            "partitions": [each.to_dict() for each in self.partitions],
            "strays": [{"label": label, "partition": number, "rows": rows} for label, number, rows in self.strays],
            "notes": list(self.notes),
        }
