"""The offset store in one process: a real broker, and SQLite, PostgreSQL and MariaDB read by plain SQL."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from mariadb_server import LocalMariaDB
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from landonce import errors
from landonce.consumer import OffsetStore, Partition, SqlOffsets
from landonce.local import LocalKafka
from landonce.local.postgres import LocalPostgres

sys.path.append(str(Path(__file__).parents[2] / "examples" / "consumer"))
from offsets_in_rows import OffsetsInRows

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

RESULTS = "CREATE TABLE results (topic TEXT, part INT, off BIGINT)"


@pytest.fixture(params=["sqlite", "postgres", pytest.param("mariadb", marks=pytest.mark.long)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        made = create_engine(f"sqlite:///{tmp_path}/db")
    else:
        made = create_engine(request.getfixturevalue(request.param).url)
    with made.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS results"))
        connection.execute(text("DROP TABLE IF EXISTS landonce_offset"))
        connection.execute(text(RESULTS))
    yield made
    made.dispose()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path}/db")
    with made.begin() as connection:
        connection.execute(text(RESULTS))
    yield made
    made.dispose()


def config(kafka: LocalKafka, group: str, **more: Any) -> dict[str, Any]:
    extra = {name.replace("_", "."): value for name, value in more.items()}
    return {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "log_level": 2, **extra}


def produce(kafka: LocalKafka, topic: str, count: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, str(number), partition=partition)
    assert producer.flush(30) == 0


def read(store: OffsetStore, count: int, patience: float = 60) -> list[Message]:
    """Exactly so many records; fails when they do not come."""
    found: list[Message] = []
    deadline = time.monotonic() + patience
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        found += store.consume(count - len(found), timeout=0.2)
    return found


def offsets(messages: list[Message]) -> list[int | None]:
    return [each.offset() for each in messages]


def write(connection: Connection, messages: list[Message]) -> None:
    rows = [{"t": each.topic(), "p": each.partition(), "o": each.offset()} for each in messages]
    connection.execute(text("INSERT INTO results VALUES (:t, :p, :o)"), rows)


def landed(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT off FROM results ORDER BY part, off")))


def stored(engine: Engine, group: str) -> dict[int, int]:
    query = text("SELECT kafka_partition, next_offset FROM landonce_offset WHERE consumer_group = :group")
    with engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(query, {"group": group})}


def in_kafka(kafka: LocalKafka, group: str, topic: str) -> int:
    with closing(Consumer(config(kafka, group))) as consumer:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=20)
    return int(found.offset)


@pytest.mark.parametrize(
    "protocol",
    [
        {},
        {"partition_assignment_strategy": "cooperative-sticky"},
        {"group_protocol": "consumer"},
        {"group_instance_id": "one"},
    ],
    ids=["eager", "cooperative", "consumer", "static"],
)
def test_results_and_offsets_are_one_transaction(
    kafka: LocalKafka, new_topic: Callable[..., str], sqlite: Engine, protocol: dict[str, str]
) -> None:
    topic = new_topic(2)
    produce(kafka, topic, 10, 0)
    produce(kafka, topic, 10, 1)
    settings = config(kafka, f"one-{topic}", **protocol)
    with OffsetStore.connect(settings, [topic], SqlOffsets(sqlite)) as store:
        first = read(store, 12)
        with store.transaction() as connection:
            write(connection, first)
            store.save_many(first, connection)
        second = read(store, 4)
        with pytest.raises(RuntimeError), store.transaction() as connection:  # noqa: PT012
            write(connection, second)
            store.save_many(second, connection)
            raise RuntimeError("the user's own")
        assert len(landed(sqlite)) == 12
        assert sum(stored(sqlite, f"one-{topic}").values()) == 12
        again = read(store, 8)
        assert {(each.partition(), each.offset()) for each in second} <= {
            (each.partition(), each.offset()) for each in again
        }, "what was rolled back comes again"
        with store.transaction() as connection:
            write(connection, again)
            store.save_many(again, connection)
    assert landed(sqlite) == [*range(10), *range(10)]


def test_a_restart_goes_on_where_the_database_stands(
    kafka: LocalKafka, new_topic: Callable[..., str], engine: Engine
) -> None:
    topic = new_topic()
    group = f"restart-{topic}"
    produce(kafka, topic, 10)
    for count in (3, 7):
        with OffsetStore.connect(config(kafka, group), [topic], SqlOffsets(engine), commit_to_kafka="off") as store:
            messages = read(store, count)
            with store.transaction() as connection:
                write(connection, messages)
                for each in messages:
                    store.save(each, connection)
            store.poll(0)
    assert landed(engine) == list(range(10))
    assert in_kafka(kafka, group, topic) < 0, "Kafka got an offset, against commit_to_kafka=off"


def test_kafka_never_runs_ahead_of_the_database(
    kafka: LocalKafka, new_topic: Callable[..., str], engine: Engine
) -> None:
    """A commit to Kafka comes after the database's; one that never comes does no harm."""
    topic = new_topic()
    group = f"ahead-{topic}"
    produce(kafka, topic, 10)
    with OffsetStore.connect(config(kafka, group), [topic], SqlOffsets(engine), commit_to_kafka="sync") as store:
        with pytest.raises(RuntimeError), store.transaction() as connection:  # noqa: PT012
            store.save_many(read(store, 5), connection)
            raise RuntimeError("the user's own")
        assert in_kafka(kafka, group, topic) < 0
        with store.transaction() as connection:
            store.save_many(read(store, 5), connection)
        assert in_kafka(kafka, group, topic) == 5
        with engine.begin() as connection:
            write(connection, messages := read(store, 3))
            store.save_many(messages, connection)
    assert (in_kafka(kafka, group, topic), stored(engine, group)) == (5, {0: 8}), "died before `committed`"
    with OffsetStore.connect(config(kafka, group), [topic], SqlOffsets(engine)) as store:
        assert offsets(read(store, 2)) == [8, 9]


