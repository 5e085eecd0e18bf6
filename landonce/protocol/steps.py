"""What the protocols of all kinds of sinks have in common: the names of the steps, the effects that every driver performs, and
what every driver remembers. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from landonce import errors
from landonce.protocol import ledger as states
from landonce.protocol.blocks import Plan
from landonce.protocol.ledger import LedgerState, Totals
from landonce.protocol.packing import Limits, take
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt, unbalanced
from landonce.protocol.source import SourceView, Start, available, bind


class Step(str, Enum):
    """The named steps: the same names in logs, metrics, docs and failpoints."""

    ACQUIRE = "acquire"
    SURVEY = "survey"
    BIND = "bind"
    AWAIT = "await"
    KILL = "kill"
    REARM = "rearm"
    LOOK = "look"
    PREPARE = "prepare"
    WRITE = "write"
    OPEN = "open"
    COMMIT = "commit"
    RECORD = "record"
    IDLE = "idle"
    STOP = "stop"


MOST_BURNT = 2
"""Tokens of one block that may be burnt without a word."""


class AnyEffect(Protocol):
    """What a driver of any protocol does next."""

    @property
    def step(self) -> Step: ...


@dataclass(frozen=True)
class Acquire:
    """Take the pipeline. Reply: `LedgerState` with my epoch."""

    step = Step.ACQUIRE


@dataclass(frozen=True)
class Survey:
    """Look at the brokers and at the target's clock. Reply: `Surveyed`."""

    step = Step.SURVEY


@dataclass(frozen=True)
class Surveyed:
    """The world at one moment, and how the next batch is to be sized."""

    source: SourceView
    target_now: int
    """The target's clock, in milliseconds."""
    limits: Limits
    patience: int
    """Milliseconds from a plan to its deadline."""
    due: bool = True
    """The interval is over: a batch is made of whatever is there."""
    stop: bool = False
    """Somebody asked the driver to finish."""
    look: bool = False
    """It is time to look at the tables again, though nothing was committed to them."""


@dataclass(frozen=True)
class Change:
    """Swap the ledger's state. Reply: the new `LedgerState`."""

    step: Step
    old: LedgerState
    new: LedgerState


@dataclass(frozen=True)
class Look:
    """Ask the target what it holds at or above these offsets. Reply: `TargetView`."""

    floors: tuple[tuple[Partition, int], ...]
    step = Step.LOOK


@dataclass(frozen=True)
class Await:
    """Come back once the clock of the target, or of the ledger, is past `deadline`. Reply: None."""

    deadline: int
    step = Step.AWAIT


@dataclass(frozen=True)
class Commit:
    """Make dead letters durable. Reply: None."""

    plan: Plan
    receipts: tuple[Receipt, ...]
    step = Step.COMMIT


@dataclass(frozen=True)
class Idle:
    """Nothing to do for now. Reply: True to go on, False to stop."""

    step = Step.IDLE


@dataclass(frozen=True)
class Stop:
    """The driver is done."""

    step = Step.STOP


class Told(Protocol):
    """What every protocol has to know of the pipeline file."""

    @property
    def start(self) -> Start: ...
    @property
    def once(self) -> bool: ...


class Remembering:
    """What a driver of any protocol remembers of the ledger and of the world, and may only be asked for once it is known."""

    settings: Told
    ledger: LedgerState | None
    surveyed: Surveyed | None
    receipts: tuple[tuple[int, Receipt], ...]

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


def burnt_of(results: tuple[BlockResult, ...]) -> tuple[frozenset[int], str]:
    """The blocks whose token is burnt, and what the target knows of the reason."""
    burnt = [result for result in results if result.fate is Fate.BURNT]
    return frozenset(result.index for result in burnt), next((result.why for result in burnt if result.why), "")


def refuse_not_kept(plan: Plan, burnt: frozenset[int], why: str) -> None:
    """Raises where tokens of a block are burnt again and again: no server dies so often between token and part. The next generation is
    recorded by then, so that the next start tries once more."""
    for block in (plan.blocks[index] for index in sorted(burnt)):
        if block.generation > MOST_BURNT:
            raise errors.RowsNotKept(
                f"block {block}: the target acknowledged its rows {block.generation} times, each time under another token, and does not "
                f"hold them. {why}".strip(),
                safe="The position did not move, and the plan is pending.",
                command="end what removes the rows, then `landonce run {file}`",
            )
