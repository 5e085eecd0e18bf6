"""One block, read once and decoded for all of its tables: the one reader of every sink.

    records ─► route (which tables) ─► decode (by each table's own schema) ─► rows per table, with their coordinates

A record lands in all of its tables, is rejected with a reason, or is filtered. Memory is bounded by the block.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import methodcaller

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from landonce.errors import BlockTooLarge
from landonce.protocol.ranges import Partition, Range, label_of, topics_of
from landonce.protocol.reasons import Code, Reason
from landonce.read.decoding import Decode
from landonce.read.formats import Decoded, Format, Indexes
from landonce.read.formats.json.decode import Json
from landonce.read.kafka.records import KafkaMessage, Records, RecordSource
from landonce.read.route import Routing, Rule, no_table_for, of_topic, route_values, routes, routes_by_topic
from landonce.read.rows import (
    COORDINATES,
    NO_ROWS,
    NOWHERE,
    Fit,
    as_is,
    from_floors,
    highest_offsets,
    with_coordinates,
)

_timestamp = methodcaller("timestamp")
_SAMPLE = 1_000
_SPARE = 8
"""A worker accepts this many times the size that a block should have."""


@dataclass(frozen=True)
class Rejected:
    """A record that cannot land, its coordinates, and the reason: a `Reason`, or words of a plug-in without a code."""

    partition: Partition
    offset: int
    reason: str


@dataclass(frozen=True)
class ReadAccount:
    """The counts of the reading half. They go through Spark beside the rows."""

    read: int
    bytes_read: int
    rejected: tuple[Rejected, ...] = ()
    latest: tuple[tuple[Partition, int], ...] = ()
    filtered: int = 0
    without_column: tuple[str, ...] = ()


@dataclass
class ReadBlock:
    """The content of a block: rows per table, the rejected records, and the counts."""

    tables: dict[str, list[pa.Table]] = field(default_factory=dict)
    in_order: bool = True
    """Whether the rows of each table came in (topic, partition, offset) order. With several partitions only those of each part do."""
    read: int = 0
    filtered: int = 0
    bytes_read: int = 0
    rejected: list[Rejected] = field(default_factory=list)
    messages: dict[tuple[Partition, int], KafkaMessage] = field(default_factory=dict)
    """The rejected records themselves, if they were read here."""
    latest: dict[Partition, int] = field(default_factory=dict)
    """The latest timestamp in each partition, in milliseconds, if `Reader.marks`."""
    tops: dict[str, dict[Partition, int]] = field(default_factory=dict)
    """The highest offset of each table's rows, by partition, if `Reader.marks`."""
    missing: dict[str, list[bytes]] = field(default_factory=dict)
    """Unknown tables that records are routed to, with some of those records."""
    payloads: dict[str, list[pa.BinaryArray]] = field(default_factory=dict)
    """The records of each table, if its schema may evolve."""
    held: int = 0
    """Records that a table already holds, counted once for each such table."""
    shared: int = 0
    """How often a record goes to a further table after its first one."""
    without_column: set[str] = field(default_factory=set)
    """Fields of records that no column of their table takes, as far as they were noticed."""

    @property
    def account(self) -> ReadAccount:
        latest = tuple(sorted(self.latest.items()))
        unplaced = tuple(sorted(self.without_column))
        return ReadAccount(self.read, self.bytes_read, tuple(self.rejected), latest, self.filtered, unplaced)

    def rows(self, table: str) -> pa.Table:
        """A table's rows in (topic, partition, offset) order."""
        parts = self.tables.get(table)
        if not parts:
            return NO_ROWS
        if not self.in_order:  # each part is rows of one partition, in order
            parts = sorted(parts, key=lambda part: tuple(part.column(name)[0].as_py() for name in COORDINATES))
        return pa.concat_tables(parts)

    def keep(self, table: str, rows: pa.Table, tops: Mapping[Partition, int]) -> None:
        """Adds rows of a table, and the highest offset of each partition in them."""
        self.tables.setdefault(table, []).append(rows)
        self.tops.setdefault(table, {}).update(tops)

    def tally(
        self,
        count: int,
        kept: Sequence[Indexes],
        elsewhere: Sequence[Indexes],
        bad: Collection[int],
        filtered: Sequence[Indexes] = (),
    ) -> None:
        """Counts `count` records. `kept`: by table. `elsewhere`: in tables that take no part. A record in no table may be
        filtered."""
        times = np.zeros(count, np.int64)
        for each in kept:
            times[np.unique(each)] += 1
        times[list(bad)] = 0
        found = times > 0
        self.shared += int(times.sum() - found.sum())
        left_out = _marked(count, filtered, bad) & ~found
        self.filtered += int(left_out.sum())
        self.held += int((_marked(count, elsewhere, bad) & ~found & ~left_out).sum())


