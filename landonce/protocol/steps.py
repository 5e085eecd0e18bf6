"""The words of the batch machines: the names of the steps, every effect with its reply, and what a machine of any kind remembers. Pure.

A machine says which effect comes next and takes its reply; `engine.driver` and the model checker perform effects, and decide nothing.

    effect        reply                    who performs it
    ────────────  ───────────────────────  ────────────────────────────────────────────────────────────────
    Acquire       LedgerState              the driver: ledger
    Survey        Surveyed                 the driver: brokers, and the clock of the target
    Change        LedgerState              the driver: ledger
    Idle          bool                     the driver: waits
    Await, Kill   None, int                the sink's performer: the clock of the target or of the ledger
    Look          TargetView               the sink's performer: target
    LookAtTables  Looked                   the sink's performer: tables that commit atomically
    LookAtClaims  Standing                 the sink's performer: rows of blocks in the ledger
    Count         int, or None             the sink's performer: target
    Clock         int                      the sink's performer: target (queries)
    Resolve       Resolved                 the sink's performer: target, or rows of blocks (queries)
    Write         BlockResult of each      workers
    Open          bool                     the sink's performer: tables and columns that workers asked for
    Commit        None                     the sink's performer: dead letters
    CommitTables  Committed, or Moved      the sink's performer: tables, then dead letters
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from landonce import errors
from landonce.protocol import ledger as states
from landonce.protocol.blocks import Plan
from landonce.protocol.claims import Standing
from landonce.protocol.ledger import LedgerState, Totals
from landonce.protocol.marks import Stand, TableView
from landonce.protocol.packing import Limits, take
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt, unbalanced
from landonce.protocol.settle import Mode
from landonce.protocol.source import SourceView, Start, available, bind
from landonce.protocol.target import TargetView


class Step(str, Enum):
    """The named steps: the same names in logs, metrics, docs and failpoints."""

    ACQUIRE = "acquire"
    SURVEY = "survey"
    BIND = "bind"
    AWAIT = "await"
    KILL = "kill"
    RESOLVE = "resolve"
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

    def patient(self) -> Surveyed:
        """What came too late gets twice the time: with the same deadline again it might be late for ever."""
        return replace(self, patience=2 * self.patience)


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
class LookAtTables:
    """Look at the tables. Reply: `Looked`."""

    step = Step.LOOK


@dataclass(frozen=True)
class Looked:
    """The tables as they are. `held`: a table without a mark holds rows of these topics; or may, since `filled_by` wrote it."""

    views: tuple[TableView, ...]
    held: str = ""
    filled_by: str = ""


@dataclass(frozen=True)
class LookAtClaims:
    """Read the rows of the plan's blocks. Reply: `Standing`."""

    plan: Plan
    step = Step.LOOK


@dataclass(frozen=True)
class Count:
    """Count the rows of these ranges. Reply: how many there are, or None if counting would take too long now."""

    ranges: tuple[Range, ...]
    step = Step.LOOK


@dataclass(frozen=True)
class Clock:
    """Ask for the deadline of a plan that is made now. Reply: milliseconds on the target's clock."""

    step = Step.SURVEY


@dataclass(frozen=True)
class Await:
    """Come back once the clock of the target, or of the ledger, is past `deadline`. Reply: None."""

    deadline: int
    step = Step.AWAIT


@dataclass(frozen=True)
class Kill:
    """End every insert of the pipeline that still runs, and wait until it is gone. Reply: the target's clock; in a query, the deadline
    of what is written next."""

    step = Step.KILL


@dataclass(frozen=True)
class Resolve:
    """Find out whether these blocks of the pending plan landed. Reply: `Resolved`."""

    plan: Plan
    indexes: tuple[int, ...]
    step = Step.RESOLVE


@dataclass(frozen=True)
class Found:
    """What the target says of a pending block that is not written again. `totals`: its rows, where it landed."""

    index: int
    landed: bool
    totals: Totals = field(default_factory=Totals)


@dataclass(frozen=True)
class Resolved:
    """What became of the blocks that were asked for."""

    found: tuple[Found, ...]


@dataclass(frozen=True)
class Write:
    """Have the workers write these blocks of the plan. Reply: one `BlockResult` each, in any order."""

    plan: Plan
    indexes: tuple[int, ...]
    mode: Mode = Mode.RESOLVE
    """Where the target deduplicates: whether anything of these blocks may have been sent before."""
    stands: tuple[Stand, ...] = ()
    """The tables that take part, where tables commit atomically. Others get no rows."""
    final: bool = False
    """Tables were made and columns added already: what does not fit now waits no more."""
    step = Step.WRITE


@dataclass(frozen=True)
class Open:
    """Make the tables and add the columns that the workers asked for. Reply: whether there are new tables, which may have to evolve."""

    wants: tuple[object, ...]
    step = Step.OPEN


@dataclass(frozen=True)
class Commit:
    """Make dead letters durable. Reply: None."""

    plan: Plan
    receipts: tuple[Receipt, ...]
    step = Step.COMMIT


@dataclass(frozen=True)
class CommitTables:
    """Commit what the receipts name, to each table that takes it, and then the dead letters. Reply: `Committed` or `Moved`."""

    plan: Plan
    receipts: tuple[Receipt, ...]
    stands: tuple[Stand, ...]
    after: LedgerState
    """What the ledger says once the plan is recorded; the marks say it too."""
    step = Step.COMMIT


@dataclass(frozen=True)
class Committed:
    """Every table holds its rows. The tables that the plan was committed to, as they are now."""

    views: tuple[TableView, ...] = ()


@dataclass(frozen=True)
class Moved:
    """A table's mark is not the one that was looked at."""


@dataclass(frozen=True)
class Idle:
    """Nothing to do for now. Reply: True to go on, False to stop."""

    step = Step.IDLE


@dataclass(frozen=True)
class Stop:
    """The driver is done."""

    step = Step.STOP


Asked = Await | Kill | Look | LookAtTables | LookAtClaims | Count | Clock | Resolve | Open | Commit | CommitTables
"""Effects whose meaning depends on the kind of sink."""
Effect = Acquire | Survey | Change | Asked | Write | Idle | Stop
Reply = (
    LedgerState
    | Surveyed
    | TargetView
    | Looked
    | Standing
    | Resolved
    | tuple[BlockResult, ...]
    | Committed
    | Moved
    | int
    | bool
    | None
)


class Settings(Protocol):
    """What every machine has to know of the pipeline file."""

    @property
    def start(self) -> Start: ...
    @property
    def once(self) -> bool: ...


class Machine(ABC):
    """A batch machine of any kind: what it remembers of the ledger and of the world, which may only be asked for once it is known."""

    settings: Settings
    ledger: LedgerState | None
    surveyed: Surveyed | None
    receipts: tuple[tuple[int, Receipt], ...]

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
