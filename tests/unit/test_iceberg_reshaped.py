"""Tables that somebody else changes while a driver writes for them, in a real catalog and without Spark."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import IntegerType, LongType

from landonce.errors import TableReshaped, TableUnfit, TargetRefused
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.iceberg.catalog import CatalogSpec
from landonce.sinks.iceberg.commit import TableBranch
from landonce.sinks.iceberg.files import SparkScratch, write_files
from landonce.sinks.iceberg.table import Creation, TableShape, create_table, require_unchanged
from landonce.sinks.snapshot import Origin

NAME = "shop.events"
NOBODY = 65534


class Lake:
    """One table, and a driver's way to commit to it."""

    def __init__(self, folder: Path) -> None:
        self.properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"}
        self.folder = folder
        self.catalog: Catalog = load_catalog("c", **self.properties)
        declared = Schema((Field("id", pa.int64()), Field("kind", pa.string())))
        create_table(self.catalog, NAME, declared, Creation())
        self.place = TableBranch(CatalogSpec("c", self.properties), lambda: self.catalog, NAME, "main", "p")

    @property
    def table(self) -> Table:
        return self.catalog.load_table(NAME)

    def append(self, **columns: list[Any]) -> None:
        table = self.table
        files = write_files(TableShape.of(table), pa.table(columns), Origin("p", 1, 1, 0))
        self.place.send(table, self.place.appending(table, {}, {}, files))

    def manifests(self) -> set[str]:
        head = self.table.current_snapshot()
        return {each.manifest_path for each in head.manifests(self.table.io)} if head is not None else set()

    def raise_version(self) -> None:
        """To format version 3, which PyIceberg reads and does not write."""
        old = self.table.metadata_location
        metadata = json.loads(Path(old.removeprefix("file://")).read_text())
        new = f"{old.removesuffix('.metadata.json')}-v3.metadata.json"
        Path(new.removeprefix("file://")).write_text(json.dumps({**metadata, "format-version": 3, "next-row-id": 0}))
        with sqlite3.connect(self.folder / "c.db") as database:
            database.execute("UPDATE iceberg_tables SET metadata_location = ?", (new,))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_a_partition_column_that_is_gone_does_not_stop_appends(lake: Lake) -> None:
    """PyIceberg writes no manifest of a spec whose column was dropped, and merges those that are there at every append."""
    with lake.table.update_spec() as change:
        change.add_identity("kind")
    for at in range(3):
        lake.append(id=[at, at], kind=["a", "b"])
    of_old_spec = lake.manifests()
    with lake.table.update_spec() as change:
        change.remove_field("kind")
    with lake.table.update_schema() as columns:
        columns.delete_column("kind")
    with lake.table.transaction() as properties:
        properties.set_properties({"commit.manifest.min-count-to-merge": "2"})
    for at in range(3, 8):
        lake.append(id=[at])
    assert sorted(lake.table.scan().to_arrow()["id"].to_pylist()) == [0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7]
    assert of_old_spec < lake.manifests(), "manifests of the old spec are carried over as they are"
    assert len(lake.manifests()) == len(of_old_spec) + 1, "those of the new one are still merged"


def test_a_format_version_that_pyiceberg_does_not_write_is_an_error_that_says_what_to_do(lake: Lake) -> None:
    lake.append(id=[1], kind=["a"])
    lake.raise_version()
    with pytest.raises(
        TableUnfit, match="is of format version 3, which only Spark's own writer can commit to"
    ) as caught:
        lake.place.appending(lake.table, {}, {})
    assert (caught.value.safe, caught.value.command) == ("Nothing was changed.", "landonce run {file}")


def test_files_fit_while_their_columns_are_there_by_id_or_by_name(lake: Lake) -> None:
    before = lake.table
    with lake.table.update_schema() as change:
        change.rename_column("kind", "sort")
    require_unchanged(NAME, before, lake.table)
    with pytest.raises(TableReshaped, match=r"the columns of shop\.events were changed"):
        require_unchanged(NAME, before, lake.table, by_name=True)
    with lake.table.update_schema() as change:
        change.add_column("more", LongType())
    require_unchanged(NAME, before, lake.table)
    with lake.table.update_schema() as change:
        change.delete_column("sort").add_column("sort", LongType())
    with pytest.raises(TableReshaped, match=r"the columns of shop\.events were changed"):
        require_unchanged(NAME, before, lake.table)
    now = lake.table
    lake.raise_version()
    with pytest.raises(TableReshaped, match="or its format version"):
        require_unchanged(NAME, now, lake.table)


