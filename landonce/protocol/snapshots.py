"""The life of a micro-batch where tables commit atomically: every step of the driver, and what follows it. Pure.

    acquire ─► bind ─► look ─► ┌ plan ─► prepare ─► write ─► (open) ─► commit ─► record ┐
                               └───────────────────────── next ◄────────────────────────┘

    step        what is done outside                        what it means
    ──────────  ──────────────────────────────────────────  ──────────────────────────────────────────────────────
    acquire     ledger: epoch + 1, owner = me               every earlier driver is fenced
    survey      broker: ids, starts, stable ends            the world as it is now
    bind        ledger: cluster id, topic ids, partitions   offsets mean something only here
    look        tables: their marks                         what is committed where; what was rolled back
    prepare     ledger: the plan                            where the ledger lives outside of the table, durable before
                                                            the first commit; where the table is the ledger, not
    write       executors: read, decode, write files        nothing is visible: files only count once they are committed
    open        tables: made, or their schema evolved       once, by the driver, never by a worker; then look again, and
                                                            write again: files of one batch have the columns of one moment
    commit      each table: files, position and epoch in    inside every attempt: the table's mark is the one that was
                one atomic commit                           looked at. If it is not, look again, and write again
    record      ledger: the position moves                  where the table is the ledger, the commit did that
    idle        wait for the interval

There is no deadline, no token and no probe: a commit that comes late finds another mark, and is refused. A table that was
rolled back carries an older mark, and the ranges that are gone are planned again, for that table alone (`marks`).

Where the table is its own ledger, a plan need not be durable: nothing of it can land but as a whole, and with its position.

With ranges that Spark brings (a user's own query, whose table is its own ledger) there is no survey: the batch is done when nothing of
it is new.

    acquire ─► look ─► bind ─► ┌ prepare ─► write ─► commit ─► record ┐ ─► stop
                               └────────── until nothing is new ◄─────┘

    incoming [a, b), the table stands at y       then
    ───────────────────────────────────────────  ──────────────────────────────────────────────────────────────────────
    b ≤ y                                        drop, or `RewindRefused` with `on_rewind: error`
    a ≤ y < b                                    write [y, b)
    a > y                                        `GapRefused`; also where the table was rolled back meanwhile
    before the first offset ever, other topic    `RewindRefused`, `ClusterChanged`, `TopicRecreated`
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from landonce import errors
from landonce.protocol import ledger as states
from landonce.protocol.batch import Machine, after_idle, change, rest, to
from landonce.protocol.blocks import Block, Kind, Plan
from landonce.protocol.cases import OnRewind
from landonce.protocol.ledger import LedgerState, Totals
from landonce.protocol.marks import (
    TableStatus,
    TableView,
    adopted,
    behind_ranges,
    learnt,
    past_epochs,
    status_of,
    takes_part,
)
from landonce.protocol.match_ranges import Incoming, binds, bound, cut, refuse_early, undelivered
from landonce.protocol.own_ledger import rollback_refused
from landonce.protocol.packing import pack, take
from landonce.protocol.ranges import Range
from landonce.protocol.receipt import BlockResult, Fate
from landonce.protocol.source import Start
from landonce.protocol.steps import (
    Acquire,
    CommitTables,
    Committed,
    Effect,
    LookAtTables,
    Looked,
    Moved,
    Open,
    Reply,
    Step,
    Stop,
    Survey,
    Surveyed,
    Write,
)


@dataclass(frozen=True)
class Settings:
    """What the pipeline file decides and the protocol needs to know."""

    target: str
    """What the blocks are for, in messages: a table, or a fan-out."""
    fingerprint: str
    start: Start = Start.EARLIEST
    once: bool = False
    own_ledger: bool = False
    """The one table is the ledger."""
    follow: bool = True
    """A table that was rolled back gets the removed ranges again. Otherwise the run halts."""
    letters: str = ""
    """The folder of dead letters."""
    on_rewind: OnRewind = OnRewind.DROP
    block_rows: int = 0
    """Offsets of one block, of ranges that Spark brings."""


@dataclass(frozen=True)
class Driver(Machine):
    """All that a driver remembers between two steps. Lost in a crash; nothing of it is needed to recover."""

    settings: Settings
    stands: tuple[TableStatus, ...] | None = None
    opened: bool = False
    incoming: Incoming | None = None
    """The ranges that Spark brings. None: they are planned here."""

    def advance(self, reply: Reply) -> Next:
        return advance(self, reply)


Next = tuple[Driver, Effect]


def begin(settings: Settings, incoming: Incoming | None = None, before: Driver | None = None) -> Next:
    """A driver that starts, or that starts again because its table was rolled back. `before`: how the micro-batch before `incoming`
    ended; without it the pipeline is taken first."""
    driver = Driver(settings, incoming=incoming)
    return (driver, Acquire()) if before is None else _look(replace(driver, ledger=before.ledger))


def advance(driver: Driver, reply: Reply) -> Next:
    """The one place where a reply turns into the next effect."""
    step = driver.step
    if isinstance(reply, LedgerState):
        driver = replace(driver, ledger=reply)
    if step is Step.ACQUIRE:
        return to(driver, Step.SURVEY, Survey()) if driver.incoming is None else _look(driver)
    if step is Step.SURVEY and isinstance(reply, Surveyed):
        return _after_survey(replace(driver, surveyed=reply))
    if step is Step.BIND:
        return _look_or_go_on(driver)
    if step is Step.LOOK and isinstance(reply, Looked):
        return _after_look(driver, reply)
    if step is Step.PREPARE:
        return _write(driver)
    if step is Step.WRITE and isinstance(reply, tuple):
        return _after_write(driver, reply)
    if step is Step.OPEN:
        return _look(replace(driver, receipts=(), opened=not reply))
    if step is Step.COMMIT and isinstance(reply, Committed):
        driver = replace(driver, stands=_refreshed(driver.stands or (), reply.views))
        return change(driver, Step.RECORD, _recorded(driver))
    if step is Step.COMMIT and isinstance(reply, Moved):
        return _look(replace(driver, receipts=(), opened=False, stands=None))
    if step is Step.RECORD:
        stands = tuple(status_of(driver.state, each.view) for each in driver.stands or ())
        driver = replace(driver, receipts=(), opened=False, stands=stands)
        return to(driver, Step.SURVEY, Survey()) if driver.incoming is None else _go_on(driver, stands)
    if step is Step.IDLE:
        return after_idle(driver, reply)
    raise ValueError(f"step {step.value!r} does not take the reply {reply!r}")


def _after_survey(driver: Driver) -> Next:
    """A ledger that is new altogether may be one that was lost, so the tables are asked before it is bound."""
    if driver.state.fresh:
        return _look(driver)
    if driver.to_bind():
        return change(driver, Step.BIND, driver.bound(driver.state))
    if driver.world.look and driver.state.pending is None:
        driver = replace(driver, stands=None)
    return _look_or_go_on(driver)


def _look_or_go_on(driver: Driver) -> Next:
    if driver.state.pending is not None:
        _same_fingerprint(driver)
    if driver.stands is None:
        return _look(driver)
    return _go_on(driver, driver.stands)


def _look(driver: Driver) -> Next:
    """Spark's ranges are refused before anything is written. For each of its micro-batches the table is looked at: it may have been taken
    over, rolled back or changed since the last one."""
    if driver.incoming is not None:
        refuse_early(driver.state, driver.incoming, driver.settings.on_rewind)
    return to(driver, Step.LOOK, LookAtTables())


def _after_look(driver: Driver, looked: Looked) -> Next:
    """A ledger that was restored may have handed out an epoch that a table knows already: the next one is past all of them."""
    if driver.incoming is not None:
        return _bind_incoming(replace(driver, stands=()), driver.incoming, looked)
    if driver.state.fresh:
        return change(driver, Step.BIND, _first_binding(driver, looked))
    past = past_epochs(view for view in looked.views if view.mark and view.mark.state.owner != driver.state.owner)
    if past > driver.state.epoch:
        raised = replace(driver.state, epoch=past, version=driver.state.version + 1)
        return change(replace(driver, stands=None, receipts=()), Step.BIND, raised)
    stands = tuple(status_of(driver.state, view) for view in looked.views)
    _may_follow(driver.settings, stands)
    return _go_on(replace(driver, stands=stands), stands)


def _bind_incoming(driver: Driver, incoming: Incoming, looked: Looked) -> Next:
    """The ledger learns the cluster, the topics, and where partitions begin that are new to it. A plan that could not be committed, since
    the table's columns were changed, is written again."""
    refuse_unmarked(looked)
    if driver.state.pending is None and binds(driver.state, incoming):
        return change(driver, Step.BIND, bound(driver.state, incoming))
    return _go_on(driver, ())


