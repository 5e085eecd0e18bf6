"""What a worker says of a block: its fate, and a receipt for every record of it. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import NewType

from landonce.errors import LandonceError, Unbalanced
from landonce.protocol.blocks import Block
from landonce.protocol.ledger import Totals
from landonce.protocol.ranges import Partition
from landonce.protocol.reasons import Code, Counted, Reasons

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
    rows: tuple[tuple[str, int], ...] = ()
    """How many rows landed, by table, where a block has several tables. A record may have a row in more than one."""
    columns: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The columns that rows were sent for, by table, where tables get columns by and by."""
    latest: tuple[tuple[Partition, int], ...] = ()
    """The latest timestamp of a record in each partition, in milliseconds."""
    without_column: tuple[str, ...] = ()
    """Fields of records that no column takes, as far as they were noticed."""

    def to_json(self) -> str:
        """The account alone, for a row of the ledger: no files, no timestamps, no notices."""
        fields = {name: getattr(self, name) for name in _COUNTS}
        why = [(each.cause, each.records, each.example, each.code) for each in self.reasons]
        return json.dumps(fields | ({"reasons": why} if why else {}), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Receipt:
        fields = json.loads(text)
        why = (
            Counted(cause, records, example, Code.of(*code))
            for cause, records, example, *code in fields.get("reasons", ())
        )
        return Receipt(**{**fields, "reasons": tuple(why)})

    @property
    def balanced(self) -> bool:
        return self.read == self.landed + self.dead_lettered + self.filtered

    @property
    def rows_landed(self) -> int:
        return sum(count for _, count in self.rows) if self.rows else self.landed

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
    SLOW = "slow"
    """It was not ready when the commit timeout was over. Nothing of it counts, whatever its worker writes yet."""
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
