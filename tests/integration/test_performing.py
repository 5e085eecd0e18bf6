"""What a driver does to ClickHouse after any doubt, for pipelines and for queries: it waits out the deadline, and ends what still runs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from clickhouse_tables import block, insert, make, parts, sink_for, wait_until

from landonce.engine import perform
from landonce.engine.publish import NoLetters
from landonce.local import LocalClickHouse
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.ledger import LedgerState
from landonce.protocol.settle import Reply
from landonce.protocol.steps import Await, Kill
from landonce.query.rows import QueryWorkers
from landonce.sinks.clickhouse.driver import ClickHouseTarget
from landonce.sinks.contract import Insert
from landonce.testing.crashing import started

pytestmark = pytest.mark.integration
SPARK_WORKERS = True

HELD = LedgerState("orders", "lineage")
NOTHING: Any = SimpleNamespace()
Perform = Callable[[Any, LedgerState], Any]


def of_a_pipeline(target: ClickHouseTarget) -> Perform:
    return perform.InsertPerformer(
        Deduplicating("t", "fingerprint", once=True), NOTHING, target, NOTHING, NOTHING
    ).perform


def of_a_query(target: ClickHouseTarget) -> Perform:
    policy = Deduplicating("t", "fingerprint", once=True, block_rows=1_000)
    return perform.InsertPerformer(policy, NOTHING, target, QueryWorkers(), NoLetters()).perform


EACH = pytest.mark.parametrize("performer", [of_a_pipeline, of_a_query], ids=["pipeline", "query"])


def numbers(count: int) -> pa.Table:
    return block({"id": pa.array(np.arange(count), pa.int64())})


@EACH
def test_a_deadline_is_waited_out(
    performer: Callable[[ClickHouseTarget], Perform], clickhouse: LocalClickHouse, new_table: Callable[[], str]
) -> None:
    """On the clock of the target: from then on it refuses every insert that carries this deadline."""
    make(clickhouse, table := new_table(), "id Int64")
    sink = sink_for(clickhouse, table)
    target = sink.target()
    deadline = target.now() + 1_000
    assert performer(target)(Await(deadline), HELD) is None
    assert target.now() > deadline
    assert sink.writer().send(numbers(1), Insert("token", deadline, "late")) is Reply.LATE


@EACH
def test_an_insert_of_a_dead_driver_is_ended(
    performer: Callable[[ClickHouseTarget], Perform], clickhouse: LocalClickHouse, new_table: Callable[[], str]
) -> None:
    """Its sender is killed, and ClickHouse works on: without an end to it, the rows would land after they were looked for."""
    make(clickhouse, table := new_table(), "id Int64, slow UInt8 MATERIALIZED sleepEachRow(0.01)")
    sink = sink_for(clickhouse, table)
    target = sink.target()
    going = insert(target, "token")
    worker = started(lambda: sink.writer().send(numbers(290), going))
    wait_until(lambda: bool(target._running()), 60)
    worker.kill()
    worker.join(10)
    assert target._running(), "an insert ends with its sender: there is nothing to be ended by anybody else"
    before = target.now()
    now = performer(target)(Kill(), HELD)
    assert target._running() == (), "an insert of the dead driver still runs"
    assert parts(clickhouse, table) == []
    assert before <= now <= target.now(), "the clock of the target is what the next deadline is made from"
