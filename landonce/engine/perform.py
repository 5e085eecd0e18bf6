"""What is done outside for a batch machine, for each kind of sink: deduplicating, transactional, claimed. (`committing`: snapshots.)

Each kind of sink has its machine (pure) and its performer, which asks the sink through the ports of its kind. What all have in common, the
driver does itself: it takes the pipeline, surveys the brokers, swaps the ledger's state, waits, and gives up.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypedDict

from landonce.engine.publish import Letters
from landonce.errors import LandonceError
from landonce.ledger.claims import ClaimLedger, ClaimPlace
from landonce.protocol import batch
from landonce.protocol.batch import Machine
from landonce.protocol.block_rows import BlockRow, BlockState, Claim, PushRow, PushRows, over
from landonce.protocol.blocks import Block, Kind, Plan, token
from landonce.protocol.claimed import Claimed, key_of
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.ledger import LedgerState, Totals, require_owner
from landonce.protocol.marks import Floors
from landonce.protocol.match_ranges import Incoming
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.protocol.steps import (
    Asked,
    Await,
    Commit,
    Count,
    FoundBlock,
    Kill,
    Look,
    LookAtClaims,
    Open,
    Reply,
    Resolve,
    Resolved,
    Stop,
    Write,
)
from landonce.protocol.transactional import Transactional
from landonce.read.kafka.records import RecordSource
from landonce.sinks.claimed import PushRecipe, PushTask
from landonce.sinks.contract import Counting, Target, look_by_name, wait_out
from landonce.sinks.deduplicating import InsertRecipe, InsertTask, OpenDeduplicating
from landonce.sinks.transactional import ExamineAgain, OpenTransactional, TransactionTask
from landonce.sinks.worker import Recipe, T

_PAUSE = 1.0
"""After doubt: what is in its way may pass."""
_LOOK_AGAIN = 0.25
"""Seconds between two looks at attempts that are not over."""


class TaskBasics(TypedDict):
    """The fields of `Task`, which every kind of sink has."""

    index: int
    batch: int
    plan: str
    block: Block
    labels: tuple[tuple[str, str], ...]
    topic_ids: tuple[tuple[str, str], ...]
    inherited: bool


class Workers(Protocol):
    """Has blocks written: their records are read from Kafka, or are rows of a user's own query."""

    @property
    def incoming(self) -> Incoming | None:
        """The ranges that Spark brings with a micro-batch of a query. None: brokers are asked which there are."""

    def write(self, recipe: Recipe[T], tasks: Sequence[T]) -> tuple[BlockResult, ...]:
        """Returns one result per task; it does not raise for a block that fails."""


