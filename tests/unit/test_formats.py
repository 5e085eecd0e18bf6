"""CSV, bytes, text, Confluent's framing, and the columns that a record itself fills. The oracle of CSV is the standard library."""

from __future__ import annotations

import csv
import io
import json
import pickle
import struct
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from corpus.protobuf_messages import DESCRIPTORS
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from landonce.config.source import Convert, RecordFormat
from landonce.errors import ConfigError
from landonce.protocol.reasons import Code
from landonce.read.decoding import Decoding, conversions_of, decoder_of, format_of
from landonce.read.formats import Decoded, Format
from landonce.read.formats.avro.decode import Avro
from landonce.read.formats.protobuf.format import Protobuf
from landonce.read.formats.protobuf.source import ProtobufSource
from landonce.read.schema.ddl import parse_schema
from landonce.read.schema.fields import JSON, Field, Schema
from landonce.sinks.pipeline_file import parse


@dataclass(frozen=True)
class Sent:
    """A record as Kafka's client gives it."""

    value_: bytes | None
    key_: bytes | None = None
    headers_: Any = None
    at: tuple[int, int] = (1, 1_700_000_000_123)

    def offset(self) -> int:
        return 0

    def timestamp(self) -> tuple[int, int]:
        return self.at

    def key(self) -> bytes | None:
        return self.key_

    def value(self) -> bytes | None:
        return self.value_

    def headers(self) -> Any:
        return self.headers_


def decoded(section: Any, schema: str, *sent: Sent, keys: Any = "json", limit: int = 2**20) -> Decoded:
    formats = [format_of(RecordFormat.model_validate(each)) for each in (section, keys)]
    decoding = pickle.loads(pickle.dumps(Decoding(*formats, limit)))
    return decoder_of(parse_schema(schema), decoding)(pa.array([each.value_ for each in sent], pa.binary()), sent)


def values(section: Any, schema: str, *records: bytes | None, **more: Any) -> Decoded:
    return decoded(section, schema, *map(Sent, records), **more)


CSV = {"csv": {"columns": ["a", "b", "c"]}}
SCHEMA = "a BIGINT NOT NULL, b STRING, c DOUBLE"


def test_a_line_becomes_the_fields_that_its_columns_name() -> None:
    found = values(CSV, "c DOUBLE, a BIGINT, elsewhere STRING", b"1,x,2.5", b"+2,y,-1e3\r\n")
    assert found.table.to_pylist() == [{"c": 2.5, "a": 1, "elsewhere": None}, {"c": -1000.0, "a": 2, "elsewhere": None}]


