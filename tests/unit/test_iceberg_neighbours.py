"""What others do to a table of the pipeline: columns, branches, snapshots and files that come or go. A real catalog, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import SetSnapshotRefUpdate
from pyiceberg.types import IntegerType, LongType, StringType

from landonce.errors import TargetUnavailable
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import Mark, Verdict
from landonce.read.decoding import Decoding
from landonce.read.kafka.records import NoRecords
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.iceberg.catalog import CatalogSpec
from landonce.sinks.iceberg.commit import IcebergTable, TableBranch
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.iceberg.driver import OpenIceberg
from landonce.sinks.iceberg.marks import holds
from landonce.sinks.iceberg.sink import IcebergSink
from landonce.sinks.iceberg.table import Creation, create_table
from landonce.sinks.run import Run
from landonce.sinks.worker import Basics

NAME = "db.t"
BASICS = Basics(
    pipeline="p",
    records=NoRecords(),
    dead_letters=Path(),
    decoding=Decoding(max_record_bytes=1000),
    block_bytes=0,
    select=(),
    where=None,
)


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"}


@pytest.fixture
def catalog(properties: dict[str, str]) -> Iterator[Catalog]:
    made = load_catalog("c", **properties)
    made.create_namespace("db")
    yield made
    made.close()


def place_of(properties: dict[str, str], catalog: Catalog, branch: str = "main") -> TableBranch:
    return TableBranch(CatalogSpec("c", properties), lambda: catalog, NAME, branch, "p")


def commit(place: TableBranch) -> None:
    """An empty snapshot with a mark."""
    IcebergTable(place).commit(lambda _: Verdict.GO, Mark(LedgerState("p", lineage="l", batch=1)), ())


def driver(properties: dict[str, str], **more: Any) -> OpenIceberg:
    spec = CatalogSpec("c", properties)
    config = Iceberg.model_validate({"table": NAME, "catalog": properties, **more})
    sink = IcebergSink(spec, config, "p")
    return OpenIceberg(sink, Run("p", sink.own_ledger(), BASICS))


def expire(table: Table, snapshot: int) -> None:
    table.maintenance.expire_snapshots().by_id(snapshot).commit()


def test_a_table_with_rows_may_get_its_coordinate_columns_later(catalog: Catalog) -> None:
    """As `check` advises. PyIceberg's scan of a branch has the columns of the newest snapshot, which is older than they are."""
    table = catalog.create_table(NAME, pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2]}))
    with table.update_schema() as change:
        for name, kind in (("_topic", StringType()), ("_kafka_partition", IntegerType()), ("_offset", LongType())):
            change.add_column(name, kind)
    assert not holds(catalog.load_table(NAME), "main", ("topic",))


def test_coordinates_are_found_under_the_names_that_their_columns_have_now(catalog: Catalog) -> None:
    table = catalog.create_table(NAME, pa.schema([("t", pa.string()), ("p", pa.int32()), ("o", pa.int64())]))
    table.append(pa.table({"t": ["topic"], "p": pa.array([0], pa.int32()), "o": [7]}))
    with table.update_schema() as change:
        for old, new in (("t", "_topic"), ("p", "_kafka_partition"), ("o", "_offset")):
            change.rename_column(old, new)
    for branch in ("main", "not there yet"):
        assert holds(catalog.load_table(NAME), branch, ("topic",))
        assert not holds(catalog.load_table(NAME), branch, ("other",))


def test_a_branch_that_was_published_and_dropped_is_found_in_main(properties: dict[str, str], catalog: Catalog) -> None:
    """And the snapshot with the mark has expired: whether the copy's commit is part of the table, its files and rows say."""
    create_table(catalog, NAME, Schema((Field("id", pa.int64()),)), Creation())
    place = place_of(properties, catalog, "audit")
    commit(place)
    table = place.load()
    head = table.metadata.refs["audit"].snapshot_id
    published = SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=head)  # type: ignore[call-arg]
    catalog.commit_table(table, (), (published,))
    table.refresh().manage_snapshots().remove_branch("audit").commit()
    for id_ in (1, 2):
        table.refresh().append(pa.table({"id": [id_]}))
    for each in table.refresh().snapshots()[:-1]:
        expire(table.refresh(), each.snapshot_id)
    assert place.view(place.load()).uncertain


def test_a_file_of_metadata_that_cannot_be_read_is_waited_for(properties: dict[str, str], catalog: Catalog) -> None:
    create_table(catalog, NAME, Schema((Field("id", pa.int64()),)), Creation())
    place = place_of(properties, catalog)
    commit(place)
    for id_ in (1, 2):
        place.load().append(pa.table({"id": [id_]}))
    for each in place.load().snapshots()[:-1]:
        expire(place.load(), each.snapshot_id)
    (last,) = place.load().snapshots()
    Path(last.manifest_list.removeprefix("file://")).unlink()
    with pytest.raises(TargetUnavailable):
        place.view(place.load())


def test_a_spec_is_added_while_others_commit(
    properties: dict[str, str], catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For `unpartitioned: true`. Another writer commits after the catalog read the table and before it swaps the metadata."""
    create_table(catalog, NAME, Schema((Field("id", pa.int64()),)), Creation(partition_by=("id",)))
    another, write = [load_catalog("c", **properties)], SqlCatalog._write_metadata

    def late(*args: Any, **kwargs: Any) -> None:
        if another:
            another.pop().load_table(NAME).append(pa.table({"id": [1]}))
        write(*args, **kwargs)

    monkeypatch.setattr(SqlCatalog, "_write_metadata", staticmethod(late))
    driver(properties, unpartitioned=True).start()
    assert not another
    assert [len(each.fields) for each in catalog.load_table(NAME).specs().values()] == [1, 0]


def test_staging_branches_go_without_spark(properties: dict[str, str], catalog: Catalog) -> None:
    """A merge was killed, and the file says `write: equality` since: nothing of it needs Spark any more."""
    create_table(catalog, NAME, Schema((Field("id", pa.int64()),)), Creation())
    place = place_of(properties, catalog)
    commit(place)
    head = place.head(place.load())
    assert head is not None
    left = ("landonce_stage_p_e1_b1_0123456789abcdef", "landonce_stage_p_e2_b9_0123456789abcdef")
    others = (
        "landonce_stage_p_e3_b1_0123456789abcdef",
        "landonce_stage_q_e1_b1_0123456789abcdef",
        "landonce_stage_mine",
    )
    for name in (*left, *others):
        place.load().manage_snapshots().create_branch(head, name).commit()
    opened = driver(properties)
    opened.start()
    opened.tidy(3)
    assert set(place.load().metadata.refs) == {"main", *others}
