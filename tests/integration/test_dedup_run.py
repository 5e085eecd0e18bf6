"""Content deduplication with real Kafka, Spark and ClickHouse: events are unique by their key, whatever the producer sends."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deliveries import Sent, Site, do, send, spark_session
from pipelines import landonce as command
from pyspark.sql import SparkSession

import landonce
from landonce.config.model import Batch
from landonce.local import LocalClickHouse, LocalKafka
from landonce.sinks.pipeline_file import load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from spark_session("test-dedup")


@pytest.fixture
def site(kafka: LocalKafka, clickhouse: LocalClickHouse, new_table: Callable[[], str], tmp_path: Path) -> Site:
    return Site(kafka, clickhouse, tmp_path, new_table())


def events(count: int, copies: float, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    made: list[dict[str, Any]] = []
    for number in range(count):
        if made and chance.random() < copies:
            made.append(dict(chance.choice(made)))
        else:
            made.append({"id": number, "name": f"n{number}"})
    return made


def in_table(site: Site) -> Counter[tuple[Any, ...]]:
    return Counter((int(row["id"]), row["name"]) for row in site.ask(f"SELECT id, name FROM {site.table}"))


def unique(sent: list[Sent]) -> Counter[tuple[Any, ...]]:
    return Counter({(each.fields["id"], each.fields["name"]) for each in sent})


@pytest.mark.usefixtures("spark_workers")
def test_copies_land_once(site: Site, spark: SparkSession, new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)
    site.topics = (topic,)
    site.make("id Int64, name String", "ORDER BY tuple()")
    sent: list[Sent] = []
    everything = events(3000, 0.3, 1)
    for partition in range(3):
        sent += send(site.kafka, topic, everything[partition::3], partition=partition)
    sent += send(site.kafka, topic, [b"no json"], partition=0)[:0]

    totals = landonce.run_pipeline(site.config(dedup={"key": ["id"]}, batch={"max_rows": 700}), once=True)

    assert in_table(site) == unique(sent)
    assert totals.landed == len(unique(sent))
    assert totals.dead_lettered == 1
    assert totals.read == len(sent) + 1
    again = landonce.run_pipeline(site.config(dedup={"key": ["id"]}, batch={"max_rows": 700}), once=True)
    assert again.read == 0
    more = send(site.kafka, topic, everything, partition=1)
    assert landonce.run_pipeline(site.config(dedup={"key": ["id"]}), once=True).landed == 0
    assert in_table(site) == unique(sent + more)


BACKLOG = Batch(max_rows=800)


@pytest.mark.parametrize("batch", [BACKLOG, Batch(interval="0s", block_rows=40)], ids=["default", "control"])
def test_a_steady_stream_makes_at_most_one_insert_a_second(
    site: Site, spark: SparkSession, new_topic: Callable[..., str], batch: Batch
) -> None:
    """Over all partitions of the topic, at every moment, also while several full batches wait. The control does not wait, and cuts the
    records that are there at the start into 60 blocks."""
    topic = new_topic(2)
    site.topics = (topic,)
    site.make("id Int64, name String", "ORDER BY tuple()")
    stopping: list[threading.Event] = []
    config = site.config(dedup={"key": ["id"]}).model_copy(update={"batch": batch})
    run = threading.Thread(
        target=lambda: landonce.run_pipeline(config, ready=lambda driver: stopping.append(driver.stopping))
    )
    sent = send(site.kafka, topic, [{"id": at, "name": "n"} for at in range(2_400)])
    began = time.monotonic()
    looks: list[tuple[float, int, float]] = []

    def look() -> None:
        """A merge makes a part of a higher level."""
        before = time.monotonic()
        parts = f"system.parts WHERE table = '{site.table}' AND database = currentDatabase() AND level = 0"
        looks.append((before, int(site.ask(f"SELECT count() AS n FROM {parts}")[0]["n"]), time.monotonic()))

    def too_many() -> bool:
        """Inserts begin a second after each other, and each ends before the next one begins: so in any time, as many as it has seconds, one
        that began before, and one that begins with it."""
        return any(
            inserts - earlier > after - before + 2
            for number, (before, earlier, _) in enumerate(looks)
            for _, inserts, after in looks[number:]
        )

    run.start()
    while time.monotonic() - began < 8:
        number = len(sent)
        for partition in range(2):
            more = [{"id": at, "name": "n"} for at in range(number + partition, number + 20, 2)]
            sent += send(site.kafka, topic, more, partition=partition)
        look()
        time.sleep(0.05)
    while in_table(site) != unique(sent) and time.monotonic() - began < 120:
        look()
        time.sleep(0.2)
    look()
    stopping[0].set()
    run.join(60)

    assert in_table(site) == unique(sent)
    assert too_many() is (batch != BACKLOG)
    largest = site.ask(f"SELECT max(rows) AS n FROM system.parts WHERE table = '{site.table}'")[0]["n"]
    assert (int(largest) == BACKLOG.max_rows) is (batch == BACKLOG), "a full batch is one insert"


def test_the_audit_accounts_for_events_that_where_filters(
    site: Site,
    spark: SparkSession,
    new_topic: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(2)
    site.topics = (topic,)
    site.make("id Int64, name String", "ORDER BY tuple()")
    everything = events(300, 0.3, 2)
    for partition in range(2):
        send(site.kafka, topic, everything[partition::2], partition=partition)
    file = site.write_file(
        kafka={"schema": "id BIGINT, name STRING"},
        dedup={"key": ["id"]},
        transform={"where": "id % 3 > 0", "select": ["id", "upper(name) AS name"]},
    )
    landonce.run_pipeline(load(file), once=True)
    left = {each["id"] for each in everything if each["id"] % 3}

    def verify(code: int) -> Any:
        said = command(capsys, monkeypatch, "verify", file, "--json", "--values")
        assert said.code == code, said.out + said.err
        return said.json["totals"]

    filtered = sum(each["id"] % 3 == 0 for each in everything)
    counted = {"landed": len(left), "filtered": filtered, "copies": 300 - filtered - len(left), "changed": 0}
    assert verify(0) | counted == verify(0)
    victim = min(left)
    do(site.clickhouse.url, f"SYSTEM START MERGES {site.table}")
    do(site.clickhouse.url, f"ALTER TABLE {site.table} DELETE WHERE id = {victim} SETTINGS mutations_sync = 2")
    assert verify(1) | {"missing": 1} == verify(1)
