"""A plan of dead letters: what may be in it, what it moves, and what nobody may do while it is pending."""

from __future__ import annotations

from dataclasses import replace

import pytest

from landonce import errors
from landonce.protocol.batch import Machine, Policy
from landonce.protocol.blocks import Block, Identity, Kind, Plan, token
from landonce.protocol.claimed import Claimed
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.ledger import LedgerState, Position, Totals, prepared, recorded, taken
from landonce.protocol.letters import (
    LetterBatch,
    covering,
    keep_letters,
    landed_for_good,
    letter_blocks,
    partition_of,
    refuse_counted,
    refuse_pending,
    topics_as_known,
)
from landonce.protocol.marks import Mark, TableStatus, TableView
from landonce.protocol.operate import accept_gap, drop_letters, fill, rebase
from landonce.protocol.packing import Limits
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Mode
from landonce.protocol.snapshot import Snapshot
from landonce.protocol.source import Extent, SourceView
from landonce.protocol.steps import Change, Step, Stop, Surveyed, Write
from landonce.protocol.target import TargetView
from landonce.protocol.transactional import Transactional

P, Q = Partition("t", 0), Partition("t", 1)
STATE = LedgerState(
    "p",
    "lineage",
    1,
    "me",
    3,
    "c",
    (("t", "id"),),
    ((P, Position(2, 10)), (Q, Position(0, 5))),
    batch=4,
    totals=Totals(landed=9, dead_lettered=4),
)
VIEW = SourceView("c", (("t", "id"),), ((P, Extent(2, 10)), (Q, Extent(0, 5))))
LETTERS = LetterBatch("digest", (Range(P, 3, 8), Range(Q, 0, 1)))
POLICIES = (Deduplicating, Snapshot, Transactional, Claimed)


def plan(kind: Kind = Kind.LETTERS) -> Plan:
    return Plan(5, letter_blocks(STATE, LETTERS, "table"), "f", 0, kind)


def pending(kind: Kind = Kind.LETTERS) -> LedgerState:
    return replace(STATE, pending=plan(kind), batch=5)


def surveyed(letters: LetterBatch | None = LETTERS, *, stop: bool = False) -> Surveyed:
    return Surveyed(VIEW, 0, Limits(9, 9), 10, letters=letters, stop=stop)


def looked(policy: type[Policy], letters: LetterBatch | None = LETTERS, **more: bool) -> Machine:
    made = policy("table", "f", replay=True)
    world = surveyed(letters, **more)
    return Machine(made, Step.BIND, STATE, world, looked=frozenset({P, Q}), counted=True, tables=())


@pytest.mark.parametrize(
    ("offset", "partition"), [(1, None), (2, P), (9, P), (10, None)], ids=["before", "first", "last", "position"]
)
def test_only_what_the_ledger_counts_may_land(offset: int, partition: Partition | None) -> None:
    assert partition_of(STATE, P, offset) == partition


def test_a_letter_is_of_the_topic_that_had_its_label() -> None:
    """Offsets of a topic that was deleted and made again mean nothing in the new one."""
    rebased = replace(STATE, labels=(("t", "t@id"),))
    assert partition_of(rebased, P, 5) is None
    assert partition_of(rebased, Partition("t@id", 0), 5) == P


def test_ranges_cover_so_many_letters_and_never_two_partitions() -> None:
    places = [(P, 2), (P, 3), (P, 9), (Q, 0)]
    assert list(covering(places, 2)) == [Range(P, 2, 4), Range(P, 9, 10), Range(Q, 0, 1)]
    assert list(covering([], 2)) == []


@pytest.mark.parametrize("outside", [Range(P, 1, 3), Range(P, 9, 11), Range(Partition("u", 0), 0, 1)])
def test_letters_that_a_run_would_read_again_are_refused(outside: Range) -> None:
    with pytest.raises(errors.ReplayRefused, match="not among the records that the ledger counts"):
        letter_blocks(STATE, LetterBatch("digest", (outside,)), "table")


