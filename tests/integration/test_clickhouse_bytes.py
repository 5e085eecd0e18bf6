"""Fields of bytes of Avro and Protobuf in ClickHouse: in tables that landonce creates, and in tables that are there. `hex` shows what landed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
import yaml
from confluent_kafka import Producer
from deliveries import ask, letters
from google.protobuf.message_factory import GetMessageClass

import landonce
from landonce.local import LocalClickHouse, LocalKafka
from landonce.read.formats.protobuf.source import Messages, ProtobufSource, compile_text
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import Pipeline, parse
from landonce.verify.audit import opened_audit

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PART = {
    "type": "record",
    "name": "Part",
    "fields": [{"name": "raw", "type": "bytes"}, {"name": "word", "type": "string"}],
}
AVRO = {
    "type": "record",
    "name": "Blob",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "raw", "type": "bytes"},
        {"name": "perhaps", "type": ["null", "bytes"]},
        {"name": "three", "type": {"type": "fixed", "name": "Three", "size": 3}},
        {"name": "many", "type": {"type": "array", "items": "bytes"}},
        {"name": "named", "type": {"type": "map", "values": "bytes"}},
        {"name": "part", "type": PART},
        {"name": "word", "type": "string"},
    ],
}
PROTO = """
syntax = "proto3";
message Part { bytes raw = 1; string word = 2; }
message Blob {
  int64 id = 1; bytes raw = 2; optional bytes perhaps = 3; bytes three = 4; repeated bytes many = 5;
  map<string, bytes> named = 6; Part part = 7; string word = 8;
}
"""
ROWS: list[dict[str, Any]] = [
    {"raw": b"\xff\xfe\0", "perhaps": b"\x80", "three": b"\xff\0\0", "many": [b"\xc3", b""], "named": {"k": b"\xf0"}},
    {"raw": "é\n".encode(), "perhaps": None, "three": b"abc", "many": [], "named": {}},
    {"raw": bytes(range(256)), "perhaps": b"", "three": b"\0\0\xff", "many": [b"\0"], "named": {"": b"\0\xff"}},
]
for at, row in enumerate(ROWS):
    row.update({"id": at, "part": {"raw": row["raw"][::-1], "word": "ü"}, "word": "é"})


def avro_of(row: dict[str, Any]) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(AVRO), row)
    return body.getvalue()


def protobuf_of(row: dict[str, Any]) -> bytes:
    messages = Messages(ProtobufSource(compile_text(PROTO, {}), "Blob").descriptors)
    given = {name: value for name, value in row.items() if value is not None}
    written: bytes = GetMessageClass(messages.find("Blob"))(**given).SerializeToString(deterministic=True)
    return written


FORMATS: dict[str, tuple[Callable[[dict[str, Any]], bytes], dict[str, Any]]] = {
    "avro": (avro_of, {"format": {"avro": {"schema": "blob.avsc"}}}),
    "protobuf": (protobuf_of, {"format": {"protobuf": {"schema": "blob.proto", "message": "Blob"}}}),
}
COORDINATES = "_topic String, _partition Int32, _offset Int64"
EXISTING = (
    "id Int64, raw String, perhaps Nullable(String), three FixedString(3), many Array(String), named Map(String, String), "
    f"part Tuple(raw String, word String), word LowCardinality(String), {COORDINATES}"
)


def run(kafka: LocalKafka, folder: Path, topic: str, sink: dict[str, Any], **source: Any) -> tuple[int, int]:
    """Lands the topic, and returns how many records landed and how many did not. Every value is as the record says."""
    (folder / "blob.avsc").write_text(json.dumps(AVRO))
    (folder / "blob.proto").write_text(PROTO)
    document = {
        "pipeline": "blobs",
        "source": {"kafka": {"bootstrap_servers": kafka.bootstrap_servers, "topics": [topic], **source}},
        "sink": {"clickhouse": sink},
        "spark": {"master": "local[2]"},
    }
    config: Pipeline = parse(yaml.safe_dump(document), folder / "p.yaml")
    found = landonce.run_pipeline(config, once=True)
    with opened_audit(open_parts(config), values=True) as audit:
        assert audit.audit().exact
    return found.landed, found.dead_lettered


def produce(kafka: LocalKafka, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush()


def held(clickhouse: LocalClickHouse, table: str) -> list[dict[str, Any]]:
    """The rows, with bytes as ClickHouse's own hexadecimal digits."""
    asked = (
        "toInt32(id) AS id, hex(raw) AS raw, hex(perhaps) AS perhaps, hex(three) AS three, arrayMap(x -> hex(x), many) AS many, "
        "mapApply((k, v) -> (k, hex(v)), named) AS named, hex(part.raw) AS inside, part.word AS said, word"
    )
    return list(ask(clickhouse.url, f"SELECT {asked} FROM {table} ORDER BY id"))


