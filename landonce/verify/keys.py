"""Rows that records change: is the last change of every key what the table holds? Pure numpy.

    last change of the key   row in the table             verdict
    ───────────────────────  ───────────────────────────  ────────────────────────
    insert or update         of that change, once         fine
    deletion                 none                         fine
    insert or update         none                         missing
    insert or update         only of an older change      stale
    deletion                 only of an older change      unexpected
    any                      of a later offset            unexpected
    any                      more than one                duplicated
    none                     in the range that is judged  unexpected

A row of a change at or above the end of that range is in flight and replaces any other; a key that such a change
deleted is not missing. Rows from below the range are judged only if their key was changed in it. Kafka keeps the
changes of one key in order only within a partition: if a key has changes in several partitions, the row may be of the
last change of any of them, and if one of these is a deletion, there may be no row. A compacted topic is assumed to keep
the last change of every key; a row of a change that is gone counts as vanished.

All data is columnar. Memory grows with the number of distinct keys, of the topic and of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from landonce.sinks.audit import OFFSET, PLACE, UNKNOWN, Mask, Offsets, plain
from landonce.verify.judge import Discrepancy

LAST = "__landonce_last"
"""A column beside the keys that records change: the last change of each."""
_OFTEN = 1_000_000


class LastChanges:
    """The last change of every key, per partition: twice its offset, and one more for a deletion."""

    def __init__(self, identity: Sequence[str]) -> None:
        self._by = [*identity, PLACE]
        self._parts: list[pa.Table] = []
        self._packed = 0
        self.changes = 0

    def add(self, keys: pa.Table, place: int, offsets: Offsets, deleted: Mask) -> None:
        """Changes of one partition, which has the number `place`."""
        rows = plain(keys).append_column(PLACE, pa.array(np.full(len(offsets), place, np.int32)))
        self._parts.append(rows.append_column(LAST, pa.array(offsets * 2 + deleted)))
        self.changes += len(offsets)
        if sum(each.num_rows for each in self._parts) > 2 * self._packed + _OFTEN:
            self.table()

    def table(self) -> pa.Table | None:
        """One row for each key and partition; None if nothing changed."""
        if not self._parts:
            return None
        if len(self._parts) > 1 or self._packed == 0:
            last = pa.concat_tables(self._parts).group_by(self._by).aggregate([(LAST, "max")])
            names = [LAST if name == f"{LAST}_max" else name for name in last.column_names]
            self._parts, self._packed = [last.rename_columns(names)], last.num_rows
        return self._parts[0]


@dataclass(frozen=True)
class KeyLimits:
    """Of each partition, by its number: the range `[start, end)` that is judged, and whether records may be gone."""

    starts: Offsets
    ends: Offsets
    compacted: Mask


@dataclass(frozen=True)
class Faulty:
    """The keys with one fault: the coordinates that are reported for each, and its number."""

    places: Offsets
    offsets: Offsets
    keys: Offsets


@dataclass(frozen=True)
class JudgedKeys:
    """The results for all keys. Numbers are per partition."""

    expected: Offsets
    landed: Offsets
    in_flight: Offsets
    before: Offsets
    vanished: Offsets
    scattered: int
    """Keys with changes in several partitions."""
    without: int
    """Rows whose coordinates are of no partition that is judged, and whose keys no record changed."""
    faults: dict[Discrepancy, Faulty]
    keys: pa.Table = field(default_factory=lambda: pa.table({}))
    """One row for each key, in the numbering of `Faulty.keys`."""


def judge_keys(
    identity: Sequence[str], last: pa.Table, held: pa.Table, deleted_later: pa.Table, limits: KeyLimits
) -> JudgedKeys:
    """`last` has `PLACE` and `LAST` beside the keys, `held` has `PLACE` and `OFFSET`. All keys are `plain`.

    `deleted_later` are keys that a change at or above the end of the judged range deleted.
    """
    names = list(identity)
    wanted = held.select(names).schema
    keys = pa.concat_tables([each.select(names).cast(wanted) for each in (last, held, deleted_later)])
    numbers = _numbered(keys)
    of_last, of_held, of_later = np.split(numbers, np.cumsum([last.num_rows, held.num_rows]))
    changes = _Changes(of_last, _column(last, PLACE), _column(last, LAST) // 2, _column(last, LAST) % 2 == 1)
    rows = _Rows(of_held, _column(held, PLACE), _column(held, OFFSET))
    judging = _Judging(int(numbers.max(initial=-1)) + 1, changes, rows, limits)
    judged = judging.judged(of_later)
    return replace(judged, keys=keys.take(pa.array(_first_of(numbers, judging.count))))


@dataclass(frozen=True)
class _Changes:
    """The last change of each key in each partition. Keys are numbers."""

    key: Offsets
    place: Offsets
    offset: Offsets
    deleted: Mask


@dataclass(frozen=True)
class _Rows:
    key: Offsets
    place: Offsets
    offset: Offsets


class _Judging:
    """Names in the singular are masks over rows, names in the plural over keys."""

    def __init__(self, count: int, changes: _Changes, rows: _Rows, limits: KeyLimits) -> None:
        self.count = count
        self._changes, self._rows, self._limits = changes, rows, limits
        here = rows.place != UNKNOWN
        self._known = here
        self._flying = here & (rows.offset >= limits.ends[rows.place])
        self._below = here & (rows.offset < limits.starts[rows.place])
        last, deleted = self._last_of_rows()
        judged = here & ~self._flying & (last >= 0)
        self._right = judged & (rows.offset == last) & ~deleted
        self._ahead = judged & (rows.offset > last)
        self._gone = self._ahead & limits.compacted[rows.place]
        self._changed = self._any(changes.key)
        self._settled = self._any(rows.key[self._right | self._flying | self._ahead])
        self._held = np.bincount(rows.key, minlength=count)
        self._entries = np.bincount(changes.key, minlength=count)
        self._deletions = np.bincount(changes.key[changes.deleted], minlength=count)

    def judged(self, deleted_later: Offsets) -> JudgedKeys:
        gone = self._changed & (self._deletions == self._entries)
        must = self._changed & (self._deletions == 0) & ~self._any(deleted_later)
        wrong = self._changed & (self._held > 0) & ~self._settled
        loose = ~self._changed[self._rows.key]
        strange = loose & self._known & ~self._flying & ~self._below
        vanished = self._gone | (strange & self._limits.compacted[self._rows.place])
        faults = {
            Discrepancy.MISSING: self._by_last_change(must & (self._held == 0)),
            Discrepancy.STALE: self._by_last_change(wrong & ~gone),
            Discrepancy.DUPLICATED: self._by_last_change(self._held > 1),
            Discrepancy.UNEXPECTED: self._reported_by_row(
                (wrong & gone)[self._rows.key] | ((strange | self._ahead) & ~vanished)
            ),
        }
        return JudgedKeys(
            expected=self._per_place(self._by_last_change(self._changed & ~gone).places),
            landed=self._per_place(self._reported_by_row(self._right).places),
            in_flight=self._per_place(self._rows.place[self._flying]),
            before=self._per_place(self._rows.place[loose & self._below]),
            vanished=self._per_place(self._rows.place[vanished]),
            scattered=int(np.count_nonzero(self._entries > 1)),
            without=int(np.count_nonzero(loose & ~self._known)),
            faults={fault: each for fault, each in faults.items() if len(each.keys)},
        )

    def _last_of_rows(self) -> tuple[Offsets, Mask]:
        """For each row the last change of its key in its own partition: its offset, -1 if there is none, and whether it
        is a deletion."""
        changes, rows, places = self._changes, self._rows, len(self._limits.ends)
        code = changes.key * places + changes.place
        order = np.argsort(code)
        code = np.append(code[order], -1)
        offset, deleted = np.append(changes.offset[order], -1), np.append(changes.deleted[order], False)
        wanted = rows.key * places + rows.place
        at = np.searchsorted(code[:-1], wanted)
        found = (code[at] == wanted) & (rows.place != UNKNOWN)
        return np.where(found, offset[at], -1), found & deleted[at]

    def _by_last_change(self, keys: Mask) -> Faulty:
        """These keys, reported by their last change, or by one of their rows if no record changed them."""
        changes, rows = self._changes, self._rows
        key = np.concatenate((changes.key, rows.key))
        place, offset = np.concatenate((changes.place, rows.place)), np.concatenate((changes.offset, rows.offset))
        wanted = np.flatnonzero(keys)
        at = _first_of(key, self.count)[wanted]
        return Faulty(place[at], offset[at], wanted)

    def _reported_by_row(self, which: Mask) -> Faulty:
        """The keys of these rows, reported by the first row of each, or by their last change without a place."""
        rows = self._rows
        key, first = np.unique(rows.key[which], return_index=True)
        place, offset = rows.place[which][first], rows.offset[which][first]
        lost = place == UNKNOWN
        if lost.any():
            mask = np.zeros(self.count, np.bool_)
            mask[key[lost]] = True
            changed = self._by_last_change(mask)
            place[lost], offset[lost] = changed.places, changed.offsets
        return Faulty(place, offset, key)

    def _any(self, keys: Offsets) -> Mask:
        found = np.zeros(self.count, np.bool_)
        found[keys] = True
        return found

    def _per_place(self, places: Offsets) -> Offsets:
        return np.bincount(places[places != UNKNOWN], minlength=len(self._limits.ends))


def _numbered(keys: pa.Table) -> Offsets:
    """A number for each distinct key, without a gap."""
    numbers = np.zeros(keys.num_rows, np.int64)
    for column in keys.columns:
        coded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        codes = np.asarray(coded.indices.to_numpy(zero_copy_only=False), np.int64)
        numbers = np.unique(numbers * len(coded.dictionary) + codes, return_inverse=True)[1].astype(np.int64)
    return numbers


def _first_of(numbers: Offsets, count: int) -> Offsets:
    """Where each number comes first; -1 for one that does not come."""
    first = np.full(count, -1, np.int64)
    first[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)
    return first


def _column(table: pa.Table, name: str) -> Offsets:
    return np.asarray(table.column(name).to_numpy(), np.int64)
