"""Every type of PostgreSQL, MariaDB and SQLite as a column: its edges come back exactly, or a value for it is a dead letter with a reason. The
page has every type that a PostgreSQL and a MariaDB know. No MySQL is asked: its types are those of MariaDB that are not MariaDB's alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import ip_address, ip_interface, ip_network
from itertools import count, product
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pymysql
import pytest
from deliveries import letters
from mariadb_server import LocalMariaDB
from pipelines import landonce
from sql_runs import SqlSite, asking_postgres, asking_sqlite

import landonce as landonce_
from landonce.local import LocalKafka
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"
COORDINATES = "_topic varchar(249), _partition int, _offset bigint"
UTC = timezone.utc
_numbers = count()
Edges = dict[str, tuple[str, list[tuple[Any, Any]], list[Any]]]
"""Of each column: its type, values in JSON with what the table holds, and values that do not fit."""
POSTGRES: Edges = {
    "a_bool": ("boolean", [(True, True), (False, False)], [1, "true"]),
    "a_int2": ("smallint", [(-(2**15), -(2**15)), (2**15 - 1, 2**15 - 1)], [2**15, "1", 1.0]),
    "a_int4": ("integer", [(-(2**31), -(2**31)), (2**31 - 1, 2**31 - 1)], [2**31]),
    "a_int8": ("bigint", [(-(2**63), -(2**63)), (2**63 - 1, 2**63 - 1)], [2**63]),
    "a_float4": ("real", [(0.5, 0.5), (-1.25, -1.25)], [1e39, 2**24 + 1]),
    "a_float8": ("double precision", [(5e-324, 5e-324), (1.7976931348623157e308,) * 2], [2**53 + 1]),
    "a_numeric": ("numeric(38, 10)", [("-0.0000000001", Decimal("-1E-10")), ("9" * 28, Decimal("9" * 28))], ["0.00000000001", "1" + "0" * 28]),
    "a_text": ("text", [("", ""), ("é😀\n", "é😀\n")], ["\0", 1]),
    "a_varchar": ("varchar(3)", [("äöü", "äöü"), ("", "")], ["abcd"]),
    "a_bpchar": ("char(3)", [("abc", "abc"), ("a", "a  ")], ["abcd"]),
    "a_bytea": ("bytea", [("", b""), ("/w==", b"\xff")], ["AAA"]),
    "a_date": ("date", [("0001-01-01", date(1, 1, 1)), ("9999-12-31", date(9999, 12, 31))], ["2026-02-30"]),
    "a_timestamp": ("timestamp", [("1969-12-31T23:59:59.999999", datetime(1969, 12, 31, 23, 59, 59, 999999)), ("0001-01-01T00:00:00", datetime(1, 1, 1))], ["2026-01-01T00:00:00.0000001"]),
    "a_timestamptz": ("timestamptz(0)", [("2026-01-01T02:00:00+02:00", datetime(2026, 1, 1, tzinfo=UTC)), ("1900-01-01T00:00:00Z", datetime(1900, 1, 1, tzinfo=UTC))], ["2026-01-01T00:00:00.5Z"]),
    "a_uuid": ("uuid", [(str(UUID(int=0)), UUID(int=0)), (str(UUID(int=2**128 - 1)), UUID(int=2**128 - 1))], ["x"]),
    "a_json": ("json", [({"a": [1, None]}, {"a": [1, None]}), ("text", "text")], []),
    "a_jsonb": ("jsonb", [([], []), (1, 1)], []),
    "a_time": ("time", [("00:00:00", time(0)), ("23:59:59.999999", time(23, 59, 59, 999999))], ["24:00:00", "12:00:00Z", 1, "00:00:00.0000001"]),
    "a_time_0": ("time(0)", [("12:34", time(12, 34)), ("23:59:59", time(23, 59, 59))], ["12:34:56.5"]),
    "an_inet": ("inet", [("10.1.2.3/8", ip_interface("10.1.2.3/8")), ("2001:DB8:0::1", ip_address("2001:db8::1"))], ["10.0.0.256", "10.0.0.1/33", "::1/129", "x", 1]),
    "a_cidr": ("cidr", [("10.0.0.0/8", ip_network("10.0.0.0/8")), ("2001:db8::/32", ip_network("2001:db8::/32"))], ["10.0.0.1/8", "10/8"]),
    "a_macaddr": ("macaddr", [("00:00:5e:00:53:01",) * 2, ("FF-FF-FF-FF-FF-FF", "ff:ff:ff:ff:ff:ff")], ["00:00:5e:00:53", "0000.5e00.5301"]),
    "a_macaddr8": ("macaddr8", [("00:00:5e:ff:fe:00:53:01",) * 2, ("ff:ff:ff:ff:ff:ff:ff:ff",) * 2], ["00:00:5e:00:53:01"]),
    "an_int_array": ("integer[]", [([-(2**31), None, 2**31 - 1],) * 2, ([], [])], [[2**31], [[1]], ["1"], 1]),
    "a_float_array": ("real[]", [([0.5, None],) * 2, ([], [])], [[1e39]]),
    "a_bool_array": ("boolean[]", [([True, None, False],) * 2, ([], [])], [[1]]),
    "a_text_array": ("text[]", [(["NULL", None, 'a,"{}\\é'],) * 2, ([""],) * 2], [["\0"], "a"]),
    "a_varchar_array": ("varchar(2)[]", [(["ab", None],) * 2, ([], [])], [["abc"]]),
    "a_numeric_array": ("numeric(9, 2)[]", [(["1.25", None], [Decimal("1.25"), None]), ([-1], [Decimal(-1)])], [["0.001"]]),
    "a_date_array": ("date[]", [(["0001-01-01", None], [date(1, 1, 1), None]), (["9999-12-31"], [date(9999, 12, 31)])], [["2026-02-30"]]),
    "a_moment_array": ("timestamptz[]", [(["2026-01-01T02:00:00+02:00", None], [datetime(2026, 1, 1, tzinfo=UTC), None]), ([], [])], [["x"]]),
    "a_time_array": ("time[]", [(["12:00:00", None], [time(12), None]), ([], [])], [["x"]]),
    "a_bytes_array": ("bytea[]", [(["/w==", None], [b"\xff", None]), ([], [])], [["AAA"]]),
    "a_uuid_array": ("uuid[]", [([str(UUID(int=5)), None], [UUID(int=5), None]), ([], [])], [["x"]]),
    "a_number": ("numeric", [("1.50", Decimal("1.50")), (-12345678901234567890123456789012345678901234567890, Decimal("-12345678901234567890123456789012345678901234567890"))], ["NaN", "1e131072", "1e-16384", "0x1", True]),
    "a_wide_number": ("numeric(50, 10)", [("9" * 40 + "." + "9" * 10, Decimal("9" * 40 + "." + "9" * 10)), ("-1e-10", Decimal("-1E-10"))], ["1e-11", "1e40", ""]),
    "an_interval": ("interval", [("P1Y2M-3DT4H5M6.5S", "1 year 2 mons -3 days +04:05:06.5"), ("-00:00:00.000001", "-00:00:00.000001")], ["1", "P", "P1Y2.5M", "PT0.0000001S", "P999999999Y", 1]),
    "an_interval_0": ("interval(0)", [("PT1.000S", "00:00:01"), ("1 day", "1 day")], ["PT1.5S"]),
    "a_timetz": ("timetz", [("12:34:56.5+02:30", "12:34:56.5+02:30"), ("00:00Z", "00:00:00+00")], ["12:34:56", "24:00:00Z", "12:00+16"]),
    "a_bit": ("bit(3)", [("101", "101"), ("000", "000")], ["10", "1010", "102", 1]),
    "a_varbit": ("bit varying(9)", [("101010101", "101010101"), ("", "")], ["1010101010"]),
    "an_xml": ("xml", [("<a b='1'>é</a>", "<a b='1'>é</a>"), ("", "")], ["<a>", "<?xml version='1.0'?><a/>"]),
    "an_int4range": ("int4range", [("[1,4]", "[1,5)"), ("empty", "empty")], ["[4,1]", "[1,2147483647]", "1", [1, 2]]),
    "an_int8range": ("int8range", [("(,9223372036854775806]", "(,9223372036854775807)"), ("(1,2)", "empty")], ["[x,1]"]),
    "a_numrange": ("numrange", [("[1.50,1e2)", "[1.50,100)"), ("(,)", "(,)")], ["[NaN,1]"]),
    "a_daterange": ("daterange", [("[0001-01-01,2026-01-31]", "[0001-01-01,2026-02-01)"), ("(,)", "(,)")], ["[5,6)", "[2026-02-30,)"]),
    "a_tsrange": ("tsrange", [("[2026-01-01 00:00,2026-01-01T00:00:00.5]", '["2026-01-01 00:00:00","2026-01-01 00:00:00.5"]'), ("empty", "empty")], ['["",)']),
    "a_tstzrange": ("tstzrange", [('["2026-01-01T02:00:00+02:00",)', '["2026-01-01 00:00:00+00",)'), ("empty", "empty")], ["[today,)"]),
    "an_enum_array": ("mood[]", [(["good", None, "bad"],) * 2, ([], [])], [["so"], "good"]),
    "a_json_array": ("json[]", [([{"a": 1.0}, None, "x"], ['{"a": 1.0}', None, '"x"']), ([], [])], [{}]),
    "a_jsonb_array": ("jsonb[]", [([{"b": 1, "a": [2]}], ['{"a": [2], "b": 1}']), ([], [])], ["x"]),
    "an_inet_array": ("inet[]", [(["2001:DB8:0::1", None], ["2001:db8::1/128", None]), ([], [])], [["x"]]),
    "a_number_array": ("numeric[]", [(["1.50", 2], ["1.50", "2"]), ([], [])], [["x"]]),
    "an_interval_array": ("interval[]", [(["P1D", None], ["1 day", None]), ([], [])], [["x"]]),
    "a_range_array": ("int4range[]", [(["[1,2]"], ["[1,3)"]), ([], [])], [["x"]]),
    "a_bit_domain": ("three", [("101", "101"), ("000", "000")], ["1", "1010"]),
    "an_interval_domain": ("whole", [("PT1S", "00:00:01"), ("P1D", "1 day")], ["PT1.5S"]),
    "an_array_domain": ("moods", [(["good", None], "{good,NULL}"), ([], "{}")], [["so"]]),
    "a_time_domain": ("noon", [("12:00", time(12)), ("12:00:01", time(12, 0, 1))], ["12:00:00.5"]),
    "a_domain": ("short", [("ab", "ab"), ("", "")], ["abc"]),
    "a_enum": ("mood", [("good", "good"), ("bad", "bad")], ["so"]),
}  # fmt: skip
MARIADB: Edges = {
    "a_tinyint": ("tinyint", [(-128, -128), (127, 127)], [128]),
    "a_utinyint": ("tinyint unsigned", [(0, 0), (255, 255)], [-1]),
    "a_smallint": ("smallint", [(-(2**15), -(2**15)), (2**15 - 1,) * 2], [2**15]),
    "a_usmallint": ("smallint unsigned", [(0, 0), (2**16 - 1,) * 2], [-1]),
    "a_mediumint": ("mediumint", [(-(2**23),) * 2, (2**23 - 1,) * 2], [2**23]),
    "a_umediumint": ("mediumint unsigned", [(0, 0), (2**24 - 1,) * 2], [-1, 2**24]),
    "a_int": ("int", [(-(2**31),) * 2, (2**31 - 1,) * 2], [2**31]),
    "a_uint": ("int unsigned", [(0, 0), (2**32 - 1,) * 2], [-1]),
    "a_bigint": ("bigint", [(-(2**63),) * 2, (2**63 - 1,) * 2], [2**63]),
    "a_ubigint": ("bigint unsigned", [(0, 0), (2**64 - 1,) * 2], [-1, 2**64]),
    "a_bool": ("boolean", [(True, 1), (False, 0)], [1]),
    "a_year": ("year", [(1901, 1901), (2155, 2155)], [0, 70, 1900, 2156]),
    "a_wide_decimal": ("decimal(65, 30)", [("9" * 35 + "." + "9" * 30, Decimal("9" * 35 + "." + "9" * 30)), (-1.5, Decimal("-1.5"))], ["1e-31", "1e35", "NaN", ""]),
    "a_set": ("set('a', 'b c', 'd.')", [("d.,a", "a,d."), ("", "")], ["A", "a,", "dx", ["a"]]),
    "a_bit": ("bit(9)", [(0, b"\0\0"), (511, b"\1\xff")], [512, -1, "1", True]),
    "a_long_bit": ("bit(64)", [(0, b"\0" * 8), (2**64 - 1, b"\xff" * 8)], [2**64]),
    "a_decimal": ("decimal(38, 10)", [("-0.0000000001", Decimal("-1E-10")), ("9" * 28, Decimal("9" * 28))], ["1" + "0" * 28]),
    "a_double": ("double", [(5e-324, 5e-324), (1.7976931348623157e308,) * 2], [2**53 + 1]),
    "a_varchar": ("varchar(3)", [("äöü", "äöü"), ("a ", "a ")], ["abcd"]),
    "a_char": ("char(3)", [("abc", "abc"), ("", "")], ["a ", "abcd"]),
    "a_tinytext": ("tinytext", [("x" * 255,) * 2, ("", "")], ["x" * 256]),
    "a_text": ("text", [("é😀\0", "é😀\0"), ("", "")], [1]),
    "a_longtext": ("longtext", [("x" * 70_000,) * 2, ("", "")], [1]),
    "a_binary": ("binary(2)", [("AAA=", b"\0\0"), ("//8=", b"\xff\xff")], ["AA==", "AAAA"]),
    "a_varbinary": ("varbinary(2)", [("", b""), ("/wA=", b"\xff\0")], ["AAAA"]),
    "a_tinyblob": ("tinyblob", [("", b""), ("/w==", b"\xff")], ["AAA"]),
    "a_longblob": ("longblob", [("", b""), ("/w==", b"\xff")], ["AAA"]),
    "a_date": ("date", [("1000-01-01", date(1000, 1, 1)), ("9999-12-31", date(9999, 12, 31))], ["0999-12-31"]),
    "a_datetime": ("datetime(6)", [("1000-01-01T00:00:00", datetime(1000, 1, 1)), ("9999-12-31T23:59:59.999999", datetime(9999, 12, 31, 23, 59, 59, 999999))], ["0999-12-31T00:00:00"]),
    "a_timestamp": ("timestamp(3) null", [("1970-01-01T00:00:01Z", datetime(1970, 1, 1, 0, 0, 1)), ("2038-01-19T03:14:06.999Z", datetime(2038, 1, 19, 3, 14, 6, 999000))], ["2038-01-19T03:14:08Z", "1970-01-01T00:00:00Z", "2026-01-01T00:00:00.0001Z"]),
    "a_enum": ("enum('good', 'bad')", [("good", "good"), ("bad", "bad")], ["so", ""]),
    "a_time": ("time(3)", [("00:00:00", timedelta(0)), ("23:59:59.999", timedelta(days=1, milliseconds=-1))], ["24:60:00", "839:00:00", "00:00:00.0001", 1]),
    "a_span": ("time(6)", [("-838:59:59", -timedelta(hours=838, minutes=59, seconds=59)), ("24:00", timedelta(days=1))], ["-839:00:00", "1"]),
    "a_uuid": ("uuid", [(str(UUID(int=0)),) * 2, (str(UUID(int=2**128 - 1)).upper(), str(UUID(int=2**128 - 1)))], ["x"]),
    "an_inet4": ("inet4", [("0.0.0.0", "0.0.0.0"), ("255.255.255.255",) * 2], ["256.0.0.0", "::1"]),
    "an_inet6": ("inet6", [("2001:DB8:0::1", "2001:db8::1"), ("::",) * 2], ["10.0.0.1", "x"]),
    "a_json": ("json", [("[1]", "[1]"), ("{}", "{}")], ["no document"]),
}  # fmt: skip
SQLITE: Edges = {
    "a_int": ("INTEGER", [(-(2**63),) * 2, (2**63 - 1,) * 2], [2**63, "1"]),
    "a_bigint": ("BIGINT", [(0, 0), (2**63 - 1,) * 2], [1.5]),
    "a_real": ("REAL", [(5e-324,) * 2, (-0.5,) * 2], [2**53 + 1, "1"]),
    "a_text": ("TEXT", [("", ""), ("é😀\0", "é😀\0")], [1]),
    "a_varchar": ("VARCHAR(3)", [("äöü", "äöü"), ("007", "007")], ["abcd"]),
    "a_blob": ("BLOB", [("", b""), ("/w==", b"\xff")], ["AAA"]),
    "a_bool": ("BOOLEAN", [(True, 1), (False, 0)], [1]),
    "a_numeric": ("NUMERIC(15, 2)", [("0.10", 0.1), ("-9999999999999.99", -9999999999999.99)], ["0.001", "10000000000000"]),
    "a_decimal": ("DECIMAL(9, 4)", [(12, 12), (0.0001, 0.0001)], ["100000", True]),
    "a_time": ("TIME", [("00:00:00", "00:00:00.000000"), ("23:59:59.999999",) * 2], ["24:00:00", "x"]),
    "a_uuid": ("UUID", [(str(UUID(int=0)),) * 2, (str(UUID(int=2**128 - 1)),) * 2], ["x"]),
    "a_date": ("DATE", [("0001-01-01",) * 2, ("9999-12-31",) * 2], ["x"]),
    "a_datetime": ("DATETIME", [("2026-01-01T00:00:00Z", "2026-01-01 00:00:00.000000"), ("0001-01-01T00:00:00Z", "0001-01-01 00:00:00.000000")], ["x"]),
    "a_json": ("JSON", [({"a": 1}, '{"a": 1}'), ([], "[]")], []),
}  # fmt: skip


@pytest.fixture
def pg(new_database: Callable[[], str], kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> SqlSite:
    url = new_database()
    site = SqlSite(kafka, tmp_path, new_topic(1), url, asking_postgres(url))
    site.ask(
        "CREATE DOMAIN short AS varchar(2); CREATE TYPE mood AS ENUM ('good', 'bad'); "
        "CREATE DOMAIN three AS bit(3); CREATE DOMAIN whole AS interval(0); CREATE DOMAIN moods AS mood[]; CREATE DOMAIN noon AS time(0)"
    )
    return site


@pytest.fixture
def maria(mariadb: LocalMariaDB, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> SqlSite:
    database = f"types{next(_numbers)}"
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")

    def ask(query: str) -> list[tuple[Any, ...]]:
        with mariadb.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    return SqlSite(kafka, tmp_path, new_topic(1), mariadb.url_of(database), ask)


@pytest.fixture
def lite(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> SqlSite:
    return SqlSite(kafka, tmp_path, new_topic(1), "sqlite:///t.db", asking_sqlite(tmp_path / "t.db"))


CASES: dict[str, tuple[Edges, tuple[str, ...]]] = {
    "pg": (
        POSTGRES,
        ("interval day", "interval year to month", "short[]", "char(3)[]", "money", "point", "int4multirange"),
    ),
    "maria": (MARIADB, ("float(7, 3)", "point")),
    "lite": (SQLITE, ("NUMERIC", "NUMERIC(16, 2)")),
}
AS_TEXT = ("interval", "timetz", "bit", "range", "json[]", "jsonb[]", "inet[]", "numeric[]", "mood[]", "whole", "moods")
"""What is asked for as the server writes it: its Python driver has no type for each."""


CHANGED: dict[str, dict[str, str]] = {
    "pg": {
        "a_time": "'00:00:00.000001'",
        "an_inet": "'10.1.2.3/9'",
        "a_cidr": "'10.0.0.0/9'",
        "a_macaddr": "'00:00:5e:00:53:02'",
        "an_int_array": "'{1}'",
        "a_float_array": "'{0.5, 0.5}'",
        "a_text_array": "'{NULL}'",
        "a_moment_array": "'{2026-01-01 00:00:00.000001+00, NULL}'",
        "a_uuid_array": "NULL",
        "a_number": "1.51",
        "a_wide_number": "9999999999999999999999999999999999999999.9999999998",
        "an_interval": "'14 months -3 days 04:05:06.500001'",
        "a_timetz": "'12:34:56.5+02'",
        "a_bit": "B'111'",
        "a_varbit": "B'10101010'",
        "an_xml": "'<a/>'",
        "an_int4range": "'[1,4)'",
        "a_tsrange": "'empty'",
        "an_enum_array": "'{good,bad}'",
        "a_jsonb_array": "ARRAY['{}'::jsonb]",
        "an_inet_array": "'{::1,NULL}'",
        "a_number_array": "'{1.5,2.0001}'",
        "a_range_array": "'{\"[1,4)\"}'",
    },
    "maria": {
        "a_time": "'00:00:00.001'",
        "a_wide_decimal": "1",
        "a_set": "'a'",
        "a_span": "'-838:59:58.999999'",
        "a_bit": "1",
        "a_uuid": "'00000000-0000-0000-0000-000000000001'",
        "an_inet4": "'0.0.0.1'",
        "an_inet6": "'::1'",
    },
    "lite": {"a_numeric": "0.11", "a_decimal": "12.0001", "a_time": "'00:00:00.000001'", "a_uuid": "'x'"},
}
"""What the first row gets in the place of its values: the audit must find every one."""


def _is_text(kind: str) -> bool:
    return any(each in kind for each in AS_TEXT) and not kind.startswith("numeric(9")


@pytest.mark.parametrize("server", CASES)
def test_edges_come_back_or_are_dead_letters(
    server: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, (edges, others) = request.getfixturevalue(server), CASES[server]
    columns = [f"{name} {each[0]}" for name, each in edges.items()]
    unfilled = [f"other_{at}" for at in range(len(others))]
    columns += [f"{name} {kind}" for name, kind in zip(unfilled, others, strict=True)]
    site.ask(f"CREATE TABLE events ({', '.join(columns)}, {COORDINATES})")
    good = [{name: each[1][at][0] for name, each in edges.items()} for at in (0, 1)]
    bad = [{name: value} for name, each in edges.items() for value in each[2]]
    filled = [{name: "x"} for name in unfilled]
    site.write_file()
    site.file.write_text(site.file.read_text().replace("path: dead", "path: dead\n  limit: 100%"))
    site.send(*((None, json.dumps(each).encode()) for each in (*good, {}, *bad, *filled)))
    totals = site.run()
    found = {each["offset"]: each["reason"] for each in letters(site.dead)}
    assert set(found) == set(range(3, 3 + len(bad) + len(filled))), [
        *(bad[at - 3] for at in range(3, 3 + len(bad)) if at not in found),
        *(why for at, why in found.items() if at < 3),
    ]
    assert (totals.landed, totals.dead_lettered) == (3, len(bad) + len(filled))
    for at in range(3 + len(bad), 3 + len(bad) + len(filled)):
        assert "which no record can fill exactly" in found[at]
    asked = [
        f"{name}::text{'[]' * kind.endswith('[]')}" if server == "pg" and _is_text(kind) else name
        for name, (kind, *_) in edges.items()
    ]
    rows = site.ask(f"SELECT {', '.join((*asked, *unfilled))} FROM events ORDER BY _offset")
    for at, row in enumerate(rows[:2]):
        for (name, each), value in zip(edges.items(), row, strict=False):
            assert value == each[1][at][1], name
        assert set(row[len(edges) :]) == {None}
    assert set(rows[2]) == {None}
    assert landonce(capsys, monkeypatch, "verify", site.file, "--values").code == 0
    changed = CHANGED[server]
    site.ask(f"UPDATE events SET {', '.join(f'{name} = {value}' for name, value in changed.items())} WHERE _offset = 0")
    audited = landonce(capsys, monkeypatch, "verify", site.file, "--values")
    assert audited.code == 1
    found_there = {name for name in edges if f" {name} should be " in audited.out or f" {name}: 1" in audited.out}
    assert found_there == set(changed), audited.out + audited.err


@pytest.mark.parametrize("server", CASES)
def test_a_declared_schema_makes_columns_of_times_uuids_and_decimals(
    server: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are keys, too: the last record of each is the row, whatever its spelling."""
    site: SqlSite = request.getfixturevalue(server)
    key = ["u", "t", "n"]
    site.write_file(
        schema="u UUID NOT NULL, t TIME NOT NULL, n DECIMAL(15, 2) NOT NULL, x INT", create=True, mode="upsert", key=key
    )
    uuid = str(UUID(int=2**127 + 11))
    rows = [
        {"u": uuid, "t": "12:00", "n": 0.1, "x": 1},
        {"u": uuid.upper(), "t": "12:00:00.000", "n": "0.10", "x": 2},
        {"u": uuid, "t": "12:00:00.000001", "n": 9999999999999.99, "x": 3},
    ]
    site.send(*((b"k", json.dumps(each).encode()) for each in rows))
    totals = site.run()
    assert (totals.landed, totals.dead_lettered) == (3, 0), letters(site.dead)
    assert [x for (x,) in site.ask("SELECT x FROM events ORDER BY x")] == [2, 3]
    audited = landonce(capsys, monkeypatch, "verify", site.file, "--values")
    assert audited.code == 0, audited.out + audited.err
    site.ask("UPDATE events SET x = 4 WHERE x = 3")
    assert landonce(capsys, monkeypatch, "verify", site.file, "--values").code == 1


