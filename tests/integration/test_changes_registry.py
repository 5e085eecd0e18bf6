"""Debezium's change stream with Avro and a real registry, into PostgreSQL and Iceberg: the table equals a dict that the test keeps."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import debezium_avro as dbz
import psycopg
import pytest
import yaml
from confluent_kafka import Producer
from pyiceberg.catalog import load_catalog
from running import running
from schema_registry import LocalSchemaRegistry

import landonce
from landonce.check import check_pipeline
from landonce.local import LocalKafka
from landonce.local.postgres import LocalPostgres
from landonce.protocol.ledger import Totals
from landonce.sinks.contract import Level
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import Pipeline, parse
from landonce.verify.audit import opened_audit

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

Table = dict[int, dict[str, Any]]
COLUMNS = [each for each in dbz.COLUMNS if each["name"] != "wakes"]
"""landonce creates no SQL column, and Spark merges none, for a time of day."""
NAMES = ", ".join(each["name"] for each in COLUMNS)


@pytest.fixture(scope="module")
def schemas(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSchemaRegistry]:
    with running(LocalSchemaRegistry(tmp_path_factory.mktemp("registry"))) as server:
        yield server


class Stream:
    """A topic of change events, and what the rows are after them."""

    def __init__(self, kafka: LocalKafka, schemas: LocalSchemaRegistry, topic: str) -> None:
        self.kafka, self.schemas, self.topic = kafka, schemas, topic
        self.rows: Table = {}
        self.schema = dbz.envelope(COLUMNS)
        self.sent = 0
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        self._chance = random.Random(7)

    def framed(self, value: Any, schema: Any, part: str) -> bytes:
        number = self.schemas.register(f"{self.topic}-{part}", schema)
        return b"\0" + number.to_bytes(4, "big") + dbz.written(value, schema)

    def send(self, key: int, value: dict[str, Any] | None) -> None:
        body = self.framed(value, self.schema, "value") if value is not None else None
        self._producer.produce(self.topic, body, self.framed({"id": key}, dbz.KEY, "key"), partition=0)
        self.sent += 1

    def churn(self, count: int) -> None:
        """Inserts, updates and deletions; Debezium sends a tombstone after a deletion."""
        for _ in range(count):
            key = self._chance.randrange(20)
            new = dbz.customer(key, name=self._chance.choice([None, "ü", "x"]), born=self._chance.randrange(20_000))
            old = self.rows.get(key)
            if old is None:
                self.send(key, dbz.change("c", None, self._known(new)))
                self.rows[key] = new
            elif self._chance.random() < 0.3:
                self.send(key, dbz.change("d", self._known(old), None))
                self.send(key, None)
                del self.rows[key]
            else:
                self.send(key, dbz.change("u", self._known(old), self._known(new)))
                self.rows[key] = new
        assert self._producer.flush(30) == 0

    def _known(self, row: dict[str, Any]) -> dict[str, Any]:
        return {each["name"]: row.get(each["name"]) for each in self.schema["fields"][0]["type"][1]["fields"]}

    def expected(self) -> Table:
        named = NAMES.split(", ")
        return {key: {name: dbz.row_of(row)[name] for name in named} for key, row in self.rows.items()}


@pytest.fixture
def stream(kafka: LocalKafka, schemas: LocalSchemaRegistry, new_topic: Callable[..., str]) -> Stream:
    return Stream(kafka, schemas, new_topic())


def config(stream: Stream, folder: Path, sink: dict[str, Any], **source: Any) -> Pipeline:
    avro = {"avro": {"registry": {"url": stream.schemas.url}}}
    kafka = {"bootstrap_servers": stream.kafka.bootstrap_servers, "topics": [stream.topic], "format": avro, **source}
    document = {"pipeline": "customers", "source": {"kafka": kafka}, "sink": sink, "spark": {"master": "local[2]"}}
    return parse(yaml.safe_dump(document), folder / "customers.yaml")


def run(made: Pipeline) -> Totals:
    totals = landonce.run_pipeline(made, once=True)
    with opened_audit(open_parts(made), values=True) as audit:
        assert audit.audit().exact
    return totals


def test_debezium_into_postgres_with_a_table_made_of_its_schema(
    stream: Stream, postgres: LocalPostgres, tmp_path: Path
) -> None:
    table = f"customers_{stream.topic.replace('-', '_')}"
    sink = {"url": postgres.url, "table": table, "create": True, "mode": "upsert", "key": "id"}
    made = config(stream, tmp_path, {"sql": {**sink, "changes": {"mode": "debezium"}}})
    stream.churn(60)
    checked = check_pipeline(open_parts(made))
    assert not [each for section in checked.sections for each in section.findings if each.level is Level.REFUSED]
    totals = run(made)
    assert (totals.read, totals.dead_lettered) == (stream.sent, 0)

    def rows() -> Table:
        with psycopg.connect(postgres.url.replace("+psycopg", "")) as database:
            found = database.execute(f"SELECT {NAMES} FROM {table}").fetchall()
        named = [dict(zip(NAMES.split(", "), each, strict=True)) for each in found]
        return {each["id"]: {**each, "seen": _without_zone(each["seen"])} for each in named}

    def expected() -> Table:
        """A time with a zone is text in Debezium's schema, and so it is in a table that is made of it."""
        return {key: {**row, "joined": stream.rows[key]["joined"]} for key, row in stream.expected().items()}

    assert rows() == expected()
    # The source table gets a column: Debezium registers a new version, in the middle of the stream.
    stream.schema = dbz.envelope([*COLUMNS, {"name": "note", "type": ["null", "string"], "default": None}])
    stream.churn(60)
    run(made)
    assert rows() == expected()


