"""A ledger in an SQL database: one code for all of them.

A change is one transaction: it updates the pipeline's row if pipeline, epoch, owner, version and lineage are the old
ones, then the positions that moved, then writes the note. The cost of a change grows with what it changes, not with
what the ledger holds.

    the answer to a change       what follows
    ───────────────────────────  ──────────────────────────────────────────────────────────────────────────────
    one row updated, committed   done
    no row updated               read: our own earlier attempt (done), or another driver's change (`Fenced`)
    none, or an error            in doubt. Read, after a pause: the new state (done), the old one (send again),
                                 another (`Fenced`). No attempts left: `LedgerUnavailable`, still in doubt

Sending again is harmless even while the first attempt still runs inside the server: it holds the row, the second one
waits for it, and then finds another version. The ledger must never guess the outcome of an attempt.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, insert, inspect, select
from sqlalchemy.exc import DBAPIError

from landonce.ledger.database import Database
from landonce.ledger.patient import PatientLedger
from landonce.ledger.tables import (
    SCHEMA_VERSION,
    changed_columns,
    check_schema,
    dropped_positions,
    journal_table,
    metadata,
    moved_positions,
    pipeline_row,
    pipeline_table,
    position_rows,
    position_table,
    schema_table,
    state_of,
    unchanged,
)
from landonce.protocol.ledger import LedgerState, Note, fenced, settled_change

_VERSION = select(schema_table.c.version)


class SqlLedger(PatientLedger):
    """Keeps one pipeline's state in a `Database`."""

    failures = (DBAPIError,)

    def __init__(self, database: Database, pipeline: str, *, attempts: int = 8, backoff: float = 0.2) -> None:
        super().__init__(pipeline, attempts=attempts, backoff=backoff)
        self.database = database

    @property
    def place(self) -> str:
        return str(self.database.place)

    def close(self) -> None:
        self.database.close()

    # One attempt each.

    def _change(self, old: LedgerState, new: LedgerState, note: Note | None) -> LedgerState:
        in_doubt = self._doubt == new
        if in_doubt and settled_change(old, new, self._read()):
            return self._certain(new)
        self._doubt = new
        if self._swap(old, new, note):
            return self._certain(new)
        seen = self._read()
        if in_doubt and seen == new:
            return self._certain(new)
        raise fenced(old, seen)

    def _swap(self, old: LedgerState, new: LedgerState, note: Note | None) -> bool:
        """True if the swap is durable, False if the ledger does not hold `old`. Any error leaves it in doubt."""
        try:
            with self.database.writing() as connection:
                if not self.database.updated(connection, self._comparison(old), changed_columns(old, new)):
                    return False
                self._move_positions(connection, old, new)
                self._change_beside(connection, old, new)
                if note is not None:
                    self._append(connection, note)
        except DBAPIError as failure:
            if self.database.no_tables(failure):
                return False
            raise
        return True

    def _change_beside(self, connection: Connection, old: LedgerState, new: LedgerState) -> None:
        """What else changes in the same transaction."""

    def _comparison(self, old: LedgerState) -> ColumnElement[bool]:
        return unchanged(old)

    def _move_positions(self, connection: Connection, old: LedgerState, new: LedgerState) -> None:
        if dropped := dropped_positions(old, new):
            keys = [{"of": self.pipeline, "in_topic": each.topic, "number": each.number} for each in dropped]
            row = position_table.c
            connection.execute(
                delete(position_table).where(
                    row.pipeline == bindparam("of"),
                    row.topic == bindparam("in_topic"),
                    row.partition == bindparam("number"),
                ),
                keys,
            )
        if moved := moved_positions(old, new):
            connection.execute(self.database.upsert_positions(), moved)

    def _append(self, connection: Connection, note: Note) -> None:
        """The pipeline's row is locked by its update, so no other note can take the same number."""
        last = connection.scalar(select(func.max(journal_table.c.seq)).where(journal_table.c.pipeline == self.pipeline))
        connection.execute(
            insert(journal_table).values(
                pipeline=self.pipeline,
                seq=(last or 0) + 1,
                at=note.at,
                action=note.action,
                detail=note.detail,
            )
        )

    def _create(self, state: LedgerState) -> LedgerState:
        with self.database.creating() as connection:
            self._make_tables(connection)
            seen = self._read_in(connection)
            if seen is not None:
                return seen
            connection.execute(insert(pipeline_table), pipeline_row(state))
            if rows := position_rows(state.pipeline, state.positions):
                connection.execute(insert(position_table), rows)
        return state

    def _make_tables(self, connection: Connection) -> None:
        if not self.database.has_tables(connection):
            self.database.check_ours(inspect(connection))
            metadata.create_all(connection)
        if _unbegun(connection, connection.scalar(_VERSION)):
            connection.execute(insert(schema_table), {"only": 1, "version": SCHEMA_VERSION})
        self._create_beside(connection)

    def _create_beside(self, connection: Connection) -> None:
        """What else must exist."""

    def _read(self) -> LedgerState | None:
        if not self.database.may_exist():
            return None
        with self.database.reading() as connection:
            if not self.database.has_tables(connection):
                self.database.check_ours(inspect(connection))
                return None
            return self._read_in(connection)

    def _read_in(self, connection: Connection) -> LedgerState | None:
        version = connection.scalar(_VERSION)
        if _unbegun(connection, version):
            return None
        check_schema(version, self.database.place)
        found = select(pipeline_table).where(pipeline_table.c.pipeline == self.pipeline)
        row = connection.execute(found).one_or_none()
        if row is None:
            return None
        positions = select(position_table).where(position_table.c.pipeline == self.pipeline)
        return state_of(row, connection.execute(positions))

    def _read_journal(self) -> tuple[Note, ...]:
        if not self.database.may_exist():
            return ()
        with self.database.reading() as connection:
            if not self.database.has_tables(connection):
                return ()
            mine = select(journal_table).where(journal_table.c.pipeline == self.pipeline)
            rows: Any = connection.execute(mine.order_by(journal_table.c.seq))
            return tuple(Note(row.at, row.action, row.detail) for row in rows)

    def _reason(self, failure: Exception) -> str:
        if not isinstance(failure, DBAPIError):
            raise failure
        if (fault := self.database.fault(failure)) is not None:
            raise fault from None
        return self.database.reason(failure)


def _unbegun(connection: Connection, version: int | None) -> bool:
    """Tables without a version and without any pipeline: if CREATE TABLE commits by itself, a crash during the first
    start leaves them like this."""
    return version is None and connection.execute(select(pipeline_table.c.pipeline).limit(1)).first() is None