def test_a_token_is_of_these_letters_with_these_values_alone() -> None:
    """Not of a block that was delivered, and not of a replay with other values."""
    identity = Identity("p", "lineage", "c", (("t", "id"),))
    (block, _) = letter_blocks(STATE, LETTERS, "table")
    others = [Block((Range(P, 3, 8),), "table"), replace(block, shard="other"), replace(block, generation=1)]
    assert len({token(identity, each) for each in (block, *others)}) == 4
    assert [each.number for each in plan().blocks] == [0, 1]


def test_no_position_moves_and_each_letter_is_counted_once() -> None:
    """Of 4 letters, 2 land, 1 is filtered and 1 stays."""
    after = recorded(pending(), Totals(landed=2, dead_lettered=1, filtered=1))
    assert after.positions == STATE.positions
    assert after.totals == Totals(landed=11, dead_lettered=1, filtered=1)
    assert after.totals.read == STATE.totals.read
    assert plan().ends() == {}
    assert plan(Kind.DELIVER).ends() == {P: 8, Q: 1}


def test_letters_that_were_never_counted_are_read_now() -> None:
    """`accept-gap` makes letters of a plan count that was given up."""
    few = replace(pending(), totals=Totals(landed=9, dead_lettered=1))
    after = recorded(few, Totals(landed=2, dead_lettered=1))
    assert after.totals == Totals(landed=11, dead_lettered=1)


@pytest.mark.parametrize("policy", POLICIES)
def test_letters_are_prepared_before_they_are_written_and_looked_for_before_they_are_sent(policy: type[Policy]) -> None:
    machine, effect = looked(policy).advance(STATE)
    assert isinstance(effect, Change)
    assert effect.step is Step.PREPARE
    assert effect.new.pending is not None
    assert (effect.new.pending.kind, effect.new.pending.blocks) == (Kind.LETTERS, plan().blocks)
    assert effect.new == prepared(STATE, effect.new.pending)
    _, effect = machine.advance(effect.new)
    assert isinstance(effect, Write)
    assert effect.mode is Mode.RESOLVE


@pytest.mark.parametrize("policy", POLICIES)
def test_without_letters_the_run_is_over_and_nothing_else_is_delivered(policy: type[Policy]) -> None:
    _, effect = looked(policy, None).advance(STATE)
    assert isinstance(effect, Stop)
    _, effect = looked(policy, stop=True).advance(STATE)
    assert isinstance(effect, Stop)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_plan_of_another_kind_is_settled_by_a_run(policy: type[Policy]) -> None:
    asked = replace(looked(policy), step=Step.SURVEY, ledger=pending(Kind.DELIVER))
    with pytest.raises(errors.PlanPending, match="batch 5 is pending"):
        asked.advance(surveyed(None))
    refuse_pending(None)
    _, effect = replace(asked, ledger=pending()).advance(surveyed(None))
    assert not isinstance(effect, Stop), "its own plan is settled here"


def test_a_target_that_is_ahead_of_the_ledger_comes_first() -> None:
    machine = replace(looked(Deduplicating), step=Step.LOOK)
    with pytest.raises(errors.ReplayRefused, match="the target holds records up to 12"):
        machine.advance(TargetView(((P, 12),)))
    _, effect = machine.advance(TargetView(()))
    assert isinstance(effect, Change)


def test_topics_end_where_nothing_is_left_to_read() -> None:
    assert topics_as_known(STATE) == VIEW
    far = replace(STATE, pending=Plan(5, (Block((Range(Q, 5, 7),), "table"),), "f", 0))
    assert dict(topics_as_known(far).extents) == {P: Extent(2, 10), Q: Extent(0, 7)}


@pytest.mark.parametrize("status", [{"behind": True}, {"floors": ((P, 3),)}])
def test_a_table_that_is_not_in_step_comes_first(status: dict[str, object]) -> None:
    behind = replace(looked(Snapshot), tables=(TableStatus(TableView("db.a"), **status),))  # type: ignore[arg-type]
    with pytest.raises(errors.ReplayRefused, match=r"db\.a is not in step"):
        behind.advance(STATE)
    _, effect = replace(behind, tables=(TableStatus(TableView("db.a")),)).advance(STATE)
    assert isinstance(effect, Change)


