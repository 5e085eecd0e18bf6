"""What `SqlLedger` needs from a database, and the default database: an SQLite file.

A database begins a transaction that is a consistent snapshot, or one that is durable once its COMMIT is answered, and
interprets its own errors. It must never decide whether a change happened: `SqlLedger` does that.
"""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Executable,
    Inspector,
    NullPool,
    Select,
    create_engine,
    event,
    inspect,
    update,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from landonce.errors import ConfigError, Halt, LandonceError
from landonce.ledger.tables import pipeline_table, position_table, schema_table


class Database(ABC):
    """One store of ledgers. Several pipelines may share it."""

    place: str
    """Its name in messages. Never holds a password."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Connection]:
        """A transaction in which all reads see one snapshot."""

    def scanning(self) -> AbstractContextManager[Connection]:
        """Like `reading`, for a table of any size: without a time limit as long as the database answers."""
        return self.reading()

    @abstractmethod
    def writing(self) -> AbstractContextManager[Connection]:
        """A transaction that is on disk once its COMMIT is answered."""

    @abstractmethod
    def creating(self) -> AbstractContextManager[Connection]:
        """Like `writing`, one at a time for the whole database; first creates the place if it can."""

    @abstractmethod
    def upsert_positions(self) -> Executable:
        """Inserts rows of `landonce_position`, or updates existing ones."""

    @abstractmethod
    def reason(self, failure: DBAPIError) -> str:
        """The database's message, in one line and without secrets."""

    @abstractmethod
    def fault(self, failure: DBAPIError) -> LandonceError | None:
        """The error if waiting does not help; None if the problem may pass by itself."""

    @abstractmethod
    def no_tables(self, failure: DBAPIError) -> bool:
        """Whether the statement failed because the ledger does not exist."""

    @abstractmethod
    def close(self) -> None:
        """Closes connections."""

    def updated(self, connection: Connection, comparison: ColumnElement[bool], values: Mapping[str, Any]) -> bool:
        """Updates the pipeline's row if the comparison holds; False if it does not."""
        return connection.execute(update(pipeline_table).where(comparison).values(values)).rowcount == 1

    def end_writers(self, connection: Connection, pipeline: str) -> None:  # noqa: B027  (most need not)
        """Ends open transactions of a pipeline's workers if they could delay a takeover for long."""

    def locking(self, rows: Select[Any]) -> Select[Any]:
        """The same rows, once no open transaction holds them."""
        return rows.with_for_update()

    def may_exist(self) -> bool:
        """False if there is nothing to open. Called before every read, which must create nothing."""
        return True

    def has_tables(self, connection: Connection) -> bool:
        return inspect(connection).has_table(schema_table.name)

    def reclaim(self, table: str, removed: int) -> bool:
        """Frees the space of removed rows for new ones, where that does not happen by itself. `removed`: bytes since it was freed last.
        False: they are too few yet."""
        del table, removed
        return True

    def check_ours(self, inspector: Inspector) -> None:  # noqa: B027  (most databases are shared)
        """Refuses a place that belongs to something else."""


def upsert(new: Any) -> Executable:
    """Of an insert of positions, in SQLite and PostgreSQL."""
    statement: Executable = new.on_conflict_do_update(
        index_elements=position_table.primary_key.columns,
        set_={"first": new.excluded.first, "committed": new.excluded.committed},
    )
    return statement


def passes_by_itself(failure: DBAPIError) -> bool:
    """Whether a retry may help: the connection, a lock, a disk. Other errors repeat every time."""
    return isinstance(failure, (OperationalError, InterfaceError)) or failure.connection_invalidated


def first_line(failure: DBAPIError, secrets: Sequence[str] = ()) -> str:
    """The database driver's own message. SQLAlchemy's would contain the statement and its values."""
    lines = [line.strip() for line in str(failure.orig).splitlines() if line.strip()]
    text = lines[0] if lines else type(failure.orig).__name__
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def refused(place: str, reason: str) -> Halt:
    """For database errors without a more specific name."""
    return Halt(
        f"the ledger {place} refused: {reason}.",
        safe="The ledger did not change, and nothing is lost.",
        command="fix what the database names, then: landonce run {file}",
    )


def misplaced(what: str, command: str, **more: Any) -> ConfigError:
    return ConfigError(what, safe="Nothing was changed.", command=command, **more)


_BUSY_SECONDS = 5.0
_BEGIN = "landonce_begin"
_NOT_OURS = ("file is not a database", "file is encrypted")
_DAMAGED = ("malformed",)
_NOT_WRITABLE = ("readonly database", "unable to open database file")


class SqliteDatabase(Database):
    """One file. Every transaction has its own connection, so a fork or a replaced file does no harm.

    An acknowledged change is on disk. `synchronous=EXTRA` also syncs the folder; without it, a power cut right after a
    commit may restore the rollback journal, and with it the old state. The journal mode is SQLite's default and not
    WAL, so the one file is the whole ledger whenever nobody writes. A copy of a WAL database without its side files
    would be an older ledger, which a backup must never be.

    Reading must never create the file. Do not put the file on a network file system: its locks are not reliable. For
    drivers on two machines, use PostgreSQL.
    """

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
        return upsert(insert(position_table))

    def reason(self, failure: DBAPIError) -> str:
        return first_line(failure)

    def fault(self, failure: DBAPIError) -> LandonceError | None:
        return self._fault(first_line(failure), passing=passes_by_itself(failure))

    def no_tables(self, failure: DBAPIError) -> bool:
        return "no such table" in str(failure.orig) or not self.path.exists()

    def check_ours(self, inspector: Inspector) -> None:
        if not all(name.startswith("landonce_") for name in inspector.get_table_names()):
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
        places = [self.path.parent, self.path]
        writable = self.path.exists() and all(os.access(each, os.W_OK, effective_ids=True) for each in places)
        if any(words in reason for words in _NOT_WRITABLE) and not writable:
            return misplaced(
                f"the ledger {self.place} cannot be written: the file and its folder {self.path.parent} must both be "
                f"writable for this user ({reason}).",
                f"make {self.path.parent} writable, or name another place for `ledger` in {{file}}",
            )
        return None if passing else refused(self.place, reason)

    def _not_ours(self, what: str) -> LandonceError:
        return misplaced(
            f"{self.place} is not a ledger but {what}.", "name another file for `ledger` in {file}; landonce creates it"
        )


def _begin(connection: Connection) -> None:
    """Turns off the automatic BEGIN of the `sqlite3` module: it leaves out reads and table changes."""
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))
