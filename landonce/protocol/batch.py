"""The batch machine: the life of a micro-batch, for every kind of sink and both sources of ranges. Pure.

    acquire ─► survey ─► bind ─► recover ─► look ─► ┌ plan ─► prepare ─► write ─► commit ─► record ┐
                  ▲                                 └───────────────────────────────────────────── │
                  └────────────────────────────── next ◄───────────────────────────────────────────┘

A driver takes the pipeline and looks at the world. It settles the plan that an earlier driver left (recover), and finds out whether the
target holds more than the ledger knows (look). Then it makes one batch after the other:

    1. plan      It cuts the new offsets into blocks.
    2. prepare   The ledger records the plan. From now on the plan is pending: it is written as it is, by whichever driver, until it is recorded.
    3. write     Workers read, decode and write the blocks, and return a receipt for each.
    4. commit    In each receipt, read = landed + dead-lettered + filtered, and no more are dead-lettered than `tolerance` allows.
                 Tables commit their files, and the dead letters are published.
    5. record    The ledger moves the position to the end of the plan, which is pending no more.

A driver that fails ends. The next one begins at the top, and needs nothing but the ledger and the target. Step by step:

    step     what is done outside                          what holds then                                      next
    ───────  ────────────────────────────────────────────  ───────────────────────────────────────────────────  ─────────────────────
    acquire  ledger: epoch + 1, owner = me, also on the    every earlier driver is fenced                       survey
             rows of pending blocks
    survey   brokers: ids, starts, stable ends; or the     what cannot be delivered exactly was refused, and    bind, or where that
             ranges that Spark brings. Target: its clock   nothing was changed                                  is known: recover,
                                                                                                                look, plan
    bind     ledger: cluster id, topic ids, partitions     offsets have a meaning                               recover, look, plan
    await    target or ledger: its clock is past a         no attempt at the pending plan can begin any more    kill, look
             deadline
    kill     target: end what runs under our query ids     no attempt at the pending plan runs any more, nor    rearm, resolve, look
                                                           at a plan that a restored ledger has forgotten
    resolve  target or block rows: did these land?         it is known of blocks that Spark does not bring      rearm
                                                           again
    rearm    ledger: the pending plan, with a new          this driver alone may write the plan again           write; plan or halt,
             deadline and new tokens; or cut to what is                                                         if nothing is left;
             left or ready; or none                                                                             commit, if all is
                                                                                                                written
    look     target: what it holds above the position;     a lost, stale or foreign ledger was found before     bind, plan, write,
             tables: their marks; ledger: rows of          it does harm                                         commit
             claimed blocks
    prepare  ledger: BEFORE, and a row per block           the plan is durable, and nothing of it is written    write
    write    workers: read, decode, write, account         each block has a fate                                commit if all landed,
                                                                                                                else open, recover
    open     target: tables and columns that records need  records have a place. Workers never change tables    write, look
    commit   tables: files, position and epoch, in one     rows and dead letters count                          record; look, where a
             atomic commit each. Then dead letters                                                              table's mark moved
    record   ledger: AFTER                                 the position has moved                               survey
    idle     wait for the interval                         -                                                    survey
    stop     -                                             somebody asked for it, or all is delivered           -

`Machine.advance(reply)` gives the next machine and the next effect (`steps`). `engine.driver` performs effects for real, and the model
checker performs them on fakes: both call this, and nothing else decides. An effect that fails raises in the driver, and the machine does
not hear of it.

The kinds of sinks differ in four places, and each has a `Policy` with these: how a pending plan is recovered, what is looked at before
planning, what the results of a write mean, what is committed and recorded.

    kind           file             a pending plan                                  before planning
    ─────────────  ───────────────  ──────────────────────────────────────────────  ────────────────────────────────────────────
    deduplicating  `deduplicating`  await, kill, rearm, probe and write again       kill, look above the position, count rows
    snapshot       `snapshot`       look at the marks, write again                  look at the marks of all tables
    transactional  `transactional`  write again: the block's row says if it landed  look above the position
    claimed        `claimed`        look at the rows, await attempts, write again   nothing: the target may be anything

A run that lands dead letters (`letters`) takes the same steps: the pending plan, if it is one of letters, then the look, then one plan of
letters after the other. It reads nothing of Kafka, and moves no position.

Ranges come from one of two sources: what brokers have (`source.SourceView`), or what Spark brings with a micro-batch of a user's own
query (`match_ranges.Incoming`). Spark's ranges need not hold a pending block again, and then it is resolved:

    pending block                       what is done with it
    ──────────────────────────────────  ─────────────────────────────────────────────────────────────────────────────────────
    all of it is in this batch, and     again: written literally, same block and same token; nothing is written twice, for the
    the query is the same               worker probes first, or its row in the ledger says so
    anything else                       resolve: the target says whether it landed, as far as it does not come again. If so, the
                                        position moves; if not, it never was. What comes again is compared
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from landonce import errors
from landonce.protocol import ledger as states
from landonce.protocol import query_refusals as refusals
from landonce.protocol.blocks import Block, Kind, Plan
from landonce.protocol.cases import OnRewind
from landonce.protocol.ledger import LedgerState, Totals
from landonce.protocol.letters import letter_blocks, refuse_pending
from landonce.protocol.marks import TableStatus
from landonce.protocol.match_ranges import Incoming, again, follow, refuse_early
from landonce.protocol.packing import Limits, one_each, pack, take
from landonce.protocol.ranges import NO_END, Partition, Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt, Want, unbalanced
from landonce.protocol.seek_marker import interrupted
from landonce.protocol.settle import Mode
from landonce.protocol.source import SourceView, Start, StartAt
from landonce.protocol.steps import (
    Acquire,
    Change,
    Commit,
    CommitTables,
    Effect,
    FoundBlock,
    Idle,
    Look,
    Open,
    Reply,
    Resolve,
    Resolved,
    Step,
    Stop,
    Survey,
    Surveyed,
    Write,
)
from landonce.protocol.tolerance import CORRECT_AND_RUN, Tolerance, bad_record


@dataclass(frozen=True)
class Machine:
    """All that a driver remembers between two steps. Lost in a crash; nothing of it is needed to recover."""

    policy: Policy
    step: Step = Step.ACQUIRE
    ledger: LedgerState | None = None
    surveyed: Surveyed | None = None
    halting: errors.Halt | None = None
    """The plan is given up first, and then this is raised."""
    receipts: tuple[tuple[int, Receipt], ...] = ()
    """Of the blocks of the pending plan that landed, by index."""
    looked: frozenset[Partition] = frozenset()
    """The target was asked what it holds of these, above the position."""
    ahead: tuple[tuple[Partition, int], ...] = ()
    """Deduplicating: up to where the target holds more than the ledger knows. Blocks up to there are compared before they are written."""
    counted: bool = False
    """Deduplicating: nobody else had written above the position, a moment ago."""
    first: bool = False
    """Deduplicating: what is being written was never sent before, and is not probed."""
    used_up: frozenset[int] = frozenset()
    """Deduplicating: blocks whose token was acknowledged, and whose rows are not there."""
    gone: str = ""
    """What the target knows of why these rows are not there."""
    deadline: int = 0
    """Of what is written again, once it is settled what that is."""
    tables: tuple[TableStatus, ...] | None = None
    """Snapshot: the tables, as they were looked at. None: they must be looked at first."""
    untried: bool = False
    """Snapshot: this driver made the pending plan, no commit of it was tried, and it is not owed blocks that were slow. Only such a plan may
    be cut: nobody else's commit can hold what is cut off."""
    owes: bool = False
    """Snapshot: the last plan was cut. The next one begins with what was cut off, and all of it is waited for."""
    opened: bool = False
    """Tables were made and columns added for the pending plan: what does not fit now waits no more."""

    def advance(self, reply: Reply) -> Next:
        """The one place where a reply turns into the next effect: the column `next` of the table above."""
        machine = replace(self, ledger=reply) if isinstance(reply, LedgerState) else self
        step, policy = machine.step, machine.policy
        if step is Step.ACQUIRE:
            return do(machine, Survey())
        if step is Step.SURVEY and isinstance(reply, Surveyed):
            return _after_survey(machine, reply)
        if step is Step.BIND:
            return go_on(machine)
        if step is Step.AWAIT:
            return policy.after_await(machine)
        if step is Step.KILL and isinstance(reply, int):
            return policy.after_kill(machine, reply)
        if step is Step.RESOLVE and isinstance(reply, Resolved):
            return resolve(machine, reply.found)
        if machine.halting is not None:
            raise machine.halting
        if step is Step.REARM:
            return go_on(machine) if machine.state.pending is None else policy.write(machine, Mode.RESOLVE)
        if step is Step.LOOK:
            return policy.after_look(machine, reply)
        if step is Step.PREPARE:
            return policy.write(machine, Mode.FIRST if machine.pending.kind is Kind.DELIVER else Mode.RESOLVE)
        if step is Step.WRITE and isinstance(reply, tuple):
            return _after_write(machine, reply)
        if step is Step.OPEN and isinstance(reply, bool):
            return policy.after_open(machine, new_tables=reply)
        if step is Step.COMMIT:
            return policy.after_commit(machine, reply)
        if step is Step.RECORD:
            return do(policy.forget(machine), Survey())
        if step is Step.IDLE:
            return do(replace(machine, counted=False), Survey()) if reply else do(machine, Stop())
        raise unexpected(machine, reply)

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

    @property
    def source(self) -> SourceView | Incoming:
        """Where ranges come from."""
        return self.world.source

    @property
    def incoming(self) -> Incoming | None:
        """What Spark brings, if ranges come from there."""
        return self.source if isinstance(self.source, Incoming) else None

    @property
    def bound(self) -> LedgerState:
        """The ledger once it knows the cluster, the topics, and where partitions begin that are new to it. Raises where offsets mean
        something else by now, or are gone."""
        return self.source.bound(self.state, self.policy.start)

    @property
    def partitions(self) -> frozenset[Partition]:
        """Those that the source is about."""
        return self.source.partitions(self.bound)

    @property
    def floors(self) -> tuple[tuple[Partition, int], ...]:
        """What is at or above these may not be in the target, unless the ledger was lost. What is pending may be."""
        state = self.bound
        ends = state.pending.ends() if state.pending is not None else {}
        return tuple(
            (partition, 0 if state.batch == 0 else max(at, ends.get(partition, 0)))
            for partition, at in state.committed().items()
            if partition in self.partitions
        )

    @property
    def new_ranges(self) -> tuple[Range, ...]:
        """All that Spark brings and the ledger lacks; or offsets up to the last stable ones, when the interval is over, or, unless batches are paced,
        when a batch is full."""
        ranges = self.source.undelivered(self.state)
        if self.incoming is not None:
            return ranges
        limits = self.world.limits
        ranges = take(ranges, limits.max_rows)
        full = not limits.paced and sum(each.span for each in ranges) >= limits.max_rows
        ready = full or self.world.due or self.policy.once
        return ranges if ready else ()

    @property
    def unwritten(self) -> tuple[int, ...]:
        """The blocks of the pending plan that have no receipt yet."""
        done = {index for index, _ in self.receipts}
        return tuple(index for index in range(len(self.pending.blocks)) if index not in done)

    def receipts_with(self, results: Iterable[BlockResult]) -> tuple[tuple[int, Receipt], ...]:
        """What has landed by now. Raises what a worker halted for."""
        landed = []
        for result in results:
            if result.error is not None:
                raise result.error
            if result.receipt is not None:
                landed.append((result.index, result.receipt))
        return tuple(sorted((*self.receipts, *landed), key=lambda each: each[0]))

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

    @property
    def lately(self) -> Totals:
        """What stays in mind of the last batches once the pending plan is recorded."""
        if self.pending.kind in (Kind.REPLAY, Kind.LETTERS):
            return self.state.lately
        return self.policy.tolerance.lately(self.totals, self.state.lately)


