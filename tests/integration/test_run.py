"""The run loop with real Kafka, Spark and ClickHouse: batches, blocks, tables, starting, idling and stopping."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from deliveries import (
    Site,
    Watch,
    expected,
    in_table,
    numbered,
    parts_of,
    run,
    running,
    send,
    spark_session,
    wait_until,
)
from pyspark.sql import SparkSession
from said import says

from landonce.errors import NothingToInfer, PlanChanged, TableUnfit
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals
from landonce.protocol.steps import Effect, Step

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from spark_session("test-run")


@pytest.fixture
def site(kafka: LocalKafka, clickhouse: LocalClickHouse, new_table: Callable[[], str], tmp_path: Path) -> Site:
    return Site(kafka, clickhouse, tmp_path, new_table())


@pytest.mark.usefixtures("spark_workers")
def test_large_partitions_are_cut_and_small_ones_packed(
    site: Site, spark: SparkSession, new_topic: Callable[..., str]
) -> None:
    large, small = new_topic(2), new_topic(6)
    site.topics = (large, small)
    sent = send(site.kafka, large, numbered(2500)) + send(site.kafka, large, numbered(30), partition=1)
    for number in range(6):
        sent += send(site.kafka, small, numbered(20 + number), partition=number)
    site.make("id Int64, name String", "ORDER BY tuple()")
    watch = Watch()

    totals = run(site.config(batch={"max_rows": 1000, "block_rows": 400}), spark, watch)

    assert in_table(site) == expected(sent)
    assert totals == Totals(landed=len(sent))
    assert len(watch.batches) >= 3
    assert max(each.totals.read for each in watch.batches) <= 1000
    parts = parts_of(site)
    assert len(parts) == sum(each.blocks for each in watch.batches)
    assert max(map(len, parts.values())) <= 400
    assert all(rows == sorted(rows) for rows in parts.values()), "rows lie in the order of their coordinates"
    partitions = [{row[:2] for row in rows} for rows in parts.values()]
    assert max(map(len, partitions)) >= 7, "small partitions share a block"
    assert sum((large, 0) in each for each in partitions) >= 7, "a large partition is cut"
    assert any(len({topic for topic, _ in each}) == 2 for each in partitions), "a block may hold several topics"


def test_limits_in_bytes_hold_from_the_first_batch_on(
    site: Site, spark: SparkSession, new_topic: Callable[..., str]
) -> None:
    site.topics = (new_topic(),)
    sent = send(site.kafka, site.topics[0], [{"id": each, "name": f"{each:04d}" * 2500} for each in range(120)])
    site.make("id Int64, name String")
    watch = Watch()

    run(site.config(batch={"max_bytes": "400KB", "block_bytes": "100KB"}), spark, watch)

    assert in_table(site) == expected(sent)
    largest = max(len(each.value or b"") for each in sent)
    assert max(each.totals.read for each in watch.batches) in range(30, 400_000 * 1024 // 1000 // largest + 1)
    sizes = [int(row["size"]) for row in site.ask(f"SELECT sum(length(name)) AS size FROM {site.table} GROUP BY _part")]
    assert 50_000 < max(sizes) <= 102_400


def test_a_table_from_a_declared_schema(site: Site, spark: SparkSession, new_topic: Callable[..., str]) -> None:
    site.topics = (new_topic(),)
    sent = send(site.kafka, site.topics[0], [{"id": 1, "name": "a", "extra": [1]}, {"id": 2}])
    config = site.config(
        kafka={"schema": "id BIGINT NOT NULL, name STRING, at TIMESTAMP(3)"},
        clickhouse={"create": True, "order_by": "id"},
    )
    run(config, spark)
    assert in_table(site) == expected(sent)
    columns = {
        row["name"]: row["type"]
        for row in site.ask(f"SELECT name, type FROM system.columns WHERE table = '{site.table}'")
    }
    assert {"id": "Int64", "name": "Nullable(String)"}.items() <= columns.items()
    assert columns["at"].startswith("Nullable(DateTime64(3")
    assert {"_topic", "_partition", "_offset"} <= columns.keys()
    keys = site.ask(f"SELECT sorting_key AS sorted FROM system.tables WHERE name = '{site.table}'")
    assert [each["sorted"].strip("()") for each in keys] == ["id"]
    assert run(config, spark) == Totals(), "a second run finds the table and has nothing to do"


def test_a_table_from_a_sample(site: Site, spark: SparkSession, new_topic: Callable[..., str]) -> None:
    site.topics = (new_topic(2),)
    config = site.config(clickhouse={"create": True})
    with pytest.raises(NothingToInfer):
        run(config, spark)
    sent = send(site.kafka, site.topics[0], [b"{broken", *numbered(3)])
    sent += send(site.kafka, site.topics[0], [{"id": 9, "name": "x", "price": 1.5}], partition=1)
    assert run(config, spark) == Totals(landed=4, dead_lettered=1)
    assert in_table(site, ("id", "name", "price")) == expected(sent[1:], ("id", "name", "price"))


def test_columns_go_by_name_and_defaults_fill_in(
    site: Site, spark: SparkSession, new_topic: Callable[..., str]
) -> None:
    site.topics = (new_topic(),)
    sent = send(site.kafka, site.topics[0], [{"name": "a", "id": 1}, {"id": 2, "name": "b", "kind": "given"}])
    site.make(
        "name String, twice Int64 MATERIALIZED id * 2, kind String DEFAULT 'usual', born DateTime DEFAULT now(), id Int64"
    )
    run(site.config(), spark)
    assert in_table(site) == expected(sent)
    rows = site.ask(f"SELECT kind, twice, born > '2020-01-01 00:00:00' AS born FROM {site.table} ORDER BY id")
    assert rows == [{"kind": "usual", "twice": 2, "born": 1}, {"kind": "given", "twice": 4, "born": 1}]


def test_an_unfit_table_is_refused(site: Site, spark: SparkSession, new_topic: Callable[..., str]) -> None:
    site.topics = (new_topic(),)
    site.clickhouse.ask(f"CREATE TABLE {site.table} (id Int64) ENGINE = MergeTree ORDER BY id")
    with pytest.raises(TableUnfit) as caught:
        run(site.config(), spark)
    assert caught.value.command


def test_once_ends_though_the_topic_grows(site: Site, spark: SparkSession, new_topic: Callable[..., str]) -> None:
    site.topics = (new_topic(2),)
    topic = site.topics[0]
    site.make("id Int64, name String")
    sent = send(site.kafka, topic, numbered(500)) + send(site.kafka, topic, numbered(500), partition=1)
    stop = threading.Event()

    def go_on() -> None:
        while not stop.wait(0.05):
            sent.extend(send(site.kafka, topic, numbered(50), partition=1))

    producer = threading.Thread(target=go_on)
    producer.start()
    try:
        wait_until(lambda: len(sent) > 1100)
        before = len(sent)
        totals = run(site.config(batch={"max_rows": 300}), spark)
    finally:
        stop.set()
        producer.join()
    assert before <= totals.landed < len(sent)
    assert in_table(site) <= expected(sent)
    assert sum(in_table(site).values()) == totals.landed
    run(site.config(), spark)
    assert in_table(site) == expected(sent)


def test_later_records_are_picked_up_without_a_busy_loop(
    site: Site, spark: SparkSession, new_topic: Callable[..., str]
) -> None:
    site.topics = (new_topic(),)
    site.make("id Int64, name String")
    sent = send(site.kafka, site.topics[0], numbered(10))
    watch = Watch()
    with running(site.config(batch={"interval": "300ms"}), spark, watch):
        wait_until(lambda: len(watch.batches) == 1)
        sent += send(site.kafka, site.topics[0], numbered(10, first=10))
        wait_until(lambda: len(watch.batches) == 2)
        time.sleep(0.6)
        began, before = time.monotonic(), watch.steps.count(Step.SURVEY)
        time.sleep(2)
        rate = (watch.steps.count(Step.SURVEY) - before) / (time.monotonic() - began)
        assert 0.5 <= rate <= 5, f"{rate:.1f} surveys per second while idle"
    assert in_table(site) == expected(sent)
    assert site.state().pending is None


def test_the_interval_gathers_records(site: Site, spark: SparkSession, new_topic: Callable[..., str]) -> None:
    site.topics = (new_topic(),)
    site.make("id Int64, name String")
    sent = send(site.kafka, site.topics[0], numbered(5))
    watch = Watch()
    began = time.monotonic()
    with running(site.config(batch={"interval": "1500ms"}), spark, watch):
        for each in range(30):
            sent += send(site.kafka, site.topics[0], numbered(1, first=5 + each))
            time.sleep(0.1)
        wait_until(lambda: sum(each.totals.read for each in watch.batches) == 35)
        prepared = [at for step, at in zip(watch.steps, watch.times, strict=False) if step is Step.PREPARE]
    assert 2 <= len(prepared) <= (time.monotonic() - began) / 1.5 + 1
    assert all(later - earlier >= 1.4 for earlier, later in pairwise(prepared))
    assert in_table(site) == expected(sent)


def test_a_full_batch_does_not_wait_for_its_interval(
    site: Site, spark: SparkSession, new_topic: Callable[..., str]
) -> None:
    site.topics = (new_topic(),)
    site.make("id Int64, name String")
    sent = send(site.kafka, site.topics[0], numbered(150))
    watch = Watch()
    with running(site.config(batch={"interval": "5m", "max_rows": 100}), spark, watch):
        wait_until(lambda: len(watch.batches) == 1)
        time.sleep(1)
    assert [each.totals.read for each in watch.batches] == [100], "and what is left does wait"
    assert in_table(site) == expected(sent[:100])


# ── the process ──────────────────────────────────────────────────────────────────────────────────────────────────────


JAVA_SAYS = "WARNING: Using incubator modules"
"""Written by the Java machine itself, before anybody could tell it not to."""


def command(site: Site, *more: str) -> list[str]:
    return [sys.executable, "-m", "landonce", "run", str(site.file), *more]


def test_a_signal_while_spark_starts_is_heard(site: Site, new_topic: Callable[..., str]) -> None:
    site.topics = (new_topic(1),)
    site.make("id Int64, name String")
    site.write_file()
    process = subprocess.Popen(command(site), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert '"starting"' in process.stderr.readline()
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, rest
    assert "ends the run at once, which is safe" in rest
    assert "Exception" not in rest
    assert says(out, "0 read")


def test_sigterm_finishes_the_batch_in_hand(site: Site, new_topic: Callable[..., str]) -> None:
    site.topics = (new_topic(2),)
    site.make("id Int64, name String")
    sent = send(site.kafka, site.topics[0], numbered(3000))
    site.write_file(batch={"interval": "0s", "max_rows": 50, "block_rows": 25})
    process = subprocess.Popen(command(site), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stdout is not None
        said: list[str] = []
        while sum('"batch"' in line for line in said) < 3:
            said.append(process.stderr.readline())
            assert said[-1], said
        process.send_signal(signal.SIGTERM)
        out, rest = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    lines = [json.loads(line) for line in [*said, *rest.splitlines()] if not line.startswith(JAVA_SAYS)]
    assert process.returncode == 0, lines
    assert lines[0]["event"] == "starting", "said before Spark takes its time"
    batches = [each for each in lines if each["event"] == "batch"]
    assert {"at", "event", "pipeline", "batch", "rows_per_second", "lag", "dead_lettered"} <= batches[0].keys()
    landed = sum(each["landed"] for each in batches)
    assert 150 <= landed < 3000, "it was stopped in the middle"
    assert says(out, f"{landed} landed")
    state = site.state()
    assert state.pending is None
    assert state.totals == Totals(landed=landed)
    position = site.position()
    assert in_table(site) == expected(each for each in sent if each.offset < position[each.topic, each.partition])
    assert landed == sum(in_table(site).values())


def test_a_table_that_was_altered_under_a_pending_plan_is_named_as_the_reason(
    site: Site, spark: SparkSession, new_topic: Callable[..., str]
) -> None:
    """Nobody touched the file, so nobody is sent to look for a change in it alone."""
    site.topics = (new_topic(),)
    site.make("id Int64, name String")
    sent = send(site.kafka, site.topics[0], numbered(10))

    def die(effect: Effect) -> None:
        if effect.step is Step.WRITE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(site.config(), spark, Watch(at=die))
    site.clickhouse.ask(f"ALTER TABLE {site.table} ADD COLUMN more Nullable(Int64)", timeout=60)
    with pytest.raises(PlanChanged, match="or the table's columns were") as refused:
        run(site.config(), spark)
    assert refused.value.command.startswith("put the old pipeline file or columns back")
    site.clickhouse.ask(f"ALTER TABLE {site.table} DROP COLUMN more", timeout=60)
    run(site.config(), spark)
    assert in_table(site) == expected(sent)


def test_a_terminal_gets_one_live_line(site: Site, new_topic: Callable[..., str]) -> None:
    site.topics = (new_topic(),)
    site.make("id Int64, name String")
    sent = send(site.kafka, site.topics[0], [*numbered(1200), b"no json"])
    site.write_file(batch={"max_rows": 400})
    shown = on_terminal(command(site, "--once"))
    assert in_table(site) == expected(sent[:-1])
    for word in ("records/s", "lag", "filtered", site.document()["pipeline"]):
        assert word in shown
    assert re.findall(r"landed +([\d,]+) dead letters +([\d,]+)", shown)[-1] == ("1,200", "1")
    assert re.search(r"last commit +\d\d:\d\d:\d\d", shown)
    assert '"event"' not in shown


def on_terminal(arguments: list[str]) -> str:
    """What a person would have seen: the process has a terminal of 160 columns for its standard error."""
    ours, theirs = pty.openpty()
    environment: dict[str, Any] = {**os.environ, "COLUMNS": "160", "TERM": "xterm"}
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    until = time.monotonic() + 90
    waiting = select.poll()  # `select.select` takes no number above 1023, and this process may have many files open
    waiting.register(ours, select.POLLIN | select.POLLHUP)
    try:
        while time.monotonic() < until:
            if waiting.poll(500):
                try:
                    shown += os.read(ours, 65536)
                except OSError:  # the other side is closed
                    break
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r", "\n")
