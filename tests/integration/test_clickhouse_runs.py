"""Whole runs of the driver into ClickHouse: what a run meets in the table, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from clickhouse_runs import Killed, Pipeline
from clickhouse_tables import make, sink_for, wait_until

from landonce.errors import DuplicatePresent, RowsNotKept, TargetRefused, ViewRefused
from landonce.local import LocalClickHouse

pytestmark = pytest.mark.integration

NewTable = Callable[[], str]


def ids(offsets: np.ndarray) -> dict[str, pa.Array]:
    return {"id": pa.array(offsets, pa.int64())}


def die() -> None:
    raise Killed


def left_in_doubt(pipeline: Pipeline) -> None:
    """A driver that died after its plan was recorded, before anything was sent."""
    pipeline.before_write = die
    with pytest.raises(Killed):
        pipeline.run()
    pipeline.before_write = lambda: None


def test_rows_that_are_there_twice_end_the_run_by_name(
    clickhouse: LocalClickHouse, new_table: NewTable, tmp_path: Path
) -> None:
    """Somebody else wrote the pending block, and wrote it twice: neither is the block done, nor may anything be added to it."""
    table = new_table()
    make(clickhouse, table, "id Int64")
    pipeline = Pipeline(sink_for(clickhouse, table), ids, tmp_path)
    left_in_doubt(pipeline)
    copies = f"INSERT INTO {table} SELECT number % 10, 't', 0, number % 10 FROM numbers(11)"
    clickhouse.ask(copies)
    with pytest.raises(DuplicatePresent, match="more than once") as halted:
        pipeline.run()
    assert "landonce verify {file}" in halted.value.command
    assert clickhouse.ask(f"SELECT count() FROM {table}").strip() == "11"
    clickhouse.ask(f"TRUNCATE TABLE {table}")
    assert pipeline.run() == 10
    assert clickhouse.ask(f"SELECT count(), uniqExact(_offset) FROM {table}").split() == ["10", "10"]


def test_rows_that_a_ttl_has_expired_already_end_in_a_halt_that_says_so(
    clickhouse: LocalClickHouse, new_table: NewTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    make(clickhouse, table, "id DateTime", rest="ORDER BY _offset TTL id + INTERVAL 1 DAY")
    seconds = pa.timestamp("s", tz="UTC")
    pipeline = Pipeline(
        sink_for(clickhouse, table), lambda at: {"id": pa.array(at, pa.int64()).cast(seconds)}, tmp_path
    )
    left_in_doubt(pipeline)

    def expire(place: str) -> None:
        if place == "probe.before":
            wait_until(lambda: clickhouse.ask(f"SELECT count() FROM {table}").strip() == "0")

    with monkeypatch.context() as patched:
        patched.setattr("landonce.sinks.deduplicating.reach", expire)
        for _ in range(2):  # it ends so each time, for as long as the TTL stands
            with pytest.raises(RowsNotKept, match=r"TTL \(id \+ toIntervalDay\(1\)\)") as halted:
                pipeline.run()
            assert f"SYSTEM STOP TTL MERGES `default`.`{table}`" in halted.value.what
    clickhouse.ask(f"SYSTEM STOP TTL MERGES {table}")
    assert pipeline.run() == 10
    assert clickhouse.ask(f"SELECT count(), uniqExact(_offset) FROM {table}").split() == ["10", "10"]
    clickhouse.ask(f"SYSTEM START TTL MERGES {table}")


def test_a_column_that_is_narrowed_under_a_running_worker_ends_the_run_with_nothing_changed(
    clickhouse: LocalClickHouse, new_table: NewTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    make(clickhouse, table, "n Nullable(Int64)")
    pipeline = Pipeline(sink_for(clickhouse, table), lambda at: {"n": pa.array(at + 295, pa.int64())}, tmp_path)

    def narrow(place: str) -> None:
        if place == "send.before":
            clickhouse.ask(f"ALTER TABLE {table} MODIFY COLUMN n Nullable(Int8)")

    with monkeypatch.context() as patched:
        patched.setattr("landonce.sinks.deduplicating.reach", narrow)
        with pytest.raises(TargetRefused, match=r"column n Nullable\(Int8\): t\[0\], offset 0"):
            pipeline.run()
    assert clickhouse.ask(f"SELECT count() FROM {table}").strip() == "0"
    clickhouse.ask(f"ALTER TABLE {table} MODIFY COLUMN n Nullable(Int16)")
    assert pipeline.run() == 10
    assert clickhouse.ask(f"SELECT sum(n), count() FROM {table}").split() == ["2995", "10"]


def test_a_late_insert_is_reported_in_plain_words(
    clickhouse: LocalClickHouse, new_table: NewTable, tmp_path: Path
) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64")
    pipeline = Pipeline(sink_for(clickhouse, table), ids, tmp_path, deadline=0.001)
    assert pipeline.run() == 10
    assert pipeline.heard.troubles[0].endswith("is late. this insert came after its deadline")


def test_a_block_that_landed_in_part_is_completed_whatever_the_partition_key_is_made_of(
    clickhouse: LocalClickHouse, new_table: NewTable, tmp_path: Path
) -> None:
    """The key's column is computed from another computed one: recovery must find out which partitions still lack their rows."""
    table = new_table()
    columns = "id Int64, half Int64 MATERIALIZED intDiv(id, 5), part String MATERIALIZED concat('p', toString(half))"
    make(clickhouse, table, columns, rest="PARTITION BY part ORDER BY _offset")
    pipeline = Pipeline(sink_for(clickhouse, table), ids, tmp_path)
    left_in_doubt(pipeline)
    clickhouse.ask(f"INSERT INTO {table} SELECT number, 't', 0, number FROM numbers(5)")
    assert pipeline.run() == 10
    assert clickhouse.ask(f"SELECT count(), uniqExact(_offset) FROM {table}").split() == ["10", "10"]


