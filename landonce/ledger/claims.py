"""What a wrapped sink needs of a ledger beside the state: a row for each block of the pending plan, which workers claim.

PushLedger    in tables of an SQL database (`block_ledgers`)
EntryClaims   in the pipeline's own entry of any other ledger (`entry_claims`)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from landonce.protocol.block_rows import Claim, PushRow, PushRows, Spot
from landonce.protocol.ledger import Ledger, LedgerState, Note


@dataclass(frozen=True)
class AttemptDecision:
    """What a person found out about an attempt."""

    spot: Spot
    nonce: str
    landed: bool


class ClaimPlace(ABC):
    """The address of a pipeline's rows, for workers: picklable, and its repr hides secrets."""

    @abstractmethod
    def open(self) -> ClaimLedger:
        """Does not connect yet."""

    @property
    def file(self) -> Path | None:
        """A file that only processes of this machine can open, if it is one."""
        return None


class ClaimLedger(Ledger):
    """Keeps one pipeline's state outside its target. The driver and its workers use it. A `change` of the state and what it means for the
    rows (`block_change`, `claims_may_change`) are one atomic change."""

    address: ClaimPlace
    """Where workers open the same ledger, whatever folder they run in."""

    # For the driver.

    @abstractmethod
    def status(self, batch: int) -> PushRows:
        """The rows of a pending batch, and the clock by which they were claimed."""

    @abstractmethod
    def decide(self, old: LedgerState, new: LedgerState, note: Note, decision: AttemptDecision) -> LedgerState:
        """Like `change`, and records a person's decision on one attempt."""

    # For workers.

    @abstractmethod
    def row(self, spot: Spot) -> PushRows:
        """The block's row, if there is one, and the clock."""

    @abstractmethod
    def claim(self, spot: Spot, claim: Claim, nonce: str, *, harmless: bool, wait: int = 0) -> PushRow | None:
        """The row with the claimed attempt, or None if the claim is refused. `wait`: how long it can take effect."""

    @abstractmethod
    def reclaim(self, spot: Spot, claim: Claim, nonce: str, seen: str, *, wait: int = 0) -> PushRow | None:
        """Like `claim`, in place of an attempt that can no longer take effect and did not arrive."""

    @abstractmethod
    def settle(self, spot: Spot, nonce: str, receipt: str) -> bool:
        """The attempt's block landed. False if this is no longer the last attempt."""

    @abstractmethod
    def found(self, spot: Spot, claim: Claim, seen: str, receipt: str) -> bool:
        """The target has the block of an attempt that can no longer take effect."""

    @abstractmethod
    def skip(self, spot: Spot, claim: Claim, receipt: str) -> bool:
        """A block without rows is done."""

    @abstractmethod
    def release(self, spot: Spot, nonce: str) -> bool:
        """Certainly nothing of the attempt arrived: the block can be claimed again."""