def test_offsets_that_nobody_waits_for_arrive_in_kafka(
    kafka: LocalKafka, new_topic: Callable[..., str], sqlite: Engine
) -> None:
    """With `async`, the default: soon after each commit, also where nothing more comes, and the last one before the group is left."""
    topic = new_topic()
    produce(kafka, topic, 3)
    with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(sqlite)) as store:
        for number in (1, 2, 3):
            (message,) = read(store, 1)
            with store.transaction() as connection:
                store.save(message, connection)
            until = time.monotonic() + 60
            while number < 3 and in_kafka(kafka, topic, topic) != number:
                assert time.monotonic() < until
    assert in_kafka(kafka, topic, topic) == 3


def test_where_nothing_is_stored_kafka_may_know(
    kafka: LocalKafka, new_topic: Callable[..., str], sqlite: Engine
) -> None:
    topic = new_topic()
    produce(kafka, topic, 10)
    for group, option, expected in (("u", "use_kafka", 6), ("i", "ignore_kafka", 0)):
        with closing(Consumer(config(kafka, group + topic))) as consumer:
            consumer.commit(offsets=[TopicPartition(topic, 0, 6)], asynchronous=False)
        with OffsetStore.connect(
            config(kafka, group + topic), [topic], SqlOffsets(sqlite), offset_not_found=option
        ) as store:
            assert read(store, 1)[0].offset() == expected


def test_latest_is_recorded_before_anything_is_read(
    kafka: LocalKafka, new_topic: Callable[..., str], sqlite: Engine
) -> None:
    """Records that come between the first start and a crash before the first save are not skipped."""
    topic = new_topic()
    settings = config(kafka, f"latest-{topic}", auto_offset_reset="latest")
    produce(kafka, topic, 5)
    with OffsetStore.connect(settings, [topic], SqlOffsets(sqlite)) as store:
        while not store.assignment():
            assert store.poll(0.2) is None
    produce(kafka, topic, 3)
    with OffsetStore.connect(settings, [topic], SqlOffsets(sqlite)) as store:
        assert offsets(read(store, 3)) == [5, 6, 7]


def test_a_successor_fences(kafka: LocalKafka, new_topic: Callable[..., str], engine: Engine) -> None:
    """The zombie does not know: its save is refused in its own transaction, and it rolls back."""
    topic = new_topic()
    produce(kafka, topic, 10)
    group = f"fence-{topic}"
    with OffsetStore.connect(config(kafka, group), [topic], SqlOffsets(engine)) as store:
        messages = read(store, 5)
        SqlOffsets(engine).load(group, [Partition(topic, 0)])
        with pytest.raises(errors.Fenced), store.transaction() as connection:  # noqa: PT012
            if engine.dialect.name != "sqlite":
                write(connection, messages)
            store.save_many(messages, connection)
        assert (landed(engine), stored(engine, group)) == ([], {0: 0})
        store.poll(0)
        with pytest.raises(errors.Fenced, match="not assigned to this consumer"), store.transaction() as connection:
            store.save_many(messages, connection)


def test_a_partition_that_was_fenced_by_mistake_is_taken_back(
    kafka: LocalKafka, new_topic: Callable[..., str], sqlite: Engine
) -> None:
    """Kafka has the last word: who is assigned the partition claims it again, after a pause."""
    topic = new_topic()
    produce(kafka, topic, 10)
    group = f"back-{topic}"
    settings = config(kafka, group, session_timeout_ms=2000, heartbeat_interval_ms=300)
    with OffsetStore.connect(settings, [topic], SqlOffsets(sqlite)) as store:
        messages = read(store, 5)
        SqlOffsets(sqlite).load(group, [Partition(topic, 0)])
        with pytest.raises(errors.Fenced), store.transaction() as connection:
            store.save_many(messages, connection)
        again = read(store, 10)
        with store.transaction() as connection:
            write(connection, again)
            store.save_many(again, connection)
    assert landed(sqlite) == list(range(10))


def test_a_stricter_isolation_level_refuses_by_name(
    kafka: LocalKafka, new_topic: Callable[..., str], postgres: LocalPostgres
) -> None:
    """Above READ COMMITTED PostgreSQL refuses the update itself: that is `Fenced`, too."""
    engine = create_engine(postgres.url, isolation_level="SERIALIZABLE")
    topic = new_topic()
    produce(kafka, topic, 3)
    with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(engine)) as store:
        messages = read(store, 3)
        with pytest.raises(errors.Fenced), store.transaction() as connection:  # noqa: PT012
            connection.execute(text("SELECT * FROM landonce_offset"))
            SqlOffsets(engine).load(topic, [Partition(topic, 0)])
            store.save_many(messages, connection)
    engine.dispose()


def test_a_snapshot_from_before_the_takeover_does_not_hide_it(
    kafka: LocalKafka, new_topic: Callable[..., str], mariadb: LocalMariaDB
) -> None:
    """REPEATABLE READ, the default there: a SELECT still sees the old fence, and the UPDATE of `save` the new one."""
    engine = create_engine(mariadb.url)
    topic = new_topic()
    produce(kafka, topic, 3)
    fence = text("SELECT epoch FROM landonce_offset WHERE consumer_group = :group").bindparams(group=topic)
    with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(engine)) as store:
        messages = read(store, 3)
        with pytest.raises(errors.Fenced), store.transaction() as connection:  # noqa: PT012
            before = connection.scalar(fence)
            taken = SqlOffsets(engine).load(topic, [Partition(topic, 0)])
            assert connection.scalar(fence) == before < taken[Partition(topic, 0)].epoch
            store.save_many(messages, connection)
    engine.dispose()