@pytest.mark.parametrize("expression", ["throwIf(id = 3)", "sleepEachRow(0.5)"], ids=["for good", "for now"])
def test_a_view_that_fails_ends_the_run_and_what_it_lacks_is_named(
    clickhouse: LocalClickHouse, new_table: NewTable, tmp_path: Path, expression: str
) -> None:
    """The table has the rows by then. Going on without a word would leave the view without them for good."""
    table, view = new_table(), new_table()
    make(clickhouse, table, "id Int64")
    clickhouse.ask(f"CREATE TABLE {view}_rows (id Int64) ENGINE = MergeTree ORDER BY id")
    clickhouse.ask(f"CREATE MATERIALIZED VIEW {view} TO {view}_rows AS SELECT id + {expression} AS id FROM {table}")
    pipeline = Pipeline(sink_for(clickhouse, table), ids, tmp_path)
    with pytest.raises(ViewRefused, match=f"view default.{view}") as halted:
        pipeline.run()
    clickhouse.ask(f"ALTER TABLE {view} MODIFY QUERY SELECT id FROM {table}")
    assert pipeline.run() == 10
    lacking = halted.value.command.partition("WHERE ")[2].partition(". ")[0]
    clickhouse.ask(f"INSERT INTO {view}_rows SELECT id FROM {table} WHERE {lacking}")
    for each in (table, f"{view}_rows"):
        assert clickhouse.ask(f"SELECT count(), uniqExact(id) FROM {each}").split() == ["10", "10"]


def test_a_run_goes_on_without_a_view_that_need_not_hold_every_row(
    clickhouse: LocalClickHouse, new_table: NewTable, tmp_path: Path
) -> None:
    table, view = new_table(), new_table()
    make(clickhouse, table, "id Int64")
    clickhouse.ask(
        f"CREATE MATERIALIZED VIEW {view} ENGINE = MergeTree ORDER BY id AS SELECT throwIf(id = 3) AS id FROM {table}"
    )
    sink = sink_for(clickhouse, table, settings={"materialized_views_ignore_errors": 1})
    assert Pipeline(sink, ids, tmp_path).run() == 10
    assert clickhouse.ask(f"SELECT count(), uniqExact(_offset) FROM {table}").split() == ["10", "10"]
