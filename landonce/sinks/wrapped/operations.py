"""What an operator may decide about a pipeline with a wrapped sink."""

from __future__ import annotations

import time
from dataclasses import dataclass

from landonce.ledger.block_ledgers import Decision, PushLedger
from landonce.protocol import operate
from landonce.protocol.block_rows import Mark
from landonce.protocol.claims import PushRow, Spot, over
from landonce.protocol.ledger import LedgerState
from landonce.protocol.pushes import key_of
from landonce.sinks.operations import Choice, Operations, nothing_to_settle
from landonce.sinks.wrapped.driver import wrapped_recipe
from landonce.sinks.wrapped.sink import HANDED_OVER, WrappedSink


@dataclass
class WrappedOperations(Operations):
    """The target cannot be asked; the ledger says what became of each block."""

    sink: WrappedSink
    no_fill = "there is nothing to fill: a block is pushed whole, and its row in the ledger says what became of it."

    def fingerprint(self) -> str:
        return wrapped_recipe(self.parts).fingerprint()

    def rows(self, state: LedgerState) -> tuple[PushRow, ...]:
        ledger = self.parts.ledger
        return ledger.status(state.pending.batch).rows if state.pending and isinstance(ledger, PushLedger) else ()

    def claimed(self, state: LedgerState) -> tuple[str, ...]:
        open_ = {row.number for row in self.rows(state) if row.mark is Mark.CLAIMED}
        blocks = state.pending.blocks if state.pending is not None else ()
        return tuple(key_of(state, block) for block in blocks if block.number in open_)

    def settle(self, block: str, owner: str, *, landed: bool) -> Choice:
        """What was claimed is waited out first: then the person's word holds."""
        ledger, state = self.parts.ledger, self.required()
        if not isinstance(ledger, PushLedger) or state.pending is None:
            raise nothing_to_settle()
        batch = state.pending.batch
        blocks = {key_of(state, each): each for each in state.pending.blocks}
        decision, row = operate.settle(state, blocks, self.rows(state), block, owner, landed=landed)
        within = self.sink.wait if self.sink is not HANDED_OVER else 0  # 0: the claims themselves say it

        def wait_out() -> None:
            while not over(row, ledger.status(batch).now, within):
                time.sleep(0.5)

        def change() -> None:
            settled = Decision(Spot(batch, row.number), row.nonce, landed)
            ledger.decide(state, decision.new, decision.note(), settled)

        return Choice(state, decision, before=wait_out, change=change)