Next = tuple[Machine, Effect]


@dataclass(frozen=True)
class Policy(ABC):
    """What the pipeline file or the query decides, and where a kind of sink differs from the others."""

    target: str
    """What the blocks are for: a table, a fan-out, a wrapped sink."""
    fingerprint: str
    start: Start | StartAt = Start.EARLIEST
    once: bool = False
    letters: str = ""
    """The folder of dead letters."""
    tolerance: Tolerance = field(default_factory=Tolerance)
    """How many there may be."""
    on_rewind: OnRewind = OnRewind.DROP
    block_rows: int = 0
    """Offsets of one block, of ranges that Spark brings."""
    replay: bool = False
    """The run lands dead letters, and nothing else."""
    ordered: bool = False
    """Later changes of a partition depend on earlier ones, so a plan has one block of it at a time: the beginning of its range."""

    compares: ClassVar[bool] = False
    """The target is probed row by row, so rows of a pending block that come again are compared, and need no proof."""
    owed_as: ClassVar[Kind] = Kind.REPLAY
    keeps_receipts: ClassVar[bool] = False
    """A block that is done has its receipt in its row, and is not written again, whatever the pipeline file says by then."""

    # A pending plan.

    @abstractmethod
    def plan_changed(self) -> errors.PlanChanged:
        """The pending plan was made by another pipeline file."""

    def replays(self, plan: Plan) -> bool:
        """Whether the plan may be written by the present pipeline file."""
        return plan.fingerprint == self.fingerprint

    @abstractmethod
    def recover(self, machine: Machine) -> Next:
        """What comes before a pending plan is written again, after a crash as well as after any doubt."""

    def after_await(self, machine: Machine) -> Next:
        raise unexpected(machine, None)

    def after_kill(self, machine: Machine, now: int) -> Next:
        raise unexpected(machine, now)

    def write_again(self, machine: Machine) -> Next:
        """The pending plan, once nothing of earlier attempts can take effect any more."""
        return self.write(machine, Mode.RESOLVE)

    # Before planning.

    def surveyed(self, machine: Machine) -> Machine:
        """The machine once it has seen the world."""
        return machine

    def looks_unbound(self, machine: Machine) -> bool:
        """Whether the look at the target comes before the ledger is bound: a ledger that is new may be one that was lost."""
        return machine.state.fresh

    def has_looked(self, machine: Machine) -> bool:
        return machine.partitions <= machine.looked

    def look(self, machine: Machine) -> Next:
        return do(machine, Look(machine.floors))

    @abstractmethod
    def after_look(self, machine: Machine, reply: Reply) -> Next:
        """What the look means."""

    def owed(self, machine: Machine) -> tuple[Range, ...]:
        """What comes before new offsets, as a plan of the kind `owed_as`."""
        del machine
        return ()

    # Planning.

    def deliver(self, machine: Machine, ranges: tuple[Range, ...]) -> Next:
        """New offsets."""
        return prepare(machine, ranges, Kind.DELIVER)

    def blocks(self, machine: Machine, ranges: tuple[Range, ...]) -> tuple[Block, ...]:
        """Spark's ranges are cut into one block of each partition at a time, so that what is pending of a partition is one block."""
        if machine.incoming is not None:
            return one_each(ranges, self.target, Limits(NO_END, self.block_rows))
        if self.ordered:
            return one_each(ranges, self.target, machine.world.limits)
        return pack(ranges, self.target, machine.world.limits)

    def refuse_letters(self, machine: Machine) -> None:
        """Raises where letters cannot land before something else is settled."""
        del machine

    def next_batch(self, machine: Machine) -> int:
        return machine.state.batch + 1

    def deadline(self, machine: Machine) -> int:
        """Of a plan that is made now, on the target's clock."""
        del machine
        return 0

    # Writing.

    def write(self, machine: Machine, mode: Mode) -> Next:
        """Has workers write all blocks of the pending plan that have no receipt yet."""
        del mode
        return do(machine, Write(machine.pending, machine.unwritten, final=machine.opened))

    def wrote(self, machine: Machine, results: tuple[BlockResult, ...]) -> Next:
        """What the results of a write mean, beside the receipts that came with them."""
        del results
        return commit_or_recover(machine)

    def opens(self, machine: Machine, results: tuple[BlockResult, ...], wants: tuple[Want, ...]) -> Next:
        """Blocks wait for tables or columns."""
        del results
        return do(machine, Open(wants))

    def after_open(self, machine: Machine, *, new_tables: bool) -> Next:
        del new_tables
        return self.write(replace(machine, opened=True), Mode.RESOLVE)

    def may_give_up(self, machine: Machine) -> bool:
        """Whether nothing came of the pending plan, though all of its blocks are done: the target holds nothing of it, and no dead letter of
        it counts, or is in a topic. An earlier driver that made it may have published letters, and been killed before it was recorded."""
        return machine.pending.kind is Kind.DELIVER and machine.totals.landed == 0 and not machine.state.inherited

    def once_corrected(self, machine: Machine) -> str:
        """The next step, if a plan is not recorded because too many of its records cannot land and the pipeline file is wrong."""
        if self.may_give_up(machine):
            return CORRECT_AND_RUN
        if machine.totals.landed == 0 and not self.keeps_receipts:
            return self.once_changed
        return (
            "set `dead_letters: {limit: 100%}` in {file} and run `landonce run {file} --once`, which records this batch, for some of "
            "it is done; then correct the file, put the limit back, and run `landonce dead replay {file}` (where that is "
            "refused: `landonce dead export {file}`, and produce the records again)"
        )

    @property
    def once_changed(self) -> str:
        """The same, of a plan that has blocks which were not written, or of which no row is in the target."""
        return "correct it in {file}, run `landonce state accept-change {file}`, then `landonce run {file}`"

    # Committing.

    def commit(self, machine: Machine, receipts: tuple[Receipt, ...]) -> Commit | CommitTables:
        return Commit(machine.pending, receipts)

    def after_commit(self, machine: Machine, reply: Reply) -> Next:
        del reply
        return change(machine, Step.RECORD, self.recorded(machine))

    def recorded(self, machine: Machine) -> LedgerState:
        return states.recorded(machine.state, machine.totals, lately=machine.lately)

    def forget(self, machine: Machine) -> Machine:
        """The batch is recorded."""
        return replace(machine, receipts=(), opened=False, used_up=frozenset(), counted=False)