def test_an_empty_value_is_null_unless_it_is_quoted() -> None:
    assert values(CSV, "b STRING", b"1,,", b'1,"",').table.column("b").to_pylist() == [None, ""]
    assert values({"csv": {"columns": ["a"], "null": "NA"}}, "a STRING", b"NA", b'"NA"').table.column(
        0
    ).to_pylist() == [
        None,
        "NA",
    ]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"1,x", "has 2 values, not 3"),
        (b"", "has 1 value, not 3"),
        (b"1,x,2,3", "has 4 values, not 3"),
        (b"1,x,2\n3,y,4", "is more than one line"),
        (b'1,"x,2', "has 2 values, not 3"),
        (b'1,x,"2', "leaves a quote open"),
        (b"one,x,2", "field 'a' is not a valid BIGINT"),
        (b"1.0,x,2", "field 'a' is not a valid BIGINT"),
        (b"9223372036854775808,x,2", "field 'a' is out of the range of BIGINT"),
        (b"\xef\xbb\xbf1,x,2", "begins with a byte order mark"),
        (b'\xef\xbb\xbf"1",x,2', "begins with a byte order mark"),
        (b",x,2", "missing required field 'a'"),
        (b"1,x,1e999", "field 'c' is not a valid DOUBLE"),
        (b"1,x,NaN", "field 'c' is not a valid DOUBLE"),
        (b"1,\xff,2", "not valid UTF-8"),
        (None, "no value (a tombstone)"),
        (b"1," + b"x" * 60 + b",2", "record of 64 bytes exceeds max_record_bytes=50"),
    ],
)
def test_a_bad_line_is_rejected_alone(record: bytes | None, reason: str) -> None:
    good = b'7,"fi,ne",1'
    found = values(CSV, SCHEMA, good, record, good, limit=50)
    assert found.table.to_pylist() == [{"a": 7, "b": "fi,ne", "c": 1.0}] * 2
    assert [(each.index, each.reason) for each in found.rejects] == [(1, reason)]


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("BOOLEAN", "TRUE", True),
        ("BOOLEAN", "0", False),
        ("SMALLINT", "-32768", -32768),
        ("FLOAT", ".5", 0.5),
        ("DATE", "2026-11-18", datetime(2026, 11, 18).date()),
        ("TIMESTAMP", "2026-11-18T10:00:00+02:00", datetime(2026, 11, 18, 8, tzinfo=timezone.utc)),
        ("STRING", " x ", " x "),
    ],
)
def test_text_becomes_every_type(type_: str, text: str, value: object) -> None:
    assert values({"csv": {"columns": ["v"]}}, f"v {type_}", text.encode()).table.column(0).to_pylist() == [value]


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("JSON", '{"a": [1, 2.50]}', '{"a": [1, 2.50]}'),
        ("JSON", ' "x" ', '"x"'),
        ("JSON", "null", None),
        ("ARRAY<BIGINT>", "[1,2]", [1, 2]),
        ("MAP<STRING, DATE>", '{"a": "2026-11-18"}', [("a", datetime(2026, 11, 18).date())]),
        ("STRUCT<a: DECIMAL(4, 2), b: ARRAY<STRING>>", '{"b": [], "a": 1.5}', {"a": Decimal("1.50"), "b": []}),
    ],
)
def test_what_has_no_other_text_is_read_as_json(type_: str, text: str, value: object) -> None:
    quoted = '"' + text.replace('"', '""') + '"'
    found = values({"csv": {"columns": ["x", "v"]}}, f"v {type_}, x INT", f"1,{quoted}".encode(), b"2,", b"3,[1")
    assert found.table.to_pylist() == [{"v": value, "x": 1}, {"v": None, "x": 2}]
    assert [(each.index, str(each.reason)) for each in found.rejects] == [(2, "field 'v' is not valid JSON")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('1, "x": 2', "field 'v' is not valid JSON"),
        ('1}{"v": 2', "field 'v' is not valid JSON"),
        ("NaN", "field 'v' should be ARRAY<BIGINT> but is NaN or Infinity"),
        ("", "field 'v' is not valid JSON"),
        ('[{"a": 1}]', "field 'v[]' should be BIGINT but is an object"),
        ("[1.5]", "field 'v[]' should be BIGINT but is a number with a fraction"),
        ("null", "missing required field 'v'"),
    ],
)
def test_json_in_a_line_is_one_value_of_its_type(text: str, reason: str) -> None:
    quoted = '"' + text.replace('"', '""') + '"'
    found = values({"csv": {"columns": ["v"]}}, "v ARRAY<BIGINT> NOT NULL", b'"[7]"', quoted.encode(), b'"[8]"')
    assert found.table.to_pylist() == [{"v": [7]}, {"v": [8]}]
    (reject,) = found.rejects
    assert reject.index == 1
    assert str(reject.reason).startswith(reason)


def test_a_column_that_no_line_fills_may_have_any_type() -> None:
    arrow = pa.struct([("at", pa.month_day_nano_interval())])
    schema = Schema((Field("a", pa.int64()), Field("odd", arrow), Field.unfilled("never", "geometry")))
    decode = decoder_of(schema, Decoding(format_of(RecordFormat.model_validate({"csv": {"columns": ["a"]}}))))
    found = decode(pa.array([b"1", b"2"], pa.binary()), [Sent(b"1"), Sent(b"2")])
    assert found.table.to_pylist() == [{"a": 1, "odd": None}, {"a": 2, "odd": None}]
    with pytest.raises((TypeError, ValueError), match="odd"):
        decoder_of(schema, Decoding(format_of(RecordFormat.model_validate({"csv": {"columns": ["odd"]}}))))


