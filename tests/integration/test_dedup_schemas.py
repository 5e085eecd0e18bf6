"""Keys that schemas mark, with a real registry: versions evolve while events wait in the store, and a version with another key is refused."""

from __future__ import annotations

import io
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
import pytest
import yaml
from confluent_kafka import Producer
from running import running
from schema_registry import LocalSchemaRegistry

import landonce
from landonce.check import check_pipeline
from landonce.dedup.run import Both
from landonce.errors import KeyRuleChanged
from landonce.local import LocalKafka
from landonce.protocol.ledger import Totals
from landonce.read.formats.protobuf.source import OWN, Messages, compile_text, message_class
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import Pipeline, parse
from landonce.verify.audit import opened_audit

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

MARK = "landonce.dedup_key"


@pytest.fixture(scope="module")
def schemas(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSchemaRegistry]:
    with running(LocalSchemaRegistry(tmp_path_factory.mktemp("registry"))) as server:
        yield server


def avro_order(number: Any, *fields: dict[str, Any], name: str = "Order") -> dict[str, Any]:
    shop = {"name": "shop", "type": "string", MARK: 1}
    return {"type": "record", "name": name, "namespace": "shop", "fields": [*fields, shop, number]}


NUMBER = {"name": "number", "type": "int", MARK: 2}
AMOUNT = {"name": "amount", "type": "int"}
FIRST = avro_order(NUMBER, AMOUNT)
WIDER = avro_order(
    {**NUMBER, "type": "long"},
    {**AMOUNT, "type": ["null", "long"], "doc": "deprecated"},
    {"name": "note", "type": "string"},
)
OTHER_KEY = avro_order({"name": "number", "type": "int"}, AMOUNT)

PROTO = """syntax = "proto3"; package shop; import "landonce/dedup.proto";
message Order { string shop = 1 [(landonce.dedup_key) = 1]; %s number = 2 %s; %s }"""
SECOND = "[(landonce.dedup_key) = 2]"
FIRST_PROTO = PROTO % ("int32", SECOND, "int32 amount = 3;")
WIDER_PROTO = PROTO % ("int64", SECOND, "int64 amount = 3 [deprecated = true]; string note = 4;")
OTHER_PROTO = PROTO % ("int32", "", "int32 amount = 3;")


@cache
def _message(text: str) -> Any:
    messages = Messages(compile_text(text, {}))
    return message_class(messages.find(messages.names()[0]))


@dataclass
class Site:
    """A topic of orders whose schemas are in the registry, and a table."""

    kafka: LocalKafka
    schemas: LocalSchemaRegistry
    topic: str
    folder: Path
    kind: str
    more: dict[str, Any] = field(default_factory=dict)
    """Of the format's section."""
    references: tuple[dict[str, Any], ...] = ()

    def send(self, schema: Any, orders: list[dict[str, Any]], subject: str = "") -> None:
        number = self.schemas.register(subject or f"{self.topic}-value", schema, self.kind, self.references)
        head = b"\0" + number.to_bytes(4, "big") + (b"\0" if self.kind == "PROTOBUF" else b"")
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for each in orders:
            producer.produce(self.topic, head + self._body(schema, each), partition=0)
        assert producer.flush(30) == 0

    def _body(self, schema: Any, order: dict[str, Any]) -> bytes:
        if self.kind == "PROTOBUF":
            return bytes(_message(schema)(**order).SerializeToString())
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), order)
        return stream.getvalue()

    def config(self, dedup: dict[str, Any]) -> Pipeline:
        format_ = {self.kind.lower(): {"registry": {"url": self.schemas.url}, **self.more}}
        kafka = {"bootstrap_servers": self.kafka.bootstrap_servers, "topics": [self.topic], "format": format_}
        document = {
            "pipeline": "orders",
            "source": {"kafka": {**kafka, "schema": "shop STRING, number BIGINT, amount BIGINT, note STRING"}},
            "sink": {"sql": {"url": "sqlite:///orders.db", "table": "orders", "create": True}},
            "dedup": dedup,
            "spark": {"master": "local[2]"},
        }
        return parse(yaml.safe_dump(document), self.folder / "orders.yaml")

    def run(self, dedup: dict[str, Any]) -> Totals:
        return landonce.run_pipeline(self.config(dedup), once=True)

    def rows(self) -> Counter[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "orders.db")) as database:
            return Counter(database.execute("SELECT shop, number, amount, note FROM orders"))

    def audited(self, dedup: dict[str, Any]) -> None:
        with opened_audit(open_parts(self.config(dedup)), values=True) as audit:
            assert audit.audit().exact


both = pytest.mark.parametrize("site", ["AVRO", "PROTOBUF"], indirect=True)


