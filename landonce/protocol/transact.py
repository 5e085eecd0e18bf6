"""What a worker does with one block where rows and ledger are in one database, step by step. Pure.

    stage     saw                                     then
    ────────  ──────────────────────────────────────  ──────────────────────────────────────────────────────────────
    flip      the block's row was BEFORE, and mine    the rows, in the same transaction
              it was not                              read it
    rows      -                                       commit
    commit    answered                                LANDED
              no answer                               flip again: the row's lock waits for what still runs, and then the
                                                      row says what became of it
    read      AFTER                                   LANDED, by an earlier attempt: what its row says counts
              another claim, or no row                HALTED: fenced
              BEFORE, and mine                        flip again

No outcome is ever guessed, and nothing has a deadline: whether a block may be written is decided in its transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from landonce.protocol.block_rows import BlockRow, BlockState, Claim
from landonce.protocol.receipt import Fate


class TransactStage(str, Enum):
    """Where a worker is with its block."""

    FLIP = "flip"
    READ = "read"
    ROWS = "rows"
    COMMIT = "commit"


@dataclass(frozen=True)
class Transacting:
    """A worker's memory of one block."""

    stage: TransactStage = TransactStage.FLIP
    fate: Fate | None = None
    settled: str | None = None
    """The receipt of the attempt that landed it, where that was another one."""


def begin() -> Transacting:
    return Transacting()


def after_flip(transacting: Transacting, *, flipped: bool) -> Transacting:
    return replace(transacting, stage=TransactStage.ROWS if flipped else TransactStage.READ)


def after_rows(transacting: Transacting) -> Transacting:
    return replace(transacting, stage=TransactStage.COMMIT)


def after_commit(transacting: Transacting, *, answered: bool) -> Transacting:
    if answered:
        return replace(transacting, fate=Fate.LANDED)
    return replace(transacting, stage=TransactStage.FLIP)


def after_read(transacting: Transacting, row: BlockRow | None, claim: Claim) -> Transacting:
    if row is not None and row.mark is BlockState.AFTER:
        return replace(transacting, fate=Fate.LANDED, settled=row.receipt)
    if row is None or row.claim != claim:
        return replace(transacting, fate=Fate.HALTED)
    return replace(transacting, stage=TransactStage.FLIP)
