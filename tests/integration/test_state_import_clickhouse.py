"""`landonce state import` after ClickHouse's sink for Kafka Connect: its state table as the connector's source makes and fills it, and once as
the connector itself left it behind; real topics, and rows that stand for the connector's. What lands is counted in the table, apart from landonce."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from deliveries import Site, do, send, wait_until
from typer.testing import CliRunner

from landonce.cli import app
from landonce.engine.pipeline import run_pipeline
from landonce.errors import ConfigError, ImportRefused, PartialPresence
from landonce.local import LocalClickHouse, LocalKafka
from landonce.sinks.pipeline_file import parse

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
BEFORE, AFTER = "BEFORE_PROCESSING", "AFTER_PROCESSING"


class Moving(Site):
    """One topic, the table that the connector wrote, and the connector's state table."""

    states = "connect_state"

    @property
    def topic(self) -> str:
        return self.topics[0]

    def connector_begins(self, columns: str = "id Int64", *, coordinates: bool = True) -> None:
        """`KeeperStateProvider.init`, and a table for the records."""
        do(
            self.clickhouse.url,
            f"CREATE TABLE IF NOT EXISTS `{self.states}` (`key` String, minOffset BIGINT, maxOffset BIGINT, state String) "
            f"ENGINE=KeeperMap('/{self.table}') PRIMARY KEY `key`;",
        )
        if coordinates:
            self.make(columns)
        else:
            window = "SETTINGS non_replicated_deduplication_window = 1000"
            do(self.clickhouse.url, f"CREATE TABLE {self.table} ({columns}) ENGINE = MergeTree ORDER BY id {window}")

    def says(self, partition: int, first: int, last: int, state: str, topic: str = "") -> None:
        """`KeeperStateProvider.setStateRecord`."""
        key = f"{topic or self.topic}-{partition}"
        do(
            self.clickhouse.url,
            f"INSERT INTO `{self.states}` SETTINGS wait_for_async_insert=1 VALUES ('{key}', {first}, {last}, '{state}');",
        )

    def lands(self, partition: int, first: int, last: int, *, named: str | None = None) -> None:
        """Rows of these records, with the coordinates that Kafka Connect's `InsertField` adds. Their ids are those of `produce`."""
        topic = self.topic if named is None else named
        rows = ", ".join(
            f"({partition * 1000 + each}, '{topic}', {partition}, {each})" for each in range(first, last + 1)
        )
        do(self.clickhouse.url, f"INSERT INTO {self.table} (id, _topic, _partition, _offset) VALUES {rows}")

    def delivers(self, partition: int, first: int, last: int, *, landed: bool = True, state: str = AFTER) -> None:
        """One batch of the connector (`Processing.doLogic`)."""
        self.says(partition, first, last, BEFORE)
        if landed:
            self.lands(partition, first, last)
        if state == AFTER:
            self.says(partition, first, last, AFTER)

    def produce(self, partition: int, count: int, first: int = 0) -> None:
        send(
            self.kafka, self.topic, [{"id": partition * 1000 + each} for each in range(first, first + count)], partition
        )

    def imports(self, *words: str) -> str:
        done = CliRunner().invoke(app, ["state", "import", str(self.file), *words, "--yes"])
        assert done.exit_code == 0, (done.output, done.exception)
        return " ".join(done.output.split())

    def refuses(self, *words: str) -> str:
        """What is said; the pipeline has no position afterwards."""
        done = CliRunner().invoke(app, ["state", "import", str(self.file), *words, "--yes"])
        assert isinstance(done.exception, ImportRefused), (done.output, done.exception)
        assert done.exception.safe == "Nothing was changed."
        assert "no position yet" in str(
            CliRunner().invoke(app, ["state", "rewind", str(self.file), "--by", "1h"]).exception
        )
        return f"{done.exception} {done.exception.command}"

    def run(self) -> None:
        run_pipeline(parse(self.file.read_text(), self.file), once=True)

    def ids(self) -> Counter[int]:
        return Counter(int(row["id"]) for row in self.ask(f"SELECT id FROM {self.table}"))

    def shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(CliRunner().invoke(app, ["state", "show", str(self.file), "--json"]).output)
        return shown


STATE = ("--from-clickhouse-connect",)