def section(title: str) -> dict[str, bool]:
    """The types that a table of the page names, and whether records fill them."""
    rows = PAGE.read_text().split(f"#### {title}\n")[1].split("\n###")[0].splitlines()
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows if row.startswith("| `")]
    return {name: not row[1].startswith("nothing") for row in cells for name in re.findall(r"`([^`]+)`", row[0])}


def fills(site: SqlSite, types: list[str]) -> dict[str, bool]:
    """Which of these types landonce fills, by a table with a column of each."""
    columns = ", ".join(f"c{at} {each}" for at, each in enumerate(types))
    site.ask(f"CREATE TABLE every ({columns}, {COORDINATES})")
    table = SqlTable(SqlSink(site.url.replace("sqlite:///", f"sqlite:///{site.folder}/"), "every", "p"))
    try:
        fields = table.schema().by_name()
    finally:
        table.close()
    assert set(fields) == {f"c{at}" for at in range(len(types))}
    return {each: fields[f"c{at}"].is_filled for at, each in enumerate(types)}


def test_the_page_has_the_list_of_postgresql(pg: SqlSite) -> None:
    """All base, range and multirange types of the server that a column may have, without its catalogue's own."""
    listed = pg.ask(
        "SELECT typname FROM pg_type JOIN pg_namespace AS n ON n.oid = typnamespace WHERE nspname = 'pg_catalog' "
        "AND typtype IN ('b', 'r', 'm') AND typelem = 0 OR typname IN ('point', 'box', 'lseg', 'line', 'name') ORDER BY 1"
    )
    named = section("PostgreSQL types")
    server = {name for (name,) in listed}
    assert server - set(named) == set()
    assert set(named) - server == {"int4[]", "enum", "domain", "composite"}
    tried = sorted(server - {"gtsvector"})  # which no table may have
    spelled = [
        name if name == "bit" else f'"{name}"' for name in tried
    ]  # "bit" is a type of any length that has no name
    found = fills(pg, spelled)
    assert [found[each] for each in spelled] == [named[name] for name in tried]
    pg.ask("CREATE TYPE composite AS (x int)")
    more = {"mood": "enum", "short": "domain", "int4[]": "int4[]", "composite": "composite", "numeric(9, 2)": "numeric"}
    pg.ask("DROP TABLE every")
    found = fills(pg, list(more))
    assert {more[each]: filled for each, filled in found.items()} == {each: named[each] for each in more.values()}


