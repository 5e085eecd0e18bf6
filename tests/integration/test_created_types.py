"""A table that landonce creates without a declared schema, from every type of Avro and every well-known type of Protobuf: for each, the type
of the column and what it holds of a value. What a target has no type for is text, and nothing is a default or refused."""

from __future__ import annotations

import datetime as dt
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deliveries import ask
from mariadb_server import LocalMariaDB
from pyiceberg.catalog import load_catalog
from test_type_matrix import Kind, array, fixed, kind, land, logical, mapping, named, record, t, tries_of

from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ID = uuid.UUID("61f0c404-5cb3-11e7-907b-a6006ad3dba0")
NANOS = 1_767_225_600_000_000_001
MOMENT = {"seconds": 1_767_225_600, "nanos": 500_000_000}
FINE = {"seconds": 1_767_225_600, "nanos": 1}

TARGETS = ("clickhouse", "iceberg", "postgres", "sqlite", "mariadb")


def avro(type_: Any, value: Any, *held: str) -> Kind:
    """`held`: the type of the column and its value, in each of `TARGETS`."""
    return kind(held, type_, "", t(value, None))


def proto(type_: str, value: Any, *held: str) -> Kind:
    return kind(held, None, type_, t(value, None))


AVRO = named([
    avro("boolean", True, "Nullable(Bool) = true", "boolean = True", "boolean = true", "BOOLEAN = 1", "tinyint(1) = 1"),
    avro("int", -(2**31), "Nullable(Int32) = -2147483648", "int = -2147483648", "integer = -2147483648", "INTEGER = -2147483648", "int(11) = -2147483648"),
    avro("long", 2**63 - 1, "Nullable(Int64) = 9223372036854775807", "long = 9223372036854775807", "bigint = 9223372036854775807", "BIGINT = 9223372036854775807", "bigint(20) = 9223372036854775807"),
    avro("float", 0.5, "Nullable(Float32) = 0.5", "float = 0.5", "real = 0.5", "REAL = 0.5", "float = 0.5"),
    avro("double", 5e-324, "Nullable(Float64) = 5e-324", "double = 5e-324", "double precision = 5e-324", "DOUBLE = 5e-324", "double = 5e-324"),
    avro("string", "é 007", "Nullable(String) = é 007", "string = é 007", "text = é 007", "TEXT = é 007", "longtext = é 007"),
    avro("bytes", b"\xff\0a", "Nullable(String) = ff0061", "binary = ff0061", "bytea = \\xff0061", "BLOB = ff0061", "longblob = ff0061"),
    avro(fixed(3, "F3"), b"\xff\0a", "Nullable(FixedString(3)) = ff0061", "fixed[3] = ff0061", "bytea = \\xff0061", "BLOB = ff0061", "binary(3) = ff0061"),
    avro(fixed(257, "F257"), b"\xff" * 257, "Nullable(String) = " + "ff" * 257, "fixed[257] = " + "ff" * 257, "bytea = \\x" + "ff" * 257, "BLOB = " + "ff" * 257, "longblob = " + "ff" * 257),
    avro({"type": "enum", "name": "E", "symbols": ["NEW", "OLD"]}, "OLD", "Nullable(String) = OLD", "string = OLD", "text = OLD", "TEXT = OLD", "longtext = OLD"),
    avro(logical("decimal", "bytes", precision=9, scale=2), Decimal("-1234567.89"), "Nullable(Decimal(9, 2)) = -1234567.89", "decimal(9, 2) = -1234567.89", "numeric(9,2) = -1234567.89", "NUMERIC(9, 2) = -1234567.89", "decimal(9,2) = -1234567.89"),
    avro(logical("decimal", "bytes", precision=38, scale=10), Decimal("1234567890123456789012345678.0000000001"), "Nullable(Decimal(38, 10)) = 1234567890123456789012345678.0000000001", "decimal(38, 10) = 1234567890123456789012345678.0000000001", "numeric(38,10) = 1234567890123456789012345678.0000000001", "JSON_TEXT = 1234567890123456789012345678.0000000001", "decimal(38,10) = 1234567890123456789012345678.0000000001"),
    avro(logical("decimal", "bytes", precision=76, scale=20), Decimal("9" * 56 + ".00000000000000000001"), "Nullable(Decimal(76, 20)) = 99999999999999999999999999999999999999999999999999999999.00000000000000000001", "string = 99999999999999999999999999999999999999999999999999999999.00000000000000000001", "json = 99999999999999999999999999999999999999999999999999999999.00000000000000000001", "JSON_TEXT = 99999999999999999999999999999999999999999999999999999999.00000000000000000001", "longtext = 99999999999999999999999999999999999999999999999999999999.00000000000000000001"),
    avro({**fixed(5, "D5"), "logicalType": "decimal", "precision": 10, "scale": 1}, Decimal("123456789.1"), "Nullable(Decimal(10, 1)) = 123456789.1", "decimal(10, 1) = 123456789.1", "numeric(10,1) = 123456789.1", "NUMERIC(10, 1) = 123456789.1", "decimal(10,1) = 123456789.1"),
    avro(logical("uuid", "string"), str(ID), "Nullable(UUID) = 61f0c404-5cb3-11e7-907b-a6006ad3dba0", "uuid = 61f0c404-5cb3-11e7-907b-a6006ad3dba0", "uuid = 61f0c404-5cb3-11e7-907b-a6006ad3dba0", "UUID = 61f0c404-5cb3-11e7-907b-a6006ad3dba0", "uuid = 61f0c404-5cb3-11e7-907b-a6006ad3dba0"),
    avro({**fixed(16, "U16"), "logicalType": "uuid"}, ID.bytes, "Nullable(UUID) = 61f0c404-5cb3-11e7-907b-a6006ad3dba0", "uuid = 61f0c404-5cb3-11e7-907b-a6006ad3dba0", "uuid = 61f0c404-5cb3-11e7-907b-a6006ad3dba0", "UUID = 61f0c404-5cb3-11e7-907b-a6006ad3dba0", "uuid = 61f0c404-5cb3-11e7-907b-a6006ad3dba0"),
    avro(logical("date", "int"), dt.date(2299, 12, 31), "Nullable(Date32) = 2299-12-31", "date = 2299-12-31", "date = 2299-12-31", "DATE = 2299-12-31", "date = 2299-12-31"),
    avro(logical("time-millis", "int"), dt.time(23, 59, 59, 999000), "Nullable(Time64(6)) = 23:59:59.999000", "time = 23:59:59.999000", "time without time zone = 23:59:59.999", "TIME = 23:59:59.999000", "time(6) = 23:59:59.999000"),
    avro(logical("time-micros", "long"), dt.time(23, 59, 59, 999999), "Nullable(Time64(6)) = 23:59:59.999999", "time = 23:59:59.999999", "time without time zone = 23:59:59.999999", "TIME = 23:59:59.999999", "time(6) = 23:59:59.999999"),
    avro(logical("timestamp-millis", "long"), 1767225600001, "Nullable(DateTime64(6, 'UTC')) = 2026-01-01 00:00:00.001000", "timestamptz = 2026-01-01 00:00:00.001000+00:00", "timestamp with time zone = 2026-01-01 00:00:00.001+00", "DATETIME = 2026-01-01 00:00:00.001000", "datetime(6) = 2026-01-01 00:00:00.001000"),
    avro(logical("timestamp-micros", "long"), -1, "Nullable(DateTime64(6, 'UTC')) = 1969-12-31 23:59:59.999999", "timestamptz = 1969-12-31 23:59:59.999999+00:00", "timestamp with time zone = 1969-12-31 23:59:59.999999+00", "DATETIME = 1969-12-31 23:59:59.999999", "datetime(6) = 1969-12-31 23:59:59.999999"),
    avro(logical("timestamp-nanos", "long"), NANOS, "Nullable(DateTime64(9, 'UTC')) = 2026-01-01 00:00:00.000000001", "string = 2026-01-01T00:00:00.000000001Z", "text = 2026-01-01T00:00:00.000000001Z", "TEXT = 2026-01-01T00:00:00.000000001Z", "longtext = 2026-01-01T00:00:00.000000001Z"),
    avro(logical("local-timestamp-millis", "long"), 1767225600001, "Nullable(DateTime64(6, 'UTC')) = 2026-01-01 00:00:00.001000", "timestamp = 2026-01-01 00:00:00.001000", "timestamp without time zone = 2026-01-01 00:00:00.001", "DATETIME = 2026-01-01 00:00:00.001000", "datetime(6) = 2026-01-01 00:00:00.001000"),
    avro(logical("local-timestamp-micros", "long"), -1, "Nullable(DateTime64(6, 'UTC')) = 1969-12-31 23:59:59.999999", "timestamp = 1969-12-31 23:59:59.999999", "timestamp without time zone = 1969-12-31 23:59:59.999999", "DATETIME = 1969-12-31 23:59:59.999999", "datetime(6) = 1969-12-31 23:59:59.999999"),
    avro(logical("local-timestamp-nanos", "long"), NANOS, "Nullable(DateTime64(9, 'UTC')) = 2026-01-01 00:00:00.000000001", "string = 2026-01-01T00:00:00.000000001", "text = 2026-01-01T00:00:00.000000001", "TEXT = 2026-01-01T00:00:00.000000001", "longtext = 2026-01-01T00:00:00.000000001"),
    avro({**fixed(12, "L12"), "logicalType": "duration"}, b"\1\0\0\0\2\0\0\0\3\0\0\0", "Tuple(months Nullable(Int64), days Nullable(Int64), millis Nullable(Int64)) = (1,2,3)", "struct<months: optional long, days: optional long, millis: optional long> = {'months': 1, 'days': 2, 'millis': 3}", 'json = {"months":1,"days":2,"millis":3}', 'JSON_TEXT = {"months":1,"days":2,"millis":3}', 'longtext = {"months":1,"days":2,"millis":3}'),
    avro(record("Row1", a="int", u=logical("uuid", "string")), {"a": 1, "u": str(ID)}, "Tuple(a Nullable(Int32), u Nullable(UUID)) = (1,'61f0c404-5cb3-11e7-907b-a6006ad3dba0')", "struct<a: optional int, u: optional uuid> = {'a': 1, 'u': UUID('61f0c404-5cb3-11e7-907b-a6006ad3dba0')}", 'json = {"a":1,"u":"61f0c404-5cb3-11e7-907b-a6006ad3dba0"}', 'JSON_TEXT = {"a":1,"u":"61f0c404-5cb3-11e7-907b-a6006ad3dba0"}', 'longtext = {"a":1,"u":"61f0c404-5cb3-11e7-907b-a6006ad3dba0"}'),
    avro(array(logical("timestamp-nanos", "long")), [NANOS], "Array(DateTime64(9, 'UTC')) = ['2026-01-01 00:00:00.000000001']", "list<string> = ['2026-01-01T00:00:00.000000001Z']", 'json = ["2026-01-01T00:00:00.000000001Z"]', 'JSON_TEXT = ["2026-01-01T00:00:00.000000001Z"]', 'longtext = ["2026-01-01T00:00:00.000000001Z"]'),
    avro(array(logical("time-millis", "int")), [dt.time(1, 2, 3)], "Array(Time64(6)) = ['01:02:03.000000']", "list<time> = [datetime.time(1, 2, 3)]", 'json = ["01:02:03"]', 'JSON_TEXT = ["01:02:03"]', 'longtext = ["01:02:03"]'),
    avro(mapping(logical("decimal", "bytes", precision=50, scale=2)), {"a": Decimal("9" * 48 + ".99")}, "Map(String, Decimal(50, 2)) = {'a':999999999999999999999999999999999999999999999999.99}", "map<string, string> = [('a', '999999999999999999999999999999999999999999999999.99')]", 'json = {"a":999999999999999999999999999999999999999999999999.99}', 'JSON_TEXT = {"a":999999999999999999999999999999999999999999999999.99}', 'longtext = {"a":999999999999999999999999999999999999999999999999.99}'),
    avro(["long", "string"], "x", "Tuple(long Nullable(Int64), string Nullable(String)) = (NULL,'x')", "struct<long: optional long, string: optional string> = {'long': None, 'string': 'x'}", 'json = {"long":null,"string":"x"}', 'JSON_TEXT = {"long":null,"string":"x"}', 'longtext = {"long":null,"string":"x"}'),
])  # fmt: skip
PROTOBUF = named([
    proto("double", 5e-324, "Nullable(Float64) = 5e-324", "double = 5e-324", "double precision = 5e-324", "DOUBLE = 5e-324", "double = 5e-324"),
    proto("float", 0.5, "Nullable(Float32) = 0.5", "float = 0.5", "real = 0.5", "REAL = 0.5", "float = 0.5"),
    proto("int32", -(2**31), "Nullable(Int32) = -2147483648", "int = -2147483648", "integer = -2147483648", "INTEGER = -2147483648", "int(11) = -2147483648"),
    proto("int64", 2**63 - 1, "Nullable(Int64) = 9223372036854775807", "long = 9223372036854775807", "bigint = 9223372036854775807", "BIGINT = 9223372036854775807", "bigint(20) = 9223372036854775807"),
    proto("uint32", 2**32 - 1, "Nullable(Int64) = 4294967295", "long = 4294967295", "bigint = 4294967295", "BIGINT = 4294967295", "bigint(20) = 4294967295"),
    proto("uint64", 2**64 - 1, "Nullable(Decimal(20, 0)) = 18446744073709551615", "decimal(20, 0) = 18446744073709551615", "numeric(20,0) = 18446744073709551615", "JSON_TEXT = 18446744073709551615", "decimal(20,0) = 18446744073709551615"),
    proto("sint32", -1, "Nullable(Int32) = -1", "int = -1", "integer = -1", "INTEGER = -1", "int(11) = -1"),
    proto("sint64", -1, "Nullable(Int64) = -1", "long = -1", "bigint = -1", "BIGINT = -1", "bigint(20) = -1"),
    proto("fixed32", 2**32 - 1, "Nullable(Int64) = 4294967295", "long = 4294967295", "bigint = 4294967295", "BIGINT = 4294967295", "bigint(20) = 4294967295"),
    proto("fixed64", 2**64 - 1, "Nullable(Decimal(20, 0)) = 18446744073709551615", "decimal(20, 0) = 18446744073709551615", "numeric(20,0) = 18446744073709551615", "JSON_TEXT = 18446744073709551615", "decimal(20,0) = 18446744073709551615"),
    proto("sfixed32", -1, "Nullable(Int32) = -1", "int = -1", "integer = -1", "INTEGER = -1", "int(11) = -1"),
    proto("sfixed64", -1, "Nullable(Int64) = -1", "long = -1", "bigint = -1", "BIGINT = -1", "bigint(20) = -1"),
    proto("bool", True, "Nullable(Bool) = true", "boolean = True", "boolean = true", "BOOLEAN = 1", "tinyint(1) = 1"),
    proto("string", "é 007", "Nullable(String) = é 007", "string = é 007", "text = é 007", "TEXT = é 007", "longtext = é 007"),
    proto("bytes", b"\xff\0a", "Nullable(String) = ff0061", "binary = ff0061", "bytea = \\xff0061", "BLOB = ff0061", "longblob = ff0061"),
    proto("State", 1, "Nullable(String) = OLD", "string = OLD", "text = OLD", "TEXT = OLD", "longtext = OLD"),
    proto("Pair", {"a": 1, "b": "x"}, "Tuple(a Nullable(Int32), b Nullable(String)) = (1,'x')", "struct<a: optional int, b: optional string> = {'a': 1, 'b': 'x'}", 'json = {"a":1,"b":"x"}', 'JSON_TEXT = {"a":1,"b":"x"}', 'longtext = {"a":1,"b":"x"}'),
    proto("repeated uint64", [2**64 - 1], "Array(Decimal(20, 0)) = [18446744073709551615]", "list<decimal(20, 0)> = [Decimal('18446744073709551615')]", 'json = ["18446744073709551615"]', 'JSON_TEXT = ["18446744073709551615"]', 'longtext = ["18446744073709551615"]'),
    proto("map<string, int64>", {"a": 1}, "Map(String, Int64) = {'a':1}", "map<string, long> = [('a', 1)]", 'json = {"a":"1"}', 'JSON_TEXT = {"a":"1"}', 'longtext = {"a":"1"}'),
    proto("google.protobuf.Timestamp", MOMENT, "Nullable(DateTime64(6, 'UTC')) = 2026-01-01 00:00:00.500000", "timestamptz = 2026-01-01 00:00:00.500000+00:00", "timestamp with time zone = 2026-01-01 00:00:00.5+00", "DATETIME = 2026-01-01 00:00:00.500000", "datetime(6) = 2026-01-01 00:00:00.500000"),
    proto("google.protobuf.Timestamp", FINE, "Nullable(DateTime64(9, 'UTC')) = 2026-01-01 00:00:00.000000001", "string = 2026-01-01T00:00:00.000000001Z", "text = 2026-01-01T00:00:00.000000001Z", "TEXT = 2026-01-01T00:00:00.000000001Z", "longtext = 2026-01-01T00:00:00.000000001Z"),
    proto("repeated google.protobuf.Timestamp", [FINE], "Array(DateTime64(9, 'UTC')) = ['2026-01-01 00:00:00.000000001']", "list<string> = ['2026-01-01T00:00:00.000000001Z']", 'json = ["2026-01-01T00:00:00.000000001Z"]', 'JSON_TEXT = ["2026-01-01T00:00:00.000000001Z"]', 'longtext = ["2026-01-01T00:00:00.000000001Z"]'),
    proto("google.protobuf.Duration", {"seconds": -1, "nanos": -1}, "Nullable(Decimal(21, 9)) = -1.000000001", "decimal(21, 9) = -1.000000001", "numeric(21,9) = -1.000000001", 'JSON_TEXT = "-1.000000001s"', "decimal(21,9) = -1.000000001"),
    proto("google.protobuf.DoubleValue", {"value": 0.5}, "Nullable(Float64) = 0.5", "double = 0.5", "double precision = 0.5", "DOUBLE = 0.5", "double = 0.5"),
    proto("google.protobuf.FloatValue", {"value": 0.5}, "Nullable(Float32) = 0.5", "float = 0.5", "real = 0.5", "REAL = 0.5", "float = 0.5"),
    proto("google.protobuf.Int64Value", {"value": -1}, "Nullable(Int64) = -1", "long = -1", "bigint = -1", "BIGINT = -1", "bigint(20) = -1"),
    proto("google.protobuf.UInt64Value", {"value": 2**64 - 1}, "Nullable(Decimal(20, 0)) = 18446744073709551615", "decimal(20, 0) = 18446744073709551615", "numeric(20,0) = 18446744073709551615", "JSON_TEXT = 18446744073709551615", "decimal(20,0) = 18446744073709551615"),
    proto("google.protobuf.Int32Value", {"value": -1}, "Nullable(Int32) = -1", "int = -1", "integer = -1", "INTEGER = -1", "int(11) = -1"),
    proto("google.protobuf.UInt32Value", {"value": 2**32 - 1}, "Nullable(Int64) = 4294967295", "long = 4294967295", "bigint = 4294967295", "BIGINT = 4294967295", "bigint(20) = 4294967295"),
    proto("google.protobuf.BoolValue", {"value": True}, "Nullable(Bool) = true", "boolean = True", "boolean = true", "BOOLEAN = 1", "tinyint(1) = 1"),
    proto("google.protobuf.StringValue", {"value": "x"}, "Nullable(String) = x", "string = x", "text = x", "TEXT = x", "longtext = x"),
    proto("google.protobuf.BytesValue", {"value": b"\xff"}, "Nullable(String) = ff", "binary = ff", "bytea = \\xff", "BLOB = ff", "longblob = ff"),
    proto("google.protobuf.Struct", {"a": [1.5, None]}, 'Nullable(String) = {"a":[1.5,null]}', 'string = {"a":[1.5,null]}', 'json = {"a":[1.5,null]}', 'JSON_TEXT = {"a":[1.5,null]}', 'longtext = {"a":[1.5,null]}'),
    proto("google.protobuf.Value", {"string_value": "x"}, 'Nullable(String) = "x"', 'string = "x"', 'json = "x"', 'JSON_TEXT = "x"', 'longtext = "x"'),
    proto("google.protobuf.ListValue", [1.5, "x"], 'Nullable(String) = [1.5,"x"]', 'string = [1.5,"x"]', 'json = [1.5,"x"]', 'JSON_TEXT = [1.5,"x"]', 'longtext = [1.5,"x"]'),
    proto("google.protobuf.Empty", {}, "Nullable(String) = {}", "string = {}", "json = {}", "JSON_TEXT = {}", "longtext = {}"),
    proto("google.protobuf.Any", {"type_url": "x/Pair", "value": b"\x08\1"}, "Tuple(type_url Nullable(String), value Nullable(String)) = ('x/Pair','\\b\u0001')", "struct<type_url: optional string, value: optional binary> = {'type_url': 'x/Pair', 'value': b'\\x08\\x01'}", 'json = {"@type":"x/Pair","a":1}', 'JSON_TEXT = {"@type":"x/Pair","a":1}', 'longtext = {"@type":"x/Pair","a":1}'),
    proto("google.protobuf.FieldMask", {"paths": ["a", "b.c"]}, "Tuple(paths Array(String)) = (['a','b.c'])", "struct<paths: optional list<string>> = {'paths': ['a', 'b.c']}", 'json = "a,b.c"', 'JSON_TEXT = "a,b.c"', 'longtext = "a,b.c"'),
])  # fmt: skip


