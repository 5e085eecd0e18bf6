"""One block, read once and decoded for all of its tables: rows per table with their coordinates, and what was rejected.

    records ─► route (which tables) ─► decode (by each table's own schema) ─► rows per table

A record lands in all of its tables, or in the dead letters. Memory is bounded by the block.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from landonce.protocol.ranges import Partition, Range, label_of
from landonce.read.block import Rejected, in_order, note_latest, too_large, with_coordinates
from landonce.read.kafka.records import Records, read
from landonce.read.route import Routing, route_values, routes

Indexes = npt.NDArray[np.int64]
NOWHERE = -1
"""The floor of a table that takes no rows at all."""
_SAMPLE = 1_000


@dataclass(frozen=True)
class Rows:
    """What a decoder made of some records: rows, which records they are, and what became of the others."""

    table: pa.Table
    kept: Indexes
    rejects: tuple[tuple[int, str], ...] = ()
    filtered: Indexes = field(default_factory=lambda: np.zeros(0, np.int64))


class Decode(Protocol):
    """Decodes records for one table."""

    def __call__(self, values: pa.BinaryArray, messages: list[Message]) -> Rows: ...


@dataclass
class Sheaf:
    """What a block held."""

    tables: dict[str, list[pa.Table]] = field(default_factory=dict)
    read: int = 0
    filtered: int = 0
    bytes_read: int = 0
    rejected: list[Rejected] = field(default_factory=list)
    messages: dict[tuple[Partition, int], Message] = field(default_factory=dict)
    latest: dict[Partition, int] = field(default_factory=dict)
    tops: dict[str, dict[Partition, int]] = field(default_factory=dict)
    """The highest offset of the rows that each table gets, by partition."""
    missing: dict[str, list[bytes]] = field(default_factory=dict)
    """Tables that records name and nobody knows, with some of those records."""
    payloads: dict[str, list[pa.BinaryArray]] = field(default_factory=dict)
    """What went to each table, where the schema may have to evolve."""
    there: int = 0
    """Records that a table holds already, once for each such table."""
    shared: int = 0
    """How often a record goes to one more table than to its first."""

    def rows(self, table: str, several: bool) -> pa.Table | None:
        """A table's rows in (topic, partition, offset) order."""
        parts = self.tables.get(table)
        if not parts:
            return None
        rows = pa.concat_tables(parts)
        return in_order(rows) if several else rows


