"""What a commit says beyond its files: through which moment it is valid, which rows are the last; and which rows a table takes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from landonce.engine.committing import highest, valid_through
from landonce.protocol.ledger import LedgerState, Position
from landonce.protocol.ranges import Partition
from landonce.protocol.receipt import Receipt
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