GEOMETRIES = {
    *("point", "linestring", "polygon", "geometry"),
    *("multipoint", "multilinestring", "multipolygon", "geometrycollection"),
}


def test_the_page_has_the_types_of_mariadb(maria: SqlSite, mariadb: LocalMariaDB) -> None:
    """MariaDB has no list of its types: each of its keywords is tried as one, which geometries are not. A type may have several names."""
    named = section("MySQL and MariaDB types")
    assert fills(maria, list(named)) == named
    ((database,),) = maria.ask("SELECT database()")
    known = set()
    with mariadb.connect(database) as connection, connection.cursor() as cursor:

        def kinds(table: str) -> set[str]:
            cursor.execute(
                "SELECT data_type FROM information_schema.columns "
                f"WHERE table_schema = database() AND table_name = '{table}' AND column_name LIKE 'c%'"
            )
            return {type_ for (type_,) in cursor.fetchall()}

        cursor.execute(
            "SELECT word FROM information_schema.keywords UNION "
            "SELECT plugin_name FROM information_schema.plugins WHERE plugin_type = 'DATA TYPE'"
        )
        for (word,), argument in product(cursor.fetchall(), ("", "(3)", "('a')")):
            with suppress(pymysql.Error):
                cursor.execute(f"CREATE TABLE tried (c {word}{argument})")
                known |= kinds("tried")
                cursor.execute("DROP TABLE tried")
        assert {"int", "set", "inet6", "year"} <= known
        assert kinds("every") == known | GEOMETRIES


def test_pushed_rows_land_in_types_with_forms_of_their_own(pg: SqlSite) -> None:
    """PostgreSQL's COPY takes documents, addresses and arrays in forms of their own, wherever rows come from."""
    pg.ask(f"CREATE TABLE events (doc jsonb, address inet, numbers int[], ids uuid[], at time, {COORDINATES})")
    types = [("doc", pa.string()), ("address", pa.string()), ("numbers", pa.list_(pa.int32())), ("at", pa.time64("us"))]
    row = {"doc": '{"a": [1]}', "address": "::1", "numbers": [1, None], "at": time(12)}
    with landonce_.ExactlyOnceSink(landonce_.sql(pg.url, "events"), name="pushed", schema=pa.schema(types)) as once:
        once.push("s", [{"_offset": 0, **row}])
    (found,) = pg.ask("SELECT doc, address, numbers, at FROM events")
    assert found == ({"a": [1]}, ip_address("::1"), [1, None], time(12))
