"""Protobuf records become rows of real tables: by a `.proto` file and by a real schema registry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from confluent_kafka import Producer
from google.protobuf.message_factory import GetMessageClass
from pages import run_page
from pyiceberg.catalog import load_catalog
from running import running
from schema_registry import LocalSchemaRegistry

from landonce.engine.pipeline import run_pipeline
from landonce.local import LocalClickHouse, LocalKafka
from landonce.local.postgres import LocalPostgres
from landonce.protocol.ledger import Totals
from landonce.read.formats.protobuf.source import Messages, compile_text
from landonce.sinks.pipeline_file import parse

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ITEM = 'syntax = "proto3"; package shop; message Item { string sku = 1; uint64 count = 2; }'
ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "item.proto";
enum State { NEW = 0; PAID = 1; }
message Refund { int64 id = 1; }
message Order {
  int64 id = 1;
  State state = 2;
  repeated Item items = 3;
  map<string, string> labels = 4;
  google.protobuf.Timestamp at = 5;
  optional string note = 6;
  oneof paid_with { string card = 7; int64 voucher = 8; }
  Item first = 9;
}
"""
NEWER = ORDER.replace("Item first = 9;", "bool rushed = 10;")
BAD = (b"\x0a\xff", b"{}", b"\x10\x07")
REASONS = [
    "not a valid shop.Order: it ends inside the length of field 'id'",
    "not a valid shop.Order: it ends inside an unknown field",
    "field 'state' holds a number that enum shop.State does not name",
]


@pytest.fixture(scope="module")
def schemas(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSchemaRegistry]:
    with running(LocalSchemaRegistry(tmp_path_factory.mktemp("registry"))) as server:
        yield server


def made(text: str) -> list[bytes]:
    """A hundred orders."""
    message = GetMessageClass(Messages(compile_text(text, {"item.proto": ITEM})).find("shop.Order"))
    values = []
    for at in range(100):
        order = message(id=at, state=at % 2, items=[{"sku": f"s{at}", "count": 2**64 - 1 - at}], labels={"a": "ü"})
        order.at.seconds, order.at.nanos = 1_700_000_000 + at, 1_000
        if at % 2:
            order.note, order.voucher = "", -at
        values.append(order.SerializeToString())
    return values


def land(
    kafka: LocalKafka, topic: str, values: list[bytes | None], folder: Path, format_: Any, sink: dict[str, Any]
) -> Totals:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
    source = {"bootstrap_servers": kafka.bootstrap_servers, "topics": [topic], "format": {"protobuf": format_}}
    config = {
        "pipeline": "orders",
        "source": {"kafka": source},
        "sink": sink,
        "batch": {"interval": "0s", "max_rows": 100, "block_rows": 20},
        "spark": {"master": "local[2]"},
    }
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump(config))
    return run_pipeline(parse(file.read_text(), file), once=True)


def reasons(folder: Path) -> list[str]:
    lines = [line for path in (folder / "dead").glob("*.jsonl") for line in path.read_text().splitlines()]
    letters = sorted(map(json.loads, lines), key=lambda each: int(each["offset"]))
    return [each["reason"] for each in letters]


def test_a_proto_file_into_clickhouse(
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    tmp_path: Path,
) -> None:
    (tmp_path / "item.proto").write_text(ITEM)
    (tmp_path / "order.proto").write_text(ORDER)
    topic, table = new_topic(), new_table()
    sink = {"clickhouse": {"url": clickhouse.url, "table": table, "create": True}}
    format_ = {"schema": "order.proto", "message": "shop.Order"}
    totals = land(kafka, topic, [*made(ORDER), *BAD, None], tmp_path, format_, sink)
    assert (totals.read, totals.landed, totals.dead_lettered) == (104, 100, 4)
    assert reasons(tmp_path) == [*REASONS, "no value (a tombstone)"]
    asked = "id, state, items[1].sku, toString(items[1].count), labels['a'], toUnixTimestamp64Micro(at), note, card, voucher"
    rows = clickhouse.ask(f"SELECT {asked} FROM {table} ORDER BY id FORMAT JSONCompactEachRow")
    found = [json.loads(line) for line in rows.splitlines()]
    assert [[int(row[0]), *row[1:5], int(row[5]), *row[6:8], row[8] and int(row[8])] for row in found] == [
        [
            at,
            "PAID" if at % 2 else "NEW",
            f"s{at}",
            str(2**64 - 1 - at),
            "ü",
            (1_700_000_000 + at) * 10**6 + 1,
            "" if at % 2 else None,
            None,
            -at if at % 2 else None,
        ]
        for at in range(100)
    ]