@dataclass(frozen=True)
class Reader:
    """Turns records, or rows that SQL expressions made of them, into rows of tables."""

    routing: Routing
    decoders: Mapping[str, Decode]
    """By table that takes part: turns records into rows."""
    fits: Mapping[str, Fit] = field(default_factory=dict)
    """By the same tables: fits rows of a transform or a query to the table."""
    floors: Mapping[str, Mapping[Partition, int]] = field(default_factory=dict)
    """A table already holds the rows below its floor; `NOWHERE` for a table that takes no part."""
    asking: bool = False
    """True: unknown tables are reported to the driver. False: records for them are rejected."""
    others: frozenset[str] = frozenset()
    """Tables that take no part, and reject no records."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Tables that do not exist, with the reason."""
    format: Format = field(default_factory=Json)
    """Of the records, where one of their fields chooses the table."""
    payloads: bool = False
    """Whether to keep the records of each table, for a schema that may evolve."""
    marks: bool = False
    """Whether to find the latest timestamp and the highest offset of each partition, which costs time."""

    @staticmethod
    def of_one(table: str, decode: Decode, fit: Fit = as_is, *, payloads: bool = False, marks: bool = False) -> Reader:
        """For one table that takes every record."""
        return Reader(Routing(None, (Rule(table),)), {table: decode}, {table: fit}, payloads=payloads, marks=marks)

    def read(
        self, ranges: tuple[Range, ...], source: RecordSource, labels: Mapping[str, str], most_bytes: int
    ) -> ReadBlock:
        """Reads and decodes a block, chunk by chunk."""
        block = ReadBlock(in_order=len(ranges) == 1)
        for records in source.read(ranges):
            if block.bytes_read > most_bytes:
                raise too_large(ranges, block.read, block.bytes_read, most_bytes)
            self.add(records, label_of(labels, records.partition), block)
        return block

    def add(self, records: Records, label: str, block: ReadBlock) -> None:
        """Adds records. Nearly always one table takes all of them, each as one row; that case is short."""
        count = len(records.values)
        block.read += count
        block.bytes_read += records.values.nbytes
        if self.marks:
            newest = max(map(_timestamp, records.messages))[1]
            block.latest[records.partition] = max(newest, block.latest.get(records.partition, newest))
        routed, bad, elsewhere = self._route(records, block)
        decoded = {table: self._decode(table, records, indexes, block) for table, indexes in routed.items()}
        if len(decoded) == 1 and not bad and not elsewhere:
            ((table, (rows, _)),) = decoded.items()
            if (
                rows.is_whole(count)
                and 0 <= self.floors.get(table, {}).get(records.partition, 0) <= records.offsets[0].as_py()
            ):
                kept = with_coordinates(rows.table, records.partition, records.offsets, label)
                block.keep(table, kept, {records.partition: records.offsets[-1].as_py()} if self.marks else {})
                return
        self._account(records, label, decoded, bad, elsewhere, block)

    def _decode(
        self, table: str, records: Records, indexes: Indexes | None, block: ReadBlock
    ) -> tuple[Decoded, Indexes]:
        """A table's rows, and the indexes of the records that were decoded for it."""
        if indexes is None:
            values, messages, indexes = records.values, records.messages, np.arange(len(records.values))
        else:
            values, messages = records.values.take(pa.array(indexes)), [records.messages[at] for at in indexes]
        if self.payloads:
            block.payloads.setdefault(table, []).append(values)
        rows = self.decoders[table](values, messages)
        block.without_column.update(rows.without_column)
        return rows, indexes

    def _account(
        self,
        records: Records,
        label: str,
        decoded: Mapping[str, tuple[Decoded, Indexes]],
        bad: dict[int, Reason],
        elsewhere: Sequence[Indexes],
        block: ReadBlock,
    ) -> None:
        """A record that one table rejects lands in none."""
        for rows, places in decoded.values():
            bad.update({int(places[at]): reason for at, reason in rows.rejects})
        for at, reason in sorted(bad.items()):
            offset = records.offsets[at].as_py()
            block.rejected.append(Rejected(records.partition, offset, reason))
            block.messages[records.partition, offset] = records.messages[at]
        kept = [places[rows.kept] for rows, places in decoded.values()]
        filtered = [places[rows.filtered] for rows, places in decoded.values()]
        block.tally(len(records.values), kept, elsewhere, bad, filtered)
        for table, (rows, places) in decoded.items():
            self._keep(table, rows.table, places[rows.kept], bad, records, label, block)

    def _route(
        self, records: Records, block: ReadBlock
    ) -> tuple[dict[str, Indexes | None], dict[int, Reason], list[Indexes]]:
        """Records by table, by their index; None for all of them. Those that have no table, with the reason. And those that go
        to tables which take no part."""
        elsewhere: list[Indexes] = []
        routing = of_topic(self.routing, records.partition.topic)
        if routing is None:
            return {}, dict.fromkeys(range(len(records.values)), no_table_for(records.partition.topic)), elsewhere
        names = routing.static
        if routing.field is None and all(name in self.decoders or name in self.others for name in names):
            elsewhere += [np.arange(len(records.values)) for name in names if name in self.others]
            return {name: None for name in names if name in self.decoders}, {}, elsewhere
        by = routing.field
        found = routes(routing, records.values if by is None else route_values(records.values, by, self.format))
        bad = {each.index: each.reason for each in found.rejects}
        routed: dict[str, Indexes | None] = {}
        for table, rows in found.tables.items():
            indexes = np.asarray(rows.to_numpy(), np.int64)
            if table in self.decoders:
                routed[table] = indexes
            elif table in self.others:
                elsewhere.append(indexes)
            elif self.asking and table not in self.absent:
                sample = block.missing.setdefault(table, [])
                sample += [records.values[at].as_py() or b"" for at in indexes[: _SAMPLE - len(sample)]]
            else:
                bad.update(dict.fromkeys(indexes.tolist(), self._no_table(table)))
        return routed, bad, elsewhere

    def _no_table(self, table: str) -> Reason:
        return Reason(self.absent.get(table, f"there is no table {table}"), Code.NO_TABLE)

    def _keep(
        self,
        table: str,
        rows: pa.Table,
        places: Indexes,
        bad: Collection[int],
        records: Records,
        label: str,
        block: ReadBlock,
    ) -> None:
        """Keeps the rows of good records at or above the table's floor. `places`: the record of each row."""
        floor = self.floors.get(table, {}).get(records.partition, 0)
        offsets = np.asarray(records.offsets.to_numpy())[places]
        keep = offsets >= floor if floor != NOWHERE else np.zeros(len(offsets), np.bool_)
        if bad:
            good = ~np.isin(places, list(bad))
            block.held += len(np.unique(offsets[good & ~keep]))
            keep &= good
        else:
            block.held += len(np.unique(offsets[~keep]))
        if not keep.any():
            return
        if not keep.all():
            rows, offsets = rows.filter(pa.array(keep)), offsets[keep]
        kept = with_coordinates(rows, records.partition, pa.array(offsets), label)
        block.keep(table, kept, {records.partition: int(offsets[-1])} if self.marks else {})

    def sort(self, rows: pa.Table, account: ReadAccount, labels: Mapping[str, str]) -> ReadBlock:
        """Routes rows of a transform or a query (with coordinates, in order) by a column, and fits them to each table."""
        block = ReadBlock(read=account.read, filtered=account.filtered, bytes_read=account.bytes_read)
        block.latest, block.without_column = dict(account.latest), set(account.without_column)
        found, bad, elsewhere = self._route_rows(rows, labels, block)
        fitted = {}
        for table, indexes in found.items():
            fitted[table] = self.fits[table](rows if len(indexes) == rows.num_rows else rows.take(pa.array(indexes)))
            bad.update({int(indexes[at]): reason for at, reason in fitted[table].rejects})
        block.rejected = [*account.rejected, *(rejected_row(labels, rows, at, why) for at, why in sorted(bad.items()))]
        places = {table: found[table][each.kept] for table, each in fitted.items()}
        filtered = [found[table][each.filtered] for table, each in fitted.items()]
        block.tally(rows.num_rows, list(places.values()), elsewhere, bad, filtered)
        for table, each in fitted.items():
            good = each.table.filter(pa.array(~np.isin(places[table], list(bad)))) if bad else each.table
            kept = from_floors(good, self.floors.get(table, {}), labels)
            block.held += good.num_rows - kept.num_rows
            if kept.num_rows:
                block.keep(table, kept, highest_offsets(kept, topics_of(labels)) if self.marks else {})
        return block

    def _route_rows(
        self, rows: pa.Table, labels: Mapping[str, str], block: ReadBlock
    ) -> tuple[dict[str, Indexes], dict[int, Reason], list[Indexes]]:
        """Like `_route`, for rows."""
        by = self.routing.field
        values = rows.column(by).cast(pa.string()) if by is not None else pa.nulls(rows.num_rows)
        topics = values
        if self.routing.by_topic:  # by their own names
            encoded = rows.column("_topic").combine_chunks().cast(pa.string()).dictionary_encode()
            names = topics_of(labels)
            topics = pa.array([names.get(each, each) for each in encoded.dictionary.to_pylist()]).take(encoded.indices)
        found = routes_by_topic(self.routing, values, topics)
        bad = {each.index: each.reason for each in found.rejects}
        routed = {table: np.asarray(each.to_numpy(), np.int64) for table, each in found.tables.items()}
        for table in routed.keys() - self.fits.keys() - self.others:
            if self.asking and table not in self.absent:
                block.missing[table] = []
            else:
                bad.update(dict.fromkeys(routed[table].tolist(), self._no_table(table)))
        taken = {table: indexes for table, indexes in routed.items() if table in self.fits}
        return taken, bad, [indexes for table, indexes in routed.items() if table in self.others]


