"""A block's transaction in SQLite, MySQL and MariaDB: rows go through the driver's own `executemany`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.ledger.plain_sql import BlockPlace
from landonce.protocol.block_rows import BlockRow, Claim, Mark
from landonce.read.changes.decode import OPERATION
from landonce.read.changes.images import DELETE
from landonce.sinks.contract import COORDINATES
from landonce.sinks.sql.databases import BUSY_SECONDS, TargetSqlite
from landonce.sinks.sql.likeness import asking, holding, likeness
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import (
    Words,
    delete_statement,
    flip_statement,
    insert_statement,
    read_statement,
    upsert_statement,
    words_of,
)
from landonce.sinks.transactional import Blame, BlockTransaction, Trouble, rows_left_out


class RowWriter(BlockTransaction):
    """What both have in common: a connection of Python's own kind."""

    words: Words
    failures: type[Exception]
    begin: str

    def __init__(self, sink: SqlSink, place: BlockPlace) -> None:
        self._sink, self._place = sink, place
        try:
            self._connection = self._connect()
            self._cursor = self._connection.cursor()
        except self.failures as error:
            raise self._trouble(error) from None

    def _connect(self) -> Any:
        raise NotImplementedError

    def _trouble(self, error: Exception) -> Trouble:
        raise NotImplementedError

    def flip(self, claim: Claim, receipt: str) -> bool:
        self._do(self.begin)
        self._do(*flip_statement(self.words, self._place, claim, receipt))
        return bool(self._cursor.rowcount == 1)

    def unaltered(self) -> bool:
        if not self._sink.examined:
            return True
        try:
            self._do(holding(self.words, self._sink.table))
            answers = [self._fetched(*each) for each in asking(self._sink)]
        except Trouble as trouble:
            if trouble.missing:
                return False
            raise
        return likeness(row for answer in answers for row in answer) == self._sink.examined

    def _fetched(self, statement: str, parameters: tuple[object, ...]) -> list[Any]:
        self._do(statement, parameters)
        return list(self._cursor.fetchall())

    def read(self) -> BlockRow | None:
        self._do(*read_statement(self.words, self._place))
        row = self._cursor.fetchone()
        if row is None:
            return None
        number, epoch, owner, mark, receipt = row
        return BlockRow(number, Claim(epoch, owner), Mark(mark), receipt)

    def write(self, rows: pa.Table) -> None:
        table, key = self._sink.table, self._sink.key
        if not key:
            self._many(insert_statement(self.words, table, rows.column_names), rows)
            if rows.num_rows and self._cursor.rowcount < rows.num_rows:
                raise rows_left_out(self._cursor.rowcount, rows.num_rows)
            return
        gone = pc.equal(rows.column(OPERATION), DELETE)
        rows = rows.drop_columns([OPERATION])
        changed, deleted = rows.filter(pc.invert(gone)), rows.filter(gone).select([*key, *COORDINATES])
        delete = delete_statement(self.words, table, key)
        # Deletions come first: what a row held under another unique key may be another row's by now. Those that a row of this block
        # outlives, since the table takes its key for the deleted one, are made again: coordinates tell which is later.
        self._many(delete, deleted)
        self._many(upsert_statement(self.words, table, rows.column_names, key), changed)
        self._many(delete, deleted if changed.num_rows else deleted.slice(0, 0))

    def savepoint(self, statement: str) -> None:
        self._do(statement)

    def commit(self) -> None:
        try:
            self._connection.commit()
        except self.failures as error:
            raise self._trouble(error) from None

    def close(self) -> None:
        """Rolls back by itself first: what a failed statement left unfinished keeps SQLite's file locked otherwise."""
        for end in (self._cursor.close, self._connection.rollback, self._connection.close):
            with suppress(self.failures):
                end()

    def _many(self, statement: str, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        try:
            self._cursor.executemany(statement, list(self._values(rows)))
        except self.failures as error:
            raise self._trouble(error) from None

    def _values(self, rows: pa.Table) -> Iterable[tuple[Any, ...]]:
        return zip(*(self._column(column).to_pylist() for column in rows.columns), strict=True)

    def _column(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """A column in values that the driver takes."""
        if pt.is_timestamp(column.type) and column.type.tz is not None:
            return column.cast(pa.timestamp("us"))
        return column

    def _do(self, statement: str, parameters: tuple[object, ...] = ()) -> None:
        try:
            self._cursor.execute(statement, parameters)
        except self.failures as error:
            raise self._trouble(error) from None


class SqliteWriter(RowWriter):
    """The write lock is taken at once, and waited for: there is one writer at a time."""

    words = words_of("sqlite")
    failures = sqlite3.Error
    begin = "BEGIN IMMEDIATE"

    def _connect(self) -> sqlite3.Connection:
        return TargetSqlite(Path(str(self._sink.address.database)), busy_seconds=BUSY_SECONDS).connect()

    def _column(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """SQLite has no times: they are text, as SQLAlchemy and SQLite's own functions write them."""
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
