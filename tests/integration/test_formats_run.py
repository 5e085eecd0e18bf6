"""Records of other formats than JSON, the columns that a record itself fills, and `convert`, through whole pipelines into real targets."""

from __future__ import annotations

import io
import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timezone
from datetime import time as dtime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import psycopg
import pytest
import yaml
from confluent_kafka import Producer
from deliveries import ask, letters
from pyiceberg.catalog import load_catalog

import landonce
from landonce.check import check_pipeline
from landonce.config.model import Transform
from landonce.errors import ConfigError
from landonce.local import LocalClickHouse, LocalKafka
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import Pipeline, parse
from landonce.verify.audit import opened_audit

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

NOW = int(time.time()) * 1000
"""Kafka removes records that are older than a topic keeps them."""


def produce(
    kafka: LocalKafka, topic: str, *records: tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]
) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number, (key, value, headers) in enumerate(records):
        producer.produce(topic, value, key, partition=0, headers=headers, timestamp=NOW + number)
    producer.flush()


def pipeline(
    kafka: LocalKafka,
    folder: Path,
    topic: str,
    sink: dict[str, Any],
    dedup: dict[str, Any] | None = None,
    **source: Any,
) -> Pipeline:
    document = {
        "pipeline": "formats",
        "source": {"kafka": {"bootstrap_servers": kafka.bootstrap_servers, "topics": [topic], **source}},
        "sink": sink,
        "dedup": dedup,
        "dead_letters": {"path": "dead"},
        "spark": {"master": "local[2]"},
    }
    return parse(yaml.safe_dump(document), folder / "p.yaml")


def rows_of(clickhouse: LocalClickHouse, query: str) -> list[tuple[Any, ...]]:
    return [tuple(each.values()) for each in ask(clickhouse.url, query)]


def landed(config: Pipeline) -> tuple[int, int]:
    found = landonce.run_pipeline(config, once=True)
    with opened_audit(open_parts(config), values=True) as audit:
        assert audit.audit().exact
    return found.landed, found.dead_lettered


CSV = {
    "format": {"csv": {"columns": ["sensor", "at", "value"]}},
    "schema": "sensor STRING NOT NULL, at TIMESTAMP, value DOUBLE, _key STRING, _headers MAP<STRING, STRING>, _timestamp TIMESTAMP(3)",
}
LINES = (
    (b"k1", b'"a,b",2026-11-18T10:00:00Z,1.5', [("from", b"x")]),
    (None, b"c,,", []),
    (b"k3", b"no,comma", []),
    (b"k4", b",,1", []),
)


def test_lines_land_in_clickhouse(
    clickhouse: LocalClickHouse, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=1)
    produce(kafka, topic, *LINES)
    sink = {"clickhouse": {"url": clickhouse.url, "table": f"lines_{topic}".replace("-", "_"), "create": True}}
    config = pipeline(kafka, tmp_path, topic, sink, **CSV)
    assert landed(config) == (2, 2)
    table = sink["clickhouse"]["table"]
    rows = rows_of(
        clickhouse,
        f"SELECT sensor, toString(at), value, _key, _headers, toUnixTimestamp64Milli(_timestamp), _offset FROM {table} ORDER BY _offset",
    )
    assert rows == [
        ("a,b", "2026-11-18 10:00:00.000000", 1.5, "k1", {"from": "x"}, NOW, 0),
        ("c", None, None, None, {}, NOW + 1, 1),
    ]
    assert sorted((each["offset"], each["reason"]) for each in letters(tmp_path / "dead")) == [
        (2, "has 2 values, not 3"),
        (3, "missing required field 'sensor'"),
    ]


def test_bytes_land_in_clickhouse_as_they_are(
    clickhouse: LocalClickHouse, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=1)
    produce(kafka, topic, (b"\xff\0", b"\xfe\0\n", []), (None, None, []), (b"text", b"more", []))
    table = f"bytes_{topic}".replace("-", "_")
    sink = {"clickhouse": {"url": clickhouse.url, "table": table, "create": True}}
    config = pipeline(kafka, tmp_path, topic, sink, format="raw", record_columns=["_key", "_timestamp"])
    assert landed(config) == (3, 0)
    produce(kafka, topic, (b"\xfd", b"\xfc", []))
    assert landed(config) == (1, 0)
    rows = rows_of(clickhouse, f"SELECT hex(_key), hex(_value), isNull(_value) FROM {table} ORDER BY _offset")
    assert rows == [("FF00", "FE000A", 0), (None, None, 1), ("74657874", "6D6F7265", 0), ("FD", "FC", 0)]


