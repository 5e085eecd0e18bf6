"""What may happen to topics: they grow, shrink, are created again, or lose records to retention, and nothing is lost silently."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from deliveries import (
    Site,
    Watch,
    expected,
    in_table,
    letters,
    numbered,
    run,
    running,
    send,
    spark_session,
    wait_until,
)
from pyspark.sql import SparkSession
from said import says
from typer.testing import CliRunner

from landonce.cli import app
from landonce.engine import pipeline
from landonce.errors import (
    ClusterChanged,
    Halt,
    PartitionVanished,
    PositionBeyondEnd,
    RetentionOverrun,
    TopicMissing,
    TopicRecreated,
)
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals
from landonce.protocol.steps import Effect, Step

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from spark_session("test-topics")


@pytest.fixture
def site(
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_table: Callable[[], str],
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> Site:
    site = Site(kafka, clickhouse, tmp_path, new_table(), [new_topic(2)])
    site.make("id Int64, name String")
    return site


@pytest.fixture(scope="module")
def admin(kafka: LocalKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers})


def eat(admin: AdminClient, topic: str, upto: int, partition: int = 0) -> None:
    """As retention does: the records below `upto` are gone."""
    for future in admin.delete_records([TopicPartition(topic, partition, upto)]).values():
        future.result(30)


def recreate(admin: AdminClient, topic: str, partitions: int) -> None:
    admin.delete_topics([topic])[topic].result(30)
    until = time.monotonic() + 30
    while True:
        try:
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
            return
        except Exception:
            assert time.monotonic() < until
            time.sleep(0.2)


def operator(site: Site, *words: str) -> str:
    """A `landonce state` command on this pipeline's file."""
    site.write_file()
    done = CliRunner().invoke(app, ["state", *words, str(site.file), "--yes"])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def test_new_partitions_are_picked_up_while_running(site: Site, spark: SparkSession, admin: AdminClient) -> None:
    topic = site.topics[0]
    sent = send(site.kafka, topic, numbered(10))
    watch = Watch()
    with running(site.config(batch={"interval": "200ms"}), spark, watch):
        wait_until(lambda: bool(watch.batches))
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(30)
        sent += send(site.kafka, topic, numbered(7), partition=3) + send(site.kafka, topic, numbered(3))
        wait_until(lambda: sum(each.totals.read for each in watch.batches) == 20)
    assert in_table(site) == expected(sent)
    assert site.position() == {(topic, 0): 13, (topic, 1): 0, (topic, 2): 0, (topic, 3): 7}


def test_a_recreated_topic(site: Site, spark: SparkSession, admin: AdminClient) -> None:
    topic = site.topics[0]
    old = send(site.kafka, topic, numbered(10))
    run(site.config(), spark)
    recreate(admin, topic, 2)
    new = send(site.kafka, topic, numbered(30, first=100))
    with pytest.raises(TopicRecreated) as caught:
        run(site.config(), spark)
    assert caught.value.command == "landonce state rebase {file}"
    assert in_table(site) == expected(old), "nothing was written"
    operator(site, "rebase")
    assert run(site.config(), spark) == Totals(landed=30)
    label = dict(site.state().labels)[topic]
    for each in new:
        each.topic = label
    assert in_table(site) == expected(old + new), "the new rows stand beside the old ones under another name"


def test_a_topic_recreated_with_fewer_partitions(site: Site, spark: SparkSession, admin: AdminClient) -> None:
    send(site.kafka, site.topics[0], numbered(5), partition=1)
    run(site.config(), spark)
    recreate(admin, site.topics[0], 1)
    with pytest.raises((TopicRecreated, PartitionVanished)) as caught:
        run(site.config(), spark)
    assert "landonce state rebase {file}" in caught.value.command


def test_a_missing_topic(site: Site, spark: SparkSession) -> None:
    site.topics = ["never-made"]
    with pytest.raises(TopicMissing, match="'never-made'"):
        run(site.config(), spark)


@pytest.mark.usefixtures("spark_workers")
def test_a_missing_topic_is_named_before_spark_starts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.topics = ["never-made"]
    monkeypatch.setattr(pipeline, "open_session", lambda *_, **__: pytest.fail("Spark was started"))
    with pytest.raises(TopicMissing, match="'never-made'"):
        pipeline.run_pipeline(site.config(), once=True)