def test_a_value_for_a_column_that_is_never_filled_is_a_dead_letter() -> None:
    schema = Schema((Field("a", pa.int64()), Field.unfilled("never", "geometry")))
    decode = decoder_of(schema, Decoding(format_of(RecordFormat.model_validate({"csv": {"columns": ["a", "never"]}}))))
    found = decode(pa.array([b"1,", b"2,x"], pa.binary()), [Sent(b"1,"), Sent(b"2,x")])
    assert found.table.to_pylist() == [{"a": 1}]
    assert [str(each.reason) for each in found.rejects] == [
        "field 'never' has a value, and its column is geometry, which no record can fill exactly"
    ]


def test_a_conversion_of_lines_leaves_json_strict() -> None:
    section = {"csv": {"columns": ["n", "v"]}}
    conversions = conversions_of(Convert.model_validate("fit"))
    decoding = Decoding(format_of(RecordFormat.model_validate(section)), convert=conversions)
    sent = [Sent(b'2.0,"[1]"'), Sent(b'2.0,"[""1""]"')]
    found = decoder_of(parse_schema("n INT, v ARRAY<BIGINT>"), decoding)(pa.array([each.value_ for each in sent]), sent)
    assert found.table.to_pylist() == [{"n": 2, "v": [1]}]
    assert [each.index for each in found.rejects] == [1]


def test_decimals_are_exact() -> None:
    found = values({"csv": {"columns": ["v"]}}, "v DECIMAL(5, 2)", b"123.45", b"0.1", b"1.234", b"1234.5", b"1e2")
    assert [str(each) for each in found.table.column(0).to_pylist()] == ["123.45", "0.10"]
    assert [each.index for each in found.rejects] == [2, 3, 4]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=5), min_size=2, max_size=2)
    )
)
def test_lines_are_read_as_the_standard_library_writes_them(rows: list[list[str]]) -> None:
    def line(row: list[str]) -> bytes:
        text = io.StringIO()
        csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="").writerow(row)
        return text.getvalue().encode()

    found = values({"csv": {"columns": ["x", "y"]}}, "x STRING, y STRING", *map(line, rows))
    assert [list(each.values()) for each in found.table.to_pylist()] == rows


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text('a,"\n', max_size=6).map(str.encode), max_size=12))
def test_what_becomes_of_a_line_does_not_depend_on_its_neighbours(records: list[bytes]) -> None:
    section, schema = {"csv": {"columns": ["x", "y"]}}, "x STRING, y STRING"
    together = values(section, schema, *records)
    alone = [values(section, schema, each) for each in records]
    assert together.table.to_pylist() == [row for each in alone for row in each.table.to_pylist()]
    assert [each.reason for each in together.rejects] == [reject.reason for each in alone for reject in each.rejects]


WRITTEN = {
    "BIGINT": ["1", "x", "9223372036854775808", "1.0", '""', " 1", "+1", ""],
    "DOUBLE": ["1.5", "x", "1e999", "9007199254740993", "NaN", "-0", ".5", ""],
    "FLOAT": ["1.5", "x", "16777217", "1e39", "1e-300", ""],
    "DECIMAL(5,2)": ["1.25", "1.255", "x", "1e1", "1000", ".5", "1.250", ""],
    "BOOLEAN": ["true", "1", "x", "yes", ""],
    "TIMESTAMP": [
        "2026-01-01",
        "2026-01-01T00:00:00Z",
        "2026-01-01 10:00:00+02",
        "x",
        "2026-01-01T00:00:00.1234567",
        "",
    ],
    "DATE": ["2026-01-01", "x", "2026-01-01T00:00:00", "2026-02-30", ""],
    "TIME": ["10:00", "x", "24:00", "10:00:00.1234567", ""],
    "BINARY": ["aGk=", "x", "aR==", ""],
}


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from([*WRITTEN]).flatmap(
        lambda each: st.tuples(st.just(each), st.lists(st.sampled_from(WRITTEN[each])))
    ),
    st.sampled_from(["", " NOT NULL"]),
    st.sampled_from(["strict", "fit"]),
)
def test_what_becomes_of_a_value_does_not_depend_on_its_neighbours(
    drawn: tuple[str, list[str]], required: str, convert: str
) -> None:
    type_, texts = drawn
    section = format_of(RecordFormat.model_validate({"csv": {"columns": ["i", "v"]}}))
    decoding = Decoding(section, convert=conversions_of(Convert.model_validate(convert)))
    decode = decoder_of(parse_schema(f"i INT, v {type_}{required}"), decoding)
    sent = [Sent(f"1,{each}".encode()) for each in texts]
    together = decode(pa.array([each.value_ for each in sent], pa.binary()), sent)
    alone = [decode(pa.array([each.value_], pa.binary()), [each]) for each in sent]
    assert together.table.to_pylist() == [row for each in alone for row in each.table.to_pylist()]
    assert [each.reason for each in together.rejects] == [reject.reason for each in alone for reject in each.rejects]
    assert all((row["v"] is None) <= (text in ("", '""')) for row, text in _landed(together, texts))


