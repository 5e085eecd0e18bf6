"""Partition specs as a file writes them, held against what PyIceberg makes of rows."""

from __future__ import annotations

from datetime import date, datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DoubleType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)

from landonce.errors import ConfigError
from landonce.sinks.iceberg.partitions import parse_spec, spec_differs, spelled

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "at", TimestamptzType()),
    NestedField(3, "day", DateType()),
    NestedField(4, "name", StringType()),
    NestedField(5, "who", StructType(NestedField(6, "country", StringType()), NestedField(7, "ok", BooleanType()))),
    NestedField(8, "tags", ListType(9, StringType())),
    NestedField(10, "at_hour", StringType()),
    NestedField(11, "odd (name)", StringType()),
    NestedField(12, "key", UUIDType()),
    NestedField(13, "price", DoubleType()),
)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("name", "identity(name) as name"),
        ("identity(name)", "identity(name) as name"),
        ("`odd (name)`", "identity(odd (name)) as odd (name)"),
        ("odd (name)", "identity(odd (name)) as odd (name)"),
        ("day", "identity(day) as day"),
        ("day(day)", "day(day) as day_day"),
        ("year(at)", "year(at) as at_year"),
        ("years(at)", "year(at) as at_year"),
        ("MONTHS(day)", "month(day) as day_month"),
        (" days( at ) ", "day(at) as at_day"),
        ("hour(at)", "hour(at) as at_hour_2"),
        ("hours(at)", "hour(at) as at_hour_2"),
        ("bucket(16, id)", "bucket[16](id) as id_bucket"),
        ("bucket(id, 16)", "bucket[16](id) as id_bucket"),
        ("bucket(16,key)", "bucket[16](key) as key_bucket"),
        ("truncate(4, name)", "truncate[4](name) as name_trunc"),
        ("truncate(100, id)", "truncate[100](id) as id_trunc"),
        ("truncate(2, `odd (name)`)", "truncate[2](odd (name)) as odd (name)_trunc"),
        ("who.country", "identity(who.country) as who.country"),
        ("bucket(8, who.country)", "bucket[8](who.country) as who.country_bucket"),
        ("void(id)", "void(id) as id_null"),
    ],
)
def test_every_transform(written: str, meant: str) -> None:
    (field,) = parse_spec([written], SCHEMA).fields
    assert f"{field.transform}({SCHEMA.find_column_name(field.source_id)}) as {field.name}" == meant
    assert field.field_id == 1000


def test_several_fields_are_numbered_in_order() -> None:
    spec = parse_spec(("day(at)", "bucket(4, id)", "bucket(8, id)", "name"), SCHEMA)
    assert [(each.field_id, each.name) for each in spec.fields] == [
        (1000, "at_day"),
        (1001, "id_bucket"),
        (1002, "id_bucket_2"),
        (1003, "name"),
    ]
    assert parse_spec((), SCHEMA).is_unpartitioned()


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (["nope"], "'nope': the table has no column 'nope'; it has id, at"),
        (["day(nope)"], "the table has no column 'nope'"),
        (["who.nope"], "the table has no column 'who.nope'"),
        (["ID"], "the table has no column 'ID'"),
        (["week(at)"], r"'week\(at\)': there is no such transform; there are identity, bucket"),
        (["day(at, id)"], "there is no such transform"),
        (["bucket(id)"], "there is no such transform"),
        (["bucket(0, id)"], "bucket takes a number from 1 on and a column"),
        (["bucket(-1, id)"], "bucket takes a number from 1 on and a column"),
        (["truncate(x, id)"], "truncate takes a number from 1 on and a column"),
        (["hour(day)"], "hour of type date cannot partition a table"),
        (["day(name)"], "day of type string cannot partition a table"),
        (["truncate(4, at)"], r"truncate\[4\] of type timestamptz cannot partition"),
        (["bucket(4, price)"], "of type double cannot partition"),
        (["who"], "a column of type struct<.*> cannot partition a table"),
        (["tags"], "a column of type list<string> cannot partition a table"),
        (["tags.element"], "inside of a list or a map"),
        (["day(at)", "month(at)"], "at partitions the table already; of several times, the finest is enough"),
        (["name", "name"], "name partitions the table already"),
        ([""], "the table has no column ''"),
    ],
)
def test_what_cannot_be_says_why(written: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        parse_spec(written, SCHEMA)
    assert refused.value.what.startswith("sink.iceberg.partition_by: ")


def test_how_specs_differ_in_words() -> None:
    there = parse_spec(("day(at)", "bucket(16, id)"), SCHEMA)
    for same in (("day(at)", "bucket(16, id)"), ("bucket(16, id)", "days(at)")):
        assert spec_differs(parse_spec(same, SCHEMA), there, SCHEMA) == ""
    assert spec_differs(parse_spec(("day(at)", "bucket(8, id)"), SCHEMA), there, SCHEMA) == (
        "it is not partitioned by bucket(8, id); it is partitioned by bucket(16, id), which was not asked for"
    )
    assert spec_differs(parse_spec((), SCHEMA), there, SCHEMA) == (
        "it is partitioned by day(at), bucket(16, id), which was not asked for"
    )
    assert spec_differs(parse_spec(("who.country",), SCHEMA), PartitionSpec(), SCHEMA) == (
        "it is not partitioned by who.country"
    )
    assert spelled(there, SCHEMA) == "day(at), bucket(16, id)"
    assert spelled(PartitionSpec(), SCHEMA) == "nothing"


def test_names_of_partition_fields_and_dropped_ones_do_not_matter() -> None:
    there = PartitionSpec(
        PartitionField(4, 1000, IdentityTransform(), "whatever"), PartitionField(1, 1001, VoidTransform(), "id_bucket")
    )
    assert spec_differs(parse_spec(("name",), SCHEMA), there, SCHEMA) == ""


def test_a_table_with_such_a_spec_is_partitioned_so(tmp_path: Path) -> None:
    catalog = load_catalog("specs", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    asked = ("day(at)", "truncate(2, name)", "who.country", "bucket(4, id)", "year(day)")
    table = catalog.create_table("db.t", SCHEMA, partition_spec=parse_spec(asked, SCHEMA))
    row = {
        "id": 7,
        "at": datetime(2026, 3, 4, 23, tzinfo=timezone.utc),
        "day": date(1999, 1, 1),
        "name": "somebody",
        "who": {"country": "DE", "ok": True},
    }
    table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))
    assert spec_differs(parse_spec(asked, table.schema()), table.spec(), table.schema()) == ""
    (task,) = table.scan().plan_files()
    assert "at_day=2026-03-04/name_trunc=so/who.country=DE/id_bucket=" in task.file.file_path
    assert "/day_year=1999/" in task.file.file_path
