"""What a worker does with one block that a user's function delivers, step by step. Pure.

    stage     saw                                        then
    ────────  ─────────────────────────────────────────  ────────────────────────────────────────────────────────────
    claim     the block's row is mine and free           push
              it is not                                  row
    row       AFTER                                      LANDED, by an earlier attempt: what its row says counts
              another driver's, or no row                HALTED: fenced
              BEFORE                                     claim again
              CLAIMED by another attempt, and pushing    claim again
              again is harmless
              CLAIMED, it can take effect no more, and   probe
              there is a probe
              CLAIMED otherwise                          DOUBTFUL: the driver waits, and asks a person if it has to
    probe     the target has the block                   found
              it has not                                 reclaim
    found     the row was still as it was read           LANDED
              it was not                                 row
    reclaim   the row was still as it was read           push
              it was not                                 row
    push      returned                                   settle
              certainly nothing arrived                  release
              nobody knows                               DOUBTFUL
    settle    the claim was still mine                   LANDED
              it was not                                 row
    release   -                                          DOUBTFUL, and free again; or HALTED, where trying does not help
    skip      there are no rows, so nothing is pushed    LANDED
              the row is not mine, or AFTER              row

A worker pushes at most once. No outcome is ever guessed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from landonce.protocol.block_rows import BlockState, Claim, PushRow
from landonce.protocol.receipt import Fate


class PushStage(str, Enum):
    """Where a worker is with its block."""

    CLAIM = "claim"
    ROW = "row"
    PROBE = "probe"
    FOUND = "found"
    RECLAIM = "reclaim"
    PUSH = "push"
    SETTLE = "settle"
    RELEASE = "release"
    SKIP = "skip"


class Outcome(str, Enum):
    """What a push came to."""

    RETURNED = "returned"
    NOT_PUSHED = "not pushed"
    """Certainly nothing arrived; trying again may help."""
    REFUSED = "refused"
    """Certainly nothing arrived, and trying again does not help."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Pushing:
    """A worker's memory of one block."""

    first: PushStage
    harmless: bool
    """Pushing the block again does no harm."""
    can_probe: bool
    stage: PushStage
    pushed: bool = False
    refused: bool = False
    seen: str = ""
    """The attempt that was waited out."""
    fate: Fate | None = None
    settled: str | None = None
    """The receipt of the attempt that landed it, where that was another one and its receipt is known."""


def begin(*, harmless: bool, can_probe: bool, empty: bool = False) -> Pushing:
    """`empty`: every record of the block was filtered or is a dead letter."""
    first = PushStage.SKIP if empty else PushStage.CLAIM
    return Pushing(first, harmless or empty, can_probe, first)


def after_claim(pushing: Pushing, *, won: bool) -> Pushing:
    return replace(pushing, stage=PushStage.PUSH if won else PushStage.ROW)


def after_row(pushing: Pushing, row: PushRow | None, claim: Claim, *, over: bool) -> Pushing:
    """`over`: the row's last attempt can take effect no more."""
    if row is not None and row.mark is BlockState.AFTER:
        return replace(pushing, fate=Fate.LANDED, settled=row.receipt)
    if row is None or row.claim != claim:
        return replace(pushing, fate=Fate.HALTED)
    if pushing.pushed:
        return replace(pushing, fate=Fate.DOUBTFUL)
    if row.mark is BlockState.BEFORE or pushing.harmless:
        return replace(pushing, stage=pushing.first)
    if pushing.can_probe and over:
        return replace(pushing, stage=PushStage.PROBE, seen=row.nonce)
    return replace(pushing, fate=Fate.DOUBTFUL)


def after_probe(pushing: Pushing, *, there: bool) -> Pushing:
    return replace(pushing, stage=PushStage.FOUND if there else PushStage.RECLAIM)


def after_push(pushing: Pushing, outcome: Outcome) -> Pushing:
    if outcome is Outcome.RETURNED:
        return replace(pushing, stage=PushStage.SETTLE, pushed=True)
    if outcome is Outcome.UNKNOWN:
        return replace(pushing, fate=Fate.DOUBTFUL)
    return replace(pushing, stage=PushStage.RELEASE, refused=outcome is Outcome.REFUSED)


def after_settle(pushing: Pushing, *, won: bool) -> Pushing:
    """After `FOUND`, `SETTLE` and `SKIP`, which say in the block's row that it is done."""
    return replace(pushing, fate=Fate.LANDED) if won else replace(pushing, stage=PushStage.ROW)


def after_release(pushing: Pushing) -> Pushing:
    return replace(pushing, fate=Fate.HALTED if pushing.refused else Fate.DOUBTFUL)
