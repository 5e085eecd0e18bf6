"""The Avro decoder against fastavro, and against bodies built to shift their neighbours."""

from __future__ import annotations

import io
import json
import pickle
import struct
import uuid
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from landonce.config.source import RecordFormat
from landonce.errors import ConfigError
from landonce.read.decoding import format_of
from landonce.read.formats import Decoded
from landonce.read.formats.avro import cursor as cursor_module
from landonce.read.formats.avro.decode import Avro
from landonce.read.formats.avro.schema import BadSchema, Fixed, fingerprint, parse
from landonce.read.schema.fields import JSON, Field, Schema
from landonce.sinks.pipeline_file import parse as parse_file

LIMIT = 2**20
UTC = timezone.utc


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    """A record's schema from `(name, type)` or `(name, type, {"default": …})`."""
    made = [{"name": each[0], "type": each[1], **(each[2] if len(each) > 2 else {})} for each in fields]
    return {"type": "record", "name": name, "fields": made, **more}


def body(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def run(format_: Avro, values: list[bytes | None], schema: Schema | None = None) -> Decoded:
    schema = schema or format_.fields([each for each in values if each])
    assert schema is not None
    decoded = format_.decoder(schema, max_record_bytes=LIMIT).decode(pa.array(values, pa.binary()))
    decoded.table.validate(full=True)
    assert decoded.table.schema == schema.arrow
    seen = decoded.kept.tolist() + [reject.index for reject in decoded.rejects]
    assert sorted(seen) == list(range(len(values)))
    assert decoded.kept.tolist() == sorted(decoded.kept.tolist())
    return decoded


def rows(writer: Any, values: list[bytes | None], *fields: Field, reader: Any = None) -> list[Any]:
    """Per input: the row, or the reason."""
    format_ = Avro((json.dumps(writer),), reader=json.dumps(reader) if reader is not None else None)
    decoded = run(format_, values, Schema(fields) if fields else None)
    found: dict[int, Any] = {each.index: each.reason for each in decoded.rejects}
    found.update(zip(decoded.kept.tolist(), decoded.table.to_pylist(), strict=True))
    return [found[at] for at in range(len(values))]


# Every schema and value, against fastavro


DECIMAL_DIGITS = {"logicalType": "decimal", "precision": 9, "scale": 2}


def types(names: Any) -> st.SearchStrategy[Any]:
    plain = st.sampled_from(["boolean", "int", "long", "float", "double", "bytes", "string"])
    leaves = plain | st.builds(lambda size: {"type": "fixed", "name": next(names), "size": size}, st.integers(1, 20))
    leaves |= st.builds(
        lambda size: {"type": "fixed", "name": next(names), "size": size, **DECIMAL_DIGITS}, st.integers(4, 40)
    )
    leaves |= st.just({"type": "bytes", **DECIMAL_DIGITS})
    leaves |= st.builds(
        lambda count: {"type": "enum", "name": next(names), "symbols": [f"S{at}" for at in range(count)]},
        st.integers(1, 5),
    )

    def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        lists = st.builds(lambda each: {"type": "array", "items": each}, inner)
        maps = st.builds(lambda each: {"type": "map", "values": each}, inner)
        records = st.builds(
            lambda each: record(*((f"f{at}", type_) for at, type_ in enumerate(each)), name=next(names)),
            st.lists(inner, min_size=1, max_size=3),
        )
        return lists | maps | records | st.builds(lambda each: ["null", each], lists | maps | records)

    nullable = leaves | st.builds(lambda each: ["null", each], leaves) | st.builds(lambda each: [each, "null"], leaves)
    return st.recursive(nullable, nested, max_leaves=6) | st.just(["null", "long", "string"])


def values_of(type_: Any) -> st.SearchStrategy[Any]:
    if isinstance(type_, list):
        return st.one_of(*(values_of(each) for each in type_))
    if isinstance(type_, str):
        return {
            "null": st.none(),
            "boolean": st.booleans(),
            "int": st.integers(-(2**31), 2**31 - 1),
            "long": st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70),
            "float": st.floats(width=32, allow_nan=False),
            "double": st.floats(allow_nan=False),
            "bytes": st.binary(max_size=20),
            "string": st.text(max_size=20),
        }[type_]
    if type_.get("logicalType") == "decimal":
        return st.integers(-(10**9) + 1, 10**9 - 1).map(lambda each: Decimal(each).scaleb(-2))
    if type_["type"] == "fixed":
        return st.binary(min_size=type_["size"], max_size=type_["size"])
    if type_["type"] == "enum":
        return st.sampled_from(type_["symbols"])
    if type_["type"] == "array":
        return st.lists(values_of(type_["items"]), max_size=4)
    if type_["type"] == "map":
        return st.dictionaries(st.text(max_size=3), values_of(type_["values"]), max_size=3)
    return st.fixed_dictionaries({each["name"]: values_of(each["type"]) for each in type_["fields"]})


