"""What Iceberg's types and names ask of the decoder: maps, bytes, times, uuids, aliases and folded case, against oracles
made of the standard library."""

from __future__ import annotations

import base64
import binascii
import json
import re
import time as clock
import uuid
from datetime import date, time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from landonce.read.formats import Collected, Decoded
from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.formats.json.explain import explain
from landonce.read.schema.fields import Field, Schema
from landonce.read.schema.values import can_fit, fit

REJECTED = "rejected"


def run(records: list[bytes], schema: Schema) -> Decoded:
    decoded = JsonDecoder(schema).decode(pa.array(records, pa.binary()))
    decoded.table.validate(full=True)
    assert decoded.table.schema == schema.arrow
    assert sorted(decoded.kept.tolist() + [each.index for each in decoded.rejects]) == list(range(len(records)))
    return decoded


def outcome(records: list[bytes], *fields: Field, fold_case: bool = False) -> list[Any]:
    """Per record its row, or the reason that it has none."""
    decoded = run(records, Schema(fields, fold_case=fold_case))
    result: dict[int, Any] = {each.index: each.reason for each in decoded.rejects}
    result.update(zip(decoded.kept.tolist(), decoded.table.to_pylist(), strict=True))
    return [result[index] for index in sorted(result)]


def values(records: list[str], field: Field) -> list[Any]:
    got = outcome([f'{{"a":{each}}}'.encode() for each in records], field)
    return [each if isinstance(each, str) else each["a"] for each in got]


# ------------------------------------------------------------------------------------------------- values from text

TEXTS = [
    *("", " ", "x", "=", "====", "AA==", "AB==", "AAA=", "AAAA", "AAAAA", "AAAA AAA", "AA=A", "A===", "////", "++++"),
    *("-_-_", "AAAA\n", "\nAAAA", "AAAAé", "aGVsbG8=", "aGVsbG8", "AAECAwQFBgc=", "AAECAwQFBgcI", "AAEC=wQF"),
    *("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    *(
        "12345678-9ABC-def0-1234-56789aBcDeF0",
        "123456789abcdef0123456789abcdef0",
        "{12345678-9abc-def0-1234-56789abcdef0}",
    ),
    *(
        "12345678-9abc-def0-1234-56789abcdefg",
        "12345678-9abc-def0-1234-56789abcdef",
        "x12345678-9abc-def0-1234-56789abcdef",
    ),
    *("00:00:00", "23:59:59.999999", "12:34", "12", "12:34:5", "1:02:03", "24:00:00", "12:60:00", "12:00:60"),
    *("12:34:56.", "12:34:56.1", "12:34:56.123456", "12:34:56.1234560", "12:34:56.1234567", "12:34:56Z", "T12:34:56"),
    *("12:34:56+02:00", "12:34:56\n", "-12:34:56", "12:34:56 PM", "12-34-56"),
]