class Performer(ABC):
    """Performs the effects of one kind of sink, for pipelines and for queries."""

    settings: batch.Policy
    workers: Workers
    letters: Letters
    comparable: bool = True
    """A start compares the target with a ledger that was restored, so that it forgets nothing."""
    block_rows: bool = False
    """Every block of a pending plan has a row of its own in the ledger, by which its worker knows whose it is."""
    commits: tuple[tuple[str, str], ...] = ()
    """The ids of the last batch's commits, by table, where the sink gives commits ids."""
    _before: Machine | None = None
    """How the last micro-batch of a query ended."""

    @property
    def once(self) -> bool:
        """The run ends when what was there at its start has landed."""
        return self.settings.once

    @property
    def incoming(self) -> Incoming | None:
        return self.workers.incoming

    def reads_again(self, ranges: Sequence[Range]) -> bool:
        """Whether a micro-batch is written in several jobs, so that its rows are worth keeping meanwhile."""
        return any(each.span > self.settings.block_rows for each in ranges)

    def begin(self) -> batch.Next:
        """A machine that starts, and its first effect. What is remembered serves once: a second beginning takes the pipeline again."""
        self.letters.begin()
        before, self._before = self._before, None
        return batch.begin(self.settings, before)

    def advance(self, machine: Machine, reply: Reply) -> batch.Next:
        """The machine after this reply, and the effect that comes next."""
        after, effect = machine.advance(reply)
        if isinstance(effect, Stop) and self.incoming is not None:
            self._before = after
        return after, effect

    @abstractmethod
    def perform(self, effect: Asked, held: LedgerState) -> Reply:
        """Does what the effect says, and gives its reply. `held` is the ledger's state as this driver holds it."""

    @abstractmethod
    def write(self, effect: Write, held: LedgerState) -> tuple[BlockResult, ...]:
        """Has the workers write blocks."""

    def ahead(self, known: LedgerState, floors: Floors) -> dict[Partition, int]:
        """Partitions of which the target holds rows at or above these offsets, and up to where. Empty where it cannot be asked.
        `known`: how the ledger calls the topics."""
        del known, floors
        return {}

    def now(self) -> int:
        """The target's clock, in milliseconds, where there are deadlines on it."""
        return 0

    def look_due(self) -> bool:
        """Whether it is time to look at the target again without anything to write."""
        return False

    def news(self) -> tuple[str, ...]:
        """Messages for people since the last call."""
        return ()

    def require_owner(self, held: LedgerState) -> None:
        """Raises for a driver that is not the owner any more, before it changes what a newer one, or a person, may have settled."""
        require_owner(held, self.letters.load())

    def task(self, effect: Write, index: int, held: LedgerState) -> TaskBasics:
        """The task for a block that is to be written, but for what the sink's kind adds."""
        return {
            "index": index,
            "batch": effect.plan.batch,
            "plan": self.letters.stem(effect.plan, held),
            "block": effect.plan.blocks[index],
            "labels": held.labels,
            "topic_ids": held.topic_ids,
            "inherited": held.inherited,
        }

    def landing(self, plan: Plan, held: LedgerState, receipts: Sequence[Receipt], records: RecordSource) -> None:
        """As `Letters.landing`."""
        self.letters.landing(plan, held, receipts, records, partial(self.require_owner, held))

    def acquired(self, state: LedgerState) -> str:
        """Called once the pipeline is taken. Returns a message for people, or an empty one."""
        self.letters.acquired(state)
        return ""


# Deduplicating: inserts with a token and a deadline, and a probe after any doubt.


@dataclass
class InsertPerformer(Performer):
    """Performs the effects of a batch machine with the policy `deduplicating`."""

    settings: Deduplicating
    recipe: InsertRecipe
    target: Target
    workers: Workers
    letters: Letters
    opened: OpenDeduplicating | None = None
    """Who makes tables and adds columns while the pipeline runs, where that can be."""

    def __post_init__(self) -> None:
        self._counting = Counting(self.target)

    def now(self) -> int:
        return self.target.now()

    def ahead(self, known: LedgerState, floors: Floors) -> dict[Partition, int]:
        return dict(look_by_name(self.target, known, floors).ends)

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
        if isinstance(effect, Open) and self.opened is not None:
            made = self.opened.add(effect.wants)
            self.recipe = self.opened.recipe
            return made
        if isinstance(effect, Resolve):
            return Resolved(tuple(self._found(effect.plan, index, held) for index in effect.indexes))
        if isinstance(effect, Commit):
            self.landing(effect.plan, held, effect.receipts, self.recipe.records)
            self.letters.publish(effect.plan, held, [receipt.dead_letters for receipt in effect.receipts])
            if self.opened is not None:
                self.opened.forget_absent()
                self.recipe = self.opened.recipe
            return None
        raise TypeError(f"not an effect: {effect!r}")

    def _found(self, plan: Plan, index: int, held: LedgerState) -> FoundBlock:
        """A block lands whole in a table without partitions of its own, so one row of it is proof enough. Elsewhere it may be there in
        part, and does not count as landed: the look at the table that follows finds what is there, and that is compared row by row."""
        writer = self.recipe.sink.writer()
        rows = writer.count(
            replace(each, partition=held.labelled(each.partition)) for each in plan.blocks[index].ranges
        )
        whole = rows > 0 and writer.atomic and plan.kind is Kind.DELIVER
        return FoundBlock(index, whole, Totals(landed=rows) if whole else Totals())

    def write(self, effect: Write, held: LedgerState) -> tuple[BlockResult, ...]:
        plan = effect.plan
        tasks = [
            InsertTask(
                **self.task(effect, index, held),
                token=token(held.identity, plan.blocks[index]),
                deadline=plan.deadline,
                mode=effect.mode,
                kind=plan.kind,
                final=effect.final,
            )
            for index in effect.indexes
        ]
        return self.workers.write(self.letters.for_workers(self.recipe, plan, held), tasks)


