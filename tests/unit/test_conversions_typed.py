"""`convert` for records of Avro and Protobuf, whose schemas say what their values are: every cell of docs/conversions.md for them."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
import yaml
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st
from test_conversions import PIPELINE, REFUSED, cells_of, shown, tables

from landonce.config.source import Convert
from landonce.protocol.reasons import Code
from landonce.read.changes import Changes
from landonce.read.convert.decode import fitted
from landonce.read.decoding import Decoding, conversions_of, decoder_of
from landonce.read.evolution import observed
from landonce.read.formats import Decoded, Format
from landonce.read.formats.avro.decode import Avro
from landonce.read.formats.avro.schema import fingerprint
from landonce.read.formats.protobuf.format import Protobuf
from landonce.read.formats.protobuf.source import Messages, ProtobufSource, compile_text
from landonce.read.formats.text.csv import Csv
from landonce.read.schema.ddl import parse_schema
from landonce.read.schema.registry import Registered, Registry
from landonce.read.schema.values import settle_keys
from landonce.sinks.pipeline_file import parse

UTC = timezone.utc
AT = datetime(2023, 11, 14, 22, 13, 20, 250_000, tzinfo=UTC)
MS = 1_700_000_000_250
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; int64 at = 2; string note = 3; repeated int64 seen = 4; bytes raw = 5; }'
SCHEMA = "id BIGINT NOT NULL, at TIMESTAMP, note STRING, seen ARRAY<TIMESTAMP>, raw BINARY"
CONVERT = {
    "fields": {"at": {"epoch": "ms"}, "note": {"empty": None}, "seen[]": {"epoch": "ms"}, "raw": {"empty": None}}
}


def schema_of(at: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": "long",
        "at": ["null", at],
        "note": ["null", "string"],
        "seen": {"type": "array", "items": at},
        "raw": "bytes",
    }
    return {
        "type": "record",
        "name": "Order",
        "fields": [{"name": name, "type": type_} for name, type_ in fields.items()],
    }


COUNTED, TIMED = schema_of("long"), schema_of({"type": "long", "logicalType": "timestamp-millis"})
TIMED["fields"].reverse()  # a fingerprint knows no logical types
AVRO = Avro((json.dumps(COUNTED), json.dumps(TIMED)), framing="single-object")


def body(schema: dict[str, Any], **fields: Any) -> bytes:
    out = io.BytesIO(b"")
    out.write(b"\xc3\x01" + fingerprint(json.dumps(schema)))
    row = {"id": 1, "at": None, "note": None, "seen": [], "raw": b"", **fields}
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def decoded(format_: Format, values: list[bytes], *, schema: str = SCHEMA, convert: Any = CONVERT) -> Decoded:
    rules = conversions_of(Convert.model_validate(convert))
    decoder = fitted(format_, rules).decoder(parse_schema(schema), max_record_bytes=2**20)
    return decoder.decode(pa.array(values, pa.binary()))


def test_avro_integers_become_times_and_empty_texts_null() -> None:
    """Also beside records of a writer whose schema says that they are times."""
    values = [
        body(COUNTED, at=MS, note="", seen=[MS, 0], raw=b""),
        body(TIMED, id=2, at=AT, note="x", seen=[AT], raw=b"\0"),
        body(COUNTED, id=3, at=None, note=" ", seen=[]),
        body(COUNTED, id=4, at=2**62),
    ]
    found = decoded(AVRO, values)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert found.table.to_pylist() == [
        {"id": 1, "at": AT, "note": None, "seen": [AT, epoch], "raw": None},
        {"id": 2, "at": AT, "note": "x", "seen": [AT], "raw": b"\0"},
        {"id": 3, "at": None, "note": " ", "seen": [], "raw": None},
    ]
    assert found.kept.tolist() == [0, 1, 2]
    assert [(each.index, str(each.reason)) for each in found.rejects] == [
        (3, "field 'at' is out of the range of TIMESTAMP")
    ]


def debezium(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "connect.name": f"io.debezium.time.{name}"}


def test_a_writers_own_unit_counts_more_than_an_epoch() -> None:
    """Debezium's times too, in a record with integers that have no unit."""
    types = {
        "id": "long",
        "micros": debezium("long", "MicroTimestamp"),
        "nanos": ["null", debezium("long", "NanoTimestamp")],
        "day": debezium("int", "Date"),
        "plain": "long",
        "seen": {"type": "array", "items": ["int", debezium("long", "MicroTimestamp")]},
        "raw": debezium("long", "MicroTimestamp"),
    }
    schema = {"type": "record", "name": "Row", "fields": [{"name": k, "type": v} for k, v in types.items()]}
    row = {"id": 1, "micros": MS * 1000, "nanos": MS * 10**6, "day": 19_675, "plain": MS, "raw": MS}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {**row, "seen": []})
    value = out.getvalue()
    columns = (
        "id BIGINT, micros TIMESTAMP, nanos TIMESTAMP, day DATE, plain TIMESTAMP, seen ARRAY<TIMESTAMP>, raw BIGINT"
    )
    found = decoded(Avro((json.dumps(schema),)), [value], schema=columns, convert={"default": {"epoch": "ms"}})
    assert found.table.to_pylist() == [
        {"id": 1, "micros": AT, "nanos": AT, "day": AT.date(), "plain": AT, "seen": [], "raw": MS}
    ]


