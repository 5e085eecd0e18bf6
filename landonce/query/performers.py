"""The performers of a query: what the steps of the batch machine do outside, for each kind of sink."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from landonce.engine.perform import Performer, receipts_of, tasks_of, write_rest
from landonce.ledger.block_ledgers import TargetLedger
from landonce.protocol.batch import Machine, Next, Policy, begin
from landonce.protocol.block_rows import Claim
from landonce.protocol.blocks import Block, Kind
from landonce.protocol.ledger import LedgerState, Totals
from landonce.protocol.match_ranges import Incoming
from landonce.protocol.packing import Pace
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import BlockResult
from landonce.protocol.steps import (
    Asked,
    Await,
    Commit,
    Count,
    Effect,
    Found,
    Kill,
    Look,
    Reply,
    Resolve,
    Resolved,
    Write,
)
from landonce.protocol.target import TargetView
from landonce.query.rows import write
from landonce.sinks.contract import Counting, Target, look_by_name, wait_out
from landonce.sinks.deduplicating import InsertRecipe
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.sql.worker import SqlRecipe
from landonce.sinks.transactional import TransactionTask


@dataclass
class BatchPerformer(Performer):
    """What all sinks have in common: the micro-batch in hand."""

    settings: Policy
    pace: Pace
    _incoming: Incoming | None = field(default=None, init=False)
    _frame: DataFrame | None = field(default=None, init=False)

    @property
    def once(self) -> bool:
        """A run is over when its micro-batch is."""
        return True

    @property
    def incoming(self) -> Incoming | None:
        return self._incoming

    def take(self, incoming: Incoming, frame: DataFrame) -> None:
        """The next micro-batch."""
        self._incoming, self._frame = incoming, frame

    @property
    def batch(self) -> tuple[Incoming, DataFrame]:
        if self._incoming is None or self._frame is None:
            raise ValueError("there is no micro-batch in hand")
        return self._incoming, self._frame

    def reads_again(self, incoming: Incoming) -> bool:
        """Whether the micro-batch is written in several jobs, so that its rows are worth keeping meanwhile."""
        return any(each.span > self.settings.block_rows for each in incoming.ranges)

    @abstractmethod
    def close(self) -> None:
        """Gives connections back."""


@dataclass
class PlanPerformer(BatchPerformer):
    """For sinks with plans that may be pending: what is remembered from the micro-batch before."""

    memory: Machine | None = field(default=None, init=False)

    def begin(self) -> Next:
        return begin(self.settings, self.memory)

    def advance(self, machine: Machine, reply: Reply) -> tuple[Machine, Effect]:
        self.memory, effect = machine.advance(reply)
        return self.memory, effect


@dataclass
class LookingPerformer(PlanPerformer):
    """For sinks whose target says what it holds."""

    def perform(self, effect: Asked, held: LedgerState) -> Reply:
        if isinstance(effect, Look):
            return self.look(held, effect.floors)
        if isinstance(effect, Resolve):
            return Resolved(tuple(self.found(effect, index, held) for index in effect.indexes))
        if isinstance(effect, Commit):
            return None
        raise TypeError(f"not an effect: {effect!r}")

    @abstractmethod
    def look(self, held: LedgerState, floors: tuple[tuple[Partition, int], ...]) -> TargetView:
        """One past the highest offset that is there, for each partition that holds any at or above its floor."""

    @abstractmethod
    def found(self, effect: Resolve, index: int, held: LedgerState) -> Found:
        """Whether a block of the pending plan landed."""


@dataclass
class Inserting(LookingPerformer):
    """ClickHouse: inserts with a token and a deadline, and a look at the table after any doubt."""

    recipe: InsertRecipe
    target: Target

    def __post_init__(self) -> None:
        self._counting = Counting(self.target)

    def perform(self, effect: Asked, held: LedgerState) -> Reply:
        if isinstance(effect, Await):
            wait_out(self.target, effect.deadline)
            return None
        if isinstance(effect, Kill):
            self.target.kill()
            return self.target.now()
        if isinstance(effect, Count):
            return self._counting.count(held, effect.ranges)
        return super().perform(effect, held)

    def look(self, held: LedgerState, floors: tuple[tuple[Partition, int], ...]) -> TargetView:
        return look_by_name(self.target, held, floors)

    def found(self, effect: Resolve, index: int, held: LedgerState) -> Found:
        """A block lands whole in a table without partitions of its own, so one row of it is proof enough. Elsewhere it may be there in
        part, and does not count as landed: the look at the table that follows finds what is there, and that is compared row by row."""
        block = effect.plan.blocks[index]
        writer = self.recipe.sink.writer()
        rows = writer.count(_labelled(block, held))
        whole = rows > 0 and writer.atomic and effect.plan.kind is Kind.DELIVER
        return Found(index, whole, Totals(landed=rows) if whole else Totals())

    def write(self, effect: Write, held: LedgerState) -> tuple[BlockResult, ...]:
        incoming, frame = self.batch
        return write(frame, incoming.ranges, self.recipe, tasks_of(effect, held))

    def now(self) -> int:
        return self.target.now()

    def close(self) -> None:
        self.target.close()


@dataclass
class Transacting(LookingPerformer):
    """SQL databases: the row of each block says whether it landed."""

    recipe: SqlRecipe
    table: SqlTable
    ledger: TargetLedger

    def look(self, held: LedgerState, floors: tuple[tuple[Partition, int], ...]) -> TargetView:
        return look_by_name(self.table, held, floors)

    def found(self, effect: Resolve, index: int, held: LedgerState) -> Found:
        del held
        receipt = receipts_of(self.ledger.blocks(effect.plan.batch)).get(effect.plan.blocks[index].number)
        return Found(index, receipt is not None, receipt.totals if receipt else Totals())

    def write(self, effect: Write, held: LedgerState) -> tuple[BlockResult, ...]:
        plan, claim = effect.plan, Claim.of(held)
        incoming, frame = self.batch

        def rest(indexes: list[int]) -> tuple[BlockResult, ...]:
            tasks = [
                TransactionTask(
                    index=at, batch=plan.batch, plan="", block=plan.blocks[at], claim=claim, labels=held.labels
                )
                for at in indexes
            ]
            return write(frame, incoming.ranges, self.recipe, tasks)

        return write_rest(plan, effect.indexes, self.ledger.blocks(plan.batch), rest)

    def close(self) -> None:
        self.table.close()


def _labelled(block: Block, held: LedgerState) -> tuple[Range, ...]:
    return tuple(Range(held.labelled(each.partition), each.first, each.end) for each in block.ranges)
