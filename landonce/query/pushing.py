"""Wrapped sinks at the end of a query: a block is claimed in the ledger before it is pushed, and its row says what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from landonce.engine.unlanded import write_rest
from landonce.engine.watchdog import watched
from landonce.ledger.push_ledger import PushLedger
from landonce.protocol import query_refusals as refusals
from landonce.protocol.block_rows import Claim, Mark, PushRow, over
from landonce.protocol.ledger import LedgerState, Totals
from landonce.protocol.pushes import key_of, outcome_unknown
from landonce.protocol.ranges import Partition
from landonce.protocol.receipt import BlockResult, Receipt
from landonce.protocol.steps import Found, Resolve, Write
from landonce.protocol.target import TargetView
from landonce.query.performers import PlanPerformer
from landonce.query.rows import write
from landonce.sinks.wrapped.recipe import WrappedRecipe, WrappedTask

_GLANCE = 0.25


@dataclass
class Pushing(PlanPerformer):
    """A user's own function, and the rows of its blocks in the ledger."""

    recipe: WrappedRecipe
    ledger: PushLedger
    tell: Callable[[str], None] = lambda _: None
    """Of what a person should know while workers push."""

    def look(self, held: LedgerState, floors: tuple[tuple[Partition, int], ...]) -> TargetView:
        """The target may be anything, and is not looked at."""
        del held, floors
        return TargetView(())

    def found(self, effect: Resolve, index: int, held: LedgerState) -> Found:
        """A block that nobody claimed was never pushed: workers of earlier drivers can claim it no more. One that was claimed may
        have arrived, and a probe cannot be asked about rows that are not here."""
        block = effect.plan.blocks[index]
        row = self._waited_out(effect.plan.batch, {block.number}).get(block.number)
        if row is None:
            raise refusals.taken_over()
        if row.mark is Mark.CLAIMED:
            raise refusals.pushed(effect.plan, block, key_of(held, block))
        known = row.mark is Mark.AFTER and row.receipt is not None
        totals = Receipt.from_json(str(row.receipt)).totals if known else Totals()
        return Found(index, row.mark is Mark.AFTER, totals)

    def write(self, effect: Write, held: LedgerState) -> tuple[BlockResult, ...]:
        plan, claim = effect.plan, Claim.of(held)
        incoming, frame = self.batch

        def rest(indexes: list[int]) -> tuple[BlockResult, ...]:
            tasks = [
                WrappedTask(
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

        return write_rest(plan, effect.indexes, self._settled(effect, held).values(), rest)

    def _settled(self, effect: Write, held: LedgerState) -> dict[int, PushRow]:
        """Where pushing again does harm, an attempt that nobody settled is waited out; then the worker asks the probe."""
        sink = self.recipe.sink
        if sink.idempotent:
            return {row.number: row for row in self.ledger.standing(effect.plan.batch).rows}
        numbers = {effect.plan.blocks[index].number for index in effect.indexes}
        rows = self._waited_out(effect.plan.batch, numbers)
        claimed = [row for number, row in rows.items() if number in numbers and row.mark is Mark.CLAIMED]
        if claimed and not sink.can_probe:
            raise outcome_unknown(held, *claimed)
        return rows

    def _waited_out(self, batch: int, numbers: set[int]) -> dict[int, PushRow]:
        """The rows of a batch, once nothing of the last attempt at these blocks can take effect any more."""
        while True:
            seen = self.ledger.standing(batch)
            open_ = (row for row in seen.rows if row.number in numbers and row.mark is Mark.CLAIMED)
            if all(over(row, seen.now, self.recipe.sink.wait) for row in open_):
                return {row.number: row for row in seen.rows}
            time.sleep(_GLANCE)

    def close(self) -> None:
        """The ledger is closed by whoever opened it."""
