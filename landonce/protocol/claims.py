"""Blocks of a pending plan that a user's own function delivers: what their rows in the ledger say, and who may change them.

The target does not take part in a transaction and refuses nobody, so the ledger says before an attempt that it is made, and
after it what became of it. Pure.

    PREPARE   one row per block, BEFORE, with the claim (epoch and owner) of the driver that prepared it
    claim     BEFORE ─► CLAIMED: the attempt's nonce, its number, and when. Nobody pushes without
    settle    CLAIMED ─► AFTER, by the attempt that holds the nonce: the block is there, with its receipt
    release   CLAIMED ─► BEFORE, by the attempt that holds the nonce: certainly nothing arrived
    reclaim   CLAIMED ─► CLAIMED, under another nonce: the earlier attempt was waited out, and the target lacks the block
    found     CLAIMED ─► AFTER: it was waited out, and the target has the block
    ACQUIRE   every row gets the claim of the new driver: earlier ones claim nothing any more
    RECORD    all rows are AFTER, and go

An attempt that was claimed before a takeover may still settle or release its own claim: what it says is true, whoever the
driver is by now. It may not claim again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from landonce import errors
from landonce.protocol.block_rows import BlockRow, Claim, Mark, block_change
from landonce.protocol.block_rows import may_change as blocks_may_change
from landonce.protocol.blocks import token
from landonce.protocol.ledger import LedgerState

Condition = Mapping[str, tuple[object, ...]]
"""Columns of a block's row, and what they may hold for a change to be made."""


@dataclass(frozen=True)
class Spot:
    """Which row: a block of a batch."""

    batch: int
    number: int


@dataclass(frozen=True)
class PushRow:
    """What the ledger says of one block, and of the last attempt to push it."""

    number: int
    claim: Claim
    mark: Mark
    attempt: int = 0
    nonce: str = ""
    claimed_at: int = 0
    """Milliseconds on the ledger's clock."""
    receipt: str | None = None
    wait: int = 0
    """Milliseconds from its claim until nothing of the attempt can take effect any more, as the sink said when it was made."""


@dataclass(frozen=True)
class Standing:
    """The rows of a batch at one moment of the ledger's clock."""

    rows: tuple[PushRow, ...]
    now: int


def claimable(claim: Claim, *, harmless: bool) -> Condition:
    """Nobody has pushed it, or pushing it again does no harm."""
    free = (Mark.BEFORE.value, Mark.CLAIMED.value) if harmless else (Mark.BEFORE.value,)
    return {"epoch": (claim.epoch,), "owner": (claim.owner,), "state": free}


def reclaimable(claim: Claim, seen: str) -> Condition:
    """The last attempt is still the one that was waited out."""
    return {
        "epoch": (claim.epoch,),
        "owner": (claim.owner,),
        "state": (Mark.CLAIMED.value,),
        "nonce": (seen,),
    }


def mine(nonce: str) -> Condition:
    """The attempt that says what became of it is the last one."""
    return {"state": (Mark.CLAIMED.value,), "nonce": (nonce,)}


def ends(row: PushRow, wait: int) -> int:
    """When nothing of its last attempt can take effect any more: by what the sink says now, and by what it said then."""
    return row.claimed_at + max(wait, row.wait)


def over(row: PushRow, now: int, wait: int) -> bool:
    """Nothing of its last attempt can take effect any more."""
    return now > ends(row, wait)


def may_change(old: LedgerState, new: LedgerState, rows: tuple[PushRow, ...]) -> None:
    """Raises where a plan would be forgotten, recorded or cut while something of it may be on its way."""
    if old.pending is None:
        return
    claimed = {row.number for row in rows if row.mark is Mark.CLAIMED}
    removed = block_change(old, new).removed is not None
    left = {block.number: block for block in new.pending.blocks} if new.pending is not None and not removed else {}
    for block in old.pending.blocks:
        same = left.get(block.number) == block and token(old.identity, block) == token(new.identity, block)
        if block.number in claimed and not same and new.epoch != old.epoch:
            raise errors.PlanPending(
                f"block {block} of batch {old.pending.batch} was pushed, and whether it arrived is not known: it can be neither "
                "forgotten nor cut.",
                safe="Nothing was changed.",
                command="landonce run {file} --once   (finds out). Where it cannot, for its records are gone: look for the block in the "
                "target, then landonce state settle {file}, with the key that landonce state show {file} names",
            )
    blocks_may_change(old, new, tuple(BlockRow(row.number, row.claim, row.mark, row.receipt) for row in rows))
