"""What a micro-batch of a user's own query goes through: every step, and what follows it. Pure.

    acquire ─► (await ─► kill ─► resolve ─► rearm ─► write ─► record) ─► kill ─► look ─► bind ─► ┌ prepare ─► write ─► record ┐
               └─ only where a plan is pending ────────────────────┘   └ once per partition ┘   └─────── until all is new ───┘

Spark decides which ranges come, so each is held against the last one that the ledger knows (`protocol.cases`). A plan holds at
most one block of each partition, so what is pending of a partition is one block: it landed, or it did not.

    pending block                       what is done with it
    ──────────────────────────────────  ─────────────────────────────────────────────────────────────────────────────
    all of it is in this batch, and     again: written literally, same block and same token; nothing is written twice,
    the query is the same               for the worker looks first, or its row in the ledger says so
    anything else                       resolve: the target says whether it landed, as far as it does not come again. If
                                        so, the position moves; if not, it never was. What comes again is compared

Steps have the meaning that they have in `protocol.inserts`, and the driver that performs them is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from landonce.protocol import ledger as states
from landonce.protocol import query_refusals as refusals
from landonce.protocol.batch import Sending, change, first_mode, refuse_another_writer, send, sent, to
from landonce.protocol.blocks import Block, Kind, Plan
from landonce.protocol.cases import OnRewind
from landonce.protocol.ledger import LedgerState
from landonce.protocol.match_ranges import Incoming, again, binds, bound, follow, refuse_early, undelivered
from landonce.protocol.packing import Limits, one_each
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import BlockResult
from landonce.protocol.settle import Mode
from landonce.protocol.source import Extent, SourceView, Start
from landonce.protocol.steps import (
    Acquire,
    Await,
    Clock,
    Count,
    Effect,
    Found,
    Kill,
    Look,
    Reply,
    Resolve,
    Resolved,
    Step,
    Stop,
)
from landonce.protocol.target import TargetView, above, ahead

_NO_END = 2**63 - 1


@dataclass(frozen=True)
class Settings:
    """What the query and its sink decide."""

    table: str
    """Which table it is: a pending plan of another one is not touched."""
    fingerprint: str
    block_rows: int
    deadlines: bool = True
    """Writes carry a deadline: doubt is settled by waiting for it, ending what runs, and looking."""
    can_probe: bool = True
    on_rewind: OnRewind = OnRewind.DROP
    start, once = Start.EARLIEST, True
    """Where a partition begins, and when a run is over, Spark says."""


@dataclass(frozen=True)
class Driver(Sending):
    """All that is remembered between two steps, and from one micro-batch to the next. Lost in a crash, and not missed."""

    settings: Settings
    incoming: Incoming = field(kw_only=True)
    looked: frozenset[Partition] = frozenset()
    ahead: tuple[tuple[Partition, int], ...] = ()
    """Where the target holds more than the ledger knows: up to there blocks are compared before they are written."""
    deadline: int = 0
    """Of what is written again, once it is settled what that is."""

    def advance(self, reply: Reply) -> Next:
        return advance(self, reply)


Next = tuple[Driver, Effect]


def begin(settings: Settings, incoming: Incoming, before: Driver | None = None) -> Next:
    """The next micro-batch of a run. `before`: how the one before it ended; without it the pipeline is taken first."""
    if before is None:
        return Driver(settings, incoming=incoming), Acquire()
    driver = Driver(settings, incoming=incoming, ledger=before.ledger, looked=before.looked, ahead=before.ahead)
    return _start(driver)


def advance(driver: Driver, reply: Reply) -> Next:
    """The one place where a reply turns into the next effect."""
    step = driver.step
    if isinstance(reply, LedgerState):
        driver = replace(driver, ledger=reply)
    if step is Step.ACQUIRE:
        return _start(driver)
    if step is Step.AWAIT:
        return to(driver, Step.KILL, Kill())
    if step is Step.KILL and isinstance(reply, int):
        return _look(driver) if driver.state.pending is None else _sort_out(driver, reply)
    if step is Step.RESOLVE and isinstance(reply, Resolved):
        return _settle(driver, reply.found)
    if step is Step.REARM:
        return _go_on(driver) if driver.state.pending is None else send(driver, Mode.RESOLVE)
    if step is Step.LOOK and isinstance(reply, TargetView):
        return _after_look(driver, reply)
    if step is Step.LOOK and (reply is None or isinstance(reply, int)):
        return _after_count(driver, reply)
    if step is Step.BIND:
        return _plan(driver)
    if step is Step.SURVEY and isinstance(reply, int):
        return _prepare(driver, reply)
    if step is Step.PREPARE:
        return send(driver, first_mode(driver))
    if step is Step.WRITE and isinstance(reply, tuple):
        return _after_write(driver, reply)
    if step is Step.RECORD:
        return _go_on(replace(driver, receipts=(), used_up=frozenset(), counted=False))
    raise ValueError(f"step {step.value!r} does not take the reply {reply!r}")


def _start(driver: Driver) -> Next:
    """Whatever is refused is refused before anything is asked or written."""
    refuse_early(driver.state, driver.incoming, driver.settings.on_rewind)
    plan = driver.state.pending
    if plan is None:
        return _go_on(driver)
    refusals.settleable(plan, driver.settings.table)
    _again(driver)
    if driver.settings.deadlines:
        return to(driver, Step.AWAIT, Await(plan.deadline))
    return _sort_out(driver, 0)


# A pending plan.


def _again(driver: Driver) -> frozenset[int]:
    told = driver.settings
    return again(
        driver.state, driver.pending, driver.incoming, told.fingerprint, told.on_rewind, can_probe=told.can_probe
    )


def _sort_out(driver: Driver, deadline: int) -> Next:
    """No write of the pending plan can take effect any more, but for those that are made from here on."""
    if others := _others(driver):
        driver = replace(driver, deadline=deadline)
        asked = tuple(index for index in others if not _comes_whole(driver, index))
        return to(driver, Step.RESOLVE, Resolve(_unseen(driver), asked)) if asked else _settle(driver, ())
    if driver.settings.deadlines:
        plan = driver.pending.regenerated(driver.used_up).rearmed(deadline)
        return change(driver, Step.REARM, states.amended(driver.state, plan))
    return send(driver, Mode.RESOLVE)


def _others(driver: Driver) -> tuple[int, ...]:
    """The pending blocks that are not written again."""
    again_ = _again(driver)
    return tuple(index for index in range(len(driver.pending.blocks)) if index not in again_)


def _unseen(driver: Driver) -> Plan:
    """The pending plan, its blocks without what comes again in this batch.

    Where the target is looked at, one row of a block is proof of all of it. That holds unless another plan wrote some of its offsets,
    which a ledger that was restored does not know. So nothing is proven of rows that come again: they are compared.
    """
    if not _comparable(driver):
        return driver.pending
    return replace(driver.pending, blocks=tuple(_cut(driver, block) for block in driver.pending.blocks))


def _comparable(driver: Driver) -> bool:
    """Rows that come again are those that were planned. A changed query makes others, and what landed of the old one stays."""
    return driver.settings.deadlines and driver.pending.fingerprint == driver.settings.fingerprint


def _cut(driver: Driver, block: Block) -> Block:
    (pending,) = block.ranges
    came = driver.incoming.of(pending.partition)
    if came is None or not pending.first < came.first < pending.end:
        return block
    return replace(block, ranges=(replace(pending, end=came.first),))


def _comes_whole(driver: Driver, index: int) -> bool:
    """This batch begins with the block, or before it: nothing of it has to be proven."""
    (pending,) = driver.pending.blocks[index].ranges
    came = driver.incoming.of(pending.partition)
    return _comparable(driver) and came is not None and came.first <= pending.first


def _settle(driver: Driver, found: tuple[Found, ...]) -> Next:
    """What landed counts, and what did not never was. What is left of the plan is written again."""
    landed = {each.index: each.totals for each in found if each.landed}
    others = _others(driver)
    for index in others:
        follow(driver.state, driver.pending.blocks[index], driver.incoming, landed=index in landed)
    blocks = tuple(block for index, block in enumerate(driver.pending.blocks) if index not in others)
    left = replace(driver.pending, blocks=blocks, deadline=driver.deadline) if blocks else None
    resolved = states.resolved(replace(driver.state, pending=_unseen(driver)), landed, left)
    return change(driver, Step.REARM, resolved)


# New offsets.


def _go_on(driver: Driver) -> Next:
    """Nothing is pending. The target is asked once for each partition what it holds, before anything new is planned."""
    if driver.incoming.partitions <= driver.looked:
        return _bind(driver)
    return to(driver, Step.KILL, Kill()) if driver.settings.deadlines else _look(driver)


def _bound(driver: Driver) -> LedgerState:
    return bound(driver.state, driver.incoming)


def _look(driver: Driver) -> Next:
    committed = _bound(driver).committed()
    floors = tuple(
        (each, 0 if driver.state.batch == 0 else committed[each])
        for each in sorted(driver.incoming.partitions - driver.looked)
    )
    return to(driver, Step.LOOK, Look(floors))


def _after_look(driver: Driver, target: TargetView) -> Next:
    """Where rows and ledger change together, a table that is ahead has lost its ledger. Elsewhere what it holds is
    compared, row by row, before anything is written."""
    state = _bound(driver)
    if target.ends and not driver.settings.deadlines:
        raise refusals.ahead_of_ledger(state, target.ends[0], driver.settings.table)
    everything = tuple((each, Extent(0, _NO_END)) for each in sorted(driver.incoming.partitions))
    source = SourceView(driver.incoming.cluster_id, driver.incoming.topic_ids, everything)
    found = ahead(state, target, source, Start.EARLIEST, unbound=driver.state.fresh)
    ends = (*driver.ahead, *((each.partition, each.end) for each in found))
    return _bind(replace(driver, looked=driver.looked | driver.incoming.partitions, ahead=ends, counted=True))


def _bind(driver: Driver) -> Next:
    """The ledger learns the cluster, the topics, and where partitions begin that are new to it."""
    if not binds(driver.state, driver.incoming):
        return _plan(driver)
    return change(driver, Step.BIND, _bound(driver))


def _plan(driver: Driver) -> Next:
    """What is new of this batch, until nothing is."""
    if not _todo(driver):
        return to(driver, Step.STOP, Stop())
    if not driver.settings.deadlines:
        return _prepare(driver, 0)
    if not driver.counted and not _held(driver):
        return to(driver, Step.LOOK, Count(above(_todo(driver))))
    return to(driver, Step.SURVEY, Clock())


def _after_count(driver: Driver, rows: int | None) -> Next:
    refuse_another_writer(driver, driver.settings.table, rows)
    return to(driver, Step.SURVEY, Clock()) if driver.state.pending is None else _record_or_settle(driver)


def _todo(driver: Driver) -> tuple[Range, ...]:
    return undelivered(driver.state, driver.incoming)


def _held(driver: Driver) -> tuple[Range, ...]:
    """What the target may hold already of what is undelivered."""
    ends = dict(driver.ahead)
    return tuple(
        replace(each, end=min(each.end, ends[each.partition]))
        for each in _todo(driver)
        if each.first < ends.get(each.partition, 0)
    )


def _prepare(driver: Driver, deadline: int) -> Next:
    """One block of each partition. What the target may hold already is compared first, in blocks of its own."""
    todo, held = _todo(driver), _held(driver)
    plan = Plan(
        batch=driver.state.batch + 1,
        blocks=one_each(held or todo, driver.settings.table, Limits(_NO_END, driver.settings.block_rows)),
        fingerprint=driver.settings.fingerprint,
        deadline=deadline,
        kind=Kind.RECONCILE if held else Kind.DELIVER,
    )
    return change(driver, Step.PREPARE, states.prepared(driver.state, plan))


# Writing.


def _after_write(driver: Driver, results: tuple[BlockResult, ...]) -> Next:
    """Everything landed: record it. Anything else: settle the doubt first, then write what is left."""
    driver = sent(driver, results)
    if driver.first and driver.receipts and driver.settings.deadlines:
        return to(driver, Step.LOOK, Count(driver.landed_ranges))
    return _record_or_settle(driver)


def _record_or_settle(driver: Driver) -> Next:
    if not driver.unwritten:
        driver.balanced_receipts()
        return change(driver, Step.RECORD, states.recorded(driver.state, driver.totals))
    if driver.settings.deadlines:
        return to(driver, Step.AWAIT, Await(driver.pending.deadline))
    return send(driver, Mode.RESOLVE)