def oracle(text: str, type_: pa.DataType) -> Any:
    if type_ == pa.uuid():
        plain = re.fullmatch("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text)
        return uuid.UUID(text) if plain else REJECTED
    if type_ == pa.time64("us"):
        found = re.fullmatch(r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?", text)
        if not found or len((found[4] or "").rstrip("0")) > 6:
            return REJECTED
        try:
            return time(int(found[1]), int(found[2]), int(found[3] or 0), int((found[4] or "").ljust(6, "0")[:6]))
        except ValueError:
            return REJECTED
    try:
        got = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return REJECTED
    if "=" in text.rstrip("=") or len(text) % 4:
        return REJECTED
    return REJECTED if pa.types.is_fixed_size_binary(type_) and len(got) != type_.byte_width else got


TEXTUAL = [pa.uuid(), pa.time64("us"), pa.binary(), pa.binary(1), pa.binary(8), pa.binary(16)]


@pytest.mark.parametrize("type_", TEXTUAL, ids=str)
def test_text_becomes_what_the_oracle_makes_of_it(type_: pa.DataType) -> None:
    records = [json.dumps(text) for text in TEXTS]
    together = values(records, Field("a", type_))
    for text, got, wanted in zip(TEXTS, together, [oracle(each, type_) for each in TEXTS], strict=True):
        assert (REJECTED if isinstance(got, str) else got) == wanted, (text, got)
    for record, got in zip(records, together, strict=True):
        assert values([record], Field("a", type_)) == [got]


@pytest.mark.parametrize("type_", TEXTUAL, ids=str)
def test_nothing_but_text_is_taken(type_: pa.DataType) -> None:
    got = values(["1", "1.5", "true", "[]", "{}", '["x"]', "null"], Field("a", type_))
    assert got[-1] is None
    assert all(each.startswith("field 'a' should be ") for each in got[:-1])


@pytest.mark.parametrize("type_", TEXTUAL, ids=str)
def test_what_explain_is_certain_of_arrow_refuses(type_: pa.DataType) -> None:
    schema = Schema((Field("a", type_), Field("m", pa.map_(pa.string(), type_))))
    decoder = JsonDecoder(schema)
    for text in [*map(json.dumps, TEXTS), "1", "[]", "{}", "[1]", '{"x":1}', '{"x":{}}', "true"]:
        for record in (f'{{"a":{text}}}', f'{{"m":{text}}}', f'{{"m":{{"k":{text}}}}}'):
            if explain(record, schema).certain:
                assert decoder._read(pa.array([record.encode()], pa.binary()), frozenset()) is None


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=40) | st.none(), max_size=20))
def test_any_bytes_come_back(chunks: list[bytes | None]) -> None:
    written = ["null" if each is None else json.dumps(base64.b64encode(each).decode()) for each in chunks]
    assert values(written, Field("a", pa.binary())) == chunks


@settings(max_examples=50)
@given(st.lists(st.uuids() | st.none(), max_size=20), st.lists(st.times() | st.none(), max_size=20))
def test_any_uuid_and_any_time_come_back(uuids: list[uuid.UUID | None], times: list[time | None]) -> None:
    assert values(["null" if each is None else f'"{each}"' for each in uuids], Field("a", pa.uuid())) == uuids
    written = ["null" if each is None else f'"{each.isoformat()}"' for each in times]
    assert values(written, Field("a", pa.time64("us"))) == times


def test_the_reasons_say_what_was_wanted() -> None:
    assert values(['"x"'], Field("a", pa.uuid())) == ["field 'a' is not a valid UUID"]
    assert values(['"x"'], Field("a", pa.binary())) == ["field 'a' is not valid base64"]
    assert values(['"AAAA"'], Field("a", pa.binary(4))) == ["field 'a' is not valid base64 of 4 bytes"]
    assert values(['"25:00:00"'], Field("a", pa.time64("us"))) == ["field 'a' is not a valid TIME"]
    assert values(["1"], Field("a", pa.uuid())) == ["field 'a' should be UUID but is an integer"]
    assert values(["null"], Field("a", pa.uuid(), required=True)) == ["missing required field 'a'"]


# ------------------------------------------------------------------------------------------------- maps

COUNTS = Field("a", pa.map_(pa.string(), pa.int64()))


def test_maps() -> None:
    got = values(
        ['{"x":1,"y":null}', "{}", "null", ' { "x" : 1 , "}{,:" : 2 } ', r'{"q\"\\":1,"\u0041":2,"é":3}', '{"":0}'],
        COUNTS,
    )
    assert got == [
        [("x", 1), ("y", None)],
        [],
        None,
        [("x", 1), ("}{,:", 2)],
        [('q"\\', 1), ("A", 2), ("é", 3)],
        [("", 0)],
    ]


