"""What a micro-batch of a user's own query goes through where the table is the ledger: every step, and what follows it. Pure.

    acquire ─► look ─► bind ─► ┌ prepare ─► write ─► commit ─► record ┐ ─► stop
                               └────────── until all is new ◄────────┘

A commit brings the rows, the position and the epoch, or nothing. So a plan is not made durable and is never pending: after a
crash the table itself says how far it is, and whatever Spark hands over then, in whichever cut, is new from there on.

    incoming [a, b), the table stands at y       then
    ───────────────────────────────────────────  ──────────────────────────────────────────────────────────────────────
    b ≤ y                                        drop, or `RewindRefused` with `on_rewind: error`
    a ≤ y < b                                    write [y, b)
    a > y                                        `GapRefused`; also where the table was rolled back meanwhile
    before the first offset ever, other topic    `RewindRefused`, `ClusterChanged`, `TopicRecreated`

Steps and effects have the meaning that they have in `protocol.snapshots`, and the driver that performs them is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from landonce.protocol import ledger as states
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.ledger import LedgerState
from landonce.protocol.match_ranges import Incoming, binds, bound, refuse_early, undelivered
from landonce.protocol.query_batches import Settings
from landonce.protocol.ranges import Range
from landonce.protocol.receipt import Receipt
from landonce.protocol.snapshots import refuse_unmarked
from landonce.protocol.steps import (
    Acquire,
    Change,
    CommitTables,
    Committed,
    Effect,
    LookAtTables,
    Looked,
    Machine,
    Moved,
    Reply,
    Step,
    Stop,
    Surveyed,
    Write,
)

MOST_BLOCKS = 64
"""In one job, unless there are more partitions: Spark decides row by row which block it belongs to."""


@dataclass(frozen=True)
class Driver(Machine):
    """All that is remembered between two steps. Lost in a crash, and not missed."""

    settings: Settings
    incoming: Incoming
    step: Step = Step.ACQUIRE
    ledger: LedgerState | None = None
    surveyed: Surveyed | None = None
    receipts: tuple[tuple[int, Receipt], ...] = ()

    def advance(self, reply: Reply) -> Next:
        return advance(self, reply)


Next = tuple[Driver, Effect]


def begin(settings: Settings, incoming: Incoming, before: Driver | None = None) -> Next:
    """The next micro-batch of a run. `before`: how the one before it ended; without it the pipeline is taken first."""
    if before is None:
        return Driver(settings, incoming), Acquire()
    return _look(Driver(settings, incoming, ledger=before.ledger))


def advance(driver: Driver, reply: Reply) -> Next:
    """The one place where a reply turns into the next effect."""
    step = driver.step
    if isinstance(reply, LedgerState):
        driver = replace(driver, ledger=reply)
    if step is Step.ACQUIRE:
        return _look(driver)
    if step is Step.LOOK and isinstance(reply, Looked):
        return _bind(driver, reply)
    if step is Step.BIND:
        return _plan(driver)
    if step is Step.PREPARE:
        return _write(driver)
    if step is Step.WRITE and isinstance(reply, tuple):
        return _after_write(replace(driver, receipts=driver.receipts_with(reply)))
    if step is Step.COMMIT and isinstance(reply, Committed):
        return _change(driver, Step.RECORD, _recorded(driver))
    if step is Step.COMMIT and isinstance(reply, Moved):
        return _look(replace(driver, receipts=()))
    if step is Step.RECORD:
        return _plan(replace(driver, receipts=()))
    raise ValueError(f"step {step.value!r} does not take the reply {reply!r}")


def _to(driver: Driver, step: Step, effect: Effect) -> Next:
    return replace(driver, step=step), effect


def _change(driver: Driver, step: Step, new: LedgerState) -> Next:
    return _to(driver, step, Change(step, driver.state, new))


def _look(driver: Driver) -> Next:
    """Whatever is refused is refused before anything is written. The table is looked at for every micro-batch: it may have been
    taken over, rolled back or changed since the last one."""
    refuse_early(driver.state, driver.incoming, driver.settings.on_rewind)
    return _to(driver, Step.LOOK, LookAtTables())


def _bind(driver: Driver, looked: Looked) -> Next:
    """The ledger learns the cluster, the topics, and where partitions begin that are new to it. What was planned, and then could
    not be committed since the table's columns were changed, is written again."""
    refuse_unmarked(looked)
    if driver.state.pending is not None:
        return _write(driver)
    if not binds(driver.state, driver.incoming):
        return _plan(driver)
    return _change(driver, Step.BIND, bound(driver.state, driver.incoming))


def _plan(driver: Driver) -> Next:
    """What is new of this batch, until nothing is."""
    todo = undelivered(driver.state, driver.incoming)
    if not todo:
        return _to(driver, Step.STOP, Stop())
    told = driver.settings
    plan = Plan(driver.state.batch + 1, cut(todo, told.table, told.block_rows), told.fingerprint, deadline=0)
    return _change(driver, Step.PREPARE, states.prepared(driver.state, plan))


def pieces_each(ranges: Sequence[Range]) -> int:
    """How many blocks of each partition go into one commit."""
    return max(1, MOST_BLOCKS // max(1, len(ranges)))


def cut(ranges: Sequence[Range], table: str, block_rows: int) -> tuple[Block, ...]:
    """The beginning of every range in pieces, which are blocks of one range each: they land together, or not at all."""
    pieces = [
        Range(each.partition, first, min(first + block_rows, each.end))
        for each in ranges
        for first in range(each.first, each.end, block_rows)[: pieces_each(ranges)]
    ]
    return tuple(Block((piece,), table, number=number) for number, piece in enumerate(pieces))


def _write(driver: Driver) -> Next:
    return _to(driver, Step.WRITE, Write(driver.pending, driver.unwritten, stands=(), final=True))


def _after_write(driver: Driver) -> Next:
    """Files of a task that failed do not count, so it is simply done again. Everything is written: commit."""
    if driver.unwritten:
        return _write(driver)
    receipts = driver.balanced_receipts()
    return _to(driver, Step.COMMIT, CommitTables(driver.pending, receipts, stands=(), after=_recorded(driver)))


def _recorded(driver: Driver) -> LedgerState:
    return states.recorded(driver.state, driver.totals)
