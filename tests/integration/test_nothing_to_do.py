"""`run --once` where there is nothing to do ends without Spark, and does all that a start does: it takes the pipeline, which
fences an older driver, and looks at the target."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from landonce.engine import pipeline
from landonce.errors import LandonceError, TableUnfit, TargetAhead
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import LedgerState, Totals
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import parse

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
SPARK_WORKERS = True


class SparkStarted(Exception):
    """What stands here for a JVM."""


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise SparkStarted

    monkeypatch.setattr(pipeline, "open_session", refuse)


class Site:
    """A table is only made once the expressions are examined, which needs Spark: so the first run has none."""

    def __init__(self, kafka: LocalKafka, topic: str, folder: Path, sink: dict[str, Any]) -> None:
        self.servers, self.topic, self.file, self.sink = kafka.bootstrap_servers, topic, folder / "p.yaml", sink
        self.write({})

    def write(self, transform: dict[str, str]) -> None:
        source = {"bootstrap_servers": self.servers, "topics": [self.topic], "schema": "id BIGINT NOT NULL"}
        document = {"pipeline": "p", "source": {"kafka": source}, "sink": self.sink, "transform": transform}
        self.file.write_text(yaml.safe_dump(document))

    def filter(self) -> None:
        self.write({"where": "id > 0"})

    def run(self) -> Totals:
        return pipeline.run_pipeline(parse(self.file.read_text(), self.file), once=True)

    def send(self) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        producer.produce(self.topic, json.dumps({"id": 1}))
        assert producer.flush(30) == 0

    @property
    def state(self) -> LedgerState:
        with closing(open_parts(parse(self.file.read_text(), self.file)).ledger) as ledger:
            state = ledger.load()
        assert state is not None
        return state


@pytest.mark.parametrize("kind", ["sql", "iceberg", "wrapped", "clickhouse"])
def test_it_takes_the_pipeline_and_ends_without_spark(
    kind: str, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "idle_sink.py").write_text(
        "import landonce\n\ndef push(block): ...\n\nsink = landonce.wrap(push, idempotent=True, name='mine')\n"
    )
    sinks = {
        "sql": lambda: {"url": "sqlite:///t.db", "table": "events", "create": True},
        "iceberg": lambda: {"table": "db.events", "create": True},
        "wrapped": lambda: {"sink": "idle_sink:sink"},
        "clickhouse": lambda: {"url": clickhouse_url(request), "table": tmp_path.name, "create": True},
    }
    site = Site(kafka, new_topic(1), tmp_path, {kind: sinks[kind]()})
    assert site.run() == Totals()
    first = site.state.epoch
    site.filter()
    assert site.run() == Totals()
    assert site.state.epoch == first + 1
    assert site.state.pending is None
    site.send()
    with pytest.raises(SparkStarted):
        site.run()
    assert site.state.epoch == first + 1, "what Spark lacks is said before an older driver is fenced"


def clickhouse_url(request: pytest.FixtureRequest) -> str:
    server: LocalClickHouse = request.getfixturevalue("clickhouse")
    return server.url


def test_the_target_is_still_looked_at(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> None:
    site = Site(kafka, new_topic(1), tmp_path, {"sql": {"url": "sqlite:///t.db", "table": "events", "create": True}})
    site.run()
    with closing(sqlite3.connect(tmp_path / "t.db")) as database, database:
        database.execute("INSERT INTO events (id, _topic, _partition, _offset) VALUES (1, ?, 0, 7)", (site.topic,))
    site.filter()
    with pytest.raises(TargetAhead):
        site.run()


def test_a_table_that_does_not_fit_is_refused_before_spark_is_started(
    kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    site = Site(kafka, new_topic(1), tmp_path, {"sql": {"url": "sqlite:///t.db", "table": "events"}})
    site.filter()
    site.send()
    with closing(sqlite3.connect(tmp_path / "t.db")) as database, database:
        database.execute("CREATE TABLE events (id BIGINT)")
    with pytest.raises(TableUnfit):
        site.run()


@pytest.mark.parametrize("kind", ["sql", "iceberg", "clickhouse"])
def test_where_the_table_is_not_there_a_run_says_how_landonce_makes_it(
    kind: str, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """As `check` does."""
    sinks = {
        "sql": lambda: {"url": "sqlite:///t.db", "table": "events"},
        "iceberg": lambda: {"table": "db.events"},
        "clickhouse": lambda: {"url": clickhouse_url(request), "table": tmp_path.name},
    }
    with closing(sqlite3.connect(tmp_path / "t.db")) as database:
        database.execute("CREATE TABLE another (id BIGINT)")
    site = Site(kafka, new_topic(1), tmp_path, {kind: sinks[kind]()})
    with pytest.raises(LandonceError) as refused:
        site.run()
    assert "`create: true` in {file}" in refused.value.command
