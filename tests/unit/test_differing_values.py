"""Values that differ, and values that only look different."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landonce.read.schema.fields import Field
from landonce.read.schema.values import fit
from landonce.verify.values import as_type, differing, shown

WORD = UUID("61f0c404-5cb3-11e7-907b-a6006ad3dba0")
UTC = pa.timestamp("us", tz="UTC")


def rows(expected: pa.Array, found: pa.Array, **how: Any) -> list[int]:
    listed: list[int] = differing(expected, found, **how).tolist()
    return listed


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (pa.array([1, None], pa.int8()), pa.array([1, None], pa.int64())),
        (pa.array(["a", None]), pa.array(["a", None]).dictionary_encode()),
        (pa.array(["a"]), pa.array(["a"], pa.large_string())),
        (pa.array([WORD.bytes], pa.uuid()), pa.array([WORD.bytes], pa.binary())),
        (pa.array([b"ab"], pa.binary(2)), pa.array([b"ab"], pa.binary())),
        (pa.array([0, 2**32 - 1], pa.timestamp("s", tz="UTC")), pa.array([0, 2**32 - 1], pa.uint32())),
        (pa.array([5], UTC), pa.array([5], pa.timestamp("us", tz="Europe/Berlin"))),
        (pa.array([5], UTC), pa.array([5000], pa.timestamp("ns"))),
        (pa.array([5], pa.timestamp("ns")), pa.array([5], pa.timestamp("ns", tz="Asia/Tokyo"))),
        (pa.array([5], pa.time64("us")), pa.array([5], pa.int64())),
        (pa.array([float("nan"), 0.0, None]), pa.array([float("nan"), -0.0, None])),
        (pa.array([Decimal("1.50")], pa.decimal128(5, 2)), pa.array([Decimal("1.5")], pa.decimal128(3, 1))),
        (pa.array([[1], None, []], pa.list_(pa.int8())), pa.array([[1], None, []], pa.list_(pa.int64()))),
        (
            pa.array([{"a": [{"b": 5}]}, None], pa.struct([("a", pa.list_(pa.struct([("b", UTC)])))])),
            pa.array([{"a": [{"b": 5}]}, None], pa.struct([("a", pa.list_(pa.struct([("b", pa.timestamp("us"))])))])),
        ),
        (
            pa.array([[("a", 1), ("b", 2)]], pa.map_(pa.string(), pa.int64())),
            pa.array([[("b", 2), ("a", 1)]], pa.map_(pa.string(), pa.int64())),
        ),
    ],
    ids=lambda each: str(each.type),
)
def test_the_same_value_in_another_form_is_no_difference(expected: pa.Array, found: pa.Array) -> None:
    assert rows(expected, found) == []
    again = pa.concat_arrays([found, found])
    assert rows(expected, again.slice(len(found))) == []


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (pa.array([None], pa.int64()), pa.array([0], pa.int64())),
        (pa.array([0.1]), pa.array([0.1], pa.float32())),
        (pa.array([1], pa.int8()), pa.array([300], pa.int64())),
        (pa.array(["a"]), pa.array(["a "])),
        (pa.array(["1"]), pa.array([1])),
        (pa.array([5], UTC), pa.array([5001], pa.timestamp("ns"))),
        (pa.array([5], pa.timestamp("ns")), pa.array([6], pa.timestamp("ns"))),
        (pa.array([[]], pa.list_(pa.int8())), pa.array([None], pa.list_(pa.int8()))),
        (pa.array([[1, None]], pa.list_(pa.int8())), pa.array([[1]], pa.list_(pa.int8()))),
        (pa.array([{"a": 1}]), pa.array([{"a": 2}])),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), pa.array([[("a", 2)]], pa.map_(pa.string(), pa.int64()))),
    ],
    ids=lambda each: str(each.type),
)  # fmt: skip
def test_another_value_is_a_difference(expected: pa.Array, found: pa.Array) -> None:
    assert rows(expected, found) == [0]
    assert shown(expected, 0)
    assert shown(found, 0)


@given(st.lists(st.integers(0, 2)), st.data())
def test_exactly_the_rows_that_differ_are_found(values: list[int], data: st.DataObject) -> None:
    many = values * 40
    changed = data.draw(st.sets(st.integers(0, max(0, len(many) - 1)), max_size=5)) if many else set()
    found = [each + 1 if at in changed else each for at, each in enumerate(many)]
    assert rows(pa.array(many, pa.int64()), pa.array(found, pa.int64())) == sorted(changed)


def test_doubles_that_were_written_as_floats() -> None:
    held = pa.array([np.float32(0.1), np.float32(0.2)], pa.float32()).cast(pa.float64())
    assert rows(pa.array([0.1, 0.2]), held) == [0, 1]
    assert rows(pa.array([0.1, 0.2]), held, single=True) == []
    assert rows(pa.array([0.1, 0.3]), held, single=True) == [1]


def test_what_cannot_be_held_is_no_other_value() -> None:
    assert as_type(pa.array([300]), pa.int8()) is None


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (pa.array([None], pa.string()), "NULL"),
        (pa.array(['a"b']), '"a\\"b"'),
        (pa.array([b"\x00\xff"]), "0x00ff"),
        (pa.array([dt.date(2020, 1, 2)]), "2020-01-02"),
        (pa.array([1], pa.timestamp("ns")), "1970-01-01 00:00:00.000000001"),
        (pa.array([[{"a": None}]]), '[{"a": NULL}]'),
        (pa.array(["x" * 500]), '"' + "x" * 159 + "… (502 characters)"),
    ],
    ids=str,
)
def test_how_values_are_shown(array: pa.Array, text: str) -> None:
    assert shown(array, 0) == text


@pytest.mark.parametrize("type_", [pa.int64(), pa.decimal128(20, 0)], ids=str)
def test_an_integer_of_an_expression_is_never_rounded(type_: pa.DataType) -> None:
    """What Spark yields, for `transform.select` and in streaming queries."""
    values = pa.array([2**53, 2**53 + 1, None], pa.int64()).cast(type_)
    fitted, faults = fit(values, Field("a", pa.float64()))
    assert fitted[0].as_py() == 2.0**53
    assert [np.flatnonzero(each.rows).tolist() for each in faults] == [[1]]
