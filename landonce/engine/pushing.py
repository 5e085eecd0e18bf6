"""The performer for wrapped sinks: workers push blocks under claims, and the blocks' rows say what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from landonce.engine.performer import Performer
from landonce.engine.publish import Letters
from landonce.engine.unlanded import write_rest
from landonce.engine.watchdog import watched
from landonce.ledger.block_ledgers import PushLedger
from landonce.protocol import batch
from landonce.protocol.block_rows import Claim, Mark, over
from landonce.protocol.claimed import Claimed, key_of
from landonce.protocol.ledger import LedgerState
from landonce.protocol.receipt import BlockResult
from landonce.protocol.steps import Asked, Await, Commit, LookAtClaims, Reply, Write
from landonce.sinks.wrapped.worker import WrappedRecipe, WrappedTask

_GLANCE = 0.25


class Workers(Protocol):
    """Whoever pushes blocks."""

    def write(self, recipe: WrappedRecipe, tasks: Sequence[WrappedTask]) -> tuple[BlockResult, ...]: ...


@dataclass
class Pushing(Performer):
    """Performs the effects of a batch machine with the policy `claimed`."""

    settings: Claimed
    recipe: WrappedRecipe
    workers: Workers
    letters: Letters
    ledger: PushLedger
    tell: Callable[[str], None] = lambda _: None
    """Of what a person should know while workers push."""
    comparable = False
    block_rows = True

    @property
    def once(self) -> bool:
        return self.settings.once

    def begin(self) -> batch.Next:
        self.letters.begin()
        return batch.begin(self.settings)

    def acquired(self, state: LedgerState) -> str:
        self.letters.acquired(state)
        return ""

    def perform(self, effect: Asked, held: LedgerState) -> Reply:
        if isinstance(effect, LookAtClaims):
            return self.ledger.status(effect.plan.batch)
        if isinstance(effect, Await):
            wait_for_attempts(self.ledger, held, self.settings.wait)
            return None
        if isinstance(effect, Commit):
            self.letters.publish(effect.plan, held, [receipt.dead_letters for receipt in effect.receipts])
            return None
        raise TypeError(f"not an effect: {effect!r}")

    def write(self, effect: Write, held: LedgerState) -> tuple[BlockResult, ...]:
        def write(indexes: list[int]) -> tuple[BlockResult, ...]:
            tasks = [self._task(effect, index, held) for index in indexes]
            recipe = replace(self.recipe, dead_letters=self.letters.folder_of(effect.plan, held))
            with watched(self.recipe.ledger, tasks, self.tell, self.settings.wait / 1000):
                return self.workers.write(recipe, tasks)

        rows = self.ledger.status(effect.plan.batch).rows
        return write_rest(effect.plan, effect.indexes, rows, write)

    def _task(self, effect: Write, index: int, held: LedgerState) -> WrappedTask:
        block = effect.plan.blocks[index]
        return WrappedTask(
            index=index,
            batch=effect.plan.batch,
            plan=self.letters.stem(effect.plan, held),
            block=block,
            key=key_of(held, block),
            claim=Claim.of(held),
            labels=held.labels,
            topic_ids=held.topic_ids,
            inherited=held.inherited,
        )


def wait_for_attempts(ledger: PushLedger, held: LedgerState, wait: int) -> None:
    """Until every attempt that is claimed is over, or was settled by whoever made it."""
    batch = held.pending.batch if held.pending is not None else 0
    while True:
        seen = ledger.status(batch)
        claimed = [row for row in seen.rows if row.mark is Mark.CLAIMED]
        if all(over(row, seen.now, wait) for row in claimed):
            return
        time.sleep(_GLANCE)
