"""Values that are kept as JSON text: exactly the bytes of the value, at every place, or a reject; judged by the standard library."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.formats.json.structure import MOST_LEVELS
from landonce.read.schema.ddl import parse_schema, spelled_schema
from landonce.read.schema.fields import JSON, Schema

PLACES = (
    "id BIGINT, j JSON, s STRUCT<a: JSON, b: INT>, l ARRAY<JSON>, m MAP<STRING, JSON>, "
    "ls ARRAY<STRUCT<x: JSON, n: INT>>, ml MAP<STRING, ARRAY<JSON>>"
)


def decode(schema: str | Schema, *records: bytes | str) -> tuple[list[dict[str, Any]], list[str]]:
    parsed = parse_schema(schema) if isinstance(schema, str) else schema
    values = pa.array([each if isinstance(each, bytes) else each.encode() for each in records], pa.binary())
    decoded = JsonDecoder(parsed).decode(values)
    decoded.table.validate(full=True)
    assert decoded.table.schema == parsed.arrow
    return decoded.table.to_pylist(maps_as_pydicts="strict"), [reason for _, reason in decoded.rejects]


@pytest.mark.parametrize(
    "text",
    [
        *('{"a" : [1, 2.50]}', "[ ]", "{}", '"plain"', '"q\\"u\\\\o\\u0000te"', "1.50", "-0", "1E+2", "true", "false"),
        *("123456789012345678901234567890", '{"k":1,"k":2}', '["NaN", "I", "-x"]', '"é\U0001f600"', '{"a":null}'),
    ],
)
def test_the_text_of_a_value_of_any_kind(text: str) -> None:
    record = (
        f'{{"id":1, "j" : {text} , "s":{{"a":{text},"b":2}},"l":[{text}, {text} ,null],"m":{{"k":{text} , "n":null}},'
        f'"ls":[{{"x":{text}}},{{"n":1}},null],"ml":{{"q":[{text}],"r":[]}}}}'
    )
    rows, rejects = decode(PLACES, record)
    assert not rejects
    assert rows == [
        {
            "id": 1,
            "j": text,
            "s": {"a": text, "b": 2},
            "l": [text, text, None],
            "m": {"k": text, "n": None},
            "ls": [{"x": text, "n": None}, {"x": None, "n": 1}, None],
            "ml": {"q": [text], "r": []},
        }
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("NaN", "field 'j' holds NaN or Infinity"),
        ('{"a":[1, -Infinity]}', "field 'j' holds NaN or Infinity"),
        ("[Inf]", "not valid JSON: Expecting value at character 7"),
        ('{"a":1]', "not valid JSON: Expecting ',' delimiter at character 12"),
        ("1 2", "not valid JSON: Expecting ',' delimiter at character 8"),
        ("", "not valid JSON: Expecting value at character 6"),
        ('"a":2', "not valid JSON: Expecting ',' delimiter at character 9"),
        ("nul", "not valid JSON: Expecting value at character 6"),
        ('1,"j":2', "field 'j' occurs more than once"),
        ("1e400", "holds a number beyond the range of a double"),
        ('"\\ud800"', "holds an escaped surrogate without its other half"),
        ("[" * (MOST_LEVELS + 1) + "]" * (MOST_LEVELS + 1), "field 'j' is nested too deeply"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_not_json_is_refused_and_its_neighbours_land(value: str, reason: str) -> None:
    rows, rejects = decode("j JSON", '{"j":[1]}', f'{{"j": {value}}}', '{"j":"x"}')
    assert rows == [{"j": "[1]"}, {"j": '"x"'}]
    assert rejects == [reason]


def test_the_deepest_value() -> None:
    deepest = "[" * MOST_LEVELS + "]" * MOST_LEVELS
    assert decode("s STRUCT<j: JSON>", f'{{"s":{{"j":{deepest}}}}}') == ([{"s": {"j": deepest}}], [])


def test_a_record_cannot_name_the_text_of_another() -> None:
    """Without the unknown name, the number of a text could be sent."""
    rows, _ = decode("j JSON, k JSON", '{"j":{"number":1},"k":5}', '{"j":{"\\u0000landonce":2},"k":"x"}')
    assert rows == [{"j": '{"number":1}', "k": "5"}, {"j": '{"\\u0000landonce":2}', "k": '"x"'}]


def test_required() -> None:
    rows, rejects = decode("j JSON NOT NULL, s STRUCT<a: JSON NOT NULL>", '{"j":0}', '{"j":null}', '{"j":1,"s":{}}')
    assert rows == [{"j": "0", "s": None}]
    assert rejects == ["missing required field 'j'", "field 's' holds a null"]


def test_it_is_declared_spelled_and_part_of_the_fingerprint() -> None:
    declared = parse_schema(PLACES)
    assert spelled_schema(declared) == PLACES
    assert declared.by_name()["j"].type == JSON
    assert pa.types.is_string(declared.arrow.field("j").type)
    assert parse_schema("j JSON").fingerprint() != parse_schema("j STRING").fingerprint()
    assert parse_schema("s STRUCT<j: JSON>").fingerprint() != parse_schema("s STRUCT<j: STRING>").fingerprint()


spaces = st.text(" \t\r\n", max_size=2)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def written(draw: st.DrawFn) -> str:
    """A value as some producer may write it."""
    apart = (draw(spaces) + "," + draw(spaces), draw(spaces) + ":" + draw(spaces))
    return json.dumps(draw(values), ensure_ascii=draw(st.booleans()), separators=apart)


@given(st.lists(st.tuples(written(), written(), st.lists(written(), max_size=3), spaces), min_size=1, max_size=8))
def test_every_text_of_a_block(drawn: list[tuple[str, str, list[str], str]]) -> None:
    records = [
        f'{{"j":{space}{one}{space},"s":{{"b":1,"a":{other}}},{space}"l":[{space}{f"{space},".join(items)}{space}],'
        f'"m":{{"x":{other}{space},"y":{space}{one}}}}}'
        for one, other, items, space in drawn
    ]
    rows, rejects = decode(PLACES, *records)

    def text(each: str) -> str | None:
        return None if each == "null" else each

    assert not rejects
    for (one, other, items, _), row in zip(drawn, rows, strict=True):
        assert row["j"] == text(one)
        assert row["s"] == {"a": text(other), "b": 1}
        assert row["l"] == [text(each) for each in items]
        assert row["m"] == {"x": text(other), "y": text(one)}


def _strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in members}) < len(members):
            raise ValueError("repeated")
        return dict(members)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=pairs)


@given(
    st.text('{}[]:,"\\ 1-nullNaIeE.0jsab', max_size=14),
    st.sampled_from(['{{"j":{},"a":1}}', '{{"s":{{"a":{}}},"j":2}}', '{{"l":[1,{}]}}', '{{"m":{{"k":{}}}}}']),
)
@example('1},"x":{"y":2', '{{"j":{},"a":1}}')
@example('1],"x":[2', '{{"l":[1,{}]}}')
@example('"a":{"b":1}', '{{"j":{},"a":1}}')
def test_broken_text_never_lands_as_something_else(value: str, around: str) -> None:
    """Whatever is landed, the standard library reads the same; what it reads lands, unless the schema refuses it."""
    record = around.format(value)
    rows, rejects = decode("j JSON, s STRUCT<a: JSON>, l ARRAY<JSON>, m MAP<STRING, JSON>", '{"j":0}', record, "{}")
    assert (rows[0]["j"], rows[-1]["j"]) == ("0", None)
    try:
        read = _strict(record)
    except ValueError:
        assert len(rows) == 2 or "repeated" in str(_raised(record))
        return
    kinds = {"s": dict, "l": list, "m": dict}
    fits = all(read.get(name) is None or isinstance(read[name], kind) for name, kind in kinds.items())
    if not fits or "e" in value or "E" in value:  # a number beyond a double
        return
    assert not rejects
    row = rows[1]
    held = {
        "j": _parsed(row["j"]),
        "s": None if row["s"] is None else _parsed(row["s"]["a"]),
        "l": None if row["l"] is None else [_parsed(each) for each in row["l"]],
        "m": None if row["m"] is None else {key: _parsed(each) for key, each in row["m"].items()},
    }
    assert held == {**dict.fromkeys("jslm"), **_expected(read)}


def _raised(record: str) -> ValueError:
    try:
        _strict(record)
    except ValueError as error:
        return error
    raise AssertionError(record)


def _expected(read: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in read.items() if name in ("j", "s", "l", "m")}
    return {**known, "s": known["s"].get("a")} if known.get("s") is not None else known


def _parsed(text: str | None) -> Any:
    return None if text is None else json.loads(text)
