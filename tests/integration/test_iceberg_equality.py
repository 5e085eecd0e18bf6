"""`write: equality` against a dict that replays the same changes. Spark reads the tables: Iceberg's Java code applies the deletes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jvms import iceberg_session
from pipelines import Said, landonce
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from pyspark.sql import SparkSession
from small_lakes import SmallLake, by_spark, reading

from landonce.errors import TableUnfit
from landonce.local import LocalKafka
from landonce.sinks.iceberg import deletes, driver, spark
from landonce.sinks.iceberg.catalog import CatalogSpec

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SCHEMA = "id BIGINT, city STRING, n BIGINT"
BLOCKS = {"interval": "0s", "max_rows": 100, "block_rows": 20}
"""Several blocks of each partition in a batch, so that one key is in many of them."""
Row = tuple[str | None, int | None]


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    session = iceberg_session({})
    yield session
    session.stop()


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    return lambda lake, command, *options: landonce(capsys, monkeypatch, *command.split(), lake.file, *options)


def _fields(operation: str, row: Row) -> dict[str, Any]:
    return {} if operation == "d" else {"city": row[0], "n": row[1]}


class Changing(SmallLake):
    """A pipeline whose records change rows, and the dict that they are replayed in."""

    def __init__(self, kafka: LocalKafka, folder: Path, topic: str) -> None:
        super().__init__(kafka, folder, topic, schema=SCHEMA)
        self.wanted: dict[int, Row] = {}
        self.random = random.Random(11)
        self.number = 0

    def write(self, **iceberg: Any) -> None:
        sink = {
            "table": "db.t",
            "create": True,
            "identity": "id",
            "changes": {"mode": "operation"},
            "write": "equality",
        }
        self.write_file({name: each for name, each in (sink | iceberg).items() if each is not None}, batch=BLOCKS)

    def send(self, *changes: tuple[str, int, Row]) -> None:
        """Each in the partition of its key."""
        for number in (0, 1):
            mine = [each for each in changes if each[1] % 2 == number]
            self.produce([{"op": op, "id": key} | _fields(op, row) for op, key, row in mine], number)
        for operation, key, row in changes:
            if operation == "d":
                self.wanted.pop(key, None)
            else:
                self.wanted[key] = row

    def change(self, count: int, keys: int = 40) -> None:
        """Rows come, move between cities and go, the same few keys again and again."""
        self.number += count
        made: list[tuple[str, int, Row]] = []
        there = set(self.wanted)
        for n in range(self.number - count, self.number):
            key = self.random.randrange(keys)
            if key in there and self.random.random() < 0.3:
                there.discard(key)
                made.append(("d", key, (None, None)))
            else:
                made.append(("u" if key in there else "c", key, (self.random.choice(["Rome", "Oslo", None]), n)))
                there.add(key)
        self.send(*made)

    def held(self, session: SparkSession) -> dict[int, Row]:
        rows = by_spark(session, self)
        assert len({row["id"] for row in rows}) == len(rows), "a key is there twice"
        return {row["id"]: (row["city"], row["n"]) for row in rows}

    def files(self, content: DataFileContent) -> list[DataFile]:
        """The live ones of a kind."""
        table = self.table("db.t")
        return [
            entry.data_file
            for manifest in table.current_snapshot().manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io)
            if entry.data_file.content == content
        ]

    def position(self) -> list[str]:
        """Where it is now, for `state seek`."""
        (partitions,) = json.loads(self.table("db.t").current_snapshot().summary["landonce.position"]).values()
        return [word for at, (_, end) in partitions.items() for word in ("--to-offset", f"{self.topic}:{at}:{end}")]

    @property
    def deletes(self) -> list[DataFile]:
        return self.files(DataFileContent.EQUALITY_DELETES)

    def operations(self) -> list[str]:
        """What the snapshots with a batch did, oldest first."""
        summaries = [each.summary for each in self.table("db.t").snapshots() if each.summary is not None]
        return [each.operation.value for each in summaries if each["landonce.batch"] != "0"]


@pytest.fixture
def lake(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> Changing:
    return Changing(kafka, tmp_path, new_topic(partitions=2))


def exact(said: Said) -> None:
    assert said.code == 0, said
    assert "exactly once" in said.out


@pytest.mark.parametrize(
    ("by", "scoped"),
    [
        ([], False),
        (["bucket(3, id)"], True),
        pytest.param(["city"], False, marks=pytest.mark.long),
        pytest.param(["bucket(2, id)", "city"], False, marks=pytest.mark.long),
    ],
    ids=["unpartitioned", "by-key", "moving", "both"],
)
def test_the_table_is_the_dict(
    lake: Changing, session: SparkSession, call: Callable[..., Said], by: list[str], scoped: bool
) -> None:
    """Deletes are written into partitions only if the key decides the partition: rows move between cities."""
    lake.write(partition_by=by)
    for count in (250, 3, 150):
        lake.change(count)
        lake.run()
        assert lake.held(session) == lake.wanted
    exact(call(lake, "verify", "--values"))
    assert lake.deletes
    assert all(bool(len(each.partition)) == scoped for each in lake.deletes)
    assert lake.files(DataFileContent.POSITION_DELETES), "keys changed in several blocks of a batch"
    assert lake.table("db.t").schema().identifier_field_names() == {"id"}


@pytest.mark.parametrize("bug", ["blocks are not compared", "the first change wins", "deletes of one spec only"])
def test_planted_bugs_are_seen(
    lake: Changing, session: SparkSession, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Said], bug: str
) -> None:
    """The control: without each of these rules, the table is not the dict, and `verify` says so."""
    if bug == "blocks are not compared":
        monkeypatch.setattr(driver, "between_blocks", lambda *_: ())
    elif bug == "the first change wins":
        order = deletes._order
        monkeypatch.setattr(deletes, "_order", lambda rows: order(rows)[::-1])
    else:
        for module in (deletes, driver):
            monkeypatch.setattr(module, "whole_table", lambda *_: False)
    lake.write(partition_by=["bucket(3, id)"])
    lake.change(150)
    lake.run()
    change_spec(lake)
    lake.change(150)
    lake.run()
    found = sorted((row["id"], row["city"] or "", row["n"]) for row in by_spark(session, lake))
    assert found != sorted((key, city or "", n) for key, (city, n) in lake.wanted.items())
    said = call(lake, "verify")
    assert said.code == 1, said


def change_spec(lake: Changing) -> None:
    with lake.table("db.t").update_spec() as change:
        change.add_identity("id")
    lake.write(create=None)


def test_inserts_are_appended_if_the_file_says_so(
    lake: Changing, session: SparkSession, call: Callable[..., Said]
) -> None:
    lake.write(inserts="append")
    lake.send(*(("c", key, ("Rome", key)) for key in range(50)))
    lake.run()
    assert lake.held(session) == lake.wanted
    assert not lake.deletes
    assert set(lake.operations()) == {"append"}, "nothing for readers to compare"
    lake.send(("c", 90, ("Oslo", 1)), ("u", 90, ("Bern", 2)), ("c", 92, ("Oslo", 3)), ("d", 92, (None, None)))
    lake.send(("d", 4, (None, None)), ("c", 4, ("Bern", 5)), ("u", 6, ("Bern", 6)))
    lake.run()
    assert lake.held(session) == lake.wanted
    exact(call(lake, "verify", "--values"))
    lake.send(("c", 7, ("Bern", 7)))  # the stream lied: the row is there
    lake.run()
    assert len([row for row in by_spark(session, lake) if row["id"] == 7]) == 2
    assert call(lake, "verify").code == 1


def test_the_tables_own_identifier_fields_are_the_key(
    lake: Changing, session: SparkSession, call: Callable[..., Said]
) -> None:
    lake.write()
    lake.change(60)
    lake.run()
    for write in ("merge", "equality"):
        lake.write(identity=None, create=None, write=write)
        said = call(lake, "check")
        assert said.code == 0, said
        assert "by id, the table's own identifier fields" in said.out
        assert "a row is id" in said.out
        lake.change(60)
        lake.run()
        assert lake.held(session) == lake.wanted
        exact(call(lake, "verify", "--values"))


def test_a_partition_spec_that_changes(lake: Changing, session: SparkSession, call: Callable[..., Said]) -> None:
    """Rows are in partitions of the former spec, which deletes in partitions of the new one would not reach."""
    lake.write(partition_by=["bucket(3, id)"])
    lake.change(100)
    lake.run()
    assert all(len(each.partition) for each in lake.deletes)
    change_spec(lake)
    lake.change(100)
    lake.run()
    assert lake.held(session) == lake.wanted
    assert any(not len(each.partition) for each in lake.deletes)
    exact(call(lake, "verify"))


def test_a_lost_position_is_found_beside_equality_deletes(lake: Changing, call: Callable[..., Said]) -> None:
    """PyIceberg does not read such a table, so landonce reads the rows itself."""
    lake.write()
    lake.change(60)
    lake.run()
    other = lake.file.read_text().replace("pipeline: pipe", "pipeline: another")
    lake.file.write_text(other)
    said = call(lake, "run", "--once")
    assert said.code == 3
    assert "holds records of these topics" in said.err


# ------------------------------------------------------------------------------------------------------ refusals

TABLE = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "city", StringType()),
    NestedField(3, "n", LongType()),
    NestedField(4, "_topic", StringType()),
    NestedField(5, "_kafka_partition", IntegerType()),
    NestedField(6, "_offset", LongType()),
    identifier_field_ids=[1],
)


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"format-version": "1"}, "its format version is 1, and they need version 2"),
        ({"write.format.default": "orc"}, "its files are orc"),
    ],
)
def test_tables_that_cannot_hold_them_are_refused(
    lake: Changing, call: Callable[..., Said], properties: dict[str, str], said: str
) -> None:
    lake.catalog.create_namespace_if_not_exists("db")
    lake.catalog.create_table("db.t", TABLE, properties=properties)
    lake.write(create=None)
    lake.change(5)
    found = call(lake, "check")
    assert found.code == 1
    assert said in found.out
    with pytest.raises(TableUnfit, match=said):
        lake.run()
    lake.write(create=None, write="merge")
    assert said not in call(lake, "check").out


def test_a_table_without_identifier_fields_needs_identity(lake: Changing, call: Callable[..., Said]) -> None:
    lake.catalog.create_namespace_if_not_exists("db")
    lake.catalog.create_table("db.t", Schema(*TABLE.fields))
    lake.change(5)
    for write in ("merge", "equality"):
        lake.write(create=None, identity=None, write=write)
        found = call(lake, "check")
        assert found.code == 1
        assert "the table has no identifier fields" in found.out
        with pytest.raises(TableUnfit, match="no identifier fields"):
            lake.run()


def test_what_readers_pay_is_said(lake: Changing, call: Callable[..., Said]) -> None:
    lake.write()
    lake.change(5)
    lake.run()
    said = call(lake, "check")
    assert said.code == 0
    assert "workers write changes into it by id" in said.out
    assert "landonce maintain" in said.out


# ------------------------------------------------------------------------------------------------- maintenance


@pytest.mark.parametrize(
    "by",
    [[], pytest.param(["bucket(3, id)"], marks=pytest.mark.long), ["city"]],
    ids=["unpartitioned", "by-key", "moving"],
)
def test_maintenance_applies_the_deletes(
    lake: Changing, session: SparkSession, call: Callable[..., Said], by: list[str]
) -> None:
    """Afterwards PyIceberg reads the table, too. Going back to before it, the deletes are there again."""
    lake.write(partition_by=by)
    lake.change(150)
    lake.run()
    first, there = dict(lake.wanted), lake.position()
    lake.change(150)
    lake.run()
    for count in (20, 0):
        said = call(lake, "maintain")
        assert said.code == 0, said
        assert lake.held(session) == lake.wanted
        assert not lake.deletes
        assert {row["id"]: (row["city"], row["n"]) for row in lake.rows("db.t")} == lake.wanted
        exact(call(lake, "verify", "--values"))
        lake.change(count)
        lake.run()
        assert lake.held(session) == lake.wanted
    if not by:
        said = call(lake, "state seek", *there, "--remove-rows", "--yes")
        assert said.code == 0, said
        assert lake.held(session) == first
        exact(call(lake, "verify"))
        lake.run()
        assert lake.held(session) == lake.wanted
        exact(call(lake, "verify", "--values"))


def test_a_compaction_beside_a_batch_brings_no_row_back(lake: Changing, session: SparkSession) -> None:
    """Spark's own procedure reads the rows before the batch deletes some of them, and commits after it: the deletes reach its files."""
    lake.write()
    lake.change(100)
    lake.run()
    java, folder = reading(session, lake), lake.folder / "lake"
    spec = CatalogSpec("landonce", {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"})
    java.sql("CREATE TABLE landonce.db.copy USING iceberg AS SELECT * FROM landonce.db.t")
    loaded, copy = (spark.load(java, spec, name) for name in ("db.t", "db.copy"))
    began = loaded.currentSnapshot()
    old = session._jvm.java.util.HashSet()
    new = session._jvm.java.util.HashSet()
    for table, files in ((loaded, old), (copy, new)):
        tasks = table.newScan().planFiles().iterator()
        while tasks.hasNext():
            files.add(tasks.next().file())
    lake.change(100)
    lake.run()
    loaded.refresh()
    rewrite = loaded.newRewrite().validateFromSnapshot(began.snapshotId())
    rewrite.rewriteFiles(old, new, began.sequenceNumber()).commit()
    assert lake.held(session) == lake.wanted


@pytest.mark.parametrize("by", ["landonce", "Spark"])
def test_the_compaction_of_one_partition_leaves_deletes_that_still_count(
    lake: Changing, session: SparkSession, call: Callable[..., Said], by: str
) -> None:
    """The control is Spark's own way to remove dangling deletes: it takes those of the whole table for dangling."""
    lake.write(partition_by=["city"])
    for _ in range(2):
        lake.change(100)
        lake.run()
    where = 'city = "Rome"'
    if by == "landonce":
        said = call(lake, "maintain", "--where", where)
        assert said.code == 0, said
        assert lake.held(session) == lake.wanted
        exact(call(lake, "verify"))
    else:
        options = "'rewrite-all', 'true', 'remove-dangling-deletes', 'true'"
        reading(session, lake).sql(
            f"CALL landonce.system.rewrite_data_files(table => 'db.t', where => '{where}', options => map({options}))"
        )
        assert len(by_spark(session, lake)) > len(lake.wanted), "rows are back"
        assert call(lake, "verify").code == 1
