"""Users' own streaming queries that are not taken: what cannot be delivered exactly once is refused before a row is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from query_site import Open, plain

from landonce.query.examine import KAFKAS

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


def explode(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("topic", "partition", "offset", "explode(array(1L, 2L)) AS id", "'w' AS word")


def twice(frame: DataFrame) -> DataFrame:
    def doubled(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            yield batch

    return plain(frame).mapInArrow(doubled, plain(frame).schema)


def shifted(frame: DataFrame) -> DataFrame:
    return plain(frame).selectExpr("topic", "partition", "offset + 1000 AS offset", "id", "word")


def enriched(frame: DataFrame) -> DataFrame:
    other = frame.sparkSession.createDataFrame([(1, "x")], "id BIGINT, more STRING")
    return plain(frame).join(other, "id", "left").drop("more")


def beside_another_source(frame: DataFrame) -> DataFrame:
    rate = frame.sparkSession.readStream.format("rate").load()
    return plain(frame).unionByName(
        rate.selectExpr("'r' AS topic", "0 AS partition", "value AS offset", "value AS id", "'w' AS word")
    )


REFUSED: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "an aggregate": (
        lambda f: f.withWatermark("timestamp", "1 minute").groupBy("timestamp", *KAFKAS).count(),
        "it aggregates",
    ),
    "distinct": (lambda f: plain(f).distinct(), "it holds state|it aggregates"),
    "state": (lambda f: plain(f).dropDuplicates(["word"]), "it holds state"),
    "limit": (lambda f: plain(f).limit(3), "it holds state"),
    "explode": (explode, "several rows of one record"),
    "rows twice": (twice, "several rows of one record"),
    "other coordinates": (shifted, "lies outside of the ranges"),
    "no coordinates": (lambda f: plain(f).select("id", "word"), "have no coordinates"),
    "a join": (enriched, "it joins"),
    "another source": (beside_another_source, "only Kafka has offsets"),
    "the same topic twice": (lambda f: plain(f).unionByName(plain(f)), "two of its sources read|several rows of one"),
    "rand": (
        lambda f: plain(f).selectExpr("topic", "partition", "offset", "id", "CAST(rand() AS STRING) word"),
        "rand",
    ),
    "now": (
        lambda f: plain(f).selectExpr("topic", "partition", "offset", "id", "CAST(now() AS STRING) AS word"),
        "may give another value",
    ),
    "another column": (lambda f: plain(f).selectExpr("*", "1 AS more"), "has no column 'more'"),
    "another type": (
        lambda f: f.selectExpr("topic", "partition", "offset", "array(offset) AS id", "'w' AS word"),
        "which that of",
    ),
    "a value that does not fit": (
        lambda f: plain(f).selectExpr("topic", "partition", "offset", "CAST(NULL AS BIGINT) AS id", "word"),
        "does not fit the table",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_query_that_cannot_be_delivered_exactly_once_is_refused(open_site: Open, what: str) -> None:
    make, why = REFUSED[what]
    site = open_site("clickhouse")
    site.produce(6)
    with pytest.raises(StreamingQueryException, match=why):
        site.run(make=make)
    assert site.ask() == []


def test_what_spark_would_skip_in_silence_is_refused(open_site: Open) -> None:
    site = open_site("sqlite")
    site.produce(6)
    with pytest.raises(StreamingQueryException, match="failOnDataLoss"):
        site.run(failOnDataLoss="false")


def test_a_query_without_a_name_is_refused_and_its_own_name_is_taken(open_site: Open) -> None:
    site = open_site("sqlite")
    site.produce(6)
    with pytest.raises(StreamingQueryException, match="neither `exactly_once` nor the query has one"):
        site.run(site.once(name=None))
    writer = plain(site.stream()).writeStream.foreachBatch(site.once(name=None)).queryName("clicks")
    writer.option("checkpointLocation", str(site.folder / "other")).trigger(
        availableNow=True
    ).start().awaitTermination()
    site.exact()
    with closing(sqlite3.connect(site.folder / "target.db")) as connection:
        assert connection.execute("SELECT pipeline FROM landonce_pipeline").fetchall() == [("clicks",)]


def stateful(frame: DataFrame) -> DataFrame:
    def seen(_key: Any, frames: Iterable[Any], _state: Any) -> Iterator[Any]:
        yield from frames

    rows = plain(frame)
    return rows.groupBy("word").applyInPandasWithState(seen, rows.schema, "n BIGINT", "append", "NoTimeout")


def joined(frame: DataFrame) -> DataFrame:
    left, right = (plain(frame).withColumn("at", sql.expr("TIMESTAMP '2026-01-01'")) for _ in range(2))
    timed = (
        left.withWatermark("at", "1 minute")
        .alias("l")
        .join(right.withWatermark("at", "1 minute").alias("r"), ["id", "at"])
    )
    return timed.selectExpr("l.topic", "l.partition", "l.offset", "id", "l.word")


NOT_TAKEN: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "counts": (lambda f: plain(f).groupBy("word").count(), "it aggregates"),
    "state": (stateful, "applyInPandasWithState"),
    "late copies dropped": (
        lambda f: f.withWatermark("timestamp", "1 minute").dropDuplicatesWithinWatermark(["key"]),
        "dropDuplicatesWithinWatermark",
    ),
    "two streams joined": (joined, "it joins"),
    "a record's own offset": (
        lambda f: plain(f).selectExpr("topic", "partition", "id AS offset", "id", "word"),
        "its column 'offset' is not made from Kafka's 'offset'",
    ),
    "a constant": (
        lambda f: plain(f).selectExpr("topic", "0 AS partition", "offset", "id", "word"),
        "its column 'partition' is not made from Kafka's 'partition'",
    ),
}


@pytest.mark.parametrize("what", NOT_TAKEN)
def test_a_query_that_holds_state_or_has_no_coordinates_of_its_own_is_refused(open_site: Open, what: str) -> None:
    make, why = NOT_TAKEN[what]
    site = open_site("sqlite")
    site.produce(6)
    mode = "update" if what == "counts" else "append"
    with pytest.raises(StreamingQueryException, match=why):
        site.run(make=make, mode=mode)
    assert not (site.folder / "target.db").exists()


def test_rows_that_the_query_did_not_make_are_refused(open_site: Open) -> None:
    site = open_site("sqlite")
    site.produce(6)
    once = site.once()

    def deliver(batch: DataFrame, number: int) -> None:
        mine = batch.sparkSession.createDataFrame([(site.topics[0], 0, 1, 7, "mine")], batch.schema)
        once(batch.where("id <> 2").unionByName(mine), number)

    with pytest.raises(StreamingQueryException, match="beside Kafka, which may hold other rows"):
        site.run(deliver)
    assert not (site.folder / "target.db").exists()


@pytest.mark.parametrize("number", ["1002", "null"])
def test_rows_outside_of_their_batch_stop_it_before_anything_is_written(open_site: Open, number: str) -> None:
    """If the rest of a block landed, the query that was fixed after that would find it there, and go on without the row."""

    def astray(frame: DataFrame) -> DataFrame:
        offset = f"IF(id = 4, {number}, offset) AS offset"
        return plain(frame).selectExpr("topic", "partition", offset, "id", "word")

    site = open_site("sqlite")
    site.produce(20)
    with pytest.raises(StreamingQueryException, match=f'"_offset":{number}}} lies outside of the ranges'):
        site.run(make=astray)
    assert site.ask() == []
    site.run()
    site.exact()
