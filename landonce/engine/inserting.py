"""The performer for targets that deduplicate: inserts with a token and a deadline, and a probe after any doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from landonce.engine.performer import Performer
from landonce.engine.publish import Letters
from landonce.protocol import batch
from landonce.protocol.blocks import token
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.ledger import LedgerState
from landonce.protocol.receipt import BlockResult
from landonce.protocol.steps import Asked, Await, Commit, Count, Kill, Look, Reply, Write
from landonce.sinks.contract import Counting, Target, look_by_name, wait_out
from landonce.sinks.deduplicating import InsertRecipe, InsertTask


class Workers(Protocol):
    """Whoever writes blocks."""

    def write(self, recipe: InsertRecipe, tasks: Sequence[InsertTask]) -> tuple[BlockResult, ...]: ...


@dataclass
class Inserting(Performer):
    """Performs the effects of a batch machine with the policy `deduplicating`."""

    settings: Deduplicating
    recipe: InsertRecipe
    target: Target
    workers: Workers
    letters: Letters

    def __post_init__(self) -> None:
        self._counting = Counting(self.target)

    @property
    def once(self) -> bool:
        return self.settings.once

    def begin(self) -> batch.Next:
        self.letters.begin()
        return batch.begin(self.settings)

    def now(self) -> int:
        return self.target.now()

    def acquired(self, state: LedgerState) -> str:
        self.letters.acquired(state)
        return ""

    def perform(self, effect: Asked, held: LedgerState) -> Reply:
        if isinstance(effect, Await):
            wait_out(self.target, effect.deadline)
            return None
        if isinstance(effect, Kill):
            self.target.kill()
            return self.target.now()
        if isinstance(effect, Look):
            return look_by_name(self.target, held, effect.floors)
        if isinstance(effect, Count):
            return self._counting.count(held, effect.ranges)
        if isinstance(effect, Commit):
            self.letters.publish(effect.plan, held, [receipt.dead_letters for receipt in effect.receipts])
            return None
        raise TypeError(f"not an effect: {effect!r}")

    def write(self, effect: Write, held: LedgerState) -> tuple[BlockResult, ...]:
        recipe = replace(self.recipe, dead_letters=self.letters.folder_of(effect.plan, held))
        return self.workers.write(recipe, tasks_of(effect, held, self.letters.stem(effect.plan, held)))


def tasks_of(effect: Write, held: LedgerState, plan: str = "") -> list[InsertTask]:
    """One for each block that is to be written. `plan`: what its dead letters are called."""
    return [
        InsertTask(
            index=index,
            batch=effect.plan.batch,
            plan=plan,
            block=effect.plan.blocks[index],
            token=token(held.identity, effect.plan.blocks[index]),
            deadline=effect.plan.deadline,
            mode=effect.mode,
            kind=effect.plan.kind,
            labels=held.labels,
            topic_ids=held.topic_ids,
            inherited=held.inherited,
        )
        for index in effect.indexes
    ]
