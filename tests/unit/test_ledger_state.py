"""Changes of the ledger's state that nobody may make, and what the ledger says of its tables."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from landonce import errors
from landonce.ledger.memory import MemoryLedger
from landonce.protocol import ledger as states
from landonce.protocol import query_refusals
from landonce.protocol.block_rows import BlockRow, BlockState, Claim, PushRow, claims_may_change, may_change
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.claimed import key_of
from landonce.protocol.ledger import LedgerState, Position, TableMark, Totals, check_change
from landonce.protocol.marks import Mark as TableMarkIn
from landonce.protocol.marks import TableState, TableView, report_on
from landonce.protocol.match_ranges import Span, topics_of
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import Receipt

P, Q = Partition("t", 0), Partition("t", 1)
STATE = LedgerState("p", "l", 1, "me", 3, "c", (("t", "id"),), ((P, Position(0, 5)), (Q, Position(0, 5))), batch=1)
PLAN = Plan(2, (Block((Range(P, 5, 9),), "a", number=0), Block((Range(Q, 5, 9),), "a", number=1)), "f", 0)
PENDING = states.prepared(STATE, PLAN)
ME = Claim(1, "me")


@pytest.mark.parametrize(("first", "end"), [(3, 3), (4, 3), (-1, 3)])
def test_a_range_holds_at_least_one_offset(first: int, end: int) -> None:
    with pytest.raises(ValueError, match="not a range"):
        Range(P, first, end)


def test_totals_since_a_moment() -> None:
    assert Totals(5, 3, 2).minus(Totals(4, 1, 0)) == Totals(1, 2, 2)
    assert Totals(5, 3, 2).read == 10


def test_a_plan_is_neither_overwritten_nor_recorded_twice() -> None:
    with pytest.raises(ValueError, match="never overwritten"):
        states.prepared(PENDING, PLAN)
    with pytest.raises(ValueError, match="no pending plan to record"):
        states.recorded(STATE, Totals())
    with pytest.raises(ValueError, match="no pending plan to resolve"):
        states.resolved(STATE, {}, None)


@pytest.mark.parametrize(
    ("new", "what"),
    [
        (replace(PENDING, pipeline="other"), "keeps 'p'"),
        (replace(PENDING, version=STATE.version), "does not follow"),
        (replace(PENDING, positions=STATE.positions[::-1]), "in order"),
    ],
)
def test_a_change_that_no_caller_can_mean_is_a_mistake(new: LedgerState, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        check_change("p", STATE, new)


def test_a_batch_is_not_recorded_while_one_of_its_blocks_is_not_in_the_table() -> None:
    """The database was restored under the driver: the row of a block that landed says BEFORE again."""
    rows = (BlockRow(0, ME, BlockState.AFTER, "{}"), BlockRow(1, ME, BlockState.BEFORE))
    with pytest.raises(errors.Unbalanced, match="is not in the table"):
        may_change(PENDING, states.recorded(PENDING, Totals()), rows)


def test_a_driver_gives_up_a_plan_only_if_its_blocks_put_nothing_into_the_target() -> None:
    given_up = states.resolved(PENDING, {}, None)
    rejected = Receipt(read=2, landed=0, dead_lettered=2).to_json()
    may_change(PENDING, given_up, (BlockRow(0, ME, BlockState.AFTER, rejected), BlockRow(1, ME, BlockState.BEFORE)))
    for receipt in (Receipt(read=2, landed=1, dead_lettered=1).to_json(), None, "{}", "no receipt", "[]"):
        with pytest.raises(errors.PlanPending, match="would forget it"):
            may_change(
                PENDING, given_up, (BlockRow(0, ME, BlockState.AFTER, receipt), BlockRow(1, ME, BlockState.BEFORE))
            )
    operator = replace(states.taken(PENDING, "operator"), pending=None)
    with pytest.raises(errors.PlanPending, match="would forget it"):
        may_change(PENDING, operator, (BlockRow(0, ME, BlockState.AFTER, rejected), BlockRow(1, ME, BlockState.BEFORE)))


def test_an_operator_does_not_discard_the_receipt_of_a_block_that_landed() -> None:
    """Nobody can read its dead letters again."""
    shorter = Block((Range(P, 7, 9),), "a", number=0)
    taken = states.taken(PENDING, "operator")
    cut = replace(taken, pending=replace(PLAN, blocks=(shorter, PLAN.blocks[1])))
    with pytest.raises(errors.PlanPending, match="discard its receipt"):
        may_change(PENDING, cut, (BlockRow(0, ME, BlockState.AFTER, "{}"), BlockRow(1, ME, BlockState.BEFORE)))


def test_without_a_pending_plan_rows_forbid_nothing() -> None:
    may_change(STATE, states.taken(STATE, "operator"), ())
    claims_may_change(STATE, states.taken(STATE, "operator"), (PushRow(0, ME, BlockState.CLAIMED),))


def test_two_blocks_of_a_plan_have_two_keys() -> None:
    assert len({key_of(PENDING, block) for block in PLAN.blocks}) == 2


def test_a_topic_that_two_sources_read_is_refused() -> None:
    spans = [Span(start='{"t":{"0":1}}', end='{"t":{"0":2}}', initial="{}")] * 2
    with pytest.raises(errors.QueryRefused, match="two of its sources read topic 't'"):
        topics_of(spans)
    other = Span(start="{}", end='{"u":{"0":2}}', initial="{}")
    assert topics_of([other, spans[0]]) == ("t", "u")


def test_a_query_that_would_drop_rows_is_refused_with_a_way_on() -> None:
    for refused in (query_refusals.same_name("orders"), query_refusals.same_batch(7), query_refusals.went_wrong()):
        assert refused.safe
        assert refused.command
    assert "'orders'" in query_refusals.same_name("orders").what
    assert "batch 7" in query_refusals.same_batch(7).what


def test_a_ledger_that_lost_rows_under_its_driver_is_not_one_that_was_taken_over() -> None:
    assert isinstance(states.fenced(PENDING, PENDING), errors.LedgerUnreadable)
    assert isinstance(states.fenced(PENDING, states.taken(PENDING, "other")), errors.Fenced)


def test_a_driver_that_waits_sees_that_it_was_superseded() -> None:
    store = MemoryLedger("p")
    store.create(STATE)
    store.change(STATE, states.taken(STATE, "other"))
    seen = store.load_while_idle()
    assert seen is not None
    assert seen.owner == "other"


KNOWN = replace(STATE, batch=7, tables=(("a", TableMark("uuid", 7)),))


def mark(batch: int, at: int) -> TableMarkIn:
    return TableMarkIn(replace(KNOWN, batch=batch, positions=((P, Position(0, at)), (Q, Position(0, at)))))


@pytest.mark.parametrize(
    ("view", "status", "said"),
    [
        (TableView("a", "uuid", mark(7, 5)), TableState.IN_STEP, "batch 7"),
        (TableView("a", "uuid", mark(8, 9)), TableState.AHEAD, "batch 8"),
        (TableView("a", "uuid", mark(6, 3)), TableState.BEHIND, r"t\[0\] \[3, 5\)"),
        (TableView("a", "uuid", uncertain=True, latest=7), TableState.UNCERTAIN, "last batch, 7"),
        (TableView("a", "other"), TableState.REPLACED, "other"),
        (TableView("a", ""), TableState.MISSING, "no longer exists"),
        (TableView("b", "uuid"), TableState.UNTOUCHED, ""),
        (TableView("b", ""), TableState.UNTOUCHED, ""),
    ],
    ids=lambda each: each.value if isinstance(each, TableState) else "",
)
def test_what_is_said_of_a_table(view: TableView, status: TableState, said: str) -> None:
    found = report_on(KNOWN, view)
    assert found.status is status
    assert re.search(said, found.words)
    assert bool(found.lacks) is (status is TableState.BEHIND)
    person = status in (TableState.UNCERTAIN, TableState.REPLACED, TableState.MISSING)
    assert bool(found.command) is person, "a command only where a person has to decide"