def _landed(found: Decoded, texts: list[str]) -> list[tuple[dict[str, Any], str]]:
    return list(zip(found.table.to_pylist(), (texts[at] for at in found.kept), strict=True))


@pytest.mark.parametrize("type_", ["DOUBLE", "FLOAT"])
def test_an_integer_that_no_float_holds_does_not_make_bad_floats_null(type_: str) -> None:
    texts = ["abc", "1e999", "NaN", "9007199254740993", "2.5", ""]
    found = values({"csv": {"columns": ["i", "v"]}}, f"i INT, v {type_}", *(f"1,{each}".encode() for each in texts))
    assert found.table.to_pylist() == [{"i": 1, "v": 2.5}, {"i": 1, "v": None}]
    invalid, inexact = f"field 'v' is not a valid {type_}", f"field 'v' is an integer that {type_} cannot hold exactly"
    assert [str(each.reason) for each in found.rejects] == [invalid, invalid, invalid, inexact]
    keys = [Sent(b"", each) for each in (b"abc", b"9007199254740993", b"2.5", None)]
    assert decoded("raw", f"_key {type_}", *keys).table.to_pylist() == [{"_key": 2.5}, {"_key": None}]


@pytest.mark.parametrize("null", ["0", "1", "2", "00", "12"])
def test_a_number_may_mean_null(null: str) -> None:
    lines = [f"{each},x".encode() for each in (null, "7", "3", "0000", null)]
    found = values({"csv": {"columns": ["a", "b"], "null": null}}, "a BIGINT, b STRING", *lines)
    assert [each["a"] for each in found.table.to_pylist()] == [None, 7, 3, 0, None]
    assert not found.rejects


LEAST = {"FLOAT": 1e-45, "DOUBLE": 5e-324}
"""About the least numbers above 0."""


@pytest.mark.parametrize("convert", ["strict", "fit"])
@pytest.mark.parametrize("section", ["json", {"csv": {"columns": ["i", "v"]}}], ids=["json", "csv"])
@pytest.mark.parametrize("type_", ["FLOAT", "DOUBLE"])
def test_a_number_that_its_type_would_hold_as_0_is_a_dead_letter(type_: str, section: Any, convert: str) -> None:
    tiny = {
        "FLOAT": ["1e-46", "-7e-46", "1E-0300", f"0.{'0' * 46}1", f"0.{'0' * 40}1e-9"],
        "DOUBLE": ["1e-400", "-2e-324"],
    }
    fine = {"FLOAT": ["1e-45", "1.17e-38"], "DOUBLE": ["5e-324", "1e-300"]}[type_]
    zero = ["0", "0.0", "-0.0", "0e-300", f"0.{'0' * 60}"]
    texts = [*tiny[type_], *fine, *zero]
    line = '{"i":1,"v":%s}' if section == "json" else "1,%s"
    sent = [Sent((line % each).encode()) for each in texts]
    known = format_of(RecordFormat.model_validate(section))
    decoding = Decoding(known, convert=conversions_of(Convert.model_validate(convert)))
    found = decoder_of(parse_schema(f"i INT, v {type_}"), decoding)(pa.array([each.value_ for each in sent]), sent)
    landed = [texts[at] for at in found.kept]
    assert landed == [*fine, *zero]
    assert [each["v"] == 0 for each in found.table.to_pylist()] == [False] * len(fine) + [True] * len(zero)
    assert {str(each.reason) for each in found.rejects} == {"field 'v' is too close to 0 for its type"}
    assert {each.reason.code for each in found.rejects} == {Code.INEXACT}