def test_a_successor_reads_what_an_open_transaction_leaves(
    kafka: LocalKafka, new_topic: Callable[..., str], engine: Engine
) -> None:
    """It has saved already, so `load` waits for its end, and nothing is done twice."""
    topic = new_topic()
    produce(kafka, topic, 3)
    found: list[int | None] = []

    def succeed() -> None:
        found.append(SqlOffsets(engine).load(topic, [Partition(topic, 0)])[Partition(topic, 0)].offset)

    successor = threading.Thread(target=succeed)
    with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(engine)) as store:
        messages = read(store, 3)
        with store.transaction() as connection:
            write(connection, messages)
            store.save_many(messages, connection)
            successor.start()
            successor.join(1)
            assert found == [], "it did not wait"
        successor.join(90)
    assert (found, landed(engine)) == ([3], [0, 1, 2])


def test_load_waits_for_an_open_transaction_only_so_long(
    kafka: LocalKafka, new_topic: Callable[..., str], engine: Engine
) -> None:
    topic = new_topic()
    produce(kafka, topic, 3)
    with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(engine)) as store:
        messages = read(store, 3)
        with store.transaction() as connection:
            store.save_many(messages, connection)
            began = time.monotonic()
            with pytest.raises(errors.LedgerUnavailable, match="could not be taken over"):
                SqlOffsets(engine, lock_seconds=0.5).load(topic, [Partition(topic, 0)])
            assert time.monotonic() - began < 40, "MariaDB's own limit is 50 s"
    assert stored(engine, topic) == {0: 3}
    if engine.dialect.name == "mariadb":
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT @@innodb_lock_wait_timeout")) == 50, "the session's own is put back"


def test_postgres_ends_a_transaction_that_idles_after_its_save(
    kafka: LocalKafka, new_topic: Callable[..., str], postgres: LocalPostgres
) -> None:
    """So that a consumer which is stopped in it does not hold up its successor for ever."""
    engine = create_engine(postgres.url)
    topic = new_topic()
    produce(kafka, topic, 3)
    with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(engine, idle_seconds=1.0)) as store:
        messages = read(store, 3)
        with pytest.raises(Exception, match="idle-in-transaction"), store.transaction() as connection:  # noqa: PT012
            store.save_many(messages, connection)
            SqlOffsets(engine).load(topic, [Partition(topic, 0)])
            connection.execute(text("SELECT 1"))
    assert stored(engine, topic) == {0: 0}
    engine.dispose()


def test_the_rules_of_saving(kafka: LocalKafka, new_topic: Callable[..., str], engine: Engine) -> None:
    topic = new_topic()
    produce(kafka, topic, 10)
    with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(engine)) as store:
        messages = read(store, 6)
        with store.transaction() as connection:
            store.save(messages[4], connection)
        for wrong in (messages[4], messages[2]):
            with pytest.raises(errors.OffsetOutOfStep, match="must increase"), engine.begin() as connection:
                store.save(wrong, connection)
        with pytest.raises(errors.OffsetOutOfStep, match="given out"), engine.begin() as connection:
            store.save_many({Partition(topic, 0): 9}, connection)
        with engine.begin() as connection:
            store.save(messages[5], connection)
            connection.rollback()
        with pytest.raises(errors.TransactionUnsettled):
            store.poll(0)
        store.committed()  # which is not true
        more = read(store, 2)
        with pytest.raises(errors.OffsetOutOfStep, match="reported as committed"), store.transaction() as connection:
            store.save_many(more, connection)
        assert offsets(read(store, 5)) == [5, 6, 7, 8, 9], "nothing was skipped"
    assert stored(engine, topic) == {0: 5}


def test_results_without_an_offset_are_not_committed(
    kafka: LocalKafka, new_topic: Callable[..., str], engine: Engine
) -> None:
    """They would come again after a crash. What has nothing to do with records needs no offset."""
    topic = new_topic()
    produce(kafka, topic, 6)
    with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(engine)) as store:
        messages = read(store, 3)
        for _ in range(2):
            with pytest.raises(errors.OffsetsNotSaved, match="save_many"), store.transaction() as connection:
                write(connection, messages)
        assert landed(engine) == []
        again = read(store, 6)
        assert offsets(again) == [0, 1, 2, 3, 4, 5]
        with store.transaction() as connection:
            write(connection, again)
            store.save_many((each for each in again), connection)  # type: ignore[arg-type]
        assert store.poll(0) is None
        with store.transaction() as connection:
            connection.execute(text("INSERT INTO results VALUES ('no record', 1, -1)"))
    assert (landed(engine), stored(engine, topic)) == ([0, 1, 2, 3, 4, 5, -1], {0: 6})


def test_a_transaction_of_your_own_without_an_offset_is_reported_too(
    kafka: LocalKafka, new_topic: Callable[..., str], sqlite: Engine
) -> None:
    topic = new_topic()
    produce(kafka, topic, 3)
    with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(sqlite)) as store:
        messages = read(store, 3)
        with sqlite.begin() as connection:
            connection.execute(text("INSERT INTO results VALUES ('forgotten', 0, 0)"))
        with pytest.raises(errors.OffsetsNotSaved, match="before the transaction commits"):
            store.committed()
        with sqlite.begin() as connection:
            store.save_many(messages, connection)
        with pytest.raises(errors.TransactionUnsettled), store.transaction():
            pytest.fail("another transaction was begun")
        store.committed()
        store.committed()
    assert stored(sqlite, topic) == {0: 3}


