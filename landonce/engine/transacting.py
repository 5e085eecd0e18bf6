"""The performer for databases: workers land blocks in transactions, and the blocks' rows say which of them are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from landonce.engine.performer import Performer
from landonce.engine.publish import Letters
from landonce.engine.unlanded import write_rest
from landonce.ledger.block_ledgers import TargetLedger
from landonce.protocol import batch
from landonce.protocol.block_rows import Claim
from landonce.protocol.ledger import LedgerState
from landonce.protocol.receipt import BlockResult, Fate
from landonce.protocol.steps import Asked, Commit, Look, Open, Reply, Write
from landonce.protocol.transactional import Transactional
from landonce.read.schema.evolution import Evolution, merge
from landonce.sinks.contract import look_by_name
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.sql.worker import Again, SqlRecipe, SqlTask


class Workers(Protocol):
    """Whoever writes blocks."""

    def write(self, recipe: SqlRecipe, tasks: Sequence[SqlTask]) -> tuple[BlockResult, ...]: ...


@dataclass
class Transacting(Performer):
    """Performs the effects of a batch machine with the policy `transactional`."""

    settings: Transactional
    recipe: SqlRecipe
    again: Callable[[], SqlRecipe]
    """The recipe for the table as it is now, if it is fit."""
    table: SqlTable
    workers: Workers
    letters: Letters
    ledger: TargetLedger
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
        if isinstance(effect, Look):
            return look_by_name(self.table, held, effect.floors)
        if isinstance(effect, Open):
            self._open(effect)
            return False
        if isinstance(effect, Commit):
            names = [name for each in effect.receipts for name in (each.dead_letters, each.refused)]
            self.letters.publish(effect.plan, held, names)
            return None
        raise TypeError(f"not an effect: {effect!r}")

    def _open(self, effect: Open) -> None:
        wanted = merge(each for each in effect.wants if isinstance(each, Evolution))
        types = {path[0]: shape.type() for path, shape in wanted.added}
        self.table.add({name: type_ for name, type_ in types.items() if type_ is not None})
        self.recipe = self.again()

    def write(self, effect: Write, held: LedgerState) -> tuple[BlockResult, ...]:
        def write(indexes: list[int]) -> tuple[BlockResult, ...]:
            recipe = replace(self.recipe, dead_letters=self.letters.folder_of(effect.plan, held))
            return self.workers.write(recipe, [self._task(effect, index, held) for index in indexes])

        results = write_rest(effect.plan, effect.indexes, self.ledger.blocks(effect.plan.batch), write)
        return self._anew(results) if any(each.wants is Again.TABLE for each in results) else results

    def _anew(self, results: tuple[BlockResult, ...]) -> tuple[BlockResult, ...]:
        """The table was altered: whatever blocks wait for, they ask for it again, of the table as it is now."""
        self.recipe = self.again()
        why = Again.TABLE.value
        return tuple(
            BlockResult(each.index, Fate.DOUBTFUL, why=why) if each.fate is Fate.WAITING else each for each in results
        )

    def _task(self, effect: Write, index: int, held: LedgerState) -> SqlTask:
        return SqlTask(
            index=index,
            batch=effect.plan.batch,
            plan=self.letters.stem(effect.plan, held),
            block=effect.plan.blocks[index],
            claim=Claim.of(held),
            final=effect.final,
            labels=held.labels,
            topic_ids=held.topic_ids,
            inherited=held.inherited,
        )
