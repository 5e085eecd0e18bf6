"""Spark's own writer against a dict that replays the same changes; what it stages lands on one head only, or not at all."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_servers import LocalRestCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
)
from pyiceberg.types import LongType, NestedField, StringType, TimeType, UUIDType
from pyspark.sql import Row, SparkSession

from landonce.config.model import Spark
from landonce.engine.spark.session import open_session
from landonce.errors import TableReplaced, TableUnfit, TargetUnavailable, Unbalanced
from landonce.jars import spark_jars
from landonce.read.changes import ChangeDecoder, Changes
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.iceberg import spark as java
from landonce.sinks.iceberg.catalog import CatalogSpec
from landonce.sinks.iceberg.commit import TableBranch
from landonce.sinks.iceberg.files import plain
from landonce.sinks.iceberg.spark import Append, Merge, StageOf, drop_stage, stage

pytestmark = pytest.mark.integration

MERGE_ON_READ = (
    "'write.merge.mode'='merge-on-read','write.update.mode'='merge-on-read','write.delete.mode'='merge-on-read'"
)
COORDINATES = "_topic string, _kafka_partition int, _offset bigint"


@dataclass
class Lake:
    """A catalog in SQLite, as Spark and as PyIceberg know it."""

    spark: SparkSession
    spec: CatalogSpec
    folder: Path
    catalog: Any
    offset: int = 0
    names: Iterator[int] = field(default_factory=lambda: iter(range(1_000)))

    def table(self, columns: str, version: int = 2, partitions: str = "", properties: str = MERGE_ON_READ) -> str:
        name = f"db.t{next(self.names)}"
        by = f"PARTITIONED BY ({partitions})" if partitions else ""
        self.spark.sql(
            f"CREATE TABLE lake.{name} ({columns}) USING iceberg {by} TBLPROPERTIES ('format-version'='{version}', {properties})"
        )
        return name

    def head(self, name: str, branch: str = "main") -> int | None:
        """By PyIceberg."""
        ref = self.catalog.load_table(name).metadata.refs.get(branch)
        return ref.snapshot_id if ref else None

    def file(self, rows: pa.Table) -> str:
        """As a worker leaves rows for Spark."""
        path = self.folder / f"{uuid.uuid4().hex}.parquet"
        pq.write_table(plain(rows), path, compression="lz4")
        return f"file://{path}" if random.random() < 0.5 else str(path)

    def numbered(self, rows: pa.Table, partition: int = 0, topic: str = "topic") -> pa.Table:
        count = rows.num_rows
        first, self.offset = self.offset, self.offset + count
        for column, array in (
            ("_topic", pa.array([topic] * count, pa.string()).dictionary_encode()),
            ("_kafka_partition", pa.array([partition] * count, pa.int32())),
            ("_offset", pa.array(range(first, first + count), pa.int64())),
        ):
            rows = rows.append_column(column, array)
        return rows

    def stage(
        self, name: str, base: int | None, files: list[str], how: Append | Merge, **summary: str
    ) -> tuple[str, int]:
        branch = StageOf("pipe", 1, 1).new_name()
        return branch, stage(self.spark, self.spec, name, branch, base, files, how, summary)

    def publish(self, name: str, base: int | None, branch: str, snapshot: int) -> None:
        """One compare-and-set. By PyIceberg where it can, which is anything but format version 3."""
        table = self.catalog.load_table(name)
        requirements = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertRefSnapshotId(ref="main", snapshot_id=base),
        )
        updates = (
            SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot),
            RemoveSnapshotRefUpdate(ref_name=branch),
        )
        if table.metadata.format_version < 3:
            self.catalog.commit_table(table, requirements, updates)
        else:
            java.commit(self.spark, self.spec, name, requirements, updates)

    def land(self, name: str, files: list[str], how: Append | Merge, **summary: str) -> int:
        base = self.head(name)
        branch, snapshot = self.stage(name, base, files, how, **summary)
        self.publish(name, base, branch, snapshot)
        return snapshot

    def rows(self, name: str) -> list[Row]:
        return self.spark.sql(f"SELECT * FROM lake.{name}").collect()

    def files(self, name: str, kind: str = "files") -> list[Row]:
        return self.spark.sql(f"SELECT * FROM lake.{name}.{kind}").collect()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    home = tmp_path_factory.mktemp("lake")
    folder = tmp_path_factory.mktemp("staged") / "a [b] {c} *%20 d"
    folder.mkdir()
    spec = CatalogSpec(
        "lake", {"type": "sql", "uri": f"sqlite:///{home / 'catalog.db'}", "warehouse": (home / "warehouse").as_uri()}
    )
    catalog = spec.open()
    catalog.create_namespace("db")
    extra = {**spec.spark_conf(), "spark.jars": ",".join(map(str, spark_jars()))}
    session = open_session("test", Spark(master="local[2]"), expressions=False, extra=extra)
    try:
        yield Lake(session, spec, folder, catalog)
    finally:
        session.stop()


# --------------------------------------------------------------------------------------------- against a dict

FIELDS = (
    Field("id", pa.int64()),
    Field("region", pa.string()),
    Field("name", pa.string(), required=True),
    Field("amount", pa.decimal128(10, 2)),
    Field("at", pa.timestamp("us", "UTC")),
    Field("day", pa.date32()),
    Field("tags", pa.list_(pa.string())),
    Field("tree", pa.struct([("x", pa.int32()), ("y", pa.string())])),
)
COLUMNS = (
    "id bigint NOT NULL, region string, name string NOT NULL, amount decimal(10,2), at timestamp, day date, "
    f"tags array<string>, tree struct<y: string, x: int>, {COORDINATES}"
)
MERGE = Merge(("id",), (*(each.name for each in FIELDS), "_topic", "_kafka_partition", "_offset"))


def random_change(chance: random.Random) -> tuple[bytes | None, bytes]:
    """A record and its key: mostly the same few rows, now here, now there, now in no region at all."""
    identity = chance.randrange(30)
    key = json.dumps({"id": identity}).encode()
    fate = chance.random()
    if fate < 0.1:
        return None, key
    if fate < 0.25:
        return json.dumps({"id": identity, "op": "d"}).encode(), key
    row = {
        "op": chance.choice("cu"),
        "id": identity,
        "region": chance.choice(["north", "south", "ö st", None]),
        "name": f"name {chance.random()}",
        "amount": chance.choice(["1.25", "-99999999.99", None]),
        "at": chance.choice(["2024-05-06T07:08:09.123456Z", "1500-01-01T00:00:00Z", None]),
        "day": chance.choice(["1400-02-28", None]),
        "tags": chance.choice([["x", None], [], None]),
        "tree": chance.choice([{"x": 1, "y": "z"}, {"y": None}, None]),
    }
    return json.dumps(
        {name: value for name, value in row.items() if chance.random() > 0.1 or name in ("id", "op", "name")}
    ).encode(), key


def replay(oracle: dict[int, dict[str, Any]], changes: list[tuple[bytes | None, bytes]], first: int) -> None:
    for offset, (value, key) in enumerate(changes, first):
        record = {"id": json.loads(key)["id"], "op": "d"} if value is None else json.loads(value)
        if record["op"] == "d":
            oracle.pop(record["id"], None)
        else:
            oracle[record["id"]] = {**record, "_offset": offset}


def wanted(oracle: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """What the table must hold, as plain values."""
    rows = []
    for identity in sorted(oracle):
        record = oracle[identity]
        tree = record.get("tree")
        rows.append(
            {
                "id": identity,
                "region": record.get("region"),
                "name": record["name"],
                "amount": None if record.get("amount") is None else Decimal(record["amount"]),
                "at": None if record.get("at") is None else datetime.fromisoformat(record["at"].replace("Z", "+00:00")),
                "day": None if record.get("day") is None else date.fromisoformat(record["day"]),
                "tags": record.get("tags"),
                "tree": None if tree is None else {"y": tree.get("y"), "x": tree.get("x")},
                "_topic": "topic",
                "_kafka_partition": 0,
                "_offset": record["_offset"],
            }
        )
    return rows


def held(lake: Lake, name: str, spark: bool) -> list[dict[str, Any]]:
    """What the table holds: read by PyIceberg, or by Spark where PyIceberg cannot."""
    if not spark:
        rows = lake.catalog.load_table(name).scan().to_arrow().to_pylist()
    else:
        rows = [row.asDict(recursive=True) for row in lake.rows(name)]
        for row in rows:
            row["at"] = row["at"] and row["at"].replace(tzinfo=timezone.utc)
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.parametrize(
    ("version", "partitions", "properties"),
    [
        (2, "region, bucket(3, id)", MERGE_ON_READ),
        pytest.param(2, "region", "'write.merge.mode'='copy-on-write'", marks=pytest.mark.long),
        pytest.param(2, "", f"{MERGE_ON_READ}, 'write.format.default'='orc'", marks=pytest.mark.long),
        (3, "region, bucket(3, id)", MERGE_ON_READ),
        pytest.param(3, "", f"{MERGE_ON_READ}, 'write.format.default'='avro'", marks=pytest.mark.long),
    ],
)
def test_a_table_is_what_the_changes_make_it(lake: Lake, version: int, partitions: str, properties: str) -> None:
    chance = random.Random(f"{version} {partitions} {properties}")
    name = lake.table(COLUMNS, version, partitions, properties)
    decoder = ChangeDecoder(Schema(FIELDS), ("id",), Changes("operation"))
    oracle: dict[int, dict[str, Any]] = {}
    for batch in range(3):
        changes = [random_change(chance) for _ in range([60, 3, 60][batch])]
        decoded = decoder.decode(pa.array([value for value, _ in changes], pa.binary()), [key for _, key in changes])
        assert not decoded.rejects
        replay(oracle, changes, lake.offset)
        rows = lake.numbered(decoded.table)
        cut = len(changes) // 2
        base = lake.head(name)
        snapshot = lake.land(name, [lake.file(rows[cut:]), lake.file(rows[:cut])], MERGE, batch=str(batch))
        assert held(lake, name, version == 3 or "orc" in properties) == wanted(oracle)
        metadata = lake.catalog.load_table(name).metadata
        landed = metadata.snapshot_by_id(snapshot)
        assert landed.summary["batch"] == str(batch)
        assert base is None or landed.parent_snapshot_id == base
        assert set(metadata.refs) == {"main"}
    deletes = {(row["content"], row["file_format"]) for row in lake.files(name, "all_delete_files")}
    if "copy-on-write" in properties:
        assert deletes == set()
    else:
        assert deletes == {(1, "PUFFIN" if version == 3 else "ORC" if "orc" in properties else "PARQUET")}


def changes(*rows: tuple[str, int, str | None]) -> pa.Table:
    schema = pa.schema([("_op", pa.string()), ("id", pa.int64()), ("name", pa.string())])
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


SMALL = f"id bigint, name string, {COORDINATES}"
PLAIN = "id bigint, name string"
BY_ID = Merge(("id",), ("id", "name"))


def by_id(lake: Lake, name: str) -> dict[Any, Any]:
    rows = lake.rows(name)
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["name"] for row in rows}


def test_the_last_change_counts_in_the_order_of_the_topic(lake: Lake) -> None:
    name = lake.table(PLAIN)
    later = lake.numbered(changes(("U", 1, "first"), ("U", 2, "first"), ("D", 3, None)))
    last = lake.numbered(changes(("U", 1, "last"), ("D", 2, None), ("U", 3, "last")))
    lake.land(name, [lake.file(last), lake.file(later)], BY_ID)
    assert by_id(lake, name) == {1: "last", 3: "last"}


def test_a_missing_column_is_null_and_a_strange_one_is_left_alone(lake: Lake) -> None:
    """`name` is the pipeline's and the change does not hold it; `note` is somebody else's."""
    name = lake.table(f"{PLAIN}, note string")
    lake.spark.sql(f"INSERT INTO lake.{name} VALUES (1, 'a', 'kept'), (2, 'b', 'kept')")
    rows = lake.numbered(changes(("U", 1, "x"), ("I", 3, "x"))).drop_columns(["name"])
    lake.land(name, [lake.file(rows)], BY_ID)
    assert sorted(map(tuple, lake.rows(name))) == [(1, None, "kept"), (2, "b", "kept"), (3, None, None)]


def test_only_files_that_may_hold_the_keys_are_read(lake: Lake) -> None:
    """A file that is not there any more cannot be read: the batch lands all the same if its keys are elsewhere."""
    name = lake.table(PLAIN)
    for first in (0, 1_000):
        rows = changes(*(("I", identity, "a") for identity in range(first, first + 5)))
        lake.land(name, [lake.file(lake.numbered(rows))], BY_ID)
    (far,) = (row["file_path"] for row in lake.files(name) if row["readable_metrics"]["id"]["lower_bound"] == 1_000)
    away = Path(far.removeprefix("file:").replace("//", "/"))
    hidden = away.rename(away.with_suffix(".hidden"))
    lake.land(name, [lake.file(lake.numbered(changes(("U", 2, "b"), ("D", 3, None), ("I", 5, "b"))))], BY_ID)
    with pytest.raises(TargetUnavailable):
        lake.land(name, [lake.file(lake.numbered(changes(("U", 2, "b"), ("U", 1_001, "b"))))], BY_ID)
    hidden.rename(away)
    assert {key: row for key, row in by_id(lake, name).items() if key < 1_000} == {
        0: "a",
        1: "a",
        2: "b",
        4: "a",
        5: "b",
    }


def test_null_is_an_identity_like_any_other(lake: Lake) -> None:
    name = lake.table(PLAIN)
    how = Merge(("id", "name"), ("id", "name"))
    rows = pa.table({"_op": ["U", "U", "U"], "id": pa.array([1, None, None], pa.int64()), "name": ["a", None, None]})
    for _ in range(2):
        lake.land(name, [lake.file(lake.numbered(rows))], how)
    assert sorted(map(str, map(tuple, lake.rows(name)))) == ["(1, 'a')", "(None, None)"]


# --------------------------------------------------------------------------------------------------- appends

KINDS = pa.schema(
    [
        ("id", pa.int64()),
        ("flag", pa.bool_()),
        ("small", pa.int32()),
        ("ratio", pa.float32()),
        ("exact", pa.float64()),
        ("money", pa.decimal128(38, 10)),
        ("bare", pa.timestamp("us")),
        ("zoned", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("tree", pa.struct([("b", pa.list_(pa.int32())), ("a", pa.string())])),
    ]
)
KIND_COLUMNS = (
    "id bigint NOT NULL, flag boolean, small int, ratio float, exact double, money decimal(38,10), bare timestamp_ntz, "
    "zoned timestamp, day date, raw binary, counts map<string, bigint>, tree struct<a: string, b: array<int>>, added string, "
    f"{COORDINATES}"
)


def kinds(chance: random.Random, count: int) -> list[dict[str, Any]]:
    moment = datetime(1583, 10, 15, 1, 2, 3, 456789)
    return [
        {
            "id": identity,
            "flag": chance.choice([True, False, None]),
            "small": chance.choice([-(2**31), None]),
            "ratio": chance.choice([0.5, None]),
            "exact": chance.choice([0.1, None]),
            "money": chance.choice([Decimal("1234567890123456789012345678.0123456789"), None]),
            "bare": chance.choice([moment, None]),
            "zoned": chance.choice([moment.replace(tzinfo=timezone.utc), None]),
            "day": chance.choice([date(1, 1, 1), date(9999, 12, 31), None]),
            "raw": chance.choice([b"\x00\xff", None]),
            "counts": chance.choice([[("k", 1)], [], None]),
            "tree": chance.choice([{"b": [1, None], "a": "x"}, None]),
        }
        for identity in chance.sample(range(count), count)
    ]


@pytest.mark.parametrize(
    ("version", "kind", "order"),
    [
        (2, "parquet", "id DESC"),
        (2, "orc", ""),
        (2, "avro", ""),
        pytest.param(3, "parquet", "", marks=pytest.mark.long),
        pytest.param(3, "orc", "small, id", marks=pytest.mark.long),
    ],
)
def test_rows_are_appended_as_the_table_wants_them(lake: Lake, version: int, kind: str, order: str) -> None:
    name = lake.table(KIND_COLUMNS, version, "bucket(2, id)", f"'write.format.default'='{kind}'")
    if order:
        lake.spark.sql(f"ALTER TABLE lake.{name} WRITE ORDERED BY {order}")
    rows = kinds(random.Random(kind), 200)
    given = lake.numbered(pa.Table.from_pylist(rows, schema=KINDS))
    lake.land(name, [lake.file(given[:50]), lake.file(given[50:])], Append(rows=200), batch="7")
    got = sorted((row.asDict(recursive=True) for row in lake.rows(name)), key=lambda row: row["id"])
    assert [row.pop("added") for row in got] == [None] * 200
    assert sorted(row["_offset"] for row in got) == sorted(given["_offset"].to_pylist())
    for row, sent in zip(got, sorted(rows, key=lambda row: row["id"]), strict=True):
        raw, zoned, counts = row["raw"], row["zoned"], row["counts"]
        plain_row = {
            **{each: row[each] for each in KINDS.names},
            "raw": None if raw is None else bytes(raw),
            "zoned": zoned and zoned.replace(tzinfo=timezone.utc),
            "counts": None if counts is None else list(counts.items()),
        }
        assert plain_row == sent
    files = lake.files(name)
    assert {row["file_format"] for row in files} == {kind.upper()}
    assert {row["content"] for row in files} == {0}
    assert {row["sort_order_id"] for row in files} == ({1} if order else {0})


def test_uuids_are_staged_as_text(lake: Lake) -> None:
    lake.catalog.create_table(
        "db.uuids",
        IcebergSchema(NestedField(1, "id", UUIDType(), required=True), NestedField(2, "name", StringType())),
    )
    one, other = uuid.uuid4(), uuid.uuid4()
    for batch in ([("U", one, "a"), ("U", other, "b")], [("U", one, "c"), ("D", other, None)]):
        ids = pa.array([each.bytes for _, each, _ in batch], pa.binary(16)).cast(pa.uuid())
        rows = pa.table({"_op": [op for op, _, _ in batch], "id": ids, "name": [name for _, _, name in batch]})
        lake.land("db.uuids", [lake.file(lake.numbered(rows))], BY_ID)
    assert lake.catalog.load_table("db.uuids").scan().to_arrow().to_pylist() == [{"id": one, "name": "c"}]


# ----------------------------------------------------------------------------------- only on the head it is for


@pytest.mark.parametrize(
    ("version", "other"),
    [(2, "append"), (2, "compaction"), pytest.param(3, "compaction", marks=pytest.mark.long)],
)
def test_what_was_staged_on_an_older_head_cannot_be_published(lake: Lake, version: int, other: str) -> None:
    name = lake.table(PLAIN, version)
    for batch in ([("I", 1, "a"), ("I", 2, "a")], [("U", 2, "b"), ("I", 3, "b")]):
        lake.land(name, [lake.file(lake.numbered(changes(*batch)))], BY_ID)
    files = [lake.file(lake.numbered(changes(("U", 1, "c"), ("D", 3, None), ("U", 4, "c"))))]
    base = lake.head(name)
    branch, snapshot = lake.stage(name, base, files, BY_ID)
    assert by_id(lake, name) == {1: "a", 2: "b", 3: "b"}
    if other == "append":
        lake.spark.sql(f"INSERT INTO lake.{name} VALUES (4, 'other')")
    else:
        lake.spark.sql(f"CALL lake.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")
    before = by_id(lake, name)
    assert lake.head(name) != base
    with pytest.raises(CommitFailedException):
        lake.publish(name, base, branch, snapshot)
    assert by_id(lake, name) == before
    drop_stage(lake.spark, lake.spec, name, branch)
    lake.land(name, files, BY_ID)
    assert by_id(lake, name) == {1: "c", 2: "b", 4: "c"}
    assert set(lake.catalog.load_table(name).metadata.refs) == {"main"}


# -------------------------------------------------------------------------------------------- a snapshot always


@pytest.mark.parametrize(
    ("version", "mode"),
    [(2, MERGE_ON_READ), pytest.param(3, "'write.merge.mode'='copy-on-write'", marks=pytest.mark.long)],
)
def test_a_batch_that_changes_nothing_has_its_snapshot(lake: Lake, version: int, mode: str) -> None:
    name = lake.table(PLAIN, version, properties=mode)
    lake.land(name, [lake.file(lake.numbered(changes(("I", 1, "a"))))], BY_ID)
    nothing = [lake.file(lake.numbered(changes(("D", 77, None))))], [lake.file(lake.numbered(changes()))], []
    for number, files in enumerate(nothing):
        base = lake.head(name)
        snapshot = lake.land(name, files, BY_ID, **{"landonce.batch": str(number), "landonce.Case": '{"a": ["ö$"]}'})
        landed = lake.catalog.load_table(name).metadata.snapshot_by_id(snapshot)
        assert snapshot != base
        assert landed.parent_snapshot_id == base
        assert landed.summary["landonce.batch"] == str(number)
        assert landed.summary["landonce.Case"] == '{"a": ["ö$"]}'
        assert by_id(lake, name) == {1: "a"}


def test_a_table_without_snapshots_gets_its_first(lake: Lake) -> None:
    for how, rows in ((BY_ID, changes(("I", 1, "a"), ("D", 2, None))), (Append(), changes(("I", 1, "a")))):
        name = lake.table(PLAIN)
        lake.land(name, [lake.file(lake.numbered(rows))], how)
        assert by_id(lake, name) == {1: "a"}
        with pytest.raises(TargetUnavailable, match="has a snapshot now"):
            lake.stage(name, None, [], how)


def test_the_head_may_be_any_branch(lake: Lake) -> None:
    name = lake.table(PLAIN)
    lake.land(name, [lake.file(lake.numbered(changes(("I", 1, "a"))))], BY_ID)
    lake.spark.sql(f"ALTER TABLE lake.{name} CREATE BRANCH audit")
    lake.spark.sql(f"INSERT INTO lake.{name} VALUES (2, 'main')")
    lake.spark.sql(f"INSERT INTO lake.{name}.branch_audit VALUES (3, 'audit')")
    base = lake.head(name, "audit")
    branch, _ = lake.stage(name, base, [lake.file(lake.numbered(changes(("U", 1, "b"), ("D", 3, None))))], BY_ID)
    staged = lake.spark.sql(f"SELECT * FROM lake.{name}.`branch_{branch}`").collect()
    assert sorted(map(tuple, staged)) == [(1, "b")]
    assert by_id(lake, name) == {1: "a", 2: "main"}


# ------------------------------------------------------------------------------------------- names and threads


def test_names_may_hold_anything(lake: Lake) -> None:
    lake.catalog.create_namespace(("deep", "in side", "it's"))
    identifier = "deep.in side.it's.a-b`c"
    columns = ("i`d", "A", "a", "dot.ted", "sel ect", "it's", "s", "t")
    table = lake.catalog.create_table(
        tuple(identifier.split(".")),
        IcebergSchema(*(NestedField(at, each, LongType()) for at, each in enumerate(columns, 1))),
    )
    for value in (1, 2):
        rows = pa.table({"_op": ["U"], **{each: pa.array([at * value], pa.int64()) for at, each in enumerate(columns)}})
        base = table.refresh().metadata.current_snapshot_id
        how = Merge(("i`d",), columns)
        branch = StageOf("my.pipe-line", 3, 4).new_name()
        snapshot = stage(lake.spark, lake.spec, identifier, branch, base, [lake.file(lake.numbered(rows))], how, {})
        lake.publish(identifier, base, branch, snapshot)
    assert table.refresh().scan().to_arrow().to_pylist() == [{each: at * 2 for at, each in enumerate(columns)}]


def test_threads_do_not_mix_up_their_batches(lake: Lake) -> None:
    names = [lake.table(PLAIN) for _ in range(4)]
    before = dict(lake.spark.conf.getAll)

    def land(name: str) -> dict[str, str]:
        snapshot = lake.land(name, [lake.file(lake.numbered(changes(("I", 1, name))))], BY_ID, table=name)
        return dict(lake.catalog.load_table(name).metadata.snapshot_by_id(snapshot).summary.additional_properties)

    with ThreadPoolExecutor(4) as pool:
        landed = list(pool.map(land, names))
    assert [each["table"] for each in landed] == names
    assert [by_id(lake, name) for name in names] == [{1: name} for name in names]
    assert dict(lake.spark.conf.getAll) == before


@pytest.mark.parametrize("version", [pytest.param("2", marks=pytest.mark.long), "3"])
def test_a_catalog_that_only_the_file_names(lake: Lake, rest_catalog: LocalRestCatalog, version: str) -> None:
    """One behind a server; the session was opened without knowing it."""
    spec = CatalogSpec("far", rest_catalog.properties)
    catalog = spec.open()
    identifier = f"away{version}.t"
    catalog.create_namespace(f"away{version}")
    schema = IcebergSchema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    table = catalog.create_table(identifier, schema, properties={"format-version": version})
    for batch in ([("I", 1, "a"), ("I", 2, "a")], [("U", 1, "b"), ("D", 2, None)]):
        base = table.refresh().metadata.current_snapshot_id
        branch = StageOf("pipe", 1, 1).new_name()
        files = [lake.file(lake.numbered(changes(*batch)))]
        snapshot = stage(lake.spark, spec, identifier, branch, base, files, BY_ID, {"landonce.batch": "1"})
        catalog.commit_table(
            table,
            (AssertRefSnapshotId(ref="main", snapshot_id=base),),
            (
                SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot),
                RemoveSnapshotRefUpdate(ref_name=branch),
            ),
        )
    assert table.refresh().metadata.snapshot_by_id(snapshot).summary["landonce.batch"] == "1"
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "name": "b"}]


# ----------------------------------------------------------------------------------------- what is left behind


def test_stages_of_earlier_epochs_are_removed(lake: Lake) -> None:
    name = lake.table(PLAIN)
    lake.land(name, [], Append())
    base = lake.head(name)
    whose = [
        StageOf("pipe", 1, 9),
        StageOf("pipe", 2, 1),
        StageOf("pipe", 3, 1),
        StageOf("pipe_e1", 1, 1),
        StageOf("x", 1, 1),
    ]
    branches = [each.new_name() for each in whose]
    for branch in branches:
        stage(lake.spark, lake.spec, name, branch, base, [], Append(), {})
    lake.spark.sql(f"ALTER TABLE lake.{name} CREATE BRANCH landonce_stage_of_a_person")
    place = TableBranch(lake.spec, lambda: lake.catalog, name, "main", "pipe", lambda: lake.spark)
    for _ in range(2):
        place.drop_stages(3)
        assert set(lake.catalog.load_table(name).metadata.refs) == {"main", "landonce_stage_of_a_person", *branches[2:]}


def test_a_table_that_was_dropped_is_named(lake: Lake) -> None:
    for call in (
        lambda: java.commit(lake.spark, lake.spec, "db.none", (), ()),
        lambda: lake.stage("db.none", 1, [], Append()),
    ):
        with pytest.raises(TableReplaced, match=r"db\.none does not exist"):
            call()


def test_what_cannot_be_staged_leaves_no_branch(lake: Lake) -> None:
    name = lake.table(f"{PLAIN}, must string NOT NULL")
    lake.land(name, [], Append())
    base = lake.head(name)
    text = pa.table({"_op": ["I"], "id": ["one"], "name": ["a"], "must": ["b"]})
    hollow = changes(("I", 1, "a")).append_column("must", pa.array([None], pa.string()))
    every = Merge(("id",), ("id", "name", "must"))
    for rows in (text, hollow):
        for how in (every, Append()):
            with pytest.raises(TableUnfit, match="Spark cannot write"):
                lake.stage(name, base, [lake.file(lake.numbered(rows))], how)
    with pytest.raises(TargetUnavailable, match="unknown snapshot"):
        lake.stage(name, 4711, [], every)
    with pytest.raises(TargetUnavailable, match="does not exist"):
        lake.stage(name, base, [str(lake.folder / "gone.parquet")], every)
    with pytest.raises(TableReplaced):
        lake.stage("db.nowhere", 4711, [], every)
    whole = lake.file(lake.numbered(changes(("I", 1, "a")).append_column("must", pa.array(["b"]))))
    with pytest.raises(Unbalanced, match=r"\b2 rows were staged, and Spark wrote 1\b"):
        lake.stage(name, base, [whole], Append(rows=2))
    assert set(lake.catalog.load_table(name).metadata.refs) == {"main"}
    assert lake.head(name) == base


def test_a_type_that_spark_does_not_know_is_named(lake: Lake) -> None:
    lake.catalog.create_table(
        "db.times", IcebergSchema(NestedField(1, "id", LongType()), NestedField(2, "name", TimeType()))
    )
    with pytest.raises(TableUnfit, match="time"):
        lake.stage("db.times", None, [lake.file(lake.numbered(changes(("I", 1, None))))], BY_ID)