def test_a_number_inside_that_its_type_would_hold_as_0_is_a_dead_letter() -> None:
    schema = "v ARRAY<FLOAT>, m MAP<STRING, FLOAT>, s STRUCT<x: ARRAY<STRUCT<y: FLOAT>>>"
    rows = [
        b'{"v":[0,1],"m":{"1e-99":0},"s":{"x":[{"y":0.0}]}}',
        b'{"v":[0,1,1e-99]}',
        b'{"m":{"a":2,"b":1e-99}}',
        b'{"s":{"x":[{"y":0},{"y":1e-99}]}}',
        b'{"v":[0],"more":1e-99}',
    ]
    found = values("json", schema, *rows)
    assert found.kept.tolist() == [0, 4]
    assert [(each.index, each.reason.field) for each in found.rejects] == [(1, "v[]"), (2, "m[]"), (3, "s.x[].y")]


def test_a_double_of_a_schema_that_a_float_would_hold_as_0_is_a_dead_letter() -> None:
    """Any other becomes the nearest float."""
    written = [0.0, -0.0, 0.1, 1e-300, -1e-60, 1e-45, 1e300]
    message = orders_of_doubles(written)
    for known, bodies in ((Avro(('"double"',)).alone(), [of_avro('"double"', each) for each in written]), message):
        decode = decoder_of(parse_schema("v FLOAT"), Decoding(known))
        found = decode(pa.array(bodies, pa.binary()), [Sent(each) for each in bodies])
        assert found.kept.tolist() == [0, 1, 2, 5]
        assert found.table.column("v").to_pylist()[2] == pa.scalar(0.1, pa.float32()).as_py()
        assert {(str(each.reason), each.reason.code) for each in found.rejects} == {
            ("field 'v' does not fit FLOAT", Code.OUT_OF_RANGE)
        }


@pytest.mark.parametrize("type_", ["DECIMAL(5,2)", "DECIMAL(38,0)", "DECIMAL(38,10)"])
def test_avros_strings_become_decimals_as_protobufs_do(type_: str) -> None:
    texts = [
        "1.5",
        "-12.34",
        "7",
        "+7",
        ".5",
        "5.",
        "007",
        "1e2",
        "",
        " 1",
        "abc",
        "1.234",
        "123456",
        "9" * 70,
        "NaN",
        "1,5",
    ]
    file = descriptor_pb2.FileDescriptorProto(name="v.proto", syntax="proto3")
    file.message_type.add(name="V").field.add(name="v", number=1, type=9, label=1, proto3_optional=True, oneof_index=0)
    file.message_type[0].oneof_decl.add(name="_v")
    listed = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    messages = [b"\x0a" + bytes([len(each)]) + each.encode() for each in texts]
    both = []
    for known, bodies in (
        (Avro(('"string"',)).alone(), [of_avro('"string"', each) for each in texts]),
        (Protobuf(ProtobufSource(listed, "V")), messages),
    ):
        decode = decoder_of(parse_schema(f"v {type_}"), Decoding(known))
        found = decode(pa.array(bodies, pa.binary()), [Sent(each) for each in bodies])
        both.append((found.kept.tolist(), found.table.column("v").to_pylist()))
    assert both[0] == both[1]
    assert both[0][0]


def orders_of_doubles(written: list[float]) -> tuple[Protobuf, list[bytes]]:
    """Messages with one field, and their format."""
    file = descriptor_pb2.FileDescriptorProto(name="v.proto", syntax="proto3")
    file.message_type.add(name="V").field.add(name="v", number=1, type=1, label=1)
    listed = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return Protobuf(ProtobufSource(listed, "V")), [b"\x09" + struct.pack("<d", each) for each in written]


