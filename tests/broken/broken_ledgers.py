"""A broken ledger for every case: each lacks one promise, and the case of that promise must notice.

They show what the cases are worth, and what a mistake looks like. Nothing but a test of the kit may open one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, and_

from landonce.errors import Fenced, LedgerUnavailable
from landonce.ledger.database import SqliteDatabase
from landonce.ledger.memory import MemoryLedger, MemoryStore
from landonce.ledger.sql import SqlLedger
from landonce.ledger.tables import changed_columns, pipeline_table
from landonce.protocol.ledger import LedgerState, Note, check_change, fenced, key
from landonce.testing.ledger_sites import InMemory, InSqlite, LedgerSite


class Inventing(MemoryLedger):
    def load(self) -> LedgerState | None:
        return super().load() or LedgerState(self.pipeline, "invented")


class NotingLooks(MemoryLedger):
    def journal(self) -> tuple[Note, ...]:
        notes = super().journal()
        if self.load() is None:
            self._store.notes[self.pipeline] = (*notes, Note("now", "look", "somebody looked"))
        return notes


class Replacing(MemoryLedger):
    def create(self, state: LedgerState) -> LedgerState:
        self._store.states.pop(self.pipeline, None)
        return super().create(state)


class ForgettingLabels(MemoryLedger):
    def create(self, state: LedgerState) -> LedgerState:
        return super().create(replace(state, labels=()))


class ForgettingTables(MemoryLedger):
    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        super().change(old, replace(new, tables=()), note)
        return new


class KeepingPositions(MemoryLedger):
    """Writes the positions that a change names, and never takes one away."""

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        kept = tuple(sorted({**dict(old.positions), **dict(new.positions)}.items()))
        super().change(old, replace(new, positions=kept), note)
        return new


class Narrow(MemoryLedger):
    """Room for a thousand partitions."""

    def create(self, state: LedgerState) -> LedgerState:
        return super().create(replace(state, positions=state.positions[:1000]))


def blind_to(part: str) -> type[MemoryLedger]:
    """A compare-and-set that leaves out one part of the key."""

    class Blind(MemoryLedger):
        def _is_what_is_there(self, old: LedgerState, seen: LedgerState) -> bool:
            left_out: dict[str, Any] = {part: getattr(seen, part)}
            return key(replace(old, **left_out)) == key(seen)

    return Blind


class Taciturn(MemoryLedger):
    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        try:
            return super().change(old, new, note)
        except Fenced as error:
            raise Fenced("no" if "no entry" not in str(error) else str(error)) from None


class NotingFirst(MemoryLedger):
    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        if note is not None:
            self._store.notes[self.pipeline] = (*self.journal(), note)
        return super().change(old, new)


class Forgiving(MemoryLedger):
    """Takes a change for done if its result is there, even if another driver made it."""

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        return new if self.load() == new else super().change(old, new, note)


class Reviving(MemoryLedger):
    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        if self.load() is None:
            self.create(old)
        return super().change(old, new, note)


class Backwards(MemoryLedger):
    def journal(self) -> tuple[Note, ...]:
        return super().journal()[::-1]


class CaseBlind(MemoryLedger):
    """As a database whose text does not tell upper from lower case."""

    def load(self) -> LedgerState | None:
        mine, name = self.pipeline, self.pipeline.lower()
        seen = next((state for other, state in self._store.states.items() if other.lower() == name), None)
        return replace(seen, pipeline=mine) if seen else None


class Trusting(MemoryLedger):
    """Swaps without a look at what it is handed."""

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        seen = self.load()
        if seen is None or not self._is_what_is_there(old, seen):
            raise fenced(old, seen)
        self._store.states[self.pipeline] = new
        if note is not None:
            self._store.notes[self.pipeline] = (*self.journal(), note)
        return new


class Remembering(MemoryLedger):
    """Reads once."""

    def __init__(self, pipeline: str, store: MemoryStore | None = None) -> None:
        super().__init__(pipeline, store)
        self._read: LedgerState | None = None

    def load(self) -> LedgerState | None:
        self._read = self._read or super().load()
        return self._read


class ShortTexts(MemoryLedger):
    """Room for texts of 4,000 characters, as columns of some databases have by default."""

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        super().change(old, replace(new, labels=tuple((name, text[:4000]) for name, text in new.labels)), note)
        return new


class RacyInMemory(MemoryLedger):
    """Looks, then creates."""

    def create(self, state: LedgerState) -> LedgerState:
        seen = self.load()
        time.sleep(0.5)
        if seen is None:
            self._store.states[self.pipeline] = state
        return seen or state


class UnguardedInMemory(MemoryLedger):
    """Writes whatever is there, and takes its time, so that two writers surely meet."""

    def _is_what_is_there(self, old: LedgerState, seen: LedgerState) -> bool:
        del old, seen
        return True

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        time.sleep(0.01)
        return super().change(old, new, note)


class Leaving(MemoryLedger):
    def close(self) -> None:
        self._store.states.pop(self.pipeline, None)


# In SQLite files, for the cases of ledgers that several processes share.


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


class LabelsLater(SqlLedger):
    """Writes the labels in a transaction of their own."""

    def _swap(self, old: LedgerState, new: LedgerState, note: Note | None) -> bool:
        if not super()._swap(old, replace(new, labels=old.labels), note):
            return False
        with self.database.writing() as connection:
            which = pipeline_table.c.pipeline == new.pipeline
            connection.execute(pipeline_table.update().where(which).values(changed_columns(old, new)))
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


def _memory(kind: type[MemoryLedger], *, shared: bool = False) -> Callable[[Path], LedgerSite]:
    return lambda _: InMemory(kind, shared=shared)


BROKEN_LEDGERS: dict[str, Callable[[Path], LedgerSite]] = {
    "an_empty_store_has_no_state_and_no_notes": _memory(Inventing),
    "looking_makes_nothing": _memory(NotingLooks),
    "the_first_state_stays": _memory(Replacing),
    "every_field_comes_back_after_create": _memory(ForgettingLabels),
    "every_field_comes_back_after_a_change": _memory(ForgettingTables),
    "what_a_change_takes_away_is_gone": _memory(KeepingPositions),
    "ten_thousand_partitions_fit": _memory(Narrow),
    **{
        f"a_driver_with_another_{part}_is_fenced": _memory(blind_to(part))
        for part in ("epoch", "owner", "version", "lineage")
    },
    "a_fenced_driver_hears_who_owns_the_pipeline": _memory(Taciturn),
    "a_fenced_change_leaves_no_note": _memory(NotingFirst),
    "the_same_change_twice_is_fenced": _memory(Forgiving),
    "a_pipeline_without_an_entry_is_fenced": _memory(Reviving),
    "notes_come_back_in_order": _memory(Backwards),
    "pipelines_do_not_see_each_other": _memory(CaseBlind),
    "mistakes_of_the_caller_change_nothing": _memory(Trusting),
    "a_driver_sees_what_another_changed": _memory(Remembering),
    "threads_that_create_at_once_agree": _memory(RacyInMemory),
    "threads_that_count_at_once_lose_nothing": _memory(UnguardedInMemory),
    "a_closed_ledger_loses_nothing": _memory(Leaving),
    "the_store_outlives_its_process": _memory(MemoryLedger, shared=True),
    "processes_that_create_at_once_agree": _sqlite(RacyCreator),
    "every_epoch_has_one_owner": _sqlite(Unguarded),
    "processes_that_count_at_once_lose_nothing": _sqlite(Unguarded),
    "a_create_that_is_killed_at_any_line_is_whole_or_absent": _sqlite(TornCreator),
    "a_change_that_is_killed_at_any_line_is_whole_or_absent": _sqlite(Torn),
    "a_driver_that_was_killed_locks_nobody_out": _sqlite(LockFile),
    "killed_at_any_time": _sqlite(AnsweringFirst),
    "claims_of_blocks_come_back": _memory(ShortTexts),
    "threads_that_claim_at_once_have_a_block_each": _memory(UnguardedInMemory),
    "a_takeover_and_claims_know_each_other": _memory(UnguardedInMemory),
    "processes_that_claim_at_once_have_a_block_each": _sqlite(Unguarded),
    "a_claim_that_is_killed_at_any_line_is_made_or_not": _sqlite(LabelsLater),
}
