"""A ledger in memory: the fake beside the real ones, with the same contract.

It is for tests and experiments. A pipeline that must survive its own process must never use it: the ledger ends with
the process.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from landonce.protocol.ledger import Ledger, LedgerState, Note, check_change, fenced, key


@dataclass
class MemoryStore:
    """What several `MemoryLedger`s of one process share, as several drivers share a database."""

    states: dict[str, LedgerState] = field(default_factory=dict)
    notes: dict[str, tuple[Note, ...]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __reduce__(self) -> tuple[type[MemoryStore], tuple[()]]:
        """Another process gets an empty one."""
        return MemoryStore, ()


class MemoryLedger(Ledger):
    """Keeps one pipeline's state in a `MemoryStore`."""

    def __init__(self, pipeline: str, store: MemoryStore | None = None) -> None:
        self.pipeline = pipeline
        self._store = store or MemoryStore()

    def load(self) -> LedgerState | None:
        return self._store.states.get(self.pipeline)

    def create(self, state: LedgerState) -> LedgerState:
        if state.pipeline != self.pipeline:
            raise ValueError(f"this ledger keeps {self.pipeline!r}, not {state.pipeline!r}")
        with self._store.lock:
            return self._store.states.setdefault(self.pipeline, state)

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        check_change(self.pipeline, old, new)
        with self._store.lock:
            seen = self.load()
            if seen is None or not self._is_what_is_there(old, seen):
                raise fenced(old, seen)
            if note is not None:
                self._store.notes[self.pipeline] = (*self.journal(), note)
            self._store.states[self.pipeline] = new
        return new

    def journal(self) -> tuple[Note, ...]:
        return self._store.notes.get(self.pipeline, ())

    def close(self) -> None:
        """There is nothing to close."""

    def _is_what_is_there(self, old: LedgerState, seen: LedgerState) -> bool:
        return key(old) == key(seen)
