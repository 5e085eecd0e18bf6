"""A user's own streaming query is killed for real, in its driver and in its workers: 0 missing, 0 twice."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import iceberg_oracle
import oracle
import psycopg
import pytest
import query_driver
from dedup_scene import Events
from harness import Drivers, Feed, Home
from sql_scene import postgres_judge

from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

IN_CLICKHOUSE = """CREATE TABLE {} (_topic String, _partition Int32, _offset Int64, id Int64, word String, amount Nullable(Float64))
ENGINE = MergeTree ORDER BY (_topic, _partition, _offset) SETTINGS non_replicated_deduplication_window = 1000"""
IN_POSTGRES = """CREATE TABLE events (_topic text NOT NULL, _partition int NOT NULL, _offset bigint NOT NULL,
id bigint, word text, amount double precision)"""


@dataclass
class Query:
    """One query, its drivers, and what it has to land."""

    drivers: Drivers
    feed: Feed
    arguments: tuple[str, ...]
    rows: Callable[[], list[oracle.Row]]

    @property
    def folder(self) -> Path:
        return self.drivers.site.folder

    def cut(self, per_trigger: int = 16, master: str = "local[2]", deadline: int = 4) -> Drivers:
        """Its drivers, which make batches of so many records from now on."""
        options = (str(self.folder), str(per_trigger), master, str(deadline))
        self.drivers.command = (sys.executable, query_driver.__file__, *self.arguments, *options)
        return self.drivers

    def unspoiled(self) -> None:
        assert oracle.twice(self.rows()) == []

    def exact(self) -> None:
        verdict = oracle.compare(oracle.expected_rows(self.feed.produced), self.rows())
        assert verdict.exact, verdict


@pytest.fixture
def in_clickhouse(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> Iterator[Query]:
    topic, table = new_topic(partitions=2), new_table()
    oracle.ask(clickhouse.url, IN_CLICKHOUSE.format(table))
    arguments = (kafka.bootstrap_servers, topic, "clickhouse", clickhouse.url, table)
    feed = Feed(kafka.bootstrap_servers, topic)
    with Drivers(Home(tmp_path)) as drivers:
        yield Query(drivers, feed, arguments, lambda: oracle.rows(clickhouse.url, table))


@dataclass
class UniqueQuery(Query):
    """Of the records with one `id`, one lands."""

    def unspoiled(self) -> None:
        rows = self.rows()
        twice = [id_ for id_, count in Counter(row[3] for row in rows).items() if count > 1]
        assert twice == []
        assert not oracle.compare(oracle.expected_rows(self.feed.produced), rows).surplus

    def exact(self) -> None:
        self.unspoiled()
        ids = {each.payload["id"] for each in self.feed.produced}
        assert len(ids) < len(self.feed.produced), "some were sent again"
        assert {row[3] for row in self.rows()} == ids


@pytest.fixture
def unique(in_clickhouse: Query) -> Query:
    bootstrap, topic, _kind, url, table = in_clickhouse.arguments
    arguments = (bootstrap, topic, "unique", url, table)
    return UniqueQuery(in_clickhouse.drivers, Events(bootstrap, topic), arguments, in_clickhouse.rows)


@pytest.fixture
def in_postgres(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], new_database: Callable[[], str]
) -> Iterator[Query]:
    topic, url = new_topic(partitions=2), new_database()
    judge = postgres_judge(url)
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute(IN_POSTGRES)
    arguments = (kafka.bootstrap_servers, topic, "sql", url, "events")
    select = "SELECT _topic, _partition, _offset, id, word, amount FROM events"
    with Drivers(Home(tmp_path)) as drivers:
        yield Query(drivers, Feed(kafka.bootstrap_servers, topic), arguments, lambda: judge.ask(select))


@pytest.fixture
def in_wrapped(tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]) -> Iterator[Query]:
    """Pushing again would do harm: the target takes whatever it is sent. It can be asked."""
    topic = new_topic(partitions=2)
    arguments = (kafka.bootstrap_servers, topic, "wrapped", str(tmp_path), f"sqlite:///{tmp_path}/ledger")
    with Drivers(Home(tmp_path)) as drivers:
        yield Query(drivers, Feed(kafka.bootstrap_servers, topic), arguments, lambda: in_store(tmp_path / "target.db"))


def in_store(path: Path) -> list[oracle.Row]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        seen = connection.execute("SELECT key, count(*), count(DISTINCT seen) FROM attempts GROUP BY key").fetchall()
        assert all(kinds == 1 for _, _, kinds in seen), seen
        return connection.execute("SELECT * FROM events").fetchall()


@pytest.fixture
def in_iceberg(tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]) -> Iterator[Query]:
    topic, catalog = new_topic(partitions=2), iceberg_oracle.embedded(tmp_path)
    iceberg_oracle.make(catalog, "db.events")
    arguments = (kafka.bootstrap_servers, topic, "iceberg", str(tmp_path), "db.events")
    with Drivers(Home(tmp_path)) as drivers:
        feed = Feed(kafka.bootstrap_servers, topic)
        yield Query(drivers, feed, arguments, lambda: iceberg_oracle.rows(catalog.load_table("db.events")))


LOST = "the checkpoint is lost"


def killed(query: Query, *places: str) -> None:
    """Kills in a chain, each in another cut than the one before. `place+1`: the second time that it is reached.

    Without its checkpoint a query begins again in batches that are smaller than any block: what is pending never comes whole.
    """
    query.feed.more(40)
    cuts = (16, 11)
    for number, place in enumerate(places):
        if place == LOST:
            shutil.rmtree(query.folder / "checkpoint")
            cuts = (4, 4)
            continue
        name, _, skip = place.partition("+")
        query.cut(cuts[number % 2]).kill_at(name, skip=int(skip or 0))
        query.unspoiled()
        query.feed.more(8)
    query.cut().drain()
    query.exact()


@pytest.mark.parametrize(
    "places",
    [
        pytest.param(("send.after+1", LOST), id="once"),
        pytest.param(("send.after+1", "record.before", LOST, "rearm.after"), id="chain", marks=pytest.mark.long),
    ],
)
def test_a_query_into_clickhouse_is_killed_and_lands_everything_once(
    in_clickhouse: Query, places: tuple[str, ...]
) -> None:
    killed(in_clickhouse, *places)


@pytest.mark.parametrize(
    "places",
    [
        pytest.param(("accepted.after+1", LOST), id="once", marks=pytest.mark.long),
        pytest.param(
            ("joined.after", LOST, "send.after", "record.before"),
            id="chain",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_query_with_dedup_is_killed_and_lands_every_event_once(unique: Query, places: tuple[str, ...]) -> None:
    """The producer sends about three of ten events again. The transaction that accepts them was committed, or not, or they were on their way to
    the target."""
    killed(unique, *places)


@pytest.mark.long
def test_a_query_into_iceberg_is_killed_and_lands_everything_once(in_iceberg: Query) -> None:
    """Before a commit, and after one that nobody heard of."""
    killed(in_iceberg, "commit.before+1", LOST, "attempt.after+1")


@pytest.mark.long
def test_a_query_into_postgres_is_killed_and_lands_everything_once(in_postgres: Query) -> None:
    killed(in_postgres, "rows.after+1", "record.before", LOST, "resolve.after")


@pytest.mark.long
def test_a_query_into_a_wrapped_sink_is_killed_and_lands_everything_once(in_wrapped: Query) -> None:
    killed(in_wrapped, "push.after+1", "record.before", LOST, "rearm.after")


@pytest.mark.parametrize(
    ("fixture", "place"),
    [
        ("in_clickhouse", "send.after"),
        pytest.param("in_postgres", "landed.after", marks=pytest.mark.long),
        pytest.param("in_iceberg", "files.after", marks=pytest.mark.long),
        pytest.param("in_wrapped", "push.after", marks=pytest.mark.long),
    ],
)
def test_a_task_that_fails_after_its_write_is_run_again_and_writes_nothing(
    request: pytest.FixtureRequest, fixture: str, place: str
) -> None:
    query: Query = request.getfixturevalue(fixture)
    query.feed.more(32)
    go = query.folder / "go"
    run = query.cut(master="local[2,4]", deadline=15).start(place, go=go)
    run.wait_reached()
    worker = int(run.reached.read_text().split()[1])
    go.touch()
    os.kill(worker, signal.SIGKILL)
    assert run.finish() == 0, run.tail()
    query.exact()
