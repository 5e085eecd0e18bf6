"""The words of the batch machine: the names of the steps, and every effect with its reply. Pure.

A machine says which effect comes next and takes its reply; `engine.driver` and the model checker perform effects, and decide nothing.

    effect        reply                    who performs it
    ────────────  ───────────────────────  ────────────────────────────────────────────────────────────────
    Acquire       LedgerState              the driver: ledger
    Survey        Surveyed                 the driver: brokers, or the micro-batch that Spark brings; the clock of the target
    Change        LedgerState              the driver: ledger
    Idle          bool                     the driver: waits
    Await, Kill   None, int                the sink's performer: the clock of the target or of the ledger
    Look          TargetView               the sink's performer: target
    LookAtTables  Looked                   the sink's performer: tables that commit atomically
    LookAtClaims  PushRows                 the sink's performer: rows of blocks in the ledger
    Count         int, or None             the sink's performer: target
    Resolve       Resolved                 the sink's performer: target, or rows of blocks
    Write         BlockResult of each      workers
    Open          bool                     the sink's performer: tables and columns that workers asked for
    Commit        None                     the sink's performer: dead letters
    CommitTables  Committed, or Moved      the sink's performer: tables, then dead letters
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from landonce.protocol.block_rows import PushRows
from landonce.protocol.blocks import Plan
from landonce.protocol.ledger import LedgerState, Totals
from landonce.protocol.letters import LetterBatch
from landonce.protocol.marks import TableStatus, TableView
from landonce.protocol.match_ranges import Incoming
from landonce.protocol.packing import Limits
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import BlockResult, Receipt, Want
from landonce.protocol.settle import Mode
from landonce.protocol.source import SourceView
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

    source: SourceView | Incoming
    """What brokers have; or what Spark brings, for the micro-batch in hand."""
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
    letters: LetterBatch | None = None
    """Dead letters that are to land next, where the run is for these."""

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
    """Read the rows of the plan's blocks. Reply: `PushRows`."""

    plan: Plan
    step = Step.LOOK


@dataclass(frozen=True)
class Count:
    """Count the rows of these ranges. Reply: how many there are, or None if counting would take too long now."""

    ranges: tuple[Range, ...]
    step = Step.LOOK


@dataclass(frozen=True)
class Await:
    """Come back once the clock of the target, or of the ledger, is past `deadline`. Reply: None."""

    deadline: int
    step = Step.AWAIT


@dataclass(frozen=True)
class Kill:
    """End every insert of the pipeline that still runs, and wait until it is gone. Reply: the target's clock."""

    step = Step.KILL


@dataclass(frozen=True)
class Resolve:
    """Find out whether these blocks of the pending plan landed. Reply: `Resolved`."""

    plan: Plan
    indexes: tuple[int, ...]
    step = Step.RESOLVE


@dataclass(frozen=True)
class FoundBlock:
    """What the target says of a pending block that is not written again. `totals`: its rows, where it landed."""

    index: int
    landed: bool
    totals: Totals = field(default_factory=Totals)


@dataclass(frozen=True)
class Resolved:
    """What became of the blocks that were asked for."""

    found: tuple[FoundBlock, ...]


@dataclass(frozen=True)
class Write:
    """Have the workers write these blocks of the plan. Reply: one `BlockResult` each, in any order."""

    plan: Plan
    indexes: tuple[int, ...]
    mode: Mode = Mode.RESOLVE
    """Where the target deduplicates: whether anything of these blocks may have been sent before."""
    tables: tuple[TableStatus, ...] = ()
    """The tables that take part, where tables commit atomically. Others get no rows."""
    final: bool = False
    """Tables were made and columns added already: what does not fit now waits no more."""
    in_parts: bool = False
    """Once the commit timeout is over, blocks that are ready may go ahead. The others are `SLOW`, as soon as what is ready holds the
    beginning of each partition that it holds anything of (`packing.ready_first`)."""
    step = Step.WRITE


@dataclass(frozen=True)
class Open:
    """Make the tables and add the columns that the workers asked for. Reply: whether there are new tables, which may have to evolve."""

    wants: tuple[Want, ...]
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
    tables: tuple[TableStatus, ...]
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


Asked = Await | Kill | Look | LookAtTables | LookAtClaims | Count | Resolve | Open | Commit | CommitTables
"""Effects whose meaning depends on the kind of sink."""
Effect = Acquire | Survey | Change | Asked | Write | Idle | Stop
Reply = (
    LedgerState
    | Surveyed
    | TargetView
    | Looked
    | PushRows
    | Resolved
    | tuple[BlockResult, ...]
    | Committed
    | Moved
    | int
    | bool
    | None
)