def begin(policy: Policy, before: Machine | None = None) -> Next:
    """A machine that starts. `before`: how the micro-batch before this one ended, in the same run of a query; without it the pipeline is
    taken first."""
    if before is None:
        return Machine(policy), Acquire()
    return do(Machine(policy, ledger=before.ledger, looked=before.looked, ahead=before.ahead), Survey())


def do(machine: Machine, effect: Effect) -> Next:
    """The machine at the step of this effect."""
    return replace(machine, step=effect.step), effect


def change(machine: Machine, step: Step, new: LedgerState) -> Next:
    """The ledger becomes `new`, by compare-and-set."""
    return do(machine, Change(step, machine.state, new))


def unexpected(machine: Machine, reply: Reply) -> ValueError:
    return ValueError(f"step {machine.step.value!r} does not take the reply {reply!r}")


# After a survey: what cannot be delivered exactly is refused before anything is changed or asked.


def _after_survey(machine: Machine, world: Surveyed) -> Next:
    """Spark's ranges are held against the position that they meet, and not again while they are delivered. A pending plan is replayed
    literally, or not at all; of Spark's ranges, blocks that do not come again as they were are resolved."""
    first, machine = machine.surveyed is None, machine.policy.surveyed(replace(machine, surveyed=world))
    if machine.incoming is not None and first:
        refuse_early(machine.state, machine.incoming, machine.policy.on_rewind)
    policy, plan, unbound = machine.policy, machine.state.pending, _unbound(machine)
    if policy.replay:
        refuse_pending(plan)
    if plan is not None and plan.kind is Kind.SEEK:
        raise interrupted(plan)
    if plan is not None and machine.incoming is not None:
        refusals.settleable(plan, policy.target)
        not_again(machine)
    elif plan is not None and not policy.replays(plan):
        raise policy.plan_changed()
    return policy.look(machine) if unbound and policy.looks_unbound(machine) else bind(machine)


