"""What a table is refused for, of databases that cannot be had here."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy import types as sql
from sqlalchemy.dialects import sqlite

from landonce.errors import ConfigError
from landonce.sinks.contract import COORDINATES, Finding, Level
from landonce.sinks.sql.check import check_columns, check_storage
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlShape, SqlTable

KINDS = {"id": sql.BigInteger(), "_topic": sql.Text(), "_partition": sql.Integer(), "_offset": sql.BigInteger()}
COLUMNS = tuple({"name": name, "type": kind, "nullable": True} for name, kind in KINDS.items())


def refused(findings: object) -> list[str]:
    assert hasattr(findings, "__iter__")
    return [each.what for each in findings if isinstance(each, Finding) and each.level is Level.REFUSED]


def test_rows_that_are_added_in_ydb_need_their_coordinates_for_a_key() -> None:
    """They go in by UPSERT: with another primary key one row would replace the other."""
    sink = SqlSink("ydb://h:2136/local", "events", "p")
    shape = SqlShape(COLUMNS, (frozenset({"id"}),))
    [said] = refused(check_columns(sink, shape, (), sqlite.dialect()))
    assert "primary key of events is not its coordinates" in said
    fit = SqlShape(COLUMNS, (frozenset(COORDINATES),))
    assert refused(check_columns(sink, fit, (), sqlite.dialect())) == []
    keyed = SqlSink("ydb://h:2136/local", "events", "p", key=("id",))
    assert refused(check_columns(keyed, shape, (), sqlite.dialect())) == []


def test_a_unique_key_on_an_expression_is_another_key() -> None:
    """MySQL 8 says so in its own tables only, which stand in another database here."""
    engine = create_engine("sqlite://")

    @event.listens_for(engine, "connect")
    def _(connection: sqlite3.Connection, _: object) -> None:
        connection.create_function("DATABASE", 0, lambda: "shop")
        connection.execute("ATTACH ':memory:' AS information_schema")

    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE information_schema.tables (table_schema, table_name, engine)")
        connection.exec_driver_sql(
            "CREATE TABLE information_schema.statistics (table_schema, table_name, index_name, non_unique, sub_part, column_name)"
        )
        connection.exec_driver_sql(
            "INSERT INTO information_schema.statistics VALUES ('shop', 'events', 'PRIMARY', 0, NULL, 'id'), "
            "('shop', 'events', 'plain', 1, NULL, NULL), ('shop', 'events', 'folded', 0, NULL, NULL)"
        )
        [said] = refused(check_storage(SqlSink("mysql://h/shop", "events", "p", key=("id",)), connection))
        assert "folded" in said
        connection.exec_driver_sql("UPDATE information_schema.statistics SET index_name = 'a`; DROP TABLE x -- 100%'")
        (finding, *_) = check_storage(SqlSink("mysql://h/shop", "events", "p", key=("id",)), connection)
        assert finding.change == "DROP INDEX `a``; DROP TABLE x -- 100%` ON `events`"
        assert refused(check_storage(SqlSink("mysql://h/shop", "events", "p"), connection)) == []


def test_a_file_that_is_not_there_is_named_with_what_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no database file .*x\.db") as caught:
        SqlTable(SqlSink(f"sqlite:///{tmp_path}/x.db", "t", "p")).schema()
    assert "create: true" in str(caught.value.command)