@st.composite
def written(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    names = iter(f"N{at}" for at in range(10_000))
    fields = draw(st.lists(types(names), min_size=1, max_size=4))
    schema = record(*((f"c{at}", each) for at, each in enumerate(fields)))
    return schema, draw(st.lists(values_of(schema), min_size=1, max_size=12))


def as_row(value: Any, schema: Any, type_: pa.DataType) -> Any:
    """What fastavro read, as Arrow shows it: maps as pairs, unions of several types as a struct."""
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if value is None:
            return None
        if len(kinds) == 1:
            return as_row(value, kinds[0], type_)
        return {"long": value if isinstance(value, int) else None, "string": value if isinstance(value, str) else None}
    if pt.is_map(type_):
        return [(key, as_row(each, schema["values"], type_.item_type)) for key, each in value.items()]
    if pt.is_list(type_):
        return [as_row(each, schema["items"], type_.value_type) for each in value]
    if pt.is_struct(type_):
        return {
            each["name"]: as_row(value[each["name"]], each["type"], type_.field(each["name"]).type)
            for each in schema["fields"]
        }
    return value


def by_fastavro(schema: Any, raw: bytes) -> Any:
    """The value, or None unless the body is exactly one."""
    stream = io.BytesIO(raw)
    try:
        found = fastavro.schemaless_reader(stream, fastavro.parse_schema(schema))
    except Exception:
        return None
    return found if stream.tell() == len(raw) else None


FEWER = settings(max_examples=settings.default.max_examples // 2)


@FEWER
@given(written())
def test_whatever_fastavro_writes_is_read_as_fastavro_reads_it(case: tuple[Any, list[Any]]) -> None:
    schema, values = case
    bodies = [body(schema, each) for each in values]
    found = rows(schema, [*bodies])
    row = Avro((json.dumps(schema),)).fields([]).arrow  # type: ignore[union-attr]
    assert found == [as_row(by_fastavro(schema, each), schema, pa.struct(list(row))) for each in bodies]


@FEWER
@given(written(), st.data())
def test_a_damaged_body_never_changes_another_row(case: tuple[Any, list[Any]], data: st.DataObject) -> None:
    schema, values = case
    bodies = [body(schema, each) for each in values]
    damaged = [data.draw(_damage(each)) for each in bodies]
    mixed = [each for pair in zip(bodies, damaged, strict=True) for each in pair]
    found = rows(schema, [*mixed])
    alone = [rows(schema, [each])[0] for each in mixed]
    assert repr(found) == repr(alone)  # not a number is not equal to itself
    row = pa.struct(list(Avro((json.dumps(schema),)).fields([]).arrow))  # type: ignore[union-attr]
    for raw, got in zip(damaged, found[1::2], strict=True):
        if not isinstance(got, str):  # landonce is stricter than fastavro, and never more lenient
            assert repr(got) == repr(as_row(by_fastavro(schema, raw), schema, row))


def _damage(raw: bytes) -> st.SearchStrategy[bytes]:
    cut = st.integers(0, len(raw)).map(lambda at: raw[:at])
    longer = st.binary(min_size=1, max_size=4).map(lambda more: raw + more)
    flipped = st.tuples(st.integers(0, max(0, len(raw) - 1)), st.integers(0, 255)).map(
        lambda each: raw[: each[0]] + bytes([each[1]]) + raw[each[0] + 1 :]
    )
    return st.one_of(cut, longer, flipped, st.binary(max_size=30))


# Boundaries


TWO = record(("id", "long"), ("name", "string"))


def test_a_truncated_record_beside_a_too_long_one_is_not_two_good_ones() -> None:
    whole = body(TWO, {"id": 1, "name": "abc"})
    found = rows(TWO, [whole[:-1], whole[-1:] + whole, whole, b"", whole + b"\0", None])
    assert found == [
        "field 'name' is cut off: the record ends inside it",
        "the record goes on after the last field of its Avro schema",
        {"id": 1, "name": "abc"},
        "field 'id' is cut off: the record ends inside it",
        "the record goes on after the last field of its Avro schema",
        "no value (a tombstone)",
    ]


def test_every_cut_of_a_nested_body_is_a_reject() -> None:
    schema = record(
        ("items", {"type": "array", "items": record(("sku", "string"), ("n", ["null", "int"]), name="I")}),
        ("tags", {"type": "map", "values": "double"}),
        ("at", {"type": "fixed", "name": "F", "size": 3}),
    )
    value = {"items": [{"sku": "a", "n": None}, {"sku": "bb", "n": 700}], "tags": {"x": 1.5}, "at": b"abc"}
    whole = body(schema, value)
    found = rows(schema, [each for cut in range(len(whole)) for each in (whole[:cut], whole)])
    assert all(isinstance(each, str) and "record" in each for each in found[0::2])
    assert all(each["items"] == value["items"] for each in found[1::2])


def test_too_long_a_record_is_a_reject() -> None:
    decoder = Avro((json.dumps(TWO),)).decoder(Schema((Field("id", pa.int64()),)), max_record_bytes=3)
    decoded = decoder.decode(pa.array([body(TWO, {"id": 1, "name": "abc"}), body(TWO, {"id": 1, "name": "a"})]))
    assert [each.reason for each in decoded.rejects] == ["record of 5 bytes exceeds max_record_bytes=3"]
    assert decoded.table.to_pylist() == [{"id": 1}]


def varint(value: int) -> bytes:
    left, made = value << 1 if value >= 0 else ~(value << 1), b""
    while left >= 0x80:
        made, left = made + bytes([left & 0x7F | 0x80]), left >> 7
    return made + bytes([left])


@pytest.mark.parametrize(
    ("type_", "raw", "reason"),
    [
        ("long", b"\x80" * 9 + b"\x02", "field 'x' holds a number that is too large for its Avro type"),
        ("long", b"\x80" * 11, "field 'x' holds a number that is too large for its Avro type"),
        ("int", varint(2**31), "field 'x' holds a number that is too large for its Avro type"),
        ("string", varint(-1), "field 'x' holds a length that is not valid"),
        ("string", varint(2**62), "field 'x' is cut off: the record ends inside it"),
        ("string", varint(1) + b"\xff", "field 'x' is not valid UTF-8"),
        ("boolean", b"\x02", "field 'x' is neither true nor false"),
        (["null", "int"], varint(2), "field 'x' names a branch that its union does not have"),
        (["null", "int"], varint(-1), "field 'x' names a branch that its union does not have"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, varint(1), "field 'x' names a symbol that its enum does not have"),
        ({"type": "array", "items": "int"}, varint(2**40), "field 'x[]' holds more items than its record has room for"),
        ({"type": "array", "items": "null"}, varint(2**40), "field 'x[]' holds more items than its record has room for"),
        ({"type": "array", "items": "int"}, varint(-(2**63)) + b"\0", "field 'x[]' holds more items than its record has room for"),
        ({"type": "array", "items": "string"}, varint(1) + varint(9) + b"\0", "field 'x[]' is cut off: the record ends inside it"),
        ({"type": "map", "values": "int"}, varint(2) + b"\x02a\0\x02a\0\0", "field 'x' holds a key twice"),
        ({"type": "int", "logicalType": "time-millis"}, varint(86_400_000), "field 'x' is not a time of day"),
        ({"type": "string", "logicalType": "uuid"}, varint(3) + b"abc", "field 'x' is not a valid UUID"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3}, varint(2) + b"\x7f\xff", "field 'x' has more than 3 digits"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3}, varint(0), "field 'x' is a decimal without any byte"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3}, varint(40) + b"\1" * 40, "field 'x' has more than 3 digits"),
    ],
)  # fmt: skip
def test_a_bad_value_has_a_named_reason(type_: Any, raw: bytes, reason: str) -> None:
    """The last field, and one that others follow: a decoder that reads on would find its bytes there."""
    assert rows(record(("x", type_)), [raw]) == [reason]
    followed = rows(record(("x", type_), ("y", "bytes")), [raw + varint(60) + bytes(60), raw])
    assert followed[0] == reason or "is cut off" in reason
    assert isinstance(followed[1], str)


