"""What a worker says of a block: its fate, a receipt for every record of it, and why records became dead letters. Pure.

A reason says what is wrong with one record, so two records with the same fault may read differently: `… at character 17` and
`… at character 230`. Their cause is the same text without the numbers.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NewType

from landonce.errors import LandonceError, Unbalanced
from landonce.protocol.blocks import Block
from landonce.protocol.ledger import Totals
from landonce.protocol.ranges import Partition

FileHandle = NewType("FileHandle", object)
"""What a sink's worker wrote for a table, and its driver's part commits. Nobody between them looks inside."""


class Want:
    """What a sink's driver must do before a block that waits can be written: make a table, add columns. Each sink has its own."""


_COUNTS = ("read", "landed", "filtered", "dead_lettered", "dead_letters", "refused", "bytes_read")


@dataclass(frozen=True)
class Receipt:
    """The account of one block: every record that was read is in exactly one of the three counts."""

    read: int
    landed: int
    filtered: int = 0
    dead_lettered: int = 0
    dead_letters: str = ""
    """The name of the staged file that holds them; empty if there are none."""
    refused: str = ""
    """The same, of those that the target itself refused."""
    reasons: Reasons = ()
    """Why, of all of them."""
    bytes_read: int = 0
    files: tuple[tuple[str, tuple[FileHandle, ...]], ...] = ()
    """The files that were written, by table. They count once the driver has committed them."""
    tops: tuple[tuple[str, tuple[tuple[Partition, int], ...]], ...] = ()
    """The highest offset of the rows in these files, by table and partition."""
    latest: tuple[tuple[Partition, int], ...] = ()
    """The latest timestamp of a record in each partition, in milliseconds."""

    def to_json(self) -> str:
        """The account alone, for a row of the ledger: no files, and nothing of timestamps."""
        fields = {name: getattr(self, name) for name in _COUNTS}
        why = [(each.cause, each.records, each.example) for each in self.reasons]
        return json.dumps(fields | ({"reasons": why} if why else {}), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Receipt:
        fields = json.loads(text)
        return Receipt(**{**fields, "reasons": tuple(Counted(*each) for each in fields.get("reasons", ()))})

    @property
    def balanced(self) -> bool:
        return self.read == self.landed + self.dead_lettered + self.filtered

    @property
    def totals(self) -> Totals:
        return Totals(self.landed, self.dead_lettered, self.filtered)


def unbalanced(block: Block, receipt: Receipt) -> Unbalanced:
    return Unbalanced(
        f"block {block}: {receipt.read} records were read, but {receipt.landed} landed, "
        f"{receipt.dead_lettered} were dead-lettered and {receipt.filtered} filtered.",
        safe="The position did not move. This is a bug in landonce: please report it.",
    )


class Fate(str, Enum):
    """What is known of a block after a worker has tried."""

    LANDED = "landed"
    """Every row is in the target, once."""
    DOUBTFUL = "doubtful"
    """An answer is missing. Nothing may be sent before the deadline has passed and the target was looked at."""
    LATE = "late"
    """The target refused an insert that came after the deadline. That one wrote nothing."""
    TOKEN_USED_UP = "acknowledged and not there"  # noqa: S105
    """The target acknowledged the token, and the rows are not there: the token is worth nothing any more."""
    WAITING = "waiting"
    """A table must be made, or its schema must evolve, before the block can be written."""
    HALTED = "halted"
    """An error that trying again does not fix."""


@dataclass(frozen=True)
class BlockResult:
    """The fate of the block with this index in its plan. `receipt` is there when it landed, `error` when it halted."""

    index: int
    fate: Fate
    receipt: Receipt | None = None
    error: LandonceError | None = None
    why: str = ""
    wants: tuple[Want, ...] = ()
    """What must be done before a block that waits can be written."""


_MOST = 20
"""Causes that are counted apart. What refuses records may put anything into its reasons."""
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
    counts = [f"  {each.records:>{width},} × {_shown(each)}" for each in reasons]
    unknown = total - sum(each.records for each in reasons)
    return counts + ([f"  {unknown:>{width},} × of an earlier start: their files say why"] if unknown > 0 else [])


def _shown(each: Counted) -> str:
    return each.cause if each.example == each.cause else f"{each.cause}, for example: {each.example}"
