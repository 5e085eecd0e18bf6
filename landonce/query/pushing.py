"""Wrapped sinks at the end of a query: a block is claimed in the ledger before it is pushed, and its row says what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from landonce.engine.perform import wait_for_attempts, watched, write_rest
from landonce.ledger.block_ledgers import PushLedger
from landonce.protocol.block_rows import Claim
from landonce.protocol.claimed import key_of
from landonce.protocol.ledger import LedgerState
from landonce.protocol.receipt import BlockResult
from landonce.protocol.steps import Asked, Await, Commit, LookAtClaims, Reply, Write
from landonce.query.performers import PlanPerformer
from landonce.query.rows import write
from landonce.sinks.claimed import PushTask
from landonce.sinks.wrapped.worker import WrappedRecipe


@dataclass
class Pushing(PlanPerformer):
    """A user's own function, and the rows of its blocks in the ledger."""

    recipe: WrappedRecipe
    ledger: PushLedger
    tell: Callable[[str], None] = lambda _: None
    """Of what a person should know while workers push."""

    def perform(self, effect: Asked, held: LedgerState) -> Reply:
        if isinstance(effect, LookAtClaims):
            return self.ledger.status(effect.plan.batch)
        if isinstance(effect, Await):
            wait_for_attempts(self.ledger, held, self.recipe.sink.wait)
            return None
        if isinstance(effect, Commit):
            return None
        raise TypeError(f"not an effect: {effect!r}")

    def write(self, effect: Write, held: LedgerState) -> tuple[BlockResult, ...]:
        plan, claim = effect.plan, Claim.of(held)
        incoming, frame = self.batch

        def rest(indexes: list[int]) -> tuple[BlockResult, ...]:
            tasks = [
                PushTask(
                    index=at,
                    batch=plan.batch,
                    plan="",
                    block=plan.blocks[at],
                    key=key_of(held, plan.blocks[at]),
                    claim=claim,
                    labels=held.labels,
                )
                for at in indexes
            ]
            with watched(self.recipe.ledger, tasks, self.tell, self.recipe.sink.wait / 1000):
                return write(frame, incoming.ranges, self.recipe, tasks)

        return write_rest(plan, effect.indexes, self.ledger.status(plan.batch).rows, rest)

    def close(self) -> None:
        """The ledger is closed by whoever opened it."""
