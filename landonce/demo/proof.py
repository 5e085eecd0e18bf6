"""The demo's proofs: the rows of the table, compared with what was sent. No I/O, and none of landonce's own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
class PartitionProof:
    """One partition: the number of records, of rows in the table, and of distinct rows."""

    partition: int
    produced: int
    rows: int
    distinct: int

    @property
    def duplicated(self) -> int:
        return self.rows - self.distinct

    @property
    def missing(self) -> int:
        return self.produced - self.distinct


@dataclass(frozen=True)
class Proof:
    """All partitions, and the number of kills."""

    partitions: tuple[PartitionProof, ...]
    kills: int

    @property
    def exact(self) -> bool:
        return not self.duplicated and not self.missing

    @property
    def landed(self) -> int:
        return sum(each.distinct for each in self.partitions)

    @property
    def duplicated(self) -> int:
        return sum(each.duplicated for each in self.partitions)

    @property
    def missing(self) -> int:
        return sum(each.missing for each in self.partitions)

    def sentence(self) -> str:
        verdict = "exactly once" if self.exact else "NOT exactly once"
        read = sum(each.produced for each in self.partitions)
        return (
            f"{verdict}: {read} read, {self.landed} landed, {self.duplicated} duplicated, {self.missing} missing, "
            f"{self.kills} kills"
        )

    def table(self, place: str) -> Table:
        table = Table(title=f"what is in {place}")
        for name in ("partition", "in Kafka", "rows", "distinct", "duplicated", "missing"):
            table.add_column(name, justify="right")
        for each in self.partitions:
            numbers = (each.partition, each.produced, each.rows, each.distinct, each.duplicated, each.missing)
            table.add_row(*(f"{number:,}" for number in numbers))
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
    """`found`: rows and distinct records per partition. `total`: all rows of the table, also those of no partition."""
    proofs = [
        PartitionProof(partition, count, *found.get(partition, (0, 0))) for partition, count in enumerate(produced)
    ]
    foreign = total - sum(rows for rows, _ in found.values())
    if foreign:
        proofs[0] = replace(proofs[0], rows=proofs[0].rows + foreign)
    return Proof(tuple(proofs), kills)


@dataclass(frozen=True)
class SentTimes:
    """The events that were sent so many times: how many there are, their rows, and how many of them have a row."""

    times: int
    events: int
    rows: int
    landed: int

    @property
    def twice(self) -> int:
        return self.rows - self.landed

    @property
    def missing(self) -> int:
        return self.events - self.landed


@dataclass(frozen=True)
class EventProof:
    """All events, by how often they were sent, and the number of kills."""

    sent: tuple[SentTimes, ...]
    foreign: int
    """Rows whose coordinates are not those of a record of their event."""
    kills: int

    @property
    def exact(self) -> bool:
        return not self.twice and not self.missing and not self.foreign

    @property
    def twice(self) -> int:
        return sum(each.twice for each in self.sent)

    @property
    def missing(self) -> int:
        return sum(each.missing for each in self.sent)

    def sentence(self) -> str:
        verdict = "each event once" if self.exact else "NOT each event once"
        records = sum(each.times * each.events for each in self.sent)
        events, landed = sum(each.events for each in self.sent), sum(each.landed for each in self.sent)
        foreign = f"{self.foreign:,} rows of no record, " if self.foreign else ""
        return (
            f"{verdict}: {records:,} records of {events:,} events read, {landed:,} landed, {self.twice:,} twice, "
            f"{self.missing:,} missing, {foreign}{self.kills} kills"
        )

    def table(self, place: str) -> Table:
        table = Table(title=f"what is in {place}")
        for name in ("sent", "events", "records in Kafka", "rows", "twice", "missing"):
            table.add_column(name, justify="right")
        for each in self.sent:
            numbers = (each.events, each.times * each.events, each.rows, each.twice, each.missing)
            times = "once" if each.times == 1 else f"{each.times} times"
            table.add_row(times, *(f"{number:,}" for number in numbers))
        return table


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
    by_times = []
    for each in np.unique(times):
        of_these = found[times == each]
        by_times.append(
            SentTimes(int(each), len(of_these), int(of_these.sum()), int(np.count_nonzero(of_these))),
        )
    return EventProof(tuple(by_times), int(np.count_nonzero(~right)), kills)