def test_a_transaction_that_was_ended_inside_of_its_block(
    kafka: LocalKafka, new_topic: Callable[..., str], engine: Engine
) -> None:
    """The outcome is unknown: Kafka gets no offsets that the database may not have, and what is stored decides."""
    topic = new_topic()
    produce(kafka, topic, 6)
    handler = SqlOffsets(engine)
    with OffsetStore.connect(config(kafka, topic), [topic], handler, commit_to_kafka="sync") as store:
        messages = read(store, 3)
        with pytest.raises(errors.TransactionUnsettled, match="inside"), store.transaction() as connection:  # noqa: PT012
            store.save_many(messages, connection)
            connection.rollback()
        assert in_kafka(kafka, topic, topic) < 0
        again = read(store, 3)
        assert offsets(again) == [0, 1, 2], "they came without a later record, too"
        with pytest.raises(errors.TransactionUnsettled, match="inside"), store.transaction() as connection:  # noqa: PT012
            write(connection, again)
            store.save_many(again, connection)
            connection.commit()
        assert offsets(read(store, 3)) == [3, 4, 5]
    assert (landed(engine), stored(engine, topic)) == ([0, 1, 2], {0: 3})


def test_an_orm_session_is_a_transaction_too(kafka: LocalKafka, new_topic: Callable[..., str], sqlite: Engine) -> None:
    topic = new_topic()
    produce(kafka, topic, 3)
    with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(sqlite)) as store:
        messages = read(store, 3)
        with Session(sqlite) as session, session.begin():
            write(session.connection(), messages)
            store.save_many(messages, session)
        store.committed()
    assert (landed(sqlite), stored(sqlite, topic)) == ([0, 1, 2], {0: 3})


def test_a_connection_that_commits_by_itself_is_refused(
    kafka: LocalKafka, new_topic: Callable[..., str], engine: Engine
) -> None:
    topic = new_topic()
    produce(kafka, topic, 3)
    with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(engine)) as store:
        messages = read(store, 3)
        with (
            engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
            pytest.raises(errors.ConfigError, match="commits every statement"),
        ):
            store.save_many(messages, connection)
    assert stored(engine, topic) == {0: 0}


def test_records_that_retention_deleted_are_not_skipped(
    kafka: LocalKafka, new_topic: Callable[..., str], sqlite: Engine
) -> None:
    topic = new_topic()
    produce(kafka, topic, 10)
    partition = Partition(topic, 0)
    handler = SqlOffsets(sqlite)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    with OffsetStore.connect(config(kafka, topic), [topic], handler) as store, store.transaction() as connection:
        store.save_many(read(store, 3), connection)
    admin.delete_records([TopicPartition(topic, 0, 7)])[TopicPartition(topic, 0)].result(timeout=30)
    with OffsetStore.connect(config(kafka, topic), [topic], handler) as store:
        for _ in range(2):
            with pytest.raises(errors.RetentionOverrun, match="begins at 7"):
                read(store, 1)
        handler.reset(topic, {partition: 7})
        assert offsets(read(store, 3)) == [7, 8, 9]


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_records_that_are_deleted_under_a_running_consumer(
    kafka: LocalKafka, new_topic: Callable[..., str], sqlite: Engine, strategy: str
) -> None:
    """librdkafka's own answer would be a jump to the start or the end."""
    topic = new_topic()
    settings = config(kafka, topic, partition_assignment_strategy=strategy)
    produce(kafka, topic, 10)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    handler = SqlOffsets(sqlite)
    with OffsetStore.connect(settings, [topic], handler) as store:
        read(store, 3)
        admin.delete_records([TopicPartition(topic, 0, 7)])[TopicPartition(topic, 0)].result(timeout=30)
        store.rewind()
        for _ in range(2):
            with pytest.raises(errors.RetentionOverrun):
                read(store, 1)
        handler.reset(topic, {Partition(topic, 0): 8})
        assert offsets(read(store, 2)) == [8, 9]


def test_records_in_hand_when_a_partition_comes_back(
    kafka: LocalKafka, new_topic: Callable[..., str], sqlite: Engine
) -> None:
    """Others may have done a part of them, and the fence is valid again: so poll says that they must be dropped."""
    topic = new_topic(2)
    produce(kafka, topic, 5, 0)
    produce(kafka, topic, 5, 1)
    with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(sqlite)) as store:
        in_hand = read(store, 10)
        deadline = time.monotonic() + 60
        with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(sqlite)) as other:
            with pytest.raises(errors.Fenced, match="taken away and assigned again"):  # noqa: PT012
                while time.monotonic() < deadline:
                    other.poll(0.1)
                    assert store.poll(0.1) is None
            (back,) = store.assignment()
            stale = [each for each in in_hand if each.partition() == back.number]
            with pytest.raises((errors.OffsetOutOfStep, errors.Fenced)), store.transaction() as connection:
                store.save_many(stale, connection)
            again = read(store, 5)
            assert {each.partition() for each in again} == {back.number}
            with store.transaction() as connection:
                write(connection, again)
                store.save_many(again, connection)
    assert landed(sqlite) == [0, 1, 2, 3, 4]


def test_records_in_hand_that_another_has_done_meanwhile(
    kafka: LocalKafka, new_topic: Callable[..., str], sqlite: Engine
) -> None:
    """The user collects records over several polls. A partition was away, and all of what he holds of it is done."""
    topic = new_topic(2)
    produce(kafka, topic, 5, 0)
    produce(kafka, topic, 5, 1)
    in_hand: list[Message] = []

    def collect(store: OffsetStore) -> None:
        try:
            in_hand.extend(store.consume(10, timeout=0.2))
        except errors.Fenced as refused:
            in_hand[:] = [each for each in in_hand if f"{topic}[{each.partition()}]" not in str(refused)]

    with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(sqlite)) as store:
        in_hand += read(store, 10)
        done: list[Message] = []
        deadline = time.monotonic() + 90
        with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(sqlite)) as other:
            while len(done) < 5:
                assert time.monotonic() < deadline
                done += other.consume(5, timeout=0.1)
                collect(store)
            with other.transaction() as connection:
                write(connection, done)
                other.save_many(done, connection)
        away = done[0].partition() or 0
        produce(kafka, topic, 3, away)
        while (away, 7) not in [(each.partition(), each.offset()) for each in in_hand]:
            assert time.monotonic() < deadline
            collect(store)
        mine = [each for each in in_hand if each.partition() == away]
        with store.transaction() as connection:
            write(connection, mine)
            store.save_many(mine, connection)
    assert landed(sqlite) == list(range(8))