def test_what_is_no_map_is_rejected_alone() -> None:
    cases = {
        "[]": "field 'a' should be MAP<STRING, BIGINT> but is an array",
        '[{"key":"x","value":1}]': "field 'a' should be MAP<STRING, BIGINT> but is an array",
        '"x"': "field 'a' should be MAP<STRING, BIGINT> but is a string",
        '{"x":"y"}': "field 'a[]' should be BIGINT but is a string",
        '{"x":1.5}': "field 'a[]' should be BIGINT but is a number with a fraction",
        '{"x":1,"x":2}': "field 'a' holds a key twice",
        r'{"x":1,"\u0078":2}': "field 'a' holds a key twice",
        '{"entries":[{"key":"x","value":1}]}': "field 'a[]' should be BIGINT but is an array",
        '{"x"}': "not valid JSON: Expecting ':' delimiter at character 9",
        '{"x":1:2}': "not valid JSON: Expecting ',' delimiter at character 11",
        '{"x",1}': "not valid JSON: Expecting ':' delimiter at character 9",
        "{null}": "not valid JSON: Expecting property name enclosed in double quotes at character 6",
        "{null:1}": "not valid JSON: Expecting property name enclosed in double quotes at character 6",
        "{1:1}": "not valid JSON: Expecting property name enclosed in double quotes at character 6",
        '{"x":1]': "not valid JSON: Expecting ',' delimiter at character 11",
    }
    good = '{"x":1}'
    mixed = [each for bad in cases for each in (bad, good)]
    assert values(mixed, COUNTS) == [each for reason in cases.values() for each in (reason, [("x", 1)])]
    assert [values([bad], COUNTS) for bad in cases] == [[reason] for reason in cases.values()]


def test_maps_may_be_anywhere() -> None:
    leaf = pa.map_(pa.string(), pa.field("value", pa.date32(), nullable=False))
    deep = pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.struct([("n", leaf), ("s", pa.string())]))))])
    got = values(
        [
            '{"m":{"x":[{"n":{"k":"1970-01-02"},"s":"{}"},{"n":null},null],"y":null,"z":[]}}',
            '{"m":{}}',
            "{}",
            '{"m":{"x":[{"n":{"k":null}}]}}',
            '{"m":{"x":[{"n":{"k":"nope"}}]}}',
            '{"m":{"x":[{"n":{"k":"1970-01-01","k":"1970-01-01"}}]}}',
            '{"m":{"x":{"n":{}}}}',
        ],
        Field("a", deep),
    )
    first = [{"n": [("k", date(1970, 1, 2))], "s": "{}"}, {"n": None, "s": None}, None]
    assert got == [
        {"m": [("x", first), ("y", None), ("z", [])]},
        {"m": []},
        {"m": None},
        "field 'a' holds a null",
        "field 'a' is not a valid DATE",
        "field 'a' holds a key twice",
        "field 'a.m[]' should be ARRAY<STRUCT<n: MAP<STRING, DATE>, s: STRING>> but is an object",
    ]


def test_keys_that_are_floats_are_compared_as_floats() -> None:
    texts = [
        '{"0.1":1,"-0.0":2}',
        '{"1.0":1,"1":2}',
        '{"0":1,"-0":2}',
        '{"16777217":1}',
        '{"1e39":1}',
        '{"1e-50":1}',
        '{"NaN":1}',
    ]
    found = values(texts, Field("a", pa.map_(pa.float32(), pa.int64())))
    assert found[:3] == [[(pytest.approx(0.1), 1), (0.0, 2)], *["field 'a' holds a key twice"] * 2]
    assert found[3:] == ["field 'a' holds a key that is not a FLOAT, or that it cannot hold"] * 4


def test_keys_may_be_of_any_type_that_is_written_as_text() -> None:
    key = uuid.uuid4()
    assert values(
        [json.dumps({str(key): 1}), '{"x":1}', json.dumps({str(key): 1, str(key).upper(): 2})],
        Field("a", pa.map_(pa.uuid(), pa.int64())),
    ) == [
        [(key, 1)],
        "field 'a' is not a valid UUID",
        "field 'a' holds a key twice",
    ]
    with pytest.raises(TypeError, match="keys of a map are strings in JSON"):
        JsonDecoder(Schema((Field("a", pa.map_(pa.list_(pa.int8()), pa.int64())),)))


# ------------------------------------------------------------------------------------------------- names


