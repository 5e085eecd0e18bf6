"""Small decisions that nothing else would notice: positions, answers that were lost, accounts, patience."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from landonce import errors
from landonce.protocol.batch import Machine
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.ledger import LedgerState, Position, Totals, recorded, resolved, settled_change, taken
from landonce.protocol.match_ranges import Incoming, Span, ranges_of
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.protocol.steps import Step, Surveyed
from landonce.protocol.transactional import Transactional

P = Partition("t", 0)
PLAN = Plan(4, (Block((Range(P, 3, 8),), "t"),), "f", 0)
STATE = LedgerState(
    "p", "l", 2, "me", 9, cluster_id="c", topic_ids=(("t", "id"),), positions=((P, Position(0, 10)),), pending=PLAN
)
NOTHING: Any = SimpleNamespace()


def test_a_position_never_moves_back() -> None:
    """A plan below the position delivers again to a table that was rolled back, and is over where the pipeline was before."""
    assert recorded(STATE, Totals(landed=5)).committed() == {P: 10}
    assert resolved(STATE, {0: Totals(landed=5)}, None).committed() == {P: 10}


def test_a_change_without_an_answer_was_made_or_was_not_or_somebody_else_made_another() -> None:
    new = taken(STATE, "new")
    assert settled_change(STATE, new, new)
    assert not settled_change(STATE, new, STATE)
    for other in (None, taken(STATE, "another"), replace(STATE, owner="another"), replace(new, owner="another")):
        with pytest.raises(errors.Fenced):
            settled_change(STATE, new, other)


def test_a_topic_that_went_back_by_one_offset_is_another_one() -> None:
    with pytest.raises(errors.QueryRefused, match="went back from offset 5 to 4"):
        ranges_of([Span('{"t": {"0": 5}}', '{"t": {"0": 4}}')])
    assert ranges_of([Span('{"t": {"0": 5}}', '{"t": {"0": 5}}')]) == ()


def test_a_query_records_no_batch_whose_account_does_not_balance() -> None:
    came = Incoming((Range(P, 3, 8),), "c", (("t", "id"),))
    machine = Machine(
        Transactional("t", "f", once=True, block_rows=100),
        step=Step.WRITE,
        ledger=STATE,
        surveyed=Surveyed(came, 0, NOTHING, patience=1_000),
    )
    with pytest.raises(errors.Unbalanced):
        machine.advance((BlockResult(0, Fate.LANDED, Receipt(5, 4)),))


@pytest.mark.parametrize("source", [NOTHING, Incoming((), "c", ())], ids=["pipeline", "query"])
def test_what_came_too_late_gets_twice_the_time(source: Any) -> None:
    surveyed = Surveyed(source, 0, NOTHING, patience=1_000)
    machine = Machine(Deduplicating("t", "f"), surveyed=surveyed)
    for fate, patience in ((Fate.DOUBTFUL, 1_000), (Fate.LATE, 2_000), (Fate.LATE, 4_000), (Fate.DOUBTFUL, 4_000)):
        machine = replace(machine, step=Step.WRITE, ledger=STATE)
        machine, _ = machine.advance((BlockResult(0, fate),))
        assert machine.world.patience == patience