def make_again(kafka: LocalKafka, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(timeout=30)
    deadline = time.monotonic() + 90
    while True:
        try:
            admin.create_topics([NewTopic(topic, 1)])[topic].result(timeout=30)
            return
        except Exception:
            assert time.monotonic() < deadline
            time.sleep(0.3)


def test_a_topic_that_is_made_again_under_a_running_consumer(
    kafka: LocalKafka, new_topic: Callable[..., str], sqlite: Engine
) -> None:
    """librdkafka reads on at the old offset (it is paused here, so that it finds it there), and would skip what is before."""
    topic = new_topic()
    produce(kafka, topic, 10)
    settings = config(kafka, topic, enable_auto_commit=False, auto_offset_reset="error")
    consumer, handler = Consumer(settings), SqlOffsets(sqlite)
    with OffsetStore.subscribe(consumer, [topic], handler, config=settings) as store:
        messages = read(store, 10)
        with store.transaction() as connection:
            store.save_many(messages, connection)
        consumer.pause([TopicPartition(topic, 0)])
        make_again(kafka, topic)
        produce(kafka, topic, 30)
        time.sleep(1.1)
        consumer.resume([TopicPartition(topic, 0)])
        for _ in range(2):
            with pytest.raises(errors.TopicRecreated):
                read(store, 1)
        handler.reset(topic, {Partition(topic, 0): 0})
        assert offsets(read(store, 30)) == list(range(30))


def test_an_offset_put_by_hand_is_bound_to_the_topic_again(
    kafka: LocalKafka, new_topic: Callable[..., str], engine: Engine
) -> None:
    """Also where the first transaction after it was rolled back."""
    topic = new_topic()
    produce(kafka, topic, 10)
    handler = SqlOffsets(engine)
    handler.initialize(topic)
    handler.reset(topic, {Partition(topic, 0): 4})
    with OffsetStore.connect(config(kafka, topic), [topic], handler) as store:
        read(store, 2)
        store.rewind()
        messages = read(store, 2)
        assert offsets(messages) == [4, 5]
        with store.transaction() as connection:
            store.save_many(messages, connection)
    make_again(kafka, topic)
    produce(kafka, topic, 10)
    with OffsetStore.connect(config(kafka, topic), [topic], handler) as store, pytest.raises(errors.TopicRecreated):
        read(store, 1)


@pytest.mark.parametrize("group", ["g" * 300, "payments "], ids=["long", "space"])
def test_a_group_that_the_table_cannot_tell_from_another(kafka: LocalKafka, engine: Engine, group: str) -> None:
    """MariaDB would cut the one, and take the other for `payments`: it would begin where that one stands."""
    with pytest.raises(errors.ConfigError, match="group"):
        OffsetStore.connect(config(kafka, group), ["any"], SqlOffsets(engine))


def test_a_topic_that_was_made_again_is_not_read_with_old_offsets(
    kafka: LocalKafka, new_topic: Callable[..., str], sqlite: Engine
) -> None:
    topic = new_topic()
    produce(kafka, topic, 10)
    handler = SqlOffsets(sqlite)
    with OffsetStore.connect(config(kafka, topic), [topic], handler) as store, store.transaction() as connection:
        store.save_many(read(store, 3), connection)
    make_again(kafka, topic)
    produce(kafka, topic, 10)
    with OffsetStore.connect(config(kafka, topic), [topic], handler) as store:
        with pytest.raises(errors.TopicRecreated):
            read(store, 1)
        handler.reset(topic, {Partition(topic, 0): None})
        assert read(store, 1)[0].offset() == 0


def test_gaps_in_offsets_are_normal(kafka: LocalKafka, new_topic: Callable[..., str], sqlite: Engine) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, str(number))
        producer.flush(30)
        producer.abort_transaction(30) if number % 3 == 1 else producer.commit_transaction(30)
    with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(sqlite)) as store:
        for _ in range(4):
            message = read(store, 1)
            with store.transaction() as connection:
                write(connection, message)
                store.save_many(message, connection)
    assert landed(sqlite) == [0, 4, 6, 10]


def test_a_consumer_that_is_there_already(kafka: LocalKafka, new_topic: Callable[..., str], sqlite: Engine) -> None:
    topic = new_topic()
    produce(kafka, topic, 3)
    settings = config(kafka, topic, enable_auto_commit=False, auto_offset_reset="error")
    consumer = Consumer(settings)
    with OffsetStore.subscribe(consumer, [topic], SqlOffsets(sqlite), config=settings) as store:
        messages = read(store, 3)
        with store.transaction() as connection:
            store.save_many(messages, connection)
        produce(kafka, topic, 1)
        around = None
        while around is None:
            around = consumer.poll(0.2)
        with pytest.raises(errors.OffsetOutOfStep, match="from the store's own"), store.transaction() as connection:
            store.save(around, connection)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