def test_an_epoch_inside_structs_and_maps() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "at", "type": "long"}, {"name": "n", "type": "long"}]}
    fields = [
        {"name": "s", "type": inner},
        {"name": "l", "type": {"type": "array", "items": "I"}},
        {"name": "m", "type": {"type": "map", "values": "long"}},
    ]
    schema = {"type": "record", "name": "Row", "fields": fields}
    out = io.BytesIO()
    pair = {"at": MS, "n": MS}
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"s": pair, "l": [pair], "m": {"k": MS}})
    part = "STRUCT<at: TIMESTAMP, n: BIGINT>"
    found = decoded(
        Avro((json.dumps(schema),)),
        [out.getvalue()],
        schema=f"s {part}, l ARRAY<{part}>, m MAP<STRING, TIMESTAMP>",
        convert={"default": {"epoch": "ms"}},
    )
    right = {"at": AT, "n": MS}
    assert found.table.to_pylist() == [{"s": right, "l": [right], "m": [("k", AT)]}]


def test_a_damaged_record_is_called_so() -> None:
    """It is not called a record of another type, by whichever schema it was written."""
    values = [body(COUNTED, at=MS, raw=b"abc")[:-1], body(TIMED, at=AT, raw=b"abc")[:-1]]
    rejects = decoded(AVRO, values).rejects
    assert [each.reason.code for each in rejects] == [Code.MALFORMED] * 2
    assert str(rejects[0].reason) == "field 'raw' is cut off: the record ends inside it"