def test_a_registry_into_postgres(
    kafka: LocalKafka,
    postgres: LocalPostgres,
    schemas: LocalSchemaRegistry,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    """Two versions of a schema that imports another, and another message of it, in one topic."""
    topic = new_topic()
    schemas.register("item", ITEM, "PROTOBUF")
    refers = [{"name": "item.proto", "subject": "item", "version": 1}]
    first, second = (
        schemas.register(f"{topic}-{at}", text, "PROTOBUF", refers) for at, text in enumerate((ORDER, NEWER))
    )

    def framed(number: int, indexes: bytes, value: bytes) -> bytes:
        return b"\0" + number.to_bytes(4, "big") + indexes + value

    at_one = b"\x02\x02"  # one index, 1: the second message of the file
    values: list[bytes | None] = []
    for old, new in zip(made(ORDER), made(NEWER), strict=True):
        values += [framed(first, at_one, old), framed(second, at_one, new + b"\x50\x01")]
    refund = framed(first, b"\0", b"\x08\x05")
    unknown = framed(4_000_000, b"\0", b"")
    sink = {"sql": {"url": postgres.url, "table": "proto_orders", "create": True}}
    format_ = {"registry": {"url": schemas.url}, "message": "shop.Order"}
    bad = [framed(first, at_one, each) for each in BAD]
    totals = land(kafka, topic, [*values, refund, unknown, *bad, made(ORDER)[0]], tmp_path, format_, sink)
    assert (totals.read, totals.landed, totals.dead_lettered) == (206, 200, 6)
    assert reasons(tmp_path) == [
        "is a shop.Refund, not a shop.Order",
        "schema 4000000 is not in the registry",
        *REASONS,
        "does not begin with the zero byte of Confluent's framing",
    ]
    with psycopg.connect(postgres.url.replace("+psycopg", "")) as connection:
        rows = connection.execute(
            "SELECT id, state, items->0->>'sku', note, voucher, rushed, extract(epoch FROM at) "
            "FROM proto_orders ORDER BY id, rushed NULLS FIRST"
        ).fetchall()
    expected = [
        (at, "PAID" if at % 2 else "NEW", f"s{at}", "" if at % 2 else None, -at if at % 2 else None, rushed)
        for at in range(100)
        for rushed in (None, True)
    ]
    assert [row[:6] for row in rows] == expected
    assert [float(row[6]) for row in rows[::2]] == pytest.approx([1_700_000_000.000001 + at for at in range(100)])


def test_a_proto_file_into_iceberg(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> None:
    """PyIceberg's scan is the oracle: nested messages, a map, a oneof, an unsigned integer beyond a long."""
    (tmp_path / "item.proto").write_text(ITEM)
    (tmp_path / "order.proto").write_text(ORDER)
    sink = {"iceberg": {"table": "db.orders", "create": True}}
    format_ = {"schema": "order.proto", "message": "shop.Order"}
    totals = land(kafka, new_topic(), [*made(ORDER), *BAD, None], tmp_path, format_, sink)
    assert (totals.read, totals.landed, totals.dead_lettered) == (104, 100, 4)
    assert reasons(tmp_path) == [*REASONS, "no value (a tombstone)"]
    catalog = load_catalog("landonce", type="sql", uri=f"sqlite:///{tmp_path}/lake/catalog.db")
    rows = sorted(catalog.load_table("db.orders").scan().to_arrow().to_pylist(), key=lambda row: row["_offset"])
    names = ("id", "state", "items", "labels", "at", "note", "card", "voucher", "first")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (
            at,
            "PAID" if at % 2 else "NEW",
            [{"sku": f"s{at}", "count": Decimal(2**64 - 1 - at)}],
            [("a", "ü")],
            datetime.fromtimestamp(1_700_000_000 + at, timezone.utc).replace(microsecond=1),
            "" if at % 2 else None,
            None,
            -at if at % 2 else None,
            None,
        )
        for at in range(100)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("spark", [False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "spark"])
def test_the_page_is_true(kafka: LocalKafka, tmp_path: Path, spark: bool) -> None:
    assert run_page("protobuf.md", kafka, ("parcels",), tmp_path, spark=spark) >= 5
