"""`landonce check` for Iceberg: it says what to change, promises only what holds, and makes nothing, not even a catalog."""

from __future__ import annotations

import pytest
from operated import Operated
from pipelines import landonce
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import IntegerType, LongType, MapType, NestedField, StringType, StructType

from landonce.local.server import free_ports

pytestmark = pytest.mark.integration

ID = NestedField(1, "id", LongType(), required=True)
KIND = NestedField(2, "kind", StringType(), required=False)
COORDINATES = (
    NestedField(11, "_topic", StringType(), required=False),
    NestedField(12, "_kafka_partition", IntegerType(), required=False),
    NestedField(13, "_offset", LongType(), required=False),
)
FIT = Schema(ID, KIND, *COORDINATES)


@pytest.fixture
def check(capsys, monkeypatch):
    return lambda pipeline, *options: landonce(capsys, monkeypatch, "check", pipeline.file, *options)


@pytest.fixture
def pipeline(kafka, new_topic, tmp_path):
    made = Operated(kafka, tmp_path, new_topic(partitions=2))
    made.write_sink(table="db.t")
    made.send(range(10))
    return made


@pytest.fixture
def table(pipeline):
    """`table(schema, spec, properties)` makes `db.t`, as a person would."""
    pipeline.catalog.create_namespace("db")

    def make(schema=FIT, spec=None, properties=None):
        return pipeline.catalog.create_table(
            "db.t", schema, partition_spec=spec or PartitionSpec(), properties=properties or {}
        )

    return make


def findings(said, level=None):
    found = [each for section in said.json["sections"] for each in section["findings"]]
    return [each for each in found if level in (None, each["level"])]


def texts(said, level=None):
    return "\n".join(each["what"] for each in findings(said, level))


class TestBeforeTheFirstStart:
    def test_nothing_is_made_and_what_would_be_is_shown(self, pipeline, check):
        pipeline.write_sink(
            schema="id BIGINT NOT NULL, kind STRING, at TIMESTAMP, tags ARRAY<STRING>",
            create=True,
            partition_by=["day(at)", "bucket(4, id)"],
            identity=["id"],
            properties={"write.parquet.compression-codec": "zstd"},
        )
        before = sorted(pipeline.folder.iterdir())
        said = check(pipeline)
        assert said.code == 0, said.out
        assert sorted(pipeline.folder.iterdir()) == before, "no catalog, no table, no folder"
        assert f"none yet: the first run creates {pipeline.folder}/lake/catalog.db" in said.out
        assert "CREATE TABLE `landonce`.`db`.`t`" in said.out
        assert "`id` bigint NOT NULL" in said.out
        assert "`tags` array<string>" in said.out
        assert "`_kafka_partition` int" in said.out
        assert "PARTITIONED BY (day(at), bucket(4, id))" in said.out
        assert "'write.parquet.compression-codec' = 'zstd'" in said.out
        assert "SET IDENTIFIER FIELDS id" in said.out
        assert "at most 10 records behind the end of 2 partitions" in said.out

    def test_columns_come_from_a_sample_where_none_are_declared(self, pipeline, check):
        pipeline.write_sink(create=True)
        assert "`kind` string" in check(pipeline).out

    def test_the_promise(self, pipeline, check):
        pipeline.write_sink(create=True)
        said = check(pipeline)
        assert "guaranteed: exactly once: every record is in the table once" in said.out
        assert "rows and position are one atomic commit" in said.out
        assert "the table is its own ledger" in said.out
        assert "the table property landonce.pipe.main stays" in said.out

    def test_the_promise_of_a_fan_out(self, pipeline, check):
        pipeline.write_sink(table="db.{kind}", create=True)
        said = check(pipeline)
        assert "once in each table that it is meant for" in said.out
        assert "visible in one table after another" in said.out
        assert f"the one ledger file {pipeline.folder}/landonce.ledger" in said.out
        assert "a record goes to db.{value}, by its field kind" in said.out

    def test_a_missing_table_is_refused_without_create(self, pipeline, check):
        said = check(pipeline, "--json")
        assert said.code == 1
        (finding,) = findings(said, "refused")
        assert "no table db.t" in finding["what"]
        assert "create: true" in finding["change"]

    def test_the_sections(self, pipeline, table, check):
        table()
        names = [section["name"] for section in check(pipeline, "--json").json["sections"]]
        assert names == [
            "pipeline file",
            "Kafka",
            "catalog",
            "ledger",
            "table db.t",
            "records",
            "position",
            "Spark",
            "dead letters",
        ]


class TestTheCatalog:
    def test_one_that_is_away_hides_nothing_else_and_tells_no_secret(self, pipeline, check):
        (port,) = free_ports(1)
        uri = f"postgresql+psycopg://me:s3cret-pw@127.0.0.1:{port}/lake"
        pipeline.write_sink(catalog={"type": "sql", "uri": uri, "warehouse": "file:///nowhere"})
        said = check(pipeline, "--json")
        assert said.code == 1
        assert "the catalog landonce did not answer" in texts(said, "refused")
        assert "has 2 partitions" in texts(said)
        assert "s3cret-pw" not in said.out + said.err

    def test_one_that_answers_is_named(self, pipeline, table, check):
        table()
        assert f"sqlite:///{pipeline.folder}/lake/catalog.db" in texts(check(pipeline, "--json"))