def test_a_poll_that_comes_too_late_is_an_expired_store(
    kafka: LocalKafka, new_topic: Callable[..., str], engine: Engine
) -> None:
    topic = new_topic()
    produce(kafka, topic, 5)
    settings = config(kafka, topic, session_timeout_ms=4000, max_poll_interval_ms=4000, heartbeat_interval_ms=300)
    with OffsetStore.connect(settings, [topic], SqlOffsets(engine)) as store:
        messages = read(store, 5)
        assert 0 < store.remaining_ms() <= 4000
        with pytest.raises(errors.OffsetStoreExpired), store.transaction() as connection:  # noqa: PT012
            write(connection, messages)
            time.sleep(4.3)
            store.save_many(messages, connection)
        with pytest.raises(errors.OffsetStoreExpired):
            store.remaining_ms()
        again = read(store, 5)
        assert offsets(again) == [0, 1, 2, 3, 4], "it joined again and begins where the database stands"
        with store.transaction() as connection:
            write(connection, again)
            store.save_many(again, connection)
    assert landed(engine) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "protocol", [{}, pytest.param({"group_protocol": "consumer"}, marks=pytest.mark.long)], ids=["classic", "consumer"]
)
def test_topics_by_a_pattern(
    kafka: LocalKafka, new_topic: Callable[..., str], sqlite: Engine, protocol: dict[str, str]
) -> None:
    """Those that match, also one that is made later, and no others. One that is deleted is missed, and takes nothing along."""
    prefix = f"{new_topic()}-"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def make(name: str) -> None:
        admin.create_topics([NewTopic(name, 1)])[name].result(timeout=30)
        produce(kafka, name, 3)

    make(f"{prefix}a")
    make(f"not-{prefix}a")
    settings = config(kafka, prefix, topic_metadata_refresh_interval_ms="300", **protocol)
    with OffsetStore.connect(settings, [f"^{prefix}.*"], SqlOffsets(sqlite)) as store:
        for name in ("a", "b"):
            if name == "b":
                make(f"{prefix}b")
            messages = read(store, 3)
            assert {each.topic() for each in messages} == {f"{prefix}{name}"}
            with store.transaction() as connection:
                write(connection, messages)
                store.save_many(messages, connection)
        admin.delete_topics([f"{prefix}a"])[f"{prefix}a"].result(timeout=30)
        until = time.monotonic() + 90
        while [each.topic for each in store.assignment()] != [f"{prefix}b"]:
            assert time.monotonic() < until
            with suppress(errors.TopicMissing):  # until the group knows
                assert store.consume(1, timeout=0.1) == []
        produce(kafka, f"{prefix}b", 1)
        (last,) = read(store, 1)
        with store.transaction() as connection:
            write(connection, [last])
            store.save(last, connection)
    with sqlite.connect() as connection:
        rows = connection.execute(text("SELECT topic, count(*), count(DISTINCT off) FROM results GROUP BY topic"))
        assert {row[0]: (row[1], row[2]) for row in rows} == {f"{prefix}a": (3, 3), f"{prefix}b": (4, 4)}


def test_topics_that_cannot_be_subscribed(kafka: LocalKafka, sqlite: Engine) -> None:
    for topics, says in ((["^orders-("], "pattern"), ("orders", "list")):
        with pytest.raises(errors.ConfigError, match=says):
            OffsetStore.connect(config(kafka, "wrong"), topics, SqlOffsets(sqlite))


def metadata_in_kafka(kafka: LocalKafka, group: str, topic: str) -> str | None:
    with closing(Consumer(config(kafka, group))) as consumer:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=20)
    return found.metadata


def test_who_saved_an_offset_and_a_text_with_it(
    kafka: LocalKafka, new_topic: Callable[..., str], engine: Engine
) -> None:
    """Stored in the transaction, sent to Kafka, and given back to the next consumer. A rollback takes it back."""
    topic = new_topic()
    produce(kafka, topic, 4)
    handler = SqlOffsets(engine)
    settings, here = config(kafka, topic), Partition(topic, 0)
    with OffsetStore.connect(settings, [topic], handler, commit_to_kafka="sync") as store:
        first = read(store, 2)
        assert store.origins()[here].metadata == ""
        with store.transaction() as connection:
            store.save(first[0], connection, metadata="file 7 \u20ac")
        mine = store.origins()[here]
        assert mine.member
        assert mine.generation is not None
        assert mine.metadata == "file 7 \u20ac"
        assert metadata_in_kafka(kafka, topic, topic) == "file 7 \u20ac"
        with pytest.raises(ZeroDivisionError), store.transaction() as connection:  # noqa: PT012
            store.save(first[1], connection, metadata="file 8")
            raise ZeroDivisionError
        read(store, 1)
        assert store.origins()[here] == mine
        with pytest.raises(errors.ConfigError, match="4097 bytes"), store.transaction() as connection:
            store.save(first[1], connection, metadata="x" * 4097)
    with engine.connect() as connection:
        row = connection.execute(text("SELECT member, generation, metadata FROM landonce_offset")).one()
    assert tuple(row) == (mine.member, mine.generation, mine.metadata)
    with OffsetStore.connect(settings, [topic], handler) as store:
        read(store, 1)
        assert store.origins() == {here: mine}
    handler.reset(topic, {here: 0})
    with OffsetStore.connect(settings, [topic], handler) as store:
        assert offsets(read(store, 1)) == [0]
        assert store.origins()[here].member == ""


def test_a_table_from_before_goes_on(kafka: LocalKafka, new_topic: Callable[..., str], engine: Engine) -> None:
    """It has no columns for who saved; they are added, and the offset counts."""
    topic = new_topic()
    produce(kafka, topic, 3)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE landonce_offset (consumer_group VARCHAR(255), topic VARCHAR(249), kafka_partition INTEGER, "
                "next_offset BIGINT, epoch BIGINT NOT NULL, owner VARCHAR(32) NOT NULL, topic_id VARCHAR(64) NOT NULL, "
                "PRIMARY KEY (consumer_group, topic, kafka_partition))"
            )
        )
        connection.execute(text(f"INSERT INTO landonce_offset VALUES ('{topic}', '{topic}', 0, 1, 5, 'me', '')"))
    with OffsetStore.connect(config(kafka, topic), [topic], SqlOffsets(engine)) as store:
        messages = read(store, 2)
        assert offsets(messages) == [1, 2]
        with store.transaction() as connection:
            store.save_many(messages, connection, metadata="new")
    assert stored(engine, topic) == {0: 3}


