"""YDB's statements, compiled by its own dialect. No server can be had here: `tests/contract` runs against one if `YDB_ENDPOINT` is set."""

from __future__ import annotations

import pytest

pytest.importorskip("ydb_sqlalchemy")

from sqlalchemy import Executable, create_engine, insert, select
from sqlalchemy.schema import CreateTable
from ydb_sqlalchemy.sqlalchemy import YqlDialect

from landonce.ledger.plain_sql import BlockKey
from landonce.ledger.tables import (
    SCHEMA_VERSION,
    block_table,
    changed_columns,
    metadata,
    pipeline_row,
    pipeline_table,
    schema_table,
    unchanged,
)
from landonce.ledger.ydb import YdbDatabase
from landonce.protocol.ledger import LedgerState, taken
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.sql.sink import SqlSink, open_database
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.sql.ydb import delete_rows, flipping_statement, found_statement, upsert_rows

PLACE = BlockKey("p", 7, 2)


def text(statement: Executable) -> str:
    return " ".join(str(statement.compile(dialect=YqlDialect())).split())  # type: ignore[attr-defined]


def test_a_block_is_read_and_flipped_by_its_key() -> None:
    where = "WHERE landonce_block.pipeline = ? AND landonce_block.batch = ? AND landonce_block.number = ?"
    assert text(found_statement(PLACE)).endswith(where)
    assert text(flipping_statement(PLACE, "{}")) == f"UPDATE landonce_block SET state=?, receipt=? {where}"


def test_rows_go_in_by_upsert_and_out_by_their_key() -> None:
    assert text(upsert_rows("t", ["a", "b"])) == "UPSERT INTO t (a, b) VALUES (?, ?)"
    assert text(delete_rows("t", ("a", "b"))) == "DELETE FROM t WHERE a = ? AND b = ?"
    assert text(YdbDatabase(SqlSink("ydb://h/d", "t", "p").address).upsert_positions()).startswith(
        "UPSERT INTO landonce_position"
    )


def test_the_ledgers_tables_have_keys_of_text() -> None:
    for table in (*metadata.tables.values(), block_table):
        made = text(CreateTable(table))
        assert "PRIMARY KEY (" in made
        assert "VARCHAR" not in made
    assert "pipeline UTF8 NOT NULL" in text(CreateTable(block_table))


def test_the_coordinates_of_rows_that_are_only_added_are_the_primary_key() -> None:
    sink = SqlSink("ydb://h:2136/local", "t", "p")
    assert isinstance(open_database(sink.address), YdbDatabase)
    schema = parse_schema("id BIGINT NOT NULL, word STRING")
    assert "PRIMARY KEY (_topic, _partition, _offset)" in SqlTable(sink).creation(schema)
    keyed = SqlTable(SqlSink("ydb://h:2136/local", "t", "p", key=("id",))).creation(schema)
    assert "PRIMARY KEY (id)" in keyed


def test_an_update_is_made_only_where_the_row_is_as_it_was() -> None:
    """YDB counts no rows: the same code, on a database that can be had here."""
    database = YdbDatabase(SqlSink("ydb://h/d", "t", "p").address)
    old = LedgerState("p", "lineage")
    new = taken(old, "me")
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        metadata.create_all(connection)
        connection.execute(insert(pipeline_table), pipeline_row(old))
        assert not database.updated(connection, unchanged(old), changed_columns(old, new)), "tables without a version"
        connection.execute(insert(schema_table), {"only": 1, "version": SCHEMA_VERSION})
        assert database.updated(connection, unchanged(old), changed_columns(old, new))
        assert not database.updated(connection, unchanged(old), changed_columns(old, new))
        assert connection.execute(select(pipeline_table.c.owner, pipeline_table.c.epoch)).all() == [("me", 1)]
