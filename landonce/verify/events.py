"""The audit of events, if the pipeline deduplicates: of the records with one key, exactly one is in the target.

The key rule of the pipeline file says which records are one event. Which of them landed is asked of the target, and nothing of the store.

    records of one event that are accounted for      verdict
    ────────────────────────────────────────────     ───────────────────────────────────────────────────────────────
    one landed, or is in the dead letters            fine; the others are copies
    several, farther apart than the window           fine: the key was forgotten in between. Counted as landed again
    several, nearer                                  twice
    none, and `where` filters one of them            fine: that one may have been first
    none, and one lies above the judged range        not judged: it may be first, and on its way
    none, and it may have landed from a record that  not judged, unless the table tells the keys of such rows
      the topic no longer holds
    none                                             missing: the first one is reported

Times are the records' own timestamps: when a record was accepted is not in the topic. Memory: 35 bytes for each record with a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from landonce.dedup.ids import Coordinates, compute
from landonce.dedup.rule import HEADER, KAFKA_KEY, KeyColumn, KeyRule
from landonce.protocol.ranges import Partition
from landonce.read.decoding import Decoding, decoder_of
from landonce.read.schema.fields import Schema
from landonce.sinks.audit import Held, HeldTables, Mask, Offsets
from landonce.verify.judge import Bounds, Discrepancy, Fates
from landonce.verify.report import LISTED, EventFault, EventsReport
from landonce.verify.table import cut
from landonce.verify.topic import Window
from landonce.verify.values import as_type, shown, whole

Halves = npt.NDArray[np.uint64]
ABSENT, LANDED, LETTERED, FILTERED = range(4)
"""What is known of a record: nothing holds it; the target does; the dead letters do; `where` filters it."""
_EVENT = np.dtype(
    [("hi", "<u8"), ("lo", "<u8"), ("timestamp", "<i8"), ("offset", "<i8"), ("place", "<u2"), ("state", "u1")]
)
_Rows = npt.NDArray[np.void]
_SHARDS = 16
"""Records are judged in so many parts, by their ids, so that sorting needs little memory."""


@dataclass(frozen=True)
class Keyed:
    """The records of a window, in order, and the ids of those that have one: those that could be accepted."""

    offsets: Offsets
    known: Mask
    hi: Halves
    lo: Halves
    timestamps: Offsets

    def between(self, first: int, end: int) -> Keyed:
        part = slice(*(int(at) for at in np.searchsorted(self.offsets, (first, end))))
        return Keyed(self.offsets[part], self.known[part], self.hi[part], self.lo[part], self.timestamps[part])


@dataclass(frozen=True)
class KeyReader:
    """Computes the ids of records as the pipeline file defines them."""

    rule: KeyRule
    source: Schema
    decoding: Decoding

    def of(self, window: Window, label: Partition, refused: Offsets) -> Keyed:
        """`refused`: records that were too late to be judged, and are dead letters."""
        count = len(window.offsets)
        decoded = decoder_of(self.source, self.decoding)(window.values, window.messages)
        at = np.asarray(decoded.kept, np.int64)
        ids = compute(
            self.rule,
            decoded.table,
            keys=_chosen(window.keys, at) if self.rule.needs_kafka_key else None,
            headers={name: _chosen(window.headers[name], at) for name in self.rule.headers},
            coordinates=Coordinates(label.topic, label.number, window.offsets[at]),
        )
        known = np.zeros(count, np.bool_)
        known[at] = True
        known[at[list(ids.rejects)]] = False
        known &= ~np.isin(window.offsets, refused)
        hi, lo = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        hi[at], lo[at] = ids.hi, ids.lo
        return Keyed(window.offsets, known, hi, lo, window.timestamps)

    def text(self, window: Window) -> str:
        """The key of the first record, for people."""
        decoded = decoder_of(self.source, self.decoding)(window.values.slice(0, 1), window.messages[:1])
        return ", ".join(_part(column, decoded.table, window) for column in self.rule.columns)

    def held(self, tables: HeldTables, held: Held) -> HeldIds | None:
        """The ids of rows by their values. None if the table does not hold the fields of the key as records hold them."""
        schema, fields = tables.schema(held.name), self.source.by_name()
        names = list(dict.fromkeys(column.path[0] for column in self.rule.columns if column.path))
        plain = all(column.kind not in (KAFKA_KEY, HEADER) for column in self.rule.columns)
        if not plain or tables.recipe.transforms or schema is None or not set(names) <= schema.by_name().keys():
            return None
        return HeldIds(self.rule, held, {name: fields[name].type for name in names})


@dataclass(frozen=True)
class HeldIds:
    """Reads the ids of rows whose records the topic no longer holds."""

    rule: KeyRule
    held: Held
    types: Mapping[str, pa.DataType]

    def read(self, label: Partition, first: int, end: int) -> Iterator[tuple[Halves, Halves] | None]:
        """Piece by piece. None: the values of a piece are no keys."""
        values = self.held.values()
        for low, high in cut(first, end):
            for piece in values.read(label, low, high, list(self.types)):
                columns = {name: as_type(whole(piece.rows.column(name)), type_) for name, type_ in self.types.items()}
                if piece.absent or any(each is None for each in columns.values()):
                    yield None
                    continue
                offsets = np.asarray(piece.rows.column("_offset").to_numpy(), np.int64)
                where = Coordinates(label.topic, label.number, offsets)
                ids = compute(self.rule, pa.table(columns), None, {}, where)
                yield ids.hi, ids.lo


def _chosen(values: Sequence[bytes | None], at: Offsets) -> pa.BinaryArray:
    return pa.array([values[each] for each in at.tolist()], pa.binary())


def _part(column: KeyColumn, rows: pa.Table, window: Window) -> str:
    if column.kind == KAFKA_KEY:
        return f"Kafka key {window.keys[0]!r}"
    if column.kind == HEADER:
        return f"header {column.path[0]} {window.headers[column.path[0]][0]!r}"
    values = rows.column(column.path[0]).combine_chunks()
    for name in column.path[1:]:
        values = pa.compute.struct_field(values, name)
    return f"{'.'.join(column.path)} = {shown(whole(pa.chunked_array([values])), 0) if len(values) else '?'}"


def states(fates: Fates, known: Mask, held: Offsets, letters: Offsets) -> npt.NDArray[np.uint8]:
    """What is known of each record of a stretch. Records without a key are not asked about."""
    found = np.full(len(fates.offsets), ABSENT, np.uint8)
    found[~(fates.landing | fates.dead)] = FILTERED
    found[np.isin(fates.offsets, letters)] = LETTERED
    found[np.isin(fates.offsets, held)] = LANDED
    found[~known] = FILTERED
    return found


@dataclass(frozen=True)
class Remembered:
    """How far apart events of one key may both land."""

    ttl: int
    """Milliseconds."""
    late: Literal["dead_letter", "accept", "drop"]
    now: int
    """Milliseconds."""

    @property
    def words(self) -> str:
        seconds = self.ttl // 1000
        days, rest = divmod(seconds, 86_400)
        return f"{days} d" if days and not rest else f"{seconds} s"

    def forgotten(self, timestamps: Offsets) -> Mask:
        """Whether keys of this age may be forgotten by now."""
        old: Mask = timestamps < self.now - self.ttl
        return old

    def apart(self, earlier: Offsets, later: Offsets) -> Mask:
        """Whether both of two events may land."""
        apart: Mask = later - earlier > self.ttl
        return apart | self.forgotten(later) if self.late == "accept" else apart


class EventAudit:
    """Collects the records of all partitions, and judges them once all are known."""

    def __init__(self, keys: KeyReader, window: Remembered, shared: tuple[str, ...] = ()) -> None:
        self.keys = keys
        self._window = window
        self._shared = shared
        """Other pipelines of the scope: an event may have landed through one of them."""
        self._parts: list[list[_Rows]] = [[] for _ in range(_SHARDS)]
        self._bounds: list[Bounds] = []

    @property
    def forgotten_before(self) -> int:
        """Milliseconds: a record that came too late has a timestamp before this one."""
        return self._window.now - self._window.ttl

    def add(self, bound: Bounds, keyed: Keyed, states: npt.NDArray[np.uint8]) -> None:
        """The records of one stretch."""
        if not self._bounds or self._bounds[-1] is not bound:
            self._bounds.append(bound)
        rows = np.empty(int(keyed.known.sum()), _EVENT)
        rows["hi"], rows["lo"] = keyed.hi[keyed.known], keyed.lo[keyed.known]
        rows["timestamp"], rows["offset"] = keyed.timestamps[keyed.known], keyed.offsets[keyed.known]
        rows["place"], rows["state"] = len(self._bounds) - 1, states[keyed.known]
        shards = (rows["hi"] >> np.uint64(60)).astype(np.uint8)
        for shard in np.unique(shards).tolist():
            self._parts[shard].append(rows[shards == shard])

    def judge(self, later: Iterable[Keyed], before: Iterable[tuple[Halves, Halves] | None]) -> JudgedEvents:
        """`later`: the records above the judged range. `before`: the ids of rows below it, None where they cannot be known. Both are only
        read if an event seems to be missing."""
        shards = []
        for parts in self._parts:
            shards.append(_Shard.of(np.concatenate([np.empty(0, _EVENT), *parts])))
            parts.clear()
        report = EventsReport(window=self._window.words)
        found = JudgedEvents(report, self._bounds)
        if any(each.lacking.any() for each in shards):
            for ids in before:
                if ids is None:
                    report.below_unknown = True
                    continue
                for shard in shards:
                    shard.note(shard.landed_before, *ids)
            for keyed in later:
                for shard in shards:
                    shard.note(shard.later, keyed.hi[keyed.known], keyed.lo[keyed.known])
        for shard in shards:
            self._judge(shard, found)
        return found

    def _judge(self, shard: _Shard, found: JudgedEvents) -> None:
        rows, report, group = shard.rows, found.report, shard.group
        report.records += len(rows)
        report.events += len(shard.starts)
        report.landed += int((rows["state"] == LANDED).sum())
        report.dead_lettered += int((rows["state"] == LETTERED).sum())
        report.filtered += int((rows["state"] == FILTERED).sum())
        lacking = shard.lacking
        if lacking.any():
            newest = np.maximum.reduceat(rows["timestamp"], shard.starts)
            report.below += int((lacking & shard.landed_before).sum())
            lacking = lacking & ~shard.landed_before
            excuses = (
                ("waiting", shard.later),
                ("elsewhere", np.full(len(lacking), bool(self._shared))),
                ("below", np.full(len(lacking), report.below_unknown)),
                ("late", self._window.forgotten(newest) & (self._window.late == "drop")),
            )
            for name, excused in excuses:
                report.unjudged[name] += int((lacking & excused).sum())
                lacking = lacking & ~excused
        missing = rows[shard.starts[lacking]]
        for each in missing[: max(0, LISTED - len(found.missing))]:
            found.missing.append((int(each["place"]), int(each["offset"])))
        accepted = np.flatnonzero((rows["state"] == LANDED) | (rows["state"] == LETTERED))
        one, other = accepted[:-1], accepted[1:]
        several = group[one] == group[other]
        one, other = one[several], other[several]
        apart = self._window.apart(rows["timestamp"][one], rows["timestamp"][other])
        report.again += int(apart.sum())
        first, twice = rows[one[~apart]], rows[other[~apart]]
        for a, b in list(zip(first, twice, strict=True))[: max(0, LISTED - len(found.twice))]:
            found.twice.append(((int(b["place"]), int(b["offset"])), (int(a["place"]), int(a["offset"]))))
        report.missing += len(missing)
        report.twice += len(twice)
        report.copies += int((rows["state"] == ABSENT).sum()) - len(missing)
        found.note(Discrepancy.MISSING, missing)
        found.note(Discrepancy.TWICE, twice)


@dataclass
class _Shard:
    """The records of some ids, in the order of ids and then of timestamps."""

    rows: _Rows
    starts: Offsets
    """Where each event begins."""
    landed_before: Mask
    later: Mask

    @staticmethod
    def of(rows: _Rows) -> _Shard:
        order = np.lexsort([rows[name] for name in ("offset", "place", "timestamp", "lo", "hi")])
        rows = rows[order]
        new = np.ones(len(rows), np.bool_)
        new[1:] = (rows["hi"][1:] != rows["hi"][:-1]) | (rows["lo"][1:] != rows["lo"][:-1])
        starts = np.flatnonzero(new)
        return _Shard(rows, starts, np.zeros(len(starts), np.bool_), np.zeros(len(starts), np.bool_))

    @property
    def group(self) -> Offsets:
        """The event of each record."""
        return np.repeat(np.arange(len(self.starts)), np.diff(np.append(self.starts, len(self.rows))))

    @property
    def lacking(self) -> Mask:
        """The events of which no record is accounted for."""
        if not len(self.starts):
            return np.zeros(0, np.bool_)
        lacking: Mask = np.maximum.reduceat(self.rows["state"], self.starts) == ABSENT
        return lacking

    def note(self, mask: Mask, hi: Halves, lo: Halves) -> None:
        """Sets the mask for the events that have one of these ids."""
        if not len(self.starts):
            return
        own_hi, own_lo = self.rows["hi"][self.starts], self.rows["lo"][self.starts]
        at = np.searchsorted(own_hi, hi)
        while True:
            inside = at < len(own_hi)
            at, hi, lo = at[inside], hi[inside], lo[inside]
            same = own_hi[at] == hi
            at, hi, lo = at[same], hi[same], lo[same]
            if not len(at):
                return
            mask[at[own_lo[at] == lo]] = True
            at = at + 1


@dataclass
class JudgedEvents:
    """What was found: numbers, and the first records at fault."""

    report: EventsReport
    bounds: Sequence[Bounds]
    missing: list[tuple[int, int]] = field(default_factory=list)
    """(place, offset)"""
    twice: list[tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=list)
    """The record, and the one that landed before it."""
    faults: dict[tuple[int, Discrepancy], list[Offsets]] = field(default_factory=dict)

    def note(self, fault: Discrepancy, rows: _Rows) -> None:
        for place in np.unique(rows["place"]).tolist():
            offsets = rows["offset"][rows["place"] == place].astype(np.int64)
            self.faults.setdefault((place, fault), []).append(offsets)

    def of(self, bound: Bounds, fault: Discrepancy) -> Offsets:
        """The offsets of a partition that are at fault, in order."""
        for place, each in enumerate(self.bounds):
            if each is bound:
                return np.sort(np.concatenate([np.empty(0, np.int64), *self.faults.get((place, fault), [])]))
        return np.empty(0, np.int64)

    def samples(self, text: Callable[[Bounds, int], str]) -> tuple[EventFault, ...]:
        """`text` gives the key of a record."""
        found = []
        for place, offset in self.missing:
            bound = self.bounds[place]
            found.append(EventFault(Discrepancy.MISSING, bound.partition, offset, text(bound, offset)))
        for (place, offset), (other, first) in self.twice:
            bound = self.bounds[place]
            before = self.bounds[other].partition, first
            found.append(EventFault(Discrepancy.TWICE, bound.partition, offset, text(bound, offset), *before))
        return tuple(found)
