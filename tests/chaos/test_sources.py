"""What a topic can do to a reader: transactions that end badly or not at all, compaction, a broker that goes away.

And what a user can do: edit the transform while a plan is pending.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import oracle
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness import DriverRun, Drivers, Feed, Site, good
from oracle import Produced
from running import running

from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker that compacts at once, and that a test may restart."""
    with running(
        LocalKafka(tmp_path_factory.mktemp("own-kafka"), extra_config={"log.cleaner.backoff.ms": "300"})
    ) as server:
        yield server


def make_topic(kafka: LocalKafka, name: str, partitions: int = 1, **config: str) -> str:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(timeout=30)
    return name


def exact(site: Site, records: list[Produced]) -> None:
    verdict = oracle.compare(oracle.expected_rows(records), oracle.rows(site.url, site.table))
    assert verdict.exact, verdict


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.1)


# Transactions


class Transaction:
    """A Kafka transaction, and the records in it; they count only if it commits."""

    def __init__(self, feed: Feed, name: str) -> None:
        self._feed = feed
        self._producer = Producer(
            {"bootstrap.servers": feed.bootstrap, "transactional.id": name, "transaction.timeout.ms": 600_000}
        )
        self._producer.init_transactions(60)
        self.records: list[Produced] = []

    def send(self, count: int) -> Transaction:
        self.records = []
        self._producer.begin_transaction()
        for _ in range(count):
            self._feed.send(self._producer, into=self.records)
        assert self._producer.flush(60) == 0
        return self

    def commit(self) -> None:
        self._producer.commit_transaction(60)
        self._feed.produced.extend(self.records)

    def abort(self) -> None:
        self._producer.abort_transaction(60)


def test_transactions(
    drivers: type[Drivers],
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """Aborted records never land, and nothing lands beyond an open transaction until it has ended."""
    topic = new_topic(partitions=2)
    site = Site(tmp_path, kafka.bootstrap_servers, clickhouse.url, topic, new_table())
    site.write()
    feed = Feed(site.bootstrap, topic)
    first, second = Transaction(feed, f"{topic}-1"), Transaction(feed, f"{topic}-2")
    first.send(20).commit()
    first.send(14).abort()
    first.send(10).commit()
    second.send(6).abort()
    stable = list(feed.produced)
    first.send(8)
    last_stable = {number: min(each.offset for each in first.records if each.partition == number) for number in (0, 1)}
    feed.more(6)
    with drivers(site) as started:
        started.kill_at("send.after")
        assert oracle.twice(oracle.rows(site.url, site.table)) == []
        started.drain()
        exact(site, stable)
        state = site.state()
        assert state["pending"] is None
        assert {each["partition"]: each["committed"] for each in state["positions"]} == last_stable

        first.commit()
        second.send(8).abort()  # the topic ends with offsets that nobody can read
        started.drain()
    exact(site, feed.produced)
    assert {each["lag"] for each in site.state()["positions"]} == {0}


# Compaction

_COMPACTED = {
    "cleanup_policy": "compact",
    "segment_ms": "200",
    "min_cleanable_dirty_ratio": "0.001",
    "min_compaction_lag_ms": "0",
    "delete_retention_ms": "0",
}


def send_keyed(kafka: LocalKafka, topic: str, keys: list[str], first_id: int = 0) -> list[Produced]:
    """One record for each key, in order."""
    produced: list[Produced] = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number, key in enumerate(keys, first_id):
        value = good(number)
        producer.produce(
            topic,
            value,
            key=key,
            on_delivery=lambda _, message, value=value: produced.append(
                Produced(message.topic(), message.partition(), message.offset(), value)
            ),
        )
    assert producer.flush(60) == 0
    assert len(produced) == len(keys)
    return produced


def roll(kafka: LocalKafka, topic: str) -> None:
    """Two offsets that nobody can read, which close the segment so that it can be compacted."""
    time.sleep(0.5)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"{topic}-roll"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"never", key=b"never")
    producer.flush(60)
    producer.abort_transaction(60)


