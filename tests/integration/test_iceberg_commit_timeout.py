"""A commit timeout: blocks that are ready land, and the slow ones follow, in order and exactly once. A storage that stalls makes one block slow;
the tables are read by PyIceberg, or by Spark."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import slow_files
from deliveries import wait_until
from jvms import iceberg_session
from pyiceberg.table import Table
from pyspark.sql import SparkSession
from small_lakes import SmallLake, by_spark, once

from landonce.cli.progress import LogProgress
from landonce.engine.observe import BatchReport, Silent
from landonce.engine.pipeline import run_pipeline
from landonce.engine.workers import Enough, SparkWorkers
from landonce.local import LocalKafka
from landonce.protocol.ledger import Totals
from landonce.sinks.pipeline_file import load

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TEN = {"interval": "0s", "max_rows": 1000, "block_rows": 10, "commit_timeout": "1ms"}
NOW = int(time.time() * 1000)


@pytest.fixture(autouse=True)
def over_once_all_but_the_slow_one_are_done(
    monkeypatch: pytest.MonkeyPatch, near_workers: None, tmp_path: Path
) -> None:
    """So what is ready when the timeout is over does not depend on the machine."""
    write = SparkWorkers.write_until

    def write_until(workers: SparkWorkers, recipe: Any, tasks: Any, enough: Enough) -> Any:
        def over(done: Any) -> bool:
            return len(done) >= len(tasks) - 1 and any((tmp_path / "slow").glob("held-*")) and enough(done)

        return write(workers, recipe, tasks, over)

    monkeypatch.setattr(SparkWorkers, "write_until", write_until)


@dataclass
class Slow(Silent):
    """A storage that stalls, and an observer that looks at the tables after each batch."""

    lake: SmallLake
    tables: tuple[str, ...] = ("db.t",)
    troubles: list[str] = field(default_factory=list)
    batches: list[BatchReport] = field(default_factory=list)
    offsets: list[Counter[tuple[int, int]]] = field(default_factory=list)
    letters: list[list[dict[str, Any]]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.lake.folder / "slow"

    def batch(self, report: BatchReport) -> None:
        self.batches.append(report)
        found: Counter[tuple[int, int]] = Counter()
        for name in self.tables:
            if self.lake.catalog.table_exists(name):
                found += self.lake.offsets(name)
        self.offsets.append(found)
        self.letters.append(self.lake.letters())

    def trouble(self, what: str) -> None:
        self.troubles.append(what)

    @property
    def late(self) -> list[str]:
        """What the run said of slow blocks."""
        return [each for each in self.troubles if each.startswith("the commit timeout is over")]

    def run(self, block: int) -> Totals:
        """All that is there, with one slow block in the first batch. Its writer is released after the run, and writes its files then."""
        slow_files.hold(self.folder, block)
        try:
            totals = run_pipeline(load(self.lake.file), once=True, observer=self)
            assert slow_files.is_held(self.folder, block), "it was slow"
        finally:
            slow_files.release(self.folder)
        return totals


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    session = iceberg_session({})
    yield session
    session.stop()


@pytest.fixture
def slow(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> Slow:
    return Slow(SmallLake(kafka, tmp_path, new_topic(partitions=2)))


def write_file(
    slow: Slow, batch: dict[str, Any] | None = None, more: dict[str, Any] | None = None, **sink: Any
) -> None:
    catalog = slow_files.properties(slow.folder)
    table = {} if "tables" in sink else {"table": "db.t"}
    slow.lake.write_file({**table, "create": True, "catalog": catalog, **sink}, batch=batch or TEN, **(more or {}))


def numbers(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": number} for number in range(first, first + count)]


def written(lake: SmallLake, batch: int, block: int) -> list[Path]:
    """Files of a block, whether they count or not."""
    return [*lake.folder.glob(f"lake/**/*-b{batch}-{block}-*.parquet")]


def summaries(table: Table) -> list[dict[str, str]]:
    """Of the commits of batches, oldest first. What takes the table says the last batch again."""
    found = [each.summary.additional_properties for each in table.snapshots() if each.summary is not None]
    first = {each["landonce.batch"]: each for each in reversed(found)}
    return [first[batch] for batch in sorted(first, key=int) if batch != "0"]


def moment(milliseconds: int) -> str:
    at = datetime.fromtimestamp(milliseconds // 1000, timezone.utc).replace(microsecond=milliseconds % 1000 * 1000)
    return at.isoformat(timespec="milliseconds")


def test_ready_blocks_land_first_and_the_slow_one_follows(slow: Slow) -> None:
    """Its own files come in the end, when all is over: nobody commits them."""
    write_file(slow)
    slow.lake.produce(numbers(0, 10), partition=0)
    slow.lake.produce(numbers(100, 10), partition=1)
    totals = slow.run(block=1)
    assert slow.offsets == [once(10), once(10) + once(10, partition=1)]
    assert totals == Totals(landed=20)
    (late,) = slow.late
    assert f" batch 1 goes ahead without {slow.lake.topic}[1] [0, 10). " in late
    wait_until(lambda: written(slow.lake, 1, 1) != [])
    slow.lake.run()
    assert slow.lake.offsets("db.t") == once(10) + once(10, partition=1)


def test_without_a_timeout_a_batch_waits_for_its_slow_block(slow: Slow) -> None:
    """The control: what is ready does not land before the slow block does."""
    write_file(slow, {each: value for each, value in TEN.items() if each != "commit_timeout"})
    slow.lake.produce(numbers(0, 10), partition=0)
    slow.lake.produce(numbers(100, 10), partition=1)
    slow_files.hold(slow.folder, 1)
    run = threading.Thread(target=lambda: run_pipeline(load(slow.lake.file), once=True, observer=slow), daemon=True)
    run.start()
    wait_until(lambda: slow_files.is_held(slow.folder, 1) and written(slow.lake, 1, 0) != [])
    assert slow.offsets == []
    slow_files.release(slow.folder)
    run.join(60)
    assert slow.offsets == [once(10) + once(10, partition=1)]


def test_a_partition_keeps_its_order_and_its_moment(slow: Slow) -> None:
    """Blocks 0 and 1 are of partition 0, 2 and 3 of partition 1. With block 2 slow, block 3 is ready, and waits for it."""
    write_file(slow)
    for partition, first in ((0, NOW), (1, NOW + 1_000)):
        for at, number in enumerate(range(20)):
            slow.lake.produce([{"id": number}], partition, timestamp=first + at)
    slow.run(block=2)
    assert slow.offsets == [once(20), once(20) + once(20, partition=1)]
    assert [each.blocks for each in slow.batches] == [2, 2]
    write_file(slow, {**TEN, "commit_timeout": "1h"})
    slow.lake.produce(numbers(20, 10), 0, timestamp=NOW + 3_000)
    slow.lake.produce(numbers(20, 10), 1, timestamp=NOW + 4_000)
    run_pipeline(load(slow.lake.file), once=True, observer=slow)
    valid = [each.get("landonce.valid-through") for each in summaries(slow.lake.table("db.t"))]
    assert valid == [None, None, moment(NOW + 3_000)]


def test_the_beginning_of_a_partition_says_through_which_moment_a_commit_is_valid(slow: Slow) -> None:
    write_file(slow)
    for partition in (0, 1):
        for at in range(20):
            slow.lake.produce([{"id": at}], partition, timestamp=NOW + 1_000 * partition + at)
    slow.run(block=1)
    first, second = summaries(slow.lake.table("db.t"))
    assert slow.offsets[0] == once(10) + once(20, partition=1)
    assert json.loads(first["landonce.position"])[slow.lake.topic] == {"0": [0, 10], "1": [0, 20]}
    assert first["landonce.valid-through"] == moment(NOW + 9)
    assert "landonce.valid-through" not in second


def test_where_nothing_can_go_ahead_the_batch_is_waited_for(
    kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """The beginning of the only partition is slow."""
    slow = Slow(SmallLake(kafka, tmp_path, new_topic(partitions=1)))
    write_file(slow)
    slow.lake.produce(numbers(0, 20))
    slow_files.hold(slow.folder, 0)
    run = threading.Thread(target=lambda: run_pipeline(load(slow.lake.file), once=True, observer=slow), daemon=True)
    run.start()
    wait_until(lambda: slow_files.is_held(slow.folder, 0) and written(slow.lake, 1, 1) != [])
    slow_files.release(slow.folder)
    run.join(60)
    assert slow.offsets == [once(20)]
    assert slow.late == []


def test_the_batch_after_it_is_waited_for_and_the_next_may_be_cut_again(slow: Slow) -> None:
    """Partition 1 is slow in three batches, one after the other."""
    write_file(slow, {**TEN, "max_rows": 20})
    slow.lake.produce(numbers(0, 30), partition=0)
    slow.lake.produce(numbers(100, 20), partition=1)

    def batch(report: BatchReport) -> None:
        Slow.batch(slow, report)
        slow_files.release(slow.folder)
        if len(slow.batches) < 3:
            slow_files.hold(slow.folder, 1)

    slow.batch = batch  # type: ignore[method-assign]
    slow_files.hold(slow.folder, 1)
    run = threading.Thread(target=lambda: run_pipeline(load(slow.lake.file), once=True, observer=slow), daemon=True)
    run.start()
    wait_until(lambda: len(slow.batches) == 1)
    wait_until(lambda: slow_files.is_held(slow.folder, 1) and written(slow.lake, 2, 0) != [])
    assert len(slow.batches) == 1
    slow_files.release(slow.folder)
    run.join(120)
    slower = [0, 10, 10, 20]
    assert slow.offsets == [
        once(count) + once(late, partition=1) for count, late in zip([10, 20, 30, 30], slower, strict=True)
    ]
    assert len(slow.late) == 2


def test_dead_letters_of_a_slow_block_count_when_it_lands(slow: Slow) -> None:
    write_file(slow)
    for partition in (0, 1):
        slow.lake.produce([b"not json", *numbers(0, 9)], partition)
    totals = slow.run(block=1)
    assert totals == Totals(landed=18, dead_lettered=2)
    assert [[(each["partition"], each["offset"]) for each in some] for some in slow.letters] == [
        [(0, 0)],
        [(0, 0), (1, 0)],
    ]
    assert [each.totals for each in slow.batches] == [Totals(landed=9, dead_lettered=1)] * 2
    wait_until(lambda: written(slow.lake, 1, 1) != [])
    slow.lake.run()
    assert len(slow.lake.letters()) == 2
    assert not list(slow.lake.folder.glob("dead-pipe/*.staged"))


def test_tables_of_a_fan_out_get_the_ready_blocks_together(slow: Slow) -> None:
    slow.tables = ("db.all", "db.odd")
    write_file(
        slow,
        route_field="kind",
        tables=[{"table": "db.all"}, {"table": "db.odd", "equals": ["odd"]}],
    )
    for partition in (0, 1):
        slow.lake.produce([{"id": at, "kind": "odd" if at % 2 else "even"} for at in range(10)], partition)
    slow.run(block=0)
    odd = Counter({(partition, offset): 1 for partition in (0, 1) for offset in range(1, 10, 2)})
    late = Counter({each: 1 for each in odd if each[0] == 0})
    assert slow.offsets == [once(10, partition=1) + (odd - late), once(10) + once(10, partition=1) + odd]


@pytest.mark.parametrize("write", ["equality", "merge"])
def test_changes_of_a_key_keep_their_order(slow: Slow, session: SparkSession, write: str) -> None:
    """Keys are changed in three blocks of their partition, the second of which is slow. A later change does not land before an earlier one."""
    write_file(
        slow,
        {**TEN, "max_rows": 60},
        identity="id",
        changes={"mode": "operation"},
        write=write,
    )
    wanted: list[dict[int, str]] = []
    for partition in (0, 1):
        changes = [("c" if at < 5 else "u", 2 * (at % 5) + partition, f"{at}") for at in range(30)]
        slow.lake.produce([{"op": op, "id": key, "kind": kind} for op, key, kind in changes], partition)
        wanted.append({key: kind for _, key, kind in changes})
        wanted.append({key: kind for _, key, kind in changes[:10]})
    slow.tables = ()
    seen: list[dict[int, str]] = []

    def batch(report: BatchReport) -> None:
        seen.append({row["id"]: row["kind"] for row in by_spark(session, slow.lake)})

    slow.batch = batch  # type: ignore[method-assign]
    slow.run(block=1)
    first, beginning, second, _ = wanted
    assert seen == [beginning | second, first | second]
    assert len(by_spark(session, slow.lake)) == 10


def test_the_log_says_which_partitions_are_late(slow: Slow, caplog: pytest.LogCaptureFixture) -> None:
    write_file(slow)
    slow.lake.produce(numbers(0, 10), partition=0)
    slow.lake.produce(numbers(100, 10), partition=1)
    slow_files.hold(slow.folder, 1)
    log = logging.getLogger("test of a commit timeout")
    with caplog.at_level(logging.INFO, log.name):
        run_pipeline(load(slow.lake.file), once=True, observer=LogProgress("pipe", log))
    slow_files.release(slow.folder)
    events = [json.loads(each.message) for each in caplog.records]
    said = [each["event"] for each in events if each["event"] == "batch" or "commit timeout" in each.get("what", "")]
    assert said == ["trouble", "batch", "batch"]
    (late,) = [each["what"] for each in events if "commit timeout" in each.get("what", "")]
    assert f"{slow.lake.topic}[1] [0, 10)" in late
    assert f"{slow.lake.topic}[0]" not in late


def test_spark_ends_the_task_that_is_slow(
    slow: Slow, session: SparkSession, spark_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Spark's processes: the slow one is gone before it is released, so its files never come."""
    write = SparkWorkers.write_until

    def once_it_is_held(workers: SparkWorkers, recipe: Any, tasks: Any, enough: Enough) -> Any:
        return write(workers, recipe, tasks, lambda done: slow_files.is_held(slow.folder, 1) and enough(done))

    monkeypatch.setattr(SparkWorkers, "write_until", once_it_is_held)
    session.sparkContext.addPyFile(slow_files.__file__)
    write_file(slow)
    slow.lake.produce(numbers(0, 10), partition=0)
    slow.lake.produce(numbers(100, 10), partition=1)
    assert slow.run(block=1) == Totals(landed=20)
    assert slow.offsets == [once(10), once(10) + once(10, partition=1)]
    assert len(slow.late) == 1
    assert written(slow.lake, 1, 1) == []
