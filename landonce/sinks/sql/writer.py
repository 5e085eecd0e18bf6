"""A block's transaction in databases that take SQL as text, in SQLite, and `open_writer` for each database."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.ledger.plain_sql import BlockKey
from landonce.protocol.block_rows import BlockRow, BlockState, Claim
from landonce.read.envelopes import DELETE, OPERATION
from landonce.read.schema.fields import is_uuid
from landonce.sinks.contract import COORDINATES
from landonce.sinks.sql.fingerprint import fingerprint_statements, lock_statement, table_fingerprint
from landonce.sinks.sql.sink import BUSY_SECONDS, SqlSink, TargetSqlite
from landonce.sinks.sql.statements import (
    Syntax,
    delete_statement,
    flip_statement,
    insert_statement,
    read_statement,
    syntax_of,
    upsert_statement,
)
from landonce.sinks.transactional import Blame, BlockTransaction, Trouble, rows_left_out


class StatementWriter(BlockTransaction):
    """What PostgreSQL, SQLite, MySQL and MariaDB have in common: a cursor that takes SQL as text."""

    syntax: Syntax
    failures: type[Exception]
    """What the Python driver raises."""
    _cursor: Any = None

    def __init__(self, sink: SqlSink, block: BlockKey) -> None:
        self._sink, self._block = sink, block

    @abstractmethod
    def _trouble(self, error: Any) -> Trouble: ...

    @abstractmethod
    def _add(self, rows: pa.Table) -> None: ...

    @abstractmethod
    def _change(self, rows: pa.Table, deleted: pa.Table) -> None:
        """Changes rows by their key. `deleted`: keys and coordinates of deletions.

        Deletes first: a deleted row may hold a value under another unique key that a new row needs. Deletes again afterwards, because the
        table may take two different keys of this block for one (CITEXT, collations): coordinates say which change is later.
        """

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self.failures as error:
            raise self._trouble(error) from None

    def _do(self, statement: str) -> None:
        with self._errors():
            self._cursor.execute(statement, ())

    def _ask(self, statement: str, parameters: tuple[object, ...] = ()) -> list[Any]:
        with self._errors():
            self._cursor.execute(statement, parameters)
            return list(self._cursor.fetchall())

    def unaltered(self) -> bool:
        if not self._sink.examined:
            return True
        try:
            self._do(lock_statement(self.syntax, self._sink.table))
            rows = [row for each in fingerprint_statements(self._sink) for row in self._ask(*each)]
        except Trouble as trouble:
            if trouble.missing:
                return False
            raise
        return table_fingerprint(rows) == self._sink.examined

    def read(self) -> BlockRow | None:
        for number, epoch, owner, mark, receipt in self._ask(*read_statement(self.syntax, self._block)):
            return BlockRow(number, Claim(epoch, owner), BlockState(mark), receipt)
        return None

    def write(self, rows: pa.Table) -> None:
        if not self._sink.key:
            self._add(rows)
            return
        gone = pc.equal(rows.column(OPERATION), DELETE)
        rows = rows.drop_columns([OPERATION])
        self._change(rows.filter(pc.invert(gone)), rows.filter(gone).select([*self._sink.key, *COORDINATES]))

    def savepoint(self, statement: str) -> None:
        self._do(statement)


class RowWriter(StatementWriter):
    """SQLite, MySQL and MariaDB, through `executemany` of the Python driver."""

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
        if is_uuid(column.type):
            return pa.chunked_array([[each and str(each) for each in column.to_pylist()]], pa.string())
        zoned = pt.is_timestamp(column.type) and column.type.tz is not None
        return column.cast(pa.timestamp("us")) if zoned else column


class SqliteWriter(RowWriter):
    """Takes the write lock at once, and waits for it: SQLite has one writer at a time."""

    syntax = syntax_of("sqlite")
    failures = sqlite3.Error
    begin = "BEGIN IMMEDIATE"

    def _connect(self) -> sqlite3.Connection:
        return TargetSqlite(Path(str(self._sink.address.database)), busy_seconds=BUSY_SECONDS).connect()

    def _column(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """SQLite has no type for times: they are text, as SQLAlchemy and SQLite's own functions write them. It makes a number of the text
        of a decimal itself."""
        plain = super()._column(column)
        return plain.cast(pa.string()) if pt.is_temporal(plain.type) or pt.is_decimal(plain.type) else plain

    def commit(self) -> None:
        self._do("COMMIT")

    def _trouble(self, error: Exception) -> Trouble:
        said, blame = str(error), Blame.ELSE
        if isinstance(error, (sqlite3.IntegrityError, sqlite3.DataError)):
            blame = Blame.TWICE if "UNIQUE" in said else Blame.OTHERS if "FOREIGN KEY" in said else Blame.ROW
        passing = isinstance(error, sqlite3.OperationalError) and any(
            word in said for word in ("locked", "busy", "disk I/O", "full", "unable to open")
        )
        return Trouble(said, passing=passing, answered=True, blame=blame, missing="no such table" in said)


def open_writer(sink: SqlSink, block: BlockKey) -> BlockTransaction:
    """Opens one connection for one block. Only the driver of this database is imported."""
    if sink.dialect == "postgresql":
        from landonce.sinks.sql.postgres import PostgresWriter

        return PostgresWriter(sink, block)
    if sink.dialect == "sqlite":
        return SqliteWriter(sink, block)
    if sink.dialect == "yql":
        from landonce.sinks.sql.ydb import YdbWriter

        return YdbWriter(sink, block)
    from landonce.sinks.sql.mysql import MySqlWriter

    return MySqlWriter(sink, block)
