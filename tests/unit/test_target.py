"""What the start-up look at the target means for the ledger."""

import pytest

from landonce.errors import TargetAhead
from landonce.protocol.ledger import LedgerState, Position
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import Extent, SourceView, Start
from landonce.protocol.target import TargetView, ahead

P0, P1 = Partition("t", 0), Partition("t", 1)


def ledger(at: int, batch: int = 3) -> LedgerState:
    return LedgerState("p", "l", cluster_id="c", positions=((P0, Position(0, at)), (P1, Position(0, at))), batch=batch)


def source(start: int, end: int) -> SourceView:
    return SourceView("c", (("t", "i"),), ((P0, Extent(start, end)), (P1, Extent(start, end))))


def test_a_target_that_is_not_ahead_is_left_alone() -> None:
    assert ahead(ledger(10), TargetView(()), source(0, 50), Start.EARLIEST) == ()
    assert ahead(ledger(10), TargetView(((P0, 10),)), source(0, 50), Start.EARLIEST) == ()


def test_what_the_target_holds_beyond_the_ledger_is_named() -> None:
    assert ahead(ledger(10), TargetView(((P1, 30),)), source(0, 50), Start.EARLIEST) == (Range(P1, 10, 30),)


@pytest.mark.parametrize(("start", "end"), [(20, 50), (0, 25)])
def test_what_kafka_cannot_show_any_more_is_refused(start: int, end: int) -> None:
    with pytest.raises(TargetAhead, match="cannot be compared"):
        ahead(ledger(10), TargetView(((P0, 30),)), source(start, end), Start.EARLIEST)


def test_a_lost_ledger_does_not_skip_to_the_latest_offsets() -> None:
    with pytest.raises(TargetAhead, match="start at the latest"):
        ahead(ledger(40, batch=0), TargetView(((P0, 30),)), source(0, 40), Start.LATEST)


def test_a_lost_ledger_begins_at_the_latest_offsets_where_these_are_the_first() -> None:
    assert ahead(ledger(0, batch=0), TargetView(((P0, 30),)), source(0, 30), Start.LATEST) == (Range(P0, 0, 30),)


def test_a_lost_ledger_does_not_skip_what_retention_deleted() -> None:
    view, target = source(20, 50), TargetView(((P0, 15),))
    with pytest.raises(TargetAhead, match=r"Kafka deleted \[15, 20\)"):
        ahead(ledger(20, batch=0), target, view, Start.EARLIEST, unbound=True)
    assert ahead(ledger(20, batch=0), target, view, Start.EARLIEST) == ()
