"""A user's own query with speculation on: Spark runs a block's task a second time beside the first, on a cluster of two hosts.

Every first attempt stops right after its write, for good. So a query comes to its end only if the copies ran, and what they
did with blocks that had landed is what is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from query_site import Site, open_session
from test_cluster import LOOPBACK, Cluster

import landonce
from landonce.local import LocalClickHouse, LocalKafka
from landonce.run.observe import Silent

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

COLUMNS = "id BIGINT, word TEXT, _topic TEXT NOT NULL, _partition INT NOT NULL, _offset BIGINT NOT NULL"
ENGINE = """ENGINE = MergeTree ORDER BY (_topic, _partition, _offset)
SETTINGS non_replicated_deduplication_window = 1000"""


class Heard(Silent):
    def __init__(self) -> None:
        self.troubles: list[str] = []

    def trouble(self, what: str) -> None:
        self.troubles.append(what)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Spark runs no copy of a task on the host of the first."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), hosts=("127.0.0.1", "127.0.0.2"), cores=2)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def session(cluster: Cluster, folder: Path, place: str) -> SparkSession:
    told = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "2",
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.task.duration.threshold": "2s",
        "spark.executorEnv.LANDONCE_FAILPOINT": place,
        "spark.executorEnv.LANDONCE_FAILPOINT_FILE": str(folder / "reached"),
    }
    return open_session(cluster.url, **told)


@pytest.mark.parametrize(("kind", "place"), [("clickhouse", "send.after"), ("postgres", "landed.after")])
def test_copies_of_tasks_write_nothing_twice(
    cluster: Cluster,
    kafka: LocalKafka,
    tmp_path: Path,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    request: pytest.FixtureRequest,
    kind: str,
    place: str,
) -> None:
    ledger, ask = None, None
    if kind == "clickhouse":
        server: LocalClickHouse = request.getfixturevalue("clickhouse")
        table = new_table()
        server.ask(
            f"CREATE TABLE {table} ({COLUMNS}) {ENGINE}".replace("TEXT", "String").replace("INT NOT", "Int32 NOT")
        )
        sink: Any = landonce.clickhouse(server.url, table)
        ledger = f"sqlite:///{tmp_path / 'ledger'}"

        def ask() -> list[Any]:
            told = server.ask(f"SELECT _topic, _partition, _offset FROM {table} FORMAT JSONCompactEachRow")
            return [(topic, number, int(offset)) for topic, number, offset in map(json.loads, told.splitlines())]
    else:
        url = request.getfixturevalue("new_database")()
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            connection.execute(f"CREATE TABLE events ({COLUMNS})")
        sink = landonce.sql(url, "events")

        def ask() -> list[Any]:
            with psycopg.connect(url.replace("+psycopg", "")) as connection:
                return connection.execute("SELECT _topic, _partition, _offset FROM events").fetchall()

    spark = session(cluster, tmp_path, place)
    try:
        site = Site(spark, kafka.bootstrap_servers, (new_topic(partitions=2),), tmp_path, sink, ask, ledger)
        site.produce(20)
        heard = Heard()
        site.run(site.once(observer=heard))
        site.exact()
        assert (tmp_path / "reached").exists()
        assert any("Spark ran the task again" in each for each in heard.troubles) == (kind == "clickhouse")
    finally:
        spark.stop()
