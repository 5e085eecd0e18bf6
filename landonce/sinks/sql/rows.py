"""A block's transaction in SQLite, MySQL and MariaDB, through `executemany` of the Python driver."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from landonce.ledger.plain_sql import BlockKey
from landonce.protocol.block_rows import Claim
from landonce.sinks.sql.databases import BUSY_SECONDS, TargetSqlite
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import (
    delete_statement,
    flip_statement,
    insert_statement,
    syntax_of,
    upsert_statement,
)
from landonce.sinks.sql.writer import StatementWriter
from landonce.sinks.transactional import Blame, Trouble, rows_left_out


class RowWriter(StatementWriter):
    """What they have in common: a connection of Python's DB-API."""

    begin: str

    def __init__(self, sink: SqlSink, block: BlockKey) -> None:
        super().__init__(sink, block)
        with self._errors():
            self._connection = self._connect()
            self._cursor = self._connection.cursor()

    @abstractmethod
    def _connect(self) -> Any: ...

    def flip(self, claim: Claim, receipt: str) -> bool:
        self._do(self.begin)
        self._ask(*flip_statement(self.syntax, self._block, claim, receipt))
        return bool(self._cursor.rowcount == 1)

    def commit(self) -> None:
        with self._errors():
            self._connection.commit()

    def close(self) -> None:
        """Rolls back first: an unfinished statement would keep SQLite's file locked."""
        for end in (self._cursor.close, self._connection.rollback, self._connection.close):
            with suppress(self.failures):
                end()

    def _add(self, rows: pa.Table) -> None:
        self._many(insert_statement(self.syntax, self._sink.table, rows.column_names), rows)
        if rows.num_rows and self._cursor.rowcount < rows.num_rows:
            raise rows_left_out(self._cursor.rowcount, rows.num_rows)

    def _change(self, rows: pa.Table, deleted: pa.Table) -> None:
        table, key = self._sink.table, self._sink.key
        delete = delete_statement(self.syntax, table, key)
        self._many(delete, deleted)
        self._many(upsert_statement(self.syntax, table, rows.column_names, key), rows)
        if rows.num_rows:
            self._many(delete, deleted)

    def _many(self, statement: str, rows: pa.Table) -> None:
        if rows.num_rows:
            values = zip(*(self._column(column).to_pylist() for column in rows.columns), strict=True)
            with self._errors():
                self._cursor.executemany(statement, list(values))

    def _column(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """The column in values that the Python driver takes."""
        if pt.is_timestamp(column.type) and column.type.tz is not None:
            return column.cast(pa.timestamp("us"))
        return column

    def _do(self, statement: str) -> None:
        with self._errors():
            self._cursor.execute(statement, ())

    def _ask(self, statement: str, parameters: tuple[object, ...] = ()) -> list[Any]:
        with self._errors():
            self._cursor.execute(statement, parameters)
            return list(self._cursor.fetchall())


class SqliteWriter(RowWriter):
    """Takes the write lock at once, and waits for it: SQLite has one writer at a time."""

    syntax = syntax_of("sqlite")
    failures = sqlite3.Error
    begin = "BEGIN IMMEDIATE"

    def _connect(self) -> sqlite3.Connection:
        return TargetSqlite(Path(str(self._sink.address.database)), busy_seconds=BUSY_SECONDS).connect()

    def _column(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """SQLite has no type for times: they are text, as SQLAlchemy and SQLite's own functions write them."""
        plain = super()._column(column)
        return plain.cast(pa.string()) if pt.is_temporal(plain.type) else plain

    def commit(self) -> None:
        self._do("COMMIT")

    def _trouble(self, error: Exception) -> Trouble:
        passing = isinstance(error, sqlite3.OperationalError) and any(
            word in str(error) for word in ("locked", "busy", "disk I/O", "full", "unable to open")
        )
        missing = "no such table" in str(error)
        return Trouble(str(error), passing=passing, answered=True, blame=_blame(error), missing=missing)


def _blame(error: Exception) -> Blame:
    if not isinstance(error, (sqlite3.IntegrityError, sqlite3.DataError)):
        return Blame.ELSE
    if "UNIQUE" in str(error):
        return Blame.TWICE
    return Blame.OTHERS if "FOREIGN KEY" in str(error) else Blame.ROW
