"""The spine of all batch machines: what each remembers, and what each does alike. Pure.

One file per kind of sink has the rest of the story, with the table of its steps above the code: `inserts` (deduplicating), `snapshots`,
`transactions`, `pushes` (claimed). Ranges come from one of two sources: a machine plans its own from a survey of the brokers, or Spark
brings them with each micro-batch of a user's own query (`snapshots` takes both, `query_batches` is for the other kinds).

    acquire ─► survey ─► bind ─► recover, look ─► ┌ plan ─► prepare ─► write ─► commit ─► record ┐
                                                  └───────────────────── next ◄──────────────────┘

`advance(machine, reply)` of each kind gives the next machine and the next effect (`steps`). `engine.driver` performs effects for real,
and the model checker performs them on fakes: both call this, and nothing else decides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from landonce import errors
from landonce.protocol import ledger as states
from landonce.protocol.blocks import Kind, Plan
from landonce.protocol.ledger import LedgerState, Totals
from landonce.protocol.packing import take
from landonce.protocol.ranges import Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt, unbalanced
from landonce.protocol.settle import Mode
from landonce.protocol.source import Binding, Start, available, bind
from landonce.protocol.steps import Change, Effect, Idle, Reply, Step, Stop, Survey, Surveyed, Write
from landonce.protocol.target import nobody_else

MOST_USED_UP = 2
"""Tokens of one block that may be used up without a word."""


class Settings(Protocol):
    """What every machine has to know of the pipeline file."""

    @property
    def start(self) -> Start: ...
    @property
    def once(self) -> bool: ...


@dataclass(frozen=True)
class Machine(ABC):
    """A machine of any kind, between two steps. Lost in a crash; nothing of it is needed to recover."""

    settings: Settings
    step: Step = Step.ACQUIRE
    ledger: LedgerState | None = None
    surveyed: Surveyed | None = None
    receipts: tuple[tuple[int, Receipt], ...] = ()
    """Of the blocks of the pending plan that landed, by index."""

    @abstractmethod
    def advance(self, reply: Reply) -> tuple[Machine, Effect]:
        """The machine after this reply, and the effect that comes next."""

    @property
    def state(self) -> LedgerState:
        if self.ledger is None:
            raise ValueError("the pipeline was not acquired yet")
        return self.ledger

    @property
    def pending(self) -> Plan:
        if self.state.pending is None:
            raise ValueError("there is no pending plan")
        return self.state.pending

    @property
    def world(self) -> Surveyed:
        if self.surveyed is None:
            raise ValueError("nothing was surveyed yet")
        return self.surveyed

    def to_bind(self) -> Binding | None:
        """What the ledger has to learn of the surveyed cluster and topics; None where it knows all of it."""
        binding = bind(self.state, self.world.source, self.settings.start)
        known = not binding.added and dict(self.state.topic_ids) == dict(binding.topic_ids)
        return None if known else binding

    def bound(self, state: LedgerState) -> LedgerState:
        """Tied to the cluster and the topics that were surveyed."""
        binding = bind(state, self.world.source, self.settings.start)
        return states.bound(state, binding.cluster_id, binding.topic_ids, binding.added)

    def new_ranges(self) -> tuple[Range, ...]:
        """New offsets, up to the last stable ones: when the batch is full, or when its interval is over."""
        full = self.world.limits.max_rows
        ranges = take(available(self.state, self.world.source), full)
        ready = self.world.due or self.settings.once or sum(each.span for each in ranges) >= full
        return ranges if ready else ()

    @property
    def unwritten(self) -> tuple[int, ...]:
        """The blocks of the pending plan that have no receipt yet."""
        done = {index for index, _ in self.receipts}
        return tuple(index for index in range(len(self.pending.blocks)) if index not in done)

    @property
    def landed_ranges(self) -> tuple[Range, ...]:
        """Of the blocks of the pending plan that have a receipt."""
        return tuple(each for index, _ in self.receipts for each in self.pending.blocks[index].ranges)

    def receipts_with(self, results: tuple[BlockResult, ...]) -> tuple[tuple[int, Receipt], ...]:
        """What has landed by now. Raises what a worker halted for."""
        for result in results:
            if result.error is not None:
                raise result.error
        landed = tuple((result.index, result.receipt) for result in results if result.receipt is not None)
        return tuple(sorted(self.receipts + landed, key=lambda each: each[0]))

    def balanced_receipts(self) -> tuple[Receipt, ...]:
        """One per block of the pending plan: read = landed + dead-lettered + filtered in each, or nothing is committed."""
        receipts = tuple(receipt for _, receipt in self.receipts)
        for block, receipt in zip(self.pending.blocks, receipts, strict=True):
            if not receipt.balanced:
                raise unbalanced(block, receipt)
        return receipts

    @property
    def totals(self) -> Totals:
        """What became of the records of the pending plan."""
        totals = Totals()
        for _, receipt in self.receipts:
            totals = totals.plus(receipt.totals)
        return totals


M = TypeVar("M", bound=Machine)


def to(machine: M, step: Step, effect: Effect) -> tuple[M, Effect]:
    """The machine at its next step, and the effect of that step."""
    return replace(machine, step=step), effect


def change(machine: M, step: Step, new: LedgerState) -> tuple[M, Effect]:
    """The ledger becomes `new`, by compare-and-set."""
    return to(machine, step, Change(step, machine.state, new))


def rest(machine: M) -> tuple[M, Effect]:
    """There is nothing to do now."""
    return to(machine, Step.STOP, Stop()) if machine.settings.once else to(machine, Step.IDLE, Idle())


def after_idle(machine: M, reply: Reply) -> tuple[M, Effect]:
    """On to the next survey, or to the end where somebody asked for it."""
    return to(machine, Step.SURVEY, Survey()) if reply else to(machine, Step.STOP, Stop())


@dataclass(frozen=True)
class Sending(Machine):
    """Where the target deduplicates: blocks carry tokens, and what was never sent before is not probed. So rows are counted, before a plan
    and after its first write: another driver with another ledger writes the same, and no token keeps the two apart."""

    counted: bool = False
    """Nobody else had written above the position, a moment ago."""
    first: bool = False
    """What is being written was never sent before, and is not probed."""
    used_up: frozenset[int] = frozenset()
    gone: str = ""
    """What the target knows of why rows that it acknowledged are not there."""


S = TypeVar("S", bound=Sending)


def send(machine: S, mode: Mode) -> tuple[S, Effect]:
    """All blocks of the pending plan that have no receipt yet."""
    refuse_not_kept(machine.pending, machine.used_up, machine.gone)
    machine = replace(machine, used_up=frozenset(), first=mode is Mode.FIRST)
    return to(machine, Step.WRITE, Write(machine.pending, machine.unwritten, mode))


def first_mode(machine: Sending) -> Mode:
    """Of a plan that was just made: what the target holds already is compared, not sent."""
    return Mode.FIRST if machine.pending.kind is Kind.DELIVER else Mode.RESOLVE


def sent(machine: S, results: tuple[BlockResult, ...]) -> S:
    """What landed by now, and which tokens are used up."""
    used_up, gone = used_up_of(results)
    return replace(machine, receipts=machine.receipts_with(results), used_up=used_up, gone=gone)


def refuse_another_writer(machine: Sending, table: str, rows: int | None) -> None:
    """No row is above the position before a plan is made; a block that was written without any doubt is there once."""
    nobody_else(table, machine.state, rows, machine.totals.landed if machine.state.pending is not None else 0)


def used_up_of(results: tuple[BlockResult, ...]) -> tuple[frozenset[int], str]:
    """The blocks whose token is used up, and what the target knows of the reason."""
    used_up = [result for result in results if result.fate is Fate.TOKEN_USED_UP]
    return frozenset(result.index for result in used_up), next((result.why for result in used_up if result.why), "")


def refuse_not_kept(plan: Plan, used_up: frozenset[int], why: str) -> None:
    """Raises where tokens of a block are used up again and again: no server dies so often between token and part. The next generation is
    recorded by then, so that the next start tries once more."""
    for block in (plan.blocks[index] for index in sorted(used_up)):
        if block.generation > MOST_USED_UP:
            raise errors.RowsNotKept(
                f"block {block}: the target acknowledged its rows {block.generation} times, each time under another token, and does not "
                f"hold them. {why}".strip(),
                safe="The position did not move, and the plan is pending.",
                command="end what removes the rows, then `landonce run {file}`",
            )