def test_blocks_of_arrays_may_have_sizes_and_be_many() -> None:
    schema = record(("x", {"type": "array", "items": "string"}), ("y", "int"))
    one = varint(1) + varint(1) + b"a"
    sized = varint(-2) + varint(4) + varint(1) + b"b" + varint(1) + b"c"
    assert rows(schema, [one + sized + one + b"\0" + varint(7), b"\0" + varint(8)]) == [
        {"x": ["a", "b", "c", "a"], "y": 7},
        {"x": [], "y": 8},
    ]


@pytest.mark.parametrize("cut", [0, 1])
def test_one_long_array_is_walked_as_many_short_ones_are(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    item = record(("s", "string"), ("u", ["null", "long", {"type": "map", "values": "double"}]), name="I")
    schema = record(("x", {"type": "array", "items": item}), ("y", "int"))
    items = [{"s": str(at), "u": [None, at, {"k": 0.5}][at % 3]} for at in range(2_000)]
    raw = body(schema, {"x": items, "y": 1})
    bodies = [raw[: len(raw) - cut], raw, body(schema, {"x": items[:2], "y": 2})]
    walked = rows(schema, [*bodies])
    monkeypatch.setattr(cursor_module, "_FEW", -1)
    assert rows(schema, [*bodies]) == walked
    assert isinstance(walked[0], str) == bool(cut)
    assert [each["s"] for each in walked[1]["x"]] == [str(at) for at in range(2_000)]


def test_lengths_of_varints_with_a_numpy_that_cannot_count_bits() -> None:
    below = np.array([2 ** (8 * count) - 1 for count in range(1, 9)], np.uint64)
    assert cursor_module._lengths(below).tolist() == list(range(1, 9))


# Logical types, and the types of columns


def logical(logical_type: str, kind: Any = "long", **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


MOMENT = datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)
DECIMAL = Decimal("-123.45")
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("type_", "value", "column"),
    [
        (logical("timestamp-millis"), MOMENT, pa.timestamp("us", "UTC")),
        (logical("timestamp-micros"), MOMENT, pa.timestamp("us", "UTC")),
        (logical("local-timestamp-millis"), MOMENT.replace(tzinfo=None), pa.timestamp("us")),
        (logical("local-timestamp-micros"), MOMENT.replace(tzinfo=None), pa.timestamp("us")),
        (logical("date", "int"), date(1931, 2, 3), pa.date32()),
        (logical("time-millis", "int"), time(1, 2, 3, 4000), pa.time64("us")),
        (logical("time-micros"), time(23, 59, 59, 999999), pa.time64("us")),
        (logical("uuid", "string"), ID, pa.uuid()),
        (logical("decimal", "bytes", precision=9, scale=2), DECIMAL, pa.decimal128(9, 2)),
        (logical("decimal", "bytes", precision=60, scale=2), DECIMAL * 10**50, pa.decimal256(60, 2)),
        (logical("decimal", "fixed", precision=9, scale=2, name="D", size=5), DECIMAL, pa.decimal128(9, 2)),
        (logical("no such type", "long"), 5, pa.int64()),
    ],
)  # fmt: skip
def test_logical_types(type_: Any, value: Any, column: pa.DataType) -> None:
    for schema, values in ((type_, [value]), (["null", type_], [value, None])):
        writer = record(("x", schema))
        format_ = Avro((json.dumps(writer),))
        fields = format_.fields([])
        assert fields is not None
        assert fields.fields[0].type == column
        assert rows(writer, [body(writer, {"x": each}) for each in values]) == [{"x": each} for each in values]


def test_a_decimal_in_very_many_bytes_is_a_decimal() -> None:
    wide = {"type": "fixed", "name": "F", "size": 2000, "logicalType": "decimal", "precision": 4}
    node = parse(json.dumps(wide))
    assert isinstance(node, Fixed)
    assert node.logical is not None
    assert node.logical.precision == 4


def test_types_that_fastavro_does_not_write() -> None:
    nanos = record(("x", logical("timestamp-nanos")))
    found = run(Avro((json.dumps(nanos),)), [varint(1_700_000_000_123_456_789)])
    assert found.table.column("x").cast(pa.int64()).to_pylist() == [1_700_000_000_123_456_789]
    fixed = record(("x", logical("uuid", "fixed", name="U", size=16)))
    assert rows(fixed, [ID.bytes]) == [{"x": ID}]
    assert rows(fixed, [ID.bytes], Field("x", pa.string())) == [{"x": str(ID)}]
    assert rows(fixed, [ID.bytes], Field("x", pa.binary())) == [{"x": ID.bytes}]
    no_decimal = record(("x", logical("decimal", "bytes", precision=2, scale=3)))
    assert rows(no_decimal, [varint(1) + b"a"]) == [{"x": b"a"}]
    duration = record(("x", logical("duration", "fixed", name="D", size=12)))
    assert rows(duration, [struct.pack("<III", 1, 2, 2**32 - 1)]) == [
        {"x": {"months": 1, "days": 2, "millis": 2**32 - 1}}
    ]


