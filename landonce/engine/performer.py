"""What is done outside for a batch machine, and depends on how exactly-once comes about in the sink.

Each kind of sink has its machine (pure) and its performer. What all have in common, the driver does itself: it takes the pipeline,
surveys the brokers, swaps the ledger's state, waits, and gives up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from landonce.protocol.batch import Machine
from landonce.protocol.ledger import LedgerState
from landonce.protocol.match_ranges import Incoming
from landonce.protocol.receipt import BlockResult
from landonce.protocol.steps import Asked, Effect, Reply, Write


class Performer(ABC):
    """Performs the effects of one kind of sink."""

    comparable: bool = True
    """A start compares the target with a ledger that was restored, so that it forgets nothing."""
    block_rows: bool = False
    """Every block of a pending plan has a row of its own in the ledger, by which its worker knows whose it is."""

    @property
    @abstractmethod
    def once(self) -> bool:
        """The run ends when what was there at its start has landed."""

    @abstractmethod
    def begin(self) -> tuple[Machine, Effect]:
        """A machine that starts, and its first effect."""

    def advance(self, machine: Machine, reply: Reply) -> tuple[Machine, Effect]:
        """The machine after this reply, and the effect that comes next. Performers may remember either, and change neither."""
        return machine.advance(reply)

    @abstractmethod
    def perform(self, effect: Asked, held: LedgerState) -> Reply:
        """Does what the effect says, and gives its reply. `held` is the ledger's state as this driver holds it."""

    @abstractmethod
    def write(self, effect: Write, held: LedgerState) -> tuple[BlockResult, ...]:
        """Has the workers write blocks."""

    @property
    def incoming(self) -> Incoming | None:
        """The ranges that Spark brings, where it is Spark that says which there are."""
        return None

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
