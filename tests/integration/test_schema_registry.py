"""The client of a schema registry against a real one, and Avro records from there into tables."""

from __future__ import annotations

import io
import json
import pickle
import socket
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from certificates import REFUSED, Certificates
from confluent_kafka import Producer
from pages import run_page
from pyiceberg.catalog import load_catalog
from running import running
from schema_registry import Gate, LocalSchemaRegistry

from landonce.config.source import RecordFormat
from landonce.engine.pipeline import run_pipeline
from landonce.errors import CertificateRefused, ConfigError, LandonceError, RegistryRefused, RegistryUnavailable
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals
from landonce.read.decoding import format_of
from landonce.read.formats.avro.decode import Avro
from landonce.read.schema import registry as registry_module
from landonce.read.schema.fields import Field, Schema
from landonce.read.schema.registry import UnknownSchema, registry_at
from landonce.sinks.pipeline_file import parse

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "customer", "type": "string"}],
}
NEWER = {
    **ORDER,
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {
            "name": "address",
            "type": ["null", {"type": "record", "name": "Address", "fields": [{"name": "city", "type": "string"}]}],
        },
        {"name": "lines", "type": {"type": "array", "items": ["null", "long", "string"]}},
        {"name": "tags", "type": {"type": "map", "values": "double"}},
    ],
}
NESTED: list[dict[str, Any]] = [
    {"address": None, "lines": [], "tags": {}},
    {"address": {"city": "Köln"}, "lines": [1, None, "a"], "tags": {"x": 0.5}},
]


@pytest.fixture(scope="module")
def schemas(
    servers: None, certs: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalSchemaRegistry]:
    with running(LocalSchemaRegistry(tmp_path_factory.mktemp("registry"), certs)) as server:
        yield server