# Blocks that have a row of their own in the ledger: it says which of them landed before a crash, and holds their receipts.

Rows = Iterable[BlockRow | PushRow]


def receipts_of(rows: Rows) -> dict[int, Receipt]:
    """Of the blocks that landed, by their numbers."""
    return {
        row.number: Receipt.from_json(row.receipt)
        for row in rows
        if row.mark is BlockState.AFTER and row.receipt is not None
    }


def write_rest(
    plan: Plan, indexes: Sequence[int], rows: Rows, write: Callable[[list[int]], tuple[BlockResult, ...]]
) -> tuple[BlockResult, ...]:
    """Has those of these blocks written that did not land yet; the others are not read again."""
    receipts = receipts_of(rows)
    landed = {index: receipts[number] for index in indexes if (number := plan.blocks[index].number) in receipts}
    rest = [index for index in indexes if index not in landed]
    results = write(rest) if rest else ()
    if any(result.fate is Fate.DOUBTFUL for result in results):
        time.sleep(_PAUSE)
    return (*(BlockResult(index, Fate.LANDED, receipt) for index, receipt in landed.items()), *results)


# Transactional: workers land blocks in transactions, and the blocks' rows say which of them are there.


@dataclass
class TransactPerformer(Performer):
    """Performs the effects of a batch machine with the policy `transactional`."""

    settings: Transactional
    opened: OpenTransactional
    workers: Workers
    letters: Letters
    block_rows = True

    def ahead(self, known: LedgerState, floors: Floors) -> dict[Partition, int]:
        return dict(look_by_name(self.opened, known, floors).ends)

    def perform(self, effect: Asked, held: LedgerState) -> Reply:
        if isinstance(effect, Look):
            return look_by_name(self.opened, held, effect.floors)
        if isinstance(effect, Open):
            self.opened.add(effect.wants)
            return False
        if isinstance(effect, Resolve):
            receipts = receipts_of(self.opened.blocks(effect.plan.batch))
            landed = {index: receipts.get(effect.plan.blocks[index].number) for index in effect.indexes}
            return Resolved(
                tuple(
                    FoundBlock(at, each is not None, each.totals if each else Totals()) for at, each in landed.items()
                )
            )
        if isinstance(effect, Commit):
            names = [name for each in effect.receipts for name in (each.dead_letters, each.refused)]
            self.landing(effect.plan, held, effect.receipts, self.opened.recipe.records)
            self.letters.publish(effect.plan, held, names)
            return None
        raise TypeError(f"not an effect: {effect!r}")

    def write(self, effect: Write, held: LedgerState) -> tuple[BlockResult, ...]:
        def write(indexes: list[int]) -> tuple[BlockResult, ...]:
            recipe = self.letters.for_workers(self.opened.recipe, effect.plan, held)
            basics = (self.task(effect, index, held) for index in indexes)
            tasks = [TransactionTask(**each, claim=Claim.of(held), final=effect.final) for each in basics]
            return self.workers.write(recipe, tasks)

        results = write_rest(effect.plan, effect.indexes, self.opened.blocks(effect.plan.batch), write)
        if not any(isinstance(want, ExamineAgain) for each in results for want in each.wants):
            return results
        self.opened.examine_again()  # whatever blocks wait for, they ask for it again, of the table as it is now
        why = "the table was altered, and has to be examined again"
        return tuple(
            BlockResult(each.index, Fate.DOUBTFUL, why=why) if each.fate is Fate.WAITING else each for each in results
        )