@dataclass(frozen=True)
class Target:
    """Where a table is created, and how a person sees the types of its columns and its values, without landonce."""

    sink: dict[str, Any]
    types: Callable[[], Mapping[str, str]]
    rows: Callable[[], Iterator[Mapping[str, Any]]]


@pytest.fixture(params=[*TARGETS[:-1], pytest.param("mariadb", marks=pytest.mark.long)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[int, Target]:
    needed = {"clickhouse": "clickhouse", "postgres": "new_database", "mariadb": "mariadb"}.get(request.param)
    made = globals()[f"_{request.param}"]
    return TARGETS.index(request.param), made(request.getfixturevalue(needed) if needed else None, tmp_path)


def _of_sql(url: str, asked: Callable[[str], list[Any]], types: str, spelled: str = "{}") -> Target:
    def rows() -> Iterator[Mapping[str, Any]]:
        names = list(dict(asked(types)))
        found = asked(f"SELECT {', '.join(map(spelled.format, names))} FROM t")
        return (dict(zip(names, row, strict=True)) for row in found)

    return Target({"sql": {"url": url, "table": "t", "create": True}}, lambda: dict(asked(types)), rows)


def _clickhouse(server: LocalClickHouse, folder: Path) -> Target:
    table = f"created_{folder.name}".replace("-", "_")

    def types() -> Mapping[str, str]:
        return {each["name"]: each["type"] for each in ask(server.url, f"DESCRIBE TABLE {table}")}

    def rows() -> Iterator[Mapping[str, Any]]:
        text = "if(isValidUTF8(toString({0})), toString({0}), lower(hex(toString({0})))) AS {0}"
        listed = ", ".join(map(text.format, types()))
        return iter(ask(server.url, f"SELECT {listed} FROM {table} SETTINGS prefer_column_name_to_alias = 1"))

    return Target({"clickhouse": {"url": server.url, "table": table, "create": True}}, types, rows)


def _iceberg(_: None, folder: Path) -> Target:
    lake = folder / "lake"
    lake.mkdir()
    catalog = load_catalog("landonce", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")

    def types() -> Mapping[str, str]:
        return {each.name: str(each.field_type) for each in catalog.load_table("db.t").schema().fields}

    def rows() -> Iterator[Mapping[str, Any]]:
        return iter(catalog.load_table("db.t").scan().to_arrow().to_pylist())

    return Target({"iceberg": {"table": "db.t", "create": True}}, types, rows)


def _postgres(new_database: Callable[[], str], folder: Path) -> Target:
    url = new_database()

    def asked(query: str) -> list[Any]:
        with psycopg.connect(url.replace("+psycopg", ""), options="-c timezone=UTC") as connection:
            return connection.execute(query).fetchall()

    types = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0"
    return _of_sql(url, asked, types, "{}::text")


def _sqlite(_: None, folder: Path) -> Target:
    def asked(query: str) -> list[Any]:
        with closing(sqlite3.connect(folder / "t.db")) as connection:
            return connection.execute(query).fetchall()

    return _of_sql(f"sqlite:///{folder}/t.db", asked, "SELECT name, type FROM pragma_table_info('t')")


def _mariadb(server: LocalMariaDB, folder: Path) -> Target:
    database = f"created_{folder.name}".replace("-", "_")

    def asked(query: str) -> list[Any]:
        with closing(server.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database}")
    types = "SELECT column_name, column_type FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 't'"
    return _of_sql(server.url_of(database), asked, types)


def _shown(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _plain(type_: str) -> str:
    """Without line breaks and Iceberg's numbers of fields."""
    return re.sub(r"\s+|(?<=<)\d+: |(?<=, )\d+: ", " ", type_).replace("( ", "(").replace("< ", "<").replace("  ", " ")


@pytest.mark.parametrize("format_", ["avro", "protobuf"])
def test_every_type(
    format_: str, target: tuple[int, Target], kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Also read back by `verify`, value by value."""
    at_target, made = target
    kinds = AVRO if format_ == "avro" else PROTOBUF
    assert land(kinds, format_, kafka, new_topic(partitions=1), tmp_path, made.sink) == {}
    types, rows = made.types(), {int(each["id"]): each for each in made.rows()}
    found = {
        name: f"{_plain(types[name])} = {_shown(rows[at][name])}"
        for at, (name, _) in enumerate(tries_of(kinds, format_))
    }
    assert found == {name: each.type[at_target] for name, each in kinds.items()}