def _unbound(machine: Machine) -> bool:
    """Whether the ledger has something to learn of the cluster and the topics."""
    new, old = machine.bound, machine.state
    return (new.positions, new.topic_ids, new.cluster_id) != (old.positions, old.topic_ids, old.cluster_id)


def bind(machine: Machine) -> Next:
    """The ledger learns the cluster, the topics and new partitions before anything is decided about them."""
    return change(machine, Step.BIND, machine.bound) if _unbound(machine) else go_on(machine)


# What comes next: a pending plan before everything, then the look at the target, then new offsets.


def go_on(machine: Machine) -> Next:
    """Where nothing is pending and the target is known, the next plan is made: dead letters, if the run is for these; else what a table or
    the ledger lacks of earlier offsets; else new ones."""
    policy = machine.policy
    if machine.state.pending is not None:
        return policy.recover(machine)
    if not policy.has_looked(machine):
        return policy.look(machine)
    if machine.world.stop and machine.incoming is None:
        return do(machine, Stop())
    if policy.replay:
        if machine.world.letters is None:
            return do(machine, Stop())
        policy.refuse_letters(machine)
        return _prepare(machine, letter_blocks(machine.state, machine.world.letters, policy.target), Kind.LETTERS)
    if ranges := policy.owed(machine):
        return prepare(machine, ranges, policy.owed_as)
    if ranges := machine.new_ranges:
        return policy.deliver(machine, ranges)
    return do(machine, Stop()) if policy.once or machine.incoming is not None else do(machine, Idle())