def test_tabs() -> None:
    assert values({"tsv": {"columns": ["a", "b"]}}, "a STRING, b STRING", b"x\ty,z").table.to_pylist() == [
        {"a": "x", "b": "y,z"}
    ]


def test_confluents_framing_is_taken_off() -> None:
    framed = b"\0\0\0\0\x07"
    found = values(
        {"json": {"framing": "confluent"}}, "a BIGINT", framed + b'{"a":1}', b'{"a":2}', b"\0\0", None, framed
    )
    assert found.table.to_pylist() == [{"a": 1}]
    unframed = "does not begin with Confluent's framing"
    assert [each.reason for each in found.rejects] == [unframed, unframed, "no value (a tombstone)", "empty value"]


def test_bytes_and_text_are_the_value_itself() -> None:
    assert values("raw", "_value BINARY", b"\xff\0", None).table.column(0).to_pylist() == [b"\xff\0", None]
    found = values("string", "_value STRING NOT NULL", "ä".encode(), b"\xff", None)
    assert found.table.column(0).to_pylist() == ["ä"]
    assert [each.reason for each in found.rejects] == [
        "field '_value' is not valid UTF-8",
        "missing required field '_value'",
    ]


def test_no_record_forges_the_numbers_of_its_neighbours() -> None:
    """Records are numbered to tell them apart: one that holds lines with numbers, and a quote that the next record closes."""
    found = values({"csv": {"columns": ["a"]}}, "a STRING", b'a\n1,FORGED\n2,"x', b"hello", b'y"')
    assert [(int(at), row["a"]) for at, row in zip(found.kept, found.table.to_pylist(), strict=True)] == [
        (1, "hello"),
        (2, 'y"'),
    ]


def test_bytes_and_text_need_the_column_of_the_value() -> None:
    with pytest.raises(ValueError, match="needs the column _value"):
        values("raw", "id BIGINT", b"x")
    with pytest.raises(ValueError, match="have no fields"):
        decoded("raw", "_key STRUCT<id: BIGINT>", Sent(b"", b"x"), keys="string")


def of_avro(schema: str, value: object) -> bytes:
    found = io.BytesIO()
    fastavro.schemaless_writer(found, fastavro.parse_schema(json.loads(schema)), value)
    return found.getvalue()


@pytest.mark.parametrize(
    ("schema", "type_", "written"),
    [
        ('"long"', "BIGINT", [24, -25, 1000, -1585]),
        ('"long"', "DOUBLE", [24, -25]),
        ('"string"', "STRING", ["abc", ""]),
        ('["null", "long"]', "BIGINT", [5, None]),
        ('{"type": "fixed", "name": "F", "size": 2}', "STRING", [b"ab"]),
        ('"double"', "DOUBLE", [2.5]),
    ],
)
@pytest.mark.parametrize("reader", [False, True])
def test_a_key_of_one_value_is_decoded_by_its_format(
    schema: str, type_: str, written: list[object], reader: bool
) -> None:
    """The bytes of 24 are those of the text `0`."""
    decoding = Decoding(keys=Avro((schema,), reader=schema if reader else None))
    sent = [Sent(b"{}", of_avro(schema, each)) for each in written]
    sent += [Sent(b"{}"), Sent(b"{}", of_avro(schema, written[0]) + b"x")]
    made = decoder_of(parse_schema(f"_key {type_}"), decoding)(pa.array([each.value_ for each in sent]), sent)
    plain = [each.decode() if isinstance(each, bytes) else each for each in written]
    assert made.table.column("_key").to_pylist() == [*plain, None]
    assert [(each.index, each.reason.code) for each in made.rejects] == [(len(sent) - 1, Code.BAD_KEY)]


