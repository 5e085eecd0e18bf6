"""What a worker says of a block: its fate, and a receipt for every record of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from landonce.errors import LandonceError, Unbalanced
from landonce.protocol.blocks import Block
from landonce.protocol.ledger import Totals
from landonce.protocol.ranges import Partition
from landonce.protocol.reasons import Counted, Reasons

_KEPT = ("read", "landed", "filtered", "dead_lettered", "dead_letters", "refused", "bytes_read")


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
    files: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    """The files that were written, by table. They count once the driver has committed them."""
    tops: tuple[tuple[str, tuple[tuple[Partition, int], ...]], ...] = ()
    """The highest offset of the rows in these files, by table and partition."""
    latest: tuple[tuple[Partition, int], ...] = ()
    """The latest timestamp of a record in each partition, in milliseconds."""

    def to_json(self) -> str:
        """The account alone, for a row of the ledger: no files, and nothing of timestamps."""
        told = {name: getattr(self, name) for name in _KEPT}
        why = [(each.cause, each.records, each.example) for each in self.reasons]
        return json.dumps(told | ({"reasons": why} if why else {}), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Receipt:
        told = json.loads(text)
        return Receipt(**{**told, "reasons": tuple(Counted(*each) for each in told.get("reasons", ()))})

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
        safe="The position did not move. This is a defect in landonce: please report it.",
    )


class Fate(str, Enum):
    """What is known of a block after a worker has tried."""

    LANDED = "landed"
    """Every row is in the target, once."""
    DOUBTFUL = "doubtful"
    """An answer is missing. Nothing may be sent before the deadline has passed and the target was looked at."""
    LATE = "late"
    """The target refused an insert that came after the deadline. That one wrote nothing."""
    BURNT = "burnt"
    """The target acknowledged the token, and the rows are not there: the token is worth nothing any more."""
    WAITING = "waiting"
    """A table must be made, or its schema must evolve, before the block can be written."""
    HALTED = "halted"
    """An error that trying again does not mend."""


@dataclass(frozen=True)
class BlockResult:
    """The fate of the block with this index in its plan. `receipt` is there when it landed, `error` when it halted."""

    index: int
    fate: Fate
    receipt: Receipt | None = None
    error: LandonceError | None = None
    why: str = ""
    wants: Any = None
    """What must be done before a block that waits can be written."""
