"""Every type of a column, filled from every format: for each value either what the table holds, or the reason of the dead letter.

One pipeline per target and format lands all of it. A record fills its number and one column.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import psycopg
import pytest
import yaml
from confluent_kafka import Producer
from deliveries import ask, letters
from google.protobuf.message_factory import GetMessageClass
from mariadb_server import LocalMariaDB
from pyiceberg import types as it
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema as IcebergSchema

import landonce
from landonce.local import LocalClickHouse, LocalKafka
from landonce.read.formats.protobuf.source import Messages, ProtobufSource, compile_text
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import parse
from landonce.verify.audit import opened_audit

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

EVERY_FORMAT = pytest.mark.parametrize(
    "format_", [pytest.param("json", marks=pytest.mark.long), "avro", "protobuf", "csv"]
)
"""The types of JSON have tests of their own."""
ABSENT = object()
"""A format that has no such value."""


@dataclass(frozen=True)
class Dead:
    """The reason of the dead letter, after the field's name."""

    reason: str


@dataclass(frozen=True)
class Try:
    """A value, as each format has it, and what becomes of it: in all formats alike, or by format."""

    value: Any
    held: Any
    own: Mapping[str, Any]

    def of(self, format_: str) -> Any:
        return self.own.get(format_, self.value)

    def outcome(self, format_: str) -> Any:
        return self.held.get(format_, self.held.get("")) if isinstance(self.held, By) else self.held


class By(dict[str, Any]):
    """What becomes of a value by format; the rest under the empty name."""


def by(rest: Any = None, **formats: Any) -> By:
    return By({"": rest, **formats})


def t(value: Any, held: Any, **own: Any) -> Try:
    return Try(value, held, own)


@dataclass(frozen=True)
class Kind:
    """A type of a column, the types of its fields in Avro and Protobuf, and values. A format without a type does not have the field."""

    type: Any
    avro: Any
    proto: str
    tries: tuple[Try, ...]

    def formats(self) -> Iterator[str]:
        yield "json"
        if self.avro is not None:
            yield "avro"
        if self.proto:
            yield "protobuf"
        yield "csv"


def kind(type_: Any, avro: Any, proto: str, *tries: Try) -> Kind:
    return Kind(type_, avro, proto, tries)


