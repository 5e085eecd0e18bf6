"""The audit of pipelines that deduplicate, from the topic and the target alone: it finds what is planted, and takes no copy for missing."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from confluent_kafka import Producer
from deliveries import COORDINATES, ask, do
from pipelines import SmallPipeline, landonce
from pyiceberg.catalog import load_catalog

from landonce.dedup.run import run_pipeline
from landonce.local import LocalClickHouse, LocalKafka
from landonce.sinks.pipeline_file import load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
NOW = int(time.time() * 1000) - 7_300_000
"""Kafka removes records that are much older."""

HUGE = 1_000_000
"""An id that the SQL table refuses."""


class ClickHouse:
    """What a test does to a table behind landonce's back."""

    def __init__(self, server: LocalClickHouse, table: str) -> None:
        self.server, self.name = server, table
        do(
            server.url,
            f"CREATE TABLE {table} (id Int64, name String, {COORDINATES}) ENGINE = MergeTree ORDER BY tuple() "
            "SETTINGS non_replicated_deduplication_window = 1000",
        )

    @property
    def sink(self) -> dict[str, Any]:
        return {"clickhouse": {"url": self.server.url, "table": self.name, "deadline": "10s"}}

    ledger = {"ledger": {"sqlite": "p.ledger"}}

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"id": int(each["id"]), "name": each["name"], "at": (int(each["_partition"]), int(each["_offset"]))}
            for each in ask(self.server.url, f"SELECT * FROM {self.name}")
        ]

    def delete(self, partition: int, offset: int) -> None:
        where = f"_partition = {partition} AND _offset = {offset}"
        do(self.server.url, f"ALTER TABLE {self.name} DELETE WHERE {where} SETTINGS mutations_sync = 2")

    def add(self, row: dict[str, Any], topic: str, partition: int, offset: int) -> None:
        do(
            self.server.url,
            f"INSERT INTO {self.name} VALUES ({row['id']}, '{row['name']}', '{topic}', {partition}, {offset})",
        )


class Sqlite:
    ledger: dict[str, Any] = {}

    def __init__(self, folder: Path) -> None:
        self.path = folder / "t.db"
        self._do(
            "CREATE TABLE events (id BIGINT, name TEXT, _topic TEXT NOT NULL, _partition INTEGER NOT NULL, "
            f"_offset BIGINT NOT NULL, UNIQUE (_topic, _partition, _offset), CHECK (id < {HUGE}))"
        )
        self.sink = {"sql": {"url": "sqlite:///t.db", "table": "events"}}

    def _do(self, query: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
            return connection.execute(query, values).fetchall()

    def rows(self) -> list[dict[str, Any]]:
        found = self._do("SELECT id, name, _partition, _offset FROM events")
        return [{"id": id_, "name": name, "at": (partition, offset)} for id_, name, partition, offset in found]

    def delete(self, partition: int, offset: int) -> None:
        self._do("DELETE FROM events WHERE _partition = ? AND _offset = ?", partition, offset)

    def add(self, row: dict[str, Any], topic: str, partition: int, offset: int) -> None:
        self._do("INSERT INTO events VALUES (?, ?, ?, ?, ?)", row["id"], row["name"], topic, partition, offset)


class Iceberg:
    ledger: dict[str, Any] = {}

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sink = {"iceberg": {"table": "db.events", "create": True}}

    def _table(self) -> Any:
        uri = f"sqlite:///{self.folder}/lake/catalog.db"
        return load_catalog("landonce", type="sql", uri=uri).load_table("db.events")

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"id": each["id"], "name": each["name"], "at": (each["_kafka_partition"], each["_offset"])}
            for each in self._table().scan().to_arrow().to_pylist()
        ]

    def delete(self, partition: int, offset: int) -> None:
        self._table().delete(f"_kafka_partition == {partition} and _offset == {offset}")

    def add(self, row: dict[str, Any], topic: str, partition: int, offset: int) -> None:
        table = self._table()
        schema = table.schema().as_arrow()
        made = {**row, "_topic": topic, "_kafka_partition": partition, "_offset": offset}
        table.append(pa.Table.from_pylist([{name: made.get(name) for name in schema.names}], schema))


