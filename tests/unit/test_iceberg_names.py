"""Which fields of records land in which columns: by name mapping, by name, and without regard to case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

from landonce.errors import TableUnfit
from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.iceberg.table import Creation, create_table
from landonce.sinks.iceberg.types import schema_for

CITY = StructType(NestedField(10, "city", StringType()), NestedField(11, "zip", StringType()))
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "home", CITY),
    NestedField(4, "all", ListType(12, StructType(NestedField(13, "city", StringType())))),
    NestedField(5, "by", MapType(14, StringType(), 15, StructType(NestedField(16, "city", StringType())))),
)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    made = load_catalog("names", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    made.create_namespace("db")
    return made


def table_with(catalog: Catalog, mapping: list[dict[str, Any]] | str | None) -> Table:
    """A table of `SCHEMA`. The mapping's ids are those of `SCHEMA`, which the catalog numbers again."""
    table = catalog.create_table("db.t", SCHEMA)
    if mapping is None:
        return table
    fresh = {old: table.schema().find_field(name).field_id for old in SCHEMA.field_ids for name in (SCHEMA.find_column_name(old),)}  # fmt: skip

    def renumbered(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {**each, "field-id": fresh[each["field-id"]], "fields": renumbered(each.get("fields", []))}
            for each in fields
        ]

    text = mapping if isinstance(mapping, str) else json.dumps(renumbered(mapping))
    with table.transaction() as change:
        change.set_properties({"schema.name-mapping.default": text})
    return table


def landed(table: Table, *records: dict[str, Any], fold_case: bool = False) -> list[Any]:
    schema = schema_for(table, coordinates=False, fold_case=fold_case)
    decoded = JsonDecoder(schema).decode(pa.array([json.dumps(each).encode() for each in records], pa.binary()))
    table.append(decoded.table)
    rows = table.scan().to_arrow().to_pylist()  # which shows a list or map of structs that is null as empty
    shown = [{name: value for name, value in row.items() if value} for row in rows]
    return [*shown, *(each.reason for each in decoded.rejects)]


MAPPING = [
    {"field-id": 1, "names": ["id", "ID", "key"]},
    {"field-id": 3, "names": ["home", "address"], "fields": [{"field-id": 10, "names": ["town"]}]},
    {"field-id": 4, "names": ["all"], "fields": [{"field-id": 12, "names": ["element"], "fields": [{"field-id": 13, "names": ["place", "city"]}]}]},
    {"field-id": 5, "names": ["by"], "fields": [{"field-id": 14, "names": ["key"]}, {"field-id": 15, "names": ["value"], "fields": [{"field-id": 16, "names": ["Stadt"]}]}]},
]  # fmt: skip


def test_names_of_the_mapping_then_names_of_columns(catalog: Catalog) -> None:
    table = table_with(catalog, MAPPING)
    rows = landed(
        table,
        {"key": 1, "name": "x", "address": {"town": "A", "zip": "1"}},
        {"ID": 2, "home": {"city": "not meant"}, "all": [{"place": "B"}, {"city": "C"}]},
        {"id": 3, "Name": "not meant", "by": {"key": {"Stadt": "D"}, "value": {"city": "not meant"}}},
    )
    assert rows == [
        {"id": 1, "name": "x", "home": {"city": "A", "zip": "1"}},
        {"id": 2, "home": {"city": None, "zip": None}, "all": [{"city": "B"}, {"city": "C"}]},
        {"id": 3, "by": [("key", {"city": "D"}), ("value", {"city": None})]},
    ]


def test_two_fields_for_one_column_are_rejected(catalog: Catalog) -> None:
    table = table_with(catalog, MAPPING)
    assert landed(table, {"id": 1, "key": 1}, {"address": {}, "home": {}}) == [
        "field 'id' occurs under more than one name",
        "field 'home' occurs under more than one name",
    ]


def test_without_a_mapping_names_are_exact(catalog: Catalog) -> None:
    table = table_with(catalog, None)
    assert landed(table, {"id": 1, "NAME": "no"}, {"id": 2, "name": "yes"}) == [{"id": 1}, {"id": 2, "name": "yes"}]
    schema = schema_for(table, coordinates=False)
    assert not any(each.aliases or each.inner_aliases for each in schema.fields)
    assert not schema.fold_case


def test_case_may_not_matter_for_columns_and_mapped_names(catalog: Catalog) -> None:
    table = table_with(catalog, MAPPING)
    rows = landed(table, {"KEY": 1, "NAME": "x", "Address": {"TOWN": "A", "ZIP": "1"}}, fold_case=True)
    assert rows == [{"id": 1, "name": "x", "home": {"city": "A", "zip": "1"}}]


def test_a_mapping_that_means_two_columns_by_one_name_is_refused(catalog: Catalog) -> None:
    table = table_with(catalog, [{"field-id": 1, "names": ["x"]}, {"field-id": 2, "names": ["x"]}])
    with pytest.raises(TableUnfit, match="these mean several: 'x'") as refused:
        schema_for(table, coordinates=False)
    assert "schema.name-mapping.default" in refused.value.command


def test_columns_that_differ_in_case_only_are_refused_where_case_does_not_matter(catalog: Catalog) -> None:
    table = catalog.create_table("db.u", Schema(NestedField(1, "a", LongType()), NestedField(2, "A", LongType())))
    with pytest.raises(TableUnfit, match="these mean several: 'a'") as refused:
        schema_for(table, coordinates=False, fold_case=True)
    assert "case_insensitive: false" in refused.value.command
    assert len(schema_for(table, coordinates=False).fields) == 2


def test_a_mapping_that_is_none_is_refused(catalog: Catalog) -> None:
    with pytest.raises(TableUnfit, match=r"schema\.name-mapping\.default is not a name mapping"):
        schema_for(table_with(catalog, '{"a": 1}'), coordinates=False)


def test_a_declaration_says_how_long_a_tick_is_and_what_must_be_there(catalog: Catalog) -> None:
    declared = parse_schema("at TIMESTAMP(3), id BIGINT NOT NULL, other STRING")
    table = create_table(catalog, "db.v", parse_schema("at TIMESTAMP(3), id BIGINT, name STRING"), Creation())
    records = pa.array([b'{"at":1500,"id":1}', b'{"at":"1970-01-01T00:00:01.5Z","id":2}', b'{"at":0}'], pa.binary())
    strict = JsonDecoder(schema_for(table, coordinates=True, declared=declared)).decode(records)
    assert strict.table.column("at").cast(pa.int64()).to_pylist() == [1_500_000, 1_500_000]
    assert [each.reason for each in strict.rejects] == ["missing required field 'id'"]
    plain = JsonDecoder(schema_for(table, coordinates=True)).decode(records)
    assert plain.table.column("id").to_pylist() == [2]
