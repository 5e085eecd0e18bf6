"""A user's own streaming query is killed for real, in its driver and in its workers: 0 missing, 0 twice."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import oracle
import pytest
import query_driver
from harness import Drivers, Feed, Home
from scene import wait_for
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

    home: Home
    feed: Feed
    arguments: tuple[str, ...]
    rows: Callable[[], list[oracle.Row]]

    @contextmanager
    def drivers(self, per_trigger: int = 16, master: str = "local[2]") -> Iterator[Drivers]:
        command = (
            sys.executable,
            query_driver.__file__,
            *self.arguments,
            str(self.home.folder),
            str(per_trigger),
            master,
        )
        with Drivers(self.home, command=command) as drivers:
            drivers.runs += [None] * len(list(self.home.folder.glob("run-*.log")))  # type: ignore[list-item]
            try:
                yield drivers
            finally:
                drivers.runs = [each for each in drivers.runs if each is not None]

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
) -> Query:
    topic, table = new_topic(partitions=2), new_table()
    oracle.ask(clickhouse.url, IN_CLICKHOUSE.format(table))
    arguments = (kafka.bootstrap_servers, topic, "clickhouse", clickhouse.url, table)
    return Query(
        Home(tmp_path), Feed(kafka.bootstrap_servers, topic), arguments, lambda: oracle.rows(clickhouse.url, table)
    )


@pytest.fixture
def in_postgres(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], new_database: Callable[[], str]
) -> Query:
    topic, url = new_topic(partitions=2), new_database()
    judge = postgres_judge(url)
    import psycopg

    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute(IN_POSTGRES)
    arguments = (kafka.bootstrap_servers, topic, "sql", url, "events")
    select = "SELECT _topic, _partition, _offset, id, word, amount FROM events"
    return Query(Home(tmp_path), Feed(kafka.bootstrap_servers, topic), arguments, lambda: judge.ask(select))


def killed_everywhere(query: Query, places: list[tuple[str, int]]) -> None:
    """Kills in a chain, each in another cut than the one before; in the middle the checkpoint is lost, too."""
    query.feed.more(40)
    for number, (place, skip) in enumerate(places):
        with query.drivers(per_trigger=16 - 5 * (number % 2)) as drivers:
            drivers.kill_at(place, skip=skip)
        query.unspoiled()
        query.feed.more(8)
        if number % 2:
            shutil.rmtree(query.home.folder / "checkpoint", ignore_errors=True)
    with query.drivers() as drivers:
        drivers.drain()
    query.exact()


def test_a_query_into_clickhouse_is_killed_and_lands_everything_once(in_clickhouse: Query) -> None:
    killed_everywhere(in_clickhouse, [("send.after", 1), ("record.before", 1), ("rearm.after", 0)])


def test_a_query_into_postgres_is_killed_and_lands_everything_once(in_postgres: Query) -> None:
    killed_everywhere(in_postgres, [("rows.after", 1), ("landed.after", 1), ("record.before", 0)])


@pytest.mark.long
def test_a_query_into_clickhouse_is_killed_at_every_step(in_clickhouse: Query) -> None:
    steps = ("acquire", "kill", "look", "bind", "survey", "prepare", "write", "record")
    places = [(f"{step}.{when}", 0) for step in steps for when in ("before", "after")]
    again = [(f"{step}.{when}", 0) for step in ("await", "rearm", "probe") for when in ("before", "after")]
    killed_everywhere(in_clickhouse, [*places, ("prepare.after", 0), *again, ("send.before", 0), ("resolve.before", 0)])


@pytest.mark.long
def test_a_query_into_postgres_is_killed_at_every_step(in_postgres: Query) -> None:
    steps = ("acquire", "look", "bind", "prepare", "write", "record")
    places = [(f"{step}.{when}", 0) for step in steps for when in ("before", "after")]
    workers = [("flip.before", 0), ("flip.after", 0), ("rows.after", 0), ("landed.after", 1)]
    killed_everywhere(in_postgres, [*places, ("prepare.after", 0), *workers])


@pytest.mark.parametrize(("fixture", "place"), [("in_clickhouse", "send.after"), ("in_postgres", "landed.after")])
def test_a_task_that_fails_after_its_write_is_run_again_and_writes_nothing(
    request: pytest.FixtureRequest, fixture: str, place: str
) -> None:
    query: Query = request.getfixturevalue(fixture)
    query.feed.more(32)
    with query.drivers(master="local[2,4]") as drivers:
        go = query.home.folder / "go"
        run = drivers.start(place, go=go)
        run.wait_reached()
        worker = int(run.reached.read_text().split()[1])
        wait_for(lambda: len(query.rows()) > 0, "the block has landed", run)
        go.touch()
        os.kill(worker, signal.SIGKILL)
        assert run.finish() == 0, run.tail()
    query.exact()