def _first_binding(driver: Driver, looked: Looked) -> LedgerState:
    """From the marks of the tables, if there are any: then the ledger was lost. Otherwise from where the topics begin."""
    found = adopted(driver.state, looked.views)
    if found is not None:
        return replace(driver.bound(found), version=found.version)
    refuse_unmarked(looked)
    return driver.bound(driver.state)


def refuse_unmarked(looked: Looked) -> None:
    """Raises where a table holds, or may hold, what is about to be delivered to it, and no mark says how much of it."""
    if looked.filled_by:
        raise errors.TargetAhead(
            f"{looked.filled_by} wrote to the table {looked.held}, and nothing in it says which records of these topics it holds.",
            safe="Nothing was written.",
            command="`landonce state import {file}` goes on where it stopped; with --from-nothing beside it, for other topics",
        )
    if looked.held:
        raise errors.TargetAhead(
            f"the table {looked.held} holds records of these topics, and nothing in it says how far this pipeline had come.",
            safe="Nothing was written. Another pipeline wrote them, or the table's properties and history were removed.",
            command="take a new table, the old pipeline's name, or `landonce state import {file}`",
        )


def _go_on(driver: Driver, stands: tuple[TableStatus, ...]) -> Next:
    """A pending plan comes first, then tables that are behind, then new offsets."""
    if driver.state.pending is not None:
        return _write(driver)
    if driver.incoming is not None:
        todo = undelivered(driver.state, driver.incoming)
        return _prepare(driver, todo, Kind.DELIVER) if todo else to(driver, Step.STOP, Stop())
    if driver.world.stop:
        return to(driver, Step.STOP, Stop())
    again = behind_ranges(driver.state, stands)
    if again:
        _readable(driver, again)
        return _prepare(driver, take(again, driver.world.limits.max_rows), Kind.REPLAY)
    if ranges := driver.new_ranges():
        return _prepare(driver, ranges, Kind.DELIVER)
    return rest(driver)