@pytest.mark.parametrize("section", ["sql", "iceberg"])
def test_every_other_sink_takes_them(
    section: str, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=1)
    framed = b"\0\0\0\0\1"
    produce(kafka, topic, (b'{"id":1}', framed + b'{"word":"x"}', [("h", b"\xff")]), (None, b'{"word":"y"}', []))
    sinks: dict[str, Any] = {
        "sql": {"url": f"sqlite:///{tmp_path}/t.db", "table": "words", "create": True},
        "iceberg": {"table": "db.words", "create": True},
    }
    config = pipeline(
        kafka,
        tmp_path,
        topic,
        {section: sinks[section]},
        format={"json": {"framing": "confluent"}},
        schema="word STRING, _key STRUCT<id: BIGINT>, _value BINARY, _headers MAP<STRING, BINARY>, _timestamp TIMESTAMP",
    )
    assert landed(config) == (1, 1)
    (letter,) = letters(tmp_path / "dead")
    assert letter["reason"] == "does not begin with Confluent's framing"
    if section == "sql":
        with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
            ((word, key, value),) = connection.execute("SELECT word, _key, _value FROM words").fetchall()
        assert (word, key, value) == ("x", '{"id":1}', framed + b'{"word":"x"}')


WORDS = {
    "type": "record",
    "name": "Word",
    "fields": [{"name": "id", "type": "long"}, {"name": "word", "type": ["null", "string"]}],
}
PROTO = 'syntax = "proto3"; message Word { int64 id = 1; optional string word = 2; }'
COLUMNS = {"columns": ["id", "word"]}
SCHEMA = {"schema": "id BIGINT NOT NULL, word STRING"}


def avro_body(number: int, word: str | None) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(WORDS), {"id": number, "word": word})
    return stream.getvalue()


OTHERS: dict[str, tuple[dict[str, Any], tuple[bytes, ...], list[tuple[Any, ...]], str]] = {
    "tsv": (
        {"format": {"tsv": COLUMNS}, **SCHEMA},
        (b"1\ta,b", b"2\t", b"3"),
        [(1, "a,b"), (2, None)],
        "has 1 value, not 2",
    ),
    "csv": (
        {"format": {"csv": COLUMNS}, **SCHEMA},
        (b'1,"a,b"', b"2,", b"three,c"),
        [(1, "a,b"), (2, None)],
        "field 'id' is not a valid BIGINT",
    ),
    "string": (
        {"format": "string", "schema": "_value STRING"},
        ("ü".encode(), b"", b"\xff"),
        [("ü",), ("",)],
        "field '_value' is not valid UTF-8",
    ),
    "avro": (
        {"format": {"avro": {"schema": "word.avsc"}}, **SCHEMA},
        (avro_body(1, "a,b"), avro_body(2, None), b"\xff"),
        [(1, "a,b"), (2, None)],
        "field 'id' is cut off",
    ),
    "protobuf": (
        {"format": {"protobuf": {"schema": "word.proto"}}, **SCHEMA},
        (b"\x08\x01\x12\x03a,b", b"\x08\x02", b"\x08\xff"),
        [(1, "a,b"), (2, None)],
        "not a valid Word: it ends inside field 'id'",
    ),
}
"""The source, records of which the last is bad, the rows of the others, and how the reason begins."""