def test_another_cluster(site: Site, spark: SparkSession) -> None:
    send(site.kafka, site.topics[0], numbered(5))
    run(site.config(), spark)
    with sqlite3.connect(site.folder / "p.ledger") as ledger:
        tables = [row[0] for row in ledger.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if "cluster_id" in {row[1] for row in ledger.execute(f"PRAGMA table_info({table})")}:
                ledger.execute(f"UPDATE {table} SET cluster_id = 'another'")
    assert site.state().cluster_id == "another"
    with pytest.raises(ClusterChanged, match="cluster another") as caught:
        run(site.config(), spark)
    assert "landonce state rebase {file}" in caught.value.command


def test_a_position_beyond_the_end(site: Site, spark: SparkSession) -> None:
    send(site.kafka, site.topics[0], numbered(5))
    run(site.config(), spark)
    with sqlite3.connect(site.folder / "p.ledger") as ledger:
        tables = [row[0] for row in ledger.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if "committed" in {row[1] for row in ledger.execute(f"PRAGMA table_info({table})")}:
                ledger.execute(f"UPDATE {table} SET committed = 50 WHERE committed = 5")
    assert site.position()[site.topics[0], 0] == 50
    with pytest.raises(PositionBeyondEnd, match=r"offset 50.*ends at 5") as caught:
        run(site.config(), spark)
    assert caught.value.command == "landonce state rebase {file}"


def test_retention_that_overtakes(site: Site, spark: SparkSession, admin: AdminClient) -> None:
    topic = site.topics[0]
    sent = send(site.kafka, topic, numbered(10)) + send(site.kafka, topic, numbered(10), partition=1)
    run(site.config(), spark)
    sent += send(site.kafka, topic, numbered(20, first=10)) + send(
        site.kafka, topic, numbered(2, first=10), partition=1
    )
    eat(admin, topic, 15)
    with pytest.raises(RetentionOverrun) as caught:
        run(site.config(), spark)
    assert "[10, 15)" in caught.value.what
    assert caught.value.command == "landonce state accept-gap {file}"
    assert sum(in_table(site).values()) == 20, "nothing was skipped and nothing written"
    assert says(operator(site, "accept-gap"), "5")
    run(site.config(), spark)
    lost = {(topic, 0, offset) for offset in range(10, 15)}
    assert in_table(site) == expected(each for each in sent if each.at not in lost)


def test_retention_that_ends_before_the_position_is_no_matter(
    site: Site, spark: SparkSession, admin: AdminClient
) -> None:
    sent = send(site.kafka, site.topics[0], numbered(10))
    run(site.config(), spark)
    eat(admin, site.topics[0], 10)
    sent += send(site.kafka, site.topics[0], numbered(3, first=10))
    assert run(site.config(), spark) == Totals(landed=3)
    assert in_table(site) == expected(sent)


class Crash(Exception):
    pass


def crash_at(step: Step) -> Watch:
    def crash(effect: Effect) -> None:
        if effect.step is step:
            raise Crash

    return Watch(at=crash)


def test_a_pending_plan_that_landed_and_was_eaten(site: Site, spark: SparkSession, admin: AdminClient) -> None:
    sent = send(site.kafka, site.topics[0], numbered(20))
    config = site.config(clickhouse={"deadline": "2s"})
    with pytest.raises(Crash):
        run(config, spark, crash_at(Step.RECORD))
    eat(admin, site.topics[0], 12)
    sent += send(site.kafka, site.topics[0], numbered(5, first=20))
    assert run(config, spark) == Totals(landed=25), "a block of which a row is there is there whole"
    assert in_table(site) == expected(sent)


def test_a_pending_plan_that_was_eaten_before_it_landed(site: Site, spark: SparkSession, admin: AdminClient) -> None:
    sent = send(site.kafka, site.topics[0], numbered(20))
    config = site.config(clickhouse={"deadline": "2s"})
    with pytest.raises(Crash):
        run(config, spark, crash_at(Step.WRITE))
    eat(admin, site.topics[0], 12)
    for _ in range(2):
        with pytest.raises(RetentionOverrun) as caught:
            run(config, spark)
        assert caught.value.command == "landonce state accept-gap {file}"
        assert isinstance(caught.value, Halt)
        assert site.state().pending is not None
        assert not in_table(site)
    operator(site, "accept-gap")
    run(config, spark)
    assert in_table(site) == expected(each for each in sent if each.offset >= 12)


@pytest.mark.parametrize(
    ("step", "upto"),
    [(Step.RECORD, 10), (Step.COMMIT, 10), (Step.RECORD, 20), (Step.COMMIT, 20)],
    ids=["published, cut", "staged, cut", "published, gone", "staged, gone"],
)
def test_dead_letters_outlive_the_records_of_a_pending_plan(
    site: Site, new_table: Callable[[], str], spark: SparkSession, admin: AdminClient, step: Step, upto: int
) -> None:
    """The table has partitions of its own, so that a row does not prove its block, and an operator decides. By then the letters
    are the only copy of what could not land."""
    site.table = new_table()
    site.make("id Int64, name String", "PARTITION BY id % 2 ORDER BY _offset")
    values = [*numbered(5), b"bad", *numbered(9, first=6), b"worse", *numbered(4, first=16)]
    sent = send(site.kafka, site.topics[0], values)
    config = site.config(clickhouse={"deadline": "2s"})
    with pytest.raises(Crash):
        run(config, spark, crash_at(step))
    eat(admin, site.topics[0], upto)
    with pytest.raises(RetentionOverrun):
        run(config, spark)
    operator(site, "accept-gap")
    assert (site.state().pending is None) == (upto == 20)
    run(config, spark)
    assert [(each["offset"], each["value"]) for each in letters(site.dead)] == [(5, "bad"), (15, "worse")]
    assert in_table(site) == expected(each for each in sent if each.offset not in (5, 15))
    assert not list(site.dead.glob("*.staged"))


def test_start_latest(site: Site, spark: SparkSession, admin: AdminClient) -> None:
    topic = site.topics[0]
    send(site.kafka, topic, numbered(10))
    config = site.config(kafka={"start": "latest"})
    assert run(config, spark) == Totals()
    sent = send(site.kafka, topic, numbered(4, first=10))
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    sent += send(site.kafka, topic, numbered(2), partition=2)
    assert run(config, spark) == Totals(landed=6), "a partition that appears later begins at its start"
    assert in_table(site) == expected(sent)
