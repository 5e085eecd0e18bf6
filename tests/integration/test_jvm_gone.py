"""Spark's JVM is killed, and then everything is called that uses it: each call says `SparkLost`, whatever name it gives other errors.

Real kills under whole runs are in tests/chaos/test_jvm_killed.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from jvms import iceberg_session
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

import landonce
from landonce.config.model import Spark
from landonce.engine import transform
from landonce.engine.spark.session import open_session
from landonce.engine.workers import SparkWorkers
from landonce.errors import SparkLost
from landonce.jvm import forget_ended, has_ended, spark_errors
from landonce.protocol.blocks import Block
from landonce.protocol.ranges import Partition, Range
from landonce.query import rows, running
from landonce.read.decoding import Decoding
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.iceberg import spark
from landonce.sinks.iceberg.catalog import CatalogSpec
from landonce.sinks.iceberg.maintain.compact import Census, compact
from landonce.sinks.iceberg.spark import Merge, drop_stage, stage
from landonce.verify.expect import Transformed

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SPARK_WORKERS = True
OWN_JVM = True
ENDS_JVM = True

SCHEMA = Schema((Field("id", pa.int64()),))
RANGE = Range(Partition("t", 0), 0, 10)
SPEC = CatalogSpec("lake", {"uri": "sqlite:////nowhere/catalog.db", "warehouse": "file:///nowhere"})


class Gone:
    """A session whose JVM is no more, with what was made while it was there."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.frame: DataFrame = session.range(3).selectExpr(
            "'t' AS topic", "0 AS partition", "id AS offset", "id AS value"
        )
        self.jvm: Any = session._jvm
        self.admin = running.Admin(self.jvm, {"bootstrap.servers": "127.0.0.1:1"})
        gateway: Any = SparkContext._gateway
        os.kill(gateway.proc.pid, signal.SIGKILL)

    def recipe(self, **more: Any) -> Any:
        return SimpleNamespace(
            **{"pipeline": "p", "source": SCHEMA, "target": SCHEMA, "select": (), "where": None, "transforms": False}
            | more
        )

    @property
    def workers(self) -> SparkWorkers:
        return SparkWorkers(lambda: self.session, lambda _recipe, _task: None, lambda *_: None)  # type: ignore[arg-type, return-value]


@pytest.fixture(scope="module")
def gone() -> Iterator[Gone]:
    yield Gone(iceberg_session({}))
    forget_ended()


TASK = SimpleNamespace(batch=1, index=0, block=Block((RANGE,), "t"), labels=())
WHERE = {"where": "id > 1", "transforms": True}


def _compact(gone: Gone) -> None:
    compact(gone.session, SPEC, "a.b", Census(files=2, small=2))


def _audit(gone: Gone) -> None:
    recipe = gone.recipe(decoding=Decoding(max_record_bytes=10), **WHERE)
    tables = SimpleNamespace(recipe=recipe, routing=None, schema=lambda _: SCHEMA)
    audit = Transformed(tables, gone.session)  # type: ignore[arg-type]
    audit._evaluate(pa.table({"__landonce_at": [0], "id": [1]}))


CALLS: dict[str, Callable[[Gone], object]] = {
    "a write": lambda gone: gone.workers.write(gone.recipe(), [TASK]),
    "a write with expressions": lambda gone: gone.workers.write(gone.recipe(**WHERE), [TASK]),
    "the look at expressions": lambda gone: transform.examine(gone.session, gone.recipe(**WHERE)),
    "the columns of `select`": lambda gone: transform.selected(gone.frame, gone.recipe(select=("id + 1 AS n",))),
    "a table of Iceberg": lambda gone: spark.load(gone.session, SPEC, "a.b"),
    "a commit by Iceberg": lambda gone: spark.commit(gone.session, SPEC, "a.b", (), ()),
    "a merge": lambda gone: stage(
        gone.session, SPEC, "a.b", "landonce_stage", 1, ["f"], Merge(("id",), ("id",)), {"k": "v"}
    ),
    "a staging branch": lambda gone: drop_stage(gone.session, SPEC, "a.b", "landonce_stage"),
    "compaction": _compact,
    "an audit with expressions": _audit,
    "a query": lambda gone: landonce.exactly_once(landonce.sql("sqlite:///q.db", "t"), name="q")(gone.frame, 0),
    "a query's write": lambda gone: rows.write(gone.frame, [RANGE], None, [TASK], lambda *_: None),  # type: ignore[arg-type, return-value]
    "the brokers of a query": lambda gone: gone.admin.ask(("t",)),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_says_that_spark_is_lost(gone: Gone, call: str) -> None:
    with pytest.raises(SparkLost, match="ended unexpectedly") as raised, spark_errors():
        CALLS[call](gone)
    assert raised.value.exit_code == 5


def test_the_same_process_can_start_again(gone: Gone) -> None:
    assert has_ended()
    again = open_session("again", Spark(master="local[1]"))
    assert again.range(3).count() == 3
    assert not has_ended()
    again.stop()


def test_another_error_keeps_its_name() -> None:
    with pytest.raises(ZeroDivisionError), spark_errors():
        print(1 / 0)


def test_a_jvm_that_cannot_start_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-agentlib:nosuch")
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_jvm", None)
    with pytest.raises(SparkLost, match="ended before it had started"):
        open_session("never", Spark(master="local[1]"))
