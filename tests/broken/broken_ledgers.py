"""A broken ledger for every case: each lacks one promise, and the case of that promise must notice.

They show what the cases are worth, and what a mistake looks like. Nothing but a test of the kit may open one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from broken_ledgers_shared import BROKEN_SHARED_LEDGERS

from landonce.errors import Fenced
from landonce.ledger.memory import MemoryLedger, MemoryStore
from landonce.protocol.ledger import LedgerState, Note, fenced, key
from landonce.testing.ledger_sites import InMemory, LedgerSite


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
    """Takes a change for done if its result is there, whoever made it."""

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
    **BROKEN_SHARED_LEDGERS,
}