def prepare(machine: Machine, ranges: tuple[Range, ...], kind: Kind) -> Next:
    """A plan for these ranges becomes durable."""
    return _prepare(machine, machine.policy.blocks(machine, ranges), kind)


def _prepare(machine: Machine, blocks: tuple[Block, ...], kind: Kind) -> Next:
    policy = machine.policy
    plan = Plan(
        batch=policy.next_batch(machine),
        blocks=blocks,
        fingerprint=policy.fingerprint,
        deadline=policy.deadline(machine),
        kind=kind,
        letters=policy.letters,
    )
    return change(machine, Step.PREPARE, states.prepared(machine.state, plan))


# Writing.


def _after_write(machine: Machine, results: tuple[BlockResult, ...]) -> Next:
    """What landed has its receipt. Blocks that wait for a table or a column come first, for nothing is committed without them."""
    if (bad := next((each.error for each in results if isinstance(each.error, errors.BadRecord)), None)) is not None:
        return _halt_at(machine, results, bad)
    machine = replace(machine, receipts=machine.receipts_with(results))
    wants = tuple(want for result in results if result.fate is Fate.WAITING for want in result.wants)
    return machine.policy.opens(machine, results, wants) if wants else machine.policy.wrote(machine, results)


def commit_or_recover(machine: Machine) -> Next:
    """Everything landed: commit. Otherwise the doubt is settled first, and what is left is written again."""
    if machine.unwritten:
        return machine.policy.recover(machine)
    if (error := _too_many(machine)) is not None:
        return _halt(machine, error)
    return do(machine, machine.policy.commit(machine, machine.balanced_receipts()))