def test_a_plain_connection_of_the_driver(kafka: LocalKafka, new_topic: Callable[..., str], engine: Engine) -> None:
    """The user's own connection and cursor, without SQLAlchemy: commit, rollback, and a successor that fences."""
    topic = new_topic()
    produce(kafka, topic, 6)
    handler, mark = SqlOffsets(engine), "?" if engine.dialect.name == "sqlite" else "%s"
    row = f"INSERT INTO results VALUES ({mark}, {mark}, {mark})"
    driver: Any = engine.dialect.loaded_dbapi
    with closing(_plain(engine)) as plain, OffsetStore.connect(config(kafka, topic), [topic], handler) as store:
        for end in (plain.rollback, plain.commit):
            messages = read(store, 4)
            plain.cursor().executemany(row, [(each.topic(), each.partition(), each.offset()) for each in messages])
            store.save_many(messages[:3], plain, metadata="half")
            store.save_many(messages, plain, metadata="plain")
            end()
            (store.committed if end == plain.commit else store.rewind)()
        assert landed(engine) == [0, 1, 2, 3]
        assert stored(engine, topic) == {0: 4}
        assert store.origins()[Partition(topic, 0)].metadata == "plain"

        more = read(store, 2)
        with store.transaction() as connection:
            inside: Any = connection.connection.driver_connection
            inside.cursor().execute(row, (topic, 0, 4))
            store.save(more[0], connection)
        assert landed(engine) == [0, 1, 2, 3, 4]
        handler.load(topic, [Partition(topic, 0)])
        with pytest.raises(errors.Fenced):
            store.save(more[1], plain)
        plain.rollback()
        store.rewind()
        handler.reset(topic, {Partition(topic, 0): 2})
    with closing(_plain(engine)) as plain, OffsetStore.connect(config(kafka, topic), [topic], handler) as store:
        messages = read(store, 1)
        with engine.begin() as connection:
            connection.execute(text("UPDATE landonce_offset SET next_offset = 5"))
        with pytest.raises(errors.OffsetOutOfStep, match="stored offset is 5"):
            store.save_many(messages, plain)
        plain.rollback()
        with closing(_plain(engine, alone=True)) as alone, pytest.raises(errors.ConfigError, match="by itself"):
            store.save_many(messages, alone)
        other = _OtherDriver()
        with pytest.raises(errors.ConfigError, match=f"a connection of {driver.__name__.partition('.')[0]}"):
            store.save_many(messages, other)
        store.rewind()


def test_a_transaction_on_a_connection_whose_statements_commit_by_themselves_otherwise(
    kafka: LocalKafka, new_topic: Callable[..., str], engine: Engine
) -> None:
    """As psycopg's `with connection.transaction():`, which it recommends with `autocommit`: results and offset are one transaction there, and
    after it the connection is refused again."""
    topic = new_topic()
    produce(kafka, topic, 4)
    handler, mark = SqlOffsets(engine), "?" if engine.dialect.name == "sqlite" else "%s"
    row = f"INSERT INTO results VALUES ({mark}, {mark}, {mark})"
    with (
        closing(_plain(engine, alone=True)) as plain,
        OffsetStore.connect(config(kafka, topic), [topic], handler) as store,
    ):
        for error in (ZeroDivisionError, None):
            messages = read(store, 4)
            with pytest.raises(errors.ConfigError, match="by itself"):
                store.save_many(messages, plain)
            with suppress(ZeroDivisionError), _begun(plain):
                plain.cursor().executemany(row, [(each.topic(), each.partition(), each.offset()) for each in messages])
                store.save_many(messages, plain)
                if error is not None:
                    raise error
            (store.committed if error is None else store.rewind)()
            assert landed(engine) == ([0, 1, 2, 3] if error is None else [])
        assert stored(engine, topic) == {0: 4}


@pytest.mark.parametrize(
    ("database", "driver"),
    [
        ("postgres", "psycopg"),
        ("postgres", "asyncpg"),
        ("sqlite", "aiosqlite"),
        pytest.param("mariadb", "aiomysql", marks=pytest.mark.long),
        pytest.param("mariadb", "asyncmy", marks=pytest.mark.long),
    ],
)
def test_an_async_engine(
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    database: str,
    driver: str,
) -> None:
    """Results and offsets in a transaction that is awaited: rollback, commit, a session, and a successor that fences."""
    topic = new_topic()
    produce(kafka, topic, 6)
    url = f"sqlite:///{tmp_path}/db" if database == "sqlite" else request.getfixturevalue(database).url
    judge = create_engine(url)
    with judge.begin() as connection:
        for statement in ("DROP TABLE IF EXISTS results", "DROP TABLE IF EXISTS landonce_offset", RESULTS):
            connection.execute(text(statement))

    async def consume() -> None:
        engine = create_async_engine(make_url(url).set(drivername=f"{make_url(url).get_backend_name()}+{driver}"))
        handler = SqlOffsets(engine)
        with OffsetStore.connect(config(kafka, topic), [topic], handler) as store:
            for end in (asyncio.CancelledError, None):
                messages = await asyncio.to_thread(read, store, 4)
                with suppress(asyncio.CancelledError):
                    async with engine.begin() as connection:
                        await connection.run_sync(write, messages)
                        await connection.run_sync(lambda plain, done: store.save_many(done, plain), messages)
                        if end is not None:
                            raise end
                (store.rewind if end else store.committed)()
                assert (landed(judge), stored(judge, topic)) == (([], {0: 0}) if end else ([0, 1, 2, 3], {0: 4}))

            more = await asyncio.to_thread(read, store, 2)
            async with AsyncSession(engine) as session:
                await session.run_sync(lambda plain: write(plain.connection(), more[:1]))
                await session.run_sync(lambda plain: store.save(more[0], plain))
                await session.commit()
            store.committed()
            assert (landed(judge), stored(judge, topic)) == ([0, 1, 2, 3, 4], {0: 5})

            alone = engine.execution_options(isolation_level="AUTOCOMMIT")
            async with alone.connect() as connection:
                with pytest.raises(errors.ConfigError, match="by itself"):
                    await connection.run_sync(lambda plain: store.save(more[1], plain))
                await connection.execute(text("BEGIN"))
                await connection.run_sync(lambda plain: store.save(more[1], plain))
                await connection.execute(text("ROLLBACK"))
            store.rewind()
            more[1:] = await asyncio.to_thread(read, store, 1)
            async with engine.connect() as connection:
                with pytest.raises(errors.ConfigError, match="an AsyncConnection cannot be waited for here"):
                    store.save(more[1], connection)
            handler.load(topic, [Partition(topic, 0)])
            async with engine.connect() as connection:
                await connection.run_sync(write, more[1:])
                with pytest.raises(errors.Fenced):
                    await connection.run_sync(lambda plain: store.save(more[1], plain))
            store.rewind()
        await engine.dispose()

    asyncio.run(consume())
    assert landed(judge) == [0, 1, 2, 3, 4]
    judge.dispose()