@pytest.fixture
def site(
    request: pytest.FixtureRequest,
    kafka: LocalKafka,
    schemas: LocalSchemaRegistry,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> Site:
    return Site(kafka, schemas, new_topic(), tmp_path, getattr(request, "param", "AVRO"))


def orders(first: int, end: int, **more: Any) -> list[dict[str, Any]]:
    return [{"shop": f"shop-{at % 3}", "number": at, "amount": at * 10, **more} for at in range(first, end)]


MARKED = {"key": "schema"}


@both
def test_versions_evolve_while_events_wait_in_the_store(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first, wider = (FIRST, WIDER) if site.kind == "AVRO" else (FIRST_PROTO, WIDER_PROTO)
    site.send(first, orders(0, 50) + orders(0, 20))
    with monkeypatch.context() as patch:
        patch.setattr(Both, "_push", lambda _: None)  # the target is unreachable
        assert site.run(MARKED).landed == 50
    assert not site.rows()
    site.send(wider, orders(30, 80, note="n"))
    site.send(first, orders(70, 90))
    totals = site.run(MARKED)
    assert (totals.read, totals.landed, totals.dead_lettered) == (70, 40, 0)
    expected = [(each, None) for each in orders(0, 50)] + [(each, "n") for each in orders(50, 80)]
    expected += [(each, None) for each in orders(80, 90)]
    assert {(shop, number, amount, note or None) for shop, number, amount, note in site.rows()} == {
        (each["shop"], each["number"], each["amount"], note) for each, note in expected
    }
    assert site.rows().total() == 90
    site.audited(MARKED)
    # The same key in the file is the same rule: the store needs no new ids.
    named = {"key": ["shop", "number"]}
    site.send(first, orders(0, 90))
    assert site.run(named).landed == 0
    site.audited(named)


@both
def test_a_version_with_another_key_is_refused_and_both_rules_are_named(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = (FIRST, OTHER_KEY) if site.kind == "AVRO" else (FIRST_PROTO, OTHER_PROTO)
    site.send(first, orders(0, 10))
    assert site.run(MARKED).landed == 10
    # Another subject, as a producer with another way of naming has it: Apicurio does not compare the two.
    site.send(other, orders(5, 15), subject=f"{site.topic}-other")
    with pytest.raises(KeyRuleChanged, match=r"different keys: shop.Order \[shop, number\], shop.Order \[shop\]"):
        site.run(MARKED)
    monkeypatch.setattr("landonce.read.sample._PER_PARTITION", 10)  # the start does not see it; a worker does
    with pytest.raises(KeyRuleChanged, match=r"shop.Order marks \[shop\] as .* made by \[shop, number\]") as error:
        site.run(MARKED)
    assert "No event of this batch was accepted" in error.value.safe
    assert site.rows().total() == 10
    # What the error says helps: with the key in the file, the schemas do not matter.
    assert site.run({"key": ["shop", "number"]}).landed == 5
    assert site.rows().total() == 15


def test_each_type_has_its_own_key(site: Site) -> None:
    refund = avro_order({"name": "number", "type": "int"}, AMOUNT, name="Refund")
    by_type = {"by": "_record_type", "rules": {"shop.Order": "schema", "shop.Refund": "schema"}}
    site.send(FIRST, orders(0, 10) * 2, subject=f"{site.topic}-shop.Order")
    site.send(refund, orders(0, 10) * 2, subject=f"{site.topic}-shop.Refund")
    assert site.run(by_type).landed == 13
    shops = Counter(shop for shop, *_ in site.rows().elements())
    assert shops == {"shop-0": 5, "shop-1": 4, "shop-2": 4}
    site.audited(by_type)


@pytest.mark.parametrize("site", ["PROTOBUF"], indirect=True)
def test_other_messages_than_the_wanted_one_are_dead_letters(site: Site) -> None:
    """Whatever key they mark, or none: no event of theirs is accepted."""
    site.more = {"message": "shop.Order"}
    refund = FIRST_PROTO.replace("Order", "Refund").replace(SECOND, "")
    site.send(FIRST_PROTO, orders(0, 10))
    assert site.run(MARKED).landed == 10
    site.send(refund, orders(5, 15), subject=f"{site.topic}-shop.Refund")
    site.send(FIRST_PROTO, orders(8, 12))
    totals = site.run(MARKED)
    assert (totals.read, totals.landed, totals.dead_lettered) == (14, 2, 10)
    assert site.rows().total() == 12
    letters = [json.loads(line) for each in site.folder.rglob("*.jsonl") for line in each.read_text().splitlines()]
    assert {each["reason"] for each in letters} == {"is a shop.Refund, not a shop.Order"}
    site.audited(MARKED)


@pytest.mark.parametrize("site", ["PROTOBUF"], indirect=True)
def test_the_file_of_marks_may_be_registered_as_a_reference(site: Site) -> None:
    """Registries that resolve imports want that."""
    name = "landonce/dedup.proto"
    site.schemas.register(name, OWN.read_text(), "PROTOBUF")
    site.references = ({"name": name, "subject": name, "version": 1},)
    referring = FIRST_PROTO + "\n// with a reference"
    site.send(referring, orders(0, 10) * 2)
    assert site.run(MARKED).landed == 10


@both
def test_the_registry_says_the_key_before_the_first_record(site: Site) -> None:
    first = FIRST if site.kind == "AVRO" else FIRST_PROTO
    findings = [each for each in _check(site) if "no schema of the records is known yet" in each]
    assert findings
    site.schemas.register(f"{site.topic}-value", first if isinstance(first, str) else json.dumps(first), site.kind)
    assert any("are one event: shop (string), number (integer)" in each for each in _check(site))
    assert site.run(MARKED).read == 0
    site.send(first, orders(0, 5) * 2)
    assert site.run(MARKED).landed == 5


def _check(site: Site) -> list[str]:
    found = check_pipeline(open_parts(site.config(MARKED)))
    return [each.what for section in found.sections for each in section.findings]
