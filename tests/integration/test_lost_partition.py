"""A broker loses the disk of one partition, while a plan is pending of which a part landed. The topic has the same id."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from deliveries import Site, spark_session
from pipelines import landonce
from pyspark.sql import SparkSession
from running import running
from sql_runs import SqlSite, asking_sqlite

from landonce.engine.perform import InsertPerformer, TransactPerformer
from landonce.engine.pipeline import run_pipeline
from landonce.errors import PlanPending, PositionBeyondEnd
from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]

TOPIC = "clicks"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from spark_session("test-lost-partition")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalKafka]:
    """One of its own: it is stopped, and comes back without a partition's records."""
    with running(LocalKafka(tmp_path / "kafka")) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(30)
        yield server


def lose(broker: LocalKafka, partition: int) -> None:
    broker.stop()
    shutil.rmtree(broker.folder / "data" / f"{TOPIC}-{partition}")
    broker.start()
    broker.wait_ready()


def values(*ids: int) -> tuple[tuple[None, bytes], ...]:
    return tuple((None, json.dumps({"id": each}).encode()) for each in ids)


def first_block_only(performer: type) -> Any:
    """The driver dies when one block of its plan is in the table."""
    whole = performer.write

    def half(self: Any, effect: Any, held: Any) -> Any:
        whole(self, replace(effect, indexes=effect.indexes[:1]), held)
        raise KeyboardInterrupt

    return half


def test_what_landed_of_the_other_partition_does_not_land_again(
    broker: LocalKafka,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = SqlSite(broker, tmp_path, TOPIC, "sqlite:///t.db", asking_sqlite(tmp_path / "t.db"))
    site.write_file(schema="id BIGINT NOT NULL", create=True)
    site.send(*values(*range(1000, 1050)), partition=1)
    site.run()
    site.send(*values(*range(400)), partition=0)
    site.send(*values(*range(1050, 1060)), partition=1)
    monkeypatch.setattr(TransactPerformer, "write", first_block_only(TransactPerformer))
    with pytest.raises(KeyboardInterrupt):
        site.run()
    monkeypatch.undo()
    landed = {each for (each,) in site.ask("SELECT id FROM events")}
    assert 50 < len(landed) < 460
    lose(broker, 1)
    site.send(*values(2000, 2001, 2002), partition=1)
    with pytest.raises(PositionBeyondEnd):
        site.run()

    said = landonce(capsys, monkeypatch, "state", "rebase", site.file, "--yes")
    assert said.code == PlanPending.exit_code, said.out + said.err
    said = landonce(capsys, monkeypatch, "state", "rebase", site.file, "--drop-pending", "--yes")
    assert said.code == 0, said.out + said.err
    site.run()

    lost = set(range(1050, 1060)) - landed
    wanted = {*range(400), *range(1000, 1060), 2000, 2001, 2002} - lost
    assert sorted(each for (each,) in site.ask("SELECT id FROM events")) == sorted(wanted)
    assert site.ask("SELECT count(*) FROM (SELECT DISTINCT _topic, _partition, _offset FROM events)") == [
        (len(wanted),)
    ]
    assert site.ask("SELECT DISTINCT _topic FROM events WHERE id < 1060") == [(TOPIC,)]
    assert site.ask(f"SELECT id FROM events WHERE _topic <> '{TOPIC}' ORDER BY id") == [(2000,), (2001,), (2002,)]
    said = landonce(capsys, monkeypatch, "verify", site.file)
    assert said.code == 0, said.out + said.err


def test_nor_in_clickhouse(
    broker: LocalKafka,
    clickhouse: LocalClickHouse,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(broker, clickhouse, tmp_path, "lost_partition", [TOPIC])
    site.make("id Int64")
    file = site.write_file(batch={"block_rows": 200}, clickhouse={"deadline": "5s"})
    config = site.config(batch={"block_rows": 200}, clickhouse={"deadline": "5s"})
    source = SqlSite(broker, tmp_path, TOPIC, "", lambda _: [])
    source.send(*values(*range(1000, 1050)), partition=1)
    run_pipeline(config, once=True)
    source.send(*values(*range(400)), partition=0)
    monkeypatch.setattr(InsertPerformer, "write", first_block_only(InsertPerformer))
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(config, once=True)
    monkeypatch.undo()
    lose(broker, 1)
    source.send(*values(2000, 2001, 2002), partition=1)
    with pytest.raises(PositionBeyondEnd):
        run_pipeline(config, once=True)

    said = landonce(capsys, monkeypatch, "state", "rebase", file, "--yes")
    assert said.code == 0, said.out + said.err
    run_pipeline(config, once=True)

    rows = site.ask(f"SELECT id, _topic AS topic FROM {site.table} ORDER BY id")
    assert [each["id"] for each in rows] == [*range(400), *range(1000, 1050), 2000, 2001, 2002]
    assert {each["topic"] for each in rows if each["id"] < 2000} == {TOPIC}
    assert TOPIC not in {each["topic"] for each in rows if each["id"] >= 2000}
    said = landonce(capsys, monkeypatch, "verify", file)
    assert said.code == 0, said.out + said.err