def test_offsets_in_the_rows_of_results(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> None:
    """A store without transactions: a rollback leaves nothing, and of two consumers with one partition the newer one writes."""
    topic = new_topic()
    produce(kafka, topic, 6)
    handler = OffsetsInRows(str(tmp_path / "results.db"))

    def rows() -> list[tuple[str, int]]:
        with closing(sqlite3.connect(handler.path)) as connection:
            return connection.execute(
                "SELECT result, next FROM results WHERE result IS NOT NULL ORDER BY id"
            ).fetchall()

    with OffsetStore.connect(config(kafka, topic), [topic], handler) as store:
        for fails in (True, False):
            messages = read(store, 3)
            with suppress(ZeroDivisionError), store.transaction() as gathered:
                for each in messages:
                    gathered.add(each.value().decode())
                    store.save(each, gathered)
                if fails:
                    raise ZeroDivisionError
            assert rows() == ([] if fails else [("0", 1), ("1", 2), ("2", 3)])
        more = read(store, 3)

        def too_late() -> None:
            with store.transaction() as gathered:
                gathered.add("late")
                store.save_many(more, gathered)
                OffsetsInRows(handler.path).load(topic, [Partition(topic, 0)])

        with pytest.raises(errors.Fenced):
            too_late()
    with OffsetStore.connect(config(kafka, topic), [topic], handler) as store:
        messages = read(store, 3)
        with store.transaction() as gathered:
            gathered.add("3 to 5")
            store.save_many(messages, gathered)
    assert rows() == [("0", 1), ("1", 2), ("2", 3), ("3 to 5", 6)]


KILLED = """
import json, os, signal, sys
from offsets_in_rows import OffsetsInRows
from landonce.consumer import OffsetStore
path, topic, moment, config = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])

class Killed(OffsetsInRows):
    def write(self, rows, seen):
        if rows[0][0] is None:
            return super().write(rows, seen)
        if moment == "after":
            super().write(rows, seen)
        os.kill(os.getpid(), signal.SIGKILL)

with OffsetStore.connect(config, [topic], Killed(path)) as store:
    while not (messages := store.consume(3)):
        pass
    with store.transaction() as gathered:
        for each in messages:
            gathered.add(each.value().decode())
            store.save(each, gathered)
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_consumer_with_offsets_in_rows_is_killed(
    kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path, moment: str
) -> None:
    """With `kill -9`, around its one write. A static member comes back at once."""
    topic, path = new_topic(), str(tmp_path / "results.db")
    produce(kafka, topic, 6)
    settings = config(kafka, topic, **{"group.instance.id": "one"})
    words = [sys.executable, "-c", KILLED, path, topic, moment, json.dumps(settings)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(words, env=environment, timeout=120).returncode == -signal.SIGKILL

    def results() -> list[str]:
        asked = "SELECT result FROM results WHERE result IS NOT NULL ORDER BY id"
        with closing(sqlite3.connect(path)) as connection:
            return [row[0] for row in connection.execute(asked)]

    landed_before = len(results())
    assert (landed_before > 0) == (moment == "after")
    with OffsetStore.connect(settings, [topic], OffsetsInRows(path)) as store:
        messages = read(store, 6 - landed_before)
        with store.transaction() as gathered:
            for each in messages:
                gathered.add(each.value().decode())
                store.save(each, gathered)
    assert results() == [str(number) for number in range(6)]


def test_an_async_driver_whose_waiting_twin_is_not_known() -> None:
    class Elsewhere:
        url, dialect = make_url("postgresql+newest://host/database"), postgresql.dialect()

    with pytest.raises(errors.ConfigError, match=r"through postgresql\+newest"):
        SqlOffsets(Elsewhere())  # type: ignore[arg-type]


class _OtherDriver:
    """A connection that is none of the engine's driver."""


@contextmanager
def _begun(connection: Any) -> Iterator[None]:
    """A transaction that the user begins on a connection whose statements commit by themselves otherwise."""
    if hasattr(connection, "transaction"):
        with connection.transaction():
            yield
        return
    connection.cursor().execute("BEGIN")
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


def _plain(engine: Engine, *, alone: bool = False) -> Any:
    """As a user opens it. `alone`: each statement commits by itself."""
    driver: Any = engine.dialect.loaded_dbapi
    arguments, options = engine.dialect.create_connect_args(engine.url)
    return driver.connect(
        *arguments,
        **options,
        **(
            {"isolation_level": None}
            if alone and engine.dialect.name == "sqlite"
            else {"autocommit": True}
            if alone
            else {}
        ),
    )
