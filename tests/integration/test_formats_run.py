"""Records of other formats than JSON, and the columns that a record itself fills, through whole pipelines into real targets."""

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
from landonce.config.model import Transform
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


def pipeline(kafka: LocalKafka, folder: Path, topic: str, sink: dict[str, Any], **source: Any) -> Pipeline:
    document = {
        "pipeline": "formats",
        "source": {"kafka": {"bootstrap_servers": kafka.bootstrap_servers, "topics": [topic], **source}},
        "sink": sink,
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
