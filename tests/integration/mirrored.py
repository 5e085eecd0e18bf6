"""A pipeline of changes into ClickHouse, and the dict that they are replayed in."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from pipelines import SmallPipeline

from landonce.engine.pipeline import run_pipeline
from landonce.protocol.ledger import Totals
from landonce.sinks import deduplicating
from landonce.sinks.pipeline_file import parse

SCHEMA = "id BIGINT, city STRING, n BIGINT NOT NULL"
Row = tuple[str | None, int]
REPLACING = "ReplacingMergeTree(_version, _is_deleted)"


def plain(key: int, row: Row | None, _: Row | None) -> dict[str, Any] | None:
    return None if row is None else {"id": key, "city": row[0], "n": row[1]}


def operation(key: int, row: Row | None, old: Row | None) -> dict[str, Any]:
    word = "d" if row is None else "u" if old else "c"
    return {"op": word, "id": key, **({} if row is None else {"city": row[0], "n": row[1]})}


def debezium(key: int, row: Row | None, old: Row | None) -> dict[str, Any]:
    images = [None if each is None else {"id": key, "city": each[0], "n": each[1]} for each in (old, row)]
    word = "d" if row is None else "u" if old else "c"
    return {"payload": {"op": word, "before": images[0], "after": images[1]}}


def dms(key: int, row: Row | None, old: Row | None) -> dict[str, Any]:
    word = "delete" if row is None else "update" if old else "insert"
    data = {"id": key, "city": None, "n": 0} if row is None else {"id": key, "city": row[0], "n": row[1]}
    before = {} if old is None else {"before-image": {"id": key, "city": old[0], "n": old[1]}}
    return {"data": data, **before, "metadata": {"operation": word, "record-type": "data"}}


SHAPES: dict[str, Callable[[int, Row | None, Row | None], dict[str, Any] | None]] = {
    "upsert": plain,
    "operation": operation,
    "debezium": debezium,
    "dms": dms,
}


@dataclass
class Mirror:
    """A pipeline of changes, and the dict that they are replayed in. A key stays in one partition of the topic."""

    site: SmallPipeline
    mode: str = "upsert"
    partitions: int = 2
    rows: dict[int, Row] = field(default_factory=dict)
    dice: random.Random = field(default_factory=lambda: random.Random(11))
    number: int = 0

    def write_file(self, **sink: Any) -> None:
        site = self.site
        kafka = {"bootstrap_servers": site.kafka.bootstrap_servers, "topics": [site.topic], "schema": SCHEMA}
        section = {
            "url": site.clickhouse.url,
            "table": site.table,
            "create": True,
            "deadline": "1s",
            "mode": "upsert",
            "key": "id",
        }
        document = {
            "pipeline": site.table,
            "source": {"kafka": kafka},
            "sink": {"clickhouse": {**section, "changes": {"mode": self.mode}, **sink}},
            "ledger": {"sqlite": "clicks.ledger"},
            "batch": {"interval": "0s", "max_rows": 200, "block_rows": 30},
            "dead_letters": {"path": "dead"},
        }
        site.file.write_text(yaml.safe_dump(document))

    def change(self, count: int, keys: int = 25) -> None:
        producer = Producer({"bootstrap.servers": self.site.kafka.bootstrap_servers})
        for _ in range(count):
            self.number += 1
            key = self.dice.randrange(keys)
            old = self.rows.get(key)
            new = None if old and self.dice.random() < 0.3 else (self.dice.choice(["Rome", "Oslo", None]), self.number)
            self.send(producer, key, new)
        assert producer.flush(30) == 0

    def send(self, producer: Producer, key: int, new: Row | None) -> None:
        old = self.rows.pop(key, None)
        if new is not None:
            self.rows[key] = new
        value = SHAPES[self.mode](key, new, old)
        body = None if value is None else json.dumps(value)
        producer.produce(self.site.topic, body, key=json.dumps({"id": key}), partition=key % self.partitions)

    def run(self) -> Totals:
        return run_pipeline(parse(self.site.file.read_text(), self.site.file), once=True)

    def merge(self) -> None:
        self.site.clickhouse.ask(f"OPTIMIZE TABLE {self.site.table} FINAL")

    def ask(self, what: str, rest: str = "") -> list[list[Any]]:
        answer = self.site.clickhouse.ask(f"SELECT {what} FROM {self.site.table} {rest} FORMAT JSONCompactEachRow")
        return [json.loads(line) for line in answer.splitlines()]

    def found(self) -> dict[int, Row]:
        rows = self.ask("id, city, n", "FINAL")
        assert len({row[0] for row in rows}) == len(rows), "a key is there twice"
        return {int(key): (city, int(n)) for key, city, n in rows}

    def exact(self) -> None:
        assert self.found() == self.rows
        assert not list(self.site.dead.glob("*.jsonl"))


class Crash(Exception):
    """The worker dies."""


def crash_at(place: str, patch: pytest.MonkeyPatch, times: int = 1, then: Callable[[], None] = lambda: None) -> None:
    """The first `times` workers that come by die there."""
    left = [times]

    def reach(name: str) -> None:
        if name == place and left[0]:
            left[0] -= 1
            then()
            raise Crash(place)

    patch.setattr(deduplicating, "reach", reach)
