"""Records that change rows, under kills: after every batch the table is what a dict is that the changes were replayed in.

Keys move between partitions of the table, partition values are null at times, and rows are deleted and come back. The driver
is killed with the merge staged and not published, published and not recorded, and with files that wait for Spark; or, with equality
deletes, with files of rows and deletes that are not committed, or committed and not recorded. Spark reads what has equality deletes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from string import Template

import iceberg_oracle
import pytest
from confluent_kafka import Producer
from harness import Drivers, Home
from pyspark.sql import SparkSession
from scene import freeze, wake

from landonce.config.model import Spark
from landonce.engine.spark.session import open_session
from landonce.jars import spark_jars
from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

_PIPELINE = Template("""\
pipeline: chaos
source:
  kafka: {bootstrap_servers: "$bootstrap", topics: [$topic], schema: "id BIGINT, city STRING, n BIGINT"}
sink:
  iceberg:
    table: db.people
    create: true
    identity: id
    partition_by: [city, "bucket(4, id)"]
    properties: {format-version: $version}
    changes: {mode: operation, field: op}
    write: $write
batch: {interval: 0s, max_rows: 1000, block_rows: 40}
dead_letters: {path: dead}
stall: 60s
spark: {master: "local[2]"}
""")
_TAKEN = 1
"""Commits before that of the first batch: taking the table. A new one is bound by another."""

KILLS = [("files.after", 0), ("attempt.before", _TAKEN), ("attempt.after", _TAKEN), ("commit.after", 0)]
"""With files that wait for Spark, the merge staged and not published, published and not recorded, and recorded."""


class People:
    """The changes, and the dict that they are replayed in. A key stays in one partition of the topic."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.rows: dict[int, tuple[str | None, int]] = {}
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._topic = topic
        self._random = random.Random(7)
        self._number = 0

    def change(self, count: int) -> None:
        for _ in range(count):
            self._number += 1
            key = self._random.randrange(60)
            if key in self.rows and self._random.random() < 0.3:
                del self.rows[key]
                change: dict[str, object] = {"op": "d", "id": key}
            else:
                city = self._random.choice(["Rome", "Oslo", "Bern", None])
                change = {"op": "u" if key in self.rows else "c", "id": key, "city": city, "n": self._number}
                self.rows[key] = (city, self._number)
            self._producer.produce(self._topic, json.dumps(change), partition=key % 2)
        assert self._producer.flush(30) == 0


def found(folder: Path) -> dict[int, tuple[str | None, int]]:
    rows = iceberg_oracle.embedded(folder).load_table("db.people").scan().to_arrow().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows), "a key is there twice"
    return {row["id"]: (row["city"], row["n"]) for row in rows}


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    session = open_session(
        "oracle", Spark(master="local[1]"), expressions=False, extra={"spark.jars": ",".join(map(str, spark_jars()))}
    )
    yield session
    session.stop()


def found_by_spark(session: SparkSession, folder: Path) -> dict[int, tuple[str | None, int]]:
    own = session.newSession()
    for key, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{folder}/lake/catalog.db",
        ".warehouse": f"file://{folder}/lake",
        ".jdbc.schema-version": "V1",
    }.items():
        own.conf.set(f"spark.sql.catalog.landonce{key}", value)
    rows = own.table("landonce.db.people").collect()
    assert len({row["id"] for row in rows}) == len(rows), "a key is there twice"
    return {row["id"]: (row["city"], row["n"]) for row in rows}


def branches(folder: Path) -> set[str]:
    return set(iceberg_oracle.embedded(folder).load_table("db.people").metadata.refs)


@pytest.mark.parametrize(
    ("version", "kills"),
    [
        pytest.param(2, [KILLS[2]], id="2-some"),
        pytest.param(2, KILLS, id="2", marks=pytest.mark.long),
        pytest.param(3, KILLS, id="3", marks=pytest.mark.long),
    ],
)
def test_the_table_is_the_dict_after_every_batch(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], version: int, kills: list[tuple[str, int]]
) -> None:
    topic = new_topic(partitions=2)
    home = Home(tmp_path)
    home.save(_PIPELINE.substitute(bootstrap=kafka.bootstrap_servers, topic=topic, version=version, write="merge"))
    people = People(kafka.bootstrap_servers, topic)
    with Drivers(home) as drivers:
        for place, skip in kills:
            people.change(200)
            drivers.kill_at(place, skip=skip)
            people.change(50)
            run = drivers.start()
            assert run.finish() == 0, run.tail()
            assert found(tmp_path) == people.rows, place
            assert branches(tmp_path) == {"main"}, "what was staged and not published is gone"
        assert not list(tmp_path.glob("dead/*.jsonl"))


def test_with_equality_deletes_the_table_is_the_dict_after_every_batch(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str], session: SparkSession
) -> None:
    topic = new_topic(partitions=2)
    home = Home(tmp_path)
    home.save(_PIPELINE.substitute(bootstrap=kafka.bootstrap_servers, topic=topic, version=2, write="equality"))
    people = People(kafka.bootstrap_servers, topic)
    with drivers(home) as started:
        for place, skip in KILLS:
            people.change(200)
            started.kill_at(place, skip=skip)
            people.change(50)
            started.drain()
            assert found_by_spark(session, tmp_path) == people.rows, place
        table = iceberg_oracle.embedded(tmp_path).load_table("db.people")
        batches = iceberg_oracle.batches(table)
        assert len(set(batches)) == len(batches), "a batch that was committed and not recorded is not committed again"
        assert not list(tmp_path.glob("dead/*.jsonl"))


def test_a_stale_driver_cannot_commit_equality_deletes(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str], session: SparkSession
) -> None:
    """It holds deletes of keys whose rows its successor writes: if they landed, they would delete newer rows."""
    topic = new_topic(partitions=2)
    home = Home(tmp_path)
    home.save(_PIPELINE.substitute(bootstrap=kafka.bootstrap_servers, topic=topic, version=2, write="equality"))
    people = People(kafka.bootstrap_servers, topic)
    people.change(200)
    go = tmp_path / "go"
    with drivers(home) as started:
        stale = started.start("attempt.before", skip=_TAKEN + 1, go=go)
        stale.wait_reached()
        freeze(stale)
        people.change(200)
        started.drain()
        assert found_by_spark(session, tmp_path) == people.rows
        go.touch()
        wake(stale)
        assert stale.finish() == 4, stale.tail()
        assert found_by_spark(session, tmp_path) == people.rows


@pytest.mark.long
def test_a_stale_merge_cannot_land_on_a_newer_head(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=2)
    home = Home(tmp_path)
    home.save(_PIPELINE.substitute(bootstrap=kafka.bootstrap_servers, topic=topic, version=2, write="merge"))
    people = People(kafka.bootstrap_servers, topic)
    people.change(200)
    go = tmp_path / "go"
    with Drivers(home) as drivers:
        stale = drivers.start("attempt.before", skip=_TAKEN + 1, go=go)
        stale.wait_reached()
        freeze(stale)
        people.change(200)
        newer = drivers.start()
        assert newer.finish() == 0, newer.tail()
        assert found(tmp_path) == people.rows
        go.touch()
        wake(stale)
        assert stale.finish() == 4, stale.tail()
        assert found(tmp_path) == people.rows