def test_a_damaged_message_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a registry, where one message has an integer for a time, and another a Timestamp."""
    texts = {
        1: 'syntax = "proto3"; message Order { int64 id = 1; int64 at = 2; string note = 3; }',
        2: 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; '
        "message Order { int64 id = 1; google.protobuf.Timestamp at = 2; string note = 3; }",
    }
    monkeypatch.setattr(Registry, "schema", lambda _, number: Registered("PROTOBUF", texts[number]))
    format_ = Protobuf(ProtobufSource(registry=Registry("http", "nowhere", 1)))
    heads = [b"\0\0\0\0" + bytes([number]) + b"\0" for number in (1, 2)]
    counted = GetMessageClass(Messages(compile_text(texts[1], {})).find("Order"))(id=1, at=MS, note="abc")
    timed = GetMessageClass(Messages(compile_text(texts[2], {})).find("Order"))(id=2, note="abc")
    timed.at.FromDatetime(AT)
    whole = [head + each.SerializeToString() for head, each in zip(heads, (counted, timed), strict=True)]
    columns = "id BIGINT, at TIMESTAMP, note STRING"
    assert [each["at"] for each in decoded(format_, whole, schema=columns).table.to_pylist()] == [AT, AT]
    rejects = decoded(format_, [each[:-1] for each in whole], schema=columns).rejects
    assert [each.reason.code for each in rejects] == [Code.MALFORMED] * 2


def test_protobuf_integers_become_times_and_its_empty_texts_null() -> None:
    source = ProtobufSource(compile_text(PROTO, {}), "Order")
    message = GetMessageClass(Messages(source.descriptors).find("Order"))
    values = [message(id=1, at=MS, seen=[MS]).SerializeToString(), message(id=2, at=0, note="x").SerializeToString()]
    with pytest.raises(TypeError, match="cannot become TIMESTAMP"):
        decoded(Protobuf(source), values, convert="strict")
    rows = decoded(Protobuf(source), values).table.to_pylist()
    assert rows[0] == {"id": 1, "at": AT, "note": None, "seen": [AT], "raw": None}
    assert rows[1]["note"] == "x"


def test_without_the_options_an_integer_is_no_time_and_an_empty_text_stays() -> None:
    """The control."""
    assert len(decoded(AVRO, [body(COUNTED, at=MS)], convert="strict").rejects) == 1
    found = decoded(AVRO, [body(COUNTED, note="")], schema="id BIGINT, note STRING", convert="strict")
    assert found.table.to_pylist() == [{"id": 1, "note": ""}]


def test_what_is_required_is_missing_where_it_is_empty() -> None:
    found = decoded(AVRO, [body(COUNTED, note=""), body(COUNTED, note="x")], schema="id BIGINT, note STRING NOT NULL")
    assert [str(each.reason) for each in found.rejects] == ["field 'note' is null, and the column must not be"]


def test_the_options_for_all_fields() -> None:
    found = decoded(AVRO, [body(COUNTED, at=MS, note="")], convert={"default": {"epoch": "ms", "empty": None}})
    assert found.table.to_pylist()[0]["at"] == AT
    assert found.table.to_pylist()[0]["note"] is None


# Every cell of the page.

LOGICAL = {
    "decimal": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
    "timestamp-micros": {"type": "long", "logicalType": "timestamp-micros"},
    "date": {"type": "int", "logicalType": "date"},
    "array": {"type": "array", "items": "double"},
    "map": {"type": "map", "values": "long"},
    "record": {"type": "record", "name": "P", "fields": [{"name": "x", "type": "long"}]},
}
"""The types of the page that Avro does not write as one word."""
MESSAGE = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message P { int64 x = 1; }
message Row {
  int64 int64 = 1; double double = 2; float float = 3; bool bool = 4; string string = 5; uint64 uint64 = 6;
  google.protobuf.Timestamp timestamp = 7; P p = 9; repeated double list = 10;
  map<string, int64> map = 11;
}
"""
FIELDS = {"Timestamp": "timestamp", "message": "p", "repeated double": "list", "map": "map"}
ROWS = ProtobufSource(compile_text(MESSAGE, {}), "Row")
ROW = GetMessageClass(Messages(ROWS.descriptors).find("Row"))


