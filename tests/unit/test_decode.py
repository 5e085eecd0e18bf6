"""The decoder against an oracle made of the standard library, and against records built to shift their neighbours."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from landonce.read.formats import Collected, Decoded
from landonce.read.formats.json import decode as decode_module
from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.formats.json.explain import explain
from landonce.read.schema.fields import Field, Schema

REJECTED = "rejected"
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def run(records: list[bytes | None], *fields: Field, **options: Any) -> Decoded:
    decoded = JsonDecoder(Schema(fields), **options).decode(pa.array(records, pa.binary()))
    decoded.table.validate(full=True)
    assert decoded.table.schema == Schema(fields).arrow
    assert decoded.table.num_rows == len(decoded.kept)
    seen = decoded.kept.tolist() + [reject.index for reject in decoded.rejects]
    assert sorted(seen) == list(range(len(records)))
    assert decoded.kept.tolist() == sorted(decoded.kept.tolist())
    return decoded


def outcome(decoded: Decoded) -> list[Any]:
    """Per input: the row as plain values, or the reason."""
    result: dict[int, Any] = {reject.index: reject.reason for reject in decoded.rejects}
    result.update(zip(decoded.kept.tolist(), plain_rows(decoded.table), strict=True))
    return [result[index] for index in sorted(result)]


def plain_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(plain(column.combine_chunks()) for column in table.columns), strict=True))


def plain(array: pa.Array) -> list[Any]:
    """Temporal values as their integers, which show what a datetime would round or refuse."""
    if pt.is_timestamp(array.type):
        return array.cast(pa.int64()).to_pylist()
    if pt.is_date32(array.type):
        return array.cast(pa.int32()).to_pylist()
    if pt.is_floating(array.type):
        return [None if value is None else value.hex() for value in array.to_pylist()]
    return array.to_pylist()


# ------------------------------------------------------------------------------------------------- the oracle


class Number(str):
    pass


def oracle(literal: str, field: Field) -> Any:
    """What must become of {"a": literal}, by the standard library alone."""

    def refuse(_: str) -> None:
        raise ValueError

    try:
        value = json.loads(literal, parse_int=Number, parse_float=Number, parse_constant=refuse)
    except ValueError:
        return REJECTED
    if value is None:
        return REJECTED if field.required else None
    if isinstance(value, str) and not isinstance(value, Number) and re.search("[\ud800-\udfff]", value):
        return REJECTED
    if isinstance(value, Number) and re.search("[.eE]", value) and (math.isinf(float(value)) or value == "0e400"):
        return REJECTED  # Arrow looks at the exponent only
    return oracle_value(value, field.type, field.scale)


def oracle_value(value: Any, type_: pa.DataType, scale: int | None) -> Any:
    number = isinstance(value, Number)
    text = isinstance(value, str) and not number
    whole = number and re.fullmatch(r"-?\d+", value) is not None
    if pt.is_boolean(type_):
        return value if isinstance(value, bool) else REJECTED
    if pt.is_string(type_):
        return value if text else REJECTED
    if pt.is_integer(type_):
        return oracle_integer(value, type_) if whole else REJECTED
    if pt.is_floating(type_):
        return oracle_float(value, type_) if number else REJECTED
    if pt.is_decimal(type_):
        return oracle_decimal(value, type_) if number or text else REJECTED
    if pt.is_date32(type_):
        return oracle_date(value, scale) if text or (whole and scale is not None) else REJECTED
    if pt.is_timestamp(type_):
        if text:
            return oracle_timestamp(value, PER_SECOND[type_.unit])
        return oracle_ticks(int(value), PER_SECOND[type_.unit], scale) if whole and scale is not None else REJECTED
    raise AssertionError(type_)


def oracle_integer(literal: str, type_: pa.DataType) -> Any:
    signed, bits = pt.is_signed_integer(type_), type_.bit_width
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    if not signed and literal.startswith("-"):
        return REJECTED  # also -0
    return int(literal) if low <= int(literal) < high else REJECTED


def oracle_float(literal: str, type_: pa.DataType) -> Any:
    with np.errstate(over="ignore"):
        value = float(literal) if type_ == pa.float64() else float(np.float32(literal))
    if re.fullmatch(r"-?\d+", literal) and math.isfinite(value) and int(value) != int(literal):
        return REJECTED  # an integer is never rounded; a number with a point or an exponent is
    if value == 0 and re.match(r"-?[0.]*[1-9]", literal):
        return REJECTED  # but not to 0
    return value.hex() if math.isfinite(value) else REJECTED


def oracle_decimal(literal: str, type_: pa.DataType) -> Any:
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,6})?", literal):
        return REJECTED
    value = Decimal(literal)
    _, digits, exponent = value.as_tuple()
    if value == 0:
        return Decimal(0).scaleb(-type_.scale)
    if max(len(digits), len(digits) + int(exponent)) > type_.precision:
        return REJECTED  # Arrow counts the digits as written, the zeros of 1e5 among them
    fixed = Decimal(literal) * 10**type_.scale if type_.scale < 20 else None
    assert fixed is not None
    if fixed != int(fixed) or abs(fixed) >= 10**type_.precision:
        return REJECTED
    return Decimal(int(fixed)).scaleb(-type_.scale)


def oracle_date(value: str, scale: int | None) -> Any:
    if isinstance(value, Number):
        days, rest = divmod(int(value), 86_400 * 10 ** (scale or 0))
        return days if rest == 0 and abs(days) < 2**31 else REJECTED
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        return REJECTED
    try:
        return date.fromisoformat(value).toordinal() - EPOCH.date().toordinal()
    except ValueError:
        return REJECTED


ISO = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?)?(?:(Z)|([+-])([0-9]{2})(?::?([0-9]{2}))?)?)?"
)


def oracle_timestamp(value: str, per_second: int) -> Any:
    match = ISO.fullmatch(value)
    if match is None:
        return REJECTED
    *parts, fraction, _, sign, hours, minutes = match.groups()
    try:
        moment = datetime(*(int(part or 0) for part in parts), tzinfo=timezone.utc)
    except ValueError:
        return REJECTED
    if int(hours or 0) > 23 or int(minutes or 0) > 59:
        return REJECTED
    offset = (int(hours or 0) * 3600 + int(minutes or 0) * 60) * (-1 if sign == "-" else 1)
    seconds = (moment - EPOCH) // timedelta(seconds=1) - offset
    ticks = seconds * per_second + Decimal(f"0.{fraction or 0}") * per_second
    if ticks != int(ticks) or abs(seconds * per_second) >= 2**63 or abs(ticks) >= 2**63:
        return REJECTED
    return int(ticks)


def oracle_ticks(ticks: int, per_second: int, scale: int) -> Any:
    value, rest = divmod(ticks * per_second, 10**scale)
    return value if rest == 0 and abs(value) < 2**63 and abs(ticks) < 2**63 else REJECTED


NUMBERS_TEXT = """0 -0 1 -1 7 127 128 -128 -129 255 256 300 32767 32768 -32768 -32769 65535 65536 2147483647 2147483648
    -2147483648 -2147483649 4294967295 4294967296 9223372036854775807 9223372036854775808 -9223372036854775808
    -9223372036854775809 18446744073709551615 18446744073709551616 9007199254740992 9007199254740993 9007199254740994 -9007199254740993 9007199254740993.0 16777216 16777217 16777218
    16777217.0 99999999999999999999999999
    1.0 -0.0 1.5 1e2 1E2 1e+2 1e-2 0.1 1.10 1.23 1.230 1.234 99999999.99 100000000 1e7 1e8 -99999999.99 -1e8 3.4e38
    3.5e38 1e308 1e309 1E400 -1E400 1e-400 0e400 86400 86400000 -86400 86401 1717171717 1717171717123
    1717171717123456 1717171717123456789 9223372036854775 9223372036854776 -9223372036854775 -9223372036854776
    9223372036854 9223372036855 -9223372036855 9223372036 9223372037 -9223372036 -9223372037 01 +1 .5 1. 0x10 - 1e 1e+ NaN -NaN Infinity -Infinity Inf nan"""
STRINGS_TEXT = """x 1 +1 -1 .5 1. 1.23 1.234 1e2 1E+2 1e-2 99999999.99 100000000 00000000000001 . e1 - 1_0 0x1 nan inf true
    2020-01-01 2020-02-29 2021-02-29 2020-13-01 2020-00-10 2020-1-1 20200101 9999-12-31 0001-01-01 1900-01-01
    2299-12-31 2300-01-01 12020-01-01 2020-01-01T 2020-01-01Z 2020-01-01-05 2020-01-01T12 2020-01-01T12:34
    2020-01-01T12:34:56 2020-01-01T24:00:00 2020-01-01T23:60:00 2020-01-01T23:59:60 2020-01-01T12:34:56Z
    2020-01-01T12:34:56z 2020-01-01t12:34:56 2020-01-01T12:34:56+02 2020-01-01T12:34:56+0230
    2020-01-01T12:34:56+02:30 2020-01-01T12:34:56-02:30 2020-01-01T12:34:56+24:00 2020-01-01T12:34:56+02:60
    2020-01-01T12:34:56. 2020-01-01T12:34:56.Z 2020-01-01T12:34:56.1 2020-01-01T12:34:56.12Z
    2020-01-01T12:34:56.123 2020-01-01T12:34:56.1230+02:00 2020-01-01T12:34:56.1234 2020-01-01T12:34:56.123456Z
    2020-01-01T12:34:56.1234560 2020-01-01T12:34:56.1234567 2020-01-01T12:34:56.123456789
    2020-01-01T12:34:56.1234567890Z 2020-01-01T12:34:56.1234567891 2020-01-01T12:34:56.000
    2020-01-01T12:34:56.000000000000Z 2020-01-01T12:34:56.0-0500 1969-12-31T23:59:59.5 1969-12-31T23:59:59.999999999Z
    1677-09-21T00:12:44 1677-09-21T00:12:44+01:00 2262-04-11T23:47:16.854775807 2262-04-11T23:47:16.854775808Z
    2262-04-11T23:47:16-00:01 1900-01-01T00:00:00Z 2299-12-31T23:59:59.999 0001-01-01T00:00:00+23:59
    9999-12-31T23:59:59-23:59"""
LITERALS = [
    *NUMBERS_TEXT.split(),
    *(json.dumps(text) for text in STRINGS_TEXT.split()),
    *('""', '" 1 "', '"2020-01-01 12:34:56"', '" 2020-01-01"', '"2020-01-01 "', '"2020-01-01T12:34:56 Z"'),
    *(r'"\u0000"', r'"\ud800"', r'"\udc00x"', r'"\ud83d\ude00"', r'"\\ud800"', r'"\x"', '"\n"', '"é"', r'"\u0031"'),
    *("true", "false", "True", "null", "Null", "[]", "[1]", '["1"]', "{}", '{"b":1}', "", "1 2", "1,2", "'1'"),
]
TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.date32()),
    *(pa.decimal128(10, 2), pa.decimal128(38, 10), pa.decimal128(5, 5), pa.decimal128(3, 0)),
    *(pa.decimal256(10, 2), pa.decimal256(76, 0), pa.decimal256(40, 2), pa.decimal256(76, 10)),
    *(pa.timestamp(unit, zone) for unit in PER_SECOND for zone in (None, "UTC")),
]
FIELDS = [
    *(Field("a", type_) for type_ in TYPES),
    *(Field("a", type_, required=True) for type_ in (pa.int64(), pa.string(), pa.timestamp("ms"))),
    *(Field("a", pa.timestamp(unit), scale=scale) for unit in PER_SECOND for scale in (0, 3, 6, 9)),
    *(Field("a", pa.date32(), scale=scale) for scale in (0, 3)),
]


def name_of(field: Field) -> str:
    return f"{field.type}-{field.scale}-{'required' if field.required else ''}"


each_field = pytest.mark.parametrize("field", FIELDS, ids=name_of)


@each_field
def test_every_type_takes_what_the_oracle_takes_from_every_literal(field: Field) -> None:
    """In one array with all others. Every eighth of them, also in an array of its own: every literal with some types."""
    assert_as_the_oracle(field, alone=LITERALS[FIELDS.index(field) % 8 :: 8])


@pytest.mark.long
@each_field
def test_every_type_takes_what_the_oracle_takes_from_every_literal_alone(field: Field) -> None:
    """Arrow starts a thread for each array, which takes long on a busy machine."""
    assert_as_the_oracle(field, alone=LITERALS)


def assert_as_the_oracle(field: Field, *, alone: list[str]) -> None:
    records = [f'{{"a":{literal}}}'.encode() for literal in LITERALS]
    expected = [oracle(literal, field) if literal != "1,2" else REJECTED for literal in LITERALS]
    together = outcome(run(list(records), field))
    for literal, want, got in zip(LITERALS, expected, together, strict=True):
        assert (REJECTED if isinstance(got, str) else got[0]) == want, (literal, got)
    for literal, record, got in zip(LITERALS, records, together, strict=True):
        if literal in alone:
            assert outcome(run([record], field)) == [got]


@each_field
def test_what_explain_is_certain_of_arrow_refuses(field: Field) -> None:
    decoder = JsonDecoder(Schema((field,)))
    for literal in LITERALS:
        record = f'{{"a":{literal}}}'
        if explain(record, Schema((field,))).certain:
            for integers in {frozenset[int](), frozenset({0} if field.scale is not None else ())}:
                assert decoder._read(pa.array([record.encode()], pa.binary()), integers) is None, literal


# ------------------------------------------------------------------------------------------------- never a shift

ID = Field("id", pa.int64())
NAME = Field("name", pa.string())

FRAMING = {
    "two objects in one, then one in two": [b'{"id":1}{"id":2}', b'{"id":3', b',"name":"x"}'],
    "an object astride two records": [b'{"id":1,"x":', b'{"id":2}}'],
    "an array astride two records": [b'{"id":1,"x":[', b'{"id":2}]}'],
    "a null after the object": [b'{"id":1} null', b'{"id":2,"x":', b'{"id":3}}'],
    "an extra object and a lost one": [b'{"id":1}{"name":"y"}', b'{"id":2,"x":', b'{"id":3}}'],
    "a string astride two records": [b'{"id":1,"name":"', b'"}'],
    "closes what it did not open": [b'{"id":1}}', b'{"id":2}]'],
    "a comma too many": [b'{"id":1},', b'{"id":1,}', b'{,"id":1}'],
    "not an object": [b"null", b"1", b'"x"', b"[]", b"true", b'[{"id":1}]', b"{", b"}", b",", b'"id":1}'],
    "nothing": [b"", b" ", b"\n", None],
    "nul bytes": [b'{"id":1}\x00', b"\x00", b'\x00{"id":1}', b'{"id":1\x00}', b'{"id":1}\x00{"id":2}'],
    "comments": [b'{"id":1}//x', b'{/**/"id":1}'],
    "byte order marks": [b'\xef\xbb\xbf{"id":1}', '{"id":1}'.encode("utf-16")],
    "not UTF-8": [b'{"id":1,"x":"\xff"}', b'{"id":1,"name":"\xed\xa0\x80"}', b'{"id":1,"x":"\xc0\x80"}'],
    "a repeated field": [b'{"id":1,"id":1}', b'{"id":1,"id":null}', b'{"id":1,"\\u0069d":2}'],
}


@pytest.mark.parametrize("case", FRAMING)
@pytest.mark.parametrize("spread", [0, 1, 40])
@pytest.mark.parametrize("tail", [0, 1])
def test_bad_framing_costs_only_the_records_that_have_it(case: str, spread: int, tail: int) -> None:
    records: list[bytes | None] = []
    for bad in FRAMING[case]:
        records += [f'{{"id":{len(records) + i}, "name":"n"}}'.encode() for i in range(spread)]
        records.append(bad)
    records += [f'{{"id":{len(records)}}}'.encode()] * tail
    decoded = run(records, ID, NAME)
    assert decoded.table.column("id").to_pylist() == decoded.kept.tolist()
    assert [reject.index for reject in decoded.rejects] == [i for i, r in enumerate(records) if r in FRAMING[case]]


LANDS = {
    b"{}": None,
    b"{ \n }": None,
    b' \t\r\n{"id":7} \n': 7,
    b'{"id"\n:\n7}': 7,
    b'{"x":{"id":1},"id":7}': 7,
    b'{"x":1,"x":2,"id":7}': 7,
    b'{"\\u0069d":7}': 7,
    b'{"ID":1,"Id":2}': None,
    b'{"id":7,"x":NaN}': 7,
    b'{"id":7,"x":[Infinity]}': 7,
    b'{"id":7,"x":Inf}': 7,
    b'{"id":7,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}": 7,
    b'{"id":7,"x":' + b'{"y":' * 50_000 + b"1" + b"}" * 50_000 + b"}": 7,
    b'{"id":7,"x":' + b"9" * 5_000 + b"}": 7,
}


@pytest.mark.parametrize("record", LANDS, ids=lambda record: record[:20])
def test_unusual_records_land_alone_and_among_bad_ones(record: bytes) -> None:
    for records in ([record], [record, b"{"], [b'{"id":"x"}', record, record], [b'{"id":1}', record]):
        decoded = run(list(records), ID)
        at = decoded.kept.tolist().index(records.index(record))
        assert decoded.table.column("id").to_pylist()[at] == LANDS[record]


def test_blocks_of_any_size_decode_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [b'{"id":%d}' % i if i % 7 else b'{"id":' for i in range(100)]
    expected = outcome(run(list(records), ID))
    for rows, size, small in ((1, 10**6, 1), (3, 10**6, 2), (1000, 1, 1), (1000, 50, 8), (1000, 10**6, 1)):
        monkeypatch.setattr(decode_module, "_BLOCK_ROWS", rows)
        monkeypatch.setattr(decode_module, "_BLOCK_BYTES", size)
        monkeypatch.setattr(decode_module, "_SMALL", small)
        assert outcome(run(list(records), ID)) == expected


def test_slices_and_large_or_empty_arrays() -> None:
    values = pa.array([b"x", b'{"id":1}', b'{"id":2}', b"y"], pa.binary())
    assert JsonDecoder(Schema((ID,))).decode(values[1:3]).table.column("id").to_pylist() == [1, 2]
    assert run([], ID).table.num_rows == 0
    decoded = run([b'{"id":%d}' % i for i in range(150_000)], ID)
    assert decoded.table.column("id").to_pylist() == list(range(150_000))


# ------------------------------------------------------------------------------------------------- determinism

WIDE_SCHEMA = Schema(
    (
        Field("id", pa.int32(), required=True),
        Field("name", pa.string()),
        Field("f", pa.float32()),
        Field("d", pa.decimal128(9, 3)),
        Field("t", pa.timestamp("ms", "UTC"), scale=3),
        Field("u", pa.timestamp("us"), scale=0),
        Field("e", pa.string(), allowed=frozenset({"on", "off"})),
        Field("l", pa.list_(pa.date32())),
        Field("s", pa.struct([pa.field("x", pa.uint8()), pa.field("y", pa.timestamp("s"))])),
    )
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=4,
)
iso = st.sampled_from(["2024-05-06", "2024-05-06T07:08:09Z", "2024-05-06 07:08:09.1230", "1931-01-01T00:00:00+05:30"])


def mostly(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(good, good, good, good, good, st.none(), anything)


members = st.fixed_dictionaries(
    {},
    optional={
        "id": mostly(st.integers(-5, 5)),
        "name": mostly(st.text(max_size=5)),
        "f": mostly(st.floats(allow_nan=False, allow_infinity=False) | st.integers()),
        "d": mostly(st.decimals(-99, 99, places=2).map(str) | st.integers(-9, 9)),
        "t": mostly(iso | st.integers(-(10**13), 10**13)),
        "u": mostly(iso | st.integers(-(10**10), 10**10)),
        "e": mostly(st.sampled_from(["on", "off"])),
        "l": mostly(st.lists(st.sampled_from(["2024-01-01", "1931-12-31"]), max_size=3)),
        "s": mostly(st.fixed_dictionaries({}, optional={"x": st.integers(0, 255), "y": iso})),
        "other": anything,
    },
)
encoded = st.builds(
    lambda value, ascii, indent: json.dumps(value, ensure_ascii=ascii, indent=indent).encode("utf-8", "surrogatepass"),
    members | members | members | anything,
    st.booleans(),
    st.sampled_from([None, None, 1]),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    record = draw(encoded)
    at = draw(st.integers(0, len(record)))
    cut = draw(st.integers(0, 3))
    piece = draw(st.sampled_from([b"", b"{", b"}", b"[", b"]", b",", b'"', b"\n", b"\\", b":", b" ", b"1", b"-", b"."]))
    return record[:at] + piece + record[at + cut :]


record_values = st.one_of(encoded, encoded, encoded, mutated(), st.binary(max_size=6), st.none())


def decode_one_by_one(records: list[bytes | None], schema: Schema) -> list[Any]:
    return [outcome(JsonDecoder(schema).decode(pa.array([record], pa.binary())))[0] for record in records]


@given(st.lists(record_values, max_size=12))
@example([b'{"id":1,"t":1}', b'{"id":2,"t":"2024-05-06"}', b'{"id":3,"t":3}', b"{}", b'{"id":1,"f":1e39}'])
def test_a_record_decodes_the_same_in_any_company(records: list[bytes | None]) -> None:
    shared = JsonDecoder(WIDE_SCHEMA)
    together = outcome(shared.decode(pa.array(records, pa.binary())))
    assert together == decode_one_by_one(records, WIDE_SCHEMA)
    again = outcome(shared.decode(pa.array(records[::-1], pa.binary())))
    assert again[::-1] == together


@given(mutated() | encoded)
def test_explain_is_certain_only_where_arrow_refuses(record: bytes) -> None:
    decoder = JsonDecoder(WIDE_SCHEMA)
    alone = pa.array([record], pa.binary())
    is_clean = decoder._screen(Collected(decoder._arrow), alone)[1].equals(alone)
    if not is_clean or not explain(record.decode(), WIDE_SCHEMA).certain:
        return
    for integers in (frozenset[int](), frozenset({4}), frozenset({5}), frozenset({4, 5})):
        assert decoder._read(alone, integers) is None


@given(members, st.data())
def test_landed_values_are_the_oracles(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value)
    (got,) = outcome(JsonDecoder(WIDE_SCHEMA).decode(pa.array([text.encode()], pa.binary())))
    wanted = []
    for field in WIDE_SCHEMA.fields[:7]:
        literal = json.dumps(value.get(field.name))
        want = oracle(literal, field)
        if field.allowed and want is not None and want not in field.allowed:
            want = REJECTED
        wanted.append(want)
    if REJECTED in wanted:
        assert isinstance(got, str)
    elif not isinstance(got, str):
        assert list(got[:7]) == wanted


# ------------------------------------------------------------------------------------------------- temporal values


@pytest.mark.parametrize("unit", PER_SECOND)
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_temporal_round_trip(unit: str, zone: str | None) -> None:
    low, high = (1900, 2262) if unit == "ns" else (1900, 2299)
    moments = [datetime(year, 1, 2, 3, 4, 5, tzinfo=timezone.utc) for year in (low, 1969, 1970, 2024, high)]
    seconds = [(moment - EPOCH) // timedelta(seconds=1) for moment in moments]
    per_second = PER_SECOND[unit]
    fraction = str(per_second - 1).count("9") * "9"
    texts = [moment.strftime("%Y-%m-%dT%H:%M:%S") + (f".{fraction}" if fraction else "") for moment in moments]
    ticks = [second * per_second + int(fraction or 0) for second in seconds]
    field = Field("t", pa.timestamp(unit, zone), scale=len(fraction))
    for suffix in ("", "Z", "+00:00"):
        records: list[bytes | None] = [json.dumps({"t": text + suffix}).encode() for text in texts]
        assert outcome(run(records, field)) == [(tick,) for tick in ticks]
    mixed = [json.dumps({"t": tick if i % 2 else texts[i]}).encode() for i, tick in enumerate(ticks)]
    assert outcome(run(list(mixed), field)) == [(tick,) for tick in ticks]


@given(
    st.datetimes(datetime(1900, 1, 1), datetime(2262, 1, 1)),
    st.integers(-1439, 1439),
    st.sampled_from("sT "),
    st.data(),
)
def test_any_moment_in_any_zone(moment: datetime, minutes: int, separator: str, data: st.DataObject) -> None:
    zone = timezone(timedelta(minutes=minutes))
    text = moment.replace(tzinfo=zone).isoformat(separator if separator != "s" else "T")
    for unit, per_second in PER_SECOND.items():
        (got,) = outcome(run([json.dumps({"t": text}).encode()], Field("t", pa.timestamp(unit))))
        want = oracle_timestamp(text, per_second)
        assert (REJECTED if isinstance(got, str) else got[0]) == want


def test_mixed_integers_and_strings_stay_fast_and_in_order() -> None:
    records = [
        b'{"id":%d,"t":%s,"u":%s}' % (i, b"5000" if i % 2 else b'"1970-01-01T00:00:05Z"', b"1" if i % 3 else b"null")
        for i in range(20_000)
    ]
    fields = (ID, Field("t", pa.timestamp("s"), scale=3), Field("u", pa.timestamp("ms"), scale=0))
    decoded = run(list(records), *fields)
    assert decoded.table.column("id").to_pylist() == list(range(20_000))
    assert set(plain(decoded.table.column("t").combine_chunks())) == {5}
    assert set(plain(decoded.table.column("u").combine_chunks())) == {1000, None}


# ------------------------------------------------------------------------------------------------- decimals


@given(st.data(), st.sampled_from([(10, 2), (38, 18), (38, 0), (76, 18), (76, 2), (76, 0), (60, 16), (18, 18)]))
def test_decimals_are_exact_or_rejected(data: st.DataObject, type_: tuple[int, int]) -> None:
    digits = data.draw(st.integers(0, 10 ** data.draw(st.integers(1, 80))))
    point = data.draw(st.integers(0, 25))
    text = f"{'-' if data.draw(st.booleans()) else ''}{Decimal(digits).scaleb(-point):f}" if digits else "0"
    precision, scale = type_
    types = [pa.decimal256(precision, scale)] + ([pa.decimal128(precision, scale)] if precision <= 38 else [])
    for arrow in types:
        for literal in (text, f'"{text}"'):
            (got,) = outcome(run([f'{{"d":{literal}}}'.encode()], Field("d", arrow)))
            if isinstance(got, str):
                fits = (
                    abs(Decimal(text)) < 10 ** (precision - scale) and point <= scale and len(str(digits)) <= precision
                )
                assert not fits
            else:
                assert got[0] == Decimal(text)


def test_arrow_would_wrap_these_decimals_around() -> None:
    for type_, literal in (
        (pa.decimal128(38, 37), "1234"),
        (pa.decimal256(76, 70), "1e37"),
        (pa.decimal128(10, 2), "1e8"),
    ):
        decoded = run([f'{{"d":{literal}}}'.encode(), b'{"d":1}'], Field("d", type_))
        assert [reject.index for reject in decoded.rejects] == [0]
        assert decoded.table.column("d").to_pylist() == [Decimal(1)]


# ------------------------------------------------------------------------------------------------- nesting


def test_lists_and_structs() -> None:
    inner = pa.struct([pa.field("day", pa.date32()), pa.field("n", pa.decimal128(5, 2)), pa.field("f", pa.float32())])
    field = Field("a", pa.list_(inner))
    decoded = run(
        [
            b'{"a":[{"day":"1970-01-03","n":"1.5"},{},null]}',
            b'{"a":[]}',
            b'{"a":null}',
            b'{"a":[{"day":"nope"}]}',
            b'{"a":[{"n":1000}]}',
            b'{"a":[{"f":1}, {"f":1e39}]}',
            b'{"a":[1]}',
            b'{"a":[{"day":"1970-01-01","day":"1970-01-01"}]}',
            b'{"a":[{"other":[1]}]}',
        ],
        field,
    )
    nothing = {"day": None, "n": None, "f": None}
    assert decoded.kept.tolist() == [0, 1, 2, 8]
    assert decoded.table.column("a").to_pylist() == [
        [{"day": date(1970, 1, 3), "n": Decimal("1.50"), "f": None}, nothing, None],
        [],
        None,
        [nothing],
    ]


def test_a_nested_field_that_must_not_be_null() -> None:
    whole = Field("a", pa.list_(pa.field("item", pa.timestamp("s"), nullable=False)))
    decoded = run([b'{"a":["1970-01-01"]}', b'{"a":["1970-01-01",null]}', b'{"a":null}'], whole)
    assert decoded.kept.tolist() == [0, 2]
    assert decoded.rejects[0].reason == "field 'a' holds a null"
    strict = Field("a", pa.struct([pa.field("x", pa.int8(), nullable=False)]))
    assert [r.reason for r in run([b'{"a":{}}', b'{"a":null}'], strict).rejects] == ["field 'a' holds a null"]


def test_lists_of_names() -> None:
    field = Field("a", pa.list_(pa.string()), allowed=frozenset({"x", "y"}))
    decoded = run([b'{"a":["x","y"]}', b'{"a":["x","z"]}', b'{"a":[null]}', b'{"a":[]}'], field)
    assert decoded.kept.tolist() == [0, 2, 3]


# ------------------------------------------------------------------------------------------------- reasons


def reasons(records: list[bytes | None], *fields: Field, **options: Any) -> list[str]:
    return [reject.reason for reject in run(records, *fields, **options).rejects]


def test_reasons_are_short_and_precise() -> None:
    uuid = Field("u", pa.string(), pattern="[0-9a-f]{4}|none")
    fields = (Field("id", pa.int8(), required=True), uuid, Field("e", pa.string(), allowed=frozenset({"on"})))
    wanted = {
        None: "no value (a tombstone)",
        b" ": "empty value",
        b"\xff": "not valid UTF-8",
        b"[1]": "not a JSON object but an array",
        b"x" * 65: "record of 65 bytes exceeds max_record_bytes=64",
        b'{"id":1': "not valid JSON: Expecting ',' delimiter at character 7",
        b'{"id":1}{"id":2}': "not one JSON value: more follows at character 8",
        b"{}": "missing required field 'id'",
        b'{"id":null}': "missing required field 'id'",
        b'{"id":128}': "field 'id' is out of the range of TINYINT",
        b'{"id":"1"}': "field 'id' should be TINYINT but is a string",
        b'{"id":1.0}': "field 'id' should be TINYINT but is a number with a fraction",
        b'{"id":1,"id":1}': "field 'id' occurs more than once",
        b'{"id":1,"u":"zzzz"}': "field 'u' does not match its pattern",
        b'{"id":1,"u":"none\\n"}': "field 'u' does not match its pattern",
        b'{"id":1,"u":"xnone"}': "field 'u' does not match its pattern",
        b'{"id":1,"e":"On"}': "field 'e' is not one of the allowed names",
        b'{"id":1,"x":1e999}': "holds a number beyond the range of a double",
        b'{"id":1,"x":"\\ud800"}': "holds an escaped surrogate without its other half",
    }
    assert reasons(list(wanted), *fields, max_record_bytes=64) == list(wanted.values())
    for record, reason in wanted.items():
        assert reasons([record], *fields, max_record_bytes=64) == [reason]
    good: list[bytes | None] = [b'{"id":1,"u":"00ff","e":"on"}', b'{"id":1,"u":"none","e":null}']
    assert reasons(good, *fields, max_record_bytes=64) == []


@settings(max_examples=100)
@given(mutated())
def test_reasons_hold_nothing_of_the_record(record: bytes) -> None:
    secret = b"hunter2"
    for poisoned in (record + secret, record.replace(b'": "', b'": "' + secret), secret + record):
        for reject in JsonDecoder(WIDE_SCHEMA).decode(pa.array([poisoned], pa.binary())).rejects:
            assert "hunter2" not in reject.reason
            assert len(reject.reason) < 200


FLOATS = (
    Field("a", pa.float64()),
    Field("f", pa.float32()),
    Field("l", pa.list_(pa.float64())),
    Field("s", pa.struct([("x", pa.struct([("y", pa.float32())]))])),
    Field("m", pa.map_(pa.string(), pa.float64())),
    Field("ls", pa.list_(pa.struct([("x", pa.float64())]))),
    Field("id", pa.int64()),
)


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (b'{"a":9007199254740993}', "a"),
        (b'{"a":-9007199254740993}', "a"),
        (b'{"a" : 9007199254740993 }', "a"),
        (b'{"\\u0061":9007199254740993}', "a"),
        (b'{"f":16777217}', "f"),
        (b'{"l":[1,0.5,9007199254740993]}', "l[]"),
        (b'{"s":{"x":{"y":16777217}}}', "s.x.y"),
        (b'{"m":{"k":1,"l":9007199254740993}}', "m[]"),
        (b'{"ls":[{"x":1},null,{"x":9007199254740993}]}', "ls[].x"),
    ],
)
def test_an_integer_that_a_float_cannot_hold_is_no_other_number(record: bytes, field: str) -> None:
    """Among neighbours, alone, and among records that are looked at one by one."""
    kind = "float" if field in ("f", "s.x.y") else "double"
    reason = f"field {field!r} is an integer that a {kind} cannot hold exactly"
    fine = b'{"a":1.5,"f":0.1,"l":[1e300],"id":9007199254740993}'
    for company in ([fine] * 300, [], [b"{"]):
        decoded = run([*company, record, *company], *FLOATS)
        assert outcome(decoded)[len(company)] == reason


def test_numbers_with_a_point_or_an_exponent_become_the_nearest_float() -> None:
    records = [b'{"a":0.1}', b'{"a":9007199254740993.0}', b'{"a":1e23}', b'{"f":0.1}', b'{"f":1.6777217e7}']
    decoded = run(records, *FLOATS)
    assert decoded.table["a"].to_pylist() == [0.1, 9007199254740992.0, 1e23, None, None]
    assert decoded.table["f"].to_pylist()[3:] == [float(np.float32("0.1")), 16777216.0]


def test_large_integers_that_a_float_holds_land_beside_ids_that_it_does_not() -> None:
    records = [b'{"a":%d,"f":16777218,"id":9007199254740993}' % (2**60 + 256 * at) for at in range(1000)]
    decoded = run(records, *FLOATS)
    assert decoded.table["a"].to_pylist() == [2**60 + 256 * at for at in range(1000)]
    assert set(decoded.table["id"].to_pylist()) == {9007199254740993}


def test_names_may_hold_anything_and_match_exactly() -> None:
    names = ["", " ", "a.b", 'q"uote', "back\\slash", "é", "(?i)x[", "\n", "{", "$", "Case"]
    fields = [Field(name, pa.timestamp("s"), scale=0) for name in names]
    row = {name: at if at % 2 else "1970-01-01" for at, name in enumerate(names)}
    other = dict.fromkeys(names, 5)
    records: list[bytes | None] = [json.dumps(r).encode() for r in (row, other, {"case": 1})]
    got = outcome(run(records, *fields))
    assert got == [
        tuple(at if at % 2 else 0 for at in range(len(names))),
        (5,) * len(names),
        (None,) * len(names),
    ]


# ------------------------------------------------------------------------------------------------- cost


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: record[:-1],
        lambda record: record.replace(b'"id":', b'"id":"x'),
        lambda record: record.replace(b'"id":', b'"id":"x","y":'),
        lambda record: record.replace(b"1970", b"70"),
        lambda _: b"{}",
        lambda record: record + record,
        lambda record: record[:-1] + b',"x":[',
    ],
    ids=["cut short", "not JSON", "wrong type", "bad date", "missing", "two in one", "open"],
)
@pytest.mark.timeout(60)
def test_half_of_a_large_array_may_be_bad(spoil: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow is asked for pieces, and not for each record."""
    size, asked, read_json = 5_000, Counter[str](), decode_module.pj.read_json

    def count(*given: Any, **options: Any) -> pa.Table:
        asked["times"] += 1
        return read_json(*given, **options)

    monkeypatch.setattr(decode_module.pj, "read_json", count)
    records = [b'{"id":%d,"name":"somebody","t":"1970-01-01T00:00:00Z"}' % i for i in range(size)]
    mixed = [record if i % 2 else spoil(record) for i, record in enumerate(records)]
    decoded = run(list(mixed), Field("id", pa.int64(), required=True), NAME, Field("t", pa.timestamp("s"), scale=0))
    assert decoded.table.column("id").to_pylist() == list(range(1, size, 2))
    assert 0 < asked["times"] < size / 25