def _too_many(machine: Machine) -> errors.Halt | None:
    """Why the pending plan must not be recorded. What is delivered again was judged when it was delivered first; so were dead letters."""
    policy, reasons = machine.policy, (each for _, receipt in machine.receipts for each in receipt.reasons)
    if machine.pending.kind in (Kind.REPLAY, Kind.LETTERS):
        return None
    before, lately = machine.state.totals, machine.state.lately
    return policy.tolerance.judge(machine.totals, lately, before, reasons, policy.once_corrected(machine))


def _halt(machine: Machine, error: errors.Halt) -> Next:
    """A plan of which nothing came is given up, so that a corrected pipeline file is not held up by it."""
    if not machine.policy.may_give_up(machine):
        raise error
    return change(replace(machine, halting=error), Step.REARM, states.resolved(machine.state, {}, None))


def _halt_at(machine: Machine, results: tuple[BlockResult, ...], bad: errors.BadRecord) -> Next:
    """A record must not become a dead letter, so its block was not written. The plan is given up only if no other block was written either,
    by this driver or an earlier one. A block that halted for another reason may have been."""
    for each in results:
        if each.error is not None and not isinstance(each.error, errors.BadRecord):
            raise each.error
    receipts = (*(each for _, each in machine.receipts), *(each.receipt for each in results if each.error is None))
    nothing = all(each is not None and each.landed == 0 for each in receipts)
    if nothing and machine.policy.may_give_up(machine):
        return _halt(machine, bad_record(bad.what, CORRECT_AND_RUN))
    raise bad_record(bad.what, machine.policy.once_changed)