@pytest.fixture
def moving(
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_table: Callable[[], str],
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> Iterator[Moving]:
    site = Moving(kafka, clickhouse, tmp_path, new_table(), [new_topic(3)])
    site.write_file(kafka={"schema": "id BIGINT"}, clickhouse={"deadline": "1s"})
    yield site
    do(clickhouse.url, f"DROP TABLE IF EXISTS {site.states} SYNC")


def once_each(*counts: int) -> Counter[int]:
    return Counter(partition * 1000 + each for partition, count in enumerate(counts) for each in range(count))


def test_no_gap_and_no_overlap(moving: Moving) -> None:
    """Three partitions: the last insert was confirmed, landed unconfirmed, and never arrived."""
    moving.connector_begins()
    for partition in range(3):
        moving.produce(partition, 30)
        moving.delivers(partition, 0, 9)
    moving.delivers(0, 10, 19)
    moving.delivers(1, 10, 19, state=BEFORE)
    moving.delivers(2, 10, 19, landed=False, state=BEFORE)
    moving.says(0, 0, 499, AFTER, topic="of-another-connector")

    said = moving.imports(*STATE)
    assert f"{moving.topic}[0]: next offset 20, lag 10; AFTER_PROCESSING [10, 19]" in said
    assert f"{moving.topic}[1]: next offset 20, lag 10; BEFORE_PROCESSING [10, 19], and the table holds all 10" in said
    assert f"{moving.topic}[2]: next offset 10, lag 20; BEFORE_PROCESSING [10, 19], and the table holds none" in said
    assert "stop it first" in said
    (note,) = moving.shown()["journal"]
    assert note["action"] == "import"
    assert "BEFORE_PROCESSING [10, 19]" in note["detail"]

    moving.run()
    assert moving.ids() == once_each(30, 30, 30)
    moving.produce(1, 5, first=30)
    moving.run()
    assert moving.ids() == once_each(30, 35, 30)
    audited = CliRunner().invoke(app, ["verify", str(moving.file), "--values"])
    assert audited.exit_code == 0, audited.output
    again = CliRunner().invoke(app, ["state", "import", str(moving.file), *STATE, "--yes"]).exception
    assert isinstance(again, ImportRefused)
    assert "has a position already" in str(again)


RECORDED_TABLE = """\
CREATE TABLE default.connect_state
(
    `key` String,
    `minOffset` Int64,
    `maxOffset` Int64,
    `state` String
)
ENGINE = KeeperMap('/kafka-connect')
PRIMARY KEY key
"""
RECORDED_ROWS = """\
clicks-0	9800	9999	AFTER_PROCESSING
clicks-1	2000	2199	BEFORE_PROCESSING
clicks-2	2000	2199	BEFORE_PROCESSING
"""
"""What clickhouse-kafka-connect 1.5.0 left behind, as ClickHouse 26.9 showed it. Its three tasks, on Kafka Connect 4.1.1, landed up to 200
records at a time from a topic of three partitions with 10,000 records each. Then the network between it and ClickHouse was cut (an insert of
partition 1 never arrived, the answer to one of partition 2 never came back), and the worker was killed."""
RECORDED_LANDED = 10_000, 2000, 2200
"""The rows of each partition that the table held then: all from offset 0 on."""


def test_the_recorded_state_of_the_real_connector(moving: Moving) -> None:
    """Its definition and its rows, but for the names: the topic, the table and its path in Keeper are this test's own."""
    moving.connector_begins()
    retyped, path = definition(moving), f"/{moving.table}"
    do(moving.clickhouse.url, f"DROP TABLE {moving.states} SYNC")
    do(moving.clickhouse.url, RECORDED_TABLE.replace("/kafka-connect", path))
    assert definition(moving) == retyped, "what this module retypes from the connector's source is what it makes"
    rows = RECORDED_ROWS.replace("clicks", moving.topic)
    do(moving.clickhouse.url, f"INSERT INTO {moving.states} FORMAT TSV\n{rows}")
    for partition, landed in enumerate(RECORDED_LANDED):
        first = partition * 10_000
        send(moving.kafka, moving.topic, [{"id": first + each} for each in range(10_000)], partition)
        do(
            moving.clickhouse.url,
            f"INSERT INTO {moving.table} (id, _topic, _partition, _offset) "
            f"SELECT {first} + number, '{moving.topic}', {partition}, number FROM numbers({landed})",
        )

    said = moving.imports(*STATE)
    assert "[0]: next offset 10000, lag 0; AFTER_PROCESSING [9800, 9999]" in said
    assert "[1]: next offset 2000, lag 8000; BEFORE_PROCESSING [2000, 2199], and the table holds none of its" in said
    assert "[2]: next offset 2200, lag 7800; BEFORE_PROCESSING [2000, 2199], and the table holds all 200" in said
    moving.run()
    assert moving.ids() == Counter(range(30_000))


def definition(moving: Moving) -> str:
    (row,) = moving.ask(f"SELECT create_table_query FROM system.tables WHERE name = '{moving.states}'")
    return str(row["create_table_query"])


def test_a_batch_that_is_there_in_part(moving: Moving) -> None:
    """Refused; an operator decides, and then every record still lands once."""
    moving.states = f"states_{moving.table}"
    moving.connector_begins()
    for partition in range(3):
        moving.produce(partition, 12)
        moving.delivers(partition, 0, 9)
    moving.delivers(1, 10, 11, landed=False, state=BEFORE)
    moving.lands(1, 11, 11)
    said = moving.refuses(*STATE, moving.states)
    assert "[1]" in said
    assert "holds 1 of its 2 records" in said
    assert "state fill" in said
    assert "counts as absent: you said so" in moving.imports(*STATE, moving.states, "--before", "absent")
    with pytest.raises(PartialPresence):
        moving.run()
    assert CliRunner().invoke(app, ["state", "fill", str(moving.file), "--yes"]).exit_code == 0
    moving.run()
    assert moving.ids() == once_each(12, 12, 12)


@pytest.mark.parametrize(("before", "begins"), [("landed", 20), ("absent", 10)])
def test_a_table_without_coordinates(moving: Moving, before: str, begins: int) -> None:
    """What is confirmed is taken over; what is not, nobody can tell but a person, also once the columns are there."""
    moving.connector_begins(coordinates=False)
    for partition in range(3):
        moving.produce(partition, 25)
        moving.says(partition, 0, 19, AFTER)
    values = ", ".join(f"({each})" for each in once_each(20, 20 if before == "landed" else 10, 20))
    do(moving.clickhouse.url, f"INSERT INTO {moving.table} VALUES {values}")
    moving.says(1, 10, 19, BEFORE)
    assert "has no coordinates" in moving.refuses(*STATE)
    add = "ADD COLUMN _topic LowCardinality(String), ADD COLUMN _partition Int32, ADD COLUMN _offset Int64"
    do(moving.clickhouse.url, f"ALTER TABLE {moving.table} {add}")
    said = moving.refuses(*STATE)
    assert "holds rows without coordinates" in said
    assert "--before" in said
    do(moving.clickhouse.url, f"ALTER TABLE {moving.table} UPDATE _topic = 'other' WHERE 1 SETTINGS mutations_sync = 2")
    assert "no row names the topic" in moving.refuses(*STATE), "an absent row proves nothing in a table of other names"
    assert f"[1]: next offset {begins}," in moving.imports(*STATE, "--before", before)
    moving.run()
    assert moving.ids() == once_each(25, 25, 25)


def test_a_table_without_coordinates_whose_state_is_certain(moving: Moving) -> None:
    moving.connector_begins(coordinates=False)
    for partition in range(3):
        moving.produce(partition, 5)
        moving.says(partition, 0, 4, AFTER)
    assert "nobody can tell whether it holds rows of records from these offsets on" in moving.imports(*STATE)


def test_without_the_import_records_land_twice(moving: Moving) -> None:
    """The control."""
    moving.connector_begins()
    for partition in range(3):
        moving.produce(partition, 5)
        moving.lands(partition, 0, 2, named="")
    moving.run()
    assert moving.ids() == once_each(5, 5, 5) + once_each(3, 3, 3)


@pytest.mark.parametrize(("edge", "landed"), [("earliest", once_each(20, 20, 20)), ("latest", once_each(20, 20))])
def test_a_partition_that_the_state_does_not_name(moving: Moving, edge: str, landed: Counter[int]) -> None:
    moving.connector_begins()
    for partition in range(3):
        moving.produce(partition, 20)
    moving.delivers(0, 0, 9)
    moving.delivers(1, 0, 9)
    said = moving.refuses(*STATE)
    assert f"says nothing of {moving.topic}[2]." in said
    assert "--missing earliest" in said
    assert f"[2]: next offset {20 if edge == 'latest' else 0}," in moving.imports(*STATE, "--missing", edge)
    moving.run()
    assert moving.ids() == landed


def test_offsets_outside_of_the_topic(moving: Moving) -> None:
    moving.connector_begins()
    for partition in range(3):
        moving.produce(partition, 20)
        moving.delivers(partition, 0, 4)
    for state in (AFTER, BEFORE):
        moving.delivers(1, 15, 20, landed=False, state=state)
        assert "the next offset would be 21, and the topic ends at 20" in moving.refuses(*STATE)
    moving.delivers(1, 0, 4, landed=False)

    moving.says(7, 0, 4, AFTER)
    assert "[7], and the topic does not have that partition" in moving.refuses(*STATE)
    do(moving.clickhouse.url, f"DELETE FROM {moving.states} WHERE key = '{moving.topic}-7'")
    moving.says(0, 0, 4, "NONE")
    assert "not a state that the connector writes" in moving.refuses(*STATE)
    moving.says(0, 0, 4, AFTER)

    admin = AdminClient({"bootstrap.servers": moving.kafka.bootstrap_servers})
    (deleted,) = admin.delete_records([TopicPartition(moving.topic, 1, 8)]).values()
    deleted.result(timeout=20)
    said = moving.refuses(*STATE)
    assert "[1]: the next offset would be 5, and the topic now begins at 8: Kafka has deleted [5, 8)" in said
    said = moving.imports(*STATE, "--missing", "earliest")
    assert "[1]: next offset 8, lag 12; AFTER_PROCESSING [0, 4]; [5, 8) is never delivered" in said
    moving.run()
    assert moving.ids() == once_each(20, 20, 20) - Counter((1005, 1006, 1007))


def test_a_connector_that_has_not_stopped(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group has members, its insert still runs, or its state moves while a person decides."""
    moving.connector_begins()
    for partition in range(3):
        moving.produce(partition, 20)
        moving.delivers(partition, 0, 4)
    with member(moving, "connect-clicks"):
        said = moving.refuses(*STATE, "--group", "connect-clicks")
    assert "has 1 active members: the connector is running" in said

    with slow_insert(moving, moving.table):
        assert "is still running" in moving.refuses(*STATE)

    with monkeypatch.context() as patch:
        patch.setattr("typer.confirm", lambda *_, **__: moving.delivers(0, 5, 9))
        done = CliRunner().invoke(app, ["state", "import", str(moving.file), *STATE])
    assert "went on while this was decided" in str(done.exception)
    do(moving.clickhouse.url, f"CREATE TABLE {moving.table}_old (id Int64) ENGINE = Null")
    with slow_insert(moving, f"{moving.table}_old"):
        assert "[0]: next offset 10, lag 10" in moving.imports(*STATE, "--group", "connect-clicks")
    moving.run()
    assert moving.ids() == once_each(20, 20, 20)


@contextmanager
def slow_insert(moving: Moving, table: str) -> Iterator[None]:
    statement = f"INSERT INTO {table} (id) SELECT sleepEachRow(1)"
    insert = threading.Thread(
        target=lambda: suppressed(moving, f"{statement} FROM numbers(60) SETTINGS max_block_size = 1")
    )
    insert.start()
    try:
        wait_until(lambda: bool(moving.ask(f"SELECT 1 FROM system.processes WHERE query LIKE '{statement}%'")))
        yield
    finally:
        do(moving.clickhouse.url, f"KILL QUERY WHERE query LIKE '{statement}%' SYNC")
        insert.join(30)


def suppressed(moving: Moving, statement: str) -> None:
    with suppress(Exception):
        do(moving.clickhouse.url, statement)


@contextmanager
def member(moving: Moving, group: str) -> Iterator[Consumer]:
    """A consumer in the group, with partitions of the topic."""
    consumer = Consumer(
        {"bootstrap.servers": moving.kafka.bootstrap_servers, "group.id": group, "enable.auto.commit": False}
    )
    consumer.subscribe([moving.topic])
    wait_until(lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()))
    try:
        yield consumer
    finally:
        consumer.close()


def test_the_offsets_of_a_group(moving: Moving) -> None:
    """A connector without `exactlyOnce`: the table is ahead of one partition's offset, and its rows have coordinates."""
    moving.connector_begins()
    for partition in range(3):
        moving.produce(partition, 20)
        moving.lands(partition, 0, 9)
    moving.lands(1, 10, 14)
    group = ("--from-group", f"connect-{moving.table}")
    with member(moving, group[1]) as consumer:
        offsets = [TopicPartition(moving.topic, each, 10) for each in range(2)]
        consumer.commit(offsets=offsets, asynchronous=False)
        assert "active members" in moving.refuses(*group)
    assert f"says nothing of {moving.topic}[2]" in moving.refuses(*group)
    committed(moving, group[1], TopicPartition(moving.topic, 2, 10, "7,8"))
    assert "committed metadata ('7,8')" in moving.refuses(*group)
    committed(moving, group[1], TopicPartition(moving.topic, 2, 10))
    assert "may be behind the table" in moving.imports(*group)
    moving.run()
    assert moving.ids() == once_each(20, 20, 20)


def committed(moving: Moving, group: str, offset: TopicPartition) -> None:
    consumer = Consumer({"bootstrap.servers": moving.kafka.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[offset], asynchronous=False)
    consumer.close()


def test_what_is_no_state_and_what_cannot_keep_a_position(moving: Moving, new_table: Callable[[], str]) -> None:
    moving.connector_begins()
    other = new_table()
    assert "is not a state table" in moving.refuses(*STATE, other)
    assert "is not a state table" in moving.refuses(*STATE, moving.table)
    moving.write_file(clickhouse={"table": other})
    assert "the connector wrote elsewhere" in moving.refuses(*STATE)
    moving.write_file(ledger={"sqlite": None, "memory": True})
    wrong: list[tuple[str, ...]] = [
        STATE,
        (*STATE, "--from-connect", "x"),
        ("--from-group", "g", "--before", "landed"),
        ("x",),
        (),
    ]
    for words in wrong:
        done = CliRunner().invoke(app, ["state", "import", str(moving.file), *words, "--yes"])
        assert isinstance(done.exception, ConfigError), words
