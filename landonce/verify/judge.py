"""Judges one window of one partition: what was expected, what is there, and where the two differ. Pure.

    record         in a table      in the dead letters   verdict
    ─────────────  ──────────────  ────────────────────  ─────────────────────────────────────────────
    lands          once            -                     fine
    is dead        -               once                  fine
    is refused     -               once                  fine: only the target can refuse it
    is filtered    -               -                     fine
    lands          -                                     missing in the target
    is dead                        -                     missing in the dead letters
    any            twice or more                         duplicated in the target
    any                            twice or more         duplicated in the dead letters
    any            yes             yes                   duplicated, in both
    does not land  yes             -                     unexpected in the target
    is not dead    -               yes                   unexpected in the dead letters

With several tables, "lands" and "does not land" apply to each of them, and "-" in the verdicts of the dead letters
means "in no table". "Does not land" includes that there is no such record. An offset without a record is never missing.
In a compacted topic a row without a record is not unexpected: its record may have existed when it landed. It counts as
vanished.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import pyarrow as pa

from landonce.sinks.audit import Counted, Mask, Offsets


class Fault(str, Enum):
    """How the target can differ from what was expected."""

    MISSING = "missing"
    DUPLICATED = "duplicated"
    UNEXPECTED = "unexpected"
    STALE = "stale"
    """If records change rows: a row is there, but not of the last change."""
    CHANGED = "changed"
    """A row is there, and one of its values differs from its record. Only found if values are compared."""


FAULTS = (Fault.MISSING, Fault.DUPLICATED, Fault.UNEXPECTED)
"""The faults that every table can have."""


class Place(str, Enum):
    """Where they differ."""

    TARGET = "target"
    DEAD_LETTERS = "dead letters"
    BOTH = "both"


@dataclass(frozen=True)
class Expected:
    """The records of a window that concern one table, in offset order: each of them lands in it, or is dead."""

    offsets: Offsets
    lands: Mask
    records: Offsets
    """All records of the window, whether they concern the table or not."""

    @staticmethod
    def none() -> Expected:
        return Expected(np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0, np.int64))


@dataclass(frozen=True)
class Fates:
    """The records of a window, in offset order, and what each should have become. Records that neither land nor
    are dead are filtered."""

    offsets: Offsets
    dead: Mask
    lands: Mapping[str, Offsets]
    """Which records each table should hold, by their index in the window, in order."""
    changes: Mapping[str, pa.Table] = field(default_factory=dict)
    """If records change rows: what these records do to the rows of each table."""
    rows: Mapping[str, pa.Table] = field(default_factory=dict)
    """Where records are rows: what these should hold, in the order of `lands`."""

    @property
    def landing(self) -> Mask:
        """Which records land in any table."""
        anywhere = np.zeros(len(self.offsets), np.bool_)
        for indexes in self.lands.values():
            anywhere[indexes] = True
        return anywhere

    def of(self, table: str) -> Expected:
        lands = np.zeros(len(self.offsets), np.bool_)
        lands[self.lands.get(table, np.empty(0, np.int64))] = True
        concerned = lands | self.dead
        return Expected(self.offsets[concerned], lands[concerned], self.offsets)

    def without(self, refused: Offsets) -> Fates:
        """The same, but these records are dead: the target refused them, which nothing else could predict."""
        gone = np.isin(self.offsets, refused)
        if not gone.any():
            return self
        left = {table: ~gone[indexes] for table, indexes in self.lands.items()}
        return Fates(
            self.offsets,
            self.dead | gone,
            {table: self.lands[table][kept] for table, kept in left.items()},
            {table: rows.filter(pa.array(left[table])) for table, rows in self.changes.items()},
            {table: rows.filter(pa.array(left[table])) for table, rows in self.rows.items()},
        )

    def between(self, first: int, end: int) -> Fates:
        low, high = (int(at) for at in np.searchsorted(self.offsets, (first, end)))
        if low == 0 and high == len(self.offsets):
            return self
        cuts = {table: np.searchsorted(indexes, (low, high)) for table, indexes in self.lands.items()}
        return Fates(
            self.offsets[low:high],
            self.dead[low:high],
            {table: self.lands[table][a:b] - low for table, (a, b) in cuts.items() if a < b},
            *(
                {table: rows[table].slice(a, b - a) for table, (a, b) in cuts.items() if a < b and table in rows}
                for rows in (self.changes, self.rows)
            ),
        )


@dataclass(frozen=True)
class Judged:
    """Every known offset of the window, in order, and which of them are at fault, how and where."""

    offsets: Offsets
    right: int
    """Records that are where they should be."""
    vanished: int
    """Offsets of a compacted topic that the target or the dead letters hold, and Kafka no longer does."""
    faults: tuple[tuple[Fault, Place, Mask], ...]


def judge_rows(expected: Expected, target: Counted, letters: Counted, *, compacted: bool = False) -> Judged:
    """One table: the verdicts in the target, and in both."""
    offsets = _union(expected.offsets, target.offsets)
    lands = _spread(offsets, expected.offsets, expected.lands)
    held = _spread(offsets, target.offsets, target.counts > 0)
    both = held & np.isin(offsets, letters.offsets)
    vanished = _vanished(offsets, expected.records, compacted) & held
    return _judged(
        offsets,
        lands & held,
        vanished,
        (Fault.MISSING, Place.TARGET, lands & ~held),
        (Fault.DUPLICATED, Place.TARGET, _spread(offsets, target.offsets, target.counts > 1)),
        (Fault.DUPLICATED, Place.BOTH, both),
        (Fault.UNEXPECTED, Place.TARGET, held & ~lands & ~both & ~vanished),
    )


def judge_letters(fates: Fates, held: Offsets, letters: Counted, *, compacted: bool = False) -> Judged:
    """The verdicts in the dead letters. `held` is what any table holds."""
    offsets = _union(fates.offsets, letters.offsets)
    dead = _spread(offsets, fates.offsets, fates.dead)
    lettered = _spread(offsets, letters.offsets, letters.counts > 0)
    alone = lettered & ~np.isin(offsets, held)
    vanished = _vanished(offsets, fates.offsets, compacted) & alone
    return _judged(
        offsets,
        dead & lettered,
        vanished,
        (Fault.MISSING, Place.DEAD_LETTERS, dead & ~lettered),
        (Fault.DUPLICATED, Place.DEAD_LETTERS, _spread(offsets, letters.offsets, letters.counts > 1)),
        (Fault.UNEXPECTED, Place.DEAD_LETTERS, alone & ~dead & ~vanished),
    )


def _judged(offsets: Offsets, right: Mask, vanished: Mask, *faults: tuple[Fault, Place, Mask]) -> Judged:
    return Judged(
        offsets=offsets,
        right=int(np.count_nonzero(right)),
        vanished=int(np.count_nonzero(vanished)),
        faults=tuple(each for each in faults if each[2].any()),
    )


def _vanished(offsets: Offsets, records: Offsets, compacted: bool) -> Mask:
    return ~np.isin(offsets, records) if compacted else np.zeros(len(offsets), np.bool_)


def _union(one: Offsets, other: Offsets) -> Offsets:
    """The union, in order. Both inputs are in order, and mostly equal."""
    if len(other) == 0 or np.array_equal(one, other):
        return one
    both = np.sort(np.concatenate((one, other)), kind="stable")
    return both[np.concatenate(([True], both[1:] != both[:-1]))]


def _spread(offsets: Offsets, of: Offsets, mask: Mask) -> Mask:
    """`mask`, which is about the offsets `of`, about all offsets."""
    wide = np.zeros(len(offsets), np.bool_)
    wide[np.searchsorted(offsets, of)] = mask
    return wide
