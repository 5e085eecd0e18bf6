"""What an operator may decide about a pipeline with a wrapped sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from landonce.ledger.block_ledgers import PushLedger
from landonce.protocol.block_rows import Row
from landonce.protocol.ledger import LedgerState
from landonce.sinks.operations import Operations
from landonce.sinks.wrapped.sink import HANDED_OVER, WrappedSink


@dataclass
class WrappedOperations(Operations):
    """The target cannot be asked; the ledger says what became of each block."""

    sink: WrappedSink
    no_fill = "there is nothing to fill: a block is pushed whole, and its row in the ledger says what became of it."

    @property
    def settles_within(self) -> int:  # type: ignore[override]
        return self.sink.wait if self.sink is not HANDED_OVER else 0

    def rows(self, state: LedgerState) -> Sequence[Row]:
        ledger = self.parts.ledger
        return ledger.status(state.pending.batch).rows if state.pending and isinstance(ledger, PushLedger) else ()
