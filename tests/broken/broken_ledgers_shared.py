"""Broken ledgers in SQLite files, for the cases of ledgers that several processes share. For tests of the kit only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from sqlalchemy import ColumnElement, and_

from landonce.errors import LedgerUnavailable
from landonce.ledger.database import SqliteDatabase
from landonce.ledger.sql import SqlLedger
from landonce.ledger.tables import changed_columns, pipeline_table
from landonce.protocol.ledger import LedgerState, Note, check_change, fenced, key
from landonce.testing.ledger_sites import InSqlite, LedgerSite


class Unguarded(SqlLedger):
    """Writes whatever is there, and takes its time."""

    def _comparison(self, old: LedgerState) -> ColumnElement[bool]:
        return and_(pipeline_table.c.pipeline == old.pipeline)

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        time.sleep(0.05)
        return super().change(old, new, note)


class RacyCreator(SqlLedger):
    """Looks, then creates, in two transactions."""

    def _create(self, state: LedgerState) -> LedgerState:
        seen = self._read()
        if seen is not None:
            return seen
        time.sleep(2.0)
        super()._create(state)
        with self.database.writing() as connection:
            connection.execute(pipeline_table.delete().where(pipeline_table.c.pipeline == state.pipeline))
        return super()._create(state)


class TornCreator(SqlLedger):
    """Creates without the positions, which it adds in a second transaction."""

    def _create(self, state: LedgerState) -> LedgerState:
        seen = super()._create(replace(state, positions=()))
        if not seen.positions and state.positions:
            with self.database.writing() as connection:
                self._move_positions(connection, seen, state)
        return self._read() or state


class Torn(SqlLedger):
    """A transaction for each statement."""

    def _swap(self, old: LedgerState, new: LedgerState, note: Note | None) -> bool:
        with self.database.writing() as connection:
            found = pipeline_table.update().where(self._comparison(old)).values(changed_columns(old, new))
            if connection.execute(found).rowcount != 1:
                return False
        with self.database.writing() as connection:
            self._move_positions(connection, old, new)
        if note is not None:
            with self.database.writing() as connection:
                self._append(connection, note)
        return True


class LockFile(SqlLedger):
    """Keeps others out by a file that only its maker takes away."""

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        assert isinstance(self.database, SqliteDatabase)
        path = self.database.path.with_suffix(".lock")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            raise LedgerUnavailable("another driver changes the ledger") from None
        try:
            return super().change(old, new, note)
        finally:
            path.unlink()


class AnsweringFirst(SqlLedger):
    """Says that changes are there, and writes them when this process looks the next time."""

    _kept: ClassVar[dict[int, list[tuple[LedgerState, LedgerState, Note | None]]]] = {}

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        check_change(self.pipeline, old, new)
        mine = [each[1] for each in self._waiting() if each[1].pipeline == self.pipeline]
        seen = mine[-1] if mine else super().load()
        if seen is None or key(seen) != key(old):
            raise fenced(old, seen)
        self._waiting().append((old, new, note))
        return new

    def load(self) -> LedgerState | None:
        self._flush()
        return super().load()

    def journal(self) -> tuple[Note, ...]:
        self._flush()
        return super().journal()

    def _waiting(self) -> list[tuple[LedgerState, LedgerState, Note | None]]:
        return self._kept.setdefault(os.getpid(), [])

    def _flush(self) -> None:
        while self._waiting():
            old, new, note = self._waiting().pop(0)
            SqlLedger(self.database, old.pipeline).change(old, new, note)


def _sqlite(kind: type[SqlLedger]) -> Callable[[Path], LedgerSite]:
    return lambda folder: InSqlite(folder, kind)


BROKEN_SHARED_LEDGERS: dict[str, Callable[[Path], LedgerSite]] = {
    "processes_that_create_at_once_agree": _sqlite(RacyCreator),
    "every_epoch_has_one_owner": _sqlite(Unguarded),
    "processes_that_count_at_once_lose_nothing": _sqlite(Unguarded),
    "a_create_that_is_killed_at_any_line_is_whole_or_absent": _sqlite(TornCreator),
    "a_change_that_is_killed_at_any_line_is_whole_or_absent": _sqlite(Torn),
    "a_driver_that_was_killed_locks_nobody_out": _sqlite(LockFile),
    "killed_at_any_time": _sqlite(AnsweringFirst),
}