@dataclass(frozen=True)
class Sorting:
    """How records are sorted to tables."""

    routing: Routing
    decoders: Mapping[str, Decode]
    floors: Mapping[str, Mapping[Partition, int]]
    """Rows below a table's floor are in it already; `NOWHERE` for a table that takes no part."""
    asking: bool = False
    """The driver is asked for tables that nobody knows yet; otherwise records for them are rejected."""
    others: frozenset[str] = frozenset()
    """Tables that take no part, and do not judge records either."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Tables that there are not, with the reason."""
    evolve: bool = False

    def gather(
        self, ranges: tuple[Range, ...], options: Mapping[str, Any], labels: Mapping[str, str], most_bytes: int
    ) -> Sheaf:
        """Reads and sorts a block, chunk by chunk."""
        sheaf = Sheaf()
        for records in read(ranges, options):
            if sheaf.bytes_read > most_bytes:
                raise too_large(ranges, sheaf.read, sheaf.bytes_read, most_bytes)
            self._add(records, labels, sheaf)
        return sheaf

    def _add(self, records: Records, labels: Mapping[str, str], sheaf: Sheaf) -> None:
        count = len(records.values)
        sheaf.read += count
        sheaf.bytes_read += records.values.nbytes
        note_latest(records, sheaf.latest)
        routed, bad, elsewhere = self._route(records, sheaf)
        decoded = {}
        for table, indexes in routed.items():
            values = records.values if indexes is None else records.values.take(pa.array(indexes))
            messages = records.messages if indexes is None else [records.messages[at] for at in indexes]
            if self.evolve:
                sheaf.payloads.setdefault(table, []).append(values)
            rows = self.decoders[table](values, messages)
            places = np.arange(count) if indexes is None else indexes
            bad.update({int(places[at]): reason for at, reason in rows.rejects})
            decoded[table] = (rows, places)
        self._reject(records, bad, sheaf)
        kept = [places[rows.kept] for rows, places in decoded.values()]
        tally(sheaf, count, kept, elsewhere, bad, [places[rows.filtered] for rows, places in decoded.values()])
        label = label_of(labels, records.partition)
        for table, (rows, places) in decoded.items():
            self._keep(table, rows, places, bad, records, label, sheaf)

    def _route(self, records: Records, sheaf: Sheaf) -> tuple[dict[str, Indexes | None], dict[int, str], list[Indexes]]:
        """Records by table, by their index; None for all of them. Those that have no table, with the reason. And those that go
        to tables which take no part."""
        elsewhere: list[Indexes] = []
        if self.routing.field is None:
            names = [rule.table for rule in self.routing.rules]
            elsewhere += [np.arange(len(records.values)) for name in names if name in self.others]
            return {name: None for name in names if name in self.decoders}, {}, elsewhere
        told = routes(self.routing, route_values(records.values, self.routing.field))
        bad = {each.index: each.reason for each in told.rejects}
        routed: dict[str, Indexes | None] = {}
        for table, found in told.tables.items():
            indexes = np.asarray(found.to_numpy(), np.int64)
            if table in self.decoders:
                routed[table] = indexes
            elif table in self.others:
                elsewhere.append(indexes)
            elif self.asking and table not in self.absent:
                sample = sheaf.missing.setdefault(table, [])
                sample += [records.values[at].as_py() or b"" for at in indexes[: _SAMPLE - len(sample)]]
            else:
                bad.update({int(at): self.absent.get(table, f"there is no table {table}") for at in indexes})
        return routed, bad, elsewhere

    def _reject(self, records: Records, bad: Mapping[int, str], sheaf: Sheaf) -> None:
        for at, reason in sorted(bad.items()):
            offset = records.offsets[at].as_py()
            sheaf.rejected.append(Rejected(records.partition, offset, reason))
            sheaf.messages[records.partition, offset] = records.messages[at]

    def _keep(
        self,
        table: str,
        rows: Rows,
        places: Indexes,
        bad: Mapping[int, str],
        records: Records,
        label: str,
        sheaf: Sheaf,
    ) -> None:
        floor = self.floors.get(table, {}).get(records.partition, 0)
        if not len(rows.kept):
            return
        offsets = np.asarray(records.offsets.to_numpy())[places[rows.kept]]
        keep = offsets >= floor if floor != NOWHERE else np.zeros(len(offsets), np.bool_)
        good = ~np.isin(places[rows.kept], list(bad))
        sheaf.there += len(np.unique(offsets[good & ~keep]))
        keep &= good
        if not keep.any():
            return
        kept = rows.table
        if not keep.all():
            kept, offsets = kept.filter(pa.array(keep)), offsets[keep]
        sheaf.tables.setdefault(table, []).append(with_coordinates(kept, records.partition, pa.array(offsets), label))
        sheaf.tops.setdefault(table, {})[records.partition] = int(offsets[-1])


def tally(
    sheaf: Sheaf,
    count: int,
    kept: Sequence[Indexes],
    elsewhere: Sequence[Indexes],
    bad: Collection[int],
    filtered: Sequence[Indexes] = (),
) -> None:
    """Of `count` records: those that each table keeps, and those that other tables have. What is in no table may be filtered."""
    times = np.zeros(count, np.int64)
    for each in kept:
        times[np.unique(each)] += 1
    times[list(bad)] = 0
    found = times > 0
    sheaf.shared += int(times.sum()) - _count(found)
    left_out = _marked(count, filtered, bad) & ~found
    sheaf.filtered += _count(left_out)
    sheaf.there += _count(_marked(count, elsewhere, bad) & ~found & ~left_out)


def _marked(count: int, indexes: Sequence[Indexes], bad: Collection[int]) -> npt.NDArray[np.bool_]:
    marks = np.zeros(count, np.bool_)
    for each in indexes:
        marks[each] = True
    marks[list(bad)] = False
    return marks


def _count(marks: npt.NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(marks))


def records_of(rows: pa.Table) -> int:
    """How many records these rows (with coordinates, in order) came from: a change may be two rows."""
    if not rows.num_rows:
        return 0
    topics = rows.column("_topic").cast(pa.string()).combine_chunks()
    another = np.asarray(pc.not_equal(topics[1:], topics[:-1]).to_numpy(zero_copy_only=False), np.bool_)
    for name in ("_partition", "_offset"):
        another = another | (np.diff(rows.column(name).to_numpy()) != 0)
    return 1 + _count(another)


def cropped(rows: pa.Table, floors: Mapping[Partition, int], labels: Mapping[str, str]) -> pa.Table:
    """Rows (with coordinates) at or above the floors; for rows that come from an expression, sorted by then."""
    keep = np.ones(rows.num_rows, np.bool_)
    topics = rows.column("_topic").cast(pa.string())
    for partition, floor in floors.items():
        label = label_of(labels, partition)
        here = pc.and_(pc.equal(topics, label), pc.equal(rows.column("_partition"), partition.number))
        below = pc.less(rows.column("_offset"), floor) if floor != NOWHERE else pa.scalar(True)
        keep &= ~np.asarray(pc.and_(here, below).to_numpy(), np.bool_)
    return rows if keep.all() else rows.filter(pa.array(keep))