def replaced(lake: Lake, change: Callable[[dict[str, Any]], None]) -> Table:
    """The table as `CREATE OR REPLACE`, or another tool that edits metadata, may leave it: the same UUID, and ids by name."""
    old = lake.table.metadata_location
    metadata = json.loads(Path(old.removeprefix("file://")).read_text())
    change(metadata)
    new = f"{old.removesuffix('.metadata.json')}-x.metadata.json"
    Path(new.removeprefix("file://")).write_text(json.dumps(metadata))
    with sqlite3.connect(lake.folder / "c.db") as database:
        database.execute("UPDATE iceberg_tables SET metadata_location = ?", (new,))
    return lake.table


def retyped(type_: str) -> Callable[[dict[str, Any]], None]:
    def change(metadata: dict[str, Any]) -> None:
        metadata["schemas"][-1]["fields"][1]["type"] = type_

    return change


def required(metadata: dict[str, Any]) -> None:
    metadata["schemas"][-1]["fields"][1]["required"] = True


@pytest.mark.parametrize("change", [retyped("long"), retyped("date"), required], ids=["long", "date", "required"])
@pytest.mark.parametrize("by_name", [False, True])
def test_files_do_not_fit_a_column_of_the_same_id_that_would_read_them_as_something_else(
    lake: Lake, change: Callable[[dict[str, Any]], None], by_name: bool
) -> None:
    before = lake.table
    with pytest.raises(TableReshaped):
        require_unchanged(NAME, before, replaced(lake, change), by_name=by_name)


def test_files_fit_a_column_that_was_widened(lake: Lake) -> None:
    with lake.table.update_schema() as columns:
        columns.add_column("n", IntegerType())
    before = lake.table
    with lake.table.update_schema() as columns:
        columns.update_column("n", field_type=LongType())
    require_unchanged(NAME, before, lake.table, specs=[0])


def test_files_do_not_fit_another_partition_spec_of_the_same_number(lake: Lake) -> None:
    """Specs that no snapshot uses may be removed, and then their number is given to another one."""
    with lake.table.update_spec() as change:
        change.add_identity("kind")
    before = lake.table
    with lake.table.update_spec() as change:
        change.add_field("id", BucketTransform(4), "id_bucket")
    require_unchanged(NAME, before, lake.table, specs=[before.spec().spec_id])

    def other(metadata: dict[str, Any]) -> None:
        (mine,) = (each for each in metadata["partition-specs"] if each["spec-id"] == before.spec().spec_id)
        mine["fields"][0]["transform"] = "truncate[1]"

    with pytest.raises(TableReshaped, match="or its partitions"):
        require_unchanged(NAME, before, replaced(lake, other), specs=[before.spec().spec_id])


def test_what_only_was_renamed_keeps_the_values_that_were_written_before(lake: Lake) -> None:
    table = lake.table
    files = write_files(TableShape.of(table), pa.table({"id": [1], "kind": ["a"]}), Origin("p", 1, 1, 0))
    with lake.table.update_schema() as change:
        change.rename_column("kind", "sort")
    lake.place.send(lake.table, lake.place.appending(lake.table, {}, {}, files))
    assert lake.table.scan(selected_fields=("id", "sort")).to_arrow().to_pylist() == [{"id": 1, "sort": "a"}]


@pytest.fixture
def forbidden() -> Iterator[Path]:
    """A folder that this process may not write to."""
    with tempfile.TemporaryDirectory(prefix="landonce-test-") as folder:
        path = Path(folder) / "staged"
        path.mkdir(0o555)
        Path(folder).chmod(0o755)
        root = os.geteuid() == 0
        if root:
            os.seteuid(NOBODY)
        yield path
        if root:
            os.seteuid(0)


def test_a_storage_that_refuses_is_not_waited_for(forbidden: Path) -> None:
    scratch = SparkScratch(f"file://{forbidden}", ())
    with pytest.raises(TargetRefused, match=r"the storage refused: .*Permission denied") as caught:
        scratch.write(pa.table({"id": [1]}), Origin("p", 1, 1, 0))
    assert caught.value.safe == "Nothing was committed."
    assert caught.value.command.startswith("give landonce the right to read and write the warehouse")
