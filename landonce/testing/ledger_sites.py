"""Where the cases of a ledger run, and two sound stores: in memory, and in an SQLite file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from landonce.ledger.database import SqliteDatabase
from landonce.ledger.memory import MemoryLedger, MemoryStore
from landonce.ledger.sql import SqlLedger
from landonce.protocol.ledger import Ledger
from landonce.testing.case import Need, Suite
from landonce.testing.crashing import MOST_MOMENTS, SOME_MOMENTS


class LedgerSite(ABC):
    """An empty store for one case, and what is declared of it."""

    shared = True
    """Several processes see the same store, and it outlives each of them. False only for what lives in memory."""

    bare = True
    """A plan may be recorded though nobody wrote its blocks. False where the ledger looks at the blocks itself."""

    packages: tuple[str, ...] = ()
    """Where else the ledger's own code is: packages of yours that its class calls. Crashes are tried there too."""

    moments = MOST_MOMENTS
    """At how many lines of its own, at most, a crash is tried."""

    @abstractmethod
    def open(self, pipeline: str) -> Ledger:
        """A ledger on the store, as a driver opens it. Called many times, also in other processes."""


LEDGER_CASES: Suite[LedgerSite] = Suite("ledger")
SHARED: Need[LedgerSite] = Need(
    lambda site: site.shared, "the site declares that its store ends with its process (shared = False)"
)
BARE: Need[LedgerSite] = Need(
    lambda site: site.bare,
    "the site declares that its ledger looks at the blocks before it records them (bare = False)",
)


class InMemory(LedgerSite):
    """A store in memory, with ledgers of one class."""

    shared = False

    def __init__(self, kind: type[MemoryLedger] = MemoryLedger, *, shared: bool = False) -> None:
        self._kind = kind
        self._store = MemoryStore()
        self.shared = shared

    def open(self, pipeline: str) -> Ledger:
        return self._kind(pipeline, self._store)


class InSqlite(LedgerSite):
    """An SQLite file, with ledgers of one class."""

    moments = SOME_MOMENTS

    def __init__(self, folder: Path, kind: type[SqlLedger] = SqlLedger) -> None:
        self._path = folder / "ledger.db"
        self._kind = kind

    def open(self, pipeline: str) -> Ledger:
        return self._kind(SqliteDatabase(self._path, busy_seconds=30), pipeline, attempts=6, backoff=0.02)