def in_avro(kind: str, text: str) -> tuple[Format, bytes, str]:
    """A record with this value, its format, and the name of its field."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": LOGICAL.get(kind, kind)}]}
    value = datetime.fromisoformat(text.strip('"')) if kind in ("date", "timestamp-micros") else None
    value = value or (Decimal(text) if kind == "decimal" else json.loads(text))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"a": value})
    return Avro((json.dumps(schema),)), out.getvalue(), "a"


def in_protobuf(kind: str, text: str) -> tuple[Format, bytes, str]:
    """The same in a message; a field of its name."""
    name = FIELDS.get(kind, kind)
    row = ROW()
    if kind == "Timestamp":
        row.timestamp.FromJsonString(text.strip('"'))
    elif kind in FIELDS:
        ParseDict({name: json.loads(text)}, row)
    else:
        setattr(row, name, json.loads(text))
    return Protobuf(ROWS), row.SerializeToString(), name


def cell(record: tuple[Format, bytes, str], type_: str, convert: Any = "fit") -> str:
    """What the page shows of this record: what lands, or that it is refused, at the start or as a dead letter."""
    format_, value, name = record
    try:
        found = decoded(format_, [value] * 3, schema=f"{name} {type_}", convert=convert)
    except TypeError:
        return REFUSED
    found.table.validate(full=True)
    (value_,) = {shown(each) for each in found.table.column(0).to_pylist()} or {REFUSED}
    assert len(found.rejects) == (3 if value_ == REFUSED else 0)
    return value_


TYPED = [
    (make, kind.strip("`"), cells[2].strip("`"), type_, wanted.strip("*").strip("`"), wanted.startswith("**"))
    for header, cells in tables("Avro")
    for make, kind in ((in_avro, cells[0]), (in_protobuf, cells[1]))
    if kind != "—"
    for type_, wanted in zip(header[3:], cells[3:], strict=True)
]


@pytest.mark.parametrize(("make", "kind", "text", "type_", "wanted", "bold"), TYPED)
def test_a_typed_value(make: Any, kind: str, text: str, type_: str, wanted: str, bold: bool) -> None:
    record = make(kind, text)
    assert cell(record, type_) == wanted
    assert cell(record, type_, "strict") == (wanted if bold else REFUSED)


def typed(text: str) -> tuple[str, str] | None:
    """The Avro and the Protobuf type of a JSON value of the page. None: no such value has one, or -0, which only texts hold."""
    value = json.loads(text)
    if text in ("-0", "1e400", "1e-400") or isinstance(value, (dict, list)) or value is None:
        return None
    if isinstance(value, bool):
        return "boolean", "bool"
    if isinstance(value, int):
        return ("long", "int64") if -(2**63) <= value < 2**63 else None
    return ("double", "double") if isinstance(value, float) else ("string", "string")


AS_JSON = [
    (make, kinds[at], text, type_, wanted)
    for text, type_, wanted, _ in cells_of("the record holds")
    if type_ != "BINARY" and (kinds := typed(text)) is not None
    for at, make in enumerate((in_avro, in_protobuf))
]
OPTIONS = [
    (make, kinds[at], {"default": yaml.safe_load(rule.strip("`"))}, text.strip("`"), type_, wanted.strip("`"))
    for _, (rule, text, type_, wanted) in tables("rule")
    if (kinds := typed(text.strip("`"))) is not None
    for at, make in enumerate((in_avro, in_protobuf))
]


@pytest.mark.parametrize(("make", "kind", "text", "type_", "wanted"), AS_JSON)
def test_a_json_value_that_has_a_type(make: Any, kind: str, text: str, type_: str, wanted: str) -> None:
    """It becomes what it becomes in JSON; of a double, no text is known but its shortest."""
    if kind == "double" and type_ == "STRING":
        wanted = json.dumps(str(json.loads(text)))
    assert cell(make(kind, text), type_) == wanted


@pytest.mark.parametrize(("make", "kind", "convert", "text", "type_", "wanted"), OPTIONS)
def test_an_option(make: Any, kind: str, convert: Any, text: str, type_: str, wanted: str) -> None:
    assert cell(make(kind, text), type_, convert) == wanted


def test_the_page_has_its_tables() -> None:
    assert len(TYPED) > 200
    assert len(AS_JSON) > 400
    assert len(OPTIONS) > 40


# Every place of a record, and every way to read it.


def written(schema: Any, *rows: Any) -> tuple[Avro, list[bytes]]:
    """Bodies of one schema, and their format."""
    bodies = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
        bodies.append(out.getvalue())
    return Avro((json.dumps(schema),)), bodies


def record(name: str, **types: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": types[each]} for each in types]}


def test_each_branch_of_a_union_is_converted_for_itself() -> None:
    union = ["null", "long", "string", "double", record("P", x="long"), {"type": "array", "items": "bytes"}]
    rows = [{"a": each} for each in (None, 2, "3", 4.0, "x", 2.5, {"x": 1})]
    format_, values = written(record("R", a=union), *rows)
    found = decoded(format_, values, schema="a BIGINT", convert="fit")
    assert found.table.column(0).to_pylist() == [None, 2, 3, 4]
    assert [(each.index, str(each.reason)) for each in found.rejects] == [
        (4, "field 'a' is not a valid BIGINT"),
        (5, "field 'a' has a fraction, which BIGINT cannot hold"),
        (6, "field 'a' is a record in the Avro schema, the column BIGINT"),
    ]
    texts = decoded(format_, values, schema="a STRING", convert="fit").table.column(0).to_pylist()
    assert texts == [None, "2", "3", "4.0", "x", "2.5", '{"x":1}']


DEEP = "s STRUCT<n: INT, b: BOOLEAN>, l ARRAY<BIGINT>, m MAP<STRING, DATE>, ls ARRAY<STRUCT<p: DECIMAL(9,2)>>"
DEEP_MESSAGE = """
syntax = "proto3";
message S { string n = 1; string b = 2; } message P { string p = 1; }
message R { S s = 1; repeated string l = 2; map<string, int64> m = 3; repeated P ls = 4; }
"""


@pytest.mark.parametrize("name", ["avro", "protobuf"])
def test_every_place_is_converted(name: str) -> None:
    good = {"s": {"n": "2", "b": "true"}, "l": ["1", "2.0"], "m": {"x": 1699920000}, "ls": [{"p": "1.5"}, {"p": "1e2"}]}
    bad = [{**good, **each} for each in ({"l": ["1", "x"]}, {"m": {"k": 1}}, {"ls": [{"p": "1e-3"}]})]
    if name == "avro":
        inner = record("S", n="string", b="string")
        text, listed = {"type": "array", "items": "string"}, {"type": "array", "items": record("P", p="string")}
        format_, values = written(
            record("R", s=inner, l=text, m={"type": "map", "values": "long"}, ls=listed), good, *bad
        )
        found = decoded(format_, values, schema=DEEP, convert="fit")
    else:
        source = ProtobufSource(compile_text(DEEP_MESSAGE, {}), "R")
        message = GetMessageClass(Messages(source.descriptors).find("R"))
        values = [ParseDict(each, message()).SerializeToString() for each in (good, *bad)]
        found = decoded(Protobuf(source), values, schema=DEEP, convert="fit")
    row = {
        "s": {"n": 2, "b": True},
        "l": [1, 2],
        "m": [("x", date(2023, 11, 14))],
        "ls": [{"p": Decimal("1.50")}, {"p": Decimal("100.00")}],
    }
    assert found.table.to_pylist() == [row]
    value = ".value" if name == "avro" else ""
    assert [str(each.reason) for each in found.rejects] == [
        "field 'l[]' is not a valid BIGINT",
        f"field 'm{value}' is a number, and its unit is not known: declare `epoch`",
        "field 'ls[].p' does not fit DECIMAL(9,2)",
    ]


def test_only_the_named_fields_are_converted() -> None:
    format_, values = written(record("R", a="string", b=["long", "string"]), {"a": "1", "b": 2}, {"a": "1", "b": "2"})
    found = decoded(format_, values, schema="a INT, b INT", convert={"fields": {"a": "fit"}})
    assert found.table.to_pylist() == [{"a": 1, "b": 2}]
    assert str(found.rejects[0].reason) == "field 'b' is a string in the Avro schema, the column INT"


def test_a_wrapper_counts_as_its_value() -> None:
    text = 'syntax = "proto3"; import "google/protobuf/wrappers.proto"; message R { google.protobuf.Int64Value a = 1; }'
    source = ProtobufSource(compile_text(text, {}), "R")
    message = GetMessageClass(Messages(source.descriptors).find("R"))
    values = [ParseDict(each, message()).SerializeToString() for each in ({"a": 1}, {})]
    for type_, wanted in (("STRING", "1"), ("BOOLEAN", True), ("BIGINT", 1)):
        found = decoded(Protobuf(source), values, schema=f"a {type_}", convert="fit")
        assert found.table.column(0).to_pylist() == [wanted, None]


def test_what_a_target_cannot_hold_is_refused_after_the_conversion() -> None:
    format_, values = written(record("R", a="long"), {"a": 12}, {"a": 123})
    (field,) = parse_schema("a STRING").fields
    fields = (replace(field, longest=2),)
    messages = [ROW(int64=12).SerializeToString(), ROW(int64=123).SerializeToString()]
    for each, some, name in ((format_, values, "a"), (Protobuf(ROWS), messages, "int64")):
        schema = replace(parse_schema("a STRING"), fields=tuple(replace(field, name=name) for field in fields))
        decoder = fitted(each, conversions_of(Convert.model_validate("fit"))).decoder(schema, max_record_bytes=2**20)
        found = decoder.decode(pa.array(some, pa.binary()))
        assert found.table.column(0).to_pylist() == ["12"]
        assert [str(each.reason) for each in found.rejects] == [f"field {name!r} is longer than 2 characters"]


def test_a_readers_schema_comes_first() -> None:
    """What Avro does not resolve, `fit` does not, either; what the reader's schema says, becomes the column's type."""
    _, values = written(record("R", a="int"), {"a": 2})
    wrote = json.dumps(record("R", a="int"))
    found = decoded(
        Avro((wrote,), reader=json.dumps(record("R", a="double"))), values, schema="a STRING", convert="fit"
    )
    assert found.table.column(0).to_pylist() == ["2.0"]
    with pytest.raises(TypeError, match="is an int in its own schema, and a string in the reader's"):
        decoded(Avro((wrote,), reader=json.dumps(record("R", a="string"))), values, schema="a STRING", convert="fit")


COLUMNS = ["BIGINT", "INT", "DOUBLE", "FLOAT", "DECIMAL(9,2)", "BOOLEAN", "STRING", "BINARY", "UUID"]
COLUMNS += ["TIMESTAMP", "TIMESTAMP_NTZ", "DATE", "TIME", "ARRAY<INT>", "STRUCT<x: INT>", "MAP<STRING, INT>"]
DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, MS, 2**53 + 1]),
    "float": st.floats(width=32) | st.sampled_from([0.0, 1.0, 2.5]),
    "double": st.floats() | st.integers(-100, 100).map(float),
    "boolean": st.booleans(),
    "string": st.text(max_size=5) | st.integers(-1000, 1000).map(str) | st.sampled_from(["true", "2026-11-18", "1e2"]),
    "bytes": st.binary(max_size=3),
    "decimal": st.decimals(-1000, 1000, places=2),
    "array": st.lists(st.floats(-5, 5), max_size=2),
    "record": st.just({"x": 1}),
}


@settings(max_examples=settings.default.max_examples // 2)
@given(st.data(), st.sampled_from(sorted(DRAWN)), st.sampled_from(COLUMNS))
def test_what_strict_takes_fit_takes_as_the_same_value(data: st.DataObject, kind: str, type_: str) -> None:
    drawn = data.draw(st.lists(DRAWN[kind], min_size=1, max_size=8))
    format_, values = written(record("R", a=LOGICAL.get(kind, kind)), *({"a": each} for each in drawn))
    try:
        strict = decoded(format_, values, schema=f"a {type_}", convert="strict")
    except TypeError:
        with suppress(TypeError):
            decoded(format_, values, schema=f"a {type_}", convert="fit").table.validate(full=True)
        return
    fit = decoded(format_, values, schema=f"a {type_}", convert="fit")
    rows = dict(zip(fit.kept.tolist(), map(repr, fit.table.to_pylist()), strict=True))
    assert {at: rows.get(at) for at in strict.kept.tolist()} == dict(
        zip(strict.kept.tolist(), map(repr, strict.table.to_pylist()), strict=True)
    )


@pytest.mark.parametrize("convert", ["strict", "fit"])
@pytest.mark.parametrize("type_", ["DECIMAL(38,10)", "DECIMAL(9,2)", "DECIMAL(38,0)", "DECIMAL(2,2)"])
def test_a_text_with_many_digits_is_no_other_number(type_: str, convert: str) -> None:
    """Arrow lets the digits beyond 128 bits wrap around: 39 nines are a negative number to it."""
    precision, scale = map(int, type_[8:-1].split(","))
    counts = (1, 2, 9, 28, 29, 38, 39, 77, 200, 1000)
    shapes = (
        ("9" * each for each in counts),
        ("0." + "1" * each for each in counts),
        ("1." + "0" * each for each in counts),
    )
    texts = [*(text for each in shapes for text in each), *("-" + "1" * each + ".10" for each in counts)]
    texts += ["0" * each + ".1" for each in counts]
    scaled = [Fraction(each) * 10**scale for each in texts]
    wanted = {at: each for at, each in enumerate(scaled) if each.denominator == 1 and abs(each) < 10**precision}
    of_avro, values = written(record("R", a="string"), *({"a": each} for each in texts))
    messages = [ROW(string=each).SerializeToString() for each in texts]
    lines = [each.encode() for each in texts]
    for format_, some, schema in (
        (of_avro, values, f"a {type_}"),
        (Protobuf(ROWS), messages, f"string {type_}"),
        (Csv(("a",)), lines, f"a {type_}"),
    ):
        found = decoded(format_, some, schema=schema, convert=convert)
        landed = zip(found.kept.tolist(), found.table.column(0).to_pylist(), strict=True)
        assert {at: Fraction(each) * 10**scale for at, each in landed} == wanted, format_
    (field,) = parse_schema(f"a {type_}").fields
    keys, _ = settle_keys(pa.array(texts), field.type, field)  # of maps, in JSON
    assert {at: Fraction(each) * 10**scale for at, each in enumerate(keys.to_pylist()) if each is not None} == wanted


# Records that change rows.


class Keyed:
    def __init__(self, key: bytes | None) -> None:
        self._key = key

    def key(self) -> bytes | None:
        return self._key


def changed(format_: Format, keys: Format, how: Changes, values: list[bytes | None], key: bytes | None) -> Decoded:
    decoder_of.cache_clear()
    decoding = Decoding(format_, keys, convert=conversions_of(Convert.model_validate("fit")))
    decode = decoder_of(parse_schema("id BIGINT NOT NULL, v INT"), decoding, ("id",), how)
    messages: Any = [Keyed(key)] * len(values)
    return decode(pa.array(values, pa.binary()), messages)


UPDATED, DELETED = {"_op": "U", "id": 1, "v": 2}, {"_op": "D", "id": 1, "v": None}


def test_a_tombstone_deletes_the_row_of_its_converted_key() -> None:
    format_, (value,) = written(record("R", id="string", v="string"), {"id": "1", "v": "2.0"})
    keys, (key,) = written(record("K", id="double"), {"id": 1.0})
    bare, (text,) = written("string", "1")
    for each, held in ((keys, key), (bare, text)):
        assert changed(format_, each, Changes("upsert"), [value, None], held).table.to_pylist() == [UPDATED, DELETED]


def test_a_tombstone_with_a_message_as_its_key() -> None:
    source = ProtobufSource(compile_text('syntax = "proto3"; message R { string id = 1; string v = 2; }', {}), "R")
    message = GetMessageClass(Messages(source.descriptors).find("R"))
    value, key = message(id="1", v="2.0").SerializeToString(), message(id="1.0").SerializeToString()
    found = changed(Protobuf(source), Protobuf(source), Changes("upsert"), [value, None], key)
    assert found.table.to_pylist() == [UPDATED, DELETED]


@pytest.mark.parametrize("name", ["avro", "protobuf"])
def test_debeziums_images_are_converted(name: str) -> None:
    """An identity that is written in another way is the same one."""
    rows: list[dict[str, Any]] = [
        {"op": "u", "before": {"id": "1.0", "v": "7"}, "after": {"id": "1", "v": "2"}},
        {"op": "d", "before": {"id": "1", "v": "x"}, "after": None},
        {"op": "u", "before": {"id": "3", "v": "7"}, "after": {"id": "1", "v": "2"}},
    ]
    if name == "avro":
        image = record("Value", id="string", v="string")
        format_, values = written(record("E", op="string", before=["null", image], after=["null", "Value"]), *rows)
    else:
        text = 'syntax = "proto3"; message V { string id = 1; string v = 2; } message E { string op = 1; V before = 2; V after = 3; }'
        source = ProtobufSource(compile_text(text, {}), "E")
        message = GetMessageClass(Messages(source.descriptors).find("E"))
        format_ = Protobuf(source)
        values = [ParseDict(each, message()).SerializeToString() for each in rows]
    found = changed(format_, format_, Changes("debezium"), [*values], None)
    assert found.table.to_pylist() == [UPDATED, DELETED]
    assert [str(each.reason) for each in found.rejects] == ["field 'id' is part of the identity and changed in place"]


def test_no_value_of_a_type_that_fits_no_column_widens_or_stops_it() -> None:
    """`evolve` looks at schemas: a text in an integer column is converted, and a long in an INT column widens it."""
    schema = parse_schema("id BIGINT, v INT")
    quoted, values = written(record("R", id="string", v="string", new="string"), {"id": "1", "v": "2", "new": "x"})
    found = observed([pa.array(values, pa.binary())], schema, quoted)
    assert found is not None
    assert [path for path, _ in found.added] == [("new",)]
    assert not found.widened
    long, values = written(record("R", id="string", v="long"), {"id": "1", "v": 2})
    found = observed([pa.array(values, pa.binary())], schema, long)
    assert found is not None
    assert found.widened == ((("v",), pa.int64()),)


@pytest.mark.parametrize("format_", ["{avro: {schema: a.avsc}}", "{protobuf: {schema: a.proto}}"])
def test_the_pipeline_file_takes_it(format_: str, tmp_path: Path) -> None:
    made = parse(PIPELINE % (format_, "fit", ""), tmp_path / "p.yaml")
    assert made.source.kafka.convert.fits