def test_no_operator_cuts_a_plan_of_letters() -> None:
    """It needs nothing of Kafka, so nothing in Kafka can make it impossible."""
    gone = SourceView("c", (("t", "id"),), ((P, Extent(9, 10)), (Q, Extent(5, 5))))
    for decide in (
        lambda state: accept_gap(state, gone, "owner"),
        lambda state: rebase(state, VIEW, TargetView(()), "owner"),
        lambda state: fill(state, "owner"),
        lambda state: drop_letters(state, 1, "list", "owner"),
    ):
        with pytest.raises(errors.PlanPending, match="lands dead letters"):
            decide(pending())
    keep_letters(plan(Kind.DELIVER))


def test_a_plan_of_letters_can_be_forgotten_and_they_stay_letters() -> None:
    forgotten = rebase(pending(), VIEW, TargetView(()), "owner", drop_pending=True).new
    assert forgotten.pending is None
    assert (forgotten.positions, forgotten.totals) == (STATE.positions, STATE.totals)
    assert forgotten.lineage != pending().lineage, "what is stored of it is of no plan any more"


def test_a_plan_of_letters_is_not_forgotten_once_a_table_holds_it() -> None:
    """Its letters have rows there: as letters, they would land again."""
    plan_ = pending().pending
    assert plan_ is not None

    def holding(batch: int) -> tuple[TableStatus, ...]:
        mark = Mark(replace(STATE, batch=batch), snapshot=1)
        return TableStatus(TableView("a", "uuid-a")), TableStatus(TableView("b", "uuid-b", mark, batch))

    def forget(statuses: tuple[TableStatus, ...]) -> LedgerState:
        return rebase(pending(), VIEW, TargetView(()), "owner", drop_pending=True, statuses=statuses).new

    with pytest.raises(errors.PlanPending, match="lands dead letters"):
        forget(holding(plan_.batch))
    assert forget(holding(plan_.batch - 1)).pending is None
    ordinary = replace(pending(), pending=replace(plan_, kind=Kind.DELIVER))
    assert (
        rebase(ordinary, VIEW, TargetView(()), "owner", drop_pending=True, statuses=iter(holding(plan_.batch))).new
        != ordinary
    )


def test_letters_leave_their_files_when_their_plan_is_recorded_and_not_before() -> None:
    name = (5, "lineage")
    assert not landed_for_good(STATE, *name)
    assert not landed_for_good(pending(), *name)
    assert landed_for_good(recorded(pending(), Totals()), *name)
    assert not landed_for_good(replace(recorded(pending(), Totals()), lineage="other"), *name)


def test_only_letters_that_the_ledger_has_forgotten_to_have_landed_land_again() -> None:
    """It counts 4 dead letters. Where there are 2, it went back behind the replay of 2 others."""
    refuse_counted(STATE, 2, 2)
    for there, wanted, forgotten in ((2, 3, 2), (4, 1, 0), (5, 1, 0)):
        with pytest.raises(errors.ReplayRefused, match=f"the replay of only {forgotten}"):
            refuse_counted(STATE, there, wanted)


def test_dropped_letters_count_as_filtered() -> None:
    decision = drop_letters(STATE, 3, "p.drop-1", "owner")
    assert decision.new == replace(taken(STATE, "owner"), totals=Totals(landed=9, dead_lettered=1, filtered=3))
    assert "p.drop-1" in decision.note().detail
    assert drop_letters(STATE, 9, "p.drop-1", "owner").new.totals == Totals(landed=9, filtered=4)
    with pytest.raises(errors.NothingToDo):
        drop_letters(STATE, 0, "p.drop-1", "owner")
    with pytest.raises(errors.PlanPending, match="landonce run"):
        drop_letters(pending(Kind.DELIVER), 1, "p.drop-1", "owner")