def expected(row: dict[str, Any]) -> dict[str, Any]:
    def digits(value: bytes | None) -> str | None:
        return value.hex().upper() if value is not None else None

    return {
        "id": row["id"],
        **{name: digits(row[name]) for name in ("raw", "perhaps", "three")},
        "many": [digits(each) for each in row["many"]],
        "named": {name: digits(each) for name, each in row["named"].items()},
        "inside": digits(row["part"]["raw"]),
        "said": "ü",
        "word": "é",
    }


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("created", [True, False], ids=["created", "existing"])
def test_bytes_land_as_they_are(
    created: bool,
    format_: str,
    clickhouse: LocalClickHouse,
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic = new_topic(partitions=1)
    table = f"bytes_{topic}".replace("-", "_")
    write, source = FORMATS[format_]
    produce(kafka, topic, [write(each) for each in ROWS])
    sink: dict[str, Any] = {"url": clickhouse.url, "table": table, "create": created}
    if not created:
        settings = "non_replicated_deduplication_window = 1000"
        clickhouse.ask(f"CREATE TABLE {table} ({EXISTING}) ENGINE = MergeTree ORDER BY id SETTINGS {settings}")
    assert run(kafka, tmp_path, topic, sink, **source) == (3, 0)
    assert held(clickhouse, table) == [expected(each) for each in ROWS]
    if created:
        asked = (
            f"SELECT name, type, comment FROM system.columns WHERE table = '{table}' AND comment <> '' ORDER BY name"
        )
        three = "FixedString(3)" if format_ == "avro" else "String"
        types = {each["name"]: each["type"].replace("Nullable(", "").rstrip(")") for each in ask(clickhouse.url, asked)}
        assert types["raw"] == "String"
        assert types["three"] == three.rstrip(")")
        assert "word" not in types


def test_what_is_not_of_the_length_of_a_fixed_string_is_a_dead_letter(
    clickhouse: LocalClickHouse, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """ClickHouse would add zero bytes, and refuse longer ones with the whole block. Text is of at most that length."""
    topic = new_topic(partitions=1)
    table = f"lengths_{topic}".replace("-", "_")
    settings = "non_replicated_deduplication_window = 1000"
    clickhouse.ask(f"CREATE TABLE {table} ({EXISTING}) ENGINE = MergeTree ORDER BY id SETTINGS {settings}")
    rows = [{**ROWS[0], "id": at, "three": value} for at, value in enumerate([b"ab", b"abc", b"abcd", b""])]
    produce(kafka, topic, [protobuf_of(each) for each in rows])
    sink = {"url": clickhouse.url, "table": table}
    assert run(kafka, tmp_path, topic, sink, **FORMATS["protobuf"][1]) == (1, 3)
    assert {each["reason"] for each in letters(tmp_path / "dead")} == {"field 'three' does not hold exactly 3 bytes"}
    assert [each["three"] for each in held(clickhouse, table)] == ["616263"]


def test_a_declared_string_is_text_and_declared_bytes_are_base64_in_json(
    clickhouse: LocalClickHouse, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(partitions=1)
    table = f"declared_{topic}".replace("-", "_")
    columns = f"id Int64, raw String, {COORDINATES}"
    settings = "non_replicated_deduplication_window = 1000"
    clickhouse.ask(f"CREATE TABLE {table} ({columns}) ENGINE = MergeTree ORDER BY id SETTINGS {settings}")
    produce(kafka, topic, [avro_of(each) for each in ROWS])
    sink = {"url": clickhouse.url, "table": table}
    assert run(kafka, tmp_path, topic, sink, schema="id BIGINT NOT NULL, raw STRING", **FORMATS["avro"][1]) == (1, 2)
    assert {each["reason"] for each in letters(tmp_path / "dead")} == {"field 'raw' does not fit STRING"}
    text = list(ask(clickhouse.url, f"SELECT hex(raw) AS raw FROM {table}"))
    assert text == [{"raw": "C3A90A"}]

    other = new_topic(partitions=1)
    produce(kafka, other, [b'{"id": 7, "raw": "//4A"}', b'{"id": 8, "raw": "no base64"}'])
    (tmp_path / "json").mkdir()
    made: dict[str, Any] = {"url": clickhouse.url, "table": f"{table}_json", "create": True}
    assert run(kafka, tmp_path / "json", other, made, schema="id BIGINT NOT NULL, raw BINARY") == (1, 1)
    text = list(ask(clickhouse.url, f"SELECT hex(raw) AS raw FROM {table}_json"))
    assert text == [{"raw": "FFFE00"}]