@pytest.fixture
def gate(schemas: LocalSchemaRegistry) -> Iterator[Callable[..., Gate]]:
    made: list[Gate] = []

    def make(**options: Any) -> Gate:
        made.append(Gate(schemas, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "_PAUSES", (0.01, 0.01, 0.01))


def framed(number: int, schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def secret_free(error: LandonceError) -> bool:
    return "hunter2" not in str(error) + repr(error)


# The client


def test_a_schema_by_its_id_and_by_its_subject(schemas: LocalSchemaRegistry) -> None:
    number = schemas.register("by id/ä-value", ORDER)
    registry = registry_at(schemas.url)
    assert json.loads(registry.schema(number).text) == ORDER
    assert registry.schema(number).kind == "AVRO"
    assert registry.latest("by id/ä-value") == registry.version("by id/ä-value", 1) == registry.schema(number)


def test_other_kinds_of_schemas(schemas: LocalSchemaRegistry) -> None:
    proto = 'syntax = "proto3"; message A { int64 id = 1; }'
    registry = registry_at(schemas.url)
    found = registry.schema(schemas.register("kinds-proto", proto, "PROTOBUF"))
    assert (found.kind, "message A" in found.text) == ("PROTOBUF", True)
    anything = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    found = registry.schema(schemas.register("kinds-json", anything, "JSON"))
    assert (found.kind, json.loads(found.text)) == ("JSON", anything)


def test_a_readers_schema_is_a_version_of_a_subject(
    schemas: LocalSchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for once, with what it refers to. A newer one counts from the next start on, and makes another plan."""
    monkeypatch.setattr(registry_module, "_UNKNOWN_PAUSES", (0.01,))
    money = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
    schemas.register("reader-money", money)
    uses = [{"name": "shop.Money", "subject": "reader-money", "version": 1}]
    paid = {"name": "paid", "type": ["null", "Money"], "default": None}
    renamed = {**ORDER["fields"][1], "name": "buyer", "aliases": ["customer"]}
    number = schemas.register("reader-orders", ORDER)
    schemas.register("reader-orders", {**ORDER, "fields": [ORDER["fields"][0], renamed, paid]}, references=uses)
    schemas.register("reader-proto", 'syntax = "proto3"; message A { int64 id = 1; }', "PROTOBUF")

    def opened(**reader: Any) -> Any:
        section = {"avro": {"registry": {"url": schemas.url}, "reader": {"subject": "reader-orders", **reader}}}
        return format_of(RecordFormat.model_validate(section))

    def row(format_: Any) -> Any:
        fields = format_.described()
        values = pa.array([framed(number, ORDER, {"id": 1, "customer": "c"})])
        return (
            pickle.loads(pickle.dumps(format_)).decoder(fields, max_record_bytes=1000).decode(values).table.to_pylist()
        )

    first, newest = opened(version=1), opened()
    assert row(first) == [{"id": 1, "customer": "c"}]
    assert row(newest) == [{"id": 1, "buyer": "c", "paid": None}]
    assert newest == opened(version=2)
    assert first.decisive() != newest.decisive()
    schemas.register("reader-orders", {**ORDER, "fields": [ORDER["fields"][0]]})
    assert row(newest) == [{"id": 1, "buyer": "c", "paid": None}]
    assert opened().decisive() != newest.decisive()
    with pytest.raises(ConfigError, match="version 9 of 'reader-orders' is not in the registry"):
        opened(version=9)
    with pytest.raises(ConfigError, match="the newest version of 'reader-proto' is not an Avro schema: it is PROTOBUF"):
        opened(subject="reader-proto")


def test_references_come_with_a_schema_those_first_that_others_need(schemas: LocalSchemaRegistry) -> None:
    money = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
    line = {"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "price", "type": "shop.Money"}]}
    bill = {
        "type": "record",
        "name": "Bill",
        "namespace": "shop",
        "fields": [{"name": "lines", "type": {"type": "array", "items": "Line"}}, {"name": "paid", "type": "Money"}],
    }
    schemas.register("money", money)
    to_money = {"name": "shop.Money", "subject": "money", "version": 1}
    schemas.register("line", line, references=[to_money])
    to_line = {"name": "shop.Line", "subject": "line", "version": 1}
    number = schemas.register("bill", bill, references=[to_line, to_money])
    registry = registry_at(schemas.url)
    assert [name for name, _ in registry.schema(number).referenced] == ["shop.Money", "shop.Line"]
    body = b"\0" + number.to_bytes(4, "big") + b"\x02\x04\x00\x06"
    format_ = Avro(registry=registry, framing="confluent")
    fields = format_.fields([body])
    assert fields is not None
    decoded = format_.decoder(fields, max_record_bytes=1000).decode(pa.array([body]))
    assert decoded.table.to_pylist() == [{"lines": [{"price": {"cents": 2}}], "paid": {"cents": 3}}]


def test_an_id_is_asked_for_once(schemas: LocalSchemaRegistry, gate: Callable[..., Gate]) -> None:
    number, before = schemas.register("once", ORDER), gate()
    registry = registry_at(before.url)
    for _ in range(3):
        pickle.loads(pickle.dumps(registry)).schema(number)
        with pytest.raises(UnknownSchema):
            registry.schema(4_000_000)
    assert [each.endswith(f"/ids/{number}") for each in before.asked].count(True) == 1
    assert len(before.asked) == 1 + 4  # an unknown id is asked for again, for a second or two, then not for a while


def test_a_user_and_a_password(schemas: LocalSchemaRegistry, gate: Callable[..., Gate]) -> None:
    number, guarded = schemas.register("guarded", ORDER), gate(user="ann", password="hunter2")
    inside = guarded.url.replace("://", "://ann:hunter2@")
    for registry in (registry_at(guarded.url, user="ann", password="hunter2"), registry_at(inside)):
        assert json.loads(registry.schema(number).text) == ORDER
        assert "hunter2" not in repr(registry) + str(registry)
    for wrong in (registry_at(guarded.url), registry_at(guarded.url, user="bob", password="hunter2")):
        with pytest.raises(RegistryRefused, match="refused the user") as caught:
            wrong.schema(number)
        assert secret_free(caught.value)


def test_tls_with_an_authority_of_ones_own(
    schemas: LocalSchemaRegistry, gate: Callable[..., Gate], certs: Certificates
) -> None:
    """Of the registry itself, and of what stands before it."""
    number, authority = schemas.register("secure", ORDER), certs.authority.read_text()
    for url in (schemas.secure_url, gate(tls=certs).url):
        assert json.loads(registry_at(url, authority=authority).schema(number).text) == ORDER
        with pytest.raises(CertificateRefused, match="signed by an authority that is not known here") as caught:
            registry_at(url).schema(number)
        assert "`ca_cert` of the registry" in caught.value.command
        with pytest.raises(ConfigError, match="not valid PEM"):
            registry_at(url, authority="no certificate")


def test_a_client_certificate(schemas: LocalSchemaRegistry, gate: Callable[..., Gate], certs: Certificates) -> None:
    number, asking = schemas.register("mutual", ORDER), gate(tls=certs, ask_client=True)
    authority, own = certs.authority.read_text(), certs.client.read_text() + certs.client_key.read_text()
    shown = registry_at(asking.url, authority=authority, certificate=own)
    assert json.loads(pickle.loads(pickle.dumps(shown)).schema(number).text) == ORDER
    assert "PRIVATE KEY" not in repr(shown)
    with pytest.raises(CertificateRefused, match="asks for a certificate of the client"):
        registry_at(asking.url, authority=authority).schema(number)


@pytest.mark.parametrize("kind", REFUSED)
def test_certificates_that_are_refused(
    schemas: LocalSchemaRegistry, gate: Callable[..., Gate], certs: Certificates, kind: str
) -> None:
    """At once, and with the reason; and nothing is sent."""
    wrong = gate(tls=certs, kind=kind, user="ann", password="hunter2")
    registry = registry_at(wrong.url, user="ann", password="hunter2", authority=certs.authority.read_text())
    with pytest.raises(CertificateRefused, match=REFUSED[kind]) as caught:
        registry.schema(1)
    assert secret_free(caught.value)
    assert wrong.asked == []


@pytest.mark.parametrize("failure", [500, 502, 503, 429, "reset"])
def test_what_may_pass_is_asked_again(
    schemas: LocalSchemaRegistry, gate: Callable[..., Gate], failure: int | str
) -> None:
    number, failing = schemas.register("failing", ORDER), gate()
    failing.failures = [failure] * 3
    assert json.loads(registry_at(failing.url).schema(number).text) == ORDER
    failing.failures = [failure] * 4
    with pytest.raises(RegistryUnavailable):
        registry_at(failing.url).schema(number + 1)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(RegistryUnavailable, match="did not answer"):
        registry_at(f"http://127.0.0.1:{port}", password="hunter2").schema(1)


def test_another_service_s_answer_is_no_unknown_id(schemas: LocalSchemaRegistry, gate: Callable[..., Gate]) -> None:
    """A wrong path must not reject all records of a topic."""
    wrong = registry_at(schemas.url.replace("ccompat/v7", "nothing/here"))
    with pytest.raises(RegistryRefused, match="HTTP 404, and nothing in its protocol"):
        wrong.schema(1)
    proxied = gate()
    proxied.failures = [404, 200, 301]
    for _ in range(3):
        with pytest.raises(RegistryRefused):
            registry_at(proxied.url).schema(1)


@pytest.mark.parametrize("url", ["ftp://a:hunter2@b", "http://", "http://a:b:hunter2", "http://u:hunter2@h/?x=1"])
def test_a_url_that_is_none_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError, match="the URL of the schema registry") as caught:
        registry_at(url)
    assert secret_free(caught.value)


# Records


def test_two_schemas_and_unknown_ids_in_one_batch(schemas: LocalSchemaRegistry) -> None:
    first, second = schemas.register("mixed", ORDER), schemas.register("mixed-2", NEWER)
    proto = schemas.register("mixed-proto", 'syntax = "proto3"; message A { int64 id = 1; }', "PROTOBUF")
    values = [
        framed(first, ORDER, {"id": 1, "customer": "a"}),
        framed(second, NEWER, {"id": 2, "customer": None, "total": Decimal(5), **NESTED[1]}),
        b"\0" + (4_000_000).to_bytes(4, "big") + b"\2\2a",
        framed(first, ORDER, {"id": 3, "customer": "c"}),
        b"\0" + proto.to_bytes(4, "big") + b"\2\2a",
        b"\1" + framed(first, ORDER, {"id": 1, "customer": "a"})[1:],
        b"\0\0",
        framed(first, ORDER, {"id": 4, "customer": "d"})[:-1],
    ]
    schema = Schema((Field("id", pa.int64(), required=True), Field("customer", pa.string())))
    format_ = Avro(registry=registry_at(schemas.url), framing="confluent")
    decoded = format_.decoder(schema, max_record_bytes=1000).decode(pa.array(values, pa.binary()))
    assert decoded.kept.tolist() == [0, 1, 3]
    assert decoded.table.column("id").to_pylist() == [1, 2, 3]
    assert [each.reason for each in decoded.rejects] == [
        "schema 4000000 is not in the registry",
        f"schema {proto} of the registry is PROTOBUF, not AVRO",
        "does not begin with the 5 bytes of confluent framing",
        "does not begin with the 5 bytes of confluent framing",
        "field 'customer' is cut off: the record ends inside it",
    ]


def test_a_registry_that_fails_rejects_nothing(schemas: LocalSchemaRegistry, gate: Callable[..., Gate]) -> None:
    number, failing = schemas.register("rejects-nothing", ORDER), gate()
    failing.failures = [503] * 4
    format_ = Avro(registry=registry_at(failing.url), framing="confluent")
    decoder = format_.decoder(Schema((Field("id", pa.int64()),)), max_record_bytes=1000)
    values = pa.array([framed(number, ORDER, {"id": 1, "customer": "a"})])
    with pytest.raises(RegistryUnavailable):
        decoder.decode(values)
    assert decoder.decode(values).table.to_pylist() == [{"id": 1}]


# Whole runs


def land(
    kafka: LocalKafka,
    topic: str,
    values: list[bytes | None],
    folder: Path,
    registry: dict[str, Any],
    sink: dict[str, Any],
) -> Totals:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
    config = {
        "pipeline": "orders",
        "source": {
            "kafka": {
                "bootstrap_servers": kafka.bootstrap_servers,
                "topics": [topic],
                "format": {"avro": {"registry": registry}},
            }
        },
        "sink": sink,
        "batch": {"interval": "0s", "max_rows": 100, "block_rows": 20},
        "spark": {"master": "local[2]"},
    }
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump(config))
    return run_pipeline(parse(file.read_text(), file), once=True)


def orders(schemas: LocalSchemaRegistry, topic: str) -> list[bytes | None]:
    """Two schemas in turn, and three records that cannot land."""
    first, second = schemas.register(f"{topic}-value", ORDER), schemas.register(f"{topic}-newer", NEWER)
    values: list[bytes | None] = []
    for number in range(100):
        if number % 2:
            values.append(framed(first, ORDER, {"id": number, "customer": f"c{number}"}))
        else:
            values.append(
                framed(
                    second, NEWER, {"id": number, "customer": None, "total": Decimal(number), **NESTED[number % 4 // 2]}
                )
            )
    return [*values, b"\0\0\0\0\0", framed(first, ORDER, {"id": 0, "customer": "x"}) + b"\0", b"{}"]


def reasons(folder: Path) -> set[str]:
    lines = [line for path in (folder / "dead").glob("*.jsonl") for line in path.read_text().splitlines()]
    return {json.loads(line)["reason"] for line in lines}


REASONS = {
    "schema 0 is not in the registry",
    "the record goes on after the last field of its Avro schema",
    "does not begin with the 5 bytes of confluent framing; the value looks like JSON",
}


def test_avro_lands_in_clickhouse(
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    schemas: LocalSchemaRegistry,
    gate: Callable[..., Gate],
    certs: Certificates,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    tmp_path: Path,
) -> None:
    """With a password, TLS and a client certificate, as in production; the table is made from the schemas."""
    topic, table = new_topic(), new_table()
    secure = gate(user="ann", password="hunter2", tls=certs, ask_client=True)
    registry = {"url": secure.url, "user": "ann", "password": "hunter2", "ca_cert": str(certs.authority)}
    registry |= {"client_cert": str(certs.client), "client_key": str(certs.client_key)}
    sink = {"clickhouse": {"url": clickhouse.url, "table": table, "create": True}}
    totals = land(kafka, topic, orders(schemas, topic), tmp_path, registry, sink)
    assert (totals.read, totals.landed, totals.dead_lettered) == (103, 100, 3)
    assert reasons(tmp_path) == REASONS
    rows = clickhouse.ask(f"SELECT id, customer, total FROM {table} ORDER BY id FORMAT JSONCompactEachRow")
    found = [json.loads(line) for line in rows.splitlines()]
    assert [(int(row[0]), row[1]) for row in found] == [(n, f"c{n}" if n % 2 else None) for n in range(100)]
    assert [None if row[2] is None else float(row[2]) for row in found] == [None if n % 2 else n for n in range(100)]
    (nested,) = clickhouse.ask(
        f"SELECT address.city, lines.long, lines.string, tags['x'] FROM {table} WHERE id = 2 FORMAT JSONCompactEachRow"
    ).splitlines()
    assert json.loads(nested) == ["Köln", [1, None, None], [None, None, "a"], 0.5]


def test_avro_lands_in_postgres(
    kafka: LocalKafka,
    postgres: Any,
    schemas: LocalSchemaRegistry,
    certs: Certificates,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    """With TLS of the registry itself."""
    topic = new_topic()
    sink = {"sql": {"url": postgres.url, "table": "avro_orders", "create": True}}
    values, registry = orders(schemas, topic), {"url": schemas.secure_url, "ca_cert": str(certs.authority)}
    totals = land(kafka, topic, values[:50], tmp_path, registry, sink)
    assert (totals.read, totals.landed) == (50, 50)
    totals = land(kafka, topic, values[50:], tmp_path, registry, sink)  # into the table that it made
    assert (totals.read, totals.landed, totals.dead_lettered) == (53, 50, 3)
    assert reasons(tmp_path) == REASONS
    with psycopg.connect(postgres.url.replace("+psycopg", "")) as connection:
        rows = connection.execute("SELECT id, customer, total FROM avro_orders ORDER BY id").fetchall()
        nested = connection.execute("SELECT address, lines, tags FROM avro_orders WHERE id < 3 ORDER BY id").fetchall()
    assert rows == [(n, f"c{n}" if n % 2 else None, None if n % 2 else n) for n in range(100)]
    items = [{"long": 1, "string": None}, None, {"long": None, "string": "a"}]
    assert nested == [(None, [], {}), (None, None, None), ({"city": "Köln"}, items, {"x": 0.5})]


def test_avro_lands_in_iceberg(
    kafka: LocalKafka, schemas: LocalSchemaRegistry, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """The table is made from the schemas; a second run lands in it. The files are read by Arrow: PyIceberg's scan shows a null list of structs as an empty one."""
    topic = new_topic()
    values = orders(schemas, topic)
    sink = {"iceberg": {"table": "db.orders", "create": True}}
    assert land(kafka, topic, values[:50], tmp_path, {"url": schemas.url}, sink).landed == 50
    totals = land(kafka, topic, values[50:], tmp_path, {"url": schemas.url}, sink)
    assert (totals.read, totals.landed, totals.dead_lettered) == (53, 50, 3)
    assert reasons(tmp_path) == REASONS
    catalog = load_catalog("landonce", type="sql", uri=f"sqlite:///{tmp_path}/lake/catalog.db")
    files = [
        task.file.file_path.removeprefix("file://") for task in catalog.load_table("db.orders").scan().plan_files()
    ]
    rows = sorted(pa.concat_tables(map(pq.read_table, files)).to_pylist(), key=lambda row: row["_offset"])
    assert [(row["id"], row["customer"], row["total"], row["_offset"]) for row in rows] == [
        (n, f"c{n}" if n % 2 else None, None if n % 2 else Decimal(n), n) for n in range(100)
    ]
    items = [{"long": 1, "string": None}, None, {"long": None, "string": "a"}]
    assert [(row["address"], row["lines"], row["tags"]) for row in rows[:3]] == [
        (None, [], []),
        (None, None, None),
        ({"city": "Köln"}, items, [("x", 0.5)]),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("spark", [False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "spark"])
def test_the_page_is_true(kafka: LocalKafka, schemas: LocalSchemaRegistry, tmp_path: Path, spark: bool) -> None:
    assert run_page("avro.md", kafka, ("shipments", "clients"), tmp_path, spark=spark, REGISTRY=schemas.url) >= 7
