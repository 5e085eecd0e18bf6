"""A user's own query with speculation on: Spark runs a block's task a second time beside the first, on a cluster of two hosts.

Whichever attempt writes a block stops right after that, for good. So the query comes to its end only if another attempt ran beside it,
and what that one did with a block that had been written is what is looked at.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from query_site import SELECT, Row, Site, in_clickhouse, in_postgres
from test_cluster import LOOPBACK, Cluster

from landonce.local import LocalClickHouse, LocalKafka
from landonce.local.server import kill_tree

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]

DRIVER = Path(__file__).parents[1] / "chaos" / "query_driver.py"
COLUMNS = "id BIGINT, word TEXT, amount FLOAT, _topic TEXT NOT NULL, _partition INT NOT NULL, _offset BIGINT NOT NULL"
IN_CLICKHOUSE = """CREATE TABLE {} (id Nullable(Int64), word Nullable(String), amount Nullable(Float64), _topic String, _partition Int32,
_offset Int64) ENGINE = MergeTree ORDER BY (_topic, _partition, _offset) SETTINGS non_replicated_deduplication_window = 1000"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Spark runs no copy of a task on the host of the first."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), hosts=("127.0.0.1", "127.0.0.2"), cores=2)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path) -> Iterator[Any]:
    """`start(site, place, kind, url, table)` runs the query to its end, and gives what it said."""
    begun: list[subprocess.Popen[bytes]] = []

    def run(site: Site, place: str, kind: str, url: str, table: str) -> str:
        arguments = (site.bootstrap, site.topics[0], kind, url, table, str(tmp_path), "100", cluster.url, "20")
        with (tmp_path / "log").open("wb") as log:
            begun.append(
                subprocess.Popen(
                    [sys.executable, str(DRIVER), *arguments],
                    env=os.environ | {"PYSPARK_SUBMIT_ARGS": arguments(place, tmp_path)},
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        code = begun[-1].wait(900)
        said = (tmp_path / "log").read_text(errors="replace")
        assert code == 0, said[-4000:]
        return said

    yield run
    for process in begun:
        kill_tree(process.pid)
        process.wait(20)


def arguments(place: str, folder: Path) -> str:
    """Tasks that take longer than two seconds are speculated, also where none has ended yet."""
    conf = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.task.duration.threshold": "2s",
        "spark.executorEnv.LANDONCE_FAILPOINT": place,
        "spark.executorEnv.LANDONCE_FAILPOINT_FILE": str(folder / "reached"),
    }
    return " ".join(f"--conf {name}={value}" for name, value in conf.items()) + " pyspark-shell"


@pytest.fixture
def open_site(kafka: LocalKafka, tmp_path: Path, new_topic: Callable[..., str]) -> Callable[..., Site]:
    def open_(ask: Callable[[], list[Row]]) -> Site:
        nothing: Any = None
        site = Site(nothing, kafka.bootstrap_servers, (new_topic(partitions=2),), tmp_path, nothing, ask)
        site.produce(20)
        return site

    return open_


def test_copies_of_tasks_write_nothing_twice_to_clickhouse(
    start: Any, open_site: Any, clickhouse: LocalClickHouse, new_table: Callable[[], str], tmp_path: Path
) -> None:
    table = new_table()
    clickhouse.ask(IN_CLICKHOUSE.format(table))

    site = open_site(lambda: in_clickhouse(clickhouse, table))
    said = start(site, "send.after", "clickhouse", clickhouse.url, table)
    assert (tmp_path / "reached").exists()
    assert "Spark ran the task again" in said
    site.exact()


def test_copies_of_tasks_write_nothing_twice_to_postgres(
    start: Any, open_site: Any, new_database: Callable[[], str], tmp_path: Path
) -> None:
    url = new_database()
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute(f"CREATE TABLE events ({COLUMNS})")

    site = open_site(lambda: in_postgres(url))
    start(site, "landed.after", "sql", url, "events")
    assert (tmp_path / "reached").exists()
    site.exact()


def asked(folder: Path, query: str) -> list[Any]:
    """Of the target of a wrapped sink."""
    with closing(sqlite3.connect(folder / "target.db", timeout=60)) as connection:
        return connection.execute(query).fetchall()


def test_copies_of_tasks_push_nothing_twice(
    start: Any, open_site: Any, new_database: Callable[[], str], tmp_path: Path
) -> None:
    """The target takes whatever it is sent. The copies find the claims of the first attempts."""

    site = open_site(lambda: asked(tmp_path, SELECT + "events"))
    said = start(site, "push.after", "wrapped", str(tmp_path), new_database())
    assert (tmp_path / "reached").exists()
    assert "another attempt is claimed" in said
    site.exact()


def test_a_copy_waits_for_the_push_that_is_under_way(
    start: Any, open_site: Any, new_database: Callable[[], str], tmp_path: Path
) -> None:
    """Nobody can ask this target, so a push that is cut short would halt the query. Copies run, and no push is cut short."""

    site = open_site(lambda: asked(tmp_path, SELECT + "events"))
    said = start(site, "", "slow", str(tmp_path), new_database())
    [[pushed]] = asked(tmp_path, "SELECT count(*) FROM attempts")
    assert len((tmp_path / "opened").read_text().splitlines()) > pushed, "no task was run twice"
    assert "doubtful" not in said
    site.exact()


def test_a_plain_query_writes_twice_in_the_same_scene(start: Any, open_site: Any, tmp_path: Path) -> None:
    """The control: what one writes without landonce."""

    def ask() -> list[Row]:
        lines = (line.split() for line in (tmp_path / "appended").read_text().splitlines())
        return [(topic, int(number), int(offset), int(id_), word) for topic, number, offset, id_, word in lines]

    site = open_site(ask)
    start(site, "", "plain", str(tmp_path), "")
    with pytest.raises(AssertionError, match="too many"):
        site.exact()