# ------------------------------------------------------------------------------------------------- schemas


def test_the_fingerprint_covers_everything_and_is_stable() -> None:
    base = Field("a", pa.string(), False, frozenset({"x", "y"}), "[xy]")
    schemas = [
        Schema((base,)),
        Schema((Field("b", pa.string(), False, frozenset({"x", "y"}), "[xy]"),)),
        Schema((Field("a", pa.string(), True, frozenset({"x", "y"}), "[xy]"),)),
        Schema((Field("a", pa.string(), False, frozenset({"x"}), "[xy]"),)),
        Schema((Field("a", pa.string(), False, frozenset({"x", "y"}), "."),)),
        Schema((Field("a", pa.int8()),)),
        Schema((Field("a", pa.timestamp("s")),)),
        Schema((Field("a", pa.timestamp("s"), scale=0),)),
        Schema((Field("a", pa.timestamp("s", "UTC")),)),
        Schema((Field("a", pa.list_(pa.int8())),)),
        Schema((Field("a", pa.list_(pa.field("item", pa.int8(), nullable=False))),)),
        Schema((Field("a", pa.int8()), Field("b", pa.int8()))),
        Schema((Field("b", pa.int8()), Field("a", pa.int8()))),
    ]
    assert len({schema.fingerprint() for schema in schemas}) == len(schemas)
    renamed = Schema((Field("a", pa.list_(pa.field("element", pa.int8()))),))
    assert renamed.fingerprint() == Schema((Field("a", pa.list_(pa.int8())),)).fingerprint()
    assert schemas[7].fingerprint() == "c7ea0529847819fdab8cb08cd10206e991623a5fd303ae6f208762fec61ef4a5"