@pytest.mark.parametrize(
    ("value", "precision"),
    [(0, 1), (-1, 1), (127, 3), (128, 3), (-128, 3), (-129, 3), (10**38 - 1, 38), (-(10**76) + 1, 76)],
)
def test_decimals_of_every_length(value: int, precision: int) -> None:
    schema = record(("x", logical("decimal", "bytes", precision=precision)))
    for padding in (0, 1, 40):
        size = (value.bit_length() // 8) + 1 + padding
        raw = varint(size) + value.to_bytes(size, "big", signed=True)
        assert rows(schema, [raw]) == [{"x": Decimal(value)}]


@pytest.mark.parametrize("size", [4, 16, 17, 40, 100])
def test_a_short_record_with_a_fixed_decimal_is_a_reject(size: int) -> None:
    """Also where all records of a block together are shorter than one of its decimals."""
    schema = record(("x", logical("decimal", "fixed", name="F", size=size, precision=9)))
    whole = (-12).to_bytes(size, "big", signed=True)
    cut = "field 'x' is cut off: the record ends inside it"
    for short in (b"", b"\0", whole[1:]):
        assert rows(schema, [short]) == [cut]
        assert rows(schema, [short, whole, short]) == [cut, {"x": Decimal(-12)}, cut]


DOES_NOT_FIT = object()


@pytest.mark.parametrize(
    ("type_", "value", "column", "expected"),
    [
        ("long", 127, pa.int8(), 127),
        ("long", 128, pa.int8(), DOES_NOT_FIT),
        ("int", -1, pa.uint32(), DOES_NOT_FIT),
        ("long", 2**53, pa.float64(), 2.0**53),
        ("long", 2**53 + 1, pa.float64(), DOES_NOT_FIT),
        ("long", 2**63 - 1, pa.float64(), DOES_NOT_FIT),
        ("int", 2**24 + 1, pa.float32(), DOES_NOT_FIT),
        ("long", 123, pa.decimal128(5, 2), Decimal("123.00")),
        ("long", 1234, pa.decimal128(5, 2), DOES_NOT_FIT),
        ("double", 1e39, pa.float32(), DOES_NOT_FIT),
        ("double", 0.5, pa.float32(), 0.5),
        ("float", 0.5, pa.float64(), 0.5),
        ("string", "2024-05-06T07:08:09.123Z", pa.timestamp("ms", "UTC"), MOMENT),
        ("string", "yesterday", pa.timestamp("ms", "UTC"), DOES_NOT_FIT),
        ("string", str(ID), pa.uuid(), ID),
        ("string", "é", pa.binary(), "é".encode()),
        ("bytes", b"abc", pa.string(), "abc"),
        ("bytes", b"\xff", pa.string(), DOES_NOT_FIT),
        ("bytes", b"abc", pa.binary(3), b"abc"),
        ("bytes", b"ab", pa.binary(3), DOES_NOT_FIT),
        (logical("timestamp-micros"), MOMENT, pa.timestamp("ms", "UTC"), MOMENT),
        (logical("timestamp-micros"), MOMENT + timedelta(microseconds=1), pa.timestamp("ms", "UTC"), DOES_NOT_FIT),
        (logical("timestamp-millis"), MOMENT, pa.timestamp("us"), MOMENT.replace(tzinfo=None)),
        (logical("decimal", "bytes", precision=9, scale=2), Decimal("1.50"), pa.decimal128(3, 1), Decimal("1.5")),
        (logical("decimal", "bytes", precision=9, scale=2), Decimal("1.55"), pa.decimal128(3, 1), DOES_NOT_FIT),
        (logical("timestamp-nanos"), 1, pa.string(), "1970-01-01T00:00:00.000000001Z"),
        (logical("local-timestamp-millis"), -1, pa.string(), "1969-12-31T23:59:59.999"),
        (logical("timestamp-micros"), 253_402_300_800_000_000, pa.string(), DOES_NOT_FIT),
        (logical("date", "int"), 2_932_896, pa.string(), "9999-12-31"),
        (logical("date", "int"), 2_932_897 + 365 * 65_536, pa.string(), DOES_NOT_FIT),
        (logical("time-millis", "int"), 1500, pa.string(), "00:00:01.500"),
        (logical("time-micros"), 60_000_000, pa.string(), "00:01:00"),
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, ID.bytes, pa.string(), str(ID)),
        (logical("timestamp-nanos"), -1, JSON, '"1969-12-31T23:59:59.999999999Z"'),
    ],
)  # fmt: skip
def test_a_value_lands_exactly_or_not_at_all(type_: Any, value: Any, column: pa.DataType, expected: Any) -> None:
    schema = record(("x", type_))
    (found,) = rows(schema, [body(schema, {"x": value})], Field("x", column))
    if expected is DOES_NOT_FIT:
        assert found.startswith(("field 'x' does not fit ", "field 'x' does not hold exactly"))
    else:
        assert found == {"x": expected}


@pytest.mark.parametrize(
    ("type_", "column", "reason"),
    [
        ("string", pa.int64(), "field 'x' is a string in the Avro schema, the column BIGINT"),
        ("long", pa.string(), "field 'x' is a long in the Avro schema, the column STRING"),
        ("double", pa.int64(), "field 'x' is a double in the Avro schema, the column BIGINT"),
        ("long", pa.timestamp("ms", "UTC"), "field 'x' is a long in the Avro schema, the column TIMESTAMP"),
        ({"type": "array", "items": "int"}, pa.int64(), "field 'x' is an array in the Avro schema, the column BIGINT"),
        (record(("a", "int"), name="A"), pa.string(), "field 'x' is a record in the Avro schema, the column STRING"),
        ({"type": "map", "values": "int"}, pa.struct([("a", pa.int32())]), "field 'x' is a map in the Avro schema, the column STRUCT<a: INT>"),
    ],
)  # fmt: skip
def test_a_type_that_never_fits_is_refused_before_the_start(type_: Any, column: pa.DataType, reason: str) -> None:
    format_ = Avro((json.dumps(record(("x", type_))),))
    with pytest.raises(TypeError) as caught:
        format_.decoder(Schema((Field("x", column),)), max_record_bytes=LIMIT)
    assert str(caught.value) == reason


def test_limits_of_the_target_are_checked() -> None:
    schema = record(("s", ["null", "string"]), ("n", {"type": "array", "items": "double"}), ("t", "long"))
    fields = (
        Field("s", pa.string(), longest=3),
        Field("n", pa.list_(pa.float64()), finite=True),
        Field("t", pa.timestamp("s", "UTC"), scale=3),
    )
    values: list[Any] = [{"s": "abc", "n": [1.0], "t": 5000}, {"s": "abcd", "n": [], "t": 0}]
    values += [{"s": None, "n": [0.0, float("nan")], "t": 0}, {"s": None, "n": [], "t": 5001}]
    assert rows(schema, [body(schema, each) for each in values], *fields) == [
        {"s": "abc", "n": [1.0], "t": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)},
        "field 's' is longer than 3 characters",
        "field 'n[]' is not a finite number",
        "field 't' does not fit TIMESTAMP",
    ]


