"""Blocks of a pending plan that have a row of their own in the ledger: what the rows say, and who may change them. Pure.

Where the ledger lives in the target (transactional sinks):

    PREPARE   one row per block, BEFORE, with the claim (epoch and owner) of the driver that prepared it
    write     a block's rows and its flip to AFTER are one transaction, which holds only under the row's own claim
    ACQUIRE   every row gets the claim of the new driver: it waits for open transactions, and no later one holds
    RECORD    all rows are AFTER, and go

Where a user's own function delivers (claimed sinks), the target takes no part in a transaction and refuses nobody. So the ledger says
before an attempt that it is made, and after it what became of it:

    PREPARE   one row per block, BEFORE, with the claim (epoch and owner) of the driver that prepared it
    claim     BEFORE ─► CLAIMED: the attempt's nonce, its number, and when. Nobody pushes without it
    settle    CLAIMED ─► AFTER, by the attempt that holds the nonce: the block is there, with its receipt
    release   CLAIMED ─► BEFORE, by the attempt that holds the nonce: certainly nothing arrived
    reclaim   CLAIMED ─► CLAIMED, under another nonce: the earlier attempt was waited out, and the target lacks the block
    found     CLAIMED ─► AFTER: it was waited out, and the target has the block
    ACQUIRE   every row gets the claim of the new driver: earlier ones claim nothing any more
    RECORD    all rows are AFTER, and go

An attempt that was claimed before a takeover may still settle or release its own claim: what it says is true whichever driver owns
the pipeline. It may not claim again. A row is found by the block's number, which stays when an operator drops other blocks of the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from landonce import errors
from landonce.protocol.blocks import Plan, token
from landonce.protocol.ledger import LedgerState
from landonce.protocol.receipt import Receipt


class BlockState(str, Enum):
    """Whether a block's rows are in the table."""

    BEFORE = "BEFORE"
    CLAIMED = "CLAIMED"
    """Only where rows and ledger are apart (claimed sinks): an attempt may be on its way, or may have arrived."""
    AFTER = "AFTER"


@dataclass(frozen=True)
class Claim:
    """Who may flip a block. The owner is random, so that a restored database that hands out an epoch twice still fences."""

    epoch: int
    owner: str

    @staticmethod
    def of(state: LedgerState) -> Claim:
        return Claim(state.epoch, state.owner)


@dataclass(frozen=True)
class BlockRow:
    """What the target says of one block."""

    number: int
    claim: Claim
    mark: BlockState
    receipt: str | None = None


class AnyBlockRow(Protocol):
    """What the ledger says of one block, whatever kind of sink it is for."""

    @property
    def number(self) -> int: ...

    @property
    def mark(self) -> BlockState: ...

    @property
    def receipt(self) -> str | None: ...


def flippable(claim: Claim) -> dict[str, object]:
    """The columns of a block's row, and what they must hold, for its transaction to go on."""
    return {"epoch": claim.epoch, "owner": claim.owner, "state": BlockState.BEFORE.value}


@dataclass(frozen=True)
class BlockChange:
    """What becomes of the blocks' rows in the transaction that changes the ledger. In this order."""

    removed: int | None = None
    """The batch whose rows go."""
    claim: Claim | None = None
    """What all rows that stay are claimed by from now on."""
    added: tuple[int, ...] = ()
    """Blocks that get a row."""


def block_change(old: LedgerState, new: LedgerState) -> BlockChange:
    """Whatever the change of the ledger is, it says by itself what its blocks need."""
    before = old.pending.batch if old.pending else None
    after = new.pending.batch if new.pending else None
    if new.pending is not None and before != after:
        return BlockChange(before, None, tuple(block.number for block in new.pending.blocks))
    return BlockChange(
        removed=before if after is None else None,
        claim=Claim.of(new) if after is not None and Claim.of(old) != Claim.of(new) else None,
    )


def landed(rows: Iterable[AnyBlockRow]) -> frozenset[int]:
    """Blocks that are in the target, by their numbers."""
    return frozenset(row.number for row in rows if row.mark is BlockState.AFTER)


def accounted(rows: Iterable[AnyBlockRow]) -> frozenset[int]:
    """Blocks that landed and whose receipt is known: whatever becomes of their records, they are not read again."""
    return frozenset(row.number for row in rows if row.mark is BlockState.AFTER and row.receipt is not None)


def _put_nothing(row: AnyBlockRow) -> bool:
    """A block that is done and put nothing into the target: its driver may give it up. What is no receipt proves nothing."""
    try:
        return row.receipt is not None and Receipt.from_json(row.receipt).landed == 0
    except (ValueError, TypeError, AttributeError):
        return False


def may_change(old: LedgerState, new: LedgerState, rows: tuple[BlockRow, ...]) -> None:
    """Raises where the plan would be forgotten, or cut, with blocks that are in the table, or recorded without some that are not;
    and where an operator would give up the receipt of a block, which names its dead letters.

    Only ranges of partitions that begin again may go with the plan: these have another label from then on.
    """
    if old.pending is None:
        return
    cut_by_operator = old.pending != new.pending and old.epoch != new.epoch
    if block_change(old, new).removed is not None or cut_by_operator:
        _may_go(old, old.pending, new, rows)
    if new.epoch != old.epoch:
        _keeps_receipts(old, old.pending, new, accounted(rows))


