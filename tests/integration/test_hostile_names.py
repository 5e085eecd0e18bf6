"""Names that try to end a statement, as columns and as tables, on live servers: each is only ever a name, and nothing else changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import yaml
from deliveries import ask, do, letters, send
from psycopg import sql
from pyiceberg.catalog import load_catalog

import landonce
from landonce.local import LocalClickHouse, LocalKafka
from landonce.local.postgres import LocalPostgres
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.clickhouse.config import ClickHouse
from landonce.sinks.clickhouse.sink import ClickHouseSink
from landonce.sinks.pipeline_file import parse
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

NAMES = (
    *(
        "'; DROP TABLE victims; --",
        '"; DROP TABLE victims; --',
        "`; DROP TABLE victims; --",
        "x); DROP TABLE victims; --",
    ),
    *(
        "' OR '1'='1",
        '" OR ""="',
        "` OR 1=1 --",
        "x' UNION SELECT * FROM victims --",
        "/* x */",
        "*/ x /*",
        "-- x",
        "# x",
    ),
    *("a'b", 'a"b', "a`b", "a\\b", "a\\'b", 'a\\"b', "a\\`b", "''", '""', "``", "\\", "\\\\", "'", '"', "`", ";", "--"),
    *(
        "%s",
        "%(name)s",
        "%",
        "%%",
        ":name",
        ":1",
        "?",
        "$1",
        "${HOME}",
        "{0}",
        "{name:String}",
        "{{x}}",
        "@x",
        "@@version",
    ),
    *(
        "select",
        "from",
        "table",
        "null",
        "true",
        "order",
        "group",
        "user",
        "primary key",
        "CURRENT_USER",
        "rowid",
        "oid",
    ),
    *(
        "a b",
        " a",
        "a ",
        "a\tb",
        "a\nb",
        "a,b",
        "(a)",
        "[a]",
        "<b>x</b>",
        "a=b",
        "a|b",
        "a&b",
        "!",
        "~",
        "ä",
        "ß",
        "名前",
    ),
    *("😀", "e\u0301x", "\u202eabc", "\u200b", "1", "1a", "-1", "1.5", "0x1", "é" * 30, "x" * 60),
)
_VICTIMS = "CREATE TABLE victims (x INT)"


def test_there_are_enough_of_them() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert len(NAMES) * 5 >= 200, "as columns of four sinks, and as tables"


def pipeline(kafka: LocalKafka, folder: Path, topic: str, sink: dict[str, Any]) -> tuple[int, int]:
    """Lands one record with a value in each of these fields. The schema is inferred from it, and the table is created."""
    send(kafka, topic, [{name: number for number, name in enumerate(NAMES)}], 0)
    document = {
        "pipeline": "hostile",
        "source": {"kafka": {"bootstrap_servers": kafka.bootstrap_servers, "topics": [topic]}},
        "sink": sink,
        "dead_letters": {"path": "dead"},
        "spark": {"master": "local[2]"},
    }
    found = landonce.run_pipeline(parse(yaml.safe_dump(document), folder / "p.yaml"), once=True)
    assert letters(folder / "dead") == []
    return found.landed, found.dead_lettered


WANTED = {name: number for number, name in enumerate(NAMES)}


def test_columns_in_clickhouse(
    clickhouse: LocalClickHouse, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    do(clickhouse.url, "CREATE TABLE IF NOT EXISTS victims (x Int32) ENGINE = Memory")
    sink = {"clickhouse": {"url": clickhouse.url, "table": "hostile_columns", "create": True}}
    assert pipeline(kafka, tmp_path, new_topic(partitions=1), sink) == (1, 0)
    (row,) = ask(clickhouse.url, "SELECT * EXCEPT (_topic, _partition, _offset) FROM hostile_columns")
    assert row == WANTED
    assert ask(clickhouse.url, "SELECT count() AS n FROM system.tables WHERE name = 'victims'") == [{"n": 1}]


def test_columns_in_sqlite(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(_VICTIMS)
    sink = {"sql": {"url": f"sqlite:///{path}", "table": "hostile_columns", "create": True}}
    assert pipeline(kafka, tmp_path, new_topic(partitions=1), sink) == (1, 0)
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT * FROM hostile_columns")
        names = [each[0] for each in rows.description]
        found = dict(zip(names, rows.fetchone(), strict=True))
        assert connection.execute("SELECT count(*) FROM victims").fetchone() == (0,)
    assert {name: found[name] for name in NAMES} == WANTED


def test_columns_in_postgres(
    postgres: LocalPostgres, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    with psycopg.connect(postgres.url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(_VICTIMS.replace("victims", "IF NOT EXISTS victims"))
        sink = {"sql": {"url": postgres.url, "table": "hostile_columns", "create": True}}
        assert pipeline(kafka, tmp_path, new_topic(partitions=1), sink) == (1, 0)
        rows = connection.execute("SELECT * FROM hostile_columns")
        names = [each.name for each in rows.description or ()]
        found = dict(zip(names, rows.fetchone() or (), strict=True))
        assert connection.execute("SELECT count(*) FROM victims").fetchone() == (0,)
    assert {name: found[name] for name in NAMES} == WANTED


def test_columns_in_iceberg(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/lake"}
    sink = {"iceberg": {"table": "db.hostile_columns", "create": True, "catalog": catalog}}
    assert pipeline(kafka, tmp_path, new_topic(partitions=1), sink) == (1, 0)
    opened = load_catalog("landonce", **catalog)
    (row,) = opened.load_table("db.hostile_columns").scan().to_arrow().to_pylist()
    assert {name: row[name] for name in NAMES} == WANTED
    assert opened.list_tables("db") == [("db", "hostile_columns")]


TABLES = {name for name in NAMES if "." not in name}
"""A dot separates a schema from its table."""
_ONE = Schema((Field("id", pa.int64()),))


def test_tables_in_clickhouse(clickhouse: LocalClickHouse) -> None:
    do(clickhouse.url, "CREATE DATABASE IF NOT EXISTS hostile")
    for name in NAMES:
        escaped = name.replace("\\", "\\\\").replace("`", "\\`")
        section = ClickHouse.model_validate({"url": clickhouse.url, "table": f"hostile.`{escaped}`"})
        target = ClickHouseSink(section, "hostile").target()
        target.create(_ONE)
        assert [each.name for each in target.schema().fields] == ["id"]
    listed = ask(clickhouse.url, "SELECT name FROM system.tables WHERE database = 'hostile'")
    assert {each["name"] for each in listed} == set(NAMES)
    do(clickhouse.url, "DROP DATABASE hostile")


def test_tables_in_postgres(postgres: LocalPostgres) -> None:
    with psycopg.connect(postgres.url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA hostile")
        for name in TABLES:
            with closing(SqlTable(SqlSink(postgres.url, f"hostile.{name}", "hostile"))) as table:
                table.create(_ONE)
                assert table.exists()
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'hostile'").fetchall()
        assert {name for (name,) in rows} == TABLES
        connection.execute(sql.SQL("DROP SCHEMA hostile CASCADE"))