def test_limits_of_the_keys_and_values_of_a_map_are_checked() -> None:
    schema = record(("m", {"type": "map", "values": logical("date", "int")}))
    limits = (Field("key", pa.string(), most_bytes=3), Field("value", pa.date32(), bounds=(0, 9)))
    column = Field("m", pa.map_(pa.string(), pa.date32()), inner=limits)
    maps = ({"abc": 9}, {"abcd": 9}, {"abc": 10}, {"abc": -1})
    bodies: list[bytes | None] = [
        body(schema, {"m": {key: date(1970, 1, 1) + timedelta(days) for key, days in each.items()}}) for each in maps
    ]
    good, *bad = rows(schema, bodies, column)
    assert good == {"m": [("abc", date(1970, 1, 10))]}
    assert [each.split(" is ")[0] for each in bad] == ["field 'm.key'", "field 'm.value'", "field 'm.value'"]


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        (pa.uint8(), {"0": 0, "255": 255}, ["256", "-1", "1.0", "01", "x", ""]),
        (pa.int64(), {"-5": -5, str(2**63 - 1): 2**63 - 1}, [str(2**63), "+1"]),
        (pa.decimal128(4, 2), {"1.5": Decimal("1.50"), "-2": Decimal(-2)}, ["1.555", "1e1"]),
        (pa.bool_(), {"true": True, "false": False}, ["True", "1"]),
        (pa.date32(), {"2026-11-18": date(2026, 11, 18)}, ["soon"]),
        (pa.uuid(), {str(uuid.UUID(int=7)): uuid.UUID(int=7)}, ["7"]),
    ],
)
def test_keys_of_maps_are_written_as_json_writes_them(key: pa.DataType, good: dict[str, Any], bad: list[str]) -> None:
    writer = record(("m", {"type": "map", "values": "long"}))
    maps = [dict.fromkeys(good, 7), {}, *({next(iter(good)): 1, each: 2} for each in bad)]
    field = Field("m", pa.map_(key, pa.int64()))
    found = rows(writer, [body(writer, {"m": each}) for each in maps], field)
    assert found[:2] == [{"m": [(each, 7) for each in good.values()]}, {"m": []}]
    assert all("field 'm" in str(each) for each in found[2:])
    assert len(found) == len(bad) + 2


def test_a_key_that_is_one_number_in_two_spellings_is_held_twice() -> None:
    writer = record(("m", {"type": "map", "values": "long"}))
    (found,) = rows(
        writer, [body(writer, {"m": {"1": 1, "1.0": 2}})], Field("m", pa.map_(pa.decimal128(4, 2), pa.int64()))
    )
    assert found == "field 'm' holds a key twice"


def test_a_wide_integer_may_be_a_string() -> None:
    wide = Field("v", JSON, bounds=(-(2**255), 2**255 - 1), called="Int256")
    most, writer = str(2**255 - 1), record(("v", ["null", "string"]))
    given = ["5", most, None, str(2**255), "1.0", "", '"5"']
    found = rows(writer, [body(writer, {"v": each}) for each in given], wide)
    outside = "field 'v' is not an integer in the range of Int256"
    assert found == [{"v": "5"}, {"v": most}, {"v": None}, outside, outside, outside, outside]
    longs = record(("v", "long"))
    assert rows(longs, [body(longs, {"v": -7})], wide) == [{"v": "-7"}]
    raw = record(("v", "bytes"))
    with pytest.raises(TypeError, match="field 'v' is bytes in the Avro schema"):
        rows(raw, [body(raw, {"v": b"\xd7m\xf8"})], wide)


def test_an_array_fills_a_tuple_without_names() -> None:
    def tuple_of(*types: pa.DataType, nullable: bool = False) -> pa.DataType:
        return pa.struct([pa.field(str(at), each, nullable=nullable) for at, each in enumerate(types, 1)])

    point = tuple_of(pa.float64(), pa.float64())
    writer = record(("p", {"type": "array", "items": "double"}), ("id", "long"))
    given = [[1.5, -2.0], [1.0], [], [1.0, 2.0, 3.0], [0.0, 0.5]]
    found = rows(
        writer,
        [body(writer, {"p": each, "id": at}) for at, each in enumerate(given)],
        Field("p", point, required=True),
        Field("id", pa.int64()),
    )
    wrong = "field 'p' does not hold 2 items"
    assert found == [
        {"p": {"1": 1.5, "2": -2.0}, "id": 0},
        wrong,
        wrong,
        wrong,
        {"p": {"1": 0.0, "2": 0.5}, "id": 4},
    ]
    mixed = record(("t", {"type": "array", "items": ["null", "int", "string"]}))
    field = Field("t", tuple_of(pa.int8(), pa.string()))
    found = rows(mixed, [body(mixed, {"t": each}) for each in ([1, "a"], ["a", 1], [300, "a"], [None, "a"])], field)
    assert found[0] == {"t": {"1": 1, "2": "a"}}
    assert [str(each) for each in found[1:]] == [
        "field 't[0]' is a string in the Avro schema, the column TINYINT",
        "field 't[0]' does not fit TINYINT",
        "field 't[0]' holds a null",
    ]
    rings = record(("r", {"type": "array", "items": {"type": "array", "items": "double"}}))
    ring = Field("r", pa.list_(pa.field("item", point, nullable=False)))
    found = rows(
        rings, [body(rings, {"r": each}) for each in ([[0.0, 1.0], [2.0, 3.0]], [], [[0.0, 1.0], [2.0]])], ring
    )
    assert found == [
        {"r": [{"1": 0.0, "2": 1.0}, {"1": 2.0, "2": 3.0}]},
        {"r": []},
        "field 'r[]' does not hold 2 items",
    ]


def test_columns_by_name_alias_and_case() -> None:
    schema = record(
        ("Id", "long"), ("old_name", "string"), ("unused", {"type": "array", "items": "string"}), ("z", "int")
    )
    raw = body(schema, {"Id": 1, "old_name": "a", "unused": ["b", "c"], "z": 9})
    fields = (
        Field("z", pa.int32()),
        Field("id", pa.int64()),
        Field("name", pa.string(), aliases=("old_name",)),
        Field("no", pa.int8()),
    )
    decoded = run(Avro((json.dumps(schema),)), [raw], Schema(fields, fold_case=True))
    assert decoded.table.to_pylist() == [{"z": 9, "id": 1, "name": "a", "no": None}]
    decoded = run(Avro((json.dumps(schema),)), [raw], Schema(fields))
    assert decoded.table.to_pylist() == [{"z": 9, "id": None, "name": "a", "no": None}]