def test_aliases_take_the_place_of_the_name() -> None:
    field = Field("a", pa.int64(), aliases=("x", "y"))
    got = outcome(
        [b'{"x":1}', b'{"y":2}', b'{"a":3}', b'{"a":{},"x":4,"a":[]}', b'{"x":1,"y":null}', b'{"x":1,"x":1}'], field
    )
    assert got == [
        {"a": 1},
        {"a": 2},
        {"a": None},
        {"a": 4},
        "field 'a' occurs under more than one name",
        "field 'a' occurs more than once",
    ]


def test_names_may_be_swapped() -> None:
    fields = (Field("a", pa.int64(), aliases=("b",)), Field("b", pa.string(), aliases=("a",)))
    assert outcome([b'{"a":"text","b":1}'], *fields) == [{"a": 1, "b": "text"}]


def test_aliases_inside() -> None:
    inner = pa.struct([("city", pa.string()), ("zip", pa.string())])
    field = Field(
        "at",
        pa.struct([("home", inner), ("list", pa.list_(inner)), ("map", pa.map_(pa.string(), inner))]),
        inner_aliases=(
            (("home", "city"), ("town", "city")),
            (("list", "element", "city"), ("place",)),
            (("map", "value", "city"), ("Stadt",)),
        ),
    )
    record = {"at": {"home": {"town": "A"}, "list": [{"place": "B"}, {"city": "!"}], "map": {"town": {"Stadt": "C"}}}}
    one, two, three = ({"city": each, "zip": None} for each in "ABC")
    assert outcome([json.dumps(record).encode()], field) == [
        {"at": {"home": one, "list": [two, {"city": None, "zip": None}], "map": [("town", three)]}}
    ]


def test_folded_case() -> None:
    field = Field("Name", pa.struct([("Inner", pa.map_(pa.string(), pa.int64()))]))
    got = outcome(
        [
            b'{"NAME":{"inner":{"Key":1,"KEY":2}}}',
            b'{"name":{"INNER":{}}}',
            rb'{"\u004eAME":{"\u0069NNER":{"x":1}}}',
            b'{"name":null,"Name":{}}',
            b'{"Name":{"inner":{},"Inner":{}}}',
            b'{"nam\xc3\xa9":{}}',
        ],
        field,
        fold_case=True,
    )
    assert got == [
        {"Name": {"Inner": [("Key", 1), ("KEY", 2)]}},
        {"Name": {"Inner": []}},
        {"Name": {"Inner": [("x", 1)]}},
        "field 'Name' occurs under more than one name",
        "field 'Name.Inner' occurs under more than one name",
        {"Name": None},
    ]
    assert outcome(['{"ÉTÉ":1}'.encode()], Field("été", pa.int64()), fold_case=True) == [{"été": 1}]


def test_without_folding_case_matters() -> None:
    assert outcome([b'{"A":1}'], Field("a", pa.int64())) == [{"a": None}]


def test_ticks_are_found_under_any_name() -> None:
    field = Field("At", pa.timestamp("us", "UTC"), scale=3, aliases=("ts",))
    records = [b'{"TS":%s}' % (b'"1970-01-01"' if each % 2 else b"0") for each in range(1000)]
    assert {str(each["At"]) for each in outcome(records, field, fold_case=True)} == {"1970-01-01 00:00:00+00:00"}


@pytest.mark.parametrize(
    ("fields", "fold_case"),
    [
        ((Field("a", pa.int64()), Field("A", pa.int64())), True),
        ((Field("a", pa.int64(), aliases=("x",)), Field("b", pa.int64(), aliases=("x",))), False),
        ((Field("a", pa.int64()), Field("b", pa.int64(), aliases=("a",))), False),
        ((Field("s", pa.struct([("a", pa.int64()), ("A", pa.int64())])),), True),
        ((Field("s", pa.list_(pa.struct([("a", pa.int8()), ("b", pa.int8())])), inner_aliases=((("element", "b"), ("a",)),)),), False),
    ],
)  # fmt: skip
def test_a_name_that_means_two_fields_is_refused(fields: tuple[Field, ...], fold_case: bool) -> None:
    with pytest.raises(ValueError, match="must mean one field"):
        Schema(fields, fold_case=fold_case)


