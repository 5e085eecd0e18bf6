"""Ledgers that each lack one guarantee. The contract has to notice every one of them, or it tests nothing."""

from __future__ import annotations

import time
from dataclasses import replace

from sqlalchemy import and_, select

from landonce.record.ledger import LedgerState, Note, fenced
from landonce.record.memory import MemoryLedger
from landonce.record.sql import SqlLedger
from landonce.record.swap import key
from landonce.record.tables import changed_columns, pipeline_table, position_table, state_of


def blind_to(part: str) -> tuple[type[SqlLedger], type[MemoryLedger]]:
    """Ledgers whose compare-and-set leaves out one part of the key."""

    class BlindSql(SqlLedger):
        def _comparison(self, old):
            parts = {name: getattr(old, name) for name in ("pipeline", "epoch", "owner", "version", "lineage")}
            del parts[part]
            return and_(*(pipeline_table.c[name] == value for name, value in parts.items()))

    class BlindMemory(MemoryLedger):
        def _is_what_is_there(self, old, seen):
            return key(replace(old, **{part: getattr(seen, part)})) == key(seen)

    return BlindSql, BlindMemory


class UnguardedSql(SqlLedger):
    """Writes whatever is there, and takes its time, so that two writers surely meet."""

    def _comparison(self, old):
        return pipeline_table.c.pipeline == old.pipeline

    def change(self, old, new, note=None):
        time.sleep(0.01)
        return super().change(old, new, note)


class UnguardedMemory(MemoryLedger):
    def _is_what_is_there(self, old, seen):
        return True

    def change(self, old, new, note=None):
        time.sleep(0.01)
        return super().change(old, new, note)


class TornSql(SqlLedger):
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


class TornReader(SqlLedger):
    """Reads the two tables at two moments."""

    def _read(self):
        with self.database.reading() as connection:
            row = connection.execute(select(pipeline_table)).one()
        with self.database.reading() as connection:
            return state_of(row, connection.execute(select(position_table)).all())


class Forgetful(SqlLedger):
    """Does not settle an attempt without an answer: it just sends again."""

    def _change(self, old, new, note):
        if self._swap(old, new, note):
            return new
        raise fenced(old, self._read())


class RacyCreator(SqlLedger):
    """Looks, then creates, in two transactions."""

    def _create(self, state):
        seen = self._read()
        if seen is not None:
            return seen
        time.sleep(0.05)
        with self.database.creating() as connection:
            connection.execute(pipeline_table.delete())
        return super()._create(state)
