"""A block's transaction in MySQL and MariaDB, through PyMySQL, which joins the rows of `executemany` to long statements."""

from __future__ import annotations

from typing import Any, cast

import pymysql
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.engine.interfaces import DBAPIModule

from landonce.ledger.mysql import NO_TABLE, PASSING, connect_arguments, error_code, is_clients_own, mysql_url
from landonce.ledger.plain_sql import BlockKey
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import syntax_of
from landonce.sinks.sql.writer import RowWriter
from landonce.sinks.transactional import Blame, Trouble

_STATEMENT = 4 * 2**20
"""Bytes of a statement with many rows."""
_TOO_LARGE = 1153
_OF_ROWS = (1048, _TOO_LARGE, 1264, 1265, 1292, 1366, 1367, 1406, 1416, 1644, 3140, 3819, 4025, 4078)
"""NULL, out of range, truncated, no such value, no such character, too long, what a trigger raises, CHECK. Not 1364 (no default): such a
column was added since the start, and records may hold it."""
_BLAME = {1062: Blame.TWICE, 1451: Blame.OTHERS, 1452: Blame.OTHERS, **dict.fromkeys(_OF_ROWS, Blame.ROW)}


class _Cursor(pymysql.cursors.Cursor):
    """Raises for warnings: even in strict mode MySQL cuts trailing blanks that do not fit into TEXT, with only a warning. Raises for a row that
    is longer than any statement the server reads: then this row is to blame, and no other."""

    max_stmt_length = _STATEMENT
    most_bytes = _STATEMENT
    """The longest statement that the server reads."""

    def execute(self, query: Any, args: Any = None) -> int:
        if args is None and len(query) > self.most_bytes:
            raise pymysql.DataError(
                _TOO_LARGE, f"the row takes more than max_allowed_packet ({self.most_bytes:,} bytes)"
            )
        taken = int(super().execute(query, args))
        connection: Any = self.connection
        if self.warning_count:
            for _, code, said in connection.show_warnings():
                if code in _OF_ROWS:
                    raise pymysql.DataError(code, said)
        return taken


class MySqlWriter(RowWriter):
    """UPDATE counts the rows that it found, and waits for locks on them."""

    syntax = syntax_of("mysql")
    failures = pymysql.MySQLError
    begin = "START TRANSACTION"

    def __init__(self, sink: SqlSink, block: BlockKey) -> None:
        super().__init__(sink, block)
        try:
            [(most,)] = self._ask("SELECT @@max_allowed_packet - 1")  # a byte says that it is a query
        except Trouble:
            self.close()
            raise
        self._cursor.most_bytes = int(most)
        self._cursor.max_stmt_length = min(_STATEMENT, int(most))

    def _connect(self) -> Any:
        url = mysql_url(self._sink.address)
        dialect = MySQLDialect_pymysql()
        dialect.dbapi = cast(DBAPIModule, pymysql)
        _, options = dialect.create_connect_args(url)
        connection = pymysql.connect(**{**connect_arguments(url), **options, "cursorclass": _Cursor})
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return connection

    def _trouble(self, error: Exception) -> Trouble:
        code = error_code(error)
        lost = isinstance(error, (pymysql.OperationalError, pymysql.InterfaceError)) and is_clients_own(code)
        return Trouble(
            str(error.args[-1] if error.args else error),
            passing=lost or code in PASSING,
            answered=not lost,
            blame=_BLAME.get(code or 0, Blame.ELSE),
            missing=code == NO_TABLE,
        )