def _may_go(old: LedgerState, plan: Plan, new: LedgerState, rows: tuple[BlockRow, ...]) -> None:
    there = landed(rows)
    empty = {row.number for row in rows if new.epoch == old.epoch and _put_nothing(row)}
    removed = block_change(old, new).removed is not None
    left = {block.number: block for block in new.pending.blocks} if new.pending is not None and not removed else {}
    committed = new.committed()
    for block in plan.blocks:
        stays = {each.partition: each.end for each in left[block.number].ranges} if block.number in left else {}
        kept = [each for each in block.ranges if old.labelled(each.partition) == new.labelled(each.partition)]
        kept = [each for each in kept if stays.get(each.partition) != each.end]
        past = [committed.get(each.partition, each.end) >= each.end for each in kept]
        if block.number in there and not all(past) and block.number not in empty:
            raise errors.PlanPending(
                f"block {block} of batch {plan.batch} has landed, and this command would forget it: its records would "
                "be delivered again.",
                safe="Nothing was changed.",
                command="landonce run {file} --once   (settles the plan first). If a topic changed, run this "
                "command again after that",
            )
        if block.number not in there and new.epoch == old.epoch and any(past):
            raise errors.Unbalanced(
                f"block {block} of batch {plan.batch} is not in the table, although its worker reported that it "
                "landed. The batch was not recorded.",
                safe="The position did not move. The database was restored to an earlier state while the pipeline "
                "ran. If it was not, this is a bug in landonce: please report it.",
                command="landonce run {file}",
            )


def _keeps_receipts(old: LedgerState, plan: Plan, new: LedgerState, known: Collection[int]) -> None:
    """Nobody reads a block again that landed, so what is known of it stays as long as any of its partitions goes on. What begins
    again is cut out of it."""
    left = {block.number: block.ranges for block in new.pending.blocks} if new.pending is not None else {}
    for block in plan.blocks:
        goes_on = tuple(each for each in block.ranges if old.labelled(each.partition) == new.labelled(each.partition))
        if block.number in known and goes_on and left.get(block.number) not in (block.ranges, goes_on):
            raise errors.PlanPending(
                f"block {block} of batch {plan.batch} has landed, and this command would discard its receipt, which "
                "names its dead letters.",
                safe="Nothing was changed.",
                command="landonce run {file} --once   (settles the plan first). If it cannot, run this command again",
            )


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
    mark: BlockState
    attempt: int = 0
    nonce: str = ""
    claimed_at: int = 0
    """Milliseconds on the ledger's clock."""
    receipt: str | None = None
    wait: int = 0
    """Milliseconds from its claim until nothing of the attempt can take effect any more, as the sink said when it was made."""


@dataclass(frozen=True)
class PushRows:
    """The rows of a batch at one moment of the ledger's clock."""

    rows: tuple[PushRow, ...]
    now: int


def claimable(claim: Claim, *, harmless: bool) -> Condition:
    """Nobody has pushed it, or pushing it again does no harm."""
    free = (BlockState.BEFORE.value, BlockState.CLAIMED.value) if harmless else (BlockState.BEFORE.value,)
    return {"epoch": (claim.epoch,), "owner": (claim.owner,), "state": free}


def reclaimable(claim: Claim, seen: str) -> Condition:
    """The last attempt is still the one that was waited out."""
    return {
        "epoch": (claim.epoch,),
        "owner": (claim.owner,),
        "state": (BlockState.CLAIMED.value,),
        "nonce": (seen,),
    }


def mine(nonce: str) -> Condition:
    """The attempt that says what became of it is the last one."""
    return {"state": (BlockState.CLAIMED.value,), "nonce": (nonce,)}


def ends(row: PushRow, wait: int) -> int:
    """When nothing of its last attempt can take effect any more: by what the sink says now, and by what it said then."""
    return row.claimed_at + max(wait, row.wait)


def over(row: PushRow, now: int, wait: int) -> bool:
    """Nothing of its last attempt can take effect any more."""
    return now > ends(row, wait)


def claims_may_change(old: LedgerState, new: LedgerState, rows: tuple[PushRow, ...]) -> None:
    """Raises where a plan would be forgotten, recorded or cut while something of it may be on its way."""
    if old.pending is None:
        return
    claimed = {row.number for row in rows if row.mark is BlockState.CLAIMED}
    removed = block_change(old, new).removed is not None
    left = {block.number: block for block in new.pending.blocks} if new.pending is not None and not removed else {}
    for block in old.pending.blocks:
        same = left.get(block.number) == block and token(old.identity, block) == token(new.identity, block)
        if block.number in claimed and not same and new.epoch != old.epoch:
            raise errors.PlanPending(
                f"block {block} of batch {old.pending.batch} was pushed, and nobody knows whether it arrived. The plan "
                "can be neither dropped nor cut until that is known.",
                safe="Nothing was changed.",
                command="landonce run {file} --once   (finds out). If it cannot, because the records are gone: look "
                "for the block in the target, then run landonce state settle {file} with the key that "
                "landonce state show {file} prints",
            )
    may_change(old, new, tuple(BlockRow(row.number, row.claim, row.mark, row.receipt) for row in rows))