def test_a_required_column_without_a_field_is_refused_and_with_a_null_rejects() -> None:
    schema = record(("x", ["null", "int"]), ("l", {"type": "array", "items": ["null", "int"]}))
    with pytest.raises(TypeError, match="missing required field 'y'"):
        rows(schema, [], Field("y", pa.int32(), required=True))
    fields = (
        Field("x", pa.int32(), required=True),
        Field("l", pa.list_(pa.field("element", pa.int32(), nullable=False))),
    )
    bodies: list[bytes | None] = [body(schema, {"x": x, "l": each}) for x, each in ((1, [2]), (None, []), (1, [None]))]
    assert rows(schema, bodies, *fields) == [
        {"x": 1, "l": [2]},
        "field 'x' is null, and the column must not be",
        "field 'l[]' holds a null",
    ]


def test_a_union_of_several_types() -> None:
    schema = record(("x", ["null", "int", "long", "string"]))
    bodies: list[bytes | None] = [body(schema, {"x": each}) for each in (None, 1, 2**40, "a")]
    assert rows(schema, bodies) == [
        {"x": None},
        {"x": {"int": 1, "long": None, "string": None}},
        {"x": {"int": None, "long": 2**40, "string": None}},
        {"x": {"int": None, "long": None, "string": "a"}},
    ]
    reason = "field 'x' is a string in the Avro schema, the column BIGINT"
    assert rows(schema, bodies, Field("x", pa.int64())) == [{"x": None}, {"x": 1}, {"x": 2**40}, reason]


def test_a_topic_of_several_records() -> None:
    union = [record(("a", "int"), ("b", "int"), name="A"), record(("b", "long"), ("c", "string"), name="C"), "null"]
    values: list[Any] = [("A", {"a": 1, "b": 2}), ("C", {"b": 2**40, "c": "x"}), None]
    assert rows(union, [body(union, each) for each in values]) == [
        {"a": 1, "b": 2, "c": None},
        {"a": None, "b": 2**40, "c": "x"},
        "the record is null, and the column must not be",
    ]


def test_types_of_one_name_in_two_namespaces_are_two_types() -> None:
    topic = [record(("x", "int"), name="a.E"), record(("x", "int"), ("y", "string"), name="b.E")]
    fields = Field("x", pa.int32()), Field("y", pa.string())
    bodies: list[bytes | None] = [b"\0\2", b"\2\2\6abc"]
    landed = [{"x": 1, "y": None}, {"x": 1, "y": "abc"}]
    assert rows(topic, bodies, *fields) == rows(topic, bodies, *fields, reader=topic[::-1]) == landed
    # A reader without the writer's name takes an alias before a type that only shares the simple name.
    known = record(("x", "int"), ("y", "string"), name="c.E", aliases=["b.E"])
    assert rows(topic[1], [b"\2\6abc"], *fields, reader=[topic[0], known]) == landed[1:]
    assert rows(topic[1], [b"\2\6abc"], *fields, reader=topic[0]) == landed[:1]

    enums = [
        {"type": "enum", "name": f"{space}.S", "symbols": list(each)} for space, each in (("a", "AB"), ("b", "CD"))
    ]
    enums[0]["default"] = "A"
    schema = record(("s", enums))
    bodies = [b"\0\2", b"\2\0", b"\2\2"]
    assert rows(schema, bodies, Field("s", pa.string())) == [{"s": "B"}, {"s": "C"}, {"s": "D"}]
    assert rows(schema, bodies)[1] == {"s": {"a.S": None, "b.S": "C"}}

    whole = record(("e", topic))
    assert rows(whole, [b"\2\2\6abc"], Field("e", JSON)) == [{"e": '{"a.E":null,"b.E":{"x":1,"y":"abc"}}'}]


def test_any_value_as_json_text() -> None:
    inner = record(
        ("b", "bytes"), ("m", {"type": "map", "values": "double"}), ("u", ["null", "long", "string"]), name="I"
    )
    schema = record(
        ("x", ["null", inner]),
        ("t", logical("timestamp-millis")),
        ("d", logical("decimal", "bytes", precision=5, scale=2)),
    )
    value = {"x": {"b": b"\xff", "m": {'"é': 0.5}, "u": 7}, "t": MOMENT, "d": DECIMAL}
    fields = [Field(name, JSON) for name in ("x", "t", "d")]
    nan = {**value, "x": {"b": b"", "m": {"n": float("nan")}, "u": None}}
    found = rows(schema, [body(schema, each) for each in (value, {**value, "x": None}, nan)], *fields)
    text = {"t": '"2024-05-06T07:08:09.123000Z"', "d": "-123.45"}
    assert found == [
        {"x": '{"b":"/w==","m":{"\\"é":0.5},"u":{"long":7,"string":null}}', **text},
        {"x": None, **text},
        "field 'x' holds a number or a time that JSON cannot hold",
    ]
    late = record(("t", logical("timestamp-millis")))
    assert rows(late, [varint(10**15)], Field("t", JSON)) == [
        "field 't' holds a number or a time that JSON cannot hold"
    ]
    deep = record(("l", {"type": "array", "items": inner}))
    (row,) = rows(
        deep, [body(deep, {"l": [value["x"]]})], Field("l", pa.list_(pa.struct([("b", pa.binary()), ("m", JSON)])))
    )
    assert row == {"l": [{"b": b"\xff", "m": '{"\\"é":0.5}'}]}


def test_a_record_without_fields_is_json_text() -> None:
    """And no other column: then its records are rejected, or nothing starts."""
    empty = record(name="Heartbeat")
    schema = record(("id", "int"), ("payload", empty))
    column = Field("payload", JSON)
    assert rows(schema, [body(schema, {"id": 1, "payload": {}})], column) == [{"payload": "{}"}]
    nested = record(
        ("payload", record(("beat", ["null", empty]), ("seen", {"type": "array", "items": "Heartbeat"}), name="I"))
    )
    value = {"payload": {"beat": {}, "seen": [{}, {}]}}
    nothing = {"payload": {"beat": None, "seen": []}}
    assert rows(nested, [body(nested, value), body(nested, nothing)], column) == [
        {"payload": '{"beat":{},"seen":[{},{}]}'},
        {"payload": '{"beat":null,"seen":[]}'},
    ]
    union = record(("payload", ["null", empty, record(("x", "int"), name="Other")]))
    bodies = [body(union, {"payload": each}) for each in (None, ("Heartbeat", {}), ("Other", {"x": 1}))]
    assert rows(union, bodies, column) == [
        {"payload": None},
        {"payload": '{"Heartbeat":{},"Other":null}'},
        {"payload": '{"Heartbeat":null,"Other":{"x":1}}'},
    ]
    with pytest.raises(ConfigError, match="Heartbeat is a record without fields, which no column holds"):
        Avro((json.dumps(nested),)).fields([])


