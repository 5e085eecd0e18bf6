"""A block's transaction in databases that take SQL as text, and the writer of each database."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from landonce.ledger.plain_sql import BlockKey
from landonce.protocol.block_rows import BlockRow, Claim, Mark
from landonce.read.changes.decode import OPERATION
from landonce.read.changes.images import DELETE
from landonce.sinks.contract import COORDINATES
from landonce.sinks.sql.fingerprint import fingerprint_statements, lock_statement, table_fingerprint
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import Syntax, read_statement
from landonce.sinks.transactional import BlockTransaction, Trouble


class StatementWriter(BlockTransaction):
    """A database that takes SQL as text: what PostgreSQL, SQLite, MySQL and MariaDB have in common."""

    syntax: Syntax
    failures: type[Exception]
    """What the Python driver raises."""

    def __init__(self, sink: SqlSink, block: BlockKey) -> None:
        self._sink, self._block = sink, block

    @abstractmethod
    def _ask(self, statement: str, parameters: tuple[object, ...] = ()) -> list[Any]:
        """Runs a statement that yields rows."""

    @abstractmethod
    def _do(self, statement: str) -> None:
        """Runs a statement that yields none."""

    @abstractmethod
    def _trouble(self, error: Any) -> Trouble: ...

    @abstractmethod
    def _add(self, rows: pa.Table) -> None:
        """Adds rows."""

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
            return BlockRow(number, Claim(epoch, owner), Mark(mark), receipt)
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


def open_writer(sink: SqlSink, block: BlockKey) -> BlockTransaction:
    """Opens one connection for one block. Only the driver of this database is imported."""
    if sink.dialect == "postgresql":
        from landonce.sinks.sql.postgres import PostgresWriter

        return PostgresWriter(sink, block)
    if sink.dialect == "sqlite":
        from landonce.sinks.sql.rows import SqliteWriter

        return SqliteWriter(sink, block)
    if sink.dialect == "yql":
        from landonce.sinks.sql.ydb import YdbWriter

        return YdbWriter(sink, block)
    from landonce.sinks.sql.mysql import MySqlWriter

    return MySqlWriter(sink, block)
