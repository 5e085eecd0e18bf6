"""The audit of Iceberg tables, against real ones: it finds every fault that is planted, names it, and finds no other."""

import json
import uuid
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from audited_lakes import COLUMNS, AuditedLake
from jvms import iceberg_session
from pipelines import landonce
from pyiceberg.types import LongType, StringType
from said import says

from landonce.sinks.iceberg.catalog import CatalogSpec

pytestmark = pytest.mark.integration

RECORDS = 100
BROKEN = (10, 20, 21)
GOOD = [at for at in range(RECORDS) if at not in BROKEN]


def value(at):
    return b"{broken" if at in BROKEN else json.dumps({"id": at}).encode()


@pytest.fixture
def verify(capsys, monkeypatch):
    return lambda pipeline, *options: landonce(capsys, monkeypatch, "verify", pipeline.file, *options)


@pytest.fixture
def empty(kafka, new_topic, new_table, tmp_path):
    """A pipeline of which nothing ran yet."""
    lake = AuditedLake(kafka, tmp_path, new_topic(), new_table())
    lake.make_table()
    return lake


@pytest.fixture
def produced(empty):
    """All of it in Kafka, the dead letters and the ledger; nothing in the table."""
    empty.produce(value(at) for at in range(RECORDS))
    empty.bury(BROKEN)
    empty.commit({0: (0, RECORDS)})
    return empty


@pytest.fixture
def exact(produced):
    """A pipeline that did everything right: 97 rows in two snapshots, three dead letters, all committed."""
    produced.snapshots = [
        produced.land(at for at in GOOD if at < 50),
        produced.land(at for at in GOOD if at >= 50),
    ]
    return produced


def found(said):
    """Everything that is wrong, as {(fault, where): ranges}."""
    (partition,) = said.json["partitions"]
    return {(each["fault"], each["where"]): [tuple(run[:2]) for run in each["listed"]] for each in partition["ranges"]}


def only(said, fault, where, ranges):
    assert said.code == 1
    assert not said.json["exact"]
    assert found(said) == {(fault, where): ranges}


def test_what_is_exact_is_said_to_be(exact, verify):
    said = verify(exact)
    assert said.code == 0
    assert says(said.out, "exactly once: 100 read, 97 landed, 3 dead-lettered, 0 filtered, 0 duplicated, 0 missing")
    assert "NOT exactly once" not in said.out
    document = verify(exact, "--json").json
    assert document["exact"]
    assert document["totals"] | {"read": 100, "expected": 97, "landed": 97, "dead_lettered": 3} == document["totals"]
    (table,) = document["tables"]
    assert table["table"] == exact.name()
    assert table["files_registered_twice"] == []
    assert table["as_of"].startswith(f"snapshot {exact.snapshots[-1]} (")
    assert f"judged at snapshot {exact.snapshots[-1]} (" in said.out


def test_a_deleted_row(exact, verify):
    exact.forget("_offset == 42")
    only(verify(exact, "--json"), "missing", "target", [(42, 43)])


def test_a_duplicated_row(exact, verify):
    """In a file of its own: no file is registered twice."""
    exact.land([42, 43])
    said = verify(exact, "--json")
    only(said, "duplicated", "target", [(42, 44)])
    assert said.json["tables"][0]["files_registered_twice"] == []
    assert said.json["totals"]["landed"] == 97


def test_a_row_that_is_there_four_times(exact, verify):
    for _ in range(3):
        exact.land([7])
    only(verify(exact, "--json"), "duplicated", "target", [(7, 8)])


def test_a_row_of_a_record_that_is_broken(exact, verify):
    exact.land([20])
    only(verify(exact, "--json"), "duplicated", "both", [(20, 21)])


def test_a_row_of_a_record_that_never_was(empty, verify):
    empty.produce(value(at) for at in range(5))
    empty.land([0, 1, 2, 3, 4, 6])
    empty.commit({0: (0, 5)})
    said = verify(empty, "--json")
    assert said.code == 0
    assert said.json["totals"]["in_flight"] == 1
    empty.land([3], partition=7)
    said = verify(empty, "--json")
    assert said.code == 1
    assert said.json["strays"] == [{"label": empty.topic, "partition": 7, "rows": 1}]


def test_rows_of_other_topics_are_not_its_business(exact, verify):
    exact.land([1, 2, 3], topic="another")
    assert verify(exact).code == 0