def rejected_row(labels: Mapping[str, str], rows: pa.Table, at: int, reason: Reason) -> Rejected:
    """The rejected record of a row that a table does not take."""
    topics = topics_of(labels)
    label, number, offset = (rows.column(name)[at].as_py() for name in COORDINATES)
    return Rejected(Partition(topics.get(label, label), number), offset, reason)


def too_large(ranges: tuple[Range, ...], read_so_far: int, bytes_read: int, most_bytes: int) -> BlockTooLarge:
    """The error of a worker before a block fills its memory. It assumes that the rest is twice as large as what was read."""
    each = bytes_read / max(read_so_far, 1)
    fitting = max(1, int(most_bytes / _SPARE / each))
    rest = max(0, sum(piece.span for piece in ranges) - read_so_far)
    enough = math.ceil((bytes_read + 2 * each * rest) / _SPARE / 2**20)
    return BlockTooLarge(
        f"the block that begins with {ranges[0]} holds more than {most_bytes // 10**6} MB: its records are much larger "
        "than earlier ones.",
        safe="Nothing of it was sent.",
        command=f"set `batch.block_bytes: {enough}MiB` (a worker takes up to {_SPARE} times that) and `batch.block_rows: {fitting}` in {{file}}, "
        "then `landonce run {file}`: this block is written unchanged, and later ones are smaller. If workers do not have that much "
        "memory: set `block_rows` alone, then `landonce state rebase {file} --drop-pending`, unless a block of the plan is in the "
        "target",
    )


def find(
    wanted: Iterable[Rejected], ranges: tuple[Range, ...], source: RecordSource
) -> dict[tuple[Partition, int], KafkaMessage]:
    """Reads a block again to find the records of these rejects. Rare: only if Spark or a cast rejected rows."""
    wanted_keys = {(each.partition, each.offset) for each in wanted}
    found: dict[tuple[Partition, int], KafkaMessage] = {}
    if wanted_keys:
        for records in source.read(ranges):
            for message in records.messages:
                key = (records.partition, message.offset() or 0)
                if key in wanted_keys:
                    found[key] = message
    return found


def _marked(count: int, indexes: Sequence[Indexes], bad: Collection[int]) -> npt.NDArray[np.bool_]:
    marks = np.zeros(count, np.bool_)
    for each in indexes:
        marks[each] = True
    marks[list(bad)] = False
    return marks
