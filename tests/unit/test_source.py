"""What the brokers say against what the ledger knows: the last offset that is still right, and the first that is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from landonce import errors
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.ledger import LedgerState, Position
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import Extent, SourceView, Start, available, bind, everything
from landonce.protocol.target import TargetView, ahead

P, Q, U = Partition("t", 0), Partition("t", 1), Partition("u", 0)
KNOWN = LedgerState("p", "l", cluster_id="c", topic_ids=(("t", "id"),), positions=((P, Position(2, 10)),), batch=3)
PENDING = replace(KNOWN, pending=Plan(4, (Block((Range(P, 10, 15),), "t"),), "f", 0))


def view(start: int, end: int, **changes: object) -> SourceView:
    return replace(SourceView("c", (("t", "id"),), ((P, Extent(start, end)),)), **changes)  # type: ignore[arg-type]


def test_records_that_were_deleted_before_they_were_read_are_a_gap_from_the_first_one_on() -> None:
    bind(KNOWN, view(10, 20), Start.EARLIEST)
    with pytest.raises(errors.RetentionOverrun, match=r"offsets \[10, 11\) were deleted"):
        bind(KNOWN, view(11, 20), Start.EARLIEST)
    bind(PENDING, view(11, 20), Start.EARLIEST)


def test_a_topic_that_ends_before_the_position_is_another_one() -> None:
    bind(KNOWN, view(0, 10), Start.EARLIEST)
    with pytest.raises(errors.PositionBeyondEnd, match="at offset 10, and the topic ends at 9"):
        bind(KNOWN, view(0, 9), Start.EARLIEST)
    bind(PENDING, view(0, 15), Start.EARLIEST)
    with pytest.raises(errors.PositionBeyondEnd, match="at offset 15, and the topic ends at 14"):
        bind(PENDING, view(0, 14), Start.EARLIEST)


def test_offsets_mean_something_only_in_their_own_cluster_topic_and_partition() -> None:
    with pytest.raises(errors.ClusterChanged):
        bind(KNOWN, view(0, 20, cluster_id="other"), Start.EARLIEST)
    with pytest.raises(errors.TopicRecreated):
        bind(KNOWN, view(0, 20, topic_ids=(("t", "other"),)), Start.EARLIEST)
    with pytest.raises(errors.PartitionVanished):
        bind(KNOWN, view(0, 20, extents=((Q, Extent(0, 20)),)), Start.EARLIEST)


def test_a_partition_that_is_new_begins_at_its_beginning_and_only_a_new_pipeline_at_the_end() -> None:
    both = view(0, 20, extents=((P, Extent(0, 20)), (Q, Extent(3, 9))))
    assert bind(KNOWN, both, Start.LATEST).added == {Q: 3}
    assert bind(LedgerState("p", "l"), both, Start.LATEST).added == {P: 20, Q: 9}
    assert bind(LedgerState("p", "l"), both, Start.EARLIEST).added == {P: 0, Q: 3}


def test_what_is_stable_and_not_committed_is_read() -> None:
    assert available(KNOWN, view(0, 10)) == ()
    assert available(KNOWN, view(0, 11)) == (Range(P, 10, 11),)


def test_a_target_that_holds_one_row_above_the_position_is_ahead() -> None:
    assert ahead(KNOWN, TargetView(((P, 10),)), view(0, 20), Start.EARLIEST) == ()
    assert ahead(KNOWN, TargetView(((P, 11),)), view(0, 20), Start.EARLIEST) == (Range(P, 10, 11),)
    assert ahead(KNOWN, TargetView(((P, 20),)), view(10, 20), Start.EARLIEST) == (Range(P, 10, 20),)
    for extent in ((11, 20), (10, 19)):
        with pytest.raises(errors.TargetAhead):
            ahead(KNOWN, TargetView(((P, 20),)), view(*extent), Start.EARLIEST)


def test_a_new_ledger_does_not_begin_behind_what_the_target_lacks() -> None:
    fresh = replace(KNOWN, batch=0, positions=((P, Position(10, 10)),))
    with pytest.raises(errors.TargetAhead, match="would start at the latest offset 10"):
        ahead(fresh, TargetView(((P, 10),)), view(0, 20), Start.LATEST)
    assert ahead(fresh, TargetView(((P, 10),)), view(0, 20), Start.EARLIEST, unbound=True) == ()
    with pytest.raises(errors.TargetAhead, match=r"Kafka deleted \[9, 10\)"):
        ahead(fresh, TargetView(((P, 9),)), view(0, 20), Start.EARLIEST, unbound=True)


def test_all_that_is_stable_is_what_an_audit_reads() -> None:
    assert everything(view(2, 9, extents=((P, Extent(2, 9)), (Q, Extent(4, 4))))) == (Range(P, 2, 9),)


def test_a_topic_that_is_not_read_this_time_keeps_its_position() -> None:
    """A query may leave out a topic in one batch: its offsets are neither checked nor forgotten."""
    other = replace(
        KNOWN, topic_ids=(("t", "id"), ("u", "id-u")), positions=((P, Position(2, 10)), (U, Position(0, 7)))
    )
    assert bind(other, view(0, 20), Start.EARLIEST).topic_ids == {"t": "id", "u": "id-u"}
