"""Which queries are taken, and which mistakes around a query neither lose nor duplicate anything: real queries and an independent count."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pipelines import SmallPipeline
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from query_site import SELECT, DiesAt, Open, Produced, Site, Values, plain

import landonce
from landonce.engine.observe import Silent
from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

EVENTS = """CREATE TABLE IF NOT EXISTS events
(id BIGINT, word TEXT, _topic TEXT NOT NULL, _partition INT NOT NULL, _offset BIGINT NOT NULL)"""


def reading(site: Site, per_trigger: int, **options: str) -> DataFrame:
    reader = site.spark.readStream.format("kafka").option("kafka.bootstrap.servers", site.bootstrap)
    return reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=per_trigger, **options).load()


# Queries that are taken.


def roundabout(frame: DataFrame) -> DataFrame:
    """All that a stateless query may be made of: one record makes one row, or none."""

    def same(frames: Iterable[Any]) -> Iterator[Any]:
        yield from frames

    louder = sql.udf(lambda word: word.upper() if word != "skip" else word, "string")
    frame.withWatermark("timestamp", "1 minute").repartition(3).createOrReplaceTempView("clicks")
    read = frame.sparkSession.sql(
        """WITH parsed AS (SELECT *, from_json(CAST(value AS STRING), 'id BIGINT, word STRING') AS r FROM clicks)
        SELECT /*+ REPARTITION(2) */ struct(topic, partition, offset) AS place, r.id, r.word, headers FROM parsed"""
    )
    shaped = read.selectExpr(
        "place.topic AS t", "place.partition AS _partition", "place.offset AS _offset", "id", "word"
    )
    renamed = shaped.withColumnRenamed("t", "_topic").withColumn("word", louder("word")).where("word <> 'skip'")
    return renamed.mapInPandas(same, renamed.schema).coalesce(1).observe("seen", sql.count(sql.lit(1)).alias("rows"))


def test_stateless_queries_of_many_parts_are_taken(open_site: Open) -> None:
    site = open_site("sqlite")
    site.produce(40, word=lambda number: "skip" if number % 7 == 0 else f"w{number}")
    source = {"includeHeaders": "true", "minPartitions": "5"}
    with pytest.raises(StreamingQueryException, match="died before record"):
        site.run(site.once(observer=DiesAt("record")), make=roundabout, per_trigger=24, **source)
    site.run(make=roundabout, per_trigger=24, **source)
    site.exact(lambda each: (each.id, each.word.upper()))


def test_rows_may_be_shaped_in_the_function_and_go_to_two_sinks(open_site: Open, tmp_path: Path) -> None:
    """Each batch in another way: what is pending is written again only as it was."""
    site = open_site("sqlite")
    other = Site(site.spark, site.bootstrap, site.topics, tmp_path, site.sink, site.ask, name="other")
    other.sink = landonce.sql(f"sqlite:///{tmp_path / 'target.db'}", "others", create=True)

    def both(first: Any, second: Any) -> Callable[[DataFrame, int], None]:
        def deliver(batch: DataFrame, number: int) -> None:
            halves = batch.where("id % 2 = 0").unionByName(batch.where("id % 2 = 1"))
            first(halves.withColumn("word", sql.lit(f"batch {number}")).sort("id"), number)
            second(batch if number % 2 == 0 else batch.select("topic", "partition", "offset", "id"), number)

        return deliver

    site.produce(30)
    with pytest.raises(StreamingQueryException, match="died before write"):
        site.run(both(site.once(observer=DiesAt("write", skip=1)), other.once()), per_trigger=10)
    site.run(both(site.once(), other.once()), per_trigger=10)
    site.exact(lambda each: (each.id, f"batch {each.at[2] // 5}"))
    site.ask = lambda: in_table(tmp_path, f"{SELECT}others")
    site.exact(lambda each: (each.id, None if each.at[2] // 5 == 1 else each.word))


def in_table(folder: Path, question: str) -> list[Any]:
    with closing(sqlite3.connect(folder / "target.db", timeout=60)) as connection:
        return connection.execute(question).fetchall()


def test_a_table_that_is_altered_while_a_query_runs_is_examined_again(open_site: Open, tmp_path: Path) -> None:
    """What its rows still fit goes on. What they do not fit halts it, and no more: with the table as it was, it goes on."""
    site = open_site("sqlite")
    site.produce(20)
    alters = ["ALTER TABLE events ADD COLUMN more TEXT", "ALTER TABLE events RENAME COLUMN word TO other"]
    once = site.once()

    def deliver(batch: DataFrame, number: int) -> None:
        once(batch, number)
        in_table(tmp_path, alters[number])

    with pytest.raises(StreamingQueryException, match="no column 'word'"):
        site.run(deliver, per_trigger=6)
    in_table(tmp_path, "ALTER TABLE events RENAME COLUMN other TO word")
    site.run(per_trigger=6)
    site.exact()


def test_two_sinks_under_one_name_are_refused(open_site: Open, tmp_path: Path) -> None:
    """Otherwise the second would get nothing, and nobody would say so."""
    site = open_site("sqlite")
    site.produce(6)
    first = site.once()
    second = landonce.exactly_once(landonce.sql(f"sqlite:///{tmp_path / 'target.db'}", "others", create=True), name="q")

    def deliver(batch: DataFrame, number: int) -> None:
        first(batch, number)
        second(batch, number)

    with pytest.raises(StreamingQueryException, match="have the same name, 'q'"):
        site.run(deliver)
    site.exact()


@pytest.mark.parametrize("each_time", [False, True], ids=["one-object", "made-in-the-function"])
def test_a_batch_that_is_handed_over_in_parts_is_refused(open_site: Open, each_time: bool) -> None:
    """The position is past all of it with the first part, so the second would be dropped as if it were delivered."""
    site = open_site("sqlite")
    site.produce(10)
    kept = site.once()

    def deliver(batch: DataFrame, number: int) -> None:
        for part in ("id % 2 = 0", "id % 2 = 1"):
            (site.once() if each_time else kept)(batch.where(part), number)

    with pytest.raises(StreamingQueryException, match="passed a second time under the same name"):
        site.run(deliver)
    assert len(site.ask()) == 5


def test_several_sources_and_partitions_that_appear_later(open_site: Open) -> None:
    site = open_site("sqlite", topics=2)
    one, two = site.topics

    def united(_frame: DataFrame) -> DataFrame:
        first = plain(reading(site, 14, subscribe=one))
        return first.unionByName(plain(reading(site, 6, subscribePattern=two)))

    site.produce(20, topic=one)
    site.produce(20, topic=two)
    site.run(make=united)
    site.exact()
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    admin.create_partitions([NewPartitions(one, 3)])[one].result(30)
    site.produce(30, topic=one, partitions=3)
    site.run(make=united)
    site.exact()
    site.lose_checkpoint()
    site.produce(9, topic=two)
    site.run(make=united)
    site.exact()


# What happens around a query.


def test_an_error_that_is_caught_is_no_licence_to_go_on(open_site: Open, tmp_path: Path) -> None:
    """A ledger that is new would begin with the second batch."""
    site = open_site("sqlite")
    site.produce(20)
    once = landonce.exactly_once(landonce.sql(f"sqlite:///{tmp_path / 'target.db'}", "events"), name="q")
    heard: list[str] = []

    def careless(batch: DataFrame, number: int) -> None:
        try:
            once(batch, number)
        except landonce.errors.LandonceError as error:
            heard.append(str(error))
            in_table(
                tmp_path,
                EVENTS,
            )

    site.run(careless, per_trigger=10)
    assert len(heard) == 2
    assert "an earlier batch ended with an error" in heard[1]
    assert site.ask() == []
    site.produce(4)
    with pytest.raises(StreamingQueryException, match="the ledger has no position for it, but the query began at"):
        site.run()
    assert site.ask() == []
    site.lose_checkpoint()
    site.run()
    site.exact()


def test_a_partition_that_was_silent_is_not_skipped(open_site: Open) -> None:
    site = open_site("sqlite")
    site.produce(10, partitions=1)
    site.run()
    site.lose_checkpoint()
    topic = site.topics[0]
    site.produce(10)
    skipping = json.dumps({topic: {"0": 10, "1": 3}})
    with pytest.raises(StreamingQueryException, match="the next offset is 0, and the source continues at 3"):
        site.run(start=skipping)
    site.lose_checkpoint()
    site.run()
    site.exact()


def test_what_is_dropped_is_reported(open_site: Open) -> None:
    class Listening(Silent):
        def __init__(self) -> None:
            self.heard: list[str] = []

        def trouble(self, what: str) -> None:
            self.heard.append(what)

    site, ear = open_site("sqlite"), Listening()
    site.produce(20)
    site.run(site.once(observer=ear))
    assert ear.heard == []
    site.lose_checkpoint()
    site.produce(4)
    site.run(site.once(observer=ear), per_trigger=16)
    assert ear.heard == [
        "16 offsets of batch 0 were delivered already, and were dropped.",
        "4 offsets of batch 1 were delivered already, and were dropped.",
    ]


def test_a_topic_that_is_made_again_under_a_running_query_is_refused(open_site: Open, kafka: LocalKafka) -> None:
    """The new one is longer than the old one, so Spark goes on in the middle of it."""
    site = open_site("sqlite")
    site.produce(20)
    once, topic = site.once(), SmallPipeline(kafka, None, site.folder, site.topics[0], "")  # type: ignore[arg-type]

    def deliver(batch: DataFrame, number: int) -> None:
        once(batch, number)
        if number == 0:
            topic.recreate_topic(2)
            site.produced.clear()
            site.produce(60)

    writer = plain(site.stream()).writeStream.foreachBatch(deliver)
    query = writer.option("checkpointLocation", str(site.checkpoint)).start()
    try:
        with pytest.raises(StreamingQueryException, match=r"was deleted and created again"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert len(site.ask()) == 20


@pytest.mark.parametrize("landed", ["half", pytest.param("all", marks=pytest.mark.long)])
def test_a_block_that_landed_in_part_is_made_whole_in_any_cut(
    open_site: Open, landed: str, clickhouse: LocalClickHouse
) -> None:
    """A table with partitions of its own may hold a block in one of them only."""
    site = open_site("clickhouse", partition_by="PARTITION BY intDiv(id, 2) % 2")
    site.produce(20)
    site.run(per_trigger=20)
    first = len(site.ask())
    site.produce(40)
    died = "write" if landed == "half" else "record"
    with pytest.raises(StreamingQueryException, match=f"died before {died}"):
        site.run(site.once(observer=DiesAt(died)), per_trigger=40)
    numbers = [at for at in range(40) if at // 2 % 2 == 0] if landed == "half" else []
    if numbers:
        table = site.sink.table  # type: ignore[union-attr]
        values = ", ".join(f"({at}, 'w', '{site.topics[0]}', {at % 2}, {10 + at // 2})" for at in numbers)
        clickhouse.ask(f"INSERT INTO {table} VALUES {values}")
    assert len(site.ask()) == first + (20 if landed == "half" else 40)
    site.lose_checkpoint()
    site.run(per_trigger=14)

    def made(each: Produced) -> Values:
        return each.id, "w" if each.at[2] >= 10 and each.id in numbers else each.word

    site.exact(made)
