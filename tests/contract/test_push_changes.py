"""Rows of a push that say what they do to a row of the target: for a wrapped sink, which applies them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import landonce
from landonce.errors import PushRefused


def test_a_push_says_what_each_row_does(tmp_path: Path) -> None:
    """A wrapped sink applies it: an insertion, an update and a deletion leave what the source has."""
    applied: dict[int, str] = {}
    seen: list[tuple[int, str]] = []

    def apply(block: landonce.PushedBlock) -> None:
        for row in block.rows.to_pylist():
            seen.append((row["_offset"], row["_change"]))
            if row["_change"] == "D":
                del applied[row["id"]]
            else:
                applied[row["id"]] = row["word"]

    rows = [
        {"_offset": 0, "_change": "I", "id": 1, "word": "a"},
        {"_offset": 1, "_change": "I", "id": 2, "word": "b"},
        {"_offset": 4, "_change": "U", "id": 1, "word": "c"},
        {"_offset": 9, "_change": "D", "id": 2, "word": None},
    ]
    ledger = f"sqlite:///{tmp_path / 'ledger'}"
    with landonce.ExactlyOnceSink(landonce.wrap(apply, idempotent=False), ledger, name="rows") as once:
        assert once.push(0, rows[:2]).landed == 2
        assert once.push(0, rows, end=10).landed == 2
        wrong = pa.table({"_offset": [10, 11], "_change": ["U", None], "id": [1, 2], "word": ["x", "y"]})
        with pytest.raises(PushRefused, match=r"the row of offset 11 has None in '_change'"):
            once.push(0, wrong)
        with pytest.raises(PushRefused, match=r"the row of offset 10 has 'delete' in '_change'"):
            once.push(0, [{"_offset": 10, "_change": "delete", "id": 1, "word": None}])
        with pytest.raises(PushRefused, match=r"column '_change' holds int64, and not text"):
            once.push(0, [{"_offset": 10, "_change": 1, "id": 1, "word": None}])
        assert once.position(0) == 10
    assert applied == {1: "c"}
    assert seen == [(row["_offset"], row["_change"]) for row in rows]


def test_a_table_may_have_a_column_of_that_name(tmp_path: Path) -> None:
    """It takes rows, whatever is in them."""
    target = f"sqlite:///{tmp_path / 'target.db'}"
    with landonce.ExactlyOnceSink(landonce.sql(target, "words", create=True), name="words") as once:
        assert once.push(0, [{"_offset": 0, "_change": "no kind of change"}]).landed == 1
