"""Why records became dead letters, counted by cause. Pure.

A reason says what is wrong with one record, so two records that suffer from the same may read differently: `… at character 17`
and `… at character 230`. Their cause is the same text without the numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_MOST = 20
"""Causes that are told apart. What refuses records may put anything into its reasons."""
_KEPT = re.compile(r"('(?:[^'\\]|\\.)*'|`[^`]*`|\w+\(\d[\d, ]*\))")
"""Names in quotes, and types with their digits."""
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d(?:[\d.,:]*\d)?")
OTHERS = "other reasons"


@dataclass(frozen=True)
class Counted:
    """How many records have a reason like this one."""

    cause: str
    records: int
    example: str


Reasons = tuple[Counted, ...]
"""The most frequent first."""


def cause_of(reason: str) -> str:
    """The reason without the numbers of its record. Names and types are part of the cause."""
    parts = _KEPT.split(reason)
    return "".join(part if at % 2 else _NUMBER.sub("…", part) for at, part in enumerate(parts))


def counted(reasons: Iterable[str]) -> Reasons:
    """By cause."""
    return merged(Counted(cause_of(reason), records, reason) for reason, records in Counter(reasons).items())


def merged(reasons: Iterable[Counted]) -> Reasons:
    """Those of several blocks, or batches. The least frequent become one where there are too many."""
    found: dict[str, Counted] = {}
    for each in reasons:
        known = found.get(each.cause)
        found[each.cause] = Counted(each.cause, (known.records if known else 0) + each.records, (known or each).example)
    ordered = sorted(found.values(), key=lambda each: (each.cause == OTHERS, -each.records, each.cause))
    if len(ordered) <= _MOST:
        return tuple(ordered)
    rest = ordered[_MOST - 1 :]
    return (*ordered[: _MOST - 1], Counted(OTHERS, sum(each.records for each in rest), rest[0].example))


def lines(reasons: Reasons, total: int) -> list[str]:
    """For people: how many by which reason. `total` may hold letters whose reason only their file says."""
    width = len(f"{max((each.records for each in reasons), default=0):,}")
    told = [f"  {each.records:>{width},} × {_shown(each)}" for each in reasons]
    unknown = total - sum(each.records for each in reasons)
    return told + ([f"  {unknown:>{width},} × of an earlier start: their files say why"] if unknown > 0 else [])


def _shown(each: Counted) -> str:
    return each.cause if each.example == each.cause else f"{each.cause}, for example: {each.example}"
