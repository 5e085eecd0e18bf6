"""Pipelines into one Iceberg table, which is its own ledger: what a user sees in the table, its snapshots and the dead letters."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from jvms import iceberg_session
from pipelines import landonce
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyspark.sql import SparkSession
from small_lakes import Heard, SmallLake, by_spark, once, reading

from landonce.engine import committing, transform, workers
from landonce.errors import ConfigError, Halt, RollbackRefused, TableUnfit, TargetAhead, TransformFailed, Unbalanced
from landonce.local import LocalKafka
from landonce.protocol.steps import Effect, Step
from landonce.sinks.iceberg.types import COORDINATE_TYPES

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[SparkSession]:
    session = iceberg_session({})
    yield session
    session.stop()


@pytest.fixture
def lake(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> SmallLake:
    return SmallLake(kafka, tmp_path, new_topic(partitions=2))


def test_records_land_with_their_coordinates_and_the_snapshot_says_how_far(lake: SmallLake) -> None:
    lake.write_file({"table": "db.t", "create": True})
    hour_ago = int(time.time()) - 3600
    lake.produce([{"id": 1, "kind": "a"}, b"broken", {"id": 2}], timestamp=(hour_ago + 60) * 1000)
    lake.produce([{"id": 3, "kind": "b"}], partition=1, timestamp=hour_ago * 1000)
    totals = lake.run()
    assert (totals.landed, totals.dead_lettered, totals.filtered) == (3, 1, 0)
    assert [(row["id"], row["kind"], row["_kafka_partition"], row["_offset"]) for row in lake.rows("db.t")] == [
        (1, "a", 0, 0),
        (2, None, 0, 2),
        (3, "b", 1, 0),
    ]
    assert [(letter["partition"], letter["offset"]) for letter in lake.letters()] == [(0, 1)]
    summary = lake.table("db.t").current_snapshot().summary.additional_properties  # type: ignore[union-attr]
    assert json.loads(summary["landonce.position"]) == {lake.topic: {"0": [0, 3], "1": [0, 1]}}
    assert (summary["landonce.batch"], summary["landonce.epoch"], summary["landonce.pipeline"]) == ("1", "1", "pipe")
    assert json.loads(summary["landonce.topics"]).keys() == {lake.topic}
    assert summary["landonce.cluster"]
    through = datetime.fromisoformat(summary["landonce.valid-through"])
    assert through == datetime.fromtimestamp(hour_ago, timezone.utc)
    assert lake.run().read == 0
    lake.produce([{"id": 4}])
    assert lake.run().landed == 1
    last = lake.table("db.t").current_snapshot().summary.additional_properties  # type: ignore[union-attr]
    assert "landonce.valid-through" not in last, "partition 1 had no record in the batch"
    assert lake.offsets("db.t") == once(1) + once(2, first=2) + once(1, partition=1)


CHANGES = {"identity": ["id"], "changes": {"mode": "upsert"}}


def lose(place: str) -> Callable[..., Any]:
    """A worker that loses a row: between decoding and writing, in writing, or between expressions and writing."""

    def work(*arguments: Any) -> Any:
        from landonce.engine import task as tasks
        from landonce.read.block import ReadBlock
        from landonce.sinks.iceberg import worker as writing

        rows_of, write_files = ReadBlock.rows, writing.write_files
        if place == "rows":
            ReadBlock.rows = lambda *asked: rows_of(*asked).slice(1)  # type: ignore[method-assign]
        if place == "file":
            writing.write_files = lambda shape, rows, origin: write_files(shape, rows.slice(1), origin)
        try:
            if place == "expression":
                recipe, task, rows, account = arguments
                return tasks.write_half(recipe, task, rows.slice(1), account)
            return tasks.work(*arguments)
        finally:
            ReadBlock.rows, writing.write_files = rows_of, write_files  # type: ignore[method-assign]

    return work


@pytest.mark.parametrize(
    ("place", "how", "more"),
    [
        ("rows", {}, {}),
        ("file", {}, {}),
        ("expression", {}, {"transform": {"where": "id >= 0"}}),
        ("rows", CHANGES, {}),
    ],
    ids=["rows", "file", "expression", "changes"],
)
def test_a_lost_row_is_noticed_before_anything_is_committed(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch, place: str, how: dict[str, Any], more: dict[str, Any]
) -> None:
    lake.schema = "id BIGINT NOT NULL, kind STRING"
    lake.write_file({"table": "db.t", "create": True, **how}, **more)
    lake.produce([{"id": 1, "kind": "a"}, {"id": 2, "kind": "b"}, {"id": 2, "kind": "c"}])
    module, name = (transform, "write_half") if place == "expression" else (workers, "work")
    monkeypatch.setattr(module, name, lose(place))
    with pytest.raises(Unbalanced, match=r"\b3 records were read, but 2 landed"):
        lake.run()
    assert lake.rows("db.t") == []
    monkeypatch.undo()
    assert lake.run().landed == 3
    assert len(lake.rows("db.t")) == (2 if how else 3)


def test_a_batch_of_dead_letters_alone_moves_the_position(lake: SmallLake) -> None:
    lake.write_file({"table": "db.t", "create": True})
    lake.produce([b"broken", b"too"])
    assert lake.run().dead_lettered == 2
    assert lake.run().read == 0
    assert len(lake.letters()) == 2


def test_partitions_compression_and_file_size_are_the_tables(lake: SmallLake) -> None:
    lake.schema = "id BIGINT, kind STRING, at TIMESTAMP"
    properties = {"write.parquet.compression-codec": "gzip", "write.target-file-size-bytes": 4096}
    lake.write_file(
        {"table": "db.t", "create": True, "partition_by": ["day(at)", "bucket(2, id)"], "properties": properties}
    )
    lake.produce(
        [{"id": each, "kind": str(each) * 20, "at": f"2026-01-0{1 + each % 2}T00:00:00Z"} for each in range(3000)]
    )
    assert lake.run().landed == 3000
    table = lake.table("db.t")
    assert [str(each.transform) for each in table.spec().fields] == ["day", "bucket[2]"]
    files = list(table.scan(row_filter="at < '2026-01-02T00:00:00+00:00'").plan_files())
    assert 0 < len(files) < len(list(table.scan().plan_files()))
    assert lake.offsets("db.t") == once(3000)


def test_a_wrong_partition_spec_is_an_error_before_the_start(lake: SmallLake) -> None:
    lake.write_file({"table": "db.t", "create": True, "partition_by": ["kind"]})
    lake.produce([{"id": 1}])
    lake.run()
    lake.write_file({"table": "db.t", "create": True, "partition_by": ["bucket(4, id)"]})
    with pytest.raises(TableUnfit, match="not partitioned"):
        lake.run()


def test_a_table_that_is_not_there_is_an_error_before_the_start(lake: SmallLake) -> None:
    lake.write_file({"table": "db.t"})
    with pytest.raises(TableUnfit, match=r"no table db\.t"):
        lake.run()


def test_files_without_partition_values_when_asked(lake: SmallLake) -> None:
    lake.write_file({"table": "db.t", "create": True, "partition_by": ["kind"], "unpartitioned": True})
    lake.produce([{"id": each, "kind": str(each)} for each in range(50)])
    lake.run()
    assert len(list(lake.table("db.t").scan().plan_files())) == 1
    assert lake.offsets("db.t") == once(50)


def test_where_and_select(lake: SmallLake) -> None:
    lake.write_file(
        {"table": "db.t", "create": True}, transform={"where": "id % 2 = 0", "select": ["id", "upper(kind) AS kind"]}
    )
    lake.produce([{"id": each, "kind": "a"} for each in range(10)])
    totals = lake.run()
    assert (totals.landed, totals.filtered) == (5, 5)
    assert [(row["id"], row["kind"]) for row in lake.rows("db.t")] == [(each, "A") for each in (0, 2, 4, 6, 8)]


def test_tables_are_made_of_what_is_selected(lake: SmallLake) -> None:
    lake.schema = "id BIGINT NOT NULL, customer STRUCT<name: STRING, address: STRUCT<city: STRING>>, at TIMESTAMP(3)"
    select = ["id", "customer.address.city AS city", "customer", "CAST(at AS DATE) AS day", "id * 2 AS twice"]
    lake.write_file({"table": "db.t", "create": True, "partition_by": ["city"]}, transform={"select": select})
    lake.produce([{"id": 1, "customer": {"name": "x", "address": {"city": "Bern"}}, "at": 0}, {"id": 2}])
    assert lake.run().landed == 2
    made = {each.name: (str(each.field_type), each.required) for each in lake.table("db.t").schema().fields}
    assert made["id"] == ("long", True)
    assert (made["city"], made["day"], made["twice"]) == (("string", False), ("date", False), ("long", True))
    assert "at" not in made
    assert [(row["city"], row["twice"]) for row in lake.rows("db.t")] == [("Bern", 2), (None, 4)]
    lake.write_file(
        {"table": "db.by_{city}", "create": True},
        transform={"select": ["coalesce(customer.address.city, 'none') AS city", "id AS number"]},
        pipeline="fan", ledger={"sqlite": "fan.ledger"},
    )  # fmt: skip
    assert lake.run().landed == 2
    assert [row["number"] for row in lake.rows("db.by_Bern")] == [1]
    assert [row["number"] for row in lake.rows("db.by_none")] == [2]


@pytest.mark.parametrize(
    ("transform", "says"),
    [({"where": "no_such_field > 1"}, "no_such_field"), ({"select": ["uuid() AS id"]}, "may give another value")],
)
def test_a_start_that_refuses_leaves_no_table_behind(lake: SmallLake, transform: dict[str, Any], says: str) -> None:
    lake.write_file({"table": "db.t", "create": True}, transform=transform)
    lake.produce([{"id": 1}])
    with pytest.raises(ConfigError, match=says):
        lake.run()
    assert not lake.catalog.table_exists("db.t")


def test_what_halts_a_run_is_said_as_it_is(lake: SmallLake) -> None:
    lake.write_file({"table": "db.t", "create": True}, transform={"where": "1 / (id - id) > 0"})
    lake.produce([{"id": 1}])
    with pytest.raises(TransformFailed):
        lake.run()


def test_the_schema_evolves_once_on_the_driver(lake: SmallLake) -> None:
    lake.schema = None
    lake.catalog.create_namespace("db")
    lake.catalog.create_table(
        "db.t",
        Schema(
            NestedField(1, "id", IntegerType(), required=True),
            NestedField(2, "_topic", StringType()),
            NestedField(3, "_kafka_partition", IntegerType()),
            NestedField(4, "_offset", LongType()),
        ),
    )
    lake.write_file({"table": "db.t", "evolve": True})
    lake.produce([{"id": 2**40}, {"deep": {"a": 1}}, {"id": 3, "deep": {"b": "x"}}])
    assert lake.run().landed == 3
    assert [(row["id"], row["deep"]) for row in lake.rows("db.t")] == [
        (2**40, None),
        (None, {"a": 1, "b": None}),
        (3, {"a": None, "b": "x"}),
    ]
    assert len(lake.table("db.t").metadata.schemas) == 2


class AddsAColumn(Heard):
    """Somebody who gives the table a column when a step begins for the second time."""

    def __init__(self, lake: SmallLake, step: Step) -> None:
        super().__init__()
        self._lake, self._step, self._left = lake, step, 2

    def step(self, effect: Effect) -> None:
        if effect.step is self._step:
            self._left -= 1
            if self._left == 0:
                with self._lake.table("db.t").update_schema() as change:
                    change.add_column("extra", LongType())


@pytest.mark.parametrize(("properties", "step"), [({}, Step.PREPARE), ({"write.format.default": "orc"}, Step.COMMIT)])
def test_a_column_that_others_add_is_filled_at_once(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], step: Step
) -> None:
    monkeypatch.setattr(committing, "_LOOK_EVERY", 0.0)
    monkeypatch.setattr(committing, "_RARELY", 0)
    lake.schema = None
    batch = {"interval": "0s", "max_rows": 4, "block_rows": 2}
    lake.produce([{"id": 0}])
    lake.write_file({"table": "db.t", "create": True, "properties": properties}, batch=batch)
    lake.run()
    lake.produce([{"id": at, "extra": at} for at in range(1, 13)])
    lake.run(AddsAColumn(lake, step))
    assert lake.offsets("db.t") == once(13)
    filled = [row["extra"] for row in lake.rows("db.t")]
    assert filled[-4:] == [9, 10, 11, 12]
    assert filled[5:9] == ([5, 6, 7, 8] if step is Step.COMMIT else filled[5:9])


def test_names_are_mapped_and_case_may_be_ignored(lake: SmallLake) -> None:
    lake.write_file({"table": "db.t", "create": True, "case_insensitive": True})
    lake.produce([{"ID": 1, "Kind": "a"}])
    lake.run()
    table = lake.table("db.t")
    mapping = NameMapping([MappedField(field_id=1, names=["id", "number"]), MappedField(field_id=2, names=["kind"])])
    table.transaction().set_properties({"schema.name-mapping.default": mapping.model_dump_json()}).commit_transaction()
    lake.produce([{"number": 2, "KIND": "b"}])
    lake.run()
    assert [(row["id"], row["kind"]) for row in lake.rows("db.t")] == [(1, "a"), (2, "b")]


def test_a_branch_has_its_own_position(lake: SmallLake) -> None:
    lake.write_file({"table": "db.t", "create": True})
    lake.produce([{"id": 1}])
    lake.run()
    lake.write_file({"table": "db.t", "branch": "audit"})
    lake.produce([{"id": 2}])
    assert lake.run().landed == 1, "the branch begins where the main one is"
    assert lake.offsets("db.t") == once(1)
    assert lake.offsets("db.t", "audit") == once(2)
    lake.write_file({"table": "db.t"})
    lake.produce([{"id": 3}])
    assert lake.run().landed == 2
    assert lake.offsets("db.t") == once(3)
    assert lake.offsets("db.t", "audit") == once(2)


def test_a_branch_is_made_on_a_table_made_by_hand_that_has_no_snapshot(lake: SmallLake) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "_topic", StringType()))
    lake.catalog.create_namespace("db")
    made = lake.catalog.create_table("db.t", schema)
    with made.update_schema() as update:
        update.add_column("_kafka_partition", IntegerType()).add_column("_offset", LongType())
    lake.schema = "id BIGINT"
    lake.write_file({"table": "db.t", "branch": "audit"})
    lake.produce([{"id": 1}, {"id": 2}])
    assert lake.run().landed == 2
    assert lake.offsets("db.t", "audit") == once(2)
    assert lake.offsets("db.t") == Counter()
    lake.write_file({"table": "db.t"})
    assert lake.run().landed == 2, "the main branch has its own position"
    assert lake.offsets("db.t") == once(2)
    assert lake.offsets("db.t", "audit") == once(2)


@pytest.mark.parametrize("batch", [0, 1])
def test_what_a_rollback_removed_is_delivered_again(lake: SmallLake, batch: int) -> None:
    lake.write_file({"table": "db.t", "create": True})
    for number in range(3):
        lake.produce([{"id": number}, b"broken"])
        lake.run()
    lake.rollback("db.t", batch)
    assert len(lake.rows("db.t")) == batch
    lake.run()
    assert any("rolled back" in each for each in lake.heard.troubles)
    assert [row["id"] for row in lake.rows("db.t")] == [0, 1, 2]
    assert sorted(letter["offset"] for letter in lake.letters()) == [1, 3, 5]
    assert lake.run().read == 0
    assert lake.heard.troubles == []


def test_a_rollback_is_refused_when_asked(lake: SmallLake) -> None:
    lake.write_file({"table": "db.t", "create": True, "rollback": "refuse"})
    for number in range(2):
        lake.produce([{"id": number}])
        lake.run()
    lake.rollback("db.t", 1)
    with pytest.raises(RollbackRefused):
        lake.run()
    assert lake.offsets("db.t") == once(1)


def test_expired_snapshots_do_not_lose_the_position(lake: SmallLake) -> None:
    lake.write_file({"table": "db.t", "create": True})
    lake.produce([{"id": 1}, {"id": 2}])
    lake.run()
    table = lake.table("db.t")
    for _ in range(2):
        table.append(table.scan().to_arrow().slice(0, 0))
    head = table.refresh().current_snapshot()
    old = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != head.snapshot_id]  # type: ignore[union-attr]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    lake.produce([{"id": 3}])
    assert lake.run().landed == 1
    assert lake.offsets("db.t") == once(3)


def test_a_table_with_rows_of_the_topic_and_no_mark_is_refused(lake: SmallLake) -> None:
    lake.write_file({"table": "db.t", "create": True})
    lake.produce([{"id": 1}])
    lake.run()
    lake.name = "other"
    lake.write_file({"table": "db.t"})
    with pytest.raises(TargetAhead, match=r"db\.t"):
        lake.run()
    assert lake.offsets("db.t") == once(1)


@pytest.mark.parametrize("left", ["kafka.connect.offsets.control.connect-x", "spark.sql.streaming.queryId"])
def test_a_table_that_another_carrier_filled_is_not_begun_again_by_itself(
    lake: SmallLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    lake.catalog.create_namespace("db")
    theirs = pa.table({"id": pa.array([7], pa.int64()), "kind": pa.array(["theirs"])})
    kept = [pa.field("_topic", pa.string()), pa.field("_kafka_partition", pa.int32()), pa.field("_offset", pa.int64())]
    table = lake.catalog.create_table("db.t", pa.schema([*theirs.schema, *kept]))
    table.append(theirs, snapshot_properties={left: "{}"})
    lake.write_file({"table": "db.t"})
    lake.produce([{"id": 1}])
    with pytest.raises(TargetAhead, match="state import"):
        lake.run()
    assert landonce(capsys, monkeypatch, "state", "import", lake.file, "--from-nothing", "--yes").code == 0
    assert lake.run().landed == 1
    assert sorted(row["id"] for row in lake.table("db.t").scan().to_arrow().to_pylist()) == [1, 7]


@pytest.mark.parametrize(
    "properties", [{"write.format.default": "orc"}, {"write.format.default": "avro"}, {"format-version": 3}]
)
def test_what_arrow_does_not_write_spark_does(
    lake: SmallLake, session: SparkSession, properties: dict[str, object]
) -> None:
    lake.write_file({"table": "db.t", "create": True, "properties": properties})
    for first in (0, 10):
        lake.produce([{"id": each, "kind": "a"} for each in range(first, first + 10)])
        lake.run()
    lake.run()
    table = lake.table("db.t")
    assert str(table.metadata.format_version) == str(properties.get("format-version", 2))
    formats = {entry.data_file.file_format.value.lower() for entry in _entries(table)}
    assert formats == {properties.get("write.format.default", "parquet")}
    rows = by_spark(session, lake)
    assert sorted(row.id for row in rows) == list(range(20))
    assert not list(lake.folder.glob("lake/db/t/landonce-staged/*")), "what waited for Spark is removed"
    assert set(table.metadata.refs) == {"main"}, "staging branches are gone"


OF_SPARK: dict[str, tuple[Any, list[Any], list[Any], list[Any]]] = {
    "b": (BooleanType(), [True, False], [True, False], [1]),
    "i": (IntegerType(), [-(2**31), 2**31 - 1], [-(2**31), 2**31 - 1], [2**31]),
    "l": (LongType(), [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1], [2**63]),
    "f": (FloatType(), [0.5, -1.25], [0.5, -1.25], [2**24 + 1]),
    "d": (DoubleType(), [5e-324, 1.7976931348623157e308], [5e-324, 1.7976931348623157e308], [2**53 + 1]),
    "n": (DecimalType(38, 10), ["9" * 28 + "." + "9" * 10, "-0.0000000001"], [Decimal("9" * 28 + "." + "9" * 10), Decimal("-1E-10")], ["0.00000000001"]),
    "day": (DateType(), ["0001-01-01", "9999-12-31"], [date(1, 1, 1), date(9999, 12, 31)], ["2026-02-30"]),
    "at": (TimestamptzType(), ["1969-12-31T23:59:59.999999Z", "0001-01-01T00:00:00Z"], [datetime(1969, 12, 31, 23, 59, 59, 999999, timezone.utc), datetime(1, 1, 1, tzinfo=timezone.utc)], ["2026-01-01T00:00:00.0000001Z"]),
    "bare": (TimestampType(), ["9999-12-31T23:59:59.999999", "1582-10-10T00:00:00"], [datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(1582, 10, 10)], [0]),
    "s": (StringType(), ["", "\0😀é\n"], ["", "\0😀é\n"], [1]),
    "u": (UUIDType(), [str(UUID(int=0)), str(UUID(int=2**128 - 1))], [UUID(int=0), UUID(int=2**128 - 1)], ["x"]),
    "raw": (BinaryType(), ["", "/w=="], [b"", b"\xff"], ["AAA"]),
    "four": (FixedType(4), ["AAAAAA==", "/////w=="], [b"\0\0\0\0", b"\xff\xff\xff\xff"], ["AAAA"]),
    "list": (ListType(50, LongType(), element_required=False), [[], [1, None]], [[], [1, None]], [["x"]]),
    "struct": (StructType(NestedField(51, "x", DateType())), [{}, {"x": "2026-01-31"}], [{"x": None}, {"x": date(2026, 1, 31)}], [{"x": 1}]),
    "by": (MapType(52, IntegerType(), 53, StringType(), value_required=False), [{}, {"-1": None}], [[], [(-1, None)]], [{"x": ""}]),
}  # fmt: skip
"""Of each type: values in JSON, the same in the table, and values that do not fit."""


@pytest.mark.parametrize("version", [2, 3])
def test_every_type_of_sparks_writer(lake: SmallLake, version: int) -> None:
    """In version 2 with a Bloom filter. In version 3 beside a column that no record can fill, and one that is required and has a default. PyIceberg's scan
    is the oracle."""
    columns = [NestedField(at, name, each[0]) for at, (name, each) in enumerate(OF_SPARK.items(), 1)]
    columns += [NestedField(at, name, kind) for at, (name, kind) in enumerate(COORDINATE_TYPES.items(), 40)]
    lake.catalog.create_namespace("db")
    properties = {"write.parquet.bloom-filter-enabled.column.l": "true"} if version == 2 else {}
    table = lake.catalog.create_table("db.t", Schema(*columns), properties=properties)
    if version == 3:
        later = {"id": 200, "name": "later", "required": False, "type": "unknown"}
        must = {
            "id": 201,
            "name": "must",
            "required": True,
            "type": "string",
            "initial-default": "none",
            "write-default": "none",
        }
        raise_version(lake, table, [later, must])
    lake.schema = None
    lake.write_file({"table": "db.t"})
    good = [{name: each[1][at] for name, each in OF_SPARK.items()} for at in (0, 1)]
    bad = [{name: value} for name, each in OF_SPARK.items() for value in each[3]]
    more = [{"later": 1}, {"later": None, "must": "given"}] if version == 3 else []
    lake.produce([*good, {}, *bad, *more])
    totals = lake.run()
    assert (totals.landed, totals.dead_lettered) == (3 + len(more) // 2, len(bad) + len(more) // 2)
    rows = lake.rows("db.t")
    wanted = [{name: each[2][at] for name, each in OF_SPARK.items()} for at in (0, 1)]
    for row, want in zip(rows, [*wanted, dict.fromkeys(OF_SPARK)], strict=False):
        for name in want:
            assert row[name] == want[name], name
    reasons = {letter["reason"] for letter in lake.letters()}
    if version == 3:
        assert [(row["later"], row["must"]) for row in rows] == [(None, "none")] * 3 + [(None, "given")]
        assert "field 'later' has a value, and its column is unknown, which no record can fill exactly" in reasons


def raise_version(lake: SmallLake, table: Table, added: list[dict[str, Any]]) -> None:
    """Makes the table one of format version 3, with these columns more: PyIceberg cannot."""
    old = table.metadata_location.removeprefix("file://")
    metadata = json.loads(Path(old).read_text())
    metadata["schemas"][0]["fields"] += added
    new = f"{old.removesuffix('.metadata.json')}-v3.metadata.json"
    text = json.dumps({**metadata, "format-version": 3, "next-row-id": 0, "last-column-id": 300})
    Path(new).write_text(text)
    with sqlite3.connect(lake.folder / "lake/catalog.db") as database:
        database.execute("UPDATE iceberg_tables SET metadata_location = ?", (f"file://{new}",))


def test_upserts_merge_by_identity(lake: SmallLake, session: SparkSession) -> None:
    lake.write_file(
        {"table": "db.t", "create": True, "identity": "id", "changes": {"mode": "upsert"}, "partition_by": "kind"}
    )
    lake.produce([{"id": 1, "kind": "a"}, {"id": 2, "kind": "a"}, {"id": 1, "kind": "b"}])
    lake.run()
    lake.produce([{"id": 2, "kind": None}, {"id": 3, "kind": "c"}, {"kind": "no identity"}])
    totals = lake.run()
    assert (totals.landed, totals.dead_lettered) == (2, 1)
    assert sorted((row.id, row.kind) for row in by_spark(session, lake)) == [(1, "b"), (2, None), (3, "c")]


def test_unsound_combinations_are_refused(lake: SmallLake) -> None:
    for iceberg, more in (
        ({"table": "db.t", "changes": {"mode": "upsert"}}, {}),
        ({"table": "db.t", "tables": [{"table": "db.u"}]}, {}),
        ({"tables": [{"table": "db.u", "equals": "x"}]}, {}),
        ({"table": "db.t", "evolve": True}, {"transform": {"where": "id > 1"}}),
        ({"table": "db.t", "upsert": True}, {}),
    ):
        lake.write_file(iceberg, **more)
        with pytest.raises((ConfigError, Halt)):
            lake.run()


def _entries(table):  # type: ignore[no-untyped-def]
    for manifest in table.current_snapshot().manifests(table.io):
        yield from manifest.fetch_manifest_entry(table.io)


ORC = {"properties": {"write.format.default": "orc"}}


@pytest.mark.parametrize(
    ("type_", "term", "bad", "good", "how"),
    [
        ("DECIMAL(4, 2)", "truncate(50, v)", "-99.99", "99.99", {}),
        ("DECIMAL(4, 2)", "truncate(50, v)", "-99.99", "99.99", ORC),
        ("INT", "truncate(10, v)", -(2**31), 2**31 - 1, {}),
        ("BIGINT", "truncate(10, v)", -(2**63), 2**63 - 1, {}),
        ("TIMESTAMP(6)", "hour(v)", 8 * 10**18, 7 * 10**18, {}),
    ],
    ids=["decimal", "decimal by Spark", "int", "long", "hour"],
)
def test_a_value_that_has_no_partition_is_a_dead_letter(
    lake: SmallLake, session: SparkSession, type_: str, term: str, bad: Any, good: Any, how: dict[str, Any]
) -> None:
    """One record never stops a pipeline, and none lands where readers skip it."""
    lake.schema = f"id BIGINT, v {type_}"
    lake.write_file({"table": "db.t", "create": True, "partition_by": [term], **how})
    lake.produce([{"id": 1, "v": good}, {"id": 2, "v": bad}, {"id": 3}, {"id": 4, "v": good}])
    totals = lake.run()
    assert (totals.landed, totals.dead_lettered) == (3, 1)
    (letter,) = lake.letters()
    assert letter["offset"] == 1
    assert letter["reason"].startswith(f"v: {term} of {bad} does not fit")
    rows = reading(session, lake).table("landonce.db.t").select("id")
    assert sorted(row["id"] for row in rows.collect()) == [1, 3, 4]


def test_a_value_that_an_expression_makes_has_no_partition(lake: SmallLake) -> None:
    lake.schema = "id BIGINT, v INT"
    lake.write_file(
        {"table": "db.t", "create": True, "partition_by": ["truncate(10, v)"]},
        transform={"select": ["id", "CASE WHEN id = 2 THEN int(-2147483648) ELSE v END AS v"]},
    )
    lake.produce([{"id": 1, "v": 5}, {"id": 2, "v": 5}])
    totals = lake.run()
    assert (totals.landed, totals.dead_lettered) == (1, 1)
    assert "does not fit int" in lake.letters()[0]["reason"]


def test_spark_finds_a_double_by_its_partition_after_manifests_were_merged(
    lake: SmallLake, session: SparkSession
) -> None:
    lake.schema = "id BIGINT, price DOUBLE"
    properties = {"commit.manifest.min-count-to-merge": "2"}
    lake.write_file({"table": "db.t", "create": True, "partition_by": ["price"], "properties": properties})
    for each in range(3):
        lake.produce([{"id": each, "price": 19.99}, {"id": each, "price": 1e308}])
        lake.run()
    rows = reading(session, lake).table("landonce.db.t")
    assert rows.where("price = 19.99D").count() == 3
    assert sorted({row["price"] for row in rows.collect()}) == [19.99, 1e308]
