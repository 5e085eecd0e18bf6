"""Whole runs into an SQL database, in this process, and a judge that asks with plain SQL over a connection of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import yaml
from confluent_kafka import Producer
from pipelines import SmallPipeline

from landonce.engine.pipeline import run_pipeline
from landonce.local import LocalKafka
from landonce.protocol.ledger import Totals
from landonce.sinks.pipeline_file import parse

Ask = Callable[[str], list[tuple[Any, ...]]]


@dataclass
class SqlSite:
    """One pipeline: its topic, its file, its table `events`."""

    kafka: LocalKafka
    folder: Path
    topic: str
    url: str
    ask: Ask
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.folder / "p.yaml"

    @property
    def dead(self) -> Path:
        return self.folder / "dead"

    def write_file(self, *, schema: str | None = None, transform: dict[str, Any] | None = None, **sink: Any) -> None:
        kafka: dict[str, Any] = {"bootstrap_servers": self.kafka.bootstrap_servers, "topics": [self.topic]}
        self.config = {
            "pipeline": "p",
            "source": {"kafka": kafka | ({"schema": schema} if schema else {})},
            "sink": {"sql": {"url": self.url, "table": "events"} | sink},
            "batch": {"interval": "0s", "max_rows": 1000, "block_rows": 200},
            "dead_letters": {"path": "dead"},
            "spark": {"master": "local[2]"},
            **({"transform": transform} if transform else {}),
        }
        self.file.write_text(yaml.safe_dump(self.config))

    def run(self) -> Totals:
        return run_pipeline(parse(self.file.read_text(), self.file), once=True)

    def send(self, *records: tuple[bytes | None, bytes | None], partition: int = 0) -> None:
        """(key, value) each."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "acks": "all"})
        for key, value in records:
            producer.produce(self.topic, value, key=key, partition=partition)
        assert producer.flush(30) == 0

    delete_records = SmallPipeline.delete_records


def asking_sqlite(path: Path) -> Ask:
    def ask(query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
            return connection.execute(query).fetchall()

    return ask


def asking_postgres(url: str) -> Ask:
    def ask(query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else []

    return ask
