"""What a commit says beyond its files: through which moment it is valid, which rows are the last; and which rows a table takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pytest

from landonce.engine.committing import highest, skipped_in, valid_through
from landonce.protocol.blocks import Block, Kind, Plan
from landonce.protocol.ledger import LedgerState, Position
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import Receipt
from landonce.read.kafka.records import Records, RecordSource, WithoutRanges
from landonce.read.rows import NOWHERE, from_floors

P, Q = Partition("t", 0), Partition("t", 1)
HELD = LedgerState("p", "l", positions=((P, Position(0, 0)), (Q, Position(0, 0))))


def receipt(*latest: tuple[Partition, int]) -> Receipt:
    return Receipt(1, 1, latest=latest)


@pytest.mark.parametrize(
    ("receipts", "moment"),
    [
        ([receipt((P, 5_000), (Q, 3_000)), receipt((Q, 4_000))], 4_000),
        ([receipt((P, 5_000))], None),
        ([receipt((P, 1_700_000_000_000_000), (Q, 4_000))], None),
        ([receipt((P, -1), (Q, 4_000))], None),
        ([], None),
    ],
    ids=["the least of the latest", "a partition without records", "microseconds", "no timestamp", "nothing"],
)
def test_valid_through(receipts: list[Receipt], moment: int | None) -> None:
    assert valid_through(receipts, HELD) == moment


def test_the_last_rows_are_the_highest_of_all_blocks() -> None:
    receipts = [
        Receipt(1, 1, tops=(("a", ((P, 3),)), ("b", ((Q, 9),)))),
        Receipt(1, 1, tops=(("a", ((P, 7), (Q, 1))),)),
    ]
    assert highest(receipts) == {"a": ((P, 7), (Q, 1)), "b": ((Q, 9),)}


@pytest.mark.parametrize(
    ("floors", "kept"),
    [
        ({}, [0, 1, 2, 0, 1]),
        ({P: 1}, [1, 2, 0, 1]),
        ({P: NOWHERE, Q: NOWHERE}, []),
        ({P: 3, Q: 1}, [1]),
    ],
    ids=["all", "a partition without a floor takes all", "no part in it", "floors"],
)
def test_rows_below_the_floors_are_left_out(floors: dict[Partition, int], kept: list[int]) -> None:
    rows = pa.table({"_topic": ["t@1"] * 5, "_partition": [0, 0, 0, 1, 1], "_offset": [0, 1, 2, 0, 1]})
    assert from_floors(rows, floors, {"t": "t@1"}).column("_offset").to_pylist() == kept


class Numbered(RecordSource):
    """A record at every offset. What is asked for at once has one range of each partition."""

    def __init__(self) -> None:
        self.topics: Mapping[str, str] = {}

    def read(self, ranges: tuple[Range, ...]) -> Iterator[Records]:
        assert len({each.partition for each in ranges}) == len(ranges) > 0
        for each in ranges:
            offsets = pa.array(range(each.first, each.end), pa.int64())
            yield Records(each.partition, offsets, pa.nulls(len(offsets), pa.binary()), ())

    def require_same(self, topics: Mapping[str, str]) -> None:
        self.topics = topics


def test_what_was_skipped_is_not_read() -> None:
    source = Numbered()
    cut = WithoutRanges(source, (Range(P, 2, 4), Range(P, 6, 7), Range(Q, 0, 9)))
    found = [(each.partition, each.offsets.to_pylist()) for each in cut.read((Range(P, 1, 9), Range(Q, 3, 10)))]
    assert found == [(P, [1]), (Q, [9]), (P, [4, 5]), (P, [7, 8])]
    assert list(cut.read((Range(Q, 3, 8),))) == []
    cut.require_same({"t": "id"})
    assert source.topics == {"t": "id"}


def test_only_plans_that_hold_something_skipped_leave_it_out() -> None:
    plan = Plan(1, (Block((Range(P, 0, 5), Range(Q, 0, 5)), "a"), Block((Range(P, 5, 9),), "a", number=1)), "f", 0)
    skipped = [Range(P, 8, 20), Range(P, 9, 12), Range(Q, 2, 3), Range(Partition("t", 2), 0, 9)]
    assert skipped_in(plan, skipped) == (Range(P, 8, 20), Range(Q, 2, 3))
    letters = Plan(1, plan.blocks, "f", 0, Kind.LETTERS)
    assert skipped_in(letters, skipped) == (), "letters land in place"
