"""The batch machine where no world leads: replies that do not belong to a step, what is not known yet, and a driver that is asked to stop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from landonce import errors
from landonce.protocol import ledger as states
from landonce.protocol.batch import Machine, Policy, begin, resolve
from landonce.protocol.block_rows import BlockState, Claim, PushRow, PushRows
from landonce.protocol.blocks import Block, Kind, Plan
from landonce.protocol.claimed import Claimed, outcome_unknown
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.ledger import LedgerState, Position, Totals
from landonce.protocol.marks import Mark as TableMark
from landonce.protocol.marks import TableStatus, TableView
from landonce.protocol.match_ranges import Incoming
from landonce.protocol.operate import Ability, seek
from landonce.protocol.packing import Limits
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt, Want
from landonce.protocol.settle import Mode
from landonce.protocol.snapshot import Snapshot
from landonce.protocol.source import Extent, SourceView, StartAt
from landonce.protocol.steps import (
    Await,
    Change,
    CommitTables,
    Committed,
    Count,
    Idle,
    Looked,
    Open,
    Reply,
    Step,
    Stop,
    Survey,
    Surveyed,
    Write,
)
from landonce.protocol.target import TargetView
from landonce.protocol.tolerance import Tolerance
from landonce.protocol.transactional import Transactional

P = Partition("t", 0)
VIEW = SourceView("c", (("t", "id"),), ((P, Extent(0, 9)),))
CAME = Incoming((Range(P, 0, 9),), "c", (("t", "id"),))
STATE = LedgerState("p", "me", 1, "me", 3, "c", (("t", "id"),), ((P, Position(0, 0)),), batch=1)
PENDING = replace(STATE, pending=Plan(2, (Block((Range(P, 0, 9),), "t"),), "f", 0))
POLICIES = (Deduplicating, Snapshot, Transactional, Claimed)


def surveyed(source: SourceView | Incoming = VIEW, **more: bool) -> Surveyed:
    return Surveyed(source, 0, Limits(9, 9), 10, **more)


@pytest.mark.parametrize(
    ("policy", "step", "reply"),
    [
        *((policy, Step.SURVEY, None) for policy in POLICIES),
        *((policy, Step.AWAIT, None) for policy in (Snapshot, Transactional)),
        *((policy, Step.KILL, 7) for policy in (Snapshot, Transactional, Claimed)),
        *((policy, Step.LOOK, None) for policy in (Snapshot, Transactional, Claimed)),
        (Snapshot, Step.COMMIT, None),
        (Deduplicating, Step.KILL, None),
        (Deduplicating, Step.STOP, PushRows((), 0)),
    ],
)
def test_a_reply_that_does_not_belong_to_the_step_is_a_mistake(policy: type[Policy], step: Step, reply: Reply) -> None:
    machine = Machine(policy("t", "f"), step=step, ledger=PENDING, surveyed=surveyed())
    with pytest.raises(ValueError, match=f"step '{step.value}' does not take the reply"):
        machine.advance(reply)


def test_what_is_not_known_yet_is_not_made_up() -> None:
    machine, _ = begin(Deduplicating("t", "f"))
    with pytest.raises(ValueError, match="not acquired yet"):
        _ = machine.state
    with pytest.raises(ValueError, match="nothing was surveyed"):
        _ = machine.world
    with pytest.raises(ValueError, match="no pending plan"):
        _ = replace(machine, ledger=STATE).pending
    with pytest.raises(ValueError, match="does not bring again"):
        resolve(replace(machine, ledger=PENDING, surveyed=surveyed()), ())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_driver_that_is_asked_to_stop_stops_but_a_batch_that_spark_brought_is_delivered(policy: type[Policy]) -> None:
    """Spark takes a batch for delivered that came to its end."""
    machine = Machine(policy("t", "f", block_rows=9), Step.BIND, STATE, looked=frozenset({P}), counted=True, tables=())
    _, effect = replace(machine, surveyed=surveyed(stop=True)).advance(STATE)
    assert isinstance(effect, Stop)
    _, effect = replace(machine, surveyed=surveyed(CAME, stop=True)).advance(STATE)
    assert isinstance(effect, Change)
    assert effect.step is Step.PREPARE


def test_a_driver_waits_for_records_and_stops_when_it_is_reported_so() -> None:
    done = replace(STATE, positions=((P, Position(0, 9)),))
    machine = Machine(Deduplicating("t", "f"), Step.BIND, done, surveyed(), looked=frozenset({P}), counted=True)
    machine, effect = machine.advance(done)
    assert isinstance(effect, Idle)
    after, effect = machine.advance(True)
    assert (isinstance(effect, Survey), after.counted) == (True, False)
    assert isinstance(machine.advance(False)[1], Stop)


def test_a_batch_is_made_when_it_is_full_or_its_interval_is_over() -> None:
    machine = Machine(Transactional("t", "f"), Step.BIND, STATE, looked=frozenset({P}))
    for due, rows, step in ((False, 9, Step.PREPARE), (False, 10, Step.IDLE), (True, 10, Step.PREPARE)):
        world = Surveyed(VIEW, 0, Limits(rows, 9), 10, due=due)
        assert replace(machine, surveyed=world).advance(STATE)[1].step is step


def test_a_full_batch_waits_for_its_interval_where_batches_are_paced() -> None:
    machine = Machine(Transactional("t", "f"), Step.BIND, STATE, looked=frozenset({P}))
    for due, step in ((False, Step.IDLE), (True, Step.PREPARE)):
        world = Surveyed(VIEW, 0, Limits(9, 9, paced=True), 10, due=due)
        assert replace(machine, surveyed=world).advance(STATE)[1].step is step


@pytest.mark.parametrize("ordered", [True, False])
def test_blocks_of_a_partition_land_one_after_the_other_where_later_rows_take_earlier_ones_away(ordered: bool) -> None:
    policy = Deduplicating("t", "f", ordered=ordered, block_rows=3)
    machine = Machine(policy, Step.BIND, STATE, Surveyed(VIEW, 0, Limits(9, 3), 10))
    blocks = policy.blocks(machine, (Range(P, 0, 9),))
    assert [each.ranges for each in blocks] == [(Range(P, at, at + 3),) for at in ((0,) if ordered else (0, 3, 6))]
    of_spark = policy.blocks(replace(machine, surveyed=surveyed(CAME)), (Range(P, 0, 9),))
    assert [each.ranges for each in of_spark] == [(Range(P, 0, 3),)]


def test_a_block_that_spark_does_not_bring_again_is_settled_by_its_row() -> None:
    nothing = Incoming((), "c", (("t", "id"),))
    machine = Machine(Claimed("t", "f", once=True, block_rows=9), Step.LOOK, PENDING, surveyed(nothing))
    with pytest.raises(errors.Fenced, match="another start of this query"):
        machine.advance(PushRows((), 0))
    _, effect = machine.advance(PushRows((PushRow(0, Claim(1, "me"), BlockState.BEFORE),), 0))
    assert isinstance(effect, Change)
    assert (effect.step, effect.new.pending, effect.new.committed()) == (Step.REARM, None, {P: 0})


def test_nobody_asks_about_a_block_of_no_plan() -> None:
    with pytest.raises(ValueError, match="no pending plan"):
        outcome_unknown(STATE, PushRow(0, Claim(1, "me"), BlockState.CLAIMED))


@pytest.mark.parametrize(("extents", "said"), [(((P, Extent(3, 9)),), "begins at 3"), ((), "begins at nowhere")])
def test_what_a_rollback_removed_and_kafka_deleted_is_not_skipped(
    extents: tuple[tuple[Partition, Extent], ...], said: str
) -> None:
    behind = TableStatus(TableView("a", "uuid"), ((P, 1),), behind=True)
    done = replace(STATE, positions=((P, Position(0, 5)),))
    world = surveyed(SourceView("c", (("t", "id"),), extents))
    with pytest.raises(errors.RetentionOverrun, match=said):
        Machine(Snapshot("t", "f"), Step.BIND, done, world, tables=(behind,)).advance(done)


def test_what_a_rollback_removed_is_read_again() -> None:
    behind = TableStatus(TableView("a", "uuid"), ((P, 1),), behind=True)
    done = replace(STATE, positions=((P, Position(0, 5)),))
    _, effect = Machine(Snapshot("t", "f"), Step.BIND, done, surveyed(), tables=(behind,)).advance(done)
    assert isinstance(effect, Change)
    assert effect.new.pending is not None
    assert effect.new.pending.blocks[0].ranges == (Range(P, 1, 5),)


def test_a_restored_ledger_takes_an_epoch_that_no_table_has_seen() -> None:
    """Two drivers never write files under one epoch."""
    seen = TableView("a", "uuid", TableMark(replace(STATE, epoch=6, owner="other")))
    machine = Machine(Snapshot("t", "f"), Step.LOOK, STATE, surveyed())
    _, effect = machine.advance(Looked((seen,)))
    assert isinstance(effect, Change)
    assert (effect.step, effect.new.epoch) == (Step.BIND, 7)


def halting(policy: Policy, **held: object) -> Machine:
    state = replace(PENDING, **held)
    return Machine(policy, Step.WRITE, state, surveyed(), looked=frozenset({P}), tables=())


BAD = errors.BadRecord("t[0], offset 5: the record cannot land (malformed): no JSON.")
GIVEN_UP = "correct it in {file}, then `landonce run {file}`"
CHANGED = "run `landonce state accept-change {file}`"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_bad_record_gives_up_a_plan_of_which_nothing_landed_and_then_halts(policy: type[Policy]) -> None:
    """What an earlier driver made may have landed by its hand."""
    machine, effect = halting(policy("t", "f")).advance((BlockResult(0, Fate.HALTED, error=BAD),))
    assert isinstance(effect, Change)
    assert (effect.step, effect.new.pending, effect.new.positions) == (Step.REARM, None, STATE.positions)
    with pytest.raises(errors.BadRecord, match="offset 5") as halted:
        machine.advance(effect.new)
    assert GIVEN_UP in halted.value.command
    with pytest.raises(errors.BadRecord, match="offset 5") as halted:
        halting(policy("t", "f"), lineage="an earlier driver").advance((BlockResult(0, Fate.HALTED, error=BAD),))
    assert CHANGED in halted.value.command


def test_a_bad_record_halts_where_another_block_has_landed() -> None:
    blocks = tuple(Block((Range(P, first, first + 3),), "t", number=number) for number, first in enumerate((0, 3)))
    machine = halting(Transactional("t", "f"), pending=Plan(2, blocks, "f", 0))
    landed = BlockResult(0, Fate.LANDED, Receipt(3, 3))
    with pytest.raises(errors.BadRecord) as halted:
        machine.advance((landed, BlockResult(1, Fate.HALTED, error=BAD)))
    assert CHANGED in halted.value.command
    with pytest.raises(errors.BadRecord):
        machine.advance((BlockResult(0, Fate.DOUBTFUL), BlockResult(1, Fate.HALTED, error=BAD)))


def test_a_block_that_halted_for_another_reason_keeps_the_plan() -> None:
    """It may have been pushed: nobody knows, and a plan that is given up would be pushed again."""
    blocks = tuple(Block((Range(P, first, first + 3),), "t", number=number) for number, first in enumerate((0, 3)))
    unknown = BlockResult(1, Fate.HALTED, error=errors.OutcomeUnknown("nobody knows"))
    with pytest.raises(errors.OutcomeUnknown):
        halting(Claimed("t", "f"), pending=Plan(2, blocks, "f", 0)).advance(
            (BlockResult(0, Fate.HALTED, error=BAD), unknown)
        )


def test_a_table_that_is_its_own_ledger_has_no_plan_to_give_up() -> None:
    own = Snapshot("t", "f", own_ledger=True, tolerance=Tolerance(0, floor=1))
    for results in (
        (BlockResult(0, Fate.HALTED, error=BAD),),
        (BlockResult(0, Fate.LANDED, Receipt(9, 4, dead_lettered=5)),),
    ):
        with pytest.raises(errors.Halt) as halted:
            halting(own).advance(results)
        assert GIVEN_UP in halted.value.command


REPLAYED = "`landonce dead replay {file}`"


@pytest.mark.parametrize(("policy", "then"), [(Snapshot, CHANGED), (Transactional, REPLAYED)])
def test_what_has_landed_decides_what_to_do_about_too_many_dead_letters(policy: type[Policy], then: str) -> None:
    """Files that are not committed are nothing; rows that have landed stay."""
    strict = policy("t", "f", tolerance=Tolerance(0.1, floor=1))
    with pytest.raises(errors.TooManyDeadLetters) as halted:
        halting(strict).advance((BlockResult(0, Fate.LANDED, Receipt(9, 4, dead_lettered=5)),))
    assert then in halted.value.command
    machine, effect = halting(strict).advance((BlockResult(0, Fate.LANDED, Receipt(9, 0, dead_lettered=9)),))
    assert isinstance(effect, Change)
    assert effect.new.pending is None
    with pytest.raises(errors.TooManyDeadLetters) as halted:
        machine.advance(effect.new)
    assert GIVEN_UP in halted.value.command


@pytest.mark.parametrize(
    ("policy", "then"),
    [(Deduplicating, CHANGED), (Snapshot, CHANGED), (Transactional, REPLAYED), (Claimed, REPLAYED)],
)
def test_a_plan_of_an_earlier_driver_is_not_given_up(policy: type[Policy], then: str) -> None:
    """It may have published dead letters of the plan, and been killed before the plan was recorded. Where a block that is done has its receipt
    in its row, a corrected file changes nothing of it."""
    machine = halting(policy("t", "f", tolerance=Tolerance(0.1, floor=1)), owner="another")
    with pytest.raises(errors.TooManyDeadLetters) as halted:
        machine.advance((BlockResult(0, Fate.LANDED, Receipt(9, 0, dead_lettered=9)),))
    assert then in halted.value.command
    assert (CHANGED in halted.value.command) is (then == CHANGED)


def test_what_is_delivered_again_is_not_judged_again() -> None:
    strict = Snapshot("t", "f", tolerance=Tolerance(0.1, floor=1))
    replay = replace(PENDING.pending, kind=Kind.REPLAY) if PENDING.pending else None
    _, effect = halting(strict, pending=replay).advance((BlockResult(0, Fate.LANDED, Receipt(9, 0, dead_lettered=9)),))
    assert effect.step is Step.COMMIT


def test_small_batches_beyond_the_limit_add_up() -> None:
    strict = Transactional("t", "f", tolerance=Tolerance(0.1, floor=10))
    machine, effect = halting(strict).advance((BlockResult(0, Fate.LANDED, Receipt(9, 0, dead_lettered=9)),))
    machine, effect = machine.advance(None)
    assert isinstance(effect, Change)
    assert effect.new.lately == Totals(dead_lettered=9)
    again = Block((Range(P, 9, 12),), "t")
    history = replace(effect.new, totals=Totals(landed=10**9), pending=Plan(3, (again,), "f", 0))
    with pytest.raises(errors.TooManyDeadLetters, match="11 of 12 records of the last batches"):
        Machine(strict, Step.WRITE, history, surveyed()).advance(
            (BlockResult(0, Fate.LANDED, Receipt(3, 1, dead_lettered=2)),)
        )


@pytest.mark.parametrize("kind", [Kind.REPLAY, Kind.LETTERS, Kind.DELIVER])
def test_what_was_judged_before_is_none_of_the_last_batches(kind: Kind) -> None:
    strict = Transactional("t", "f", tolerance=Tolerance(0.1, floor=100))
    before = Totals(dead_lettered=5)
    plan = replace(PENDING.pending, kind=kind) if PENDING.pending else None
    for receipt in (Receipt(9, 0, dead_lettered=9), Receipt(9, 9)):
        machine = halting(strict, pending=plan)
        machine = replace(machine, ledger=replace(machine.state, lately=before))
        machine, effect = machine.advance((BlockResult(0, Fate.LANDED, receipt),))
        machine, effect = machine.advance(None)
        assert isinstance(effect, Change)
        counted = before.plus(Totals(dead_lettered=9)) if receipt.dead_lettered else Totals()
        assert effect.new.lately == (counted if kind is Kind.DELIVER else before)


def test_a_new_ledger_that_begins_in_the_middle_counts_what_lies_below() -> None:
    """Rows there came from a ledger that began earlier. Without any row of the topics nothing is counted."""
    start = StartAt(offsets=((P, 4),))
    view = replace(VIEW, begins=((P, 4),))
    fresh = LedgerState("p", "me", 1, "me", 3)
    machine = Machine(Deduplicating("t", "f", start), Step.LOOK, fresh, surveyed(view))
    bound = machine.advance(TargetView(()))[1]
    assert isinstance(bound, Change)
    assert bound.new.committed() == {P: 4}
    machine, effect = machine.advance(TargetView(((P, 7),)))
    assert effect == Count((Range(P, 0, 4),))
    assert machine.advance(0)[1] == bound
    with pytest.raises(errors.TargetAhead, match="already holds 2 records"):
        machine.advance(2)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_driver_starts_while_an_operator_removes_rows(policy: type[Policy]) -> None:
    marked = seek(STATE, VIEW, {P: 0}, "op", Ability(), remove=True).marked
    machine = Machine(policy("t", "f", block_rows=9), Step.SURVEY, marked)
    for source in (VIEW, CAME):
        with pytest.raises(errors.PlanPending, match="state seek` was interrupted"):
            machine.advance(surveyed(source))


class Needs(Want):
    """A table, say."""


def test_a_table_is_made_only_while_nothing_of_the_plan_is_in_doubt() -> None:
    blocks = tuple(Block((Range(P, at, at + 3),), "t", number=at) for at in (0, 3, 6))
    held = replace(PENDING, pending=Plan(2, blocks, "f", 0))
    writing = Machine(Deduplicating("t", "f"), Step.WRITE, held, surveyed(), first=True)
    landed = BlockResult(0, Fate.LANDED, Receipt(3, 3, rows=(("a", 3), ("b", 2))))
    waits = BlockResult(1, Fate.WAITING, wants=(Needs(),))
    machine, effect = writing.advance((landed, waits, BlockResult(2, Fate.DOUBTFUL)))
    assert isinstance(effect, Count), "what landed for the first time is counted"
    assert effect.ranges == blocks[0].ranges
    assert isinstance(machine.advance(5)[1], Await), "and then the doubt is settled"
    with pytest.raises(errors.AnotherWriter, match="holds 6 rows of batch 2, and this driver wrote 5"):
        machine.advance(6)
    machine, effect = writing.advance((landed, waits, replace(waits, index=2)))
    assert isinstance(effect, Open)
    for new_tables in (False, True):
        _, effect = machine.advance(new_tables)
        assert isinstance(effect, Write)
        assert (effect.indexes, effect.mode, effect.final) == ((1, 2), Mode.FIRST, not new_tables)
    _, effect = replace(machine, first=False).advance(True)
    assert isinstance(effect, Write)
    assert effect.mode is Mode.RESOLVE, "what may have been sent before is looked for, also after a table was made"


def test_the_ledger_learns_which_tables_got_rows() -> None:
    receipts = ((0, Receipt(9, 9, rows=(("a", 9), ("b", 4)))),)
    machine = Machine(Deduplicating("t", "f"), Step.COMMIT, PENDING, surveyed(), receipts=receipts)
    _, effect = machine.advance(None)
    assert isinstance(effect, Change)
    assert [name for name, _ in effect.new.tables] == ["a", "b"]
    assert {mark.batch for _, mark in effect.new.tables} == {2}


def test_a_plan_is_cut_to_what_is_ready_and_the_next_one_is_waited_for() -> None:
    """The ledger has the cut plan before anything is committed; what is cut off is owed."""
    blocks = tuple(Block((Range(P, first, first + 3),), "t", number=at) for at, first in enumerate((0, 3, 6)))
    prepared = replace(STATE, pending=Plan(2, blocks, "f", 0))
    policy = Snapshot("t", "f", own_ledger=True, in_parts=True)
    machine, effect = Machine(policy, Step.PREPARE, STATE, surveyed(), tables=()).advance(prepared)
    assert isinstance(effect, Write)
    assert effect.in_parts
    slow = BlockResult(1, Fate.SLOW), BlockResult(2, Fate.SLOW)
    waits, effect = machine.advance((BlockResult(0, Fate.SLOW), *slow))
    assert isinstance(effect, Write), "nothing can go ahead: all of it is written again"
    assert effect.indexes == (0, 1, 2)
    machine, effect = waits.advance((BlockResult(0, Fate.LANDED, Receipt(3, 3)), *slow))
    assert isinstance(effect, Change)
    assert (effect.step, effect.new.pending) == (Step.REARM, Plan(2, blocks[:1], "f", 0, late=(1, 2)))
    machine, effect = machine.advance(effect.new)
    assert isinstance(effect, CommitTables)
    assert effect.after.committed() == {P: 3}
    assert effect.after.totals.landed == 3
    machine, effect = machine.advance(Committed())
    assert isinstance(effect, Change)
    machine, effect = machine.advance(effect.new)
    assert isinstance(effect, Survey)
    for in_parts in (False, True):
        machine = replace(machine, step=Step.PREPARE)
        machine, effect = machine.advance(replace(prepared, batch=3))
        assert isinstance(effect, Write)
        assert effect.in_parts is in_parts, (
            "the batch after a cut one is waited for, and the one after that has a timeout again"
        )
        machine = policy.forget(machine)


def test_the_ledger_keeps_all_columns_that_rows_were_ever_sent_for() -> None:
    known = replace(PENDING, tables=(("a", states.TableMark("", 1, ("id", "old"))),))
    receipts = ((0, Receipt(9, 9, columns=(("a", ("id", "new")), ("b", ("id",))))),)
    machine = Machine(Deduplicating("t", "f"), Step.COMMIT, known, surveyed(), receipts=receipts)
    _, effect = machine.advance(None)
    assert isinstance(effect, Change)
    assert [(name, mark.columns) for name, mark in effect.new.tables] == [("a", ("id", "new", "old")), ("b", ("id",))]
