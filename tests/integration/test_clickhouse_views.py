"""Materialized views behind a table: what is sent again counts once in them, and nothing is missing in them.

Each view adds up what it got. The judge compares the sums with those of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from clickhouse_runs import Killed, Pipeline, Recipe
from clickhouse_tables import Proxy, block, insert, make, sink_for
from rename_kills import killed_at_rename

from landonce.local import LocalClickHouse
from landonce.protocol.receipt import BlockResult
from landonce.sinks.clickhouse import settings
from landonce.sinks.clickhouse.worker import ClickHouseWriter
from landonce.sinks.deduplicating import InsertTask

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

VIEWS = {
    "sums": ("k Int64, s Int64, c Int64", "SummingMergeTree", "sum(n) AS s, toInt64(count()) AS c", "sum(s), sum(c)"),
    "states": (
        "k Int64, s AggregateFunction(sum, Int64), c AggregateFunction(count)",
        "AggregatingMergeTree",
        "sumState(n) AS s, countState() AS c",
        "sumMerge(s), countMerge(c)",
    ),
}
ROWS = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalClickHouse]:
    with LocalClickHouse(tmp_path_factory.mktemp("views")) as started:
        yield started


def with_views(server: LocalClickHouse, table: str, *, window: int = 1000) -> None:
    make(server, table, "n Int64")
    for name, (columns, engine, select, _) in VIEWS.items():
        server.ask(
            f"CREATE TABLE {table}_{name} ({columns}) ENGINE = {engine} ORDER BY k "
            f"SETTINGS non_replicated_deduplication_window = {window}"
        )
        server.ask(
            f"CREATE MATERIALIZED VIEW {table}_{name}_view TO {table}_{name} AS SELECT n % 2 AS k, {select} FROM {table} GROUP BY k"
        )


def seen(server: LocalClickHouse, table: str) -> set[str]:
    """(sum, count) of the table and of each view. One element: they agree."""
    views = {f"{table}_{name}": asked for name, (*_, asked) in VIEWS.items()}
    return {
        server.ask(f"SELECT {asked} FROM {each}").strip() for each, asked in {table: "sum(n), count()", **views}.items()
    }


def numbers(offsets: np.ndarray) -> dict[str, pa.Array]:
    return {"n": pa.array(offsets, pa.int64())}


def due(rows: int) -> set[str]:
    return {f"{sum(range(rows))}\t{rows}"}


@pytest.mark.parametrize("checked", [True, False], ids=["as landonce sends it", "control"])
def test_a_block_that_is_sent_again_counts_once(
    server: LocalClickHouse, new_table: Callable[[], str], checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table remembers the token, and so do the views. The control: without the setting, only the table does."""
    if not checked:
        monkeypatch.setitem(settings.INSERT, "deduplicate_blocks_in_dependent_materialized_views", "0")
    table = new_table()
    with_views(server, table)
    sink, rows = sink_for(server, table, timeout=60.0 + checked), block({"n": pa.array(range(ROWS))})
    for _ in range(3):
        sink.writer().send(rows, insert(sink.target(), "token"))
    assert (seen(server, table) == due(ROWS)) == checked, seen(server, table)
    later = block({"n": pa.array(range(ROWS))}, first=ROWS)
    sink.writer().send(later, insert(sink.target(), "another"))
    if checked:
        assert seen(server, table) == {f"{2 * sum(range(ROWS))}\t{2 * ROWS}"}, "a later block of equal sums counts, too"


@pytest.mark.parametrize("window", [1000, 0])
def test_a_lost_answer(server: LocalClickHouse, new_table: Callable[[], str], tmp_path: Path, window: int) -> None:
    """The insert took effect, and its answer never came."""
    table = new_table()
    with_views(server, table, window=window)
    lost = [1]

    def swallow(answer: bytes) -> bytes | None:
        if lost:
            lost.pop()
            return None
        return answer

    proxy = Proxy(server.http_port, swallow)
    try:
        sink = sink_for(server, table)
        sink.address = replace(sink.address, port=proxy.port)
        Pipeline(sink, numbers, tmp_path, records=ROWS, deadline=1.0).run()
    finally:
        proxy.close()
    assert not lost, "an answer was lost"
    assert seen(server, table) == due(ROWS)


@dataclass
class Dying(Pipeline):
    """Its driver dies after the first write."""

    dies: bool = True

    def write(self, recipe: Recipe, tasks: Sequence[InsertTask]) -> tuple[BlockResult, ...]:
        results = super().write(recipe, tasks)
        if self.dies:
            raise Killed
        return results


@pytest.mark.parametrize("window", [1000, 0])
@pytest.mark.parametrize("suspects", [True, False], ids=["guarded", "control"])
def test_killed_between_token_and_part(
    server: LocalClickHouse,
    new_table: Callable[[], str],
    tmp_path: Path,
    window: int,
    suspects: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The table remembers the token of rows that it lost, and the views have never heard of it: they would count a resend under it, and the
    next generation as well. So nothing is sent under it again."""
    if not suspects:
        monkeypatch.setattr(ClickHouseWriter, "suspects", lambda *_: False)
    table = new_table()
    with_views(server, table, window=window)
    sink = sink_for(server, table)
    pipeline = Dying(sink, numbers, tmp_path, records=ROWS, deadline=6.0)
    with killed_at_rename(server, tmp_path / "strace.log"), pytest.raises(Killed):
        pipeline.run()
    server.kill()
    server.start()
    server.wait_ready()
    assert server.ask(f"SELECT count() FROM {table}").strip() == "0"
    pipeline.dies = False
    pipeline.run()
    twice = {*due(ROWS), f"{2 * sum(range(ROWS))}\t{2 * ROWS}"}
    assert seen(server, table) == (due(ROWS) if suspects else twice)
