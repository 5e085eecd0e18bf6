"""Pipelines whose table somebody else changes in the middle of a batch: what a user finds in the table afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jvms import iceberg_session
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from pyspark.sql import SparkSession
from small_lakes import Heard, SmallLake, by_spark, once, reading

from landonce.errors import Unbalanced
from landonce.local import LocalKafka
from landonce.protocol.steps import Effect, Step
from landonce.sinks.iceberg import spark

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ORC = {"write.format.default": "orc"}


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[SparkSession]:
    session = iceberg_session({})
    yield session
    session.stop()


@pytest.fixture
def lake(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> SmallLake:
    return SmallLake(kafka, tmp_path, new_topic(partitions=1))


class Meanwhile(Heard):
    """Somebody who does something when a step begins for the first time."""

    def __init__(self, step: Step, act: Callable[[], None]) -> None:
        super().__init__()
        self._step, self._act, self._done = step, act, False

    def step(self, effect: Effect) -> None:
        if effect.step is self._step and not self._done:
            self._done = True
            self._act()


def before_spark_writes(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Once: after the driver compared the columns, and before Spark reads them."""
    write, left = spark._Staging.write, [act]

    def interrupted(*args: Any) -> None:
        while left:
            left.pop()()
        write(*args)

    monkeypatch.setattr(spark._Staging, "write", interrupted)


def rename(lake: SmallLake) -> None:
    with lake.table("db.t").update_schema() as change:
        change.rename_column("kind", "sort")


@pytest.mark.parametrize("merging", [{}, {"identity": "id", "changes": {"mode": "upsert"}}], ids=["appended", "merged"])
def test_values_go_to_a_column_that_is_renamed_before_spark_writes(
    lake: SmallLake, session: SparkSession, monkeypatch: pytest.MonkeyPatch, merging: dict[str, Any]
) -> None:
    """The table's name mapping says that `kind` of the records is the column `sort` from now on."""
    lake.write_file({"table": "db.t", "create": True, "properties": ORC, **merging})
    lake.produce([{"id": 0, "kind": "k0"}])
    lake.run()
    table = lake.table("db.t")
    mapping = NameMapping(
        [MappedField(**{"field-id": each.field_id, "names": [each.name]}) for each in table.schema().fields]
    )
    with table.transaction() as change:
        change.set_properties({"schema.name-mapping.default": mapping.model_dump_json()})
    lake.produce([{"id": at, "kind": f"k{at}"} for at in range(1, 5)])
    before_spark_writes(monkeypatch, lambda: rename(lake))
    assert lake.run().landed == 4
    rows = by_spark(session, lake)
    assert sorted((row.id, row.sort) for row in rows) == [(at, f"k{at}") for at in range(5)]
    assert sorted(row._offset for row in rows) == list(range(5))
    assert set(lake.table("db.t").metadata.refs) == {"main"}, "what was staged in vain is gone"


def test_a_column_that_is_renamed_before_spark_writes_is_made_again_where_schemas_evolve(
    lake: SmallLake, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write_file({"table": "db.t", "create": True, "properties": ORC, "evolve": True})
    lake.produce([{"id": 0, "kind": "k0"}])
    lake.run()
    lake.produce([{"id": at, "kind": f"k{at}"} for at in range(1, 5)])
    before_spark_writes(monkeypatch, lambda: rename(lake))
    assert lake.run().landed == 4
    rows = sorted((row.id, row.sort, row.kind) for row in by_spark(session, lake))
    assert rows == [(0, "k0", None), *((at, None, f"k{at}") for at in range(1, 5))]


def test_arrows_files_for_a_column_that_was_made_again_are_written_again(lake: SmallLake) -> None:
    lake.write_file({"table": "db.t", "create": True})
    lake.produce([{"id": 0, "kind": "k0"}])
    lake.run()

    def make_again() -> None:
        with lake.table("db.t").update_schema() as change:
            change.delete_column("kind").add_column("kind", StringType())

    lake.produce([{"id": at, "kind": f"k{at}"} for at in range(1, 5)])
    assert lake.run(Meanwhile(Step.COMMIT, make_again)).landed == 4
    assert [row["kind"] for row in lake.rows("db.t")] == [None, "k1", "k2", "k3", "k4"]
    assert lake.offsets("db.t") == once(5)


def test_one_block_that_widens_a_column_does_not_hold_up_the_others(lake: SmallLake, session: SparkSession) -> None:
    """Spark takes the staged files of a batch for one table, which cannot have a column of two types."""
    lake.schema = None
    lake.catalog.create_namespace("db")
    lake.catalog.create_table(
        "db.t",
        Schema(
            NestedField(1, "id", IntegerType()),
            NestedField(2, "_topic", StringType()),
            NestedField(3, "_kafka_partition", IntegerType()),
            NestedField(4, "_offset", LongType()),
        ),
        properties=ORC,
    )
    batch = {"interval": "0s", "max_rows": 4, "block_rows": 2}
    lake.write_file({"table": "db.t", "evolve": True}, batch=batch, stall="20s")
    lake.produce([{"id": 1}, {"id": 2}, {"id": 3}, {"id": 2**40}])
    assert lake.run().landed == 4
    assert sorted(row.id for row in by_spark(session, lake)) == [1, 2, 3, 2**40]
    assert lake.heard.troubles == []


def test_a_row_that_spark_does_not_write_is_noticed(
    lake: SmallLake, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = spark.Append.prepared
    monkeypatch.setattr(spark.Append, "prepared", lambda how, rows, table: prepared(how, rows, table).limit(3))
    lake.write_file({"table": "db.t", "create": True, "properties": ORC})
    lake.produce([{"id": at, "kind": "a"} for at in range(4)])
    with pytest.raises(Unbalanced, match="4 rows were staged, and Spark wrote 3"):
        lake.run()
    assert by_spark(session, lake) == []
    monkeypatch.undo()
    assert lake.run().landed == 4
    assert sorted(row.id for row in by_spark(session, lake)) == [0, 1, 2, 3]


def test_a_table_that_is_raised_to_version_3_is_written_by_spark_from_then_on(
    lake: SmallLake, session: SparkSession
) -> None:
    lake.write_file({"table": "db.t", "create": True}, batch={"interval": "0s", "max_rows": 4})
    lake.produce([{"id": 0, "kind": "a"}])
    lake.run()

    def raise_version() -> None:
        reading(session, lake).sql("ALTER TABLE landonce.db.t SET TBLPROPERTIES ('format-version'='3')")

    lake.produce([{"id": at, "kind": "a"} for at in range(1, 13)])
    assert lake.run(Meanwhile(Step.COMMIT, raise_version)).landed == 12
    lake.produce([{"id": 13, "kind": "a"}])
    lake.run()
    assert lake.table("db.t").metadata.format_version == 3
    rows = by_spark(session, lake)
    assert sorted((row._offset, row.id) for row in rows) == [(at, at) for at in range(14)]