class TestTheTable:
    def test_one_that_is_fit(self, pipeline, table, check):
        table()
        said = check(pipeline, "--json")
        assert said.code == 0, said.out
        assert "format version 2, 5 columns, partitioned by nothing" in texts(said)
        assert "with Arrow: the fast path" in texts(said)
        assert "decoded to id (required), kind" in texts(said)
        assert "says nothing of this pipeline yet" in texts(said)

    def test_without_coordinates_it_is_refused_until_the_columns_are_added(self, pipeline, table, check):
        held = table(Schema(ID, KIND))
        said = check(pipeline, "--json")
        assert said.code == 1
        (finding,) = findings(said, "refused")
        assert (
            "ALTER TABLE `landonce`.`db`.`t` ADD COLUMNS (_topic string, _kafka_partition int, _offset bigint)"
            in finding["change"]
        )
        with held.update_schema() as change:
            for name, kind in (("_topic", StringType()), ("_kafka_partition", IntegerType()), ("_offset", LongType())):
                change.add_column(name, kind)
        assert check(pipeline).code == 0, "what it says is what to do"

    def test_a_coordinate_of_another_type_is_refused(self, pipeline, table, check):
        table(Schema(ID, COORDINATES[0], COORDINATES[1], NestedField(13, "_offset", StringType())))
        assert "_offset is string" in texts(check(pipeline, "--json"), "refused")

    def test_another_partition_spec_is_refused(self, pipeline, table, check):
        table(spec=PartitionSpec(PartitionField(1, 1000, BucketTransform(8), "id_bucket")))
        pipeline.write_sink(partition_by=["bucket(16, id)"])
        said = check(pipeline, "--json")
        assert said.code == 1
        (finding,) = findings(said, "refused")
        assert "bucket(8, id)" in finding["what"]
        assert "partition_by" in finding["change"]
        pipeline.write_sink(partition_by=["bucket(8, id)"])
        assert check(pipeline).code == 0

    def test_columns_that_cannot_be_filled_are_refused_by_name(self, pipeline, table, check):
        counts = NestedField(
            3,
            "counts",
            MapType(20, StructType(NestedField(22, "x", LongType(), required=True)), 21, LongType()),
            required=True,
        )
        table(Schema(ID, counts, *COORDINATES))
        said = check(pipeline, "--json")
        assert said.code == 1
        assert "counts" in texts(said, "refused")

    def test_a_name_that_spark_cannot_read_is_reported(self, pipeline, table, check):
        table(Schema(ID, NestedField(3, "_partition", IntegerType()), *COORDINATES))
        said = check(pipeline, "--json")
        assert said.code == 0
        assert "_partition is a name that Iceberg's readers keep" in texts(said, "warning")
        pipeline.write_sink(changes={"mode": "upsert"}, identity=["id"])
        assert "_partition is a name" in texts(check(pipeline, "--json"), "refused")

    def test_why_spark_writes_is_reported(self, pipeline, table, check):
        table(properties={"write.format.default": "orc"})
        assert "Spark's own writer makes its files, since its files are orc" in texts(check(pipeline, "--json"))

    def test_a_branch(self, pipeline, table, check):
        table()
        pipeline.write_sink(branch="audit")
        assert "branch audit is made by the first start" in texts(check(pipeline, "--json"))

    def test_snapshots_that_expire_soon_are_reported_and_harmless(self, pipeline, table, check):
        table(properties={"history.expire.max-snapshot-age-ms": "3600000"})
        said = check(pipeline, "--json")
        assert said.code == 0
        assert "expired after 1.0 h" in texts(said, "warning")

    def test_rows_of_the_topic_without_a_mark_are_refused(self, pipeline, table, check):
        held = table()
        rows = {"id": [1], "kind": ["a"], "_topic": [pipeline.topic], "_kafka_partition": [0], "_offset": [0]}
        held.append(held.schema().as_arrow().empty_table().from_pydict(rows, held.schema().as_arrow()))
        said = check(pipeline, "--json")
        assert said.code == 1
        assert "but no position of this pipeline" in texts(said, "refused")


class TestChanges:
    @pytest.fixture
    def upserts(self, pipeline):
        pipeline.write_sink(changes={"mode": "upsert"}, identity=["id"])
        return pipeline

    def test_copy_on_write_is_reported_with_the_statement_to_run(self, upserts, table, check):
        table()
        said = check(upserts, "--json")
        assert said.code == 0
        (finding,) = findings(said, "warning")
        assert "copy-on-write" in finding["what"]
        assert "SET TBLPROPERTIES ('write.merge.mode' = 'merge-on-read')" in finding["change"]

    def test_merge_on_read_is_fine(self, upserts, table, check):
        table(properties={"write.merge.mode": "merge-on-read"})
        said = check(upserts)
        assert said.code == 0
        assert "warning" not in said.out
        assert "Spark merges changes into it by id" in said.out
        assert "guaranteed: exactly once: every change is applied in the table once" in said.out

    def test_an_identity_that_the_table_lacks_is_refused(self, upserts, table, check):
        table()
        upserts.write_sink(identity=["number"])
        said = check(upserts, "--json")
        assert said.code == 1
        assert "has no column number" in texts(said, "refused")

    def test_an_identity_that_may_be_null_is_reported(self, upserts, table, check):
        table(Schema(NestedField(1, "id", LongType(), required=False), *COORDINATES))
        assert "may be null in the table" in texts(check(upserts, "--json"), "warning")
