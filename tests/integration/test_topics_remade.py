"""A topic that is deleted and created again while a batch of it is in hand: nothing of the new one lands as if it were of the old one.

The driver has made its plan and sends its workers; just before they read, the topic is another one, with other records under the same
offsets. Every kind of sink gets them only after `state rebase`, and once.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from deliveries import ask, letters, numbered, send
from jvms import iceberg_session
from pipelines import landonce
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from landonce.engine.observe import Silent
from landonce.engine.pipeline import run_pipeline
from landonce.errors import TopicRecreated
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals
from landonce.protocol.steps import Effect, Step
from landonce.sinks.pipeline_file import load

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.usefixtures("session")]

KEPT = """\
from pathlib import Path

import landonce


def kept(folder: str) -> landonce.WrappedSink:
    def push(block: landonce.PushedBlock) -> None:
        Path(folder, f"{block.key}.block").write_bytes(block.json_lines())

    return landonce.wrap(push, idempotent=True, name="kept")
"""
SINKS = ["clickhouse", "clickhouse, with an expression", "sql", "sql, with an expression", "iceberg", "wrapped"]
Row = tuple[str, int, int]
"""`_topic`, `_offset` and `id`."""


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    session = iceberg_session({})
    yield session
    session.stop()


@dataclass
class Site:
    """One pipeline into one kind of sink, and what that holds, asked apart from landonce."""

    kafka: LocalKafka
    clickhouse: LocalClickHouse
    folder: Path
    topic: str
    table: str
    kind: str

    @property
    def file(self) -> Path:
        return self.folder / "p.yaml"

    def write_file(self) -> None:
        kafka = {"bootstrap_servers": self.kafka.bootstrap_servers, "topics": [self.topic]}
        sinks: dict[str, dict[str, Any]] = {
            "clickhouse": {"url": self.clickhouse.url, "table": self.table, "create": True, "deadline": "10s"},
            "sql": {"url": "sqlite:///t.db", "table": "events", "create": True},
            "iceberg": {"table": "db.t", "create": True},
            "wrapped": {"sink": "kept:kept", "options": {"folder": str(self.folder)}},
        }
        name, _, more = self.kind.partition(", ")
        document = {
            "pipeline": f"p-{self.table}",
            "source": {"kafka": {**kafka, "schema": "id BIGINT NOT NULL, name STRING"}},
            "sink": {name: sinks[name]},
            **({"ledger": {"sqlite": "ledger"}} if name in ("clickhouse", "wrapped") else {}),
            **({"transform": {"where": "id >= 0"}} if more else {}),
            "batch": {"interval": "0s"},
            "dead_letters": {"path": "dead"},
            "stall": "60s",
            "spark": {"master": "local[2]"},
        }
        self.file.write_text(yaml.safe_dump(document))
        (self.folder / "kept.py").write_text(KEPT)

    def run(self, observer: Silent | None = None) -> Totals:
        return run_pipeline(load(self.file), once=True, observer=observer)

    def held(self) -> list[Row]:
        return sorted((row["_topic"], row["_offset"], row["id"]) for row in self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        if self.kind.startswith("clickhouse"):
            return ask(self.clickhouse.url, f"SELECT _topic, _offset, id FROM {self.table}")
        if self.kind.startswith("sql"):
            with closing(sqlite3.connect(self.folder / "t.db")) as connection:
                connection.row_factory = sqlite3.Row
                return [dict(row) for row in connection.execute("SELECT _topic, _offset, id FROM events")]
        if self.kind == "iceberg":
            lake = self.folder / "lake"
            catalog = load_catalog(
                "landonce", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}"
            )
            return catalog.load_table("db.t").scan().to_arrow().to_pylist()
        return [json.loads(line) for path in self.folder.glob("*.block") for line in path.read_text().splitlines()]


class Remaking(Silent):
    """Creates the topic again, with 30 other records and one that is none, when workers are about to read for the first time."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.remade = False

    def step(self, effect: Effect) -> None:
        if effect.step is Step.WRITE and not self.remade:
            self.remade = True
            remake(self.site)


def remake(site: Site) -> None:
    admin = AdminClient({"bootstrap.servers": site.kafka.bootstrap_servers})
    admin.delete_topics([site.topic])[site.topic].result(30)
    until = time.monotonic() + 30
    while True:
        try:
            admin.create_topics([NewTopic(site.topic, 1, 1)])[site.topic].result(30)
            break
        except KafkaException:
            assert time.monotonic() < until
            time.sleep(0.2)
    send(site.kafka, site.topic, [b"broken", *numbered(30, first=100)])


@pytest.fixture(params=SINKS)
def site(
    request: pytest.FixtureRequest,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_table: Callable[[], str],
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> Iterator[Site]:
    site = Site(kafka, clickhouse, tmp_path, new_topic(1), new_table(), request.param)
    site.write_file()
    yield site
    sys.modules.pop("kept", None)


def test_a_topic_made_again_under_a_plan(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    send(site.kafka, site.topic, numbered(5))
    assert site.run() == Totals(landed=5)
    old = [(site.topic, each, each) for each in range(5)]
    assert site.held() == old
    send(site.kafka, site.topic, numbered(10, first=5))
    remaking = Remaking(site)
    with pytest.raises(TopicRecreated) as caught:
        site.run(remaking)
    assert remaking.remade
    said_safe = caught.value.safe
    for _ in range(2):
        assert site.held() == old, "nothing of the new topic stands under the old one's offsets"
        assert not letters(site.folder / "dead")
        assert "no row of them was written" in said_safe
        with pytest.raises(TopicRecreated) as caught:
            site.run()
    goes_on = caught.value.command.format(file=site.file).split()
    assert goes_on[:3] == ["landonce", "state", "rebase"]
    said = landonce(capsys, monkeypatch, *goes_on[1:], "--yes")
    assert said.code == 0, said.out + said.err
    assert site.run() == Totals(landed=30, dead_lettered=1)
    found = site.held()
    label = found[-1][0]
    assert label != site.topic
    assert found == old + [(label, 1 + each, 100 + each) for each in range(30)]
    assert [(each["topic"], each["offset"]) for each in letters(site.folder / "dead")] == [(label, 0)]
