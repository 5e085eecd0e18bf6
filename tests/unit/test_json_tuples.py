"""Arrays whose items have types of their own, and maps with integers as keys; judged by the standard library."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.schema.fields import Field, Schema

POINT = pa.struct([pa.field("1", pa.int8(), nullable=False), pa.field("2", pa.string(), nullable=False)])
TUPLE = pa.struct(
    [("1", pa.int64()), ("2", pa.list_(pa.field("item", POINT, nullable=False))), ("3", pa.map_(pa.string(), POINT))]
)
SCHEMA = Schema((Field("id", pa.int64()), Field("t", TUPLE)))  # fmt: skip

small = st.integers(-130, 130) | st.text(max_size=2) | st.none()
points = st.lists(small, max_size=3) | small
tuples = st.lists(
    small | st.lists(points, max_size=2) | st.dictionaries(st.text(max_size=2), points, max_size=2), max_size=4
)


def is_point(value: Any) -> bool:
    return isinstance(value, list) and list(map(type, value)) == [int, str] and -128 <= value[0] <= 127


def fits(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, list) or len(value) != 3:
        return False
    number, listed, mapped = value
    return (
        (number is None or type(number) is int)
        and (listed is None or (isinstance(listed, list) and all(map(is_point, listed))))
        and (mapped is None or (isinstance(mapped, dict) and all(each is None or is_point(each) for each in mapped.values())))
    )  # fmt: skip


def named(value: Any) -> Any:
    """As Arrow shows a value that fits."""
    if value is None:
        return None
    number, listed, mapped = value
    point = lambda each: None if each is None else {"1": each[0], "2": each[1]}  # noqa: E731
    points = None if mapped is None else [(key, point(each)) for key, each in mapped.items()]
    return {"1": number, "2": None if listed is None else [point(each) for each in listed], "3": points}


@given(st.lists(tuples | small, min_size=1, max_size=20), st.sampled_from([None, 1]))
@example([[1, [[5, "],[{"]], {'"': [1, "}"]}], [], [[]], [1, 2, 3, 4]], None)
def test_an_array_for_a_struct_with_numbers_as_names(values: list[Any], indent: int | None) -> None:
    records = [json.dumps({"t": each, "id": at}, indent=indent).encode() for at, each in enumerate(values)]
    decoded = JsonDecoder(SCHEMA).decode(pa.array(records, pa.binary()))
    assert {each.index for each in decoded.rejects} == {at for at, each in enumerate(values) if not fits(each)}
    landed = {row["id"]: row["t"] for row in decoded.table.to_pylist()}
    assert landed == {at: named(each) for at, each in enumerate(values) if fits(each)}


@pytest.mark.parametrize(
    "text", ["[1 [] {}]", "[1,[],{}", "[1,,[],{}]", "[,1,[],{}]", '["1":1,[],{}]', "[1,[],{},]", "1,[],{}]"]
)
def test_what_is_no_array_does_not_become_one(text: str) -> None:
    decoded = JsonDecoder(SCHEMA).decode(pa.array([f'{{"t":{text},"id":1}}'.encode(), b'{"t":[1,[],{}]}'], pa.binary()))
    assert [each.index for each in decoded.rejects] == [0]


def test_an_object_with_the_numbers_is_the_same() -> None:
    records = [b'{"t":{"1":1,"2":[{"1":2,"2":"x"}],"3":{"k":[3,"y"]}}}', b'{"t":[1,[[2,"x"]],{"k":[3,"y"]}]}']
    decoded = JsonDecoder(SCHEMA).decode(pa.array(records, pa.binary()))
    first, second = decoded.table.column("t").to_pylist()
    assert first == second


@pytest.mark.parametrize(
    ("key", "lands"), [("0", True), ("-9223372036854775808", True), ("9223372036854775808", False), ("01", False), ("-0", False),
                       ("+1", False), ("1.0", False), (" 1", False), ("", False), ("x", False)],
)  # fmt: skip
def test_an_integer_is_a_key_in_one_spelling(key: str, lands: bool) -> None:
    decoder = JsonDecoder(Schema((Field("m", pa.map_(pa.int64(), pa.string())),)))
    decoded = decoder.decode(pa.array([json.dumps({"m": {key: "v", "5": "w"}}).encode(), b'{"m":{}}'], pa.binary()))
    assert decoded.table.column("m").to_pylist() == ([[(int(key), "v"), (5, "w")]] if lands else []) + [[]]
