"""The worker's part of a wrapped sink: it pushes one block as the ledger allows.

A task that Spark runs again does the same again: the block's row says whether it may push.
"""

from __future__ import annotations

import time
import uuid
from contextlib import closing
from dataclasses import dataclass, field, replace

from landonce.protocol.block_rows import Mark, PushRow, Spot, over
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.read.block import ReadBlock, Reader
from landonce.read.decoders import decode_by
from landonce.read.fit import as_is, fit_to
from landonce.sinks.worker import BlockWorker, Refuse, failed
from landonce.sinks.wrapped.recipe import WrappedRecipe, WrappedTask
from landonce.sinks.wrapped.send import Sending, push_block

_PAUSE = 0.25


@dataclass(frozen=True)
class WrappedWorker(BlockWorker):
    """Pushes one block under a claim."""

    recipe: WrappedRecipe
    task: WrappedTask
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Names the attempt."""

    @property
    def spot(self) -> Spot:
        """The block's row in the ledger."""
        return Spot(self.task.batch, self.task.block.number)

    def reader(self) -> Reader:
        recipe = self.recipe
        decode = decode_by(recipe.source, max_record_bytes=recipe.max_record_bytes)
        return Reader.of_one(self.task.block.table, decode, as_is if recipe.shuffled else fit_to(recipe.target))

    def write(self, block: ReadBlock, receipt: Receipt, refuse: Refuse | None) -> BlockResult:
        del refuse
        task, rows = self.task, block.rows(self.task.block.table)
        sending = Sending(
            index=task.index,
            spot=self.spot,
            claim=task.claim,
            key=task.key,
            range=task.labelled[0],
            rows=rows,
            receipt=replace(receipt, landed=rows.num_rows),
            nonce=self.nonce,
        )
        if self.recipe.shuffled:
            return self._push_beside_others(sending)
        with closing(self.recipe.ledger.open()) as ledger:
            return push_block(self.recipe.sink, ledger, sending)

    def _push_beside_others(self, sending: Sending) -> BlockResult:
        """The first task of a block that returns ends the others, in the middle of a push too, and then nobody knows what became of it.
        So one that did not land its block leaves the others the time that they have; what they settle counts."""
        try:
            with closing(self.recipe.ledger.open()) as ledger:
                result = push_block(self.recipe.sink, ledger, sending)
        except Exception as error:
            result = failed(self.task, error)
        if result.fate is Fate.LANDED:
            return result
        with closing(self.recipe.ledger.open()) as ledger:
            while True:
                seen = ledger.row(self.spot)
                row = seen.rows[0] if seen.rows else None
                if row is not None and row.mark is Mark.AFTER:
                    known = Receipt.from_json(row.receipt) if row.receipt is not None else sending.receipt
                    return BlockResult(self.task.index, Fate.LANDED, known)
                if row is None or not self._under_way(row, seen.now):
                    return result
                time.sleep(_PAUSE)

    def _under_way(self, row: PushRow, now: int) -> bool:
        """Another attempt than mine may be pushing the block."""
        return row.mark is Mark.CLAIMED and row.nonce != self.nonce and not over(row, now, self.recipe.sink.wait)
