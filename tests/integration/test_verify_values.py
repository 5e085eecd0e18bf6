"""`verify --values` after whole runs: exact for every type that landonce writes, and a value that somebody changed is found and
shown, in every target that can be read. No number is rounded on its way to any of them."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import yaml
from confluent_kafka import Producer
from jvms import iceberg_session
from mariadb_server import LocalMariaDB
from pipelines import landonce as command
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import FixedType, IntegerType, ListType, LongType, NestedField, StringType, TimeType, UUIDType
from pyspark.sql import SparkSession

import landonce
from landonce.local import LocalClickHouse, LocalKafka
from landonce.sinks.clickhouse import held
from landonce.sinks.pipeline_file import parse
from landonce.verify import topic
from landonce.verify.values import ValueAudit

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240)]

_numbers = itertools.count()
Ask = Callable[[str], Any]


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[SparkSession]:
    session = iceberg_session({})
    yield session
    session.stop()


@dataclass
class Site:
    """One pipeline into one target."""

    kafka: LocalKafka
    folder: Path
    topic: str
    said: Callable[..., Any]
    sink: dict[str, Any] = field(default_factory=dict)
    ask: Ask = lambda _: None

    @property
    def file(self) -> Path:
        return self.folder / "p.yaml"

    def write_file(self, *, schema: str | None = None, transform: dict[str, Any] | None = None, **sink: Any) -> None:
        ((kind, options),) = self.sink.items()
        kafka = {"bootstrap_servers": self.kafka.bootstrap_servers, "topics": [self.topic]}
        document = {
            "pipeline": "p",
            "source": {"kafka": kafka | ({"schema": schema} if schema else {})},
            "sink": {kind: options | sink},
            "batch": {"interval": "0s"},
            "dead_letters": {"path": "dead"},
            **({"ledger": {"sqlite": "ledger"}} if kind in ("clickhouse", "wrapped") else {}),
            **({"transform": transform} if transform else {}),
        }
        self.file.write_text(yaml.safe_dump(document))

    def send(self, *values: Any, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "acks": "all"})
        for value in values:
            producer.produce(self.topic, value if isinstance(value, bytes) else json.dumps(value), partition=partition)
        assert producer.flush(30) == 0

    def run(self, sink: Any = None) -> landonce.Totals:
        return landonce.run_pipeline(parse(self.file.read_text(), self.file), sink=sink, once=True)

    def letters(self) -> dict[int, str]:
        lines = [json.loads(line) for path in (self.folder / "dead").glob("*.jsonl") for line in path.open()]
        return {each["offset"]: each["reason"] for each in lines}

    def verify(self, code: int, *options: str) -> dict[str, Any]:
        said = self.said("verify", self.file, "--json", "--values", *options)
        assert said.code == code, said.out + said.err
        document: dict[str, Any] = said.json
        return document

    def exact(self, rows: int) -> dict[str, Any]:
        document = self.verify(0)
        assert document["totals"]["changed"] == 0
        assert sum(each["values"]["rows"] for each in document["tables"]) == rows
        return document

    def found(self, changed: int = 1) -> list[tuple[int, str, str, str]]:
        """What is shown of values that differ."""
        document = self.verify(1)
        others = ("missing", "duplicated", "unexpected")
        assert [document["totals"][each] for each in ("changed", *others)] == [changed, 0, 0, 0]
        shown = [each for table in document["tables"] for each in table["values"]["differences"]]
        return [(each["offset"], each["column"], each["expected"], each["found"]) for each in shown]


@pytest.fixture
def site(
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Site:
    return Site(kafka, tmp_path, new_topic(2), lambda *words: command(capsys, monkeypatch, *words))


@pytest.fixture
def clicks(site: Site, clickhouse: LocalClickHouse, new_table: Callable[[], str]) -> Site:
    site.sink, site.ask = {"clickhouse": {"url": clickhouse.url, "table": new_table()}}, clickhouse.ask
    return site


@pytest.fixture
def lake(site: Site) -> Site:
    site.sink = {"iceberg": {"table": "db.t", "create": True}}
    return site


def loaded(lake: Site, name: str = "db.t") -> Any:
    folder = lake.folder / "lake"
    catalog = load_catalog("landonce", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    return catalog.load_table(name)


def replace_value(lake: Site, offset: int, column: str, value: Any, name: str = "db.t") -> None:
    """What nobody should do: the row with another value, under its old coordinates."""
    table = loaded(lake, name)
    rows = table.scan(row_filter=f"_offset == {offset} and _kafka_partition == 0").to_arrow()
    at = rows.schema.get_field_index(column)
    rows = rows.set_column(at, rows.schema.field(at), pa.array([value], rows.schema.field(at).type))
    table.overwrite(rows, overwrite_filter=f"_offset == {offset} and _kafka_partition == 0")


@pytest.fixture(params=["postgresql", "mariadb", "sqlite"])
def database(request: pytest.FixtureRequest, site: Site) -> Site:
    if request.param == "postgresql":
        url = request.getfixturevalue("new_database")()

        def ask(query: str) -> Any:
            with psycopg.connect(url.replace("+psycopg", "")) as connection:
                return connection.execute(query)

    elif request.param == "mariadb":
        server: LocalMariaDB = request.getfixturevalue("mariadb")
        name = f"valued{next(_numbers)}"
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        url = server.url_of(name)

        def ask(query: str) -> Any:
            with server.connect(name) as connection, connection.cursor() as cursor:
                cursor.execute(query)
                connection.commit()

    else:
        url = "sqlite:///t.db"

        def ask(query: str) -> Any:
            with closing(sqlite3.connect(site.folder / "t.db", timeout=30)) as connection, connection:
                return connection.execute(query)

    site.sink, site.ask = {"sql": {"url": url, "table": "events"}}, ask
    return site


# ── every type, there and back ───────────────────────────────────────────────────────────────────────────────────────

UUIDS = '"61F0C404-5cb3-11e7-907b-a6006ad3dba0"'
CLICKHOUSE: list[tuple[str, list[str]]] = [
    ("Bool", ["true", "false"]),
    ("Int8", ["-128", "127"]),
    ("UInt64", ["0", "18446744073709551615"]),
    ("Float32", ["0.1", "16777216", "3.4e38"]),
    ("Float64", ["0.1", "9007199254740992", "-0.0", "1e300"]),
    ("Nullable(Float64)", ["null", "1.5"]),
    ("String", ['""', r'"é\t\\ \u0000 🎈"']),
    ("LowCardinality(Nullable(String))", ['"x"', "null"]),
    ("FixedString(4)", ['"abc"', '"é"', r'"a\u0000b"', '""']),
    ("Enum8('new' = 1, 'it\\'s' = -2)", ['"new"', '"it\'s"']),
    ("Nullable(Enum16('a' = 1000))", ['"a"', "null"]),
    ("UUID", [UUIDS]),
    ("Nullable(UUID)", [UUIDS, "null"]),
    ("IPv4", ['"192.168.0.1"']),
    ("IPv6", ['"2001:DB8:0:0::1"', '"::"', '"::ffff:1.2.3.4"']),
    ("Date", ['"1970-01-01"', '"2149-06-06"']),
    ("Date32", ['"1900-01-01"', '"2299-12-31"']),
    ("DateTime('Asia/Tokyo')", ['"2106-02-07T06:28:15Z"', "1600000000"]),
    *((f"DateTime64({scale}, 'Europe/Berlin')", ['"2020-10-25T00:30:00Z"', "1", "-1"]) for scale in range(10)),
    ("Decimal(9, 4)", ["99999.9999", '"-0.0001"']),
    ("Nullable(Decimal(76, 20))", [f"{10**55 + 1}", "null"]),
    ("Array(Nullable(Int64))", ["[1,null]", "[]", "null"]),
    ("Array(Array(LowCardinality(String)))", ['[["a"],[]]', "[]"]),
    ("Array(UUID)", [f"[{UUIDS}]", "[]"]),
    ("Array(DateTime('UTC'))", ['["2020-01-01T00:00:00Z"]']),
    ("Tuple(a Int8, `b c` Nullable(String), d Array(DateTime('UTC')))", ['{"a":1,"b c":null,"d":["2020-01-01"]}']),
    ("Int256", [f"{-(2**255)}", f'"{2**255 - 1}"']),
    ("Nullable(UInt128)", [f"{2**128 - 1}", "null"]),
    ("BFloat16", ["0.5", "-256"]),
    ("Time64(3)", ['"-999:59:59.5"', '"00:00:00"']),
    ("IntervalDay", ["-7"]),
    ("Map(LowCardinality(String), Nullable(IPv6))", ['{"a":"::1","b":null}', "{}"]),
    ("Map(UInt8, Map(UUID, Time))", [f'{{"255":{{{UUIDS}:"01:00:00"}}}}']),
    ("Tuple(Int8, FixedString(4), Tuple(u UUID))", [f'[1,"ab",{{"u":{UUIDS}}}]']),
    ("Nullable(Tuple(u UUID))", [f'{{"u":{UUIDS}}}', "null"]),
    ("Polygon", ["[[[0,0.5],[1,2]]]", "[]"]),
    ("Nested(a Int8, e Enum8('x' = 1))", ['[{"a":1,"e":"x"}]', "[]"]),
    ("SimpleAggregateFunction(anyLast, UUID)", [UUIDS]),
    ("JSON", ['{"a":{"b":[1,null,"x"]},"n":null,"f":1.0}', "{}"]),
    ("Variant(Date, Float32, String)", ["0.1", '"2020-01-01"', '"x"', "null"]),
    ("Dynamic", ["1", '"2020-01-01"', '{"a":[1,2]}', "null"]),
    ("String DEFAULT concat('n', toString(_offset))", ["null", '"set"']),
    ("Array(Int8) DEFAULT []", ["null", "[7]"]),
]  # fmt: skip


def records_of(cases: list[tuple[str, list[str]]]) -> list[bytes]:
    """As many records as the longest case has values; each holds one of every case."""
    most = max(len(literals) for _, literals in cases)
    return [
        "{{{}}}".format(",".join(f'"c{n}":{values[at % len(values)]}' for n, (_, values) in enumerate(cases))).encode()
        for at in range(most)
    ]


def test_every_type_of_clickhouse(clicks: Site) -> None:
    table = clicks.sink["clickhouse"]["table"]
    columns = [(type_ if "Array(Nullable" not in type_ else f"{type_} DEFAULT []") for type_, _ in CLICKHOUSE]
    clicks.ask(
        f"CREATE TABLE {table} ({', '.join(f'c{n} {type_}' for n, type_ in enumerate(columns))}, "
        "_topic LowCardinality(String), _partition Int32, _offset Int64) ENGINE = MergeTree ORDER BY _offset "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    clicks.write_file()
    sent = records_of(CLICKHOUSE)
    clicks.send(*sent)
    clicks.send(sent[0].replace(b'"c4":0.1', b'"c4":9007199254740993'), sent[0].replace(b'"c3":0.1', b'"c3":16777217'))
    assert clicks.run() == landonce.Totals(landed=len(sent), dead_lettered=2), clicks.letters()
    assert clicks.letters() == {
        len(sent): "field 'c4' is an integer that a double cannot hold exactly",
        len(sent) + 1: "field 'c3' is an integer that a float cannot hold exactly",
    }
    document = clicks.exact(len(sent))
    last = len(CLICKHOUSE) - 1
    assert document["tables"][0]["values"]["filled_by_the_table"] == {f"c{last - 1}": 2}
    clicks.ask(f"ALTER TABLE {table} UPDATE c4 = 0.25 WHERE _offset = 0 SETTINGS mutations_sync = 2")
    clicks.ask(f"ALTER TABLE {table} UPDATE c9 = 'it\\'s' WHERE _offset = 2 SETTINGS mutations_sync = 2")
    assert clicks.found(2) == [(0, "c4", "0.1", "0.25"), (2, "c9", '"new"', '"it\'s"')]
    wide = next(at for at, (type_, _) in enumerate(CLICKHOUSE) if type_ == "Int256")
    clicks.ask(f"ALTER TABLE {table} UPDATE c{wide} = 0 WHERE _offset = 3 SETTINGS mutations_sync = 2")
    assert clicks.found(3)[2] == (3, f"c{wide}", f'"{2**255 - 1}"', '"0"')
    shown = clicks.said("verify", clicks.file, "--values")
    assert f"{clicks.topic}[0] at 0: c4 should be 0.1 and is 0.25\n" in shown.out
    assert ", 3 changed\n" in shown.out


ICEBERG = [
    ("BOOLEAN", ["true", "false", "null"]),
    ("INT", ["-2147483648"]),
    ("BIGINT", ["9223372036854775807", "null"]),
    ("FLOAT", ["0.1", "16777216"]),
    ("DOUBLE", ["0.1", "9007199254740992"]),
    ("DECIMAL(38, 10)", ["1234567890123456789012345678.0123456789", "null"]),
    ("DATE", ['"0001-01-01"', '"9999-12-31"']),
    ("TIMESTAMP", ['"0001-01-01T00:00:00.000001Z"', '"9999-12-31T23:59:59.999999Z"']),
    ("TIMESTAMP_NTZ", ['"2020-01-01T00:00:00.000001"', "null"]),
    ("STRING", ['""', '"é🎈"', "null"]),
    ("BINARY", ['"AP8="', "null"]),
    ("ARRAY<STRUCT<x: DOUBLE, d: DATE>>", ['[{"x":0.5,"d":"1950-01-01"},null,{"x":null}]', "[]", "null"]),
    ("STRUCT<a: INT, b: STRUCT<c: ARRAY<STRING>>>", ['{"a":1,"b":{"c":["x",null]}}', '{"b":null}', "null"]),
    ("MAP<STRING, STRUCT<n: BIGINT>>", ['{"k":{"n":1},"l":null}', "{}", "null"]),
]


@pytest.mark.parametrize(
    "file_format",
    ["parquet", pytest.param("orc", marks=pytest.mark.long), pytest.param("avro", marks=pytest.mark.long)],
)
def test_every_type_of_iceberg(lake: Site, file_format: str) -> None:
    cases = ICEBERG
    if file_format == "orc":  # Arrow reads its times in nanoseconds, which end in 2262
        cases = [(type_, ['"1900-01-01T00:00:00Z"'] if type_ == "TIMESTAMP" else values) for type_, values in ICEBERG]
    lake.write_file(
        schema=", ".join(f"c{n} {type_}" for n, (type_, _) in enumerate(cases)),
        properties={"write.format.default": file_format},
    )
    sent = records_of(cases)
    lake.send(*sent)
    lake.send(b'{"c4":9007199254740993}', b'{"c3":16777217}', b'{"c11":[{"x":9007199254740993}]}')
    assert lake.run() == landonce.Totals(landed=len(sent), dead_lettered=3), lake.letters()
    assert all("cannot hold exactly" in reason for reason in lake.letters().values())
    lake.exact(len(sent))


def test_types_of_iceberg_that_only_a_table_of_ones_own_has(lake: Site) -> None:
    folder = lake.folder / "lake"
    folder.mkdir()
    catalog = load_catalog("landonce", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("db")
    kinds = [UUIDType(), TimeType(), FixedType(4), ListType(20, UUIDType(), element_required=False)]
    fields = [NestedField(n + 1, f"c{n}", kind) for n, kind in enumerate(kinds)]
    places = [("_topic", StringType()), ("_kafka_partition", IntegerType()), ("_offset", LongType())]
    fields += [NestedField(n + 10, name, kind) for n, (name, kind) in enumerate(places)]
    catalog.create_table("db.t", Schema(*fields))
    lake.write_file()
    lake.send(f'{{"c0":{UUIDS},"c1":"23:59:59.999999","c2":"AAECAw==","c3":[{UUIDS},null]}}'.encode())
    assert lake.run().landed == 1
    lake.exact(1)
    replace_value(lake, 0, "c1", dt.time(1))
    assert lake.found() == [(0, "c1", "23:59:59.999999", "01:00:00")]


SQL = [
    ("BOOLEAN", ["true", "false", "null"]),
    ("SMALLINT", ["-32768", "null"]),
    ("INT", ["-2147483648"]),
    ("BIGINT", ["9223372036854775807", "null"]),
    ("FLOAT", ["0.1", "16777216", "null"]),
    ("DOUBLE", ["0.1", "9007199254740992", "1e300"]),
    ("DATE", ['"1000-01-01"', '"9999-12-31"']),
    ("TIMESTAMP", ['"1000-01-01T00:00:00.000001Z"', '"9999-12-31T23:59:59.999999Z"', "null"]),
    ("TIMESTAMP_NTZ", ['"2020-01-01T00:00:00.5"', "null"]),
    ("STRING", ['""', '"é🎈"', '"null"', "null"]),
    ("BINARY", ['"AP8="', "null"]),
    ("ARRAY<STRUCT<x: DOUBLE, d: DATE>>", ['[{"x":0.5,"d":"1950-01-01"},null,{"x":1}]', "[]", "null"]),
    ("STRUCT<a: INT, t: TIMESTAMP, n: DECIMAL(20, 2), b: BINARY>", ['{"a":1,"t":"2020-01-01T00:00:00Z","n":1.50,"b":"AP8="}']),
    ("MAP<STRING, BIGINT>", ['{"b":1,"a":null}', "{}", "null"]),
    ("DECIMAL(38, 10)", ["1234567890123456789012345678.0123456789", "null"]),
]  # fmt: skip


def test_every_type_of_sql_databases(database: Site) -> None:
    cases = SQL if "sqlite" not in database.sink["sql"]["url"] else SQL[:-1]
    database.write_file(schema=", ".join(f"c{n} {type_}" for n, (type_, _) in enumerate(cases)), create=True)
    sent = records_of(cases)
    database.send(*sent)
    single = b'{"c2":1,"c4":16777217}'
    database.send(sent[0].replace(b'"c5":0.1', b'"c5":9007199254740993'), single)
    landed = len(sent) + (0 if cases is SQL else 1)  # SQLite has no floats but doubles
    assert database.run() == landonce.Totals(landed=landed, dead_lettered=len(sent) + 2 - landed), database.letters()
    assert all("cannot hold exactly" in reason for reason in database.letters().values())
    database.exact(landed)
    database.ask("UPDATE events SET c5 = 0.25, c9 = 'other' WHERE _offset = 0")
    assert database.found() == [(0, "c5", "0.1", "0.25"), (0, "c9", '""', '"other"')]
    database.ask("UPDATE events SET c5 = 0.1, c9 = '', c13 = '{\"b\": 2, \"a\": null}' WHERE _offset = 0")
    assert database.found() == [(0, "c13", '"{\\"a\\": null, \\"b\\": 1}"', '"{\\"a\\": null, \\"b\\": 2}"')]


def test_a_wrapped_sink_gets_no_rounded_number(site: Site) -> None:
    folder = str(site.folder)

    def push(block: landonce.PushedBlock) -> None:
        from pathlib import Path

        Path(folder, f"{block.key}.block").write_bytes(block.json_lines())

    site.sink = {"wrapped": {}}
    site.write_file(schema="d DOUBLE, f FLOAT")
    site.send({"d": 9007199254740992, "f": 0.5}, {"d": 9007199254740993}, {"f": 16777217})
    assert site.run(landonce.wrap(push, idempotent=True)) == landonce.Totals(landed=1, dead_lettered=2)
    (block,) = site.folder.glob("*.block")
    assert json.loads(block.read_text())["d"] == 9007199254740992
    assert all("cannot hold exactly" in reason for reason in site.letters().values())


# ── what rows are made of ────────────────────────────────────────────────────────────────────────────────────────────


def test_expressions_are_evaluated_again(clicks: Site) -> None:
    table = clicks.sink["clickhouse"]["table"]
    clicks.ask(
        f"CREATE TABLE {table} (id Int64, twice Float64, word String, _topic String, _partition Int32, _offset Int64) "
        "ENGINE = MergeTree ORDER BY _offset SETTINGS non_replicated_deduplication_window = 1000"
    )
    select = ["id", "n * 2 AS twice", "upper(word) AS word"]
    clicks.write_file(schema="id BIGINT, n DOUBLE, word STRING", transform={"select": select, "where": "id <> 3"})
    clicks.send(*({"id": at, "n": at / 3, "word": f"w{at}"} for at in range(50)), b"broken", {"id": 1})
    clicks.send(*({"id": at, "n": 1, "word": "x"} for at in range(10)), partition=1)
    assert clicks.run() == landonce.Totals(landed=58, dead_lettered=2, filtered=2)
    clicks.exact(58)
    clicks.ask(f"ALTER TABLE {table} UPDATE word = 'w7' WHERE id = 7 AND _partition = 0 SETTINGS mutations_sync = 2")
    assert clicks.found() == [(7, "word", '"W7"', '"w7"')]


def test_each_table_of_a_fan_out(lake: Site) -> None:
    lake.sink = {"iceberg": {"table": "db.{kind}", "create": True}}
    lake.write_file(schema="id BIGINT, kind STRING")
    lake.send(*({"id": at, "kind": "ab"[at % 2]} for at in range(20)))
    assert lake.run().landed == 20
    lake.exact(20)
    replace_value(lake, 3, "id", 99, "db.b")
    assert lake.found() == [(3, "id", "3", "99")]


def test_columns_that_came_later_and_became_wider(lake: Site) -> None:
    """A float that was written as one is no changed double, and what a record held before there was a column is not missed."""
    lake.write_file(evolve=True, schema="id BIGINT, f FLOAT, s STRUCT<a: INT>")
    lake.send({"id": 0, "f": 0.1, "s": {"a": 1}}, {"id": 1, "f": 0.2, "s": None})
    assert lake.run().landed == 2
    lake.send({"id": 2, "f": 16777217, "s": {"a": 2, "b": "x"}, "new": 1.5}, {"id": 3, "f": 0.1})
    assert lake.run().landed == 2
    document = lake.exact(4)
    assert document["tables"][0]["values"]["written_before_the_column"] == {"new": 2, "s": 2}
    replace_value(lake, 2, "new", 2.5)
    assert lake.found() == [(2, "new", "1.5", "2.5")]


def test_the_last_change_of_a_key_in_iceberg(lake: Site) -> None:
    lake.sink["iceberg"] |= {"identity": "id", "changes": {"mode": "operation", "field": "op"}}
    lake.write_file(schema="id BIGINT, kind STRING, n DOUBLE")
    lake.send(*({"id": at, "kind": "new", "n": at / 10, "op": "c"} for at in range(20)))
    assert lake.run().landed == 20
    lake.send(*({"id": at, "kind": "changed", "op": "u"} for at in range(0, 20, 2)))
    lake.send(*({"id": at, "op": "d"} for at in range(0, 20, 5)), {"id": 1, "n": 9007199254740993, "op": "u"})
    assert lake.run().dead_lettered == 1
    lake.exact(16)
    replace_value(lake, 7, "n", 0.75)
    assert lake.found() == [(7, "n", "0.7", "0.75")]


def test_the_last_change_of_a_key_in_sql_databases(database: Site) -> None:
    database.write_file(schema="id BIGINT, word STRING, n DOUBLE", create=True, mode="upsert", key="id")
    for partition in (0, 1):
        rows = [{"id": at, "word": f"w{at}", "n": at / 10} for at in range(partition * 100, partition * 100 + 30)]
        database.send(*rows, partition=partition)
    database.send(*({"id": at, "word": "later"} for at in range(10)), b"broken")
    assert database.run().dead_lettered == 1
    database.exact(60)
    database.ask("UPDATE events SET n = 0.75 WHERE id = 17")
    database.ask("UPDATE events SET word = NULL WHERE id = 3")
    assert sorted(database.found(2)) == [(17, "n", "1.7", "0.75"), (33, "word", '"later"', "NULL")]


# ── how much at once ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_more_than_a_window_and_a_piece_are_held(clicks: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many records there are: the topic comes in windows, and the table in smaller pieces."""
    table = clicks.sink["clickhouse"]["table"]
    clicks.ask(
        f"CREATE TABLE {table} (id Int64, _topic String, _partition Int32, _offset Int64) "
        "ENGINE = MergeTree ORDER BY _offset SETTINGS non_replicated_deduplication_window = 1000"
    )
    clicks.write_file()
    clicks.send(*({"id": at} for at in range(5_000)))
    assert clicks.run().landed == 5_000
    monkeypatch.setattr(topic, "_WINDOW_RECORDS", 500)
    monkeypatch.setattr(topic, "_AT_ONCE", 200)
    monkeypatch.setattr(held, "_AT_ONCE", 100)
    seen: list[tuple[int, int]] = []
    whole = ValueAudit._piece

    def noted(self: Any, bound: Any, offsets: Any, rows: pa.Table, piece: Any) -> Any:
        seen.append((rows.num_rows, piece.rows.num_rows))
        return whole(self, bound, offsets, rows, piece)

    monkeypatch.setattr(ValueAudit, "_piece", noted)
    clicks.exact(5_000)
    assert len(seen) >= 50
    assert max(max(each) for each in seen) <= 100