def test_a_key_of_one_value_that_the_column_cannot_hold_is_a_dead_letter() -> None:
    sent = [Sent(b"{}", of_avro('"long"', each)) for each in (7, 2**40)] + [Sent(b"{}")]
    decode = decoder_of(parse_schema("_key INT NOT NULL"), Decoding(keys=Avro(('"long"',))))
    made = decode(pa.array([each.value_ for each in sent]), sent)
    assert made.table.to_pylist() == [{"_key": 7}]
    assert [(str(each.reason), each.reason.field) for each in made.rejects] == [
        ("its key: field '_key' does not fit INT", "_key"),
        ("missing required field '_key'", "_key"),
    ]


@pytest.mark.parametrize(
    ("keys", "type_"),
    [
        ({"csv": {"columns": ["a"]}}, "BIGINT"),
        ({"tsv": {"columns": ["a"]}}, "STRING"),
        ({"json": {"framing": "confluent"}}, "STRING"),
        (Avro(('{"type": "record", "name": "K", "fields": [{"name": "a", "type": "long"}]}',)), "BIGINT"),
        (Protobuf(ProtobufSource(DESCRIPTORS, "Order")), "STRING"),
    ],
    ids=["csv", "tsv", "framed", "avro", "protobuf"],
)
def test_a_key_with_fields_does_not_become_a_single_value(keys: Any, type_: str) -> None:
    known = keys if isinstance(keys, Format) else format_of(RecordFormat.model_validate(keys))
    with pytest.raises((TypeError, ConfigError), match=r"field '_key' is a record|key_format: the column _key is"):
        decoder_of(parse_schema(f"_key {type_}"), Decoding(keys=known))
    sent = [Sent(b"{}", b"\0\xff")]
    made = decoder_of(parse_schema("_key BINARY"), Decoding(keys=known))(pa.array([b"{}"]), sent)
    assert made.table.to_pylist() == [{"_key": b"\0\xff"}]


def test_records_without_fields_fill_no_column_that_must_be_filled() -> None:
    assert values("raw", "_value BINARY, more BIGINT", b"x").table.to_pylist() == [{"_value": b"x", "more": None}]
    with pytest.raises(ValueError, match="have no 'id', and the table requires it"):
        values("raw", "_value BINARY, id BIGINT NOT NULL", b"x")


def test_a_record_fills_its_own_columns_beside_its_fields() -> None:
    one = Sent(b'{"a":1,"_key":"not this"}', b"k1", [("h", b"1"), ("h", b"2"), ("empty", None)])
    bad = Sent(b"{", b"k2")
    found = decoded(
        "json", "_key STRING, a BIGINT, _headers MAP<STRING, BINARY>, _timestamp TIMESTAMP(3)", one, bad, one
    )
    row = {
        "_key": "k1",
        "a": 1,
        "_headers": [("h", b"2"), ("empty", None)],
        "_timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=timezone.utc),
    }
    assert found.table.to_pylist() == [row, row]
    assert [each.index for each in found.rejects] == [1]


def test_headers_in_their_other_forms() -> None:
    record = Sent(b"", None, [("h", b"1"), ("h", "ü".encode())])
    pairs = decoded("raw", "_headers ARRAY<STRUCT<name: STRING, content: STRING>>", record).table.column(0).to_pylist()
    assert pairs == [[{"name": "h", "content": "1"}, {"name": "h", "content": "ü"}]]
    (text,) = decoded("raw", "_headers STRING", record).table.column(0).to_pylist()
    assert json.loads(text) == {"h": "ü"}
    unreadable = decoded("raw", "_headers STRING", Sent(b"", None, [("h", b"\xff")]))
    assert [each.reason for each in unreadable.rejects] == ["field '_headers' is not valid UTF-8"]


def test_keys_are_decoded_by_a_format_of_their_own() -> None:
    sent = [Sent(b"", b'{"id":7}'), Sent(b"", None), Sent(b"", b"{")]
    found = decoded("raw", "_key STRUCT<id: BIGINT NOT NULL>", *sent)
    assert found.table.column(0).to_pylist() == [{"id": 7}, None]
    assert [(each.index, each.reason[:8]) for each in found.rejects] == [(2, "its key:")]
    lines = decoded(
        "raw", "_key STRUCT<a: BIGINT, b: STRING>", Sent(b"", b"1,x"), keys={"csv": {"columns": ["a", "b"]}}
    )
    assert lines.table.column(0).to_pylist() == [{"a": 1, "b": "x"}]
    assert decoded("raw", "_key BIGINT", Sent(b"", b"12")).table.column(0).to_pylist() == [12]


