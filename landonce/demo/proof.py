"""The demo's proofs: the rows of the table, compared with what was sent. No I/O, and none of landonce's own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class LandedRows:
    """All rows of the table: the `id` of each, and the coordinates of its record."""

    ids: Numbers
    partitions: Numbers
    offsets: Numbers

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int]]) -> LandedRows:
        columns = np.array(rows, np.int64).reshape(-1, 3)
        return cls(columns[:, 0], columns[:, 1], columns[:, 2])


@dataclass(frozen=True)
class ProvedGroup:
    """Records of a partition, or events that were sent equally often: each of them should have one row."""

    name: str
    records: int
    """In Kafka."""
    wanted: int
    """How many should have a row."""
    rows: int
    landed: int
    """How many have a row."""

    @property
    def duplicated(self) -> int:
        return self.rows - self.landed

    @property
    def missing(self) -> int:
        return self.wanted - self.landed


@dataclass(frozen=True)
class Proof:
    """What became of all records, by partition, and the number of kills."""

    groups: tuple[ProvedGroup, ...]
    kills: int
    columns: ClassVar[Mapping[str, str]] = {
        "partition": "name",
        "in Kafka": "wanted",
        "rows": "rows",
        "distinct": "landed",
        "duplicated": "duplicated",
        "missing": "missing",
    }
    """Of the table, each with what a group says."""

    def total(self, name: str) -> int:
        return sum(int(getattr(each, name)) for each in self.groups)

    @property
    def exact(self) -> bool:
        return not any(each.duplicated or each.missing for each in self.groups)

    def sentence(self) -> str:
        verdict = "exactly once" if self.exact else "NOT exactly once"
        counts = ", ".join(f"{self.total(name)} {name}" for name in ("landed", "duplicated", "missing"))
        return f"{verdict}: {self.total('wanted')} read, {counts}, {self.kills} kills"

    def table(self, place: str) -> Table:
        table = Table(title=f"what is in {place}")
        for head in self.columns:
            table.add_column(head, justify="right")
        for each in self.groups:
            found = (getattr(each, name) for name in self.columns.values())
            table.add_row(*(value if isinstance(value, str) else f"{value:,}" for value in found))
        return table


def prove_records(rows: LandedRows, produced: list[int], kills: int) -> Proof:
    """Record `id` was sent to partition `id % partitions`: finds a record that landed under another's offset."""
    right = (rows.ids % len(produced) == rows.partitions) & (rows.ids // len(produced) == rows.offsets)
    found = {}
    for partition in range(len(produced)):
        here = rows.ids[right & (rows.partitions == partition)]
        found[partition] = (len(here), len(np.unique(here)))
    return proof_of(found, len(rows.ids), produced, kills)


def proof_of(found: Mapping[int, tuple[int, int]], total: int, produced: list[int], kills: int) -> Proof:
    """`found`: rows and distinct records per partition. `total`: all rows of the table, also those of no partition, which count as rows
    of the first one."""
    foreign = total - sum(rows for rows, _ in found.values())
    groups = []
    for partition, count in enumerate(produced):
        rows, distinct = found.get(partition, (0, 0))
        groups.append(ProvedGroup(str(partition), count, count, rows + (0 if partition else foreign), distinct))
    return Proof(tuple(groups), kills)


@dataclass(frozen=True)
class EventProof(Proof):
    """What became of all events, by how often they were sent."""

    foreign: int = 0
    """Rows whose coordinates are not those of a record of their event."""
    columns: ClassVar[Mapping[str, str]] = {
        "sent": "name",
        "events": "wanted",
        "records in Kafka": "records",
        "rows": "rows",
        "twice": "duplicated",
        "missing": "missing",
    }

    @property
    def exact(self) -> bool:
        return super().exact and not self.foreign

    def sentence(self) -> str:
        verdict = "each event once" if self.exact else "NOT each event once"
        foreign = f"{self.foreign:,} rows of no record, " if self.foreign else ""
        return (
            f"{verdict}: {self.total('records'):,} records of {self.total('wanted'):,} events read, "
            f"{self.total('landed'):,} landed, {self.total('duplicated'):,} twice, {self.total('missing'):,} missing, "
            f"{foreign}{self.kills} kills"
        )


def prove_events(rows: LandedRows, sent: Sequence[Sequence[int]], kills: int) -> EventProof:
    """`sent`: for each partition, the events of its records, in the order of their offsets."""
    topic = [np.asarray(each, np.int64) for each in sent]
    events, times = np.unique(np.concatenate(topic), return_counts=True)
    right = np.zeros(len(rows.ids), np.bool_)
    for partition, here in enumerate(topic):
        known = (rows.partitions == partition) & (rows.offsets >= 0) & (rows.offsets < len(here))
        right[known] = here[rows.offsets[known]] == rows.ids[known]
    landed, counts = np.unique(rows.ids[right], return_counts=True)
    found = np.zeros(len(events), np.int64)
    found[np.searchsorted(events, landed)] = counts
    groups = []
    for each in np.unique(times).tolist():
        of_these, name = found[times == each], "once" if each == 1 else f"{each} times"
        number, rows_of_these = len(of_these), int(of_these.sum())
        groups.append(ProvedGroup(name, each * number, number, rows_of_these, int(np.count_nonzero(of_these))))
    return EventProof(tuple(groups), kills, int(np.count_nonzero(~right)))
