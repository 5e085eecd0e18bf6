"""Users' own streaming queries into Apache Iceberg: real queries, real Kafka, real tables, read by PyIceberg alone.

A run dies here by an exception in an observer, which stands for a driver that is gone. Drivers that are killed for real are in
tests/chaos.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from query_site import DiesAt, Make, Row, Site, plain, some_skipped

import landonce
from landonce.engine.observe import Silent
from landonce.errors import TargetUnavailable
from landonce.local import LocalKafka
from landonce.query.examine import KAFKAS
from landonce.sinks.iceberg.commit import Attempt, TableBranch

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

NAME = "db.events"
COLUMNS = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "word", StringType()),
    NestedField(3, "_topic", StringType()),
    NestedField(4, "_kafka_partition", IntegerType()),
    NestedField(5, "_offset", LongType()),
)


@dataclass
class Lake:
    """A catalog in a folder, and its one table, as anybody else would open it."""

    folder: Path

    @property
    def properties(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": f"file://{self.folder}"}

    @property
    def catalog(self) -> Catalog:
        return load_catalog("landonce", **self.properties)

    @property
    def table(self) -> Table:
        return self.catalog.load_table(NAME)

    def make(self, **options: Any) -> Table:
        self.catalog.create_namespace_if_not_exists("db")
        return self.catalog.create_table(NAME, COLUMNS, **options)

    def rows(self) -> list[Row]:
        if not self.catalog.table_exists(NAME):
            return []
        found = self.table.scan().to_arrow().to_pylist()
        return [(row["_topic"], row["_kafka_partition"], row["_offset"], row["id"], row["word"]) for row in found]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    folder = tmp_path / "lake"
    folder.mkdir()
    return Lake(folder)


@pytest.fixture
def site(spark: SparkSession, kafka: LocalKafka, tmp_path: Path, lake: Lake, new_topic: Callable[..., str]) -> Site:
    topics = tuple(new_topic(partitions=2) for _ in range(2))
    sink = landonce.iceberg(NAME, lake.properties, create=True)
    return Site(spark, kafka.bootstrap_servers, topics, tmp_path, sink, lake.rows)


def test_nothing_is_lost_or_twice_whatever_becomes_of_the_checkpoint(site: Site, lake: Lake) -> None:
    site.loses_checkpoints()
    site.lose_checkpoint()
    back = json.dumps({topic: {"0": 3, "1": 8} for topic in site.topics})
    site.produce(10)
    site.run(start=back, per_trigger=40)
    site.exact()


def test_a_plain_append_duplicates_in_the_same_scene(site: Site, lake: Lake) -> None:
    """The control: what one writes without landonce, an atomic commit for every batch."""
    lake.make()

    def append(batch: DataFrame, _number: int) -> None:
        named = batch.withColumnsRenamed({"topic": "_topic", "partition": "_kafka_partition", "offset": "_offset"})
        table = lake.table
        table.append(named.toArrow().select(table.schema().column_names).cast(table.schema().as_arrow()))

    site.duplicates_with(append)


def test_a_run_may_end_before_every_step_and_come_back_in_any_cut(site: Site, lake: Lake) -> None:
    """Nothing is ever pending: what was written and not committed never was, and what was committed is not written again."""
    for step in ("acquire", "look", "bind", "prepare", "write", "commit", "record"):
        site.produce(4, word=some_skipped)
        with pytest.raises(StreamingQueryException, match=f"died before {step}"):
            site.run(site.once(observer=DiesAt(step)))
        site.unspoiled(step)
    site.lose_checkpoint()
    site.run(per_trigger=6)
    site.exact()


class Meanwhile(Silent):
    """Something else happens, once, just before this step."""

    def __init__(self, step: str, happens: Callable[[], None]) -> None:
        self._step, self._happens = step, happens

    def step(self, effect: Any) -> None:
        if effect.step.value == self._step:
            self._step = ""
            self._happens()


@pytest.mark.parametrize("step", [pytest.param("write", marks=pytest.mark.long), "commit"])
def test_of_two_queries_at_once_the_first_cannot_commit_any_more(site: Site, lake: Lake, step: str) -> None:
    site.produce(10)
    other = replace(site, folder=site.folder / "other")
    with pytest.raises(StreamingQueryException, match="was taken over"):
        site.run(site.once(observer=Meanwhile(step, other.run)), per_trigger=4)
    site.exact()
    site.produce(10)
    site.run(per_trigger=4)
    site.exact()


@pytest.mark.parametrize("sent", [True, pytest.param(False, marks=pytest.mark.long)], ids=["committed", "absent"])
def test_a_commit_without_an_answer_is_looked_up(
    site: Site, lake: Lake, sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every request to the catalog the first one gets no answer."""
    silent = [True]
    send = TableBranch.send

    def cut(self: TableBranch, table: Table, attempt: Attempt) -> None:
        quiet, silent[0] = silent[0], not silent[0]
        if sent or not quiet:
            send(self, table, attempt)
        if quiet:
            raise TargetUnavailable("no answer came")

    monkeypatch.setattr(TableBranch, "send", cut)
    site.produce(20, word=some_skipped)
    site.run(per_trigger=8)
    site.exact()


