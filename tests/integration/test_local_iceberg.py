"""The local servers for Iceberg are real, survive a crash, and show the same tables to PyIceberg and to Spark."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient
from iceberg_servers import LocalConnect, LocalRestCatalog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemoveSnapshotRefUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
)
from pyspark.sql import SparkSession
from requests import RequestException

from landonce.jars import spark_jars
from landonce.local import LocalKafka
from landonce.local.postgres import LocalPostgres
from landonce.sinks.iceberg.catalog import CatalogSpec

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

_COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
_LOOPBACK = {"127.0.0.1", "::ffff:127.0.0.1"}


@pytest.fixture(scope="module")
def specs(
    rest_catalog: LocalRestCatalog, postgres: LocalPostgres, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, CatalogSpec]:
    folder = tmp_path_factory.mktemp("sql catalogs")
    warehouse = (folder / "warehouse").as_uri()
    made = {
        "sqlite": {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": warehouse},
        "postgres": {"type": "sql", "uri": f"{postgres.url}?sslmode=disable", "warehouse": warehouse},
        "rest": rest_catalog.properties,
    }
    return {name: CatalogSpec(name, properties) for name, properties in made.items()}


@pytest.fixture(scope="module")
def spark(specs: dict[str, CatalogSpec]) -> Iterator[SparkSession]:
    builder = SparkSession.builder.master("local[1]").config("spark.jars", ",".join(map(str, spark_jars())))
    builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
    for spec in specs.values():
        for name, value in spec.spark_conf().items():
            builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def made_table(catalog: Catalog, name: str) -> Table:
    catalog.create_namespace_if_not_exists("db")
    return catalog.create_table(f"db.{name}", _COLUMNS)


def rows(*pairs: tuple[int, str]) -> pa.Table:
    return pa.table({"id": [each[0] for each in pairs], "name": [each[1] for each in pairs]}, schema=_COLUMNS)


def held(table: Table) -> list[tuple[int, str]]:
    table.refresh()
    return sorted((row["id"], row["name"]) for row in table.scan().to_arrow().to_pylist())


def seen_by_spark(spark: SparkSession, name: str) -> list[tuple[int, str]]:
    return sorted((row.id, row.name) for row in spark.sql(f"SELECT id, name FROM {name}").collect())


def addresses(pid: int) -> set[str]:
    """Where a process listens."""
    return {each.laddr.ip for each in psutil.Process(pid).net_connections() if each.status == psutil.CONN_LISTEN}


def test_a_killed_rest_catalog_comes_back_with_its_tables_on_its_port(tmp_path: Path) -> None:
    with LocalRestCatalog(tmp_path / "a folder") as server:
        uri, catalog = server.uri, CatalogSpec("rest", server.properties).open()
        table = made_table(catalog, "kept")
        table.append(rows((1, "before")))
        head = table.current_snapshot()
        server.kill()
        with pytest.raises(RequestException):
            catalog.load_table("db.kept")

        again = LocalRestCatalog(tmp_path / "a folder")
        with again:
            assert again.uri == uri
            table = catalog.load_table("db.kept")
            assert table.current_snapshot() == head
            table.append(rows((2, "after")))
            assert held(table) == [(1, "before"), (2, "after")]
        assert not again.running


def test_the_rest_catalog_listens_on_loopback_only(rest_catalog: LocalRestCatalog) -> None:
    assert addresses(rest_catalog.pid) <= _LOOPBACK
    assert addresses(rest_catalog.pid)


def test_a_sql_catalog_knows_the_tables_of_the_rest_catalog(
    rest_catalog: LocalRestCatalog, new_table: Callable[[], str]
) -> None:
    name = new_table()
    made_table(CatalogSpec("rest", rest_catalog.properties).open(), name).append(rows((1, "one")))
    properties = {"type": "sql", "uri": f"sqlite:///{rest_catalog.database}"}
    assert held(CatalogSpec(rest_catalog.catalog_name, properties).open().load_table(f"db.{name}")) == [(1, "one")]


@pytest.mark.parametrize("kind", ["sqlite", "rest", pytest.param("postgres", marks=pytest.mark.long)])
def test_pyiceberg_and_spark_write_and_read_the_same_table(
    kind: str, specs: dict[str, CatalogSpec], spark: SparkSession, new_table: Callable[[], str]
) -> None:
    name, catalog = new_table(), specs[kind].open()
    table = made_table(catalog, name)
    table.append(rows((1, "PyIceberg")))
    spark.sql(f"INSERT INTO {kind}.db.{name} VALUES (2, 'Spark')")
    table.refresh()
    table.append(rows((3, "PyIceberg")))
    assert (
        held(table) == seen_by_spark(spark, f"{kind}.db.{name}") == [(1, "PyIceberg"), (2, "Spark"), (3, "PyIceberg")]
    )

    spark.sql(f"CREATE TABLE {kind}.db.{name}_of_spark (id bigint, name string) USING iceberg")
    catalog.load_table(f"db.{name}_of_spark").append(rows((4, "PyIceberg")))
    assert seen_by_spark(spark, f"{kind}.db.{name}_of_spark") == [(4, "PyIceberg")]


def merged_on_a_branch(spark: SparkSession, catalog: Catalog, kind: str, name: str) -> tuple[Table, int, int]:
    """A v3 table with rows 1 and 2 whose branch `stage` changes 2 and adds 3; the heads of main and the branch."""
    catalog.create_namespace_if_not_exists("db")
    spark.sql(
        f"CREATE TABLE {kind}.db.{name} (id bigint, name string) USING iceberg "
        "TBLPROPERTIES ('format-version' = '3', 'write.merge.mode' = 'merge-on-read')"
    )
    spark.sql(f"INSERT INTO {kind}.db.{name} VALUES (1, 'one'), (2, 'two')")
    spark.sql(f"ALTER TABLE {kind}.db.{name} CREATE BRANCH stage")
    spark.conf.set("spark.sql.iceberg.snapshot-property.landonce.batch", "7")
    spark.sql(
        f"MERGE INTO {kind}.db.{name}.branch_stage t "
        "USING (SELECT 2 AS id, 'TWO' AS name UNION ALL SELECT 3, 'three') c ON t.id = c.id "
        "WHEN MATCHED THEN UPDATE SET t.name = c.name WHEN NOT MATCHED THEN INSERT *"
    )
    spark.conf.unset("spark.sql.iceberg.snapshot-property.landonce.batch")
    table = catalog.load_table(f"db.{name}")
    return table, table.metadata.refs["main"].snapshot_id, table.metadata.refs["stage"].snapshot_id


def test_a_merge_into_a_branch_carries_properties_and_leaves_main_alone(
    specs: dict[str, CatalogSpec], spark: SparkSession, new_table: Callable[[], str]
) -> None:
    name = new_table()
    table, main, stage = merged_on_a_branch(spark, specs["sqlite"].open(), "sqlite", name)
    staged = table.snapshot_by_id(stage)
    assert staged is not None
    assert staged.parent_snapshot_id == main
    assert staged.summary is not None
    assert staged.summary["landonce.batch"] == "7"
    assert staged.summary["added-dvs"] == "1"
    assert seen_by_spark(spark, f"sqlite.db.{name}") == [(1, "one"), (2, "two")]
    assert seen_by_spark(spark, f"sqlite.db.{name}.branch_stage") == [(1, "one"), (2, "TWO"), (3, "three")]


def test_pyiceberg_publishes_a_branch_of_a_v3_table_over_rest_by_compare_and_set(
    specs: dict[str, CatalogSpec], spark: SparkSession, new_table: Callable[[], str]
) -> None:
    name, catalog = new_table(), specs["rest"].open()
    table, main, stage = merged_on_a_branch(spark, catalog, "rest", name)
    publish = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=stage)
    with pytest.raises(CommitFailedException):
        catalog.commit_table(table, (AssertRefSnapshotId(ref="main", snapshot_id=stage),), (publish,))
    assert held(table) == [(1, "one"), (2, "two")]

    marked = SetPropertiesUpdate(updates={"landonce.p.main": "{}"})
    catalog.commit_table(
        table,
        (AssertRefSnapshotId(ref="main", snapshot_id=main),),
        (publish, marked, RemoveSnapshotRefUpdate(ref_name="stage")),
    )
    assert held(table) == seen_by_spark(spark, f"rest.db.{name}") == [(1, "one"), (2, "TWO"), (3, "three")]
    assert table.properties["landonce.p.main"] == "{}"
    assert set(table.metadata.refs) == {"main"}


def test_pyiceberg_alone_cannot_commit_to_a_v3_table_in_a_sql_catalog(
    specs: dict[str, CatalogSpec], spark: SparkSession, new_table: Callable[[], str]
) -> None:
    """The day this fails, Spark is no longer needed to publish there."""
    name, catalog = new_table(), specs["sqlite"].open()
    catalog.create_namespace_if_not_exists("db")
    spark.sql(f"CREATE TABLE sqlite.db.{name} (id bigint) USING iceberg TBLPROPERTIES ('format-version' = '3')")
    with pytest.raises(NotImplementedError):
        catalog.commit_table(catalog.load_table(f"db.{name}"), (), (SetPropertiesUpdate(updates={"a": "b"}),))


@pytest.mark.slow
def test_icebergs_own_sink_lands_every_record_and_says_where_it_stands(
    kafka: LocalKafka,
    rest_catalog: LocalRestCatalog,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    tmp_path: Path,
) -> None:
    count, topic, name = 20_000, new_topic(partitions=2), new_table()
    produce(kafka, topic, count)
    table = made_table(CatalogSpec("rest", rest_catalog.properties).open(), name)
    sink = LocalConnect(
        tmp_path / "connect",
        bootstrap_servers=kafka.bootstrap_servers,
        topics=[topic],
        tables=[f"db.{name}"],
        catalog=rest_catalog.properties,
        connector=f"sink-{name}",
    )
    with sink:
        assert addresses(sink.pid) <= _LOOPBACK
        sink.wait_until(lambda: total(table) >= count, timeout=90)
        assert held(table) == [(number, f"name {number}") for number in range(count)]
        head = table.current_snapshot()
        assert head is not None
        assert head.summary is not None
        # Positions in the control topic, not in the topics that are read: those are the consumer group's.
        position = json.loads(head.summary[f"kafka.connect.offsets.{sink.control_topic}.{sink.group}"])
        assert head.summary["kafka.connect.task-id"] == f"{sink.connector}-0"
        assert head.summary["kafka.connect.commit-id"]
    assert offsets(kafka, sink.group) == {(topic, 0): count // 2, (topic, 1): count // 2}
    coordinator = offsets(kafka, f"{sink.group}-coord")
    assert coordinator.keys() == {(sink.control_topic, 0)}
    assert coordinator[sink.control_topic, 0] >= position["0"]


def produce(kafka: LocalKafka, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, json.dumps({"id": number, "name": f"name {number}"}), partition=number % 2)
    assert producer.flush(30) == 0


def total(table: Table) -> int:
    table.refresh()
    head = table.current_snapshot()
    return int(head.summary["total-records"]) if head is not None and head.summary is not None else 0


def offsets(kafka: LocalKafka, group: str) -> dict[tuple[str, int], int]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(timeout=20)
    return {(each.topic, each.partition): each.offset for each in listed.topic_partitions}