def readable(kafka: LocalKafka, topic: str) -> list[int]:
    """The offsets that a plain consumer gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "oracle",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    deadline = time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return found
            found.append(message.offset())
        raise AssertionError("the end of the topic did not come")
    finally:
        consumer.close()


def compacted(kafka: LocalKafka, topic: str, survivors: set[int]) -> None:
    wait_until(lambda: set(readable(kafka, topic)) == survivors, 60, f"{topic} compacted to {sorted(survivors)}")


def test_a_compacted_topic(
    drivers: type[Drivers],
    tmp_path: Path,
    own_kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_table: Callable[[], str],
) -> None:
    """Offsets are missing at the beginning, in the middle and at the end of ranges, and one range has none at all."""
    table = new_table()
    topic = make_topic(own_kafka, f"compacted-{table}", **_COMPACTED)
    site = Site(tmp_path, own_kafka.bootstrap_servers, clickhouse.url, topic, table)
    site.write()
    gone = {0, 1, 3, 7, 8, 13, *range(15, 25)}
    records = send_keyed(own_kafka, topic, ["again" if at in gone or at == 25 else f"once-{at}" for at in range(30)])
    roll(own_kafka, topic)
    survivors = [each for each in records if each.offset not in gone]
    compacted(own_kafka, topic, {each.offset for each in survivors})
    with drivers(site) as started:
        started.kill_at("send.after")
        blocks = site.state()["pending"]["blocks"]
        ranges = [set(range(first, end)) for block in blocks for _, _, first, end in block["ranges"]]
        there = {each.offset for each in survivors}
        assert [(min(each), max(each)) for each in ranges] == [(0, 7), (8, 15), (16, 23), (24, 31)]
        assert {min(each) in there for each in ranges} == {max(each) in there for each in ranges} == {False}
        assert [len(each & there) for each in ranges] == [4, 5, 0, 5]
        started.drain()
        exact(site, survivors)
        state = site.state()
    assert state["positions"][0]["committed"] == 32
    assert state["totals"]["read"] == len(survivors)


def test_a_topic_compacted_between_crash_and_restart(
    drivers: type[Drivers],
    tmp_path: Path,
    own_kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_table: Callable[[], str],
) -> None:
    """What had landed stays, what had not and is still there lands, and nothing lands twice."""
    table = new_table()
    topic = make_topic(own_kafka, f"compacted-{table}", **_COMPACTED)
    site = Site(tmp_path, own_kafka.bootstrap_servers, clickhouse.url, topic, table)
    site.write()
    old = send_keyed(own_kafka, topic, [f"key-{at}" for at in range(16)])
    with drivers(site) as started:
        started.kill_at("commit.before")
        exact(site, old)
        # A plan is pending that has landed, and every other record of it is replaced and gone.
        newer = send_keyed(own_kafka, topic, [f"key-{at}" for at in range(0, 16, 2)], first_id=100)
        roll(own_kafka, topic)
        compacted(own_kafka, topic, {each.offset for each in old[1::2] + newer})
        started.kill_at("prepare.after")
        exact(site, old)
        # Now one is pending that has not landed, and half of its records are gone.
        newest = send_keyed(own_kafka, topic, [f"key-{at}" for at in range(0, 16, 4)], first_id=200)
        roll(own_kafka, topic)
        compacted(own_kafka, topic, {each.offset for each in old[1::2] + newer[1::2] + newest})
        started.drain()
    exact(site, old + newer[1::2] + newest)
    assert site.state()["pending"] is None


# A broker that goes away


def test_a_broker_restarted_in_the_middle_of_a_run(
    drivers: type[Drivers],
    tmp_path: Path,
    own_kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_table: Callable[[], str],
) -> None:
    """One driver outlives a broker that is stopped and one that is killed, while it has work to do."""
    table = new_table()
    topic = make_topic(own_kafka, f"restarted-{table}", partitions=3)
    site = Site(
        tmp_path,
        own_kafka.bootstrap_servers,
        clickhouse.url,
        topic,
        table,
        batch="interval: 100ms, max_rows: 600, block_rows: 150",
    )
    site.write()
    feed = Feed(site.bootstrap, topic, partitions=3)
    with drivers(site) as started:
        feed.more(3_000, bad_every=500)
        run = started.start(once=False)
        for go_away in (own_kafka.stop, own_kafka.kill):
            in_the_middle(run, len(feed.produced))
            go_away()
            time.sleep(2)
            assert run.process.poll() is None, run.tail()
            own_kafka.start()
            own_kafka.wait_ready()
            feed.more(3_000, bad_every=500)
        everything = len(feed.produced)
        wait_until(lambda: run.process.poll() is not None or read_by(run) == everything, 180, "all records read")
        assert run.terminate() == 0, run.tail()
        assert "rdkafka" not in run.log.read_text(), "the log has lines that are not landonce's"
    exact(site, feed.produced)
    verdict = oracle.compare(oracle.expected_letters(feed.produced), oracle.letters(site.dead))
    assert verdict.exact, verdict
    assert site.state()["pending"] is None


def read_by(run: DriverRun) -> int:
    return sum(event["read"] for event in run.events() if event["event"] == "batch")


def in_the_middle(run: DriverRun, produced: int) -> None:
    """Returns when another batch was recorded and there is more to come."""
    before = read_by(run)
    wait_until(lambda: run.process.poll() is not None or read_by(run) > before, 120, "a batch")
    assert read_by(run) < produced, "the broker is to go away while there is work"


# A user who edits


@pytest.mark.long
def test_an_edited_transform_is_refused_while_a_plan_is_pending(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    topic = new_topic(partitions=2)
    site = Site(tmp_path, kafka.bootstrap_servers, clickhouse.url, topic, new_table())
    feed = Feed(site.bootstrap, topic)
    feed.more(32, bad_every=7)
    site.write(where="word <> 'ping'")
    with Drivers(site) as drivers:
        drivers.kill_at("commit.before")
        before, letters = oracle.rows(site.url, site.table), oracle.letters(site.dead)
        pending = site.state()["pending"]
        assert before
        assert pending

        site.write(where="word <> 'plain'")
        refused = drivers.start()
        assert refused.finish() == 3, refused.tail()
        assert "PlanChanged" in refused.tail()
        assert f"landonce run {site.file} --once" in refused.tail()
        assert "write" not in refused.steps()
        assert oracle.compare(before, oracle.rows(site.url, site.table)).exact
        assert oracle.letters(site.dead) == letters
        assert site.state()["pending"] == pending

        site.write(where="word <> 'ping'")
        drivers.drain()
    expected = oracle.expected_rows(feed.produced, lambda payload: payload["word"] != "ping")
    verdict = oracle.compare(expected, oracle.rows(site.url, site.table))
    assert verdict.exact, verdict
    verdict = oracle.compare(oracle.expected_letters(feed.produced), oracle.letters(site.dead))
    assert verdict.exact, verdict