def _prepare(driver: Driver, ranges: tuple[Range, ...], kind: Kind) -> Next:
    """Batches are numbered past everything that any table ever carried, so that a later one is told from an earlier one."""
    seen = [each.view.batch for each in driver.stands or ()]
    plan = Plan(
        batch=max([driver.state.batch, *seen]) + 1,
        blocks=_blocks(driver, ranges),
        fingerprint=driver.settings.fingerprint,
        deadline=0,
        kind=kind,
        letters=driver.settings.letters,
    )
    return change(driver, Step.PREPARE, states.prepared(driver.state, plan))


def _blocks(driver: Driver, ranges: tuple[Range, ...]) -> tuple[Block, ...]:
    if driver.incoming is not None:
        return cut(ranges, driver.settings.target, driver.settings.block_rows)
    return pack(ranges, driver.settings.target, driver.world.limits)


def _write(driver: Driver) -> Next:
    return to(driver, Step.WRITE, Write(driver.pending, driver.unwritten, stands=_taking(driver), final=driver.opened))


def _taking(driver: Driver) -> tuple[TableStatus, ...]:
    """Where the tables begin that take part in the pending plan."""
    ranges = tuple(each for block in driver.pending.blocks for each in block.ranges)
    return tuple(each for each in driver.stands or () if takes_part(driver.pending.kind, ranges, each))


def _refreshed(stands: tuple[TableStatus, ...], views: Iterable[TableView]) -> tuple[TableStatus, ...]:
    now = {view.table: view for view in views}
    return tuple(replace(each, view=now.get(each.view.table, each.view)) for each in stands)


def _after_write(driver: Driver, results: tuple[BlockResult, ...]) -> Next:
    """Everything is written: commit. Files of a task that failed do not count, so it is simply done again."""
    driver = replace(driver, receipts=driver.receipts_with(results))
    wants = tuple(result.wants for result in results if result.fate is Fate.WAITING)
    if wants:
        return to(driver, Step.OPEN, Open(wants))
    if driver.unwritten:
        return _write(driver)
    receipts = driver.balanced_receipts()
    return to(driver, Step.COMMIT, CommitTables(driver.pending, receipts, _taking(driver), _recorded(driver)))


def _recorded(driver: Driver) -> LedgerState:
    """What was delivered again was counted when it was delivered first."""
    totals = driver.totals if driver.pending.kind is not Kind.REPLAY else Totals()
    return states.recorded(driver.state, totals, learnt(driver.state, driver.pending, driver.stands or ()))


def _may_follow(settings: Settings, stands: tuple[TableStatus, ...]) -> None:
    behind = [each.view.table for each in stands if each.behind and not (each.view.mark and each.view.mark.behind)]
    if behind and not settings.follow:
        raise rollback_refused(behind)


def _readable(driver: Driver, ranges: tuple[Range, ...]) -> None:
    extents = dict(driver.world.source.extents)
    for each in ranges:
        extent = extents.get(each.partition)
        if extent is None or extent.start > each.first:
            begins = extent.start if extent else "nowhere"
            raise errors.RetentionOverrun(
                f"a table was rolled back to offset {each.first} of {each.partition}, and the topic now begins at {begins}.",
                safe="Nothing was skipped.",
                command="roll the table forward again, or `landonce state accept-gap {file}`",
            )


def _same_fingerprint(driver: Driver) -> None:
    """Tables that have the pending batch keep it as it was written; for the others it must mean the same."""
    if driver.pending.fingerprint != driver.settings.fingerprint and not driver.settings.own_ledger:
        raise errors.PlanChanged(
            "the pending plan was made with another transform, routing or decoder than the pipeline file has now, "
            "and may be in some of its tables already.",
            safe="Nothing was written. The plan is still pending in the ledger.",
            command="put the old pipeline file back, run `landonce run {file} --once`, then make the change; "
            "or `landonce state accept-change {file}`",
        )
