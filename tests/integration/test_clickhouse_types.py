"""Every type that the ClickHouse sink takes, there and back, at every scale; and what it does not take, by name."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from clickhouse_tables import block, insert, make, sink_for

from landonce.errors import TableUnfit, TargetRefused
from landonce.local import LocalClickHouse
from landonce.protocol.settle import Reply
from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.schema.ddl import UnfitFields, parse_schema
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.clickhouse.sink import ClickHouseSink

pytestmark = pytest.mark.integration

NewTable = Callable[[], str]
PAGE = " ".join((Path(__file__).parents[2] / "docs" / "pipeline-file.md").read_text().split())


def utc(*moment: int) -> dt.datetime:
    return dt.datetime(*moment, tzinfo=dt.timezone.utc)  # type: ignore[misc, arg-type]


CASES: list[tuple[str, list[object], list[str]]] = [
    ("Bool", [True, False], ["true", "false"]),
    *[(f"Int{bits}", [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1], [str(-(2 ** (bits - 1))), str(2 ** (bits - 1) - 1)])
      for bits in (8, 16, 32, 64)],
    *[(f"UInt{bits}", [0, 2**bits - 1], ["0", str(2**bits - 1)]) for bits in (8, 16, 32, 64)],
    ("Float32", [0.5, -1.25], ["0.5", "-1.25"]),
    ("Float64", [0.1, 1e300, -0.0], ["0.1", "1e300", "-0"]),
    ("String", ["", "é\t'\\", "🎈"], ["", "é\t'\\", "🎈"]),
    ("LowCardinality(String)", ["a", "b", "a"], ["a", "b", "a"]),
    ("Nullable(String)", ["", None], ["", "NULL"]),
    ("LowCardinality(Nullable(String))", ["x", None], ["x", "NULL"]),
    ("FixedString(3)", ["abc", "é"], ["abc", "é"]),
    ("Enum8('new' = 1, 'it\\'s' = -2)", ["new", "it's"], ["new", "it's"]),
    ("Nullable(Enum16('a' = 1000))", ["a", None], ["a", "NULL"]),
    ("UUID", ["61f0c404-5cb3-11e7-907b-a6006ad3dba0"], ["61f0c404-5cb3-11e7-907b-a6006ad3dba0"]),
    ("Nullable(UUID)", [None], ["NULL"]),
    ("IPv4", ["192.168.0.1"], ["192.168.0.1"]),
    ("IPv6", ["2001:db8::1", "::", "::ffff:1.2.3.4"], ["2001:db8::1", "::", "::ffff:1.2.3.4"]),
    ("Date", [dt.date(1970, 1, 1), dt.date(2149, 6, 6)], ["1970-01-01", "2149-06-06"]),
    ("Date32", [dt.date(1900, 1, 1), dt.date(1969, 12, 31), dt.date(2299, 12, 31)], ["1900-01-01", "1969-12-31", "2299-12-31"]),
    ("DateTime('UTC')", [utc(1970, 1, 1), utc(2106, 2, 7, 6, 28, 15)], ["1970-01-01 00:00:00", "2106-02-07 06:28:15"]),
    ("DateTime('Asia/Tokyo')", [utc(2020, 1, 1)], ["2020-01-01 09:00:00"]),
    ("Nullable(DateTime64(3, 'UTC'))", [utc(2020, 1, 1, 1, 2, 3, 4000), None], ["2020-01-01 01:02:03.004", "NULL"]),
    ("DateTime64(3, 'America/New_York')", [utc(2020, 7, 1)], ["2020-06-30 20:00:00.000"]),
    ("Decimal(9, 4)", [Decimal("99999.9999"), Decimal("-0.0001")], ["99999.9999", "-0.0001"]),
    ("Decimal(18, 0)", [Decimal(10**18 - 1)], ["9" * 18]),
    ("Decimal(38, 10)", [Decimal("1234567890123456789012345678.0123456789")], ["1234567890123456789012345678.0123456789"]),
    ("Decimal(76, 20)", [Decimal(10**55 + 1)], [str(10**55 + 1)]),
    ("Nullable(Decimal(5, 2))", [None, Decimal("1.5")], ["NULL", "1.5"]),
    ("Array(Int64)", [[1, 2], []], ["[1,2]", "[]"]),
    ("Array(Array(Nullable(String)))", [[["a", None], []], []], ["[['a',NULL],[]]", "[]"]),
    ("Array(LowCardinality(String))", [["a"]], ["['a']"]),
    ("Array(UUID)", [["61f0c404-5cb3-11e7-907b-a6006ad3dba0"]], ["['61f0c404-5cb3-11e7-907b-a6006ad3dba0']"]),
    ("Array(DateTime64(6, 'UTC'))", [[utc(1960, 1, 1, 0, 0, 0, 1)]], ["['1960-01-01 00:00:00.000001']"]),
    ("Tuple(a Int8, `b c` Nullable(String))", [{"a": 1, "b c": None}], ["(1,NULL)"]),
    ("Tuple(a Array(Tuple(x Float64, d Date32)))", [{"a": [{"x": 0.5, "d": dt.date(1950, 1, 1)}]}], ["([(0.5,'1950-01-01')])"]),
    ("Array(Tuple(k String, v Decimal(10, 2)))", [[{"k": "a", "v": Decimal("1.25")}]], ["[('a',1.25)]"]),
]  # fmt: skip


def round_trip(server: LocalClickHouse, sink: ClickHouseSink, rows: pa.Table) -> list[str]:
    assert sink.writer().send(rows, insert(sink.target(), "a")) is Reply.ACKNOWLEDGED
    return read(server, sink.table)


def read(server: LocalClickHouse, table: str) -> list[str]:
    answer = server.ask(f"SELECT ifNull(toString(v), 'NULL') FROM {table} ORDER BY _offset FORMAT TabSeparatedRaw")
    return answer.removesuffix("\n").split("\n")


@pytest.mark.parametrize(("type_", "values", "expected"), CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_every_type_comes_back_as_it_was(
    clickhouse: LocalClickHouse,
    new_table: NewTable,
    type_: str,
    values: list[object],
    expected: list[str],
    compression: str | None,
) -> None:
    table = new_table()
    make(clickhouse, table, f"v {type_}")
    sink = sink_for(clickhouse, table, compression=compression)
    (field,) = sink.target().schema().fields
    assert field.required == (None not in values)
    rows = block({"v": pa.array(values, field.type)})
    assert round_trip(clickhouse, sink, rows) == expected


@pytest.mark.parametrize("scale", range(10))
def test_every_scale_of_datetime64(clickhouse: LocalClickHouse, new_table: NewTable, scale: int) -> None:
    table = new_table()
    make(clickhouse, table, f"v DateTime64({scale}, 'UTC')")
    sink = sink_for(clickhouse, table)
    (field,) = sink.target().schema().fields
    ticks = [0, 1, -1, 1_600_000_000 * 10**scale + 1, -2_000_000_000 * 10**scale + 1]
    decoded = JsonDecoder(Schema((field,))).decode(
        pa.array([f'{{"v":{tick}}}'.encode() for tick in ticks], pa.binary())
    )
    assert not decoded.rejects
    round_trip(clickhouse, sink, block({"v": decoded.table.column("v")}))
    raw = clickhouse.ask(f"SELECT reinterpretAsInt64(v) FROM {table} ORDER BY _offset")
    assert [int(line) for line in raw.split()] == ticks


@pytest.mark.parametrize(
    ("column", "landed"),
    [
        ("v Array(Int64)", []),
        ("v Array(Int64) DEFAULT [7]", ["[7]", "[7]"]),
        ("v Array(Int64) DEFAULT []", ["[]", "[]"]),
        ("v Array(Nullable(Int64)) DEFAULT []", ["[]", "[]"]),
    ],
)
def test_a_list_that_is_null_or_absent_takes_the_default_and_needs_one(
    clickhouse: LocalClickHouse, new_table: NewTable, column: str, landed: list[str]
) -> None:
    assert "A null or absent list lands empty if its column has `DEFAULT []`" in PAGE
    table = new_table()
    make(clickhouse, table, f"id Int64, {column}")
    sink = sink_for(clickhouse, table)
    records = pa.array([b'{"id": 1, "v": null}', b'{"id": 2}', b'{"id": 3, "v": [1]}'], pa.binary())
    decoded = JsonDecoder(sink.target().schema()).decode(records)
    assert len(decoded.rejects) == 2 - len(landed)
    rows = block({name: decoded.table.column(name) for name in ("id", "v")})
    assert round_trip(clickhouse, sink, rows) == [*landed, "[1]"]


@pytest.mark.parametrize(
    ("type_", "value", "fine"),
    [
        ("Array(DateTime64(2, 'UTC'))", ["2026-01-01T00:00:00.123Z"], ["2026-01-01T00:00:00.12Z"]),
        ("Tuple(a DateTime64(2, 'UTC'))", {"a": "2026-01-01T00:00:00.123Z"}, {"a": "2026-01-01T00:00:00.12Z"}),
        ("Tuple(a DateTime('UTC'), b Date)", {"a": "2200-01-01T00:00:00Z", "b": "2026-01-01"}, {"a": "2026-01-01", "b": "2026-01-01"}),
        ("Tuple(a DateTime('UTC'), b Date)", {"a": "2026-01-01", "b": "1950-01-01"}, {"a": "2026-01-01", "b": "2026-01-01"}),
        ("Array(Tuple(a Tuple(b DateTime('UTC'))))", [{"a": {"b": "1950-01-01T00:00:00Z"}}], [{"a": {"b": "2026-01-01T00:00:00Z"}}]),
    ],
)  # fmt: skip
def test_a_time_inside_of_a_list_or_tuple_is_as_exact_as_one_outside(
    clickhouse: LocalClickHouse, new_table: NewTable, type_: str, value: object, fine: object
) -> None:
    table = new_table()
    make(clickhouse, table, f"v {type_}")
    sink = sink_for(clickhouse, table)
    records = pa.array([json.dumps({"v": each}).encode() for each in (value, fine)], pa.binary())
    decoded = JsonDecoder(sink.target().schema()).decode(records)
    assert [reject.index for reject in decoded.rejects] == [0]
    assert len(round_trip(clickhouse, sink, block({"v": decoded.table.column("v")}))) == 1


@pytest.mark.parametrize("type_", ["DateTime('Europe/Berlin')", "DateTime64(3, 'Europe/Berlin')"])
def test_a_time_without_a_zone_is_utc_whatever_the_zone_of_its_column(
    clickhouse: LocalClickHouse, new_table: NewTable, type_: str
) -> None:
    assert "| times without a zone | UTC, also in a column `DateTime('Europe/Berlin')`" in PAGE
    table = new_table()
    make(clickhouse, table, f"v {type_}")
    sink = sink_for(clickhouse, table)
    records = pa.array([b'{"v": "2026-07-01T12:00:00"}', b'{"v": "2026-07-01T12:00:00+02:00"}'], pa.binary())
    decoded = JsonDecoder(sink.target().schema()).decode(records)
    shown = round_trip(clickhouse, sink, block({"v": decoded.table.column("v")}))
    assert [each[:19] for each in shown] == ["2026-07-01 14:00:00", "2026-07-01 12:00:00"]


def test_null_takes_the_default_where_there_is_one(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    make(clickhouse, table, "a Int64, v String DEFAULT concat('a is ', toString(a)), u UUID DEFAULT toUUID('61f0c404-5cb3-11e7-907b-a6006ad3dba0'), "
         "n Nullable(Int8) DEFAULT 7, l Array(Int8) DEFAULT [], m Map(String, String) DEFAULT map('k', 'v'), x Int64 MATERIALIZED a + 1")  # fmt: skip
    sink = sink_for(clickhouse, table)
    fields = sink.target().schema().by_name()
    assert {name: field.required for name, field in fields.items()} == {
        "a": True,
        "v": False,
        "u": False,
        "n": False,
        "l": False,
        "m": False,
    }
    rows = block({
        "a": [1, 2], "v": ["set", None], "u": pa.nulls(2, pa.string()), "n": pa.array([None, 1], pa.int8()),
        "l": pa.array([None, [1]], fields["l"].type), "m": pa.nulls(2, fields["m"].type),
    })  # fmt: skip
    assert round_trip(clickhouse, sink, rows) == ["set", "a is 2"]
    rest = clickhouse.ask(
        f"SELECT u = toUUID('61f0c404-5cb3-11e7-907b-a6006ad3dba0'), n, l, m, x FROM {table} ORDER BY a"
    )
    assert rest == "1\t\\N\t[]\t{'k':'v'}\t2\n1\t1\t[1]\t{'k':'v'}\t3\n"


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("Date", dt.date(1969, 12, 31)),
        ("Date", dt.date(2150, 1, 1)),
        ("Date32", dt.date(2300, 1, 1)),
        ("DateTime", utc(1969, 12, 31)),
        ("DateTime", utc(2107, 1, 1)),
        ("DateTime64(3)", utc(1800, 1, 1)),
        ("Int64", None),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_never_bent(
    clickhouse: LocalClickHouse, new_table: NewTable, type_: str, value: object
) -> None:
    table = new_table()
    make(clickhouse, table, f"v {type_}")
    sink = sink_for(clickhouse, table)
    (field,) = sink.target().schema().fields
    with pytest.raises(TargetRefused, match="column v"):
        sink.writer().send(block({"v": pa.array([value], field.type)}), insert(sink.target(), "a"))
    assert read(clickhouse, table) == [""]


@pytest.mark.parametrize("type_", ["AggregateFunction(sum, Int8)", "Map(Array(Int8), String)", "Tuple()"])
def test_what_cannot_be_decoded_exactly_is_refused_by_name(
    clickhouse: LocalClickHouse, new_table: NewTable, type_: str
) -> None:
    table = new_table()
    make(clickhouse, table, f"v {type_}")
    with pytest.raises(TableUnfit, match=r"v: ") as unfit:
        sink_for(clickhouse, table).target().schema()
    assert "DEFAULT" in unfit.value.command


DECLARED = Schema((
    Field("i", pa.int64(), required=True), Field("s", pa.string()), Field("b", pa.bool_()), Field("f", pa.float32()),
    Field("d", pa.date32()), Field("t", pa.timestamp("us", tz="UTC"), scale=6), Field("m", pa.decimal128(20, 5)),
    Field("l", pa.list_(pa.string())), Field("r", pa.list_(pa.field("item", pa.int32(), nullable=False)), required=True),
    Field("p", pa.struct([pa.field("x", pa.float64(), nullable=False), pa.field("y", pa.string())]), required=True),
))  # fmt: skip


def test_a_created_table_takes_what_was_declared(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    sink = sink_for(clickhouse, new_table())
    target = sink.target()
    assert not target.exists()
    for _ in range(2):
        target.create(DECLARED, order_by="i, _offset", partition_by="toYYYYMM(ifNull(t, toDateTime64(0, 6)))")
    assert target.exists()
    assert [replace(field, bounds=None, digits=None) for field in target.schema().fields] == list(DECLARED.fields)
    assert {each.level for each in target.check()} == {"ok"}
    records = [
        b'{"i":1,"r":[],"p":{"x":1}}',
        b'{"i":2,"s":"x","t":"1960-01-01T00:00:00.5Z","m":1.5,"l":["a",null],"r":[1],"p":{"x":2,"y":"z"}}',
    ]
    decoded = JsonDecoder(DECLARED).decode(pa.array(records, pa.binary()))
    rows = block({name: decoded.table.column(name) for name in decoded.table.column_names})
    assert not decoded.rejects
    assert sink.writer().send(rows, insert(target, "a")) is Reply.ACKNOWLEDGED
    got = clickhouse.ask(f"SELECT i, s, t, m, l, r, p FROM {sink.table} ORDER BY i")
    assert got.splitlines() == [
        "1\t\\N\t\\N\t\\N\t[]\t[]\t(1,NULL)",
        "2\tx\t1960-01-01 00:00:00.500000\t1.5\t['a',NULL]\t[1]\t(2,'z')",
    ]


def test_a_declared_uuid_time_and_wide_decimal_have_types_of_their_own(
    clickhouse: LocalClickHouse, new_table: NewTable
) -> None:
    """On a server without `Time64`, a time is refused by name, with text to declare instead."""
    sink, declared = sink_for(clickhouse, new_table()), parse_schema("u UUID, t TIME, w DECIMAL(76, 2), l ARRAY<UUID>")
    sink.target().create(declared)
    uuid, wide = "61f0c404-5cb3-11e7-907b-a6006ad3dba0", "9" * 74 + ".99"
    good = f'{{"u":"{uuid}","t":"23:59:59.000001","w":{wide},"l":["{uuid}",null]}}'
    bad = ('{"u":"x"}', '{"t":"24"}', f'{{"w":{wide}1}}', '{"l":["x"]}')
    decoded = JsonDecoder(sink.target().schema()).decode(
        pa.array([each.encode() for each in (good, *bad)], pa.binary())
    )
    assert [each.index for each in decoded.rejects] == [1, 2, 3, 4]
    rows = block({name: decoded.table.column(name) for name in decoded.table.column_names})
    assert sink.writer().send(rows, insert(sink.target(), "a")) is Reply.ACKNOWLEDGED
    got = clickhouse.ask(f"SELECT u, t, w, l FROM {sink.table}").strip()
    assert got == f"{uuid}\t23:59:59.000001\t{wide}\t['{uuid}',NULL]"
    config = sink.config.model_copy(update={"settings": {"enable_time_time64_type": False}})
    with pytest.raises(UnfitFields, match="t: this ClickHouse has no Time64") as refused:
        replace(sink, config=config).creation(declared)
    assert "t STRING, w DECIMAL(76, 2)" in str(refused.value.command)
