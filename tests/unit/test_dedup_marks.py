"""Keys that schemas mark: the same event has the same id as JSON, Avro and Protobuf, whichever version of its schema wrote it."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from landonce.config.dedup import RECORD_TYPE, Dedup
from landonce.dedup.ids import Coordinates, compute
from landonce.dedup.rule import KeyRule, key_rule, require_marks, with_type
from landonce.errors import ConfigError, KeyRuleChanged
from landonce.read.decoding import Decoding, decoder_of
from landonce.read.formats import Format, RecordType
from landonce.read.formats.avro.decode import Avro
from landonce.read.formats.json.decode import Json
from landonce.read.formats.protobuf.format import Protobuf
from landonce.read.formats.protobuf.source import Messages, ProtobufSource, compile_text, message_class
from landonce.read.schema.ddl import parse_schema
from landonce.read.schema.fields import Schema
from landonce.sinks.pipeline_file import parse

GOLDEN = json.loads(Path(__file__).with_name("dedup_ids_golden.json").read_text())
MARKED = {"key": "schema"}


def avro(value: Any, schema: dict[str, Any] | list[Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def record(name: str, /, **fields: Any) -> dict[str, Any]:
    """A schema; a field is its type, or its type with a mark."""
    made = [
        {"name": each, "type": type_[0], "landonce.dedup_key": type_[1]}
        if isinstance(type_, tuple)
        else {"name": each, "type": type_}
        for each, type_ in fields.items()
    ]
    return {"type": "record", "name": name, "fields": made}


def proto(body: str) -> ProtobufSource:
    text = f'syntax = "proto3"; package shop; import "landonce/dedup.proto"; import "google/protobuf/timestamp.proto"; {body}'
    data = compile_text(text, {})
    (name,) = Messages(data).names()
    return ProtobufSource(data, name)


def message(source: ProtobufSource, **fields: Any) -> bytes:
    made = message_class(Messages(source.descriptors).find(source.message or ""))(**fields)
    return bytes(made.SerializeToString())


def rule_of(format_: Format, schema: Schema, section: dict[str, Any]) -> KeyRule:
    return key_rule(Dedup.model_validate(section), schema, Decoding(format_), format_.types((), ()))


def id_of(format_: Format, value: bytes, schema: str, section: dict[str, Any]) -> str:
    dedup = Dedup.model_validate(section)
    source = with_type(parse_schema(schema), dedup)
    rule = rule_of(format_, source, section)
    decoded = decoder_of(source, Decoding(format_))(pa.array([value], pa.binary()), [None])  # type: ignore[list-item]
    assert not decoded.rejects, decoded.rejects
    found = compute(rule, decoded.table, None, {}, Coordinates("t", 0, np.zeros(1, np.int64)))
    assert not found.rejects
    return f"{int(found.hi[0]):016x}{int(found.lo[0]):016x}"


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
DAYS = {"type": "int", "logicalType": "date"}
CASES = [
    # the golden name, the column, JSON's value, Avro's type and value, Protobuf's type and value
    ("int64 42", "BIGINT", 42, "long", 42, "int64", 42),
    ("int64 42", "BIGINT", 42, "int", 42, "sint32", 42),
    ("int64 -1", "BIGINT", -1, "long", -1, "sfixed64", -1),
    ("int64 0", "BIGINT", 0, ["null", "long"], 0, "int64", 0),
    ("double 1.5", "DOUBLE", 1.5, "float", 1.5, "float", 1.5),
    ("double 0.1", "DOUBLE", 0.1, "double", 0.1, "double", 0.1),
    ("string 'Zürich'", "STRING", "Zürich", "string", "Zürich", "string", "Zürich"),
    ("string ''", "STRING", "", "string", "", "string", ""),
    ("decimal128(38, 10) Decimal('-12.5')", "DECIMAL(38,10)", "-12.5", DECIMAL, Decimal("-12.5"), "string", "-12.5"),
    (
        "timestamp[us] 999",
        "TIMESTAMP",
        "1970-01-01T00:00:00.000999Z",
        MICROS,
        999,
        "google.protobuf.Timestamp",
        999_000,
    ),
    ("date32[day] 1", "DATE", "1970-01-02", DAYS, 1, "string", "1970-01-02"),
]


@pytest.mark.parametrize(("golden", "column", "text", "type_", "value", "kind", "field"), CASES)
def test_the_same_event_has_the_golden_id_in_every_format(
    golden: str, column: str, text: Any, type_: Any, value: Any, kind: str, field: Any
) -> None:
    schema = f"other STRING, x {column}"
    avro_schema = record("Order", other="string", x=(type_, True))
    source = proto(f"message Order {{ string other = 1; {kind} x = 2 [(landonce.dedup_key) = 1]; }}")
    given = {"nanos": field} if "Timestamp" in kind else field
    found = {
        "json": id_of(Json(), json.dumps({"other": "a", "x": text}).encode(), schema, {"key": ["x"]}),
        "avro": id_of(Avro((json.dumps(avro_schema),)), avro({"other": "b", "x": value}, avro_schema), schema, MARKED),
        "protobuf": id_of(Protobuf(source), message(source, other="c", x=given), schema, MARKED),
    }
    assert found == dict.fromkeys(found, GOLDEN[golden])


SCHEMA = "shop STRING, number BIGINT, buyer STRUCT<id: BIGINT, name: STRING>, note STRING"
BUYER = record("Buyer", id=("long", 3), name="string")
ORDER = record("Order", note=["null", "string"], number=("int", 2), shop=("string", 1), buyer=["null", BUYER])
PLACED = """message Order { string shop = 3 [(landonce.dedup_key) = 1]; int64 number = 2 [(landonce.dedup_key) = 2];
    message Buyer { int64 id = 1 [(landonce.dedup_key) = 3]; string name = 2; } Buyer buyer = 1; }"""


def test_positions_order_the_key_and_nested_fields_are_part_of_it() -> None:
    value = {"note": None, "number": 7, "shop": "a", "buyer": {"id": 9, "name": "x"}}
    source = proto(PLACED)
    expected = id_of(Json(), json.dumps(value).encode(), SCHEMA, {"key": ["shop", "number", "buyer.id"]})
    assert id_of(Avro((json.dumps(ORDER),)), avro(value, ORDER), SCHEMA, MARKED) == expected
    written = message(source, shop="a", number=7, buyer={"id": 9, "name": "y"})
    assert id_of(Protobuf(source), written, SCHEMA, MARKED) == expected
    other = {"key": ["number", "shop", "buyer.id"]}
    assert id_of(Json(), json.dumps(value).encode(), SCHEMA, other) != expected


def test_the_fingerprint_is_of_the_rule_and_not_of_where_it_is_written() -> None:
    schema = parse_schema(SCHEMA)
    named = rule_of(Json(), schema, {"key": ["shop", "number", "buyer.id"]})
    marked = rule_of(Avro((json.dumps(ORDER),)), schema, MARKED)
    assert marked.marked == ("",)
    assert (marked.fingerprint(), marked.describe()) == (named.fingerprint(), named.describe())
    assert rule_of(Protobuf(proto(PLACED)), schema, MARKED).fingerprint() == named.fingerprint()


def test_marks_are_read_from_a_descriptor_set_that_does_not_hold_the_option(tmp_path: Path) -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    files = FileDescriptorSet.FromString(proto(PLACED).descriptors)
    bare = FileDescriptorSet(file=[files.file[-1]])
    del bare.file[0].dependency[:]
    (tmp_path / "order.desc").write_bytes(bare.SerializeToString())
    source = ProtobufSource.of_file(tmp_path / "order.desc")
    assert Protobuf(source).types((), ()) == (RecordType("shop.Order", (("shop",), ("number",), ("buyer", "id"))),)


def test_a_proto_file_imports_the_option_from_landonce(tmp_path: Path) -> None:
    text = f'syntax = "proto3"; package shop; import "landonce/dedup.proto"; {PLACED}'
    (tmp_path / "order.proto").write_text(text)
    assert Protobuf(ProtobufSource.of_file(tmp_path / "order.proto")).types((), ())[0].key[0] == ("shop",)


EVOLVED = [
    record("Order", number=("long", 2), shop=("string", 1), buyer=BUYER, added=["null", "string"]),
    record("Order", shop=("string", 1), number=("long", 2), buyer=["null", BUYER]),
]
CHANGED = [
    record("Order", number="int", shop=("string", 1), buyer=BUYER),
    record("Order", number=("int", 1), shop=("string", 2), buyer=BUYER),
    record("Order", number="int", shop="string"),
]


def test_a_version_that_marks_the_same_key_goes_on_and_any_other_is_refused() -> None:
    schema = parse_schema(SCHEMA)
    rule = rule_of(Avro((json.dumps(ORDER),)), schema, MARKED)
    for each in EVOLVED:
        require_marks(rule, schema, Avro((json.dumps(each),)).types((), ()))
    for each in CHANGED:
        with pytest.raises(KeyRuleChanged, match=r"made by \[shop, number, buyer.id\]"):
            require_marks(rule, schema, Avro((json.dumps(each),)).types((), ()))
    with pytest.raises(KeyRuleChanged, match=r"Order marks \[shop, buyer.id\] as the key"):
        require_marks(rule, schema, Avro((json.dumps(CHANGED[0]),)).types((), ()))
    named = rule_of(Json(), schema, {"key": ["shop"]})
    require_marks(named, schema, Avro((json.dumps(CHANGED[2]),)).types((), ()))


def test_each_type_has_its_rule_and_its_name_is_part_of_the_id() -> None:
    refund = record("Refund", number=("int", True), note="string")
    union = [ORDER, refund]
    format_ = Avro((json.dumps(union),))
    section = {"by": RECORD_TYPE, "rules": {"Order": "schema", "Refund": "schema"}}
    order = {"note": None, "number": 7, "shop": "a", "buyer": {"id": 9, "name": "x"}}
    by_hand = {"by": "kind", "rules": {"Order": ["shop", "number", "buyer.id"], "Refund": ["number"]}}
    in_json = f"kind STRING, {SCHEMA}"
    for kind, value in (("Order", order), ("Refund", {"number": 7, "note": "n"})):
        body = avro((kind, value), union)
        expected = id_of(Json(), json.dumps({"kind": kind, **value}).encode(), in_json, by_hand)
        assert id_of(format_, body, SCHEMA, section) == expected
        explicit = {"by": RECORD_TYPE, "rules": {"Order": ["shop", "number", "buyer.id"], "*": ["number"]}}
        assert id_of(format_, body, SCHEMA, explicit) == expected
    source = proto("message Refund { int32 number = 1 [(landonce.dedup_key) = 1]; }")
    section = {"by": RECORD_TYPE, "rules": {"shop.Refund": "schema"}}
    expected = id_of(
        Json(), b'{"kind": "shop.Refund", "number": 7}', in_json, {"by": "kind", "rules": {"shop.Refund": ["number"]}}
    )
    assert id_of(Protobuf(source), message(source, number=7), SCHEMA, section) == expected


def test_a_readers_schema_gives_the_rule_for_all_versions() -> None:
    old = record("Order", shop="string", number="int")
    reader = record("Order", shop=("string", True), number="long")
    format_ = Avro((json.dumps(old),), reader=json.dumps(reader))
    assert format_.types((), ()) == (RecordType("Order", (("shop",),)),)
    found = format_.types_of(pa.array([avro({"shop": "a", "number": 1}, old)], pa.binary()))
    assert (found.number.tolist(), found.types) == ([0], format_.types((), ()))


def test_a_marked_field_has_the_name_of_its_column() -> None:
    schema = parse_schema("ORDERID BIGINT")
    folded = Schema(schema.fields, fold_case=True)
    format_ = Avro((json.dumps(record("Order", orderId=("long", True))),))
    assert rule_of(format_, folded, MARKED).words() == "ORDERID (integer)"


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (record("Order", shop="string"), "the schema of Order marks no field"),
        (record("Order", gone=("string", True)), "'gone' is not a field of the records"),
        (record("Order", shop=("string", "yes")), "landonce.dedup_key of field 'shop' is neither true nor a position"),
        (record("Order", buyer=({"type": "array", "items": BUYER}, 0)), "'buyer.id' is in an array or a map"),
        (record("Order", buyer=(BUYER, True)), "cannot be in a key"),
    ],
)
def test_marks_that_make_no_key_are_refused(schema: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        rule_of(Avro((json.dumps(schema),)), parse_schema(SCHEMA), MARKED)


def test_what_no_schema_says_is_refused() -> None:
    with pytest.raises(ConfigError, match="no schema of the records is known yet"):
        key_rule(Dedup.model_validate(MARKED), parse_schema(SCHEMA))
    rules = {"by": RECORD_TYPE, "rules": {"shop.Order": "schema"}}
    with pytest.raises(ConfigError, match=r"no schema of shop\.Order is known yet"):
        key_rule(Dedup.model_validate(rules), parse_schema(SCHEMA), None, (RecordType("Other", (("a",),)),))
    types = (RecordType("A", (("a",),)), RecordType("B", (("b",),)))
    with pytest.raises(KeyRuleChanged, match=r"schemas mark different keys: A \[a\], B \[b\]"):
        key_rule(Dedup.model_validate(MARKED), parse_schema(SCHEMA), None, types)
    for section in ({"by": "kind", "rules": {"a": "schema"}}, {"by": RECORD_TYPE, "rules": {"*": "schema"}}):
        with pytest.raises(ValueError, match=r"rules: `schema` is for types of records"):
            Dedup.model_validate(section)


def test_only_schemas_name_the_type_of_a_record() -> None:
    with pytest.raises(ValueError, match="only the schemas of Avro and Protobuf name the type"):
        decoder_of(parse_schema("a STRING, _record_type STRING"), Decoding())


def test_a_file_needs_a_format_with_schemas(tmp_path: Path) -> None:
    text = """pipeline: p
source: {kafka: {bootstrap_servers: "localhost:1", topics: [t]}}
sink: {sql: {url: "sqlite:///x.db", table: t}}
dedup: {key: schema}
"""
    with pytest.raises(ConfigError, match="only the schemas of Avro and Protobuf mark a key"):
        parse(text, tmp_path / "p.yaml")