# Claimed: workers push blocks under claims, and the blocks' rows say what became of them.


@dataclass
class PushPerformer(Performer):
    """Performs the effects of a batch machine with the policy `claimed`."""

    settings: Claimed
    recipe: PushRecipe
    workers: Workers
    letters: Letters
    ledger: ClaimLedger
    tell: Callable[[str], None] = lambda _: None
    """Of what a person should know while workers push."""
    comparable = False
    block_rows = True

    def perform(self, effect: Asked, held: LedgerState) -> Reply:
        if isinstance(effect, LookAtClaims):
            return self.ledger.status(effect.plan.batch)
        if isinstance(effect, Await):
            wait_for_attempts(self.ledger, held, self.settings.wait)
            return None
        if isinstance(effect, Commit):
            self.landing(effect.plan, held, effect.receipts, self.recipe.records)
            self.letters.publish(effect.plan, held, [receipt.dead_letters for receipt in effect.receipts])
            return None
        raise TypeError(f"not an effect: {effect!r}")

    def write(self, effect: Write, held: LedgerState) -> tuple[BlockResult, ...]:
        def write(indexes: list[int]) -> tuple[BlockResult, ...]:
            basics = (self.task(effect, index, held) for index in indexes)
            tasks = [PushTask(**each, key=key_of(held, each["block"]), claim=Claim.of(held)) for each in basics]
            recipe = self.letters.for_workers(self.recipe, effect.plan, held)
            with watched(self.recipe.ledger, tasks, self.tell, self.settings.wait / 1000):
                return self.workers.write(recipe, tasks)

        rows = self.ledger.status(effect.plan.batch).rows
        return write_rest(effect.plan, effect.indexes, rows, write)


def wait_for_attempts(ledger: ClaimLedger, held: LedgerState, wait: int) -> None:
    """Waits until every claimed attempt is over, or its own worker has settled it."""
    number = held.pending.batch if held.pending is not None else 0
    while True:
        seen = ledger.status(number)
        claimed = [row for row in seen.rows if row.mark is BlockState.CLAIMED]
        if all(over(row, seen.now, wait) for row in claimed):
            return
        time.sleep(_LOOK_AGAIN)


def overdue(seen: PushRows, names: Mapping[int, str]) -> tuple[str, ...]:
    """What to say of blocks whose attempt should be over by what the sink declares, and is not settled. `names` by number."""
    return tuple(
        f"block {names[row.number]} was claimed {(seen.now - row.claimed_at) // 1000} s ago, and neither `push` nor `probe` has "
        "returned, though the sink declares that nothing takes so long. It is not interrupted, for it may still take effect: give "
        "its client a time limit."
        for row in seen.rows
        if row.mark is BlockState.CLAIMED and row.number in names and over(row, seen.now, 0)
    )


@contextmanager
def watched(place: ClaimPlace, tasks: Sequence[PushTask], tell: Callable[[str], None], every: float) -> Iterator[None]:
    """Looks at the blocks' rows every so many seconds while workers push, over connections of its own."""
    done, batch = threading.Event(), tasks[0].batch
    names = {task.block.number: f"{task.key} ({task.block})" for task in tasks}

    def watch() -> None:
        while not done.wait(every):
            with suppress(LandonceError), closing(place.open()) as ledger:  # unreachable now, and perhaps not later
                for said in overdue(ledger.status(batch), names):
                    tell(said)

    watching = threading.Thread(target=watch, name="landonce overdue pushes", daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()
