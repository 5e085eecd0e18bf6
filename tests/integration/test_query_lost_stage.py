"""A stage that Spark runs again as a whole: its tasks send again without knowing it, and an acknowledgement proves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from clickhouse_tables import block, make, sink_for

from landonce.engine.task import write_rows
from landonce.local import LocalClickHouse
from landonce.protocol.blocks import Block, Kind
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import Fate
from landonce.protocol.settle import Mode
from landonce.sinks.deduplicating import InsertRecipe, InsertTask

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


ROWS = block({"id": pa.array(range(10), pa.int64())}).select(["_topic", "_partition", "_offset", "id"])


class Executor:
    """Runs the task of one block, as a stage of Spark does."""

    def __init__(self, server: LocalClickHouse, table: str) -> None:
        self._server, self._table = server, table
        make(server, table, "id Int64")
        self._sink = sink_for(server, table)
        target = self._sink.target()
        self._schema = target.schema()
        self._task = InsertTask(
            index=0,
            batch=1,
            plan="",
            block=Block((Range(Partition("t", 0), 0, 10),), table),
            token=f"token-{table}",
            deadline=target.now() + 60_000,
            mode=Mode.FIRST,
            kind=Kind.DELIVER,
        )

    def run(self, *, wary: bool) -> Fate:
        taken = self._schema
        recipe = InsertRecipe(pipeline="q", source=taken, target=taken, sink=self._sink, shuffled=True, wary=wary)
        return write_rows(recipe.worker(self._task), self._task, ROWS).fate

    def held(self) -> int:
        return int(self._server.ask(f"SELECT count() FROM {self._table}"))

    def lose(self) -> None:
        """The rows go, and ClickHouse remembers their token."""
        self._server.ask(f"ALTER TABLE {self._table} DELETE WHERE 1 SETTINGS mutations_sync = 2")


@pytest.fixture
def executor(clickhouse: LocalClickHouse, new_table: Callable[[], str]) -> Executor:
    return Executor(clickhouse, new_table())


@pytest.mark.parametrize(("wary", "fate"), [(True, Fate.TOKEN_USED_UP), (False, Fate.LANDED)], ids=["wary", "control"])
def test_an_acknowledgement_of_rows_that_are_gone_is_no_proof(executor: Executor, wary: bool, fate: Fate) -> None:
    """The second run is acknowledged, and writes nothing. A writer that takes that for a proof, as the control does, has lost the rows."""
    assert executor.run(wary=wary) is Fate.LANDED
    assert executor.held() == 10
    executor.lose()
    assert executor.run(wary=wary) is fate
    assert executor.held() == 0


def test_rows_that_are_there_are_not_doubted(executor: Executor) -> None:
    for _ in range(2):
        assert executor.run(wary=True) is Fate.LANDED
    assert executor.held() == 10
