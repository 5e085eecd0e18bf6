"""What `SqlLedger` needs from a database.

A database begins a transaction that is a consistent snapshot, or one that is durable once its COMMIT is answered, and
interprets its own errors. It must never decide whether a change happened: `SqlLedger` does that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import ColumnElement, Connection, Executable, Inspector, Select, inspect, update
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from landonce.errors import ConfigError, Halt, LandonceError
from landonce.ledger.tables import pipeline_table, schema_table


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

    def check_ours(self, inspector: Inspector) -> None:  # noqa: B027  (most databases are shared)
        """Refuses a place that belongs to something else."""


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
