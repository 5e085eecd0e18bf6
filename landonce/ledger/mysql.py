"""A ledger in MySQL or MariaDB, for pipelines whose table is there too. InnoDB only: it has transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from sqlalchemy import URL, Connection, Executable, NullPool, create_engine, text
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.exc import DBAPIError

from landonce.errors import LandonceError, LedgerUnavailable
from landonce.ledger.database import Database, first_line, misplaced, passes_by_itself, refused
from landonce.ledger.tables import position_table

_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 60
_SCAN_SECONDS = 3600
_LOCK_SECONDS = 5
_NO_ENTRY = {1044, 1045, 1049, 1698}
_NO_RIGHT = {1142, 1143, 1227}
NO_TABLE = 1146
PASSING = {1040, 1047, 1053, 1180, 1203, 1205, 1213, 1226, 1290, 1317, 1836, 1927, 1969, 3024, 3101, 4031}
"""Locks and deadlocks; too many connections; a server or cluster that ends, is not ready or is read-only for now; a
session that was killed or timed out; a statement that exceeded the server's time limit."""
_MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_BACKSLASH_ESCAPES,NO_AUTO_VALUE_ON_ZERO"
_CREATE_LOCK, _CREATE_SECONDS = "landonce", 10


class MySqlDatabase(Database):
    """One database of one server."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self.engine = create_engine(
            mysql_url(url),
            connect_args=connect_arguments(url),
            pool_size=1,
            max_overflow=-1,
            pool_pre_ping=True,  # the server ends idle sessions
            hide_parameters=True,
        )
        self.place = f"{url.get_backend_name()}://{url.host or ''}/{url.database or ''}"
        self._secrets = (str(url.password),) if url.password else ()

    def reading(self) -> AbstractContextManager[Connection]:
        return self._transaction("REPEATABLE READ")

    @contextmanager
    def scanning(self) -> Iterator[Connection]:
        """Uses its own session, which waits longer for an answer."""
        patient = {**connect_arguments(self._url), "read_timeout": _SCAN_SECONDS}
        engine = create_engine(mysql_url(self._url), connect_args=patient, poolclass=NullPool, hide_parameters=True)
        with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection, connection.begin():
            yield connection

    def writing(self) -> AbstractContextManager[Connection]:
        return self._transaction("READ COMMITTED")

    @contextmanager
    def creating(self) -> Iterator[Connection]:
        """CREATE TABLE commits in MySQL, so a named lock lets one driver at a time create tables. Another session holds
        the lock, so it lasts until the transaction's COMMIT is answered."""
        with self.engine.connect() as keeper:
            parameters = {"name": _CREATE_LOCK, "seconds": _CREATE_SECONDS}
            if keeper.scalar(text("SELECT GET_LOCK(:name, :seconds)"), parameters) != 1:
                raise LedgerUnavailable(
                    f"the ledger {self.place}: another driver has been creating its tables for more than "
                    f"{_CREATE_SECONDS} s.",
                    safe="Nothing was changed.",
                    command="landonce run {file}",
                )
            try:
                with self.writing() as connection:
                    yield connection
            finally:
                with suppress(DBAPIError):  # then its session has ended, and the lock with it
                    keeper.scalar(text("SELECT RELEASE_LOCK(:name)"), {"name": _CREATE_LOCK})

    def upsert_positions(self) -> Executable:
        new = insert(position_table)
        return new.on_duplicate_key_update(first=new.inserted.first, committed=new.inserted.committed)

    def reason(self, failure: DBAPIError) -> str:
        return first_line(failure, self._secrets)

    def fault(self, failure: DBAPIError) -> LandonceError | None:
        code, reason = error_code(failure.orig), self.reason(failure)
        if code in _NO_ENTRY:
            return misplaced(f"the database {self.place} refused the login: {reason}.", "correct the URL in {file}")
        if code in _NO_RIGHT:
            return misplaced(
                f"the database {self.place} refused: {reason}.",
                "grant the user CREATE, or SELECT, INSERT, UPDATE and DELETE on the tables landonce_*",
            )
        passing = code in PASSING or (is_clients_own(code) and passes_by_itself(failure))
        return None if passing else refused(self.place, reason)

    def no_tables(self, failure: DBAPIError) -> bool:
        return error_code(failure.orig) == NO_TABLE

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _transaction(self, isolation: str) -> Iterator[Connection]:
        with self.engine.connect().execution_options(isolation_level=isolation) as connection, connection.begin():
            connection.execute(text(f"SET SESSION innodb_lock_wait_timeout = {_LOCK_SECONDS}"))
            yield connection


def mysql_url(url: URL) -> URL:
    """Uses landonce's own driver."""
    return url if "+" in url.drivername else url.set(drivername=f"{url.drivername}+pymysql")


def connect_arguments(url: URL) -> dict[str, Any]:
    """No call waits for ever; text is full Unicode; times are UTC; values that do not fit are errors; 0 stays 0."""
    defaults: dict[str, Any] = {
        "connect_timeout": _CONNECT_SECONDS,
        "read_timeout": _ANSWER_SECONDS,
        "write_timeout": _ANSWER_SECONDS,
        "charset": "utf8mb4",
        "init_command": f"SET time_zone = '+00:00', sql_mode = '{_MODE}', sql_notes = 1, wait_timeout = {_ANSWER_SECONDS}",
    }
    return {name: value for name, value in defaults.items() if name not in url.query}


def error_code(failure: BaseException | None) -> int | None:
    """MySQL's error number."""
    arguments = getattr(failure, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None


def is_clients_own(code: int | None) -> bool:
    """Whether the client raised it: numbers below 2000, and from 3000 on, are the server's."""
    return code is None or code == 0 or 2000 <= code < 3000