def with_more(frame: DataFrame) -> DataFrame:
    """All sorts of types, and beside each what it must be."""
    parsed = frame.selectExpr("*", "from_json(CAST(value AS STRING), 'id BIGINT, word STRING') r")
    more = ("timestamp AS at", "CAST(timestamp AS BIGINT) AS seconds", "array(r.word) AS words")
    exact = (
        "CAST(r.id AS DECIMAL(12, 2)) AS price",
        "named_struct('number', r.id, 'text', r.word) AS pair",
        "value AS raw",
    )
    return parsed.selectExpr(*KAFKAS, "r.id", "r.word", *more, *exact).where("word <> 'skip'")


def test_a_batch_in_many_blocks_is_one_commit_of_partitioned_files(site: Site, lake: Lake) -> None:
    site.sink = landonce.iceberg(NAME, lake.properties, create=True, partition_by=("bucket(3, id)", "day(at)"))
    site.block_rows = 7
    site.produce(80, word=some_skipped)
    zone = site.spark.conf.get("spark.sql.session.timeZone")
    site.spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        site.run(make=with_more)
    finally:
        site.spark.conf.set("spark.sql.session.timeZone", str(zone))
    site.exact()
    for row in lake.table.scan().to_arrow().to_pylist():
        assert int(row["at"].timestamp()) == row["seconds"]
        assert (row["price"], row["words"]) == (row["id"], [row["word"]])
        assert row["pair"] == {"number": row["id"], "text": row["word"]}
        assert json.loads(row["raw"]) == {"id": row["id"], "word": row["word"]}
    batches = [each.summary.additional_properties["landonce.batch"] for each in lake.table.snapshots() if each.summary]
    assert batches == ["0", "0", "1"]
    assert len(list(lake.table.scan().plan_files())) > 12


def through(lake: Lake) -> list[datetime | None]:
    """What each snapshot with rows is valid through, oldest first."""
    found = [each.summary.additional_properties for each in lake.table.snapshots() if each.summary is not None]
    moments = [each.get("landonce.valid-through") for each in found if "added-records" in each]
    return [datetime.fromisoformat(each) if each is not None else None for each in moments]


