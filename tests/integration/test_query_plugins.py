"""Users' own streaming queries into sinks of other packages, of every kind that has a port: real queries, real Kafka, judges of their own."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from query_site import SELECT, DiesAt, Row, Site, in_sqlite, open_session, some_skipped

from landonce.local import LocalKafka
from landonce.read.schema.ddl import parse_schema
from landonce.testing.reference_sinks import SqliteSink

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """Workers get the packages as users give them: `--py-files`."""
    session = open_session()
    for name in ("duckdb", "delta"):
        archive = tmp_path_factory.mktemp("packages") / f"landonce_{name}"
        shutil.make_archive(str(archive), "zip", EXAMPLES / f"landonce-{name}", f"landonce_{name}")
        session.sparkContext.addPyFile(f"{archive}.zip")
    return session


def in_duckdb(path: Path) -> list[Row]:
    with closing(duckdb.connect(str(path))) as connection:
        return connection.execute(f"{SELECT} events").fetchall()


def in_delta(path: Path) -> list[Row]:
    names = ["_topic", "_partition", "_offset", "id", "word"]
    rows = DeltaTable(path).to_pyarrow_table(columns=names).select(names).to_pylist()
    return [tuple(row.values()) for row in rows]


@pytest.fixture(
    params=["transactional", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("snapshot", "deduplicating"))]
)
def site(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    kafka: LocalKafka,
    tmp_path: Path,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> Site:
    here = (spark, kafka.bootstrap_servers, (new_topic(partitions=2),), tmp_path)
    if request.param == "deduplicating":
        sink = SqliteSink(tmp_path / "events.db")
        object.__setattr__(sink, "deadline", 2.5)  # how long a pending plan is waited for
        sink.target().create(parse_schema("id BIGINT, word STRING"))
        ledger = f"sqlite:///{tmp_path / 'ledger'}"
        return Site(*here, sink, lambda: in_sqlite(sink.path), ledger, block_rows=8)
    name = {"transactional": "duckdb", "snapshot": "delta"}[request.param]
    monkeypatch.syspath_prepend(str(EXAMPLES / f"landonce-{name}"))
    package: Any = importlib.import_module(f"landonce_{name}")
    if name == "duckdb":
        path = tmp_path / "events.duckdb"
        return Site(
            *here, package.DuckDb(path=path, table="events", create=True), lambda: in_duckdb(path), block_rows=8
        )
    path = tmp_path / "events"
    return Site(*here, package.Delta(table=str(path), create=True), lambda: in_delta(path), block_rows=8)


@pytest.mark.long
def test_nothing_is_lost_or_twice_whatever_becomes_of_the_checkpoint(site: Site) -> None:
    site.loses_checkpoints()


def test_a_run_may_end_before_a_step_and_come_back_in_another_cut(site: Site) -> None:
    for step in ("write", "commit", "record"):
        site.produce(10, word=some_skipped)
        with pytest.raises(StreamingQueryException, match=f"died before {step}"):
            site.run(site.once(observer=DiesAt(step)))
        site.unspoiled(step)
        site.lose_checkpoint()
        site.produce(4)
        site.run(per_trigger=9)
        site.exact()