def test_rows_without_coordinates_are_counted(exact, verify):
    rows = exact.rows([0]).set_column(4, "_offset", [[None]])
    exact.load().append(rows.cast(COLUMNS))
    said = verify(exact)
    assert said.code == 0
    assert says(said.out, "1 rows have no coordinates and were not judged")


def test_rows_from_before_the_coordinates_are_counted(produced, verify):
    """The columns were added to a table that had rows already, and was written by columns of another type."""
    produced.catalog.drop_table(produced.name())
    table = produced.catalog.create_table(produced.name(), pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2, 3]}))
    with table.update_schema() as change:
        change.add_column("_topic", StringType()).add_column("_kafka_partition", LongType()).add_column(
            "_offset", LongType()
        )
    wide = pa.field("_kafka_partition", pa.int64())
    rows = produced.rows(GOOD).drop_columns(["kind"])
    table.append(rows.cast(rows.schema.set(2, wide)))
    said = verify(produced)
    assert said.code == 0
    assert says(said.out, "3 rows have no coordinates and were not judged")


def test_a_table_that_is_not_there(produced, verify):
    produced.catalog.drop_table(produced.name())
    said = verify(produced, "--json")
    only(said, "missing", "target", [(0, 10), (11, 20), (22, 100)])
    assert any("no such table" in note for note in said.json["notes"])


def test_without_a_ledger_the_table_says_nothing_of_its_position(exact, verify):
    """The table as its own ledger: rows that somebody else put there left no mark."""
    exact.write_file(ledger=None)
    said = verify(exact, "--json")
    assert said.code == 0
    assert "no ledger" in said.json["notes"][0]


