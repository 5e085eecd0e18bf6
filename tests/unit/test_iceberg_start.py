"""What a start refuses before any record is read: a worker would end with a traceback. With a real catalog, without Kafka and Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType, StructType

from landonce.errors import ConfigError
from landonce.sinks.checking import CheckRun
from landonce.sinks.contract import Level
from landonce.sinks.iceberg.driver import OpenIceberg
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import load
from landonce.sinks.run import run_of

TABLE = Schema(
    NestedField(1, "who", StructType(NestedField(2, "id", LongType(), required=True)), required=True),
    NestedField(3, "share", DoubleType(), required=True),
    NestedField(4, "id", LongType(), required=True),
    NestedField(5, "_topic", StringType()),
    NestedField(6, "_kafka_partition", IntegerType()),
    NestedField(7, "_offset", LongType()),
)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    lake = tmp_path / "lake"
    lake.mkdir()
    return load_catalog("landonce", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")


def start(folder: Path, iceberg: dict[str, Any], **source: Any) -> OpenIceberg:
    kafka = {"bootstrap_servers": "127.0.0.1:1", "topics": ["t"], **source}
    file = folder / "pipe.yaml"
    sink = {"iceberg": {"table": "db.t", **iceberg}}
    file.write_text(yaml.safe_dump({"pipeline": "p", "source": {"kafka": kafka}, "sink": sink}))
    parts = open_parts(load(file))
    opened = parts.sink.open(run_of(parts))
    assert isinstance(opened, OpenIceberg)
    opened.start()
    return opened


@pytest.mark.parametrize("identity", ["who.id", "share", "gone"])
@pytest.mark.parametrize("write", ["merge", "equality"])
def test_a_column_that_names_no_row(tmp_path: Path, catalog: Catalog, identity: str, write: str) -> None:
    catalog.create_namespace("db")
    catalog.create_table("db.t", TABLE)
    start(tmp_path, {"identity": "id", "write": write, "changes": {"mode": "upsert"}})
    with pytest.raises(Exception, match=identity) as refused:
        start(tmp_path, {"identity": identity, "write": write, "changes": {"mode": "upsert"}})
    assert getattr(refused.value, "exit_code", None) in (2, 3)


def test_a_table_is_not_created_for_changes_that_cannot_be_decoded(tmp_path: Path, catalog: Catalog) -> None:
    fields = "who STRUCT<id: BIGINT NOT NULL> NOT NULL, name STRING"
    changes = {"create": True, "identity": "who.id", "changes": {"mode": "upsert"}}
    opened = start(tmp_path, changes, schema=fields)
    parts = opened.run.parts
    assert parts is not None
    sections = dict(parts.sink.checks(CheckRun(parts, remote=False, retention=lambda _: ())))
    assert [each.level for each in sections["catalog"]] == [Level.OK, Level.OK]
    with pytest.raises(ConfigError, match=r"who\.id"):
        list(sections["table db.t"])
    with pytest.raises(ConfigError, match=r"who\.id"):
        opened.make_ready(opened.columns_to_make())
    assert not catalog.namespace_exists("db")


def test_records_without_fields(tmp_path: Path, catalog: Catalog) -> None:
    catalog.create_namespace("db")
    catalog.create_table("db.t", TABLE)
    with pytest.raises(ConfigError, match="no fields"):
        start(tmp_path, {}, format="raw")
