"""The life of a micro-batch that is inserted into ClickHouse: every step of the driver, and what follows it. Pure, so that it can be checked whole.

    acquire ─► bind ─► recover ─► look ─► ┌ plan ─► prepare ─► write ─► commit ─► record ┐
                                          └────────────────────── next ◄─────────────────┘

    step        what is done outside                        what it means
    ──────────  ──────────────────────────────────────────  ──────────────────────────────────────────────────────
    acquire     ledger: epoch + 1, owner = me               every earlier driver is fenced
    survey      broker: ids, starts, stable ends;           the world as it is now
                target: its clock
    bind        ledger: cluster id, topic ids, partitions   offsets mean something only here
    await       target: its clock is past the deadline      no insert of the pending plan can begin any more
    kill        target: end what runs under our query ids   no insert of the pending plan runs any more; without a
                                                            pending plan, none of a plan that a restored ledger forgot
    rearm       ledger: the pending plan, a new deadline,   the plan may be written again, by me only
                next generation for used-up tokens
    look        target: coordinates at or above positions   a stale or lost ledger is found before it does harm
                target: how many rows there are, before a   a driver with another ledger is noticed: it writes what
                plan above the position, after a first      this one writes, and no token keeps the two apart
                write in what landed
    prepare     ledger: BEFORE                              the plan is durable; nothing of it is written
    write       executors: read, decode, write, account     one block each; fates come back
    commit      dead letters; read = landed + dead + filtered
    record      ledger: AFTER                               the position moves
    idle        wait for the interval

`advance(driver, reply)` gives the next driver and the next effect. `engine.driver` performs effects for real, and the
model checker performs them on fakes: both call this, and nothing else decides. A failed effect is an exception in
`engine.driver`; this code is not told, for a driver that failed is a driver that starts again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from landonce import errors
from landonce.protocol import ledger as states
from landonce.protocol.batch import Sending, after_idle, change, first_mode, refuse_another_writer, rest, send, sent, to
from landonce.protocol.blocks import Kind, Plan
from landonce.protocol.ledger import LedgerState
from landonce.protocol.packing import pack
from landonce.protocol.ranges import Range
from landonce.protocol.receipt import BlockResult, Fate
from landonce.protocol.settle import Mode
from landonce.protocol.source import Start
from landonce.protocol.steps import (
    Acquire,
    Await,
    Commit,
    Count,
    Effect,
    Kill,
    Look,
    Reply,
    Step,
    Stop,
    Survey,
    Surveyed,
)
from landonce.protocol.target import TargetView, above, ahead


@dataclass(frozen=True)
class Settings:
    """What the pipeline file decides and the protocol needs to know."""

    table: str
    fingerprint: str
    start: Start = Start.EARLIEST
    once: bool = False
    letters: str = ""
    """The folder of dead letters."""


@dataclass(frozen=True)
class Driver(Sending):
    """All that a driver remembers between two steps. Lost in a crash; nothing of it is needed to recover."""

    settings: Settings
    looked: bool = False

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
        return _recover_or_look(driver)
    if step is Step.AWAIT:
        return to(driver, Step.KILL, Kill())
    if step is Step.KILL and isinstance(reply, int):
        return _look(driver) if driver.state.pending is None else _rearm(driver, reply)
    if step is Step.REARM:
        return send(driver, Mode.RESOLVE)
    if step is Step.LOOK and isinstance(reply, TargetView):
        return _after_look(driver, reply)
    if step is Step.LOOK and (reply is None or isinstance(reply, int)):
        return _after_count(driver, reply)
    if step is Step.PREPARE:
        return send(driver, first_mode(driver))
    if step is Step.WRITE and isinstance(reply, tuple):
        return _after_write(driver, reply)
    if step is Step.COMMIT:
        return _record(driver)
    if step is Step.RECORD:
        return to(replace(driver, receipts=(), used_up=frozenset(), counted=False), Step.SURVEY, Survey())
    if step is Step.IDLE:
        driver = replace(driver, counted=False)
        return after_idle(driver, reply)
    raise ValueError(f"step {step.value!r} does not take the reply {reply!r}")


def _after_survey(driver: Driver) -> Next:
    """The ledger learns the cluster, the topics and new partitions before anything is decided about them.

    A partition that is new to the ledger need not be new to the target, so the target is looked at again. A ledger that
    is new altogether may be one that was lost, so there the look comes first: what it refuses is not bound either.
    """
    if driver.state.fresh:
        return to(driver, Step.KILL, Kill())
    if binding := driver.to_bind():
        return change(
            replace(driver, looked=driver.looked and not binding.added), Step.BIND, driver.bound(driver.state)
        )
    return _recover_or_look(driver)


def _recover_or_look(driver: Driver) -> Next:
    """A pending plan comes before everything, then the start-up look at the target, then new work.

    What still runs is ended before the look: a restored ledger may have forgotten the plan that it belongs to.
    """
    if driver.state.pending is not None:
        _same_fingerprint(driver)
        return to(driver, Step.AWAIT, Await(driver.pending.deadline))
    if not driver.looked:
        return to(driver, Step.KILL, Kill())
    return _plan(driver)


def _look(driver: Driver) -> Next:
    state = driver.bound(driver.state) if driver.state.fresh else driver.state
    topics = dict(driver.world.source.topic_ids)
    floors = tuple(
        (partition, 0 if state.batch == 0 else at)
        for partition, at in state.committed().items()
        if partition.topic in topics
    )
    return to(driver, Step.LOOK, Look(floors))


def _after_look(driver: Driver, target: TargetView) -> Next:
    """If the target is ahead, what it holds is reconciled first: read again, compared, and written only if absent."""
    if driver.state.fresh:
        new = driver.bound(driver.state)
        ahead(new, target, driver.world.source, driver.settings.start, unbound=True)
        return change(driver, Step.BIND, new)
    driver = replace(driver, looked=True, counted=True)
    ranges = ahead(driver.state, target, driver.world.source, driver.settings.start)
    if not ranges:
        return _plan(driver)
    return _prepare(driver, ranges, Kind.RECONCILE)


def _plan(driver: Driver) -> Next:
    if driver.world.stop:
        return to(driver, Step.STOP, Stop())
    if ranges := driver.new_ranges():
        if not driver.counted:
            return to(driver, Step.LOOK, Count(above(ranges)))
        return _prepare(driver, ranges, Kind.DELIVER)
    return rest(driver)


def _prepare(driver: Driver, ranges: tuple[Range, ...], kind: Kind) -> Next:
    plan = Plan(
        batch=driver.state.batch + 1,
        blocks=pack(ranges, driver.settings.table, driver.world.limits),
        fingerprint=driver.settings.fingerprint,
        deadline=driver.world.target_now + driver.world.patience,
        kind=kind,
        letters=driver.settings.letters,
    )
    return change(driver, Step.PREPARE, states.prepared(driver.state, plan))


def _after_write(driver: Driver, results: tuple[BlockResult, ...]) -> Next:
    """Everything landed: commit. Anything else: wait out the deadline, kill, and let the workers look."""
    driver = sent(driver, results)
    if any(result.fate is Fate.LATE for result in results):
        driver = replace(driver, surveyed=driver.world.patient())
    if driver.first and driver.receipts:
        return to(driver, Step.LOOK, Count(driver.landed_ranges))
    return _commit_or_settle(driver)


def _after_count(driver: Driver, rows: int | None) -> Next:
    refuse_another_writer(driver, driver.settings.table, rows)
    if driver.state.pending is None:
        return _prepare(driver, driver.new_ranges(), Kind.DELIVER)
    return _commit_or_settle(driver)


def _commit_or_settle(driver: Driver) -> Next:
    if not driver.unwritten:
        receipts = driver.balanced_receipts()
        return to(driver, Step.COMMIT, Commit(driver.pending, receipts))
    return to(driver, Step.AWAIT, Await(driver.pending.deadline))


def _rearm(driver: Driver, target_now: int) -> Next:
    """The new deadline and generations are durable before anything is sent under them."""
    plan = driver.pending.regenerated(driver.used_up).rearmed(target_now + driver.world.patience)
    return change(driver, Step.REARM, states.amended(driver.state, plan))


def _record(driver: Driver) -> Next:
    return change(driver, Step.RECORD, states.recorded(driver.state, driver.totals))


def _same_fingerprint(driver: Driver) -> None:
    if driver.pending.fingerprint != driver.settings.fingerprint:
        raise errors.PlanChanged(
            "the pending plan was made with another transform, schema or decoder: the pipeline file was changed since, or the "
            "table's columns were. What it wrote and what would be written again are not the same rows.",
            safe="Nothing was written. The plan is still pending in the ledger.",
            command="put the old pipeline file or columns back, run `landonce run {file} --once`, then make the change; "
            "or `landonce state accept-change {file}`",
        )
