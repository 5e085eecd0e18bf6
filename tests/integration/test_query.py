"""Users' own streaming queries, delivered exactly once: real queries, real Kafka, real targets, and an independent count.

A run dies here by an exception in an observer, which stands for a driver that is gone: Spark's checkpoint and the ledger stay as
they are at that step. Drivers that are killed for real are in tests/chaos.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from query_site import OTHER_LEDGERS, TABLE, DiesAt, Open, in_clickhouse, other_ledger, plain, some_skipped
from shard_servers import WEIGHTS, two_shards

import landonce
from landonce.local import LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


LONG = pytest.mark.long
CLICKHOUSE = pytest.mark.parametrize(
    "kind", ["clickhouse", pytest.param("postgres", marks=LONG), pytest.param("sqlite", marks=LONG)]
)
SQLITE = pytest.mark.parametrize(
    "kind", [pytest.param("clickhouse", marks=LONG), pytest.param("postgres", marks=LONG), "sqlite"]
)
"""What takes long is tried with one of them, and with the others in `make test-long`."""


@SQLITE
def test_nothing_is_lost_or_twice_whatever_becomes_of_the_checkpoint(open_site: Open, kind: str) -> None:
    open_site(kind, topics=2).loses_checkpoints()


@pytest.mark.parametrize(
    "ledger", [pytest.param(each, marks=() if each == "keeper_map" else LONG) for each in OTHER_LEDGERS]
)
def test_the_position_is_kept_where_a_pipeline_can_keep_it(
    open_site: Open, ledger: str, new_table: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory ends with the process: the query begins again, with a new checkpoint, and the table says what it holds."""
    site = open_site("clickhouse")
    site.ledger = other_ledger(ledger, new_table(), tmp_path, monkeypatch)
    site.produce(20, word=some_skipped)
    site.run()
    site.produce(10)
    if ledger == "memory":
        with pytest.raises(StreamingQueryException, match="The query ran with another ledger or with none"):
            site.run()
        site.lose_checkpoint()
    with pytest.raises(StreamingQueryException, match="died before record"):
        site.run(site.once(observer=DiesAt("record")))
    site.lose_checkpoint()
    again = site.once()
    known = json.loads(again.starting_offsets(site.bootstrap, site.topics))[site.topics[0]]
    assert known == ({"0": -2, "1": -2} if ledger == "memory" else {"0": 10, "1": 10})
    site.run(again)
    site.exact()


def test_rows_of_a_query_land_on_their_shards(open_site: Open, new_table: Callable[[], str], tmp_path: Path) -> None:
    """Also those of a run that ended when they were there and its plan was pending. The judge is a Distributed table."""
    site, table = open_site("clickhouse"), new_table()
    with two_shards(tmp_path / "both") as both:
        both.on_each(TABLE.format(table, ""))
        spread = {"weights": WEIGHTS, "shard_by": ["id"], "deadline": 2.5}
        site.sink = landonce.clickhouse(endpoints=both.endpoints, table=table, **spread)
        site.ask = lambda: [row for each in both.servers for row in in_clickhouse(each, table)]
        site.produce(40, word=some_skipped)
        with pytest.raises(StreamingQueryException, match="died before commit"):
            site.run(site.once(observer=DiesAt("commit")), per_trigger=30)
        site.lose_checkpoint()
        site.run(per_trigger=24)
        site.exact()
        everything, mine = both.distributed(table, "cityHash64(id)"), both.offsets(table)
        assert all(mine), "the rows are spread"
        assert mine == both.as_distributed(table, everything, "cityHash64(id)")


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


def test_a_ledger_that_was_lost_is_made_again_from_what_clickhouse_holds(open_site: Open) -> None:
    site = open_site("clickhouse")
    site.produce(30)
    site.run()
    Path(str(site.ledger).removeprefix("sqlite:///")).unlink()
    site.lose_checkpoint()
    site.produce(10)
    site.run(per_trigger=14)
    site.exact()


def test_a_topic_that_was_made_again_is_refused(open_site: Open, kafka: LocalKafka) -> None:
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