def test_a_key_keeps_the_limits_and_names_of_its_parts() -> None:
    parts = (Field("id", pa.int64(), aliases=("ID",)), Field("on", pa.date32(), bounds=(0, 65_535)))
    type_ = pa.struct([("id", pa.int64()), ("on", pa.date32()), ("more", JSON)])
    key = Field("_key", type_, inner=(*parts, Field("more", JSON)), inner_aliases=((("id",), ("ID",)),))
    sent = [Sent(b"", b'{"ID":1,"on":"2026-11-18","more":[1]}'), Sent(b"", b'{"on":"1969-12-31"}')]
    found = decoder_of(Schema((key,)), Decoding())(pa.array([b"", b""]), sent)
    assert [each["_key"]["id"] for each in found.table.to_pylist()] == [1]
    assert found.table.to_pylist()[0]["_key"]["more"] == "[1]"
    assert [each.index for each in found.rejects] == [1]
    folded = decoder_of(replace(parse_schema("_key STRUCT<id: BIGINT>"), fold_case=True), Decoding())
    assert folded(pa.array([b""]), [Sent(b"", b'{"ID":7}')]).table.to_pylist() == [{"_key": {"id": 7}}]


def test_a_header_without_a_value_needs_a_place_for_null() -> None:
    headers = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
    found = decoder_of(Schema((Field("_headers", headers),)), Decoding())(
        pa.array([b"", b""]), [Sent(b"", None, [("h", None)]), Sent(b"", None, [("h", b"x")])]
    )
    assert [(each.index, each.reason) for each in found.rejects] == [(0, "field '_headers' holds a null")]


def test_a_record_without_a_timestamp_has_none() -> None:
    assert decoded("raw", "_timestamp TIMESTAMP", Sent(b"", at=(0, -1))).table.column(0).to_pylist() == [None]


@pytest.mark.parametrize(
    "schema",
    ["_timestamp STRING", "_headers BIGINT", "_value BIGINT", "_key MAP<STRING, STRING>", "_headers ARRAY<STRING>"],
)
def test_what_a_column_cannot_hold_is_said_at_once(schema: str) -> None:
    with pytest.raises(ValueError, match="field '_"):
        decoded("raw", schema, Sent(b""))


def test_the_fingerprint_changes_with_the_format() -> None:
    sections: list[Any] = ["json", {"json": {"framing": "confluent"}}, CSV, {"csv": {"columns": ["a"]}}, "raw"]
    made = [Decoding(format_of(RecordFormat.model_validate(each))).decisive() for each in sections]
    assert len({json.dumps(each) for each in made}) == len(sections)


PIPELINE = """
pipeline: p
source: {kafka: {bootstrap_servers: "k:1", topics: [t], format: %s}}
sink: {sql: {url: "sqlite:///x.db", table: t%s}}
"""


@pytest.mark.parametrize(
    ("section", "more", "said"),
    [
        ("xml", "", "xml"),
        ("{csv: {}}", "", "columns"),
        ("{csv: {columns: [a, a]}}", "", "a name occurs twice"),
        ("{csv: {columns: [a], delimiter: '\"'}}", "", "must differ"),
        ("{csv: {columns: [a], delimiter: §}}", "", "must be an ASCII character"),
        ('{csv: {columns: [a], delimiter: "1"}}', "", "no letter and no digit"),
        ("{json: {}, raw: {}}", "", "name one format"),
        ("raw", ", mode: upsert, key: id", "no record can name the row it changes"),
        ("{csv: {columns: [id]}}", ", evolve: true", "of the sink is for"),
    ],
)
def test_mistakes_in_the_file_are_named(section: str, more: str, said: str, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(PIPELINE % (section, more), tmp_path / "p.yaml")
