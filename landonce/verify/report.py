"""What an audit found: per table and partition, in numbers and ranges, and whether it is exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from landonce.protocol.ranges import Partition
from landonce.sinks.audit import Doubled
from landonce.verify.compare import Compared
from landonce.verify.judge import FAULTS, Fault
from landonce.verify.partition import PartitionReport

_OF_TABLES = ("expected", "landed", "in_flight", "before", "vanished")
_OF_TOPICS = ("read", "expected", "landed", "dead_lettered", "filtered", "in_flight", "before", "vanished")


@dataclass(frozen=True)
class Stray:
    """Rows of a partition that the topic does not have."""

    partition: Partition
    rows: int


@dataclass(frozen=True)
class KeyFault:
    """A key at fault, and the coordinates to report; these may belong to no partition of the topic."""

    fault: Fault
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
    def keyed(self) -> bool:
        return self.changes is not None

    @property
    def faults(self) -> tuple[Fault, ...]:
        return _faults([self])

    @property
    def exact(self) -> bool:
        return not self.strays and not self.doubled and all(each.exact for each in self.partitions)

    def count(self, fault: Fault) -> int:
        strays = sum(each.rows for each in self.strays) if fault is Fault.UNEXPECTED else 0
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
                **({"changes": self.changes} if self.keyed else {}),
            },
            "partitions": [each.table_dict(self.faults) for each in listed],
            "strays": [_stray(each) for each in self.strays],
            "files_registered_twice": [_doubled(each) for each in self.doubled],
            **({"keys": [each.to_dict() for each in self.keys]} if self.keyed else {}),
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

    @property
    def exact(self) -> bool:
        return all(each.exact for each in self.topics) and all(each.exact for each in self.tables)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The tables of this report."""
        return _faults(self.tables)

    @property
    def partitions(self) -> tuple[PartitionReport, ...]:
        """Each partition of the topics, summed over all tables."""
        places: Mapping[Partition, list[PartitionReport]] = {each.partition: [] for each in self.topics}
        for table in self.tables:
            for each in table.partitions:
                places[each.partition].append(each)
        return tuple(each.with_tables(places[each.partition]) for each in self.topics)

    def count(self, fault: Fault) -> int:
        return sum(each.count(fault) for each in self.topics) + sum(each.count(fault) for each in self.tables)

    def total(self, name: str) -> int:
        """The sum of one of the counts over all partitions."""
        return sum(int(getattr(each, name)) for each in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "exact": self.exact,
            "totals": {
                **{name: self.total(name) for name in _OF_TOPICS},
                **{fault.value: self.count(fault) for fault in self.faults},
            },
            "partitions": [each.to_dict(self.faults) for each in self.partitions],
            "strays": [_stray(each) for table in self.tables for each in table.strays],
            "tables": [each.to_dict() for each in self.tables],
            "notes": [*self.notes, *(note for each in self.tables for note in each.notes)],
        }


def _faults(tables: Sequence[TableReport]) -> tuple[Fault, ...]:
    """The faults that were checked."""
    stale = (Fault.STALE,) if any(each.keyed for each in tables) else ()
    changed = (Fault.CHANGED,) if any(each.compared is not None for each in tables) else ()
    return (*FAULTS, *stale, *changed)


def _stray(stray: Stray) -> dict[str, Any]:
    return {"label": stray.partition.topic, "partition": stray.partition.number, "rows": stray.rows}


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
