"""The hands of a driver: what it does outside that depends on how exactly-once comes about in the sink.

Each kind of sink has its own protocol (pure) and its own hands (which perform its effects). What all have in common, the
driver does itself: it takes the pipeline, surveys the brokers, swaps the ledger's state, waits, and gives up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from landonce.protocol.ledger import LedgerState


class Hands(ABC):
    """What a kind of sink needs done."""

    once: bool
    comparable: bool = True
    """A start compares the target with a ledger that was restored, so that it forgets nothing."""
    block_rows: bool = False
    """Every block of a pending plan has a row of its own in the ledger, by which its worker knows whose it is."""

    @abstractmethod
    def begin(self) -> tuple[Any, Any]:
        """The protocol's first driver and effect."""

    @abstractmethod
    def advance(self, driver: Any, reply: Any) -> tuple[Any, Any]:
        """The protocol's next driver and effect."""

    @abstractmethod
    def perform(self, effect: Any, held: LedgerState) -> Any:
        """Does what the effect says, and gives its reply. `held` is the ledger's state as this driver holds it."""

    def now(self) -> int:
        """The target's clock, in milliseconds, where there are deadlines on it."""
        return 0

    def look_due(self) -> bool:
        """Whether it is time to look at the target again, though there is nothing to write."""
        return False

    def news(self) -> tuple[str, ...]:
        """What people should hear of, since it was last asked."""
        return ()

    def acquired(self, state: LedgerState) -> str:
        """Called once the pipeline is taken; gives what people should hear of it."""
        del state
        return ""