# A pending plan, once nothing of it can take effect any more, but for what is written from here on.


def settle(machine: Machine) -> Next:
    """The whole plan is written again if its offsets can be read again. What Spark does not bring again is resolved first."""
    others = not_again(machine)
    if not others:
        return machine.policy.write_again(machine)
    asked = tuple(index for index in others if not _comes_whole(machine, index))
    return do(machine, Resolve(_without_what_comes(machine), asked)) if asked else resolve(machine, ())


def not_again(machine: Machine) -> tuple[int, ...]:
    """The pending blocks that are not written again as they are. None, where ranges come from brokers."""
    if machine.incoming is None:
        return ()
    policy, plan = machine.policy, machine.pending
    written = again(machine.state, plan, machine.incoming, policy.fingerprint, policy.on_rewind)
    return tuple(index for index in range(len(plan.blocks)) if index not in written)


def resolve(machine: Machine, found: tuple[FoundBlock, ...]) -> Next:
    """Blocks that landed are recorded; blocks that did not are taken out of the plan. The rest of the plan is written again."""
    if machine.incoming is None:
        raise ValueError("only blocks that Spark does not bring again are resolved")
    plan, others = machine.pending, not_again(machine)
    landed = {each.index: each.totals for each in found if each.landed}
    for index in others:
        follow(machine.state, plan.blocks[index], machine.incoming, landed=index in landed)
    blocks = tuple(block for index, block in enumerate(plan.blocks) if index not in others)
    left = replace(plan, blocks=blocks, deadline=machine.deadline) if blocks else None
    new = states.resolved(replace(machine.state, pending=_without_what_comes(machine)), landed, left)
    return change(machine, Step.REARM, new)


def _without_what_comes(machine: Machine) -> Plan:
    """The pending plan, its blocks without what comes again in this batch.

    Where the target is probed, one row of a block is proof of all of it. That holds unless another plan wrote some of its offsets, which a
    ledger that was restored does not know. So nothing is proven of rows that come again: they are compared.
    """
    if not _compared(machine):
        return machine.pending
    blocks = []
    for block in machine.pending.blocks:
        pending, came = block.ranges[0], _came(machine, block)
        cut = came is not None and pending.first < came.first < pending.end
        blocks.append(replace(block, ranges=(replace(pending, end=came.first),)) if came is not None and cut else block)
    return replace(machine.pending, blocks=tuple(blocks))


def _compared(machine: Machine) -> bool:
    """Rows that come again are those that were planned. A changed query makes others, and what landed of the old one stays."""
    return machine.policy.compares and machine.policy.replays(machine.pending)


def _comes_whole(machine: Machine, index: int) -> bool:
    """This batch begins with the block, or before it: nothing of it has to be proven."""
    block = machine.pending.blocks[index]
    came = _came(machine, block)
    return _compared(machine) and came is not None and came.first <= block.ranges[0].first


def _came(machine: Machine, block: Block) -> Range | None:
    return machine.incoming.of(block.ranges[0].partition) if machine.incoming is not None else None
