"""A ledger's SQLite file.

An acknowledged change is on disk. `synchronous=EXTRA` also syncs the folder; without it, a power cut right after a
commit may restore the rollback journal, and with it the old state. The journal mode is SQLite's default and not WAL, so
the one file is the whole ledger whenever nobody writes. A copy of a WAL database without its side files would be an
older ledger, which a backup must never be.

Reading must never create the file. Do not put the file on a network file system: its locks are not reliable. For
drivers on two machines, use PostgreSQL.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, Executable, Inspector, NullPool, create_engine, event
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DBAPIError

from landonce.errors import LandonceError
from landonce.ledger.database import Database, first_line, misplaced, passes_by_itself, refused
from landonce.ledger.tables import position_table

_BUSY_SECONDS = 5.0
_BEGIN = "landonce_begin"
_NOT_OURS = ("file is not a database", "file is encrypted")
_DAMAGED = ("malformed",)
_NOT_WRITABLE = ("readonly database", "unable to open database file")


class SqliteDatabase(Database):
    """One file. Every transaction has its own connection, so a fork or a replaced file does no harm."""

    def __init__(self, path: Path, *, busy_seconds: float = _BUSY_SECONDS) -> None:
        self.path = Path(path).absolute()
        self.place = str(self.path)
        self._busy_seconds = busy_seconds
        self.engine = create_engine(
            URL.create("sqlite", database=str(self.path)), creator=self.connect, poolclass=NullPool
        )
        event.listen(self.engine, "begin", _begin)

    def may_exist(self) -> bool:
        return self.path.exists()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Takes the write lock at once: a transaction that upgrades its lock could fail without waiting."""
        with self.engine.connect().execution_options(**{_BEGIN: "BEGIN IMMEDIATE"}) as connection, connection.begin():
            yield connection

    @contextmanager
    def creating(self) -> Iterator[Connection]:
        if not self.path.parent.is_dir():
            raise misplaced(
                f"{self.place} cannot be created: there is no folder {self.path.parent}.",
                f"mkdir -p {self.path.parent}   (or correct the path in {{file}})",
            )
        if not self.path.exists():
            self._make_file()
        with self.writing() as connection:
            yield connection

    def upsert_positions(self) -> Executable:
        new = insert(position_table)
        return new.on_conflict_do_update(
            index_elements=position_table.primary_key.columns,
            set_={"first": new.excluded.first, "committed": new.excluded.committed},
        )

    def reason(self, failure: DBAPIError) -> str:
        return first_line(failure)

    def fault(self, failure: DBAPIError) -> LandonceError | None:
        return self._fault(first_line(failure), passing=passes_by_itself(failure))

    def no_tables(self, failure: DBAPIError) -> bool:
        return "no such table" in str(failure.orig) or not self.path.exists()

    def check_ours(self, inspector: Inspector) -> None:
        if inspector.get_table_names():
            raise self._not_ours("an SQLite database of something else")

    def close(self) -> None:
        self.engine.dispose()

    def connect(self) -> sqlite3.Connection:
        """`mode=rw` never creates a file; a read-only connection could not roll back what a killed writer left."""
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode=rw",
            uri=True,
            timeout=self._busy_seconds,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA synchronous=EXTRA")
        return connection

    def _make_file(self) -> None:
        """Creates an empty file, which is an empty database. Two drivers may do this at once."""
        try:
            with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=rwc", uri=True)) as connection:
                connection.execute("PRAGMA schema_version")
        except sqlite3.Error as failure:
            raise self._fault(str(failure), passing=False) or refused(self.place, str(failure)) from None

    def _fault(self, reason: str, *, passing: bool) -> LandonceError | None:
        if any(words in reason for words in _NOT_OURS) or self.path.is_dir():
            return self._not_ours("not an SQLite database")
        if any(words in reason for words in _DAMAGED):
            return refused(self.place, reason)
        if any(words in reason for words in _NOT_WRITABLE) and not self._writable():
            return misplaced(
                f"the ledger {self.place} cannot be written: the file and its folder {self.path.parent} must both be "
                f"writable for this user ({reason}).",
                f"make {self.path.parent} writable, or name another place for `ledger` in {{file}}",
            )
        return None if passing else refused(self.place, reason)

    def _writable(self) -> bool:
        places = [self.path.parent, self.path] if self.path.exists() else [self.path.parent]
        return self.path.exists() and all(os.access(each, os.W_OK, effective_ids=True) for each in places)

    def _not_ours(self, what: str) -> LandonceError:
        return misplaced(
            f"{self.place} is not a ledger but {what}.", "name another file for `ledger` in {file}; landonce creates it"
        )


def _begin(connection: Connection) -> None:
    """Turns off the automatic BEGIN of the `sqlite3` module: it leaves out reads and table changes."""
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))