def logical(name: str, base: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


def fixed(size: int, name: str) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapping(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": type_} for key, type_ in fields.items()]}


MESSAGES = """
message Pair { int32 a = 1; string b = 2; }
message Doc { int32 a = 1; string b = 2; }
enum State { NEW = 0; OLD = 1; }
"""
WELL_KNOWN = ("timestamp", "duration", "wrappers", "struct", "any", "empty", "field_mask")


def proto_of(kinds: Mapping[str, Kind]) -> str:
    lines = []
    for number, (name, each) in enumerate(kinds.items(), 2):
        if each.proto:
            presence = "" if each.proto.startswith(("repeated", "map")) else "optional "
            lines.append(f"  {presence}{each.proto} {name} = {number};")
    inside = "\n".join(lines)
    imports = "\n".join(f'import "google/protobuf/{each}.proto";' for each in WELL_KNOWN)
    return f'syntax = "proto3";\n{imports}\n{MESSAGES}\nmessage Row {{\n  int64 id = 1;\n{inside}\n}}'


def avro_of(kinds: Mapping[str, Kind]) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": "long"}
    for name, each in kinds.items():
        if each.avro is not None:
            fields[name] = ["null", *(each.avro if isinstance(each.avro, list) else [each.avro])]
    return record("Row", **fields)


def tries_of(kinds: Mapping[str, Kind], format_: str) -> list[tuple[str, Try]]:
    return [
        (name, each)
        for name, of in kinds.items()
        if format_ in of.formats()
        for each in of.tries
        if each.of(format_) is not ABSENT
    ]


def written(kinds: Mapping[str, Kind], format_: str) -> list[bytes]:
    tries = tries_of(kinds, format_)
    if format_ == "json":
        return [json.dumps({"id": at, name: each.of(format_)}).encode() for at, (name, each) in enumerate(tries)]
    if format_ == "avro":
        schema = fastavro.parse_schema(avro_of(kinds))
        bodies = []
        for at, (name, each) in enumerate(tries):
            body = io.BytesIO()
            fastavro.schemaless_writer(body, schema, {"id": at, name: each.of(format_)})
            bodies.append(body.getvalue())
        return bodies
    if format_ == "protobuf":
        source = ProtobufSource(compile_text(proto_of(kinds), {}), "Row")
        row = GetMessageClass(Messages(source.descriptors).find("Row"))
        return [row(id=at, **{name: each.of(format_)}).SerializeToString() for at, (name, each) in enumerate(tries)]
    lines = []
    for at, (name, each) in enumerate(tries):
        value = each.of(format_)
        text = value if isinstance(value, str) else json.dumps(value)
        texts = ['"' + text.replace('"', '""') + '"' if column == name else "" for column in kinds]
        lines.append(",".join([str(at), *texts]).encode())
    return lines


def source_of(kinds: Mapping[str, Kind], format_: str, folder: Path) -> Any:
    (folder / "row.avsc").write_text(json.dumps(avro_of(kinds)))
    (folder / "row.proto").write_text(proto_of(kinds))
    return {
        "json": "json",
        "avro": {"avro": {"schema": "row.avsc"}},
        "protobuf": {"protobuf": {"schema": "row.proto", "message": "Row"}},
        "csv": {"csv": {"columns": ["id", *kinds]}},
    }[format_]


def land(
    kinds: Mapping[str, Kind],
    format_: str,
    kafka: LocalKafka,
    topic: str,
    folder: Path,
    sink: dict[str, Any],
    **more: Any,
) -> dict[int, str]:
    """Lands every value, and returns the reasons of dead letters by the number of the record. Every value is as the record says."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in written(kinds, format_):
        producer.produce(topic, value, partition=0)
    producer.flush()
    kafka_section = {"bootstrap_servers": kafka.bootstrap_servers, "topics": [topic]}
    document = {
        "pipeline": "matrix",
        "source": {"kafka": {**kafka_section, "format": source_of(kinds, format_, folder)}},
        "sink": sink,
        "spark": {"master": "local[2]"},
        **more,
    }
    config = parse(yaml.safe_dump(document), folder / "p.yaml")
    found = landonce.run_pipeline(config, once=True)
    with opened_audit(open_parts(config), values=True) as audit:
        assert audit.audit().exact
    reasons = {each["offset"]: each["reason"] for each in letters(folder / "dead")}
    assert (found.landed, found.dead_lettered) == (len(tries_of(kinds, format_)) - len(reasons), len(reasons))
    return reasons


def compare(
    kinds: Mapping[str, Kind], format_: str, reasons: Mapping[int, str], held: Mapping[int, Mapping[str, Any]]
) -> None:
    """What became of every value, beside what should."""
    found, wanted = {}, {}
    for at, (name, each) in enumerate(tries_of(kinds, format_)):
        key = at, str(kinds[name].type), repr(each.of(format_))
        outcome = each.outcome(format_)
        wanted[key] = f"field '{name}{outcome.reason}" if isinstance(outcome, Dead) else outcome
        found[key] = reasons[at] if at in reasons else held[at][name]
    assert found == wanted


def named(kinds: list[Kind]) -> dict[str, Kind]:
    return {f"c{at}": each for at, each in enumerate(kinds)}


DECIMAL = by(
    Dead("' does not fit DECIMAL(9,2)"),
    protobuf=Dead("' is not a number that fits DECIMAL(9,2)"),
    csv=Dead("' is not a valid DECIMAL(9,2)"),
)
UTC = dt.timezone.utc
ID = uuid.UUID("61f0c404-5cb3-11e7-907b-a6006ad3dba0")
RANGE = Dead("' is outside the range of the target")


def finer(digits: int, word: str = "TIMESTAMP") -> By:
    """A time with more digits after the second than the column has."""
    not_valid = Dead(f"' is not a valid {word}")
    longer = Dead(f"' is finer than {word} with {digits} digits after the second")
    return by(not_valid, avro=Dead(f"' does not fit {word}"), protobuf=longer)


def unfit(word: str, inside: str = "") -> By:
    """A number that is beyond its type."""
    beyond = Dead(f"{inside}' is out of the range of {word}")
    return by(Dead(f"{inside}' does not fit {word}"), json=beyond, csv=beyond)


def count(wanted: int, found: int, inside: str = "") -> By:
    """An array with too few or too many items."""
    counted = Dead(f"{inside}' should have {wanted} items but has {found}")
    return by(Dead(f"{inside}' does not hold {wanted} items"), json=counted, csv=counted)


def whole(type_: str, low: int, high: int, word: str, avro: str, proto: str) -> Kind:
    """An integer: its lowest and highest value, the one beyond, a fraction, a string."""
    not_valid = Dead(f"' is not a valid {word}")
    beyond = unfit(word)
    return kind(
        type_,
        avro,
        proto,
        t(low, str(low)),
        t(high, str(high)) if avro == "long" or high < 2**63 else t(high, str(high), avro=ABSENT),
        t(high + 1, beyond, **({"avro": ABSENT, "protobuf": ABSENT} if high + 1 >= 2**63 else {})),
        t(
            1.0,
            by(json=Dead(f"' should be {word} but is a number with a fraction"), csv=not_valid),
            avro=ABSENT,
            protobuf=ABSENT,
        ),
        t("1", by("1", json=Dead(f"' should be {word} but is a string")), avro=ABSENT, protobuf=ABSENT),
    )


def wide(bits: int, *, signed: bool) -> Kind:
    name = f"{'' if signed else 'U'}Int{bits}"
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    outside = Dead(f"' is not an integer in the range of {name}")
    return kind(
        name,
        "string",
        "string",
        t(str(low), str(low)),
        t(str(high), str(high)),
        t(str(high + 1), outside),
        t("1.5", outside),
    )


WORDS = {"Int8": "TINYINT", "Int16": "SMALLINT", "Int32": "INT", "Int64": "BIGINT"}
CLICKHOUSE = named([
    kind("Bool", "boolean", "bool", t(True, "true"), t(False, "false"), t(7, by(json=Dead("' should be BOOLEAN but is an integer"), csv=Dead("' is not a valid BOOLEAN")), avro=ABSENT, protobuf=ABSENT)),
    *[whole(f"{sign}Int{bits}", low, high, WORDS.get(f"{sign}Int{bits}", f"{sign}INT{bits}"), "long", "int64")
      for bits in (8, 16, 32, 64) for sign, low, high in (("", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1), ("U", 0, 2**bits - 1)) if (sign, bits) != ("U", 64)],
    kind("UInt64", "long", "uint64", t(0, "0"), t(2**64 - 1, str(2**64 - 1), avro=ABSENT), t(-1, unfit("UINT64"), protobuf=ABSENT)),
    *[wide(bits, signed=signed) for bits in (128, 256) for signed in (True, False)],
    kind("Int128", "long", "int64", t(-(2**63), str(-(2**63)))),
    kind("Float32", "double", "double", t(0.5, "0.5"), t(1e39, by(Dead("' does not fit FLOAT"), json=Dead("' is not a finite number of its type"), csv=Dead("' is not a valid FLOAT")))),
    kind("Float64", "double", "double", t(5e-324, "5e-324"), t(-1.5, "-1.5"), t(float("nan"), "nan", json=ABSENT, csv=ABSENT)),
    kind("Float64", "long", "int64", t(2**53, "9007199254740992"), t(2**53 + 1, by(Dead("' does not fit DOUBLE"), json=Dead("' is an integer that a double cannot hold exactly"), csv=Dead("' is an integer that DOUBLE cannot hold exactly")))),
    kind("BFloat16", "float", "float", t(1.5, "1.5"), t(0.1, Dead("' is not a number that BFloat16 holds exactly"))),
    kind("Decimal(9, 2)", logical("decimal", "bytes", precision=12, scale=3), "string", t("1234567.89", "1234567.89", avro=Decimal("1234567.89")), t("0.001", DECIMAL, avro=Decimal("0.001")), t("12345678", DECIMAL, avro=Decimal(12345678))),
    kind("Decimal(76, 20)", logical("decimal", "bytes", precision=76, scale=20), "string", t("9" * 56, "9" * 56, avro=Decimal("9" * 56)), t("0.00000000000000000001", "0.00000000000000000001", avro=Decimal("1e-20"))),
    kind("String", "string", "string", t("é\0'", "é\0'"), t("", "")),
    kind("String", "bytes", "bytes", t("abc", "abc", avro=b"abc", protobuf=b"abc")),
    kind("LowCardinality(String)", "string", "string", t("ü", "ü")),
    kind("FixedString(3)", "string", "string", t("abc", "abc"), t("abcd", Dead("' is longer than 3 bytes")), t("äb", "äb")),
    kind("Enum8('new' = 1, 'old' = -2)", {"type": "enum", "name": "E", "symbols": ["new", "old", "odd"]}, "string", t("old", "old"), t("odd", Dead("' is not one of the allowed names"))),
    kind("UUID", logical("uuid", "string"), "string", t(str(ID), str(ID)), t("x", Dead("' is not a valid UUID"), avro=ABSENT)),
    kind("UUID", "string", "string", t(str(ID).upper(), str(ID)), t("x", Dead("' is not a valid UUID"))),
    kind("IPv4", "string", "string", t("192.168.0.1", "192.168.0.1"), t("256.0.0.1", Dead("' is not a valid IPv4"))),
    kind("IPv6", "string", "string", t("2001:db8::1", "2001:db8::1"), t("x", Dead("' is not a valid IPv6"))),
    kind("Date", logical("date", "int"), "string", t("2149-06-06", "2149-06-06", avro=dt.date(2149, 6, 6)), t("1969-12-31", RANGE, avro=dt.date(1969, 12, 31))),
    kind("Date32", logical("date", "int"), "string", t("1900-01-01", "1900-01-01", avro=dt.date(1900, 1, 1)), t("2300-01-01", RANGE, avro=dt.date(2300, 1, 1))),
    kind("DateTime('UTC')", logical("timestamp-millis", "long"), "google.protobuf.Timestamp", t("2106-02-07T06:28:15Z", "2106-02-07 06:28:15", avro=4294967295000, protobuf={"seconds": 4294967295}), t("2026-01-01T00:00:00.5Z", finer(0), avro=1767225600500, protobuf={"seconds": 1767225600, "nanos": 500000000}), t("1969-12-31T23:59:59Z", RANGE, avro=-1000, protobuf={"seconds": -1})),
    kind("DateTime64(3, 'UTC')", logical("timestamp-micros", "long"), "google.protobuf.Timestamp", t("1900-01-01T00:00:00.001Z", "1900-01-01 00:00:00.001", avro=-2208988799999000, protobuf={"seconds": -2208988800, "nanos": 1000000}), t("2026-01-01T00:00:00.0001Z", finer(3), avro=1767225600000100, protobuf={"seconds": 1767225600, "nanos": 100000})),
    kind("DateTime64(3, 'UTC')", "long", "int64", t(1500, "1970-01-01 00:00:01.500", csv="1970-01-01T00:00:01.5Z")),
    kind("Time", "string", "string", t("-999:59:59", "-999:59:59"), t("12:34", Dead("' is not a valid Time"))),
    kind("Time64(3)", "string", "string", t("999:59:59.123", "999:59:59.123"), t("00:00:00.1234", Dead("' is not a valid Time64(3)"))),
    kind("IntervalSecond", "long", "int64", t(-(2**63), str(-(2**63)))),
    kind("SimpleAggregateFunction(sum, UInt64)", "long", "uint64", t(7, "7")),
    kind("Array(Int8)", array("int"), "repeated int32", t([1, -128], "[1,-128]"), t([300], unfit("TINYINT", "[]")), t([], "[]")),
    kind("Array(Array(Nullable(String)))", array(array(["null", "string"])), "", t([["a", None], []], "[['a',NULL],[]]")),
    kind("Map(String, Int8)", mapping("int"), "map<string, int32>", t({"a": 1}, "{'a':1}"), t({"a": 300}, by(unfit("TINYINT", "[]")["json"], avro=Dead(".value' does not fit TINYINT"), protobuf=Dead("' does not fit TINYINT")))),
    kind("Map(UInt8, String)", mapping("string"), "map<uint32, string>", t({"255": "a"}, "{255:'a'}", protobuf={255: "a"}), t({"256": "a"}, by(Dead("' holds a key that is not a valid UINT8"), protobuf=Dead("' does not fit UINT8")), protobuf={256: "a"})),
    kind("Map(Date, Bool)", mapping("boolean"), "map<string, bool>", t({"2026-01-31": True}, "{'2026-01-31':true}"), t({"soon": True}, by(Dead("' is not a valid DATE"), avro=Dead(".key' does not fit DATE")))),
    kind("Tuple(a Int8, b String)", record("T", a="int", b="string"), "Pair", t({"a": 1, "b": "x"}, "(1,'x')"), t({"a": 300, "b": "x"}, unfit("TINYINT", ".a"))),
    kind("Tuple(Int8, Int8)", array("int"), "repeated int32", t([1, 2], "(1,2)"), t([1], count(2, 1)), t([1, 300], unfit("TINYINT", "[1]"))),
    kind("Tuple(Int8, String)", array(["int", "string"]), "", t([1, "x"], "(1,'x')"), t(["x", 1], by(Dead("[0]' should be TINYINT but is a string"), avro=Dead("[0]' is a string in the Avro schema, the column TINYINT")))),
    kind("Point", array("double"), "repeated double", t([0.5, -1.0], "(0.5,-1)"), t([1.0, 2.0, 3.0], count(2, 3))),
    kind("Ring", array(array("double")), "", t([[0.5, 1.0], [2.0, 3.0]], "[(0.5,1),(2,3)]"), t([[1.0]], count(2, 1, "[]"))),
    kind("QBit(Float32, 2)", array("float"), "repeated float", t([0.5, 1.5], "[0.5,1.5]"), t([0.5], Dead("' does not hold 2 items"))),
    kind("JSON", record("J", a="int", b="string"), "Doc", t({"a": 1, "b": "x"}, '{"a":1,"b":"x"}')),
    kind("JSON", "string", "string", t("x", Dead("' is not an object"), csv='"x"')),
    kind("JSON(a UInt8)", record("K", a="int", b="string"), "Doc", t({"a": 300, "b": "x"}, Dead("' holds no UInt8 at 'a'")), t({"a": 3, "b": "x"}, '{"a":3,"b":"x"}')),
    kind("Variant(Int64, String)", ["long", "string"], "int64", t(5, "5"), t("x", "x", protobuf=ABSENT, csv='"x"')),
    kind("Variant(UInt8, Bool)", "long", "int64", t(5, "5"), t(300, Dead("' is no value of Variant"))),
    kind("Dynamic", "double", "double", t(1.5, "1.5")),
    kind("Dynamic", "string", "string", t("2026-01-01", "2026-01-01", csv='"2026-01-01"')),
    kind("Dynamic", array("long"), "repeated int64", t([1, 2], by("[1,2]", protobuf="['1','2']"))),
])  # fmt: skip
_BARE = (
    "Array",
    "Map",
    "Tuple",
    "Point",
    "Ring",
    "QBit",
    "Variant",
    "Dynamic",
    "LowCardinality",
    "SimpleAggregate",
    "JSON",
)
"""Types that are not inside of a Nullable. What a record does not hold takes their default."""


def column(name: str, type_: str) -> str:
    if type_.startswith(("Variant", "Dynamic")):
        return f"{name} {type_}"
    quoted = type_.replace("'", "\\'")
    return (
        f"{name} {type_} DEFAULT defaultValueOfTypeName('{quoted}')"
        if type_.startswith(_BARE)
        else f"{name} Nullable({type_})"
    )


@EVERY_FORMAT
def test_clickhouse(
    format_: str, clickhouse: LocalClickHouse, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=1)
    table = f"matrix_{topic}".replace("-", "_")
    columns = ", ".join(column(name, each.type) for name, each in CLICKHOUSE.items())
    clickhouse.ask(
        f"CREATE TABLE {table} (id Int64, {columns}, _topic String, _partition Int32, _offset Int64) "
        "ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 1000"
    )
    sink = {"clickhouse": {"url": clickhouse.url, "table": table}}
    reasons = land(CLICKHOUSE, format_, kafka, topic, tmp_path, sink)
    asked = ", ".join(f"toString({name}) AS {name}" for name in CLICKHOUSE)
    held = {int(each["id"]): each for each in ask(clickhouse.url, f"SELECT id, {asked} FROM {table}")}
    compare(CLICKHOUSE, format_, reasons, held)


TEXT64 = {"json": "/wBh", "csv": "/wBh"}
PAIR = record("Pair", a="int", b="string")
ICEBERG = named([
    kind(it.BooleanType(), "boolean", "bool", t(True, True)),
    kind(it.IntegerType(), "long", "int64", t(-(2**31), -(2**31)), t(2**31, unfit("INT"))),
    kind(it.LongType(), "long", "int64", t(2**63 - 1, 2**63 - 1), t(-(2**63), -(2**63))),
    kind(it.FloatType(), "double", "double", t(0.5, 0.5), t(1e39, by(Dead("' does not fit FLOAT"), json=Dead("' is not a finite number of its type"), csv=Dead("' is not a valid FLOAT")))),
    kind(it.DoubleType(), "double", "double", t(5e-324, 5e-324)),
    kind(it.DoubleType(), "long", "int64", t(2**53 + 1, by(Dead("' does not fit DOUBLE"), json=Dead("' is an integer that a double cannot hold exactly"), csv=Dead("' is an integer that DOUBLE cannot hold exactly")))),
    kind(it.DecimalType(9, 2), logical("decimal", "bytes", precision=12, scale=3), "string", t("-1234567.89", Decimal("-1234567.89"), avro=Decimal("-1234567.89")), t("0.001", DECIMAL, avro=Decimal("0.001"))),
    kind(it.DateType(), logical("date", "int"), "string", t("0001-01-01", dt.date(1, 1, 1), avro=dt.date(1, 1, 1)), t("2026-02-30", Dead("' is not a valid DATE"), avro=ABSENT)),
    kind(it.TimeType(), logical("time-micros", "long"), "string", t("23:59:59.999999", dt.time(23, 59, 59, 999999), avro=dt.time(23, 59, 59, 999999)), t("24:00", Dead("' is not a valid TIME"), avro=ABSENT)),
    kind(it.TimestampType(), logical("local-timestamp-micros", "long"), "google.protobuf.Timestamp", t("1969-12-31T23:59:59.999999", dt.datetime(1969, 12, 31, 23, 59, 59, 999999), avro=-1, protobuf={"seconds": -1, "nanos": 999999000})),
    kind(it.TimestamptzType(), logical("timestamp-millis", "long"), "google.protobuf.Timestamp", t("2026-01-01T01:00:00.5+01:00", dt.datetime(2026, 1, 1, 0, 0, 0, 500000, UTC), avro=1767225600500, protobuf={"seconds": 1767225600, "nanos": 500000000})),
    kind(it.TimestamptzType(), logical("timestamp-nanos", "long"), "google.protobuf.Timestamp", t("2026-01-01T00:00:00.0000001Z", finer(6), avro=1767225600000000100, protobuf={"seconds": 1767225600, "nanos": 100})),
    kind(it.StringType(), "string", "string", t("é\0😀", "é\0😀"), t("", "")),
    kind(it.StringType(), "bytes", "", t("abc", "abc", avro=b"abc"), t("x", Dead("' does not fit STRING"), avro=b"\xff", json=ABSENT, csv=ABSENT)),
    kind(it.UUIDType(), logical("uuid", "string"), "string", t(str(ID), ID), t("x", Dead("' is not a valid UUID"), avro=ABSENT)),
    kind(it.UUIDType(), fixed(16, "U"), "bytes", t(str(ID), ID, avro=ID.bytes, protobuf=ID.bytes)),
    kind(it.FixedType(3), fixed(3, "F3"), "bytes", t(b"\xff\0a", b"\xff\0a", **TEXT64)),
    kind(it.FixedType(3), "bytes", "bytes", t(b"ab", by(Dead("' does not hold exactly 3 bytes"), json=Dead("' is not valid base64 of 3 bytes"), csv=Dead("' is not valid base64 of 3 bytes")), json="YWI=", csv="YWI=")),
    kind(it.BinaryType(), "bytes", "bytes", t(b"\xff\0a", b"\xff\0a", **TEXT64), t(b"", b"", json="", csv="")),
    kind(it.ListType(100, it.IntegerType(), element_required=False), array("int"), "repeated int32", t([1, -(2**31)], [1, -(2**31)])),
    kind(it.MapType(101, it.StringType(), 102, it.IntegerType(), value_required=False), mapping("int"), "map<string, int32>", t({"a": 1}, [("a", 1)])),
    kind(it.MapType(103, it.IntegerType(), 104, it.StringType(), value_required=False), mapping("string"), "map<int32, string>", t({"-5": "a"}, [(-5, "a")], protobuf={-5: "a"}), t({"x": "a"}, Dead("' holds a key that is not a valid INT"), protobuf=ABSENT)),
    kind(it.StructType(it.NestedField(105, "a", it.IntegerType()), it.NestedField(106, "b", it.StringType())), PAIR, "Pair", t({"a": 1, "b": "x"}, {"a": 1, "b": "x"})),
])  # fmt: skip


@EVERY_FORMAT
def test_iceberg(format_: str, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic(partitions=1)
    lake = tmp_path / "lake"
    lake.mkdir()
    catalog = load_catalog("landonce", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")
    catalog.create_namespace("db")
    fields = [it.NestedField(at, name, each.type, required=False) for at, (name, each) in enumerate(ICEBERG.items(), 2)]
    coordinates = [("_topic", it.StringType()), ("_kafka_partition", it.IntegerType()), ("_offset", it.LongType())]
    last = [it.NestedField(at, name, type_, required=False) for at, (name, type_) in enumerate(coordinates, 200)]
    catalog.create_table("db.t", IcebergSchema(it.NestedField(1, "id", it.LongType(), required=False), *fields, *last))
    reasons = land(ICEBERG, format_, kafka, topic, tmp_path, {"iceberg": {"table": "db.t"}})
    held = {each["id"]: each for each in catalog.load_table("db.t").scan().to_arrow().to_pylist()}
    compare(ICEBERG, format_, reasons, held)


def takes_nothing(type_: str) -> Dead:
    return Dead(f"' has a value, and its column is {type_}, which no record can fill exactly")


POSTGRES = named([
    kind("boolean", "boolean", "bool", t(True, "true")),
    kind("smallint", "long", "int64", t(-(2**15), "-32768"), t(2**15, unfit("SMALLINT"))),
    kind("integer", "int", "int32", t(2**31 - 1, str(2**31 - 1))),
    kind("bigint", "long", "int64", t(-(2**63), str(-(2**63)))),
    kind("real", "double", "double", t(0.5, "0.5")),
    kind("double precision", "double", "double", t(5e-324, "5e-324"), t(float("inf"), "Infinity", json=ABSENT, csv=ABSENT)),
    kind("numeric(9, 2)", logical("decimal", "bytes", precision=12, scale=3), "string", t("-1234567.89", "-1234567.89", avro=Decimal("-1234567.89")), t("0.001", DECIMAL, avro=Decimal("0.001"))),
    kind("text", "string", "string", t("é😀", "é😀"), t("a\0b", Dead("' holds a zero byte, which the table cannot"))),
    kind("varchar(3)", "string", "string", t("äöü", "äöü"), t("abcd", Dead("' is longer than 3 characters"))),
    kind("bytea", "bytes", "bytes", t(b"\xff\0a", "\\xff0061", **TEXT64)),
    kind("date", logical("date", "int"), "string", t("9999-12-31", "9999-12-31", avro=dt.date(9999, 12, 31))),
    kind("time", logical("time-micros", "long"), "string", t("23:59:59.999999", "23:59:59.999999", avro=dt.time(23, 59, 59, 999999)), t("24:00:00", Dead("' is not a valid TIME"), avro=ABSENT)),
    kind("timestamp", logical("local-timestamp-micros", "long"), "google.protobuf.Timestamp", t("1969-12-31T23:59:59.999999", "1969-12-31 23:59:59.999999", avro=-1, protobuf={"seconds": -1, "nanos": 999999000})),
    kind("timestamptz", logical("timestamp-millis", "long"), "google.protobuf.Timestamp", t("2026-01-01T01:00:00.5+01:00", "2026-01-01 00:00:00.5+00", avro=1767225600500, protobuf={"seconds": 1767225600, "nanos": 500000000})),
    kind("uuid", logical("uuid", "string"), "string", t(str(ID), str(ID))),
    kind("json", "string", "string", t("x", '"x"', csv='"x"')),
    kind("jsonb", "long", "int64", t(2**63 - 1, str(2**63 - 1))),
    kind("jsonb", record("Q", a="int", b="string"), "Pair", t({"a": 1, "b": "x"}, '{"a": 1, "b": "x"}')),
    kind("jsonb", "bytes", "bytes", t(b"\xff\0a", '"/wBh"', json="/wBh", csv='"/wBh"')),
    kind("jsonb", array("double"), "repeated double", t([0.5, 2.5], "[0.5, 2.5]")),
    kind("inet", "string", "string", t("10.1.2.3/8", "10.1.2.3/8"), t("10.0.0.256", Dead("' is not a valid INET"))),
    kind("cidr", "string", "string", t("10.0.0.0/8", "10.0.0.0/8"), t("10.0.0.1/8", Dead("' is not a valid CIDR: it has bits to the right of its prefix, or is no address"))),
    kind("macaddr", "string", "string", t("00:00:5e:00:53:01", "00:00:5e:00:53:01")),
    kind("integer[]", array(["null", "int"]), "repeated int32", t([1, 2], "{1,2}")),
    kind("text[]", array("string"), "repeated string", t(["a", "b,c"], '{a,"b,c"}')),
    kind("numeric", logical("decimal", "bytes", precision=60, scale=3), "string", t("-1234567890123456789012345678901234567890.500", "-1234567890123456789012345678901234567890.500", avro=Decimal("-1234567890123456789012345678901234567890.500")), t("x", Dead("' is not a number"), avro=ABSENT)),
    kind("numeric(40, 2)", "long", "int64", t(2**63 - 1, f"{2**63 - 1}.00")),
    kind("numeric[]", array("string"), "repeated string", t(["1.50", "-2"], "{1.50,-2}")),
    kind("mood[]", array("string"), "repeated string", t(["good", "bad"], "{good,bad}"), t(["so"], by(Dead("[]' is not one of the allowed names"), json=Dead("' is not one of the allowed names"), csv=Dead("' is not one of the allowed names")))),
    kind("interval", "string", "string", t("P1D", "1 day"), t("x", Dead("' is not a valid INTERVAL"))),
    kind("int4range", "string", "string", t("[1,4]", "[1,5)")),
    kind("bit(3)", "string", "string", t("101", "101")),
    kind("point", "string", "string", t("(1,2)", takes_nothing("point"))),
    kind("money", "long", "int64", t(0, takes_nothing("money"))),
])  # fmt: skip


@EVERY_FORMAT
def test_postgresql(
    format_: str, new_database: Callable[[], str], kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, url = new_topic(partitions=1), new_database()
    columns = ", ".join(f"{name} {each.type}" for name, each in POSTGRES.items())
    asked = ", ".join(f"{name}::text" for name in POSTGRES)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True, options="-c timezone=UTC") as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('good', 'bad')")
        connection.execute(
            f"CREATE TABLE t (id bigint, {columns}, _topic varchar(249), _partition int, _offset bigint)"
        )
        reasons = land(POSTGRES, format_, kafka, topic, tmp_path, {"sql": {"url": url, "table": "t"}})
        rows = connection.execute(f"SELECT id, {asked} FROM t").fetchall()
    held = {row[0]: dict(zip(POSTGRES, row[1:], strict=True)) for row in rows}
    compare(POSTGRES, format_, reasons, held)


MARIADB = named([
    kind("boolean", "boolean", "bool", t(True, "1")),
    kind("smallint", "long", "int64", t(-(2**15), "-32768"), t(2**15, by(unfit("SMALLINT")[""], json=unfit("SMALLINT")["json"], csv=Dead("' is not a valid SMALLINT")))),
    kind("bigint unsigned", "long", "uint64", t(2**63 - 1, str(2**63 - 1))),
    kind("double", "double", "double", t(0.5, "0.5")),
    kind("decimal(9, 2)", logical("decimal", "bytes", precision=12, scale=3), "string", t("-1234567.89", "-1234567.89", avro=Decimal("-1234567.89")), t("0.001", DECIMAL, avro=Decimal("0.001"))),
    kind("decimal(50, 3)", logical("decimal", "bytes", precision=60, scale=3), "string", t("-1234567890123456789012345678901234567890.500", "-1234567890123456789012345678901234567890.500", avro=Decimal("-1234567890123456789012345678901234567890.500")), t("x", Dead("' is not a number"), avro=ABSENT)),
    kind("longtext", "string", "string", t("é😀\0", "é😀\0")),
    kind("varchar(3)", "string", "string", t("äöü", "äöü"), t("abcd", Dead("' is longer than 3 characters"))),
    kind("longblob", "bytes", "bytes", t(b"\xff\0a", "FF0061", **TEXT64)),
    kind("date", logical("date", "int"), "string", t("9999-12-31", "9999-12-31", avro=dt.date(9999, 12, 31))),
    kind("time(6)", logical("time-micros", "long"), "string", t("23:59:59.999999", "23:59:59.999999", avro=dt.time(23, 59, 59, 999999)), t("-838:59:59", "-838:59:59.000000", avro=ABSENT), t("x", Dead("' is not a valid TIME(6)"), avro=ABSENT)),
    kind("datetime(6)", logical("local-timestamp-micros", "long"), "google.protobuf.Timestamp", t("1969-12-31T23:59:59.999999", "1969-12-31 23:59:59.999999", avro=-1, protobuf={"seconds": -1, "nanos": 999999000})),
    kind("uuid", logical("uuid", "string"), "string", t(str(ID), str(ID))),
    kind("inet6", "string", "string", t("2001:DB8::1", "2001:db8::1")),
    kind("set('a', 'b')", "string", "string", t("b,a", "a,b"), t("c", Dead("' is not a valid SET"))),
    kind("bit(9)", "long", "int64", t(511, "1FF"), t(512, Dead("' is outside the range of the target"))),
])  # fmt: skip


@pytest.mark.long
@EVERY_FORMAT
def test_mariadb(
    format_: str, mariadb: LocalMariaDB, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=1)
    database = f"matrix_{topic}"
    columns = ", ".join(f"{name} {each.type}" for name, each in MARIADB.items())
    asked = ", ".join(
        f"HEX({name})" if each.type in ("longblob", "bit(9)") else f"CAST({name} AS CHAR)"
        for name, each in MARIADB.items()
    )
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
        cursor.execute(
            f"CREATE TABLE {database}.t (id bigint, {columns}, _topic varchar(249), _partition int, _offset bigint)"
        )
        url = mariadb.url_of(database)
        reasons = land(MARIADB, format_, kafka, topic, tmp_path, {"sql": {"url": url, "table": "t"}})
        connection.commit()
        cursor.execute(f"SELECT id, {asked} FROM {database}.t")
        held = {row[0]: dict(zip(MARIADB, row[1:], strict=True)) for row in cursor.fetchall()}
    compare(MARIADB, format_, reasons, held)


SQLITE = named([
    kind("BIGINT", "long", "int64", t(-(2**63), -(2**63))),
    kind("REAL", "double", "double", t(5e-324, 5e-324), t(2**53 + 1, by(Dead("' is an integer that a double cannot hold exactly"), csv=Dead("' is an integer that DOUBLE cannot hold exactly")), avro=ABSENT, protobuf=ABSENT)),
    kind("TEXT", "string", "string", t("é😀", "é😀")),
    kind("BLOB", "bytes", "bytes", t(b"\xff\0a", b"\xff\0a", **TEXT64)),
    kind("BOOLEAN", "boolean", "bool", t(True, 1)),
    kind("NUMERIC(9, 2)", logical("decimal", "bytes", precision=12, scale=3), "string", t("-1234567.89", -1234567.89, avro=Decimal("-1234567.89")), t("0.001", DECIMAL, avro=Decimal("0.001"))),
    kind("DATE", logical("date", "int"), "string", t("9999-12-31", "9999-12-31", avro=dt.date(9999, 12, 31))),
    kind("TIME", logical("time-micros", "long"), "string", t("23:59:59.999999", "23:59:59.999999", avro=dt.time(23, 59, 59, 999999))),
    kind("DATETIME", logical("local-timestamp-micros", "long"), "google.protobuf.Timestamp", t("1969-12-31T23:59:59.999999", "1969-12-31 23:59:59.999999", avro=-1, protobuf={"seconds": -1, "nanos": 999999000})),
    kind("UUID", logical("uuid", "string"), "string", t(str(ID), str(ID))),
])  # fmt: skip


@pytest.mark.long
@EVERY_FORMAT
def test_sqlite(format_: str, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic(partitions=1)
    columns = ", ".join(f"{name} {each.type}" for name, each in SQLITE.items())
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        connection.execute(f"CREATE TABLE t (id BIGINT, {columns}, _topic TEXT, _partition INTEGER, _offset INTEGER)")
        connection.commit()
        reasons = land(
            SQLITE, format_, kafka, topic, tmp_path, {"sql": {"url": f"sqlite:///{tmp_path}/t.db", "table": "t"}}
        )
        rows = connection.execute(f"SELECT id, {', '.join(SQLITE)} FROM t").fetchall()
    held = {row[0]: dict(zip(SQLITE, row[1:], strict=True)) for row in rows}
    compare(SQLITE, format_, reasons, held)