# A reader's schema


PROMOTIONS = [
    ("int", "long", 5),
    ("int", "float", 5),
    ("int", "double", 5),
    ("long", "float", 5),
    ("long", "double", 7),
]
PROMOTIONS += [("float", "double", 0.5), ("string", "bytes", "é"), ("bytes", "string", b"abc")]  # type: ignore[list-item]


@pytest.mark.parametrize(("wrote", "wanted", "value"), PROMOTIONS)
@pytest.mark.parametrize("union", [False, True])
def test_promotions_are_those_of_fastavro(wrote: str, wanted: str, value: Any, union: bool) -> None:
    writer, reader = record(("x", wrote)), record(("x", ["null", wanted] if union else wanted))
    raw = body(writer, {"x": value})
    expected = fastavro.schemaless_reader(io.BytesIO(raw), fastavro.parse_schema(writer), fastavro.parse_schema(reader))
    assert rows(writer, [raw], reader=reader) == [expected]


@pytest.mark.parametrize("wrote", ["boolean", "int", "long", "float", "double", "bytes", "string"])
@pytest.mark.parametrize("wanted", ["boolean", "int", "long", "float", "double", "bytes", "string"])
def test_what_avro_does_not_promote_is_refused(wrote: str, wanted: str) -> None:
    if wrote == wanted or any((wrote, wanted) == each[:2] for each in PROMOTIONS):
        return
    with pytest.raises(
        TypeError, match=f"field 'x' is (an? )?{wrote} in its own schema, and (an? )?{wanted} in the reader's"
    ):
        rows(record(("x", wrote)), [], reader=record(("x", wanted)))


@pytest.mark.parametrize("wrote", ["string", "bytes", logical("uuid", "string")])
def test_a_readers_uuid_is_text_only_where_the_writers_is(wrote: Any) -> None:
    writer, reader = record(("x", wrote)), record(("x", logical("uuid", "string")))
    raw = varint(36) + str(ID).upper().encode()
    assert rows(writer, [raw], Field("x", pa.string()), reader=reader) == [{"x": str(ID).upper()}]


@pytest.mark.parametrize("wrote", ["int", "long", "double", "boolean", {"type": "fixed", "name": "F", "size": 4}])
def test_another_type_does_not_become_the_text_of_a_readers_uuid(wrote: Any) -> None:
    writer, reader = record(("x", wrote)), record(("x", logical("uuid", "string")))
    with pytest.raises(TypeError, match=r"field 'x' is .* in its own schema, and a string in the reader's"):
        rows(writer, [b"\6abc"], Field("x", pa.string()), reader=reader)


def test_aliases_defaults_order_and_enums_are_resolved_as_fastavro_does() -> None:
    kinds = {"type": "enum", "name": "K", "symbols": ["A", "B", "C"]}
    writer = record(("gone", "string"), ("old", "int"), ("k", kinds), ("l", {"type": "array", "items": kinds["name"]}))
    reader = record(
        ("k", {"type": "enum", "name": "K", "symbols": ["C", "A", "OTHER"], "default": "OTHER"}),
        ("fresh", "long", {"aliases": ["old"]}),
        ("raw", "bytes", {"default": "\u00ff"}),
        ("maybe", ["null", "string"], {"default": None}),
        ("deep", record(("a", "int"), ("b", {"type": "array", "items": "int"}, {"default": [1, 2]}), name="D"), {"default": {"a": 5}}),
        ("tags", {"type": "map", "values": "double"}, {"default": {"x": 1.5}}),
        ("l", {"type": "array", "items": "K"}),
    )  # fmt: skip
    value = {"gone": "x", "old": 7, "k": "B", "l": ["A", "C", "B"]}
    assert rows(writer, [body(writer, value)], reader=reader) == [
        {
            "k": "OTHER",
            "fresh": 7,
            "raw": b"\xff",
            "maybe": None,
            "deep": {"a": 5, "b": [1, 2]},
            "tags": [("x", 1.5)],
            "l": ["A", "C", "OTHER"],
        }
    ]


def test_a_symbol_that_the_reader_lacks_is_a_reject() -> None:
    writer = record(("k", {"type": "enum", "name": "K", "symbols": ["A", "B"]}))
    reader = record(("k", {"type": "enum", "name": "K", "symbols": ["A"]}))
    found = rows(writer, [body(writer, {"k": "A"}), body(writer, {"k": "B"})], reader=reader)
    assert found == [{"k": "A"}, "field 'k' names a symbol that its enum does not have"]


def test_a_default_that_does_not_fit_matters_only_where_it_is_used() -> None:
    reader = record(("x", "int"), ("y", "int", {"default": "no"}))
    both = record(("x", "int"), ("y", "int"))
    assert rows(both, [body(both, {"x": 1, "y": 2})], reader=reader) == [{"x": 1, "y": 2}]
    with pytest.raises(TypeError, match="the default of field 'y' does not fit its type"):
        rows(record(("x", "int")), [], reader=reader)


