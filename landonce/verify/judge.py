"""One window of one partition: what was expected, what is there, and where the two differ. Pure numpy.

    record         in the target   in the dead letters   verdict
    ─────────────  ──────────────  ────────────────────  ─────────────────────────────────────────────
    lands          once            -                     fine
    is dead        -               once                  fine
    is filtered    -               -                     fine
    lands          -                                     missing in the target
    is dead                        -                     missing in the dead letters
    any            twice or more                         duplicated in the target
    any                            twice or more         duplicated in the dead letters
    any            yes             yes                   duplicated, in both
    does not land  yes             -                     unexpected in the target
    is not dead    -               yes                   unexpected in the dead letters

"Does not land" includes that there is no such record. Offsets that hold no record are never missed. In a compacted topic
a row without a record is not unexpected: its record may have been there when it landed. It is counted as vanished.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Fault(str, Enum):
    """How reality and expectation can differ."""

    MISSING = "missing"
    DUPLICATED = "duplicated"
    UNEXPECTED = "unexpected"


class Place(str, Enum):
    """Where they differ."""

    TARGET = "target"
    DEAD_LETTERS = "dead letters"
    BOTH = "both"


@dataclass(frozen=True)
class Expected:
    """The records of a window, in offset order, and what should have become of each. The rest is filtered."""

    offsets: Offsets
    lands: Mask
    dead: Mask

    def between(self, first: int, end: int) -> Expected:
        low, high = np.searchsorted(self.offsets, (first, end))
        return Expected(self.offsets[low:high], self.lands[low:high], self.dead[low:high])


@dataclass(frozen=True)
class Counted:
    """Distinct offsets in order, and how often each of them is there."""

    offsets: Offsets
    counts: Offsets

    @staticmethod
    def none() -> Counted:
        return Counted(np.empty(0, np.int64), np.empty(0, np.int64))

    @staticmethod
    def of(offsets: Offsets) -> Counted:
        distinct, counts = np.unique(offsets, return_counts=True)
        return Counted(distinct, counts.astype(np.int64))

    def between(self, first: int, end: int) -> Counted:
        low, high = np.searchsorted(self.offsets, (first, end))
        return Counted(self.offsets[low:high], self.counts[low:high])


@dataclass(frozen=True)
class Judged:
    """Every offset that anybody knows of in the window, in order, and which of them are at fault, how and where."""

    offsets: Offsets
    landed: int
    dead_lettered: int
    vanished: int
    """Offsets of a compacted topic that the target or the dead letters know, and Kafka does not any more."""
    faults: tuple[tuple[Fault, Place, Mask], ...]


def judge(expected: Expected, target: Counted, letters: Counted, *, compacted: bool = False) -> Judged:
    """The table above, for one window."""
    offsets = _union(_union(expected.offsets, target.offsets), letters.offsets)
    lands = _spread(offsets, expected.offsets, expected.lands)
    dead = _spread(offsets, expected.offsets, expected.dead)
    held = _spread(offsets, target.offsets, target.counts > 0)
    lettered = _spread(offsets, letters.offsets, letters.counts > 0)
    both = held & lettered
    vanished = np.full(len(offsets), compacted) & ~_spread(offsets, expected.offsets, expected.offsets >= 0)
    faults = (
        (Fault.MISSING, Place.TARGET, lands & ~held),
        (Fault.MISSING, Place.DEAD_LETTERS, dead & ~lettered),
        (Fault.DUPLICATED, Place.TARGET, _spread(offsets, target.offsets, target.counts > 1)),
        (Fault.DUPLICATED, Place.DEAD_LETTERS, _spread(offsets, letters.offsets, letters.counts > 1)),
        (Fault.DUPLICATED, Place.BOTH, both),
        (Fault.UNEXPECTED, Place.TARGET, held & ~lands & ~both & ~vanished),
        (Fault.UNEXPECTED, Place.DEAD_LETTERS, lettered & ~dead & ~both & ~vanished),
    )
    return Judged(
        offsets=offsets,
        landed=int(np.count_nonzero(lands & held)),
        dead_lettered=int(np.count_nonzero(dead & lettered)),
        vanished=int(np.count_nonzero(vanished)),
        faults=tuple(each for each in faults if each[2].any()),
    )


def _union(one: Offsets, other: Offsets) -> Offsets:
    """Both, in order, each offset once. Both are in order themselves, and mostly the same."""
    if len(other) == 0 or np.array_equal(one, other):
        return one
    both = np.sort(np.concatenate((one, other)), kind="stable")
    return both[np.concatenate(([True], both[1:] != both[:-1]))]


def _spread(offsets: Offsets, of: Offsets, mask: Mask) -> Mask:
    """`mask`, which is about the offsets `of`, about all offsets."""
    wide = np.zeros(len(offsets), np.bool_)
    wide[np.searchsorted(offsets, of)] = mask
    return wide
