"""Users' own streaming queries, delivered exactly once: real queries, real Kafka, real targets, and an independent count.

A run dies here by an exception in an observer, which stands for a driver that is gone: Spark's checkpoint and the ledger stay as
they are at that step. Drivers that are killed for real are in tests/chaos.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from query_site import Open, open_session, opener, plain

from landonce.engine.observe import Silent
from landonce.local import LocalKafka
from landonce.query.examine import KAFKAS

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


class DiesAt(Silent):
    """The end of a run before this step, after passing it so often."""

    def __init__(self, step: str, skip: int = 0) -> None:
        self._step, self._left = step, skip

    def step(self, effect: Any) -> None:
        if effect.step.value == self._step:
            if self._left == 0:
                raise RuntimeError(f"died before {self._step}")
            self._left -= 1


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return open_session()


@pytest.fixture
def open_site(
    spark: SparkSession,
    kafka: LocalKafka,
    tmp_path: Path,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    request: pytest.FixtureRequest,
) -> Open:
    return opener(spark, kafka, tmp_path, new_topic, new_table, request)


LONG = pytest.mark.long
CLICKHOUSE = pytest.mark.parametrize(
    "kind", ["clickhouse", pytest.param("postgres", marks=LONG), pytest.param("sqlite", marks=LONG)]
)
SQLITE = pytest.mark.parametrize(
    "kind", [pytest.param("clickhouse", marks=LONG), pytest.param("postgres", marks=LONG), "sqlite"]
)
"""What takes long is tried with one of them, and with the others in `make test-long`."""


def some_skipped(number: int) -> str:
    """Whole ends of most ranges are filtered away: the rows do not show where a batch began and ended."""
    return "skip" if number % 20 < 6 or number % 20 > 15 else f"w{number}"


@SQLITE
def test_nothing_is_lost_or_twice_whatever_becomes_of_the_checkpoint(open_site: Open, kind: str) -> None:
    site = open_site(kind, topics=2)
    for topic in site.topics:
        site.produce(20, topic=topic, word=some_skipped)
    site.run(per_trigger=24)
    site.exact()
    site.forget_last_commit()
    site.produce(10)
    site.run(per_trigger=24)
    site.exact()
    site.lose_checkpoint()
    site.produce(10, topic=site.topics[1])
    site.run(per_trigger=34)
    site.exact()
    site.lose_checkpoint()
    site.produce(10)
    site.run(start=site.once().starting_offsets(site.bootstrap, site.topics))
    site.exact()


def test_a_plain_query_duplicates_in_the_same_scene(open_site: Open, tmp_path: Path) -> None:
    """The control: what one writes without landonce."""
    site = open_site("sqlite")
    path = tmp_path / "target.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TABLE events (_topic TEXT, _partition INTEGER, _offset INTEGER, id INTEGER, word TEXT)"
        )

    def append(batch: DataFrame, _number: int) -> None:
        rows = [(row.topic, row.partition, row.offset, row.id, row.word) for row in batch.collect()]
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", rows)

    site.duplicates_with(append)


@pytest.mark.parametrize(
    ("died", "kind"),
    [
        pytest.param(died, kind, id=f"{name}-{kind}", marks=() if (name, kind) in quick else LONG)
        for died, name in (("write", "absent"), ("record", "landed"))
        for kind in ("clickhouse", "postgres", "sqlite")
        for quick in [{("landed", "clickhouse"), ("absent", "sqlite")}]
    ],
)
def test_a_pending_plan_is_settled_whichever_cut_comes_next(open_site: Open, kind: str, died: str) -> None:
    """Contained, then crossing and next; later overlapping."""
    site = open_site(kind)
    site.produce(20, word=some_skipped)
    site.run(per_trigger=20)

    def die() -> None:
        site.produce(20, word=some_skipped)
        with pytest.raises(StreamingQueryException, match=f"died before {died}"):
            site.run(site.once(observer=DiesAt(died)), per_trigger=20)
        site.lose_checkpoint()

    die()
    site.run(per_trigger=6, start=site.once().starting_offsets(site.bootstrap, site.topics))
    site.exact()
    die()
    site.run(per_trigger=14)
    site.exact()
    die()
    site.produce(6)
    site.run()
    site.exact()


@CLICKHOUSE
def test_what_lies_behind_a_pending_plan_waits_for_what_is_missing(open_site: Open, kind: str) -> None:
    site = open_site(kind)
    site.produce(40)
    site.run()
    behind = json.dumps({site.topics[0]: {"0": 30, "1": 30}})
    for died, refusal in (("record", None), ("write", "GapRefused")):
        site.produce(20)
        with pytest.raises(StreamingQueryException):
            site.run(site.once(observer=DiesAt(died)))
        site.produce(20)
        site.lose_checkpoint()
        if refusal is None:
            site.run(start=behind)
            site.exact()
            behind = json.dumps({site.topics[0]: {"0": 50, "1": 50}})
            continue
        with pytest.raises(StreamingQueryException, match="the next offset is 40, and the source continues at 50"):
            site.run(start=behind)
        site.lose_checkpoint()
        site.run(start=site.once().starting_offsets(site.bootstrap, site.topics))
        site.exact()


STEPS = {
    True: [
        "acquire",
        "kill",
        "look",
        "bind",
        "survey",
        "prepare",
        "write",
        "await",
        "rearm",
        "write",
        "record",
        "record",
    ],
    False: ["acquire", "look", "bind", "prepare", "write", "write", "record", "record"],
}
"""A plan stays pending from the first `write` on, and what comes after it is its recovery."""


@SQLITE
def test_a_run_may_end_before_every_step(open_site: Open, kind: str) -> None:
    site = open_site(kind)
    for step in STEPS[kind == "clickhouse"]:
        site.produce(4)
        with pytest.raises(StreamingQueryException, match=f"died before {step}"):
            site.run(site.once(observer=DiesAt(step)))
        site.unspoiled(step)
    site.produce(4)
    site.lose_checkpoint()
    with pytest.raises(StreamingQueryException, match="died before prepare"):
        site.run(site.once(observer=DiesAt("prepare")), per_trigger=4)
    site.run(per_trigger=6)
    site.exact()


def test_a_query_that_went_back_is_dropped_or_refused(open_site: Open) -> None:
    site = open_site("sqlite")
    site.produce(40)
    site.run(start=json.dumps({site.topics[0]: {"0": 4, "1": 4}}), per_trigger=10)
    kept = [each for each in site.produced if each.at[2] >= 4]
    site.produced = kept
    site.exact()
    site.lose_checkpoint()
    back = json.dumps({site.topics[0]: {"0": 5, "1": 11}})
    with pytest.raises(StreamingQueryException, match="was already delivered"):
        site.run(site.once(on_rewind="error"), start=back, per_trigger=10)
    site.lose_checkpoint()
    site.run(start=back, per_trigger=10)
    site.exact()
    site.lose_checkpoint()
    with pytest.raises(StreamingQueryException, match="the first one of this pipeline"):
        site.run()
    site.lose_checkpoint()
    site.produce(10)
    with pytest.raises(StreamingQueryException, match="was skipped"):
        site.run(start=json.dumps({site.topics[0]: {"0": 22, "1": 22}}))


@SQLITE
def test_a_batch_is_written_in_blocks_and_a_crash_between_them_is_no_matter(open_site: Open, kind: str) -> None:
    site = open_site(kind, block_rows=7)
    site.produce(80, word=some_skipped)
    with pytest.raises(StreamingQueryException, match="died before record"):
        site.run(site.once(observer=DiesAt("record", skip=2)))
    site.run()
    site.exact()


@CLICKHOUSE
def test_a_query_that_was_changed_after_a_crash_goes_on(open_site: Open, kind: str) -> None:
    """What the old query landed stays, and what it did not land the new one does."""
    site = open_site(kind)
    for died in ("write", "record"):
        site.produce(20)
        with pytest.raises(StreamingQueryException, match="died before"):
            site.run(site.once(observer=DiesAt(died)))
        site.run(make=lambda frame: plain(frame).selectExpr("topic", "partition", "offset", "id + 1 AS id", "word"))
        site.exact(lambda each: (each.id + (each.at[2] < 10), each.word))


@CLICKHOUSE
def test_of_two_queries_the_first_is_fenced(open_site: Open, kind: str) -> None:
    site = open_site(kind)
    site.produce(10)
    first = plain(site.stream()).writeStream.foreachBatch(site.once())
    first_query = first.option("checkpointLocation", str(site.folder / "other")).start()
    try:
        first_query.processAllAvailable()
        site.run()
        site.exact()
        site.produce(10)
        with pytest.raises(StreamingQueryException, match="was taken over"):
            first_query.processAllAvailable()
    finally:
        first_query.stop()
    site.run()
    site.exact()


def test_one_object_for_two_queries_fences_the_first(open_site: Open) -> None:
    site = open_site("sqlite")
    once = site.once()
    site.produce(10)
    first = plain(site.stream()).writeStream.foreachBatch(once).option("checkpointLocation", str(site.folder / "other"))
    first_query = first.start()
    try:
        first_query.processAllAvailable()
        site.run(once)
        site.produce(10)
        with pytest.raises(StreamingQueryException, match="another start of this query took over the pipeline"):
            first_query.processAllAvailable()
    finally:
        first_query.stop()
    site.run(once)
    site.exact()


def test_a_ledger_that_was_lost_is_made_anew_from_what_clickhouse_holds(open_site: Open) -> None:
    site = open_site("clickhouse")
    site.produce(30)
    site.run()
    Path(str(site.ledger).removeprefix("sqlite:///")).unlink()
    site.lose_checkpoint()
    site.produce(10)
    site.run(per_trigger=14)
    site.exact()


def test_a_topic_that_was_made_anew_is_refused(open_site: Open, kafka: LocalKafka) -> None:
    from pipelines import SmallPipeline

    site = open_site("sqlite")
    site.produce(10)
    site.run()
    SmallPipeline(kafka, None, site.folder, site.topics[0], "").recreate_topic(2)  # type: ignore[arg-type]
    site.lose_checkpoint()
    site.produce(10)
    with pytest.raises(StreamingQueryException, match="was deleted and created again"):
        site.run()


def test_the_ledger_is_one_that_landonce_knows(open_site: Open) -> None:
    """The ids that Spark's client tells are those that `landonce state` and `landonce verify` ask for."""
    from landonce.ledger.open import open_ledger
    from landonce.read.kafka.broker import Broker

    site = open_site("clickhouse")
    site.produce(10)
    site.run()
    ledger = open_ledger(str(site.ledger), site.name)
    state = ledger.load()
    ledger.close()
    view = Broker(site.bootstrap, {}).survey(site.topics)
    assert state is not None
    assert (state.cluster_id, state.topic_ids) == (view.cluster_id, view.topic_ids)
    assert state.totals.landed == 10


# Queries that are not taken.


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
