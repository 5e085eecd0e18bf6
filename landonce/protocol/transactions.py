"""The life of a micro-batch where rows and ledger are in one database: every step of the driver, and what follows it. Pure.

    acquire ─► bind ─► look ─► ┌ plan ─► prepare ─► write ─► (open) ─► commit ─► record ┐
                               └───────────────────────── next ◄────────────────────────┘

    step        what is done outside                        what it means
    ──────────  ──────────────────────────────────────────  ──────────────────────────────────────────────────────
    acquire     ledger: epoch + 1, owner = me, on the       open transactions of earlier drivers are waited out, and every
                pipeline and on all its blocks              later one of theirs rolls back
    survey      broker: ids, starts, stable ends            the world as it is now
    bind        ledger: cluster id, topic ids, partitions   offsets mean something only here
    look        table: coordinates at or above positions    a ledger that was lost or restored alone is found before it
                                                            does harm
    prepare     ledger: the plan, and a row per block       the plan is durable; nothing of it is written
    write       executors: read, decode, and in one         a block is in the table once its row says so, and only
                transaction its rows and its row's flip     then: what lands is known without asking the table
    open        table: columns that records need            once, by the driver, never by a worker
    commit      dead letters; read = landed + dead + filtered
    record      ledger: the position moves, the blocks'     every block was flipped, or nothing is recorded
                rows go
    idle        wait for the interval

There is no deadline, no token and no probe. A block whose answer is missing is simply written again: its transaction
begins by flipping the block's row, and finds it flipped if it had landed (`protocol.transact`). After a crash, blocks that
landed are not read again: their receipts are in their rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from landonce import errors
from landonce.protocol import ledger as states
from landonce.protocol.batch import Machine, after_idle, change, rest, to
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.ledger import LedgerState
from landonce.protocol.packing import one_each, pack
from landonce.protocol.ranges import Range
from landonce.protocol.receipt import BlockResult, Fate
from landonce.protocol.source import Start
from landonce.protocol.steps import (
    Acquire,
    Commit,
    Effect,
    Look,
    Open,
    Reply,
    Step,
    Stop,
    Survey,
    Surveyed,
    Write,
)
from landonce.protocol.target import TargetView


@dataclass(frozen=True)
class Settings:
    """What the pipeline file decides and the protocol needs to know."""

    table: str
    fingerprint: str
    start: Start = Start.EARLIEST
    once: bool = False
    keyed: bool = False
    """Rows are changed by their keys, so the changes of a partition are made in order: one block of it at a time."""
    letters: str = ""
    """The folder of dead letters."""


@dataclass(frozen=True)
class Driver(Machine):
    """All that a driver remembers between two steps. Lost in a crash; nothing of it is needed to recover."""

    settings: Settings
    looked: bool = False
    opened: bool = False

    def advance(self, reply: Reply) -> Next:
        return advance(self, reply)


Next = tuple[Driver, Effect]


def begin(settings: Settings) -> Next:
    """A driver that starts."""
    return Driver(settings), Acquire()


def advance(driver: Driver, reply: Reply) -> Next:
    """The one place where a reply turns into the next effect."""
    step = driver.step
    if isinstance(reply, LedgerState):
        driver = replace(driver, ledger=reply)
    if step is Step.ACQUIRE:
        return to(driver, Step.SURVEY, Survey())
    if step is Step.SURVEY and isinstance(reply, Surveyed):
        return _after_survey(replace(driver, surveyed=reply))
    if step is Step.BIND:
        return _look_or_go_on(driver)
    if step is Step.LOOK and isinstance(reply, TargetView):
        return _after_look(driver, reply)
    if step is Step.PREPARE:
        return _write(driver)
    if step is Step.WRITE and isinstance(reply, tuple):
        return _after_write(driver, reply)
    if step is Step.OPEN:
        return _write(replace(driver, opened=True))
    if step is Step.COMMIT:
        return change(driver, Step.RECORD, _recorded(driver))
    if step is Step.RECORD:
        return to(replace(driver, receipts=(), opened=False), Step.SURVEY, Survey())
    if step is Step.IDLE:
        return after_idle(driver, reply)
    raise ValueError(f"step {step.value!r} does not take the reply {reply!r}")


def _after_survey(driver: Driver) -> Next:
    """A ledger that is new altogether may be one that was lost, so the table is asked before it is bound."""
    if driver.state.fresh:
        return _look(driver, driver.bound(driver.state))
    if binding := driver.to_bind():
        return change(
            replace(driver, looked=driver.looked and not binding.added), Step.BIND, driver.bound(driver.state)
        )
    return _look_or_go_on(driver)


def _look_or_go_on(driver: Driver) -> Next:
    return _go_on(driver) if driver.looked else _look(driver, driver.state)


def _look(driver: Driver, state: LedgerState) -> Next:
    """What is pending may be in the table. What is above it, or above the position where nothing is pending, may not."""
    topics = dict(driver.world.source.topic_ids)
    pending = state.pending.ends() if state.pending else {}
    floors = tuple(
        (partition, 0 if state.batch == 0 else max(at, pending.get(partition, 0)))
        for partition, at in state.committed().items()
        if partition.topic in topics
    )
    return to(driver, Step.LOOK, Look(floors))


def _after_look(driver: Driver, target: TargetView) -> Next:
    """Rows and position change together, so a table that is ahead has lost its ledger, or another one wrote to it."""
    for partition, end in target.ends:
        at = driver.state.committed().get(partition, 0)
        raise errors.TargetAhead(
            f"{partition}: the ledger is at offset {at}, and the table {driver.settings.table} holds records of this topic "
            f"up to {end}. Rows and ledger change in one transaction, so the ledger's tables were removed or restored "
            "without the table, or another pipeline wrote these rows.",
            safe="Nothing was written.",
            command="restore the tables landonce_* from the same backup as the table, or name an empty table in {file}",
        )
    driver = replace(driver, looked=True)
    if driver.state.fresh:
        return change(driver, Step.BIND, driver.bound(driver.state))
    return _go_on(driver)


def _go_on(driver: Driver) -> Next:
    """A pending plan comes before everything; then new offsets, when the batch is full or its interval is over."""
    if driver.state.pending is not None:
        _same_fingerprint(driver)
        return _write(driver)
    if driver.world.stop:
        return to(driver, Step.STOP, Stop())
    if ranges := driver.new_ranges():
        return _prepare(driver, ranges)
    return rest(driver)


def _prepare(driver: Driver, ranges: tuple[Range, ...]) -> Next:
    plan = Plan(
        batch=driver.state.batch + 1,
        blocks=_blocks(driver, ranges),
        fingerprint=driver.settings.fingerprint,
        deadline=0,
        letters=driver.settings.letters,
    )
    return change(driver, Step.PREPARE, states.prepared(driver.state, plan))


def _blocks(driver: Driver, ranges: tuple[Range, ...]) -> tuple[Block, ...]:
    limits, table = driver.world.limits, driver.settings.table
    return one_each(ranges, table, limits) if driver.settings.keyed else pack(ranges, table, limits)


def _write(driver: Driver) -> Next:
    return to(driver, Step.WRITE, Write(driver.pending, driver.unwritten, final=driver.opened))


def _after_write(driver: Driver, results: tuple[BlockResult, ...]) -> Next:
    """Everything landed: commit. A block without an answer is written again, which is safe at any time."""
    driver = replace(driver, receipts=driver.receipts_with(results))
    wants = tuple(result.wants for result in results if result.fate is Fate.WAITING)
    if wants:
        return to(driver, Step.OPEN, Open(wants))
    if driver.unwritten:
        return _write(driver)
    receipts = driver.balanced_receipts()
    return to(driver, Step.COMMIT, Commit(driver.pending, receipts))


def _recorded(driver: Driver) -> LedgerState:
    return states.recorded(driver.state, driver.totals)


def _same_fingerprint(driver: Driver) -> None:
    if driver.pending.fingerprint != driver.settings.fingerprint:
        raise errors.PlanChanged(
            "the pending plan was made with another table, transform, schema or decoder than the pipeline file has now, and some of "
            "its blocks may be in the table already.",
            safe="Nothing was written. The plan is still pending in the ledger.",
            command="put the old pipeline file back, run `landonce run {file} --once`, then make the change; "
            "or `landonce state accept-change {file}`",
        )