@dataclass
class Site:
    kafka: LocalKafka
    folder: Path
    topic: str
    target: Any

    @property
    def file(self) -> Path:
        return self.folder / "p.yaml"

    def write_file(self, dedup: dict[str, Any] | None = None, **more: Any) -> None:
        kafka = {
            "bootstrap_servers": self.kafka.bootstrap_servers,
            "topics": [self.topic],
            "schema": "id BIGINT, name STRING",
        }
        document = {
            "pipeline": "p",
            "source": {"kafka": kafka},
            "sink": self.target.sink,
            "batch": {"interval": "0s", "max_rows": 100},
            "dead_letters": {"path": "dead"},
            "dedup": dedup or {"key": ["id"]},
            "spark": {"master": "local[2]"},
            **self.target.ledger,
            **more,
        }
        self.file.write_text(yaml.safe_dump(document))

    def run(self) -> Any:
        return run_pipeline(load(self.file), once=True)

    def send(self, values: Any, partition: int = 0, timestamp: int = NOW, **more: Any) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "acks": "all"})
        for each in values:
            content = each if isinstance(each, bytes) else json.dumps(each).encode()
            producer.produce(self.topic, content, partition=partition, timestamp=timestamp, **more)
        assert producer.flush(30) == 0

    delete_records = SmallPipeline.delete_records


@pytest.fixture
def clickhouse_site(
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    tmp_path: Path,
) -> Site:
    return Site(kafka, tmp_path, new_topic(2), ClickHouse(clickhouse, new_table()))


