"""Tables that landonce creates, read back from the catalog."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog, load_catalog

from landonce.errors import ConfigError
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.iceberg.table import Creation, create_table, upgrade_statement
from landonce.sinks.iceberg.types import schema_for

DECLARED = parse_schema("id BIGINT, at TIMESTAMP(3) NOT NULL, who STRUCT<name: STRING>, tags ARRAY<STRING>")


def opened(folder: Path) -> Catalog:
    return load_catalog("made", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return opened(tmp_path)


def test_a_table_with_everything(catalog: Catalog) -> None:
    creation = Creation(
        partition_by=("day(at)", "bucket(4, id)"),
        identity=("id",),
        properties={"write.parquet.compression-codec": "zstd", "format-version": "2"},
    )
    create_table(catalog, "lake.raw.events", DECLARED, creation)
    table = catalog.load_table("lake.raw.events")
    assert [(each.name, str(each.field_type), each.required) for each in table.schema().fields] == [
        ("id", "long", True),
        ("at", "timestamptz", True),
        ("who", "struct<8: name: optional string>", False),
        ("tags", "list<string>", False),
        ("_topic", "string", False),
        ("_kafka_partition", "int", False),
        ("_offset", "long", False),
    ]
    assert table.schema().identifier_field_names() == {"id"}
    assert [str(each.transform) for each in table.spec().fields] == ["day", "bucket[4]"]
    assert table.properties["write.parquet.compression-codec"] == "zstd"
    assert table.metadata.format_version == 2
    assert [each.name for each in schema_for(table, coordinates=True).fields] == ["id", "at", "who", "tags"]


def test_in_the_first_version(catalog: Catalog) -> None:
    table = create_table(catalog, "db.t", DECLARED, Creation(properties={"format-version": "1"}))
    assert table.metadata.format_version == 1


def test_a_table_that_is_there_stays_as_it_is(catalog: Catalog) -> None:
    first = create_table(catalog, "db.t", DECLARED, Creation())
    again = create_table(catalog, "db.t", parse_schema("other STRING"), Creation(partition_by=("other",)))
    assert again.metadata.table_uuid == first.metadata.table_uuid
    assert again.schema() == first.schema()


def test_of_several_processes_one_makes_it(tmp_path: Path) -> None:
    create_table(opened(tmp_path), "other.t", DECLARED, Creation())
    together = threading.Barrier(4)
    made: list[object] = []

    def create() -> None:
        catalog = opened(tmp_path)
        together.wait()
        made.append(create_table(catalog, "db.t", DECLARED, Creation()).metadata.table_uuid)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(made) == 4
    assert len(set(made)) == 1


def test_the_third_version_is_for_spark_to_make(catalog: Catalog) -> None:
    creation = Creation(properties={"format-version": "3"})
    table = create_table(catalog, "db.t", DECLARED, creation)
    assert table.metadata.format_version == 2
    assert upgrade_statement("lake", table, creation) == (
        "ALTER TABLE `lake`.`db`.`t` SET TBLPROPERTIES ('format-version' = '3')"
    )
    assert upgrade_statement("lake", table, Creation()) == ""


@pytest.mark.parametrize(
    ("identifier", "declared", "creation", "said"),
    [
        ("t", "id INT", Creation(), "needs a namespace"),
        ("db.t", "id INT", Creation(partition_by=("x",)), "no column 'x'"),
        ("db.t", "id INT", Creation(identity=("x",)), "no column 'x'"),
        ("db.t", "id INT", Creation(properties={"format-version": "4"}), "format-version is 1, 2 or 3"),
        ("db.t", "at TIMESTAMP(9)", Creation(), "nanoseconds need format version 3"),
        ("db.t", "_topic STRING", Creation(), "cannot be called _topic"),
    ],
)
def test_what_cannot_be_created_leaves_nothing(
    catalog: Catalog, identifier: str, declared: str, creation: Creation, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        create_table(catalog, identifier, parse_schema(declared), creation)
    assert catalog.list_namespaces() == []
