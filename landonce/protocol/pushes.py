"""The life of a micro-batch that a user's own function delivers: every step of the driver, and what follows it. Pure.

    acquire ─► bind ─► ┌ plan ─► prepare ─► write ─► (look ─► await ─► look ─► write) ─► commit ─► record ┐
                       └────────────────────────────────── next ◄─────────────────────────────────────────┘

    step        what is done outside                        what it means
    ──────────  ──────────────────────────────────────────  ──────────────────────────────────────────────────────
    acquire     ledger: epoch + 1, owner = me, on the       earlier drivers change nothing any more, and their workers
                pipeline and on all its blocks              claim no block any more; what they claimed may be on its way
    survey      broker: ids, starts, stable ends            the world as it is now
    bind        ledger: cluster id, topic ids, partitions   offsets mean something only here
    prepare     ledger: the plan, and a row per block       the plan is durable; nothing of it was pushed
    write       executors: read, decode, claim, push,       the block's row says AFTER once it is there. One block per
                settle                                      partition, so the blocks of a partition come in order
    look        ledger: the blocks' rows, and its clock     which attempts were claimed and never settled
    await       ledger: its clock is past the last of them  nothing of them can take effect any more
    commit      dead letters; read = landed + dead + filtered
    record      ledger: the position moves, the blocks'     every block is AFTER, or nothing is recorded
                rows go
    idle        wait for the interval

Where pushing a block again is harmless, one without an answer is simply pushed again. Where it is not, an attempt that was
claimed and never settled is waited out, and then the worker asks the sink's probe (`protocol.push`); without one the driver halts.
The target is never looked at: it may be anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from landonce import errors
from landonce.protocol import ledger as states
from landonce.protocol.batch import Machine, after_idle, change, rest, to
from landonce.protocol.block_rows import Mark, PushRow, PushRows, ends, over
from landonce.protocol.blocks import Block, Plan, block_key
from landonce.protocol.ledger import LedgerState
from landonce.protocol.packing import one_each
from landonce.protocol.ranges import Range
from landonce.protocol.receipt import BlockResult
from landonce.protocol.source import Start
from landonce.protocol.steps import (
    Acquire,
    Await,
    Commit,
    Effect,
    LookAtClaims,
    Reply,
    Step,
    Stop,
    Survey,
    Surveyed,
    Write,
)


@dataclass(frozen=True)
class Settings:
    """What the pipeline file and the sink decide, and the protocol needs to know."""

    sink: str
    fingerprint: str
    harmless: bool
    """Pushing a block again changes nothing."""
    can_probe: bool
    wait: int
    """Milliseconds from a claim until nothing of its attempt can take effect any more."""
    start: Start = Start.EARLIEST
    once: bool = False
    letters: str = ""
    """The folder of dead letters."""


@dataclass(frozen=True)
class Driver(Machine):
    """All that a driver remembers between two steps. Lost in a crash; nothing of it is needed to recover."""

    settings: Settings

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
        return _go_on(driver)
    if step is Step.PREPARE:
        return _write(driver)
    if step is Step.WRITE and isinstance(reply, tuple):
        return _after_write(driver, reply)
    if step is Step.LOOK and isinstance(reply, PushRows):
        return _after_look(driver, reply)
    if step is Step.AWAIT:
        return to(driver, Step.LOOK, LookAtClaims(driver.pending))
    if step is Step.COMMIT:
        return change(driver, Step.RECORD, _recorded(driver))
    if step is Step.RECORD:
        return to(replace(driver, receipts=()), Step.SURVEY, Survey())
    if step is Step.IDLE:
        return after_idle(driver, reply)
    raise ValueError(f"step {step.value!r} does not take the reply {reply!r}")


def _after_survey(driver: Driver) -> Next:
    if driver.state.fresh or driver.to_bind():
        return change(driver, Step.BIND, driver.bound(driver.state))
    return _go_on(driver)


def _go_on(driver: Driver) -> Next:
    """A pending plan comes before everything; then new offsets, when the batch is full or its interval is over."""
    if driver.state.pending is not None:
        _same_fingerprint(driver)
        return _settle(driver)
    if driver.world.stop:
        return to(driver, Step.STOP, Stop())
    if ranges := driver.new_ranges():
        return _prepare(driver, ranges)
    return rest(driver)


def _prepare(driver: Driver, ranges: tuple[Range, ...]) -> Next:
    blocks = one_each(ranges, driver.settings.sink, driver.world.limits)
    told = driver.settings
    plan = Plan(driver.state.batch + 1, blocks, told.fingerprint, deadline=0, letters=told.letters)
    return change(driver, Step.PREPARE, states.prepared(driver.state, plan))


def _settle(driver: Driver) -> Next:
    """Where pushing again may do harm, earlier attempts come first."""
    if driver.settings.harmless:
        return _write(driver)
    return to(driver, Step.LOOK, LookAtClaims(driver.pending))


def _after_look(driver: Driver, seen: PushRows) -> Next:
    """Attempts of which nobody has said what became of them are waited out, all of them, before anything is pushed."""
    wait = driver.settings.wait
    claimed = [row for row in seen.rows if row.mark is Mark.CLAIMED]
    if any(not over(row, seen.now, wait) for row in claimed):
        return to(driver, Step.AWAIT, Await(max(ends(row, wait) for row in claimed)))
    if claimed and not driver.settings.can_probe:
        raise outcome_unknown(driver.state, *claimed)
    return _write(driver)


def _write(driver: Driver) -> Next:
    return to(driver, Step.WRITE, Write(driver.pending, driver.unwritten))


def _after_write(driver: Driver, results: tuple[BlockResult, ...]) -> Next:
    """Everything landed: commit. Otherwise what is in doubt is settled first."""
    driver = replace(driver, receipts=driver.receipts_with(results))
    if driver.unwritten:
        return _settle(driver)
    return to(driver, Step.COMMIT, Commit(driver.pending, driver.balanced_receipts()))


def _recorded(driver: Driver) -> LedgerState:
    return states.recorded(driver.state, driver.totals)


def outcome_unknown(state: LedgerState, row: PushRow, *others: PushRow) -> errors.OutcomeUnknown:
    """What a driver says that may neither push again nor go on. A person who looks for one block can look for all."""
    if state.pending is None:
        raise ValueError("there is no pending plan")
    plan = state.pending
    block = next(each for each in plan.blocks if each.number == row.number)
    key = key_of(state, block)
    more = f" So it is with {len(others)} more of the batch: `landonce state show` names them." if others else ""
    return errors.OutcomeUnknown(
        f"block {key} ({block}) of batch {plan.batch} was pushed (attempt {row.attempt}) and never settled, and the sink has no "
        f"probe: whether it arrived is not known.{more}",
        safe="It was not pushed again, and the position did not move. Nothing of that attempt can take effect any more.",
        command=f"look for the block in the target, then: landonce state settle {{file}} --block {key} --landed   (or --absent)",
    )


def key_of(state: LedgerState, block: Block) -> str:
    """The key of a block of the pending plan."""
    return block_key(state.identity, block, state.labelled(block.ranges[0].partition).topic)


def _same_fingerprint(driver: Driver) -> None:
    if driver.pending.fingerprint != driver.settings.fingerprint:
        raise errors.PlanChanged(
            "the pending plan was made with another sink, transform, schema, decoder or version of pyarrow than there is now; what it "
            "pushed and what would be pushed again may not be the same bytes.",
            safe="Nothing was pushed. The plan is still pending in the ledger.",
            command="put the old pipeline file (or version) back, run `landonce run {file} --once`, then make the change; "
            "or `landonce state accept-change {file}`",
        )