@pytest.fixture
def sqlite_site(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> Site:
    return Site(kafka, tmp_path, new_topic(2), Sqlite(tmp_path))


@pytest.fixture
def iceberg_site(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> Site:
    return Site(kafka, tmp_path, new_topic(2), Iceberg(tmp_path))


@pytest.fixture
def verify(capsys, monkeypatch):
    """What the audit says, if it ends with this exit code."""

    def verified(site: Site, code: int = 0, *options: str) -> Any:
        said = landonce(capsys, monkeypatch, "verify", site.file, *options)
        assert said.code == code, said.out + said.err
        return said.json if "--json" in options else said.out

    return verified


def events(count: int = 300, seed: int = 1) -> list[dict[str, Any]]:
    """About a third are copies, near and far."""
    chance = random.Random(seed)
    made: list[dict[str, Any]] = []
    for number in range(count):
        copied = made and chance.random() < 0.3
        made.append(dict(chance.choice(made)) if copied else {"id": number, "name": f"n{number}"})
    return made


@pytest.mark.parametrize(
    "where", ["clickhouse", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("iceberg", "sqlite"))]
)
def test_copies_are_not_missing_and_planted_faults_are_found(where, request, verify) -> None:
    """The store is gone by then: the audit asks nothing of it."""
    site: Site = request.getfixturevalue(f"{where}_site")
    site.write_file({"key": ["id"], "store": {"sqlite": "keys.db"}})
    everything = events()
    distinct = len({each["id"] for each in everything})
    for partition in range(2):
        site.send(everything[partition::2], partition)
    site.send([b"no json"])
    site.run()
    (site.folder / "keys.db").unlink()

    document = verify(site, 0, "--json", "--values")
    totals = document["totals"]
    counted = {"read": 301, "landed": distinct, "dead_lettered": 1, "copies": 300 - distinct, "twice": 0, "missing": 0}
    assert totals | counted == totals
    assert document["events"]["events"] == distinct
    assert f"{distinct} landed, 1 dead-lettered, 0 filtered, {300 - distinct} copies" in " ".join(verify(site).split())

    rows = site.target.rows()
    victim = rows[7]
    site.target.delete(*victim["at"])
    document = verify(site, 1, "--json")
    assert (document["totals"]["missing"], document["totals"]["twice"]) == (1, 0)
    (sample,) = document["events"]["samples"]
    assert (sample["fault"], sample["key"]) == ("missing", f"id = {victim['id']}")
    assert f"missing: no record of the event is in the target (id = {victim['id']})" in verify(site, 1)
    site.target.add({"id": victim["id"], "name": victim["name"]}, site.topic, *victim["at"])
    verify(site)

    landed = {each["id"]: each["at"] for each in rows}
    copy_at, copy = next(
        ((partition, at), each)
        for partition in range(2)
        for at, each in enumerate(everything[partition::2])
        if landed[each["id"]] != (partition, at)
    )
    site.target.add(copy, site.topic, *copy_at)
    document = verify(site, 1, "--json")
    assert (document["totals"]["missing"], document["totals"]["twice"]) == (0, 1)
    (sample,) = document["events"]["samples"]
    found = {(sample["partition"], sample["offset"]), tuple(sample["landed_from"][1:])}
    assert found == {copy_at, landed[copy["id"]]}
    site.target.delete(*copy_at)

    site.target.delete(*victim["at"])
    site.target.add({"id": victim["id"], "name": "meddled"}, site.topic, *victim["at"])
    verify(site)
    document = verify(site, 1, "--json", "--values")
    assert document["totals"] | {"changed": 1, "missing": 0, "twice": 0} == document["totals"]

    site.target.delete(*victim["at"])
    site.target.add({"id": victim["id"], "name": victim["name"]}, site.topic, 1, 5000)
    document = verify(site, 1, "--json")
    assert document["totals"] | {"missing": 1, "in_flight": 1} == document["totals"]


def test_a_row_of_a_copy_in_place_of_the_first_record_is_fine_if_it_is_alone(sqlite_site, verify) -> None:
    """Which record of an event is first is the store's business; that one of them landed, the audit's."""
    site = sqlite_site
    site.write_file()
    site.send([{"id": 1, "name": "a"}, {"id": 1, "name": "b"}])
    site.run()
    site.target.delete(0, 0)
    site.target.add({"id": 1, "name": "b"}, site.topic, 0, 1)
    assert verify(site, 0, "--json", "--values")["events"]["landed"] == 1


def test_events_may_land_again_only_outside_of_the_window(sqlite_site, verify) -> None:
    site = sqlite_site
    site.write_file({"key": ["id"], "ttl": "1h"})
    site.send([{"id": 1, "name": "a"}], timestamp=NOW)
    site.send([{"id": 1, "name": "a"}], timestamp=NOW + 3_600_000)
    site.send([{"id": 1, "name": "a"}], timestamp=NOW + 7_200_001)
    site.run()
    site.target.add({"id": 1, "name": "a"}, site.topic, 0, 2)
    said = verify(site, 0)
    assert "1 events landed again, farther apart than the window of 3600 s" in said
    site.target.add({"id": 1, "name": "a"}, site.topic, 0, 1)
    assert verify(site, 1, "--json")["totals"]["twice"] == 1


def test_events_that_could_not_land_are_dead_letters_once(sqlite_site, verify) -> None:
    """Null keys and broken records are refused when they come; what the target refuses, after it was accepted."""
    site = sqlite_site
    site.write_file()
    site.send([{"id": 1, "name": "a"}, {"id": None, "name": "a"}, b"{", {"id": HUGE, "name": "big"}])
    site.send([{"id": HUGE, "name": "big"}, {"id": 1, "name": "a"}], partition=1)
    assert site.run().sentence() == "6 read = 2 new + 2 copies + 2 dead-lettered; 1 landed, 1 dead-lettered"
    document = verify(site, 0, "--json")
    totals = {"read": 6, "landed": 1, "dead_lettered": 3, "copies": 2}
    assert document["totals"] | totals == document["totals"]
    assert document["events"]["dead_lettered"] == 1
    (letters,) = (site.folder / "dead" / "pushed").glob("*.jsonl")
    letters.unlink()
    assert verify(site, 1, "--json")["totals"]["missing"] == 1


def test_late_events_are_dead_letters_if_they_are_old_enough(sqlite_site, verify) -> None:
    site = sqlite_site
    site.write_file({"key": ["id"], "ttl": "1h"})
    site.send([{"id": 1, "name": "a"}])
    site.run()
    site.target._do("UPDATE landonce_dedup_scope SET horizon = ?", NOW + 1)
    site.send([{"id": 1, "name": "a"}, {"id": 2, "name": "a"}])
    assert site.run().sentence() == "2 read = 0 new + 0 copies + 2 dead-lettered (2 late); 0 landed"
    document = verify(site, 0, "--json")
    assert document["totals"] | {"landed": 1, "dead_lettered": 2, "copies": 0} == document["totals"]
    site.target._do("UPDATE landonce_dedup_scope SET horizon = ?", NOW + 10_000_000)
    site.send([{"id": 3, "name": "a"}], timestamp=NOW + 7_200_000)
    site.run()
    document = verify(site, 1, "--json")
    assert document["totals"] | {"missing": 1, "unexpected": 1} == document["totals"], "it is younger than the window"


def test_events_that_landed_before_the_topic_begins_are_not_missing(clickhouse_site, verify) -> None:
    site = clickhouse_site
    site.write_file()
    site.send([{"id": at, "name": "a"} for at in range(10)])
    site.send([{"id": at, "name": "a"} for at in range(8, 15)])
    site.run()
    site.delete_records(10)
    document = verify(site, 0, "--json")
    assert document["events"] | {"below": 2, "missing": 0, "copies": 2, "landed": 5} == document["events"]
    site.target.delete(0, 9)
    assert verify(site, 1, "--json")["totals"]["missing"] == 1, "neither below nor here"


def test_keys_that_the_table_does_not_hold_prove_nothing_below_the_topic(sqlite_site, verify) -> None:
    site = sqlite_site
    site.write_file({"key": [{"kafka_key": True}, {"header": "source"}]})
    for at in range(6):
        site.send([{"id": at, "name": "a"}], key=f"k{at % 3}".encode(), headers=[("source", b"s")])
    site.run()
    document = verify(site, 0, "--json")
    assert document["events"] | {"events": 3, "landed": 3, "copies": 3} == document["events"]
    site.target.delete(0, 2)
    (sample,) = verify(site, 1, "--json")["events"]["samples"]
    assert sample["key"] == "Kafka key b'k2', header source b's'"
    site.delete_records(2)
    assert verify(site, 0, "--json")["events"]["not_judged"] == {"below": 3}


def test_an_event_whose_first_record_is_not_pushed_yet_is_not_missing(sqlite_site, verify) -> None:
    site = sqlite_site
    site.write_file()
    site.send([{"id": 1, "name": "a"}])
    site.run()
    site.target.delete(0, 0)
    site.send([{"id": 1, "name": "a"}], partition=1)
    document = verify(site, 0, "--json")
    assert document["events"]["not_judged"] == {"waiting": 1}
    assert verify(site, 1, "--json", "--to-end")["totals"]["missing"] == 1


def test_an_event_may_have_landed_through_another_pipeline_of_its_scope(
    sqlite_site, new_topic, tmp_path, verify
) -> None:
    site = sqlite_site
    scope = {"key": ["id"], "scope": "shared", "store": {"sqlite": str(tmp_path / "store")}}
    site.write_file(scope)
    site.send([{"id": 1, "name": "a"}, {"id": 2, "name": "a"}])
    site.run()
    verify(site)
    other = tmp_path / "other"
    other.mkdir()
    second = Site(site.kafka, other, new_topic(2), Sqlite(other))
    second.write_file(scope, pipeline="q")
    second.send([{"id": 2, "name": "a"}, {"id": 3, "name": "a"}])
    second.run()
    assert [each["id"] for each in second.target.rows()] == [3]
    assert verify(second, 0, "--json")["events"]["not_judged"] == {"elsewhere": 1}