@pytest.mark.parametrize("section", ["wrapped", "sql", "iceberg"])
@pytest.mark.parametrize("format_", OTHERS)
def test_every_format_lands_in_every_other_sink(
    format_: str, section: str, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    source, values, rows, reason = OTHERS[format_]
    topic = new_topic(partitions=1)
    produce(kafka, topic, *((None, each, []) for each in values))
    (tmp_path / "word.avsc").write_text(json.dumps(WORDS))
    (tmp_path / "word.proto").write_text(PROTO)
    sinks: dict[str, Any] = {
        "wrapped": {},
        "sql": {"url": f"sqlite:///{tmp_path}/t.db", "table": "words", "create": True},
        "iceberg": {"table": "db.words", "create": True},
    }
    config = pipeline(kafka, tmp_path, topic, {section: sinks[section]}, **source)
    columns = ("id", "word") if len(rows[0]) == 2 else ("_value",)
    file = str(tmp_path / "pushed")

    def push(block: landonce.PushedBlock) -> None:
        from pathlib import Path

        with Path(file).open("ab") as pushed:
            pushed.write(block.json_lines())

    if section == "wrapped":
        totals = landonce.run_pipeline(config, sink=landonce.wrap(push, idempotent=True), once=True)
        assert (totals.landed, totals.dead_lettered) == (2, 1)
        found = [json.loads(line) for line in Path(file).read_text().splitlines()]
    else:
        assert landed(config) == (2, 1)
    if section == "sql":
        with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
            connection.row_factory = sqlite3.Row
            found = [dict(each) for each in connection.execute("SELECT * FROM words ORDER BY _offset")]
    if section == "iceberg":
        lake = tmp_path / "lake"
        catalog = load_catalog("landonce", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")
        found = catalog.load_table("db.words").scan().to_arrow().sort_by("_offset").to_pylist()
    assert [tuple(each[name] for name in columns) for each in found] == rows
    (letter,) = letters(tmp_path / "dead")
    assert letter["offset"] == 2
    assert letter["reason"].startswith(reason)


RECORD_COLUMNS = ["_key", "_headers", "_timestamp", "_value", "_record_type"]


@pytest.mark.parametrize("section", ["clickhouse", "iceberg", "sql"])
def test_what_a_record_is_beside_its_fields_is_read_back(
    section: str,
    clickhouse: LocalClickHouse,
    new_database: Callable[[], str],
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    """The key, headers, time and value are as Kafka has them, and the type is the full name in the record's schema."""
    topic = new_topic(partitions=1)
    one, two = avro_body(1, "x"), avro_body(2, None)
    produce(kafka, topic, (b"k\xff\0", one, [("h", b"a"), ("h", b"\xfe"), ("i", b"")]), (None, two, []))
    (tmp_path / "word.avsc").write_text(json.dumps({**WORDS, "namespace": "shop"}))
    table, url = f"beside_{topic}".replace("-", "_"), new_database()
    sinks: dict[str, Any] = {
        "clickhouse": {"url": clickhouse.url, "table": table, "create": True},
        "iceberg": {"table": f"db.{table}", "create": True},
        "sql": {"url": url, "table": table, "create": True},
    }
    source: dict[str, Any] = {"format": {"avro": {"schema": "word.avsc"}}, "record_columns": RECORD_COLUMNS}
    if section == "sql":  # which makes no column of a map that is not declared
        parts = "_key BINARY, _headers MAP<STRING, BINARY>, _timestamp TIMESTAMP, _value BINARY, _record_type STRING"
        source = {"format": source["format"], "schema": f"id BIGINT NOT NULL, word STRING, {parts}"}
    config = pipeline(kafka, tmp_path, topic, {section: sinks[section]}, **source)
    assert landed(config) == (2, 0)
    if section == "clickhouse":
        asked = "hex(_key), mapApply((k, v) -> (k, hex(v)), _headers), toUnixTimestamp64Milli(_timestamp), hex(_value), _record_type"
        found = rows_of(clickhouse, f"SELECT {asked} FROM {table} ORDER BY id")
        assert found == [
            ("6BFF00", {"h": "FE", "i": ""}, NOW, one.hex().upper(), "shop.Word"),
            (None, {}, NOW + 1, two.hex().upper(), "shop.Word"),
        ]
        return
    if section == "iceberg":
        lake = tmp_path / "lake"
        catalog = load_catalog("landonce", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")
        rows = catalog.load_table(f"db.{table}").scan().to_arrow().sort_by("id").to_pylist()
        found = [tuple(each[name] for name in RECORD_COLUMNS) for each in rows]
        found = [(key, dict(headers), moment, *rest) for key, headers, moment, *rest in found]
        headers: list[dict[str, Any]] = [{"h": b"\xfe", "i": b""}, {}]
    else:
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            found = connection.execute(f"SELECT {', '.join(RECORD_COLUMNS)} FROM {table} ORDER BY id").fetchall()  # type: ignore[arg-type]
        headers = [{"h": "/g==", "i": ""}, {}]  # base64, as bytes are in JSON
    moments = [datetime.fromtimestamp((NOW + at) // 1000, timezone.utc) for at in (0, 1)]
    moments = [each.replace(microsecond=(NOW + at) % 1000 * 1000) for at, each in enumerate(moments)]
    assert found == [
        (b"k\xff\0", headers[0], moments[0], one, "shop.Word"),
        (None, headers[1], moments[1], two, "shop.Word"),
    ]


def test_expressions_use_the_columns_of_the_record(
    clickhouse: LocalClickHouse, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=1)
    produce(kafka, topic, (b"keep", b'{"id":1}', []), (b"drop", b'{"id":2}', []))
    table = f"chosen_{topic}".replace("-", "_")
    config = pipeline(
        kafka,
        tmp_path,
        topic,
        {"clickhouse": {"url": clickhouse.url, "table": table, "create": True}},
        schema="id BIGINT",
    )
    transform = {"select": ("id", "cast(_key AS STRING) AS who"), "where": "cast(_key AS STRING) <> 'drop'"}
    config = config.model_copy(update={"transform": Transform(**transform)})
    found = landonce.run_pipeline(config, once=True)
    assert (found.landed, found.filtered, letters(tmp_path / "dead")) == (1, 1, [])
    assert rows_of(clickhouse, f"SELECT id, who FROM {table}") == [(1, "keep")]


def test_the_page_is_true(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    text = page.split("```yaml\n")[1].split("```")[0]
    topic = new_topic(partitions=1)
    text = text.replace("localhost:9092", kafka.bootstrap_servers).replace("[readings]", f"[{topic}]")
    produce(kafka, topic, (b"k", b"kitchen,2026-11-18T10:00:00Z,21.5", []), (None, b"kitchen,soon,21.5", []))
    config = parse(text.replace("sqlite:///", f"sqlite:///{tmp_path}/"), tmp_path / "readings.yaml")
    assert landed(config) == (1, 1)
    with closing(sqlite3.connect(tmp_path / "readings.db")) as connection:
        assert connection.execute("SELECT sensor, value, _key FROM readings").fetchall() == [("kitchen", 21.5, b"k")]


ORDERS = "id BIGINT NOT NULL, at TIMESTAMP, price DOUBLE, note STRING, items ARRAY<STRUCT<n: INT>>"
LOOSE = (
    b'{"id":"1","at":1700000000250,"price":"2.5","note":7,"items":[{"n":"1"},{"n":2.0}]}',
    b'{"id":2,"at":"2026-11-18T10:00:00+02:00","price":3,"note":{"a": [1]},"items":[]}',
    b'{"id":3.5}',
    b'{"id":"4","items":[{"n":"x"}]}',
)
CONVERTED = [
    (1, "2023-11-14 22:13:20.250000", 2.5, "7"),
    (2, "2026-11-18 08:00:00.000000", 3.0, '{"a": [1]}'),
]
INEXACT = [
    (2, "field 'id' has a fraction, which BIGINT cannot hold"),
    (3, "field 'items[].n' is not a valid INT"),
]


@pytest.mark.parametrize("section", ["clickhouse", "sql"])
def test_values_in_another_form_land_exactly(
    section: str, clickhouse: LocalClickHouse, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=1)
    produce(kafka, topic, *((None, each, []) for each in LOOSE))
    table = f"orders_{topic}".replace("-", "_")
    sinks: dict[str, Any] = {
        "clickhouse": {"url": clickhouse.url, "table": table, "create": True},
        "sql": {"url": f"sqlite:///{tmp_path}/t.db", "table": table, "create": True},
    }
    config = pipeline(kafka, tmp_path, topic, {section: sinks[section]}, schema=ORDERS, convert="fit")
    assert landed(config) == (2, 2)
    if section == "clickhouse":
        query = f"SELECT id, toString(at), price, note FROM {table} ORDER BY id"
        assert [(int(one), *rest) for one, *rest in rows_of(clickhouse, query)] == CONVERTED
    else:
        with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
            rows = connection.execute(f"SELECT id, at, price, note FROM {table} ORDER BY id").fetchall()
        assert rows == CONVERTED
    assert sorted((each["offset"], each["reason"]) for each in letters(tmp_path / "dead")) == INEXACT


CHANGED = (
    (b'"1"', b'{"id":"1","at":1700000000250,"price":"2.5"}'),
    (b"2", b'{"id":2,"at":"2026-11-18T10:00:00+02:00","price":3}'),
    (b"1", b'{"id":1.0,"at":null,"price":"4"}'),
    (b'{"id":"2.0"}', None),
    (b"3", b'{"id":3,"price":"x"}'),
    (b"x", None),
)


@pytest.mark.parametrize("section", ["clickhouse", "sql", pytest.param("iceberg", marks=pytest.mark.long)])
def test_rows_change_by_converted_values(
    section: str, clickhouse: LocalClickHouse, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """One record each per identity, however records and keys write it."""
    topic = new_topic(partitions=1)
    produce(kafka, topic, *((key, value, []) for key, value in CHANGED))
    table = f"changed_{topic}".replace("-", "_")
    upsert = {"mode": "upsert", "key": "id", "create": True}
    sinks: dict[str, Any] = {
        "clickhouse": {"url": clickhouse.url, "table": table, **upsert},
        "sql": {"url": f"sqlite:///{tmp_path}/t.db", "table": table, **upsert},
        "iceberg": {"table": "db.changed", "create": True, "identity": "id", "changes": {"mode": "upsert"}},
    }
    schema = "id BIGINT NOT NULL, at TIMESTAMP, price DOUBLE"
    config = pipeline(kafka, tmp_path, topic, {section: sinks[section]}, schema=schema, convert="fit")
    assert landed(config) == (4, 2)
    if section == "clickhouse":
        rows = rows_of(clickhouse, f"SELECT id, at, price FROM {table} FINAL")
        assert [(int(one), *rest) for one, *rest in rows] == [(1, None, 4.0)]
    if section == "sql":
        with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
            assert connection.execute(f"SELECT id, at, price FROM {table}").fetchall() == [(1, None, 4.0)]
    assert sorted((each["offset"], each["reason"]) for each in letters(tmp_path / "dead")) == [
        (4, "field 'price' is not a valid DOUBLE"),
        (5, "a tombstone whose key is not BIGINT"),
    ]


def test_debeziums_rows_are_converted(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> None:
    """Keys, decimals and times in the forms that Debezium's options give them, with Connect's schema around them or not."""
    topic = new_topic(partitions=1)
    row: dict[str, Any] = {"id": "1", "price": "2.50", "at": 1_700_000_000_250_000, "day": 20410}
    envelopes = [
        {"op": "c", "before": None, "after": row},
        {"payload": {"op": "u", "before": row, "after": {**row, "id": 1, "price": 3}}},
        {"op": "c", "before": None, "after": {**row, "id": 2}},
        {"op": "d", "before": {"id": "2.0"}, "after": None},
        {"op": "c", "before": None, "after": {**row, "id": 3.5}},
    ]
    produce(kafka, topic, *((None, json.dumps(each).encode(), []) for each in envelopes))
    upsert = {"mode": "upsert", "key": "id", "changes": {"mode": "debezium"}}
    sink = {"sql": {"url": f"sqlite:///{tmp_path}/t.db", "table": "t", "create": True, **upsert}}
    schema = "id BIGINT, price DOUBLE, at TIMESTAMP, day DATE"
    assert landed(pipeline(kafka, tmp_path, topic, sink, schema=schema, convert="fit")) == (4, 1)
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        rows = connection.execute("SELECT id, price, at, day FROM t").fetchall()
    assert rows == [(1, 3.0, "2023-11-14 22:13:20.250000", "2025-11-18")]
    (letter,) = letters(tmp_path / "dead")
    assert letter["reason"] == "field 'after.id' has a fraction, which BIGINT cannot hold"


def test_a_table_grows_while_values_are_converted(
    kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """By a new field, and by a number that needs more bits. From then on, they take other forms, too."""
    topic = new_topic(partitions=1)
    sink = {"sql": {"url": f"sqlite:///{tmp_path}/t.db", "table": "t", "create": True, "evolve": True}}
    config = pipeline(kafka, tmp_path, topic, sink, schema="id BIGINT NOT NULL, n INT", convert="fit")
    produce(kafka, topic, (None, b'{"id":"1","n":"2"}', []))
    assert landed(config) == (1, 0)
    config = pipeline(kafka, tmp_path, topic, sink, convert="fit")
    produce(kafka, topic, (None, b'{"id":"2","n":5000000000,"more":5}', []))
    assert landed(config) == (1, 0)
    produce(kafka, topic, (None, b'{"id":3.0,"n":"6000000000","more":"6"}', []))
    assert landed(config) == (1, 0)
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        rows = connection.execute("SELECT id, n, more FROM t ORDER BY id").fetchall()
    assert rows == [(1, 2, None), (2, 5_000_000_000, 5), (3, 6_000_000_000, 6)]


def test_a_clickhouse_table_grows_with_the_schema_of_avro_records(
    clickhouse: LocalClickHouse, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """The second version adds fields and widens three. Records of the first version that come later land, too."""

    def total(digits: int) -> dict[str, Any]:
        return {"type": "bytes", "logicalType": "decimal", "precision": digits, "scale": 2}

    versions = [
        {
            "type": "record",
            "name": "Sale",
            "fields": [
                {"name": "id", "type": "int"},
                {"name": "price", "type": "float"},
                {"name": "total", "type": total(9)},
            ],
        },
        {
            "type": "record",
            "name": "Sale",
            "fields": [
                {"name": "id", "type": "long"},
                {"name": "price", "type": "double"},
                {"name": "total", "type": total(50)},
                {"name": "note", "type": ["null", "string"], "default": None},
                {"name": "clock", "type": ["null", {"type": "int", "logicalType": "time-millis"}], "default": None},
                {"name": "who", "type": ["null", {"type": "string", "logicalType": "uuid"}], "default": None},
            ],
        },
    ]
    for number, version in enumerate(versions):
        (tmp_path / f"v{number}.avsc").write_text(json.dumps(version))

    def body(version: int, **values: Any) -> bytes:
        schema, stream = fastavro.parse_schema(versions[version]), io.BytesIO()
        canonical = fastavro.schema.to_parsing_canonical_form(schema)
        fastavro.schemaless_writer(stream, schema, values)
        return b"\xc3\x01" + bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")) + stream.getvalue()

    topic = new_topic(partitions=1)
    table = f"grows_{topic}".replace("-", "_")
    ask_for = {"url": clickhouse.url, "table": table, "create": True, "evolve": True}
    format_ = {"avro": {"schema": ["v0.avsc", "v1.avsc"], "framing": "single-object"}}
    config = pipeline(kafka, tmp_path, topic, {"clickhouse": ask_for}, format=format_)
    produce(kafka, topic, (None, body(0, id=1, price=0.5, total=Decimal(1)), []))
    assert landed(config) == (1, 0)
    uuid, wide = "61f0c404-5cb3-11e7-907b-a6006ad3dba0", Decimal("9" * 48)
    newer = (
        body(1, id=2**40, price=0.1, total=wide, note="x", clock=dtime(1, 2, 3, 4000), who=uuid),
        body(0, id=3, price=1.5, total=Decimal(2)),
        body(1, id=4, price=0.2, total=Decimal(3), note=None),
    )
    produce(kafka, topic, *((None, each, []) for each in newer), (None, b"\xc3\x01no schema", []))
    assert landed(config) == (3, 1)
    rows = rows_of(clickhouse, f"SELECT id, price, note FROM {table} ORDER BY _offset")
    assert rows == [(1, 0.5, None), (2**40, 0.1, "x"), (3, 1.5, None), (4, 0.2, None)]
    typed = "toTypeName({0}) || ' ' || toString({0})"
    asked = ", ".join(typed.format(name) + f" AS {name}_" for name in ("total", "clock", "who"))
    assert rows_of(clickhouse, f"SELECT {asked} FROM {table} WHERE note = 'x'") == [
        (f"Decimal(50, 2) {wide}", "Nullable(Time64(6)) 01:02:03.004000", f"Nullable(UUID) {uuid}")
    ]


def test_lines_change_rows(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic(partitions=1)
    lines = ((b"1", b"1,a"), (b"2", b"2,b"), (b"1", b"1,c"), (b"2", None), (b"3", b"x,d"))
    produce(kafka, topic, *((key, value, []) for key, value in lines))
    sink = {"sql": {"url": f"sqlite:///{tmp_path}/t.db", "table": "t", "create": True, "mode": "upsert", "key": "id"}}
    source: dict[str, Any] = {"format": {"csv": {"columns": ["id", "word"]}}, "schema": "id BIGINT, word STRING"}
    assert landed(pipeline(kafka, tmp_path, topic, sink, **source)) == (4, 1)
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        assert connection.execute("SELECT id, word FROM t").fetchall() == [(1, "c")]


def test_strict_makes_dead_letters_of_them(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic(partitions=1)
    produce(kafka, topic, *((None, each, []) for each in LOOSE))
    sink = {"sql": {"url": f"sqlite:///{tmp_path}/t.db", "table": "t", "create": True}}
    assert landed(pipeline(kafka, tmp_path, topic, sink, schema=ORDERS)) == (0, 4)


@pytest.mark.parametrize("format_", ["json", "avro"])
def test_an_event_is_known_by_its_converted_key(
    format_: str, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """With Avro, by each type that its writer may use; the other columns are converted, too."""
    topic = new_topic(partitions=1)
    fields = [("id", ["long", "string", "double"]), ("at", "long"), ("price", "string"), ("note", ["long", WORDS])]
    schema = {"type": "record", "name": "Event", "fields": [{"name": name, "type": type_} for name, type_ in fields]}
    (tmp_path / "event.avsc").write_text(json.dumps(schema))

    def event(id_: Any, note: Any = 7) -> bytes:
        row = {"id": id_, "at": 1_700_000_000_250, "price": "2.50", "note": note}
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
        return json.dumps(row).encode() if format_ == "json" else stream.getvalue()

    events = event(1), event("1"), event(1.0), event("2", {"id": 2, "word": "x"}), event("x"), event(2.5)
    produce(kafka, topic, *((None, each, []) for each in events))
    sink = {"sql": {"url": f"sqlite:///{tmp_path}/t.db", "table": "t", "create": True}}
    columns = "id BIGINT, at TIMESTAMP, price DOUBLE, note STRING"
    source: dict[str, Any] = {"format": {"avro": {"schema": "event.avsc"}} if format_ == "avro" else "json"}
    config = pipeline(kafka, tmp_path, topic, sink, {"key": ["id"]}, schema=columns, convert="fit", **source)
    assert landed(config) == (2, 2)
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        rows = connection.execute("SELECT id, at, price, note FROM t ORDER BY id").fetchall()
    at, word = "2023-11-14 22:13:20.250000", '{"id": 2, "word": "x"}'
    assert rows == [(1, at, 2.5, "7"), (2, at, 2.5, word if format_ == "json" else word.replace(" ", ""))]
    assert sorted((each["offset"], each["reason"]) for each in letters(tmp_path / "dead")) == [
        (4, "field 'id' is not a valid BIGINT"),
        (5, "field 'id' has a fraction, which BIGINT cannot hold"),
    ]


def test_a_conversion_of_a_field_that_is_not_there_stops_check_and_run(
    kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=1)
    produce(kafka, topic, (None, b'{"id":"1"}', []))
    sink = {"sql": {"url": f"sqlite:///{tmp_path}/t.db", "table": "t", "create": True}}
    assert landed(pipeline(kafka, tmp_path, topic, sink, schema="id STRING")) == (1, 0)
    produce(kafka, topic, (None, b'{"id":"2"}', []))
    config = pipeline(kafka, tmp_path, topic, sink, schema="id STRING", convert={"fields": {"idd": "fit"}})
    with pytest.raises(ConfigError, match="there is no field 'idd'"):
        landonce.run_pipeline(config, once=True)
    found = check_pipeline(open_parts(config))
    assert found.refused
    assert "source.kafka.convert: there is no field 'idd'" in str(found.sections)


def test_the_page_on_conversions_is_true(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "conversions.md").read_text()
    text = page.split("```yaml\n")[1].split("```")[0]
    topic = new_topic(partitions=1)
    text = text.replace("localhost:9092", kafka.bootstrap_servers).replace("[orders]", f"[{topic}]")
    produce(kafka, topic, *((None, each, []) for each in LOOSE[:3]))
    assert landed(parse(text.replace("sqlite:///", f"sqlite:///{tmp_path}/"), tmp_path / "orders.yaml")) == (2, 1)