# Schemas, frames


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ('"string"', None),
        (json.dumps(record(("x", "Unknown"))), "type Unknown of the Avro schema is not defined"),
        (json.dumps(record(("x", ["null", "R"]))), "type R of the Avro schema contains itself"),
        (json.dumps(record(("x", ["int", "int"]))), "holds a type twice"),
        (json.dumps(record(("x", "int"), ("x", "int"))), "two fields of one name"),
        (json.dumps(record(("x", {"type": "fixed", "name": "F", "size": -1}))), "the size of F"),
        (json.dumps({"type": "record", "name": "R", "fields": 5}), "the fields of R in the Avro schema are not a list"),
        (json.dumps(record(("x", "int"), aliases=5)), "the aliases of a type or field"),
        (json.dumps(record(("x", "int", {"aliases": 5}))), "the aliases of a type or field"),
        (json.dumps(record(("x", "int", {"aliases": [5]}))), "the aliases of a type or field"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        (json.dumps({"type": "record", "name": "1; DROP", "fields": []}), "a name of the Avro schema is not valid"),
    ],
)
def test_a_schema_that_is_none_is_refused_in_words(text: str, problem: str | None) -> None:
    if problem is None:
        with pytest.raises(ConfigError, match="the Avro schema is not a record"):
            Avro((text,)).fields([])
        return
    with pytest.raises(BadSchema, match=problem):
        parse(text)


@FEWER
@given(written())
def test_the_fingerprint_is_that_of_fastavro(case: tuple[Any, list[Any]]) -> None:
    schema = {**case[0], "namespace": "a.b", "doc": "ignored"}
    expected = fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(schema), "CRC-64-AVRO")
    assert fingerprint(json.dumps(schema)).hex() == expected or fingerprint(json.dumps(schema))[::-1].hex() == expected


def test_single_objects_of_two_schemas() -> None:
    other = record(("id", "int"), ("more", "double"), name="Other")
    format_ = Avro((json.dumps(TWO), json.dumps(other)), framing="single-object")
    two = b"\xc3\x01" + fingerprint(json.dumps(TWO)) + body(TWO, {"id": 1, "name": "a"})
    more = b"\xc3\x01" + fingerprint(json.dumps(other)) + body(other, {"id": 2, "more": 0.5})
    unknown = b"\xc3\x01" + bytes(range(8)) + b"\0"
    decoded = run(format_, [more, two, unknown, b"\xc3\x01", two[2:], more])
    assert decoded.table.to_pylist() == [
        {"id": 2, "name": None, "more": 0.5},
        {"id": 1, "name": "a", "more": None},
        {"id": 2, "name": None, "more": 0.5},
    ]
    assert [each.reason for each in decoded.rejects] == [
        "no schema has the fingerprint 0706050403020100",
        "does not begin with the 10 bytes of single-object framing",
        "does not begin with the 10 bytes of single-object framing",
    ]


def test_the_fingerprint_of_the_specification() -> None:
    """Avro's own test data: the CRC-64 of "null" and of a record."""
    assert int.from_bytes(fingerprint('"null"'), "little") == 7195948357588979594
    foo = '{"type":"record","name":"foo","fields":[{"name":"f1","type":"boolean"}]}'
    assert int.from_bytes(fingerprint(foo), "little", signed=True) == 7843277075252814651


def test_the_format_survives_pickling_and_its_fingerprint_follows_its_schemas() -> None:
    format_ = Avro((json.dumps(TWO),))
    assert pickle.loads(pickle.dumps(format_)) == format_
    assert hash(format_) == hash(Avro((json.dumps(TWO),)))
    assert format_.decisive() == Avro((json.dumps(TWO),)).decisive()
    assert format_.decisive() != Avro((json.dumps(TWO),), reader=json.dumps(TWO)).decisive()
    assert format_.decisive() != Avro((json.dumps(record(("id", "int"))),)).decisive()
    json.dumps(format_.decisive())


# The section of the pipeline file


def test_files_are_named_relative_to_the_pipeline_file(tmp_path: Path) -> None:
    (tmp_path / "two.avsc").write_text(json.dumps(TWO))
    text = """
pipeline: p
source:
  kafka:
    bootstrap_servers: b
    topics: [t]
    format: {avro: {schema: two.avsc, reader: two.avsc}}
sink: {sql: {url: "sqlite:///x.db", table: t}}
"""
    section = parse_file(text, tmp_path / "p.yaml").source.kafka.format
    assert format_of(section) == Avro((json.dumps(TWO),), reader=json.dumps(TWO))
    (tmp_path / "two.avsc").write_text('{"type": "record"}')
    with pytest.raises(ConfigError, match=r"format\.avro\.reader: .*two\.avsc is not an Avro schema: .* lacks `name`"):
        format_of(section)
    (tmp_path / "two.avsc").unlink()
    with pytest.raises(ConfigError, match="No such file"):
        format_of(section)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({}, "name a `schema` file, or a `registry`"),
        ({"schema": "a.avsc", "reader": {"subject": "s"}}, "reader: a subject is in a `registry`"),
        ({"registry": {"url": "http://r"}, "reader": {"subject": "s", "version": 0}}, "reader.version"),
        (
            {"schema": "a.avsc", "reader": {"file": "b.avsc", "version": 1}},
            "name a file, or a `subject`",
        ),
        ({"schema": "a", "registry": {"url": "http://h"}}, "name a `schema` file, or a `registry`"),
        ({"registry": {"url": "http://h"}, "framing": "single-object"}, "have Confluent's"),
        ({"schema": ["a", "b"]}, "framing: single-object"),
        ({"registry": {"url": "http://h", "client_key": "k"}}, "its certificate is missing"),
    ],
)
def test_sections_that_contradict_themselves_are_refused(section: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        RecordFormat.model_validate({"avro": section})


def test_a_registry_s_password_is_nowhere_to_be_read() -> None:
    registry = {"url": "http://ann:hunter2@h", "password": "hunter3"}
    section = RecordFormat.model_validate({"avro": {"registry": registry}})
    format_ = format_of(section)
    for text in (repr(section), str(section), repr(format_), str(format_), json.dumps(format_.decisive())):
        assert "hunter" not in text


def test_the_ids_of_another_registry_are_other_schemas() -> None:
    def decisive(url: str) -> object:
        return format_of(RecordFormat.model_validate({"avro": {"registry": {"url": url}}})).decisive()

    assert decisive("http://a:1") != decisive("http://b:1")
    assert decisive("http://a:1") == decisive("http://ann:hunter2@a:1")


def test_schemas_that_do_not_agree_suggest_nothing() -> None:
    other = record(("id", "string"), name="Other")
    format_ = Avro((json.dumps(TWO), json.dumps(other)), framing="single-object")
    heads = [b"\xc3\x01" + fingerprint(json.dumps(each)) for each in (TWO, other)]
    with pytest.raises(ConfigError, match="the Avro schemas of these records do not agree"):
        format_.fields(heads)
    assert format_.fields([b"no frame"]) is None