def with_timestamp(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("*", "from_json(CAST(value AS STRING), 'id BIGINT, word STRING') r").selectExpr(
        *KAFKAS, "timestamp AS at", "r.id", "r.word"
    )


def of_another_time(frame: DataFrame) -> DataFrame:
    """Looks like Kafka's timestamp, and is not."""
    return with_timestamp(frame).selectExpr(*KAFKAS, "at + INTERVAL 1 DAY AS timestamp", "id", "word")


def at_second(site: Site, second: int, *partitions: int) -> None:
    producer = Producer({"bootstrap.servers": site.bootstrap})
    for partition in partitions:
        value = json.dumps({"id": second, "word": "w"}).encode()
        producer.produce(site.topics[0], value, partition=partition, timestamp=1000 * second)
    assert producer.flush(60) == 0


START = int(time.time()) - 3600


def moment(second: int) -> datetime:
    return datetime.fromtimestamp(START + second, timezone.utc)


def test_a_commit_says_through_which_moment_it_is_valid_where_rows_keep_the_timestamp(site: Site, lake: Lake) -> None:
    site.topics = site.topics[:1]
    for second, partitions in ((5, (0,)), (9, (0, 1)), (7, (1,))):
        at_second(site, START + second, *partitions)
    zone = site.spark.conf.get("spark.sql.session.timeZone")
    site.spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        site.run(make=with_timestamp)
        at_second(site, START + 20, 0)
        site.run(make=with_timestamp)
        at_second(site, START + 30, 0)
        at_second(site, START + 25, 1)
        site.run(make=with_timestamp)
    finally:
        site.spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert through(lake) == [moment(9), None, moment(25)], "partition 1 had no record in the second batch"


@pytest.mark.parametrize("make", [plain, of_another_time], ids=["not kept", "computed"])
def test_a_commit_is_silent_where_nobody_knows_the_timestamps(site: Site, lake: Lake, make: Make) -> None:
    site.topics = site.topics[:1]
    at_second(site, START, 0, 1)
    site.run(make=make)
    assert len(lake.rows()) == 2
    assert through(lake) == [None]


def test_a_table_that_was_rolled_back_gets_what_was_removed(site: Site, lake: Lake) -> None:
    site.produce(20)
    site.run(per_trigger=10)
    older = [each for each in lake.table.snapshots() if each.summary and each.summary["landonce.batch"] == "1"][-1]
    lake.table.manage_snapshots().rollback_to_snapshot(older.snapshot_id).commit()
    site.produce(10)
    with pytest.raises(StreamingQueryException, match="the next offset is 5, and the source continues at 10"):
        site.run()
    site.lose_checkpoint()
    site.run(start=site.once().starting_offsets(site.bootstrap, site.topics))
    site.exact()


@pytest.mark.long
def test_columns_that_others_change_are_taken_up_or_refused(site: Site, lake: Lake) -> None:
    query = (
        plain(site.stream()).writeStream.foreachBatch(site.once()).option("checkpointLocation", str(site.checkpoint))
    )
    running = query.start()
    try:
        site.produce(10)
        running.processAllAvailable()
        with lake.table.update_schema() as change:
            change.add_column("more", StringType())
        site.produce(10)
        running.processAllAvailable()
        site.exact()
        with lake.table.update_schema() as change:
            change.rename_column("word", "term")
        site.produce(10)
        with pytest.raises(StreamingQueryException, match="has no column 'word'; it has id, term, more"):
            running.processAllAvailable()
    finally:
        running.stop()
    with lake.table.update_schema() as change:
        change.rename_column("term", "word")
    site.run()
    site.exact()


def test_what_a_query_cannot_be_delivered_to_is_refused(site: Site, lake: Lake) -> None:
    site.produce(10)
    absent = replace(site, sink=landonce.iceberg(NAME, lake.properties))
    with pytest.raises(StreamingQueryException, match="the catalog has no table"):
        absent.run()
    lake.make(sort_order=SortOrder(SortField(source_id=1)))
    with pytest.raises(StreamingQueryException, match="Spark's own writer is needed for it, since it has a sort order"):
        site.run()
    lake.catalog.drop_table(NAME)
    site.run()
    with pytest.raises(
        StreamingQueryException, match="holds records of these topics, but no position of this pipeline"
    ):
        replace(site, name="another", folder=site.folder / "other").run()
    site.run()
    site.exact()