def test_the_fingerprint_covers_names_and_maps() -> None:
    def of(*arguments: Any, **options: Any) -> str:
        return Schema((Field("a", *arguments, **options),)).fingerprint()

    inner = pa.struct([("x", pa.int64())])
    prints = [
        of(inner),
        of(inner, aliases=("b",)),
        of(inner, inner_aliases=((("x",), ("b",)),)),
        Schema((Field("a", inner),), fold_case=True).fingerprint(),
        of(pa.map_(pa.string(), pa.int64())),
        of(pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
        of(pa.map_(pa.string(), pa.int32())),
        of(pa.uuid()),
        of(pa.binary(16)),
        of(pa.binary()),
    ]
    assert len(set(prints)) == len(prints)


# ------------------------------------------------------------------------------------------------- against the library

NESTED = Schema(
    (
        Field("Id", pa.int64(), aliases=("Id", "key")),
        Field("m", pa.map_(pa.string(), pa.struct([("v", pa.int64()), ("M", pa.map_(pa.string(), pa.string()))]))),
        Field("l", pa.list_(pa.map_(pa.string(), pa.bool_()))),
    ),
    fold_case=True,
)


class Pairs(list[tuple[str, Any]]):
    pass


def plain(value: Any, type_: pa.DataType, place: tuple[str, ...] = ()) -> Any:
    """What must become of a value, by the standard library alone. Raises ValueError for what must be rejected."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        known = {child.name.lower(): child for child in type_}
        return members(value, {name: (child.name, child.type) for name, child in known.items()})
    if pa.types.is_map(type_):
        if not isinstance(value, Pairs) or len({key for key, _ in value}) < len(value):
            raise ValueError
        return [(key, plain(item, type_.item_type)) for key, item in value]
    if pa.types.is_list(type_):
        if type(value) is not list:
            raise ValueError
        return [plain(item, type_.value_type) for item in value]
    wanted = {pa.int64(): int, pa.string(): str, pa.bool_(): bool}[type_]
    if type(value) is not wanted or (wanted is int and not -(2**63) <= value < 2**63):
        raise ValueError
    return value


def members(value: Any, known: dict[str, tuple[str, pa.DataType]]) -> dict[str, Any]:
    if not isinstance(value, Pairs):
        raise ValueError
    row = dict.fromkeys(name for name, _ in known.values())
    seen = set()
    for key, item in value:
        if key.lower() in known:
            name, type_ = known[key.lower()]
            if name in seen:
                raise ValueError
            seen.add(name)
            row[name] = plain(item, type_)
    return row


def expected(record: bytes) -> Any:
    def refuse(_: str) -> None:
        raise ValueError

    try:
        parsed = json.loads(record.decode(), object_pairs_hook=Pairs, parse_constant=refuse)
        if re.search("[\ud800-\udfff]", json.dumps(parsed, ensure_ascii=False)):
            raise ValueError
        named = {"id": "Id", "key": "Id", "m": "m", "l": "l"}
        types = {field.name: field.type for field in NESTED.fields}
        return members(parsed, {name: (field, types[field]) for name, field in named.items()})
    except (ValueError, RecursionError):
        return REJECTED


keys = st.sampled_from(
    ["id", "ID", "Id", "key", "m", "M", "l", "L", "v", "V", "x", "entries", "value", '"', "\\", "{", "é"]
)
scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "}", '"', "\\", ",:", "[{", "\n"])
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
texts = st.dictionaries(
    st.text("ab", max_size=1), st.dictionaries(st.text("ab", max_size=2), st.text(max_size=3), max_size=3), max_size=3
)
fitting = st.fixed_dictionaries(
    {},
    optional={
        "Id": st.integers(-5, 5) | st.none(),
        "KEY": st.integers(-5, 5),
        "m": st.dictionaries(st.text(max_size=2), st.fixed_dictionaries({}, optional={"V": st.integers(0, 9), "m": st.dictionaries(st.text(max_size=2), st.text(max_size=2))}) | st.none(), max_size=3),
        "L": st.lists(st.dictionaries(st.text(max_size=2), st.booleans()), max_size=3),
        "other": trees,
    },
)  # fmt: skip


@st.composite
def written(draw: st.DrawFn) -> bytes:
    value = draw(fitting | st.dictionaries(keys, trees, max_size=4))
    text = json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :\n")])),
    )
    return text.encode("utf-8", "surrogatepass")


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    record = draw(written())
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(record)))
        put = draw(
            st.sampled_from(
                [b"", b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b" ", b"1", b"null", b'"x"', b'"m":{"x":{}}']
            )
        )
        record = record[:at] + put + record[at + draw(st.integers(0, 2)) :]
    return record


@given(st.lists(written() | mutated(), min_size=1, max_size=8))
@example([b'{"m":{"a":{"m":{"k":"v"}}}}', b'{"m":{"a"}}', b'{"M":{"a":{"M":{null}}}}'])
@example([b'{\\"m":{"a":{}}}', b'{"m":{"a":{}}}'])
def test_any_record_becomes_what_the_library_makes_of_it(records: list[bytes]) -> None:
    wanted = [expected(record) for record in records]
    decoder = JsonDecoder(NESTED)
    for company in (records, *([record] for record in records)):
        decoded = decoder.decode(pa.array(company, pa.binary()))
        decoded.table.validate(full=True)
        got: dict[int, Any] = {each.index: each.reason for each in decoded.rejects}
        got.update(zip(decoded.kept.tolist(), decoded.table.to_pylist(), strict=True))
        for at, record in enumerate(company):
            want = wanted[at] if company is records else expected(record)
            assert (REJECTED if isinstance(got[at], str) else got[at]) == want, (record, got[at])


@given(mutated() | written())
def test_explain_is_certain_only_where_arrow_refuses(record: bytes) -> None:
    decoder = JsonDecoder(NESTED)
    alone = pa.array([record], pa.binary())
    is_clean = decoder._screen(Collected(decoder._arrow), alone)[1].equals(alone)
    if is_clean and explain(record.decode(), NESTED).certain:
        assert decoder._read(alone, frozenset()) is None


# ------------------------------------------------------------------------------------------------- cost


@pytest.mark.timeout(60)
def test_maps_and_folded_names_cost_no_loop_over_records() -> None:
    records = pa.array(
        [b'{"ID":%d,"m":{"a":{"v":1},"b":{"V":2}},"l":[{"x":true}]}' % each for each in range(60_000)], pa.binary()
    )
    decoder = JsonDecoder(NESTED)
    decoder.decode(records.slice(0, 100))
    began = clock.process_time()
    decoded = decoder.decode(records)
    assert clock.process_time() - began < 5
    assert decoded.table.column("Id").to_pylist() == list(range(60_000))
    assert not decoded.rejects


# ------------------------------------------------------------------------------------------------- what SQL yields


def test_what_sql_yields_fits_the_new_types() -> None:
    some = uuid.uuid4()
    cases = [
        (pa.array([str(some), "x", None]), pa.uuid(), [some, None, None], [1]),
        (pa.array([some.bytes, b"x", None]), pa.uuid(), [some, None, None], [1]),
        (pa.array(["12:34", "x", None]), pa.time64("us"), [time(12, 34), None, None], [1]),
        (pa.array([b"ab", b"abc"]), pa.binary(2), [b"ab", None], [1]),
        (pa.array([[("k", 1)], [("k", 2**40)]], pa.map_(pa.string(), pa.int64())), pa.map_(pa.string(), pa.int32()), [[("k", 1)], None], [1]),
    ]  # fmt: skip
    for array, type_, wanted, bad in cases:
        assert can_fit(array.type, Field("a", type_))
        fitted, faults = fit(array, Field("a", type_))
        assert fitted.to_pylist() == wanted
        assert sorted({int(at) for fault in faults for at in fault.rows.nonzero()[0]}) == bad
    strict = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))
    _, faults = fit(pa.array([[("k", 1)], [("k", None)]], pa.map_(pa.string(), pa.int64())), Field("a", strict))
    assert [fault.rows.tolist() for fault in faults] == [[False, True]]
    assert not can_fit(pa.int64(), Field("a", pa.uuid()))
    assert not can_fit(pa.string(), Field("a", strict))
