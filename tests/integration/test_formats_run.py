"""Records of other formats than JSON, the columns that a record itself fills, and `convert`, through whole pipelines into real targets."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from deliveries import ask, letters

import landonce
from landonce.check import check_pipeline
from landonce.config.model import Transform
from landonce.errors import ConfigError
from landonce.local import LocalClickHouse, LocalKafka
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import Pipeline, parse
from landonce.verify.audit import opened_audit

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

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


def test_strict_makes_dead_letters_of_them(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic(partitions=1)
    produce(kafka, topic, *((None, each, []) for each in LOOSE))
    sink = {"sql": {"url": f"sqlite:///{tmp_path}/t.db", "table": "t", "create": True}}
    assert landed(pipeline(kafka, tmp_path, topic, sink, schema=ORDERS)) == (0, 4)


def test_an_event_is_known_by_its_converted_key(
    kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=1)
    produce(kafka, topic, *((None, each, []) for each in (b'{"id":1}', b'{"id":"1"}', b'{"id":1.0}', b'{"id":"2"}')))
    sink = {"sql": {"url": f"sqlite:///{tmp_path}/t.db", "table": "t", "create": True}}
    config = pipeline(kafka, tmp_path, topic, sink, {"key": ["id"]}, schema="id BIGINT", convert="fit")
    assert landed(config) == (2, 0)


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