class TestFilesRegisteredTwice:
    def test_the_snapshots_are_named(self, exact, verify):
        first = exact.snapshots[0]
        file = next(each for each in exact.files() if each.record_count == 47)
        again = exact.register(file)
        said = verify(exact, "--json")
        only(said, "duplicated", "target", [(0, 10), (11, 20), (22, 50)])
        (twice,) = said.json["tables"][0]["files_registered_twice"]
        assert twice["path"] == file.file_path
        assert {each["snapshot"] for each in twice["snapshots"]} == {first, again}
        times = {each.snapshot_id: each.timestamp_ms for each in exact.load().snapshots()}
        for each in twice["snapshots"]:
            assert each["at"].startswith(_time(times[each["snapshot"]]))
            assert Path(urlparse(each["manifest"]).path).exists()
        assert twice["ranges"] == [{"label": exact.topic, "partition": 0, "first": 0, "end": 50, "rows": 94}]
        (partition,) = said.json["partitions"]
        assert partition["files_registered_twice"] == [file.file_path]

    def test_in_words(self, exact, verify):
        file = exact.files()[0]
        again = exact.register(file)
        said = verify(exact)
        assert said.code == 1
        assert "NOT exactly once" in said.out
        assert f"{file.file_path} is registered 2 times" in said.out
        assert f"by snapshot {again} (" in said.out
        assert "data files that hold such rows are registered more than once" in said.out

    def test_other_commits_do_not_hide_it(self, exact, verify):
        """Manifests are merged, and a row of another file is deleted; the snapshots are still the ones that did it."""
        with exact.load().transaction() as transaction:
            transaction.set_properties(
                {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
            )
        file = exact.files()[0]
        again = exact.register(file)
        exact.land([0], topic="another")
        assert len(exact.load().current_snapshot().manifests(exact.load().io)) == 1
        exact.forget("_topic == 'another'")
        (twice,) = verify(exact, "--json").json["tables"][0]["files_registered_twice"]
        assert again in [each["snapshot"] for each in twice["snapshots"]]
        assert {each["snapshot"] for each in twice["snapshots"]} & set(exact.snapshots)

    def test_a_snapshot_that_has_expired_is_still_named(self, exact, verify):
        file = exact.files()[0]
        again = exact.register(file)
        exact.land([0], topic="another")
        exact.load().maintenance.expire_snapshots().by_id(again).commit()
        (twice,) = verify(exact, "--json").json["tables"][0]["files_registered_twice"]
        assert {"snapshot": again, "at": None} in [
            {name: each[name] for name in ("snapshot", "at")} for each in twice["snapshots"]
        ]

    def test_files_that_were_added_without_field_ids(self, produced, verify):
        """As a migration would add them, twice."""
        path = produced.folder / "lake" / "plain.parquet"
        pq.write_table(produced.rows(GOOD), path)
        for _ in range(2):
            produced.load().add_files([f"file://{path}"], check_duplicate_files=False)
        said = verify(produced, "--json")
        assert said.json["totals"]["duplicated"] == 97
        (twice,) = said.json["tables"][0]["files_registered_twice"]
        assert twice["path"] == f"file://{path}"
        assert len(twice["snapshots"]) == 2


def _time(milliseconds):
    from datetime import datetime, timezone

    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


class TestSnapshots:
    def test_a_table_that_was_rolled_back(self, exact, verify):
        first, second = exact.snapshots
        exact.load().manage_snapshots().rollback_to_snapshot(first).commit()
        said = verify(exact, "--json")
        only(said, "missing", "target", [(50, 100)])
        assert any("rolled back" in note and f"snapshot {second} (" in note for note in said.json["notes"])

    def test_a_branch_is_judged_for_itself(self, exact, verify):
        exact.load().manage_snapshots().create_branch(exact.snapshots[-1], "audit").commit()
        exact.land([42], branch="audit")
        exact.write_sink(table=exact.name(), branch="audit")
        said = verify(exact, "--json")
        only(said, "duplicated", "target", [(42, 43)])
        exact.write_sink(table=exact.name())
        assert verify(exact).code == 0
        exact.write_sink(table=exact.name(), branch="nowhere")
        said = verify(exact, "--json")
        assert said.json["totals"]["missing"] == 97
        assert any("no snapshot on branch 'nowhere'" in note for note in said.json["notes"])

    def test_a_file_that_is_gone_is_named(self, exact, verify):
        file = next(each for each in exact.files() if each.record_count == 50)
        Path(urlparse(file.file_path).path).unlink()
        said = verify(exact)
        assert said.code == 3
        assert "TableUnfit" in said.err
        assert file.file_path in said.err
        assert str(exact.snapshots[1]) in said.err

    def test_a_file_that_holds_other_rows_than_the_table_says(self, exact, verify):
        file = next(each for each in exact.files() if each.record_count == 50)
        path = Path(urlparse(file.file_path).path)
        pq.write_table(pq.read_table(path).slice(0, 49), path)
        said = verify(exact)
        assert said.code == 3
        assert "it holds 49 rows, and the table's metadata say 50" in said.err


class TestFanOut:
    """`kind` says where a record goes: a, b or both; others are dead letters."""

    KINDS = ("a", "b", "both", "none")

    @pytest.fixture
    def fanned(self, kafka, new_topic, new_table, tmp_path):
        lake = AuditedLake(kafka, tmp_path, new_topic(), new_table())
        lake.write_sink(
            tables=[
                {"table": "db.a", "equals": ["a", "both"]},
                {"table": "db.b", "match": "b|both"},
            ],
            route_field="kind",
        )
        lake.produce(json.dumps({"id": at, "kind": self.KINDS[at % 4]}).encode() for at in range(40))
        for table in ("a", "b"):
            lake.make_table(table)
        lake.land([at for at in range(40) if at % 4 in (0, 2)], table="a")
        lake.land([at for at in range(40) if at % 4 in (1, 2)], table="b")
        lake.bury([at for at in range(40) if at % 4 == 3])
        lake.commit({0: (0, 40)})
        return lake

    def tables(self, said):
        return {each["table"]: each for each in said.json["tables"]}

    def test_exact(self, fanned, verify):
        said = verify(fanned, "--json")
        assert said.code == 0
        totals = said.json["totals"]
        assert totals | {"read": 40, "expected": 40, "landed": 40, "dead_lettered": 10, "filtered": 0} == totals
        assert {name: each["totals"]["landed"] for name, each in self.tables(said).items()} == {"db.a": 20, "db.b": 20}
        assert "db.a" in verify(fanned).out

    def test_each_table_is_judged_for_itself(self, fanned, verify):
        fanned.forget("_offset == 2", "a")
        fanned.land([1], table="b")
        fanned.land([4], table="b")
        said = verify(fanned, "--json")
        assert said.code == 1
        ranges = {
            name: [(run["fault"], run["where"], run["listed"]) for run in each["partitions"][0]["ranges"]]
            for name, each in self.tables(said).items()
        }
        assert ranges == {
            "db.a": [("missing", "target", [[2, 3, 1]])],
            "db.b": [("duplicated", "target", [[1, 2, 1]]), ("unexpected", "target", [[4, 5, 1]])],
        }
        assert said.json["totals"] | {"missing": 1, "duplicated": 1, "unexpected": 1} == said.json["totals"]
        assert f"db.b: {fanned.topic}[0]: 1 unexpected in the target: [4, 5)" in verify(fanned).out

    def test_missing_rows_of_one_table_are_one_run(self, fanned, verify):
        """The records between them are for another. A dead letter is everybody's."""
        fanned.forget("_offset >= 4 and _offset < 12", "a")
        (partition,) = self.tables(verify(fanned, "--json"))["db.a"]["partitions"]
        assert partition["ranges"][0]["listed"] == [[4, 7, 2], [8, 11, 2]]

    def test_a_letter_of_a_record_that_is_in_one_of_its_tables(self, fanned, verify):
        fanned.forget("_offset == 2", "a")
        fanned.bury([2], batch=2)
        said = verify(fanned, "--json")
        assert self.tables(said)["db.a"]["totals"]["missing"] == 1
        assert self.tables(said)["db.b"]["partitions"][0]["ranges"][0]["where"] == "both"

    def test_one_table_per_value(self, kafka, new_topic, new_table, tmp_path, verify):
        """A table that is not there any more, one that no record is for, and one that is somebody else's."""
        lake = AuditedLake(kafka, tmp_path, new_topic(), new_table())
        lake.write_sink(table="db.x_{kind}", create=True)
        lake.produce(json.dumps({"id": at, "kind": f"k{at % 3}"}).encode() for at in range(30))
        for at in range(3):
            lake.make_table(f"x_k{at}")
            lake.land(range(at, 30, 3), table=f"x_k{at}")
        lake.commit({0: (0, 30)})
        said = verify(lake, "--json")
        assert said.code == 0
        assert set(self.tables(said)) == {"db.x_k0", "db.x_k1", "db.x_k2"}
        lake.catalog.drop_table("db.x_k1")
        lake.make_table("x_other").append(lake.rows([0, 5]), snapshot_properties={"landonce.pipeline": lake.table})
        lake.catalog.create_table("db.x_foreign", pa.schema([("id", pa.int64())])).append(pa.table({"id": [1]}))
        said = verify(lake, "--json")
        totals = {name: each["totals"] for name, each in self.tables(said).items() if not each["exact"]}
        assert {name: (each["missing"], each["unexpected"]) for name, each in totals.items()} == {
            "db.x_k1": (10, 0),
            "db.x_other": (0, 2),
        }


class TestChanges:
    """Upserts of six keys: the row of a key is that of its last change."""

    @pytest.fixture
    def changed(self, kafka, new_topic, new_table, tmp_path):
        """Key 5 is deleted; what is left are the changes at 12 to 16 for the keys 0 to 4."""
        lake = AuditedLake(kafka, tmp_path, new_topic(), new_table())
        lake.write_sink(table=lake.name(), identity=["id"], changes={"mode": "upsert"})
        lake.make_table()
        lake.produce(json.dumps({"id": at % 6, "kind": str(at)}).encode() for at in range(17))
        lake.produce([None], keys=[json.dumps({"id": 5}).encode()])
        lake.produce([b"{broken"])
        lake.bury([18])
        lake.land(range(12, 17), ids=range(5))
        lake.commit({0: (0, 19)})
        return lake

    def keys(self, said):
        (table,) = said.json["tables"]
        return {(each["fault"], each["key"]["id"], each["offset"]) for each in table["keys"]}

    def test_exact(self, changed, verify):
        said = verify(changed, "--json")
        assert said.code == 0
        totals = said.json["totals"]
        assert totals | {"read": 19, "expected": 5, "landed": 5, "dead_lettered": 1, "stale": 0} == totals
        assert said.json["tables"][0]["totals"]["changes"] == 18

    def test_every_fault(self, changed, verify):
        """Key 0 is missing, 1 is stale, 2 is there twice, 5 was deleted, and 77 never was."""
        changed.forget("id == 0 or id == 1")
        changed.land([7, 14, 11, 3], ids=[1, 2, 5, 77])
        said = verify(changed, "--json")
        assert said.code == 1
        assert self.keys(said) == {
            ("missing", 0, 12),
            ("stale", 1, 13),
            ("duplicated", 2, 14),
            ("unexpected", 5, 11),
            ("unexpected", 77, 3),
        }
        assert found(said) == {
            ("missing", "target"): [(12, 13)],
            ("stale", "target"): [(13, 14)],
            ("duplicated", "target"): [(14, 15)],
            ("unexpected", "target"): [(3, 4), (11, 12)],
        }
        words = verify(changed).out
        assert f"key id = 1: stale (its last change is {changed.topic}[0] at 13)" in words

    def test_a_file_that_is_registered_twice(self, changed, verify):
        again = changed.register(changed.files()[0])
        said = verify(changed, "--json")
        assert said.json["totals"]["duplicated"] == 5
        (twice,) = said.json["tables"][0]["files_registered_twice"]
        assert again in [each["snapshot"] for each in twice["snapshots"]]

    def test_what_the_pipeline_did_since_is_no_fault(self, changed, verify):
        """Beyond the position: key 0 was changed, key 1 was deleted. Key 2 was changed too, but the table lost it."""
        changed.produce([json.dumps({"id": 0}).encode(), None], keys=[b"", json.dumps({"id": 1}).encode()])
        changed.forget("id < 2")
        changed.land([19], ids=[0])
        said = verify(changed, "--json")
        assert said.code == 0
        assert said.json["totals"]["in_flight"] == 1
        changed.produce([json.dumps({"id": 2}).encode()])
        changed.forget("id == 2")
        assert self.keys(verify(changed, "--json")) == {("missing", 2, 14)}

    def test_a_dead_letter_that_is_lost(self, changed, verify):
        changed.bury([])
        only(verify(changed, "--json"), "missing", "dead letters", [(18, 19)])


@pytest.fixture(scope="module")
def lake(kafka, new_topic, tmp_path_factory):
    """Records 0 to 99 in one topic, none of them broken, for any table."""
    lake = AuditedLake(kafka, tmp_path_factory.mktemp("lake"), new_topic(), "spark")
    lake.produce(json.dumps({"id": at}).encode() for at in range(RECORDS))
    lake.commit({0: (0, RECORDS)})
    assert lake.catalog.namespace_exists("db")
    return lake


@pytest.fixture(scope="module")
def spark(lake):
    folder = lake.folder / "lake"
    spec = CatalogSpec(
        "landonce", {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": f"file://{folder}"}
    )
    session = iceberg_session(spec.spark_conf())
    yield session
    session.stop()


class TestOtherWriters:
    """Tables that Spark wrote: deletes of every kind, in every file format."""

    @pytest.fixture
    def made(self, lake, spark, new_table):
        """Makes a table with all hundred rows in two files."""

        def make(partitioned="", **properties):
            lake.table = new_table()
            lake.write_file(pipeline="spark")
            listed = ", ".join(f"'{name.replace('_', '-')}' = '{value}'" for name, value in properties.items())
            spark.sql(
                f"CREATE TABLE landonce.db.{lake.table} (id BIGINT, price DECIMAL(10, 2), at TIMESTAMP, "
                "inside STRUCT<a: INT, b: ARRAY<STRING>>, _topic STRING, _kafka_partition INT, _offset BIGINT) "
                f"USING iceberg {partitioned} TBLPROPERTIES ('write.delete.mode' = 'merge-on-read', {listed})"
            )
            for first in (0, 50):
                spark.sql(
                    f"INSERT INTO landonce.db.{lake.table} SELECT id, 1.5, timestamp'2026-01-01', "
                    f"struct(1, array('x', 'y')), '{lake.topic}', 0, id FROM range({first}, {first + 50}, 1, 1)"
                )
            return f"landonce.db.{lake.table}"

        return make

    FORMATS = (
        {"format_version": "2"},
        {"format_version": "2", "write.delete.granularity": "partition"},
        {"format_version": "3"},
        {"format_version": "2", "write.format.default": "orc"},
        {"format_version": "2", "write.format.default": "avro"},
        {"format_version": "3", "write.format.default": "avro"},
    )

    @pytest.mark.parametrize("properties", FORMATS, ids=lambda properties: "-".join(properties.values()))
    def test_rows_that_were_deleted_in_place(self, lake, spark, made, verify, properties):
        table = made(**properties)
        assert verify(lake).code == 0
        spark.sql(f"DELETE FROM {table} WHERE id IN (3, 4, 60)")
        spark.sql(f"DELETE FROM {table} WHERE id = 97")
        deletes = spark.sql(f"SELECT count(*) FROM {table}.delete_files").collect()[0][0]
        assert deletes
        only(verify(lake, "--json"), "missing", "target", [(3, 5), (60, 61), (97, 98)])

    def test_a_delete_counts_for_the_first_registration_only(self, lake, spark, made, verify):
        """The file was registered again after the row was deleted, so the row is back, once."""
        table = made(format_version="2")
        spark.sql(f"DELETE FROM {table} WHERE id = 3")
        (file,) = (each for each in lake.files() if each.content == 0 and _first_offset(each) == 0)
        lake.register(file)
        only(verify(lake, "--json"), "duplicated", "target", [(0, 3), (4, 50)])

    def test_a_compacted_table_holds_the_same(self, lake, spark, made, verify):
        table = made("PARTITIONED BY (bucket(2, id))", format_version="2")
        spark.sql(f"DELETE FROM {table} WHERE id = 3")
        spark.sql(
            f"CALL landonce.system.rewrite_data_files(table => '{lake.name()}', options => map('rewrite-all', 'true'))"
        )
        only(verify(lake, "--json"), "missing", "target", [(3, 4)])

    @staticmethod
    def delete_equal(spark, table, rows, partition=""):
        """Commits equality deletes as another writer would: a file by Arrow, a commit by Iceberg's own code. `rows`: by column."""
        java = spark._jvm
        loaded = java.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, table)
        numbers = [loaded.schema().findField(name).fieldId() for name in rows]
        types = {"id": pa.int64(), "price": pa.decimal128(10, 2)}
        fields = [
            pa.field(name, types[name], metadata={"PARQUET:field_id": str(number)})
            for name, number in zip(rows, numbers, strict=True)
        ]
        path = Path(urlparse(loaded.location()).path) / "data" / f"{uuid.uuid4().hex}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(list(rows.values()), schema=pa.schema(fields)), path)
        ids = spark.sparkContext._gateway.new_array(java.int, len(numbers))
        for at, number in enumerate(numbers):
            ids[at] = number
        builder = java.org.apache.iceberg.FileMetadata.deleteFileBuilder(loaded.spec()).ofEqualityDeletes(ids)
        builder = builder.withPath(f"file://{path}").withFileSizeInBytes(path.stat().st_size)
        builder = builder.withRecordCount(len(next(iter(rows.values()))))
        if partition:
            builder = builder.withPartitionPath(partition)
        loaded.newRowDelta().addDeletes(builder.build()).commit()
        return path

    @staticmethod
    def missing(spark, table):
        """By Iceberg's own reader."""
        spark.sql(f"REFRESH TABLE {table}")
        there = {row[0] for row in spark.sql(f"SELECT _offset FROM {table}").collect()}
        return [(at, at + 1) for at in range(RECORDS) if at not in there]

    @pytest.mark.parametrize(
        ("partitioned", "properties"),
        [
            ("", {"format_version": "2"}),
            ("PARTITIONED BY (bucket(2, id))", {"format_version": "2"}),
            ("", {"format_version": "2", "write.format.default": "avro"}),
            ("", {"format_version": "3"}),
        ],
    )
    def test_equality_deletes(self, lake, spark, made, verify, partitioned, properties):
        """Each counts for rows of earlier commits, in its partition if it has one, where all of its columns are the same."""
        table = made(partitioned, **properties)
        bucket = "id_bucket=0" if partitioned else ""
        whole = {"id": [3, 60, 62, 64, 66, 1000]}
        self.delete_equal(spark, table, whole, bucket)
        pairs = {"id": [10, 12, 14, None], "price": [Decimal("1.50"), Decimal("9.50"), None, Decimal("1.50")]}
        self.delete_equal(spark, table, pairs, bucket)
        spark.sql(f"DELETE FROM {table} WHERE id = 97")
        (again, end), *left = self.missing(spark, table)
        assert (97, 98) in left
        assert 2 <= len(left) < 7
        spark.sql(
            f"INSERT INTO {table} SELECT id, 1.5, timestamp'2026-01-01', struct(1, array('x')), '{lake.topic}', 0, id "
            f"FROM range({again}, {end})"
        )
        assert self.missing(spark, table) == left, "a row of a later commit"
        only(verify(lake, "--json"), "missing", "target", left)

    def test_equality_deletes_of_a_file_that_is_gone(self, lake, spark, made, verify):
        table = made(format_version="2")
        path = self.delete_equal(spark, table, {"id": [3]})
        path.unlink()
        said = verify(lake)
        assert said.code == 3
        assert says(said.err, "its equality deletes cannot be read, because a file is missing")


def _first_offset(file):
    return int.from_bytes(file.lower_bounds[7], "little")
