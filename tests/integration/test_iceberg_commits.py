"""What commits to Iceberg say of themselves, and how often they are made: real runs, and tables that are read by PyIceberg alone."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from deliveries import Watch, running, wait_until
from pipelines import landonce
from pyiceberg.table import Table
from small_lakes import SmallLake, once

from landonce.cli.progress import LogProgress
from landonce.engine.pipeline import run_pipeline
from landonce.errors import TargetUnavailable
from landonce.local import LocalKafka
from landonce.sinks.iceberg.commit import Attempt, TableBranch
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import load

pytestmark = pytest.mark.integration
ID = "landonce.commit-id"


@pytest.fixture
def lake(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> SmallLake:
    return SmallLake(kafka, tmp_path, new_topic(partitions=1))


def run(lake: SmallLake) -> Watch:
    watch = Watch()
    run_pipeline(load(lake.file), once=True, observer=watch)
    return watch


def ids(table: Table) -> list[str]:
    """Of all snapshots, oldest first."""
    found = [each.summary.additional_properties[ID] for each in table.snapshots() if each.summary is not None]
    assert all(str(UUID(each)) == each for each in found)
    return found


def show(lake: SmallLake, capsys: Any, monkeypatch: Any, *options: str) -> Any:
    return landonce(capsys, monkeypatch, "state", "show", lake.file, *options)


def test_every_commit_has_an_id_of_its_own_which_log_and_state_name(
    lake: SmallLake, caplog: pytest.LogCaptureFixture, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write_file({"table": "db.t", "create": True})
    lake.produce([{"id": 1}])
    log = logging.getLogger("test of commits")
    with caplog.at_level(logging.INFO, log.name):
        run_pipeline(load(lake.file), once=True, observer=LogProgress("pipe", log))
    lake.produce([{"id": 2}])
    lake.run()
    made = ids(lake.table("db.t"))
    assert len(made) == len(set(made)) > 2, "two commits with rows, and those that took the table"
    first = next(
        each.summary.additional_properties[ID]
        for each in lake.table("db.t").snapshots()
        if each.summary is not None and each.summary["landonce.batch"] == "1"
    )
    events = [json.loads(each.message) for each in caplog.records]
    assert [each["commits"] for each in events if each["event"] == "batch"] == [{"db.t": first}]
    assert f"commit {made[-1]}" in show(lake, capsys, monkeypatch).out
    assert show(lake, capsys, monkeypatch, "--json").json["kept_in"]["commit"] == made[-1]


def test_each_table_of_a_fan_out_has_a_commit_with_an_id(
    lake: SmallLake, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write_file({"table": "db.{kind}", "create": True})
    lake.produce([{"id": 1, "kind": "a"}, {"id": 2, "kind": "b"}])
    (report,) = run(lake).batches
    last = {name: ids(lake.table(name))[-1] for name in ("db.a", "db.b")}
    assert dict(report.commits) == last
    assert last["db.a"] != last["db.b"]
    said = show(lake, capsys, monkeypatch)
    assert all(f"commit {each}" in said.out for each in last.values())
    tables = {each["table"]: each["commit"] for each in show(lake, capsys, monkeypatch, "--json").json["tables"]}
    assert tables == last


@pytest.mark.parametrize("sent", [True, False], ids=["committed", "absent"])
def test_the_id_is_that_of_the_attempt_that_the_table_took(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    """The first attempt to commit rows gets no answer: it is in the table, or it is not."""
    lake.write_file({"table": "db.t", "create": True})
    lake.produce([{"id": 1}])
    attempts: list[str] = []
    send = TableBranch.send

    def cut(self: TableBranch, table: Table, attempt: Attempt) -> None:
        added = [each.snapshot.summary.additional_properties for each in attempt.updates if hasattr(each, "snapshot")]
        rows = [each for each in added if each.get("landonce.batch") == "1"]
        attempts.extend(each[ID] for each in rows)
        first = bool(rows) and len(attempts) == 1
        if not first or sent:
            send(self, table, attempt)
        if first:
            raise TargetUnavailable("no answer came")

    monkeypatch.setattr(TableBranch, "send", cut)
    watch = run(lake)
    assert len(set(attempts)) == len(attempts) == (1 if sent else 2)
    assert ids(lake.table("db.t"))[-1] == attempts[-1]
    assert [dict(report.commits) for report in watch.batches] == [{"db.t": attempts[-1]}]
    assert lake.offsets("db.t") == once(1)


@pytest.mark.parametrize("interval", [None, "0s"], ids=["by default", "named"])
def test_a_minute_is_between_batches_unless_the_file_says_otherwise(lake: SmallLake, interval: str | None) -> None:
    """The first batch does not wait, nor does `--once`."""
    lake.write_file({"table": "db.t", "create": True}, batch={"interval": interval} if interval else {})
    lake.produce([{"id": 1}])
    watch = Watch()
    with running(load(lake.file), None, watch):  # type: ignore[arg-type]  # Arrow writes: there is no session
        wait_until(lambda: len(watch.batches) == 1)
        lake.produce([{"id": 2}])
        if interval:
            wait_until(lambda: len(watch.batches) == 2)
        else:
            time.sleep(3)
            assert len(watch.batches) == 1
    began = time.monotonic()
    lake.run()
    assert time.monotonic() - began < 45
    assert lake.offsets("db.t") == once(2)


def test_check_warns_of_batches_that_follow_each_other_too_fast(
    lake: SmallLake, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(**batch: object) -> list[str]:
        lake.write_file({"table": "db.t", "create": True}, batch=batch)
        found = landonce(capsys, monkeypatch, "check", lake.file, "--json")
        assert found.code == 0, found.out
        each = [one for section in found.json["sections"] for one in section["findings"]]
        return [one["what"] for one in each if one["level"] == "warning" and "batch.interval" in one["what"]]

    (warning,) = said(interval="9s")
    assert warning.startswith("batch.interval is 9 s: every batch is a snapshot and small files")
    assert said(interval="10s") == said(max_rows=10) == []
    parts = open_parts(load(lake.file))
    assert parts.config.batch.every(parts.sink.interval).interval == 60.0, "a file that names none"
