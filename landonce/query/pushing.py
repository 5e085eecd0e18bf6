"""Wrapped sinks at the end of a query: a block is claimed in the ledger before it is pushed, and its row says what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from landonce.engine.land import failed
from landonce.engine.unlanded import write_rest
from landonce.engine.watchdog import watched
from landonce.ledger.push_ledger import PushLedger, PushPlace
from landonce.protocol import query_refusals as refusals
from landonce.protocol.block_rows import Claim, Mark
from landonce.protocol.claims import PushRow, over
from landonce.protocol.ledger import LedgerState, Totals
from landonce.protocol.pushes import key_of, outcome_unknown
from landonce.protocol.ranges import Partition
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.protocol.steps import Found, Resolve, Write
from landonce.protocol.target import TargetView
from landonce.query.performers import PlanPerformer
from landonce.query.rows import write
from landonce.sinks.wrapped import work
from landonce.sinks.wrapped.recipe import WrappedTask
from landonce.sinks.wrapped.send import Sending
from landonce.sinks.wrapped.sink import WrappedSink

_GLANCE = 0.25


@dataclass(frozen=True)
class PushRecipe:
    """Where blocks are pushed to, and where they are claimed."""

    sink: WrappedSink
    place: PushPlace

    def fingerprint(self) -> str:
        """Another pyarrow may make other bytes of the same rows."""
        return f"{self.sink.identity} {pa.__version__}"


def push(recipe: PushRecipe, task: WrappedTask, rows: pa.Table) -> BlockResult:
    """A task that Spark runs again, or beside the first, finds the claim of the first."""
    receipt = Receipt(read=rows.num_rows, landed=rows.num_rows, bytes_read=rows.nbytes)
    sending = work.sending_of(task, rows, receipt)
    try:
        result = work.push(recipe.sink, recipe.place, sending)
    except Exception as error:
        result = failed(task, error)
    return result if result.fate is Fate.LANDED else _stand_by(recipe, sending, result)


def _stand_by(recipe: PushRecipe, sending: Sending, result: BlockResult) -> BlockResult:
    """The first task of a block that comes back ends the others, in the midst of a push too, and of that nobody would know what became.
    So one that did not land its block leaves others the time that they have; what they settle counts."""
    with closing(recipe.place.open()) as ledger:
        while True:
            seen = ledger.row(sending.spot)
            row = seen.rows[0] if seen.rows else None
            if row is not None and row.mark is Mark.AFTER:
                known = Receipt.from_json(row.receipt) if row.receipt is not None else sending.receipt
                return BlockResult(sending.index, Fate.LANDED, known)
            if row is None or not _under_way(row, sending.nonce, seen.now, recipe.sink.wait):
                return result
            time.sleep(_GLANCE)


def _under_way(row: PushRow, mine: str, now: int, wait: int) -> bool:
    """Another attempt than mine may be pushing the block."""
    return row.mark is Mark.CLAIMED and row.nonce != mine and not over(row, now, wait)


@dataclass
class Pushing(PlanPerformer):
    """A user's own function, and the rows of its blocks in the ledger."""

    recipe: PushRecipe
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
            with watched(self.recipe.place, tasks, self.tell, self.recipe.sink.wait / 1000):
                return write(frame, incoming.ranges, self.recipe, tasks, push)

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
