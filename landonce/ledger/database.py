"""What a database has to offer so that `SqlLedger` can keep a ledger in it.

A database knows how to begin a transaction that is a consistent snapshot, or one that is durable once its COMMIT is
answered, and what its own errors mean. It must never decide what became of a change: that is `SqlLedger`'s.
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
    """How messages call it. Never holds a password."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Connection]:
        """A transaction in which all reads see one moment."""

    def scanning(self) -> AbstractContextManager[Connection]:
        """As `reading`, for a look at a table of any size: it takes as long as it takes, while the database answers at all."""
        return self.reading()

    @abstractmethod
    def writing(self) -> AbstractContextManager[Connection]:
        """A transaction that is on disk once its end was answered."""

    @abstractmethod
    def creating(self) -> AbstractContextManager[Connection]:
        """As `writing`, one at a time for the whole database; makes the place first if it can."""

    @abstractmethod
    def upsert_positions(self) -> Executable:
        """Inserts rows of `landonce_position`, or updates those that are there."""

    @abstractmethod
    def reason(self, failure: DBAPIError) -> str:
        """What the database said, in one line and without secrets."""

    @abstractmethod
    def fault(self, failure: DBAPIError) -> LandonceError | None:
        """The error for what waiting does not mend; None for what may pass by itself."""

    @abstractmethod
    def no_tables(self, failure: DBAPIError) -> bool:
        """Whether the statement failed because there is no ledger here."""

    @abstractmethod
    def close(self) -> None:
        """Gives connections back."""

    def updated(self, connection: Connection, comparison: ColumnElement[bool], values: Mapping[str, Any]) -> bool:
        """Updates the pipeline's row where the comparison holds; False if it does not."""
        return connection.execute(update(pipeline_table).where(comparison).values(values)).rowcount == 1

    def end_writers(self, connection: Connection, pipeline: str) -> None:  # noqa: B027  (most need not)
        """Ends open transactions of a pipeline's workers, where they could hold a takeover up for long."""

    def locking(self, rows: Select[Any]) -> Select[Any]:
        """The same rows, once nobody has them in an open transaction."""
        return rows.with_for_update()

    def may_exist(self) -> bool:
        """False if there is nothing that could be opened. Asked before every read, which must create nothing."""
        return True

    def has_tables(self, connection: Connection) -> bool:
        return inspect(connection).has_table(schema_table.name)

    def check_ours(self, inspector: Inspector) -> None:  # noqa: B027  (most databases are shared, and that is fine)
        """Refuses a place that belongs to something else."""


def passes_by_itself(failure: DBAPIError) -> bool:
    """Whether trying again may help: the connection, a lock, a disk. Other errors are the same every time."""
    return isinstance(failure, (OperationalError, InterfaceError)) or failure.connection_invalidated


def first_line(failure: DBAPIError, secrets: Sequence[str] = ()) -> str:
    """The driver's own words. SQLAlchemy's would hold the statement and its values."""
    lines = [line.strip() for line in str(failure.orig).splitlines() if line.strip()]
    text = lines[0] if lines else type(failure.orig).__name__
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def refused(place: str, reason: str) -> Halt:
    """For errors of the database that landonce has no better name for."""
    return Halt(
        f"the ledger {place} refused: {reason}.",
        safe="The ledger did not change, and nothing is lost.",
        command="mend what the database names, then: landonce run {file}",
    )


def misplaced(what: str, command: str, **more: Any) -> ConfigError:
    return ConfigError(what, safe="Nothing was changed.", command=command, **more)
