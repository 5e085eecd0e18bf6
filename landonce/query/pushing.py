"""Wrapped sinks at the end of a query: a block is claimed in the ledger before it is pushed, and its row says what became of it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pyarrow as pa

from landonce.plan.keys import labelled
from landonce.plan.ranges import Partition
from landonce.query import refusals
from landonce.query.hands import QueryHands
from landonce.query.protocol import Found, Resolve
from landonce.query.rows import write
from landonce.record.blocks import Claim, Mark
from landonce.record.ledger import LedgerState, Totals
from landonce.record.push_ledger import PushLedger, PushPlace
from landonce.record.pushes import PushRow, Spot, over
from landonce.run.protocol import Write
from landonce.run.pushes import key_of, outcome_unknown
from landonce.write.receipt import BlockResult, Fate, Receipt
from landonce.write.target import TargetView
from landonce.write.wrapped import WrappedSink
from landonce.write.wrapped.recipe import WrappedTask
from landonce.write.wrapped.send import Sending, push_block

_PAUSE, _GLANCE = 1.0, 0.25


@dataclass(frozen=True)
class PushRecipe:
    """Where blocks are pushed to, and where they are claimed."""

    sink: WrappedSink
    place: PushPlace


def push(recipe: PushRecipe, task: WrappedTask, rows: pa.Table) -> BlockResult:
    """A task that Spark runs again finds the claim of the first."""
    ledger, asked = recipe.place.open(), task.block.ranges[0]
    try:
        sending = Sending(
            index=task.index,
            spot=Spot(task.batch, task.block.number),
            claim=task.claim,
            key=task.key,
            range=labelled(asked, dict(task.labels).get(asked.partition.topic, asked.partition.topic)),
            rows=rows,
            receipt=Receipt(read=rows.num_rows, landed=rows.num_rows, bytes_read=rows.nbytes),
        )
        return push_block(recipe.sink, ledger, sending)
    finally:
        ledger.close()


@dataclass
class Pushing(QueryHands):
    """A user's own function, and the rows of its blocks in the ledger."""

    recipe: PushRecipe
    ledger: PushLedger

    def look(self, held: LedgerState, floors: tuple[tuple[Partition, int], ...]) -> TargetView:
        """The target may be anything, and is not looked at."""
        del held, floors
        return TargetView(())

    def found(self, effect: Resolve, index: int, held: LedgerState) -> Found:
        """A block that was claimed may have arrived, and without its rows nobody can be asked: that needs a person."""
        row = self._rows(effect.plan.batch)[effect.plan.blocks[index].number]
        if row.mark is Mark.CLAIMED:
            raise refusals.not_here(effect.plan.blocks[index])
        receipt = Receipt.from_json(row.receipt) if row.mark is Mark.AFTER and row.receipt is not None else None
        del held
        return Found(index, receipt is not None, receipt.totals if receipt else Totals())

    def write(self, effect: Write, held: LedgerState) -> tuple[BlockResult, ...]:
        """Blocks that landed before a crash are not made again: their rows hold their receipts."""
        self._settle_claims(effect.plan.batch, held)
        rows = self._rows(effect.plan.batch)
        done, tasks = [], []
        for index in effect.indexes:
            block = effect.plan.blocks[index]
            row = rows[block.number]
            if row.mark is Mark.AFTER and row.receipt is not None:
                done.append(BlockResult(index, Fate.LANDED, Receipt.from_json(row.receipt)))
                continue
            key, claim = key_of(held, block), Claim.of(held)
            tasks.append(WrappedTask(index, effect.plan.batch, "", block, key, claim, held.labels))
        incoming, frame = self.batch
        results = write(frame, incoming.ranges, self.recipe, tasks, push) if tasks else ()
        if any(result.fate is Fate.DOUBTFUL for result in results):
            time.sleep(_PAUSE)
        return (*done, *results)

    def _settle_claims(self, batch: int, held: LedgerState) -> None:
        """Where pushing again does harm, an attempt that nobody settled is waited out; then the worker asks the probe."""
        if self.recipe.sink.idempotent:
            return
        while True:
            seen = self.ledger.standing(batch)
            claimed = [row for row in seen.rows if row.mark is Mark.CLAIMED]
            if all(over(row, seen.now, self.recipe.sink.wait) for row in claimed):
                break
            time.sleep(_GLANCE)
        if claimed and not self.recipe.sink.can_probe:
            raise outcome_unknown(held, claimed[0])

    def _rows(self, batch: int) -> dict[int, PushRow]:
        return {row.number: row for row in self.ledger.standing(batch).rows}

    def close(self) -> None:
        """The ledger is closed by whoever opened it."""
