"""A pipeline into each kind of target whose dead letters are replayed, and what the target holds, read without landonce."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from confluent_kafka import Producer
from pipelines import Said, landonce
from pyiceberg.catalog import Catalog, load_catalog

import landonce as library
from landonce.engine.dead_letters import committed
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import LedgerState, Totals
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import load

KINDS = ("sqlite", "clickhouse", "iceberg", "fan-out")
REFUSING = ("upsert", "wrapped", "dedup")
"""Kinds whose letters cannot land later."""
_OUTSIDE = ("clickhouse", "evolving", "routed", "fan-out", "wrapped")
"""Kinds with a ledger outside of the target."""
_FILE_PER_BLOCK = Path(__file__).parents[2] / "examples" / "wrap" / "file_per_block.py"
SCHEMA = "id BIGINT NOT NULL, name STRING"


@dataclass
class Replayed:
    """One topic, one file, one table (two in a fan-out)."""

    kind: str
    kafka: LocalKafka
    clickhouse: LocalClickHouse | None
    folder: Path
    topic: str
    table: str
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    schema: str = SCHEMA
    source: dict[str, Any] = field(default_factory=dict)
    dead_letters: dict[str, Any] = field(default_factory=dict)
    database: str = ""
    """The URL of a PostgreSQL database."""
    more: dict[str, Any] = field(default_factory=dict)
    """Other sections of the file."""

    @property
    def file(self) -> Path:
        return self.folder / "pipe.yaml"

    @property
    def dead(self) -> Path:
        return self.folder / "dead"

    def write_file(self) -> None:
        sql = {"url": f"sqlite:///{self.folder}/target.db", "table": "events", "create": True}
        server = {
            "url": self.clickhouse.url if self.clickhouse is not None else "",
            "create": True,
            "deadline": "1s",
        }
        routes = [{"table": f"{self.table}_{name}", "match": match} for name, match in (("a", "a.*"), ("b", "[^a].*"))]
        sinks: dict[str, Any] = {
            "sqlite": {"sql": sql},
            "postgres": {"sql": {**sql, "url": self.database}},
            "upsert": {"sql": {**sql, "mode": "upsert", "key": "id"}},
            "wrapped": {
                "wrapped": {"sink": f"{self._module}:sink", "options": {"folder": str(self.folder / "pushed")}}
            },
            "dedup": {"sql": sql},
            "clickhouse": {"clickhouse": {**server, "table": self.table}},
            "evolving": {"clickhouse": {**server, "table": self.table, "evolve": True}},
            "routed": {"clickhouse": {**server, "route_field": "name", "tables": routes}},
            "iceberg": {"iceberg": {"table": "db.events", "create": True}},
            "fan-out": {
                "iceberg": {
                    "create": True,
                    "route_field": "name",
                    "tables": [{"table": "db.a", "match": "a.*"}, {"table": "db.rest", "match": "[^a].*"}],
                }
            },
        }
        kafka = {"bootstrap_servers": self.kafka.bootstrap_servers, "topics": [self.topic], "schema": self.schema}
        document = {
            "pipeline": "pipe",
            "source": {"kafka": kafka | self.source},
            "sink": sinks[self.kind],
            "batch": {"interval": "0s", "max_rows": 1000, "block_rows": 200},
            "dead_letters": {"path": "dead", **self.dead_letters},
            "spark": {"master": "local[2]"},
            **({"ledger": {"sqlite": "pipe.ledger"}} if self.kind in _OUTSIDE else {}),
            **({"dedup": {"key": ["id"]}} if self.kind == "dedup" else {}),
            **self.more,
        }
        if self.kind == "wrapped":
            shutil.copy(_FILE_PER_BLOCK, self.folder / f"{self._module}.py")
        self.file.write_text(yaml.safe_dump(document))

    @property
    def _module(self) -> str:
        """Of its own: a test process may import it from another folder, too."""
        return "sink_" + "".join(each if each.isalnum() else "_" for each in self.topic)

    def send(self, *values: bytes | None, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for number, value in enumerate(values):
            producer.produce(
                self.topic, value, key=f"k{number}".encode(), partition=partition, headers=[("n", str(number).encode())]
            )
        assert producer.flush(30) == 0

    def run(self) -> Totals:
        found = library.run_pipeline(load(self.file), once=True)
        return Totals(found.landed, found.dead_lettered, found.filtered)

    def landonce(self, *arguments: object) -> Said:
        command, *rest = arguments
        words = str(command).split()
        return landonce(self.capsys, self.monkeypatch, *words, self.file, *rest)

    def rows(self) -> list[tuple[int, int, int, str]]:
        """(partition, offset, id, name) of all rows, in order; a row that is twice is there twice."""
        if self.kind in ("sqlite", "upsert", "dedup"):
            with closing(sqlite3.connect(self.folder / "target.db")) as connection:
                found = connection.execute("SELECT _partition, _offset, id, name FROM events").fetchall()
        elif self.kind in ("clickhouse", "evolving", "routed"):
            found = self.ask("_partition, _offset, id, name")
        elif self.kind == "postgres":
            with psycopg.connect(self.database.replace("+psycopg", "")) as connection:
                found = connection.execute("SELECT _partition, _offset, id, name FROM events").fetchall()
        elif self.kind == "wrapped":
            lines = [line for path in self.folder.glob("pushed/[!.]*") for line in path.read_text().splitlines()]
            found = [(row["_partition"], row["_offset"], row["id"], row["name"]) for row in map(json.loads, lines)]
        else:
            found = [row for table in self._tables() for row in self._held(table)]
        return sorted((int(number), int(offset), int(id_), str(name)) for number, offset, id_, name in found)

    def ask(self, columns: str) -> list[tuple[Any, ...]]:
        """Of all rows in ClickHouse."""
        assert self.clickhouse is not None
        tables = [f"{self.table}_a", f"{self.table}_b"] if self.kind == "routed" else [self.table]
        answers = [self.clickhouse.ask(f"SELECT {columns} FROM {each} FORMAT JSONCompactEachRow") for each in tables]
        return [tuple(json.loads(line)) for answer in answers for line in answer.splitlines()]

    def _tables(self) -> list[str]:
        return ["db.events"] if self.kind == "iceberg" else ["db.a", "db.rest"]

    @property
    def _catalog(self) -> Catalog:
        lake = self.folder / "lake"
        return load_catalog("landonce", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")

    def _held(self, name: str) -> list[tuple[Any, ...]]:
        if not self._catalog.table_exists(name):
            return []
        held = self._catalog.load_table(name).scan().to_arrow()
        return list(
            zip(*(held[each].to_pylist() for each in ("_kafka_partition", "_offset", "id", "name")), strict=True)
        )

    def forget(self, offset: int) -> None:
        """Somebody removes this row."""
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.folder / "target.db")) as connection, connection:
                connection.execute(f"DELETE FROM events WHERE _offset = {offset}")
        elif self.kind == "clickhouse":
            assert self.clickhouse is not None
            self.clickhouse.ask(f"SYSTEM START MERGES {self.table}")  # a mutation waits for them
            self.clickhouse.ask(f"ALTER TABLE {self.table} DELETE WHERE _offset = {offset} SETTINGS mutations_sync = 2")
        else:
            for name in self._tables():
                if self._catalog.table_exists(name):
                    self._catalog.load_table(name).delete(f"_offset = {offset}")

    def offsets(self) -> list[int]:
        return [offset for _, offset, _, _ in self.rows()]

    def letters(self) -> list[int]:
        """Also those of events that were accepted and did not land."""
        folders = [each for each in (self.dead, self.dead / "pushed") if each.is_dir()]
        return sorted(int(each["offset"]) for folder in folders for each in committed(folder, "pipe"))

    def state(self) -> LedgerState:
        parts = open_parts(load(self.file))
        with closing(parts.ledger):
            state = parts.ledger.load()
        assert state is not None
        return state

    def left(self) -> list[str]:
        """What is in the folder of dead letters beside letters and what an audit needs."""
        return sorted(
            path.name for path in self.dead.glob("*") if path.suffix not in (".jsonl", ".replayed", ".dropped")
        )


def event(number: int, name: str = "b") -> bytes:
    return json.dumps({"id": number, "name": f"{name}{number}"}).encode()


def row(number: int, name: str = "b", partition: int = 0) -> tuple[int, int, int, str]:
    return partition, number, number, f"{name}{number}"