def test_schemas_that_make_no_sense_are_refused() -> None:
    for arguments in (
        {"type": pa.string(), "scale": 3},
        {"type": pa.timestamp("s"), "scale": 10},
        {"type": pa.int8(), "pattern": "x"},
        {"type": pa.int8(), "allowed": frozenset({"x"})},
    ):
        with pytest.raises(ValueError):
            Field("a", **arguments)
    with pytest.raises(ValueError, match="at least one"):
        Schema(())
    with pytest.raises(ValueError, match="'a'"):
        Schema((ID, Field("a", pa.int8()), Field("a", pa.string())))
    with pytest.raises(ValueError, match="RE2"):
        JsonDecoder(Schema((Field("a", pa.string(), pattern="("),)))
    for type_ in (
        pa.large_binary(),
        pa.timestamp("s", "Europe/Berlin"),
        pa.date64(),
        pa.struct([]),
        pa.decimal128(5, -2),
    ):
        with pytest.raises(TypeError, match="'a'"):
            JsonDecoder(Schema((Field("a", type_),)))
    with pytest.raises(ValueError, match="max_record_bytes"):
        JsonDecoder(Schema((ID,)), max_record_bytes=0)


def test_a_time_that_the_target_cannot_hold_is_rejected_alone() -> None:
    schema = Schema(
        (
            Field("at", pa.timestamp("s", tz="UTC"), scale=0, bounds=(0, 2**32 - 1)),
            Field("days", pa.list_(pa.date32()), bounds=(0, 65_535)),
        )
    )
    values = [
        b'{"at": 5, "days": ["2020-01-01"]}',
        b'{"at": "3000-01-01T00:00:00Z"}',
        b'{"at": -1}',
        b'{"days": ["2020-01-01", "1960-01-01"]}',
        b"{}",
        b'{"at": %d}' % (2**32 - 1),
        b'{"at": %d}' % 2**32,
        b'{"days": ["%s"]}' % str(np.datetime64(0, "D") + 65_535).encode(),
    ]
    decoded = JsonDecoder(schema).decode(pa.array(values, pa.binary()))
    assert decoded.kept.tolist() == [0, 4, 5, 7]
    assert [reject.index for reject in decoded.rejects] == [1, 2, 3, 6]
    assert all("is outside the range of the target" in reject.reason for reject in decoded.rejects)


def test_a_fraction_that_the_target_would_cut_is_rejected() -> None:
    schema = Schema((Field("at", pa.timestamp("ms", tz="UTC"), scale=2, digits=2),))
    values = [b'{"at": "2026-01-01T00:00:00.12Z"}', b'{"at": "2026-01-01T00:00:00.123Z"}', b'{"at": -7}', b"{}"]
    decoded = JsonDecoder(schema).decode(pa.array(values, pa.binary()))
    assert decoded.kept.tolist() == [0, 2, 3]
    assert decoded.table.column("at").cast(pa.int64()).to_pylist() == [1_767_225_600_120, -70, None]