def _without_zone(moment: datetime) -> datetime:
    return moment.astimezone(timezone.utc).replace(tzinfo=None) if moment.tzinfo else moment


def test_debezium_into_iceberg(stream: Stream, tmp_path: Path) -> None:
    sink = {"table": "shop.customers", "create": True, "identity": "id", "changes": {"mode": "debezium"}}
    made = config(stream, tmp_path, {"iceberg": sink}, schema=dbz.SCHEMA.replace("wakes TIME, ", ""))
    stream.churn(60)
    run(made)
    stream.churn(30)
    run(made)
    uri = f"sqlite:///{tmp_path / 'lake' / 'catalog.db'}"
    catalog = load_catalog("landonce", type="sql", uri=uri, warehouse=f"file://{tmp_path / 'lake'}")
    found = catalog.load_table("shop.customers").scan().to_arrow().to_pylist()
    rows = {each["id"]: {name: each[name] for name in NAMES.split(", ")} for each in found}
    for row in rows.values():
        row.update({name: _without_zone(row[name]) for name in ("seen", "joined")})
    assert rows == stream.expected()


def test_upserts_and_tombstones_evolve_a_table(stream: Stream, tmp_path: Path) -> None:
    key_format = {"avro": {"registry": {"url": stream.schemas.url}}}
    sink = {"url": "sqlite:///c.db", "table": "c", "create": True, "mode": "upsert", "key": "id", "evolve": True}
    made = config(stream, tmp_path, {"sql": sink}, key_format=key_format, schema="id BIGINT, name STRING")
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
    stream.schema = {"type": "record", "name": "Row", "fields": fields}
    for number in range(5):
        stream.send(number, {"id": number, "name": "a"})
    stream._producer.flush(30)
    run(made)
    stream.schema = {"type": "record", "name": "Row", "fields": [*fields, {"name": "age", "type": ["null", "int"]}]}
    stream.schema["fields"][2]["default"] = None
    stream.send(1, {"id": 1, "name": "b", "age": 40})
    stream.send(2, None)
    stream.send(7, {"id": 7, "name": "c", "age": None})
    stream._producer.flush(30)
    assert run(made).dead_lettered == 0
    with closing(sqlite3.connect(tmp_path / "c.db")) as database:
        found = database.execute("SELECT id, name, age FROM c ORDER BY id").fetchall()
    assert found == [(0, "a", None), (1, "b", 40), (3, "a", None), (4, "a", None), (7, "c", None)]
