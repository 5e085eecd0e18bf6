"""Where the contract runs: each site says how to open its ledger, and what it can be held to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import event

from landonce.ledger.database import Database, SqliteDatabase
from landonce.ledger.memory import MemoryLedger, MemoryStore
from landonce.ledger.postgres import PostgresDatabase
from landonce.ledger.sql import SqlLedger
from landonce.protocol.ledger import Ledger
from landonce.testing import LedgerSite
from landonce.testing.crashing import SOME_MOMENTS

ATTEMPTS, BACKOFF = 6, 0.02
COMMIT = "COMMIT"


ALL = ("memory", "sqlite", "postgres")
BETWEEN_PROCESSES = ("sqlite", "postgres")


@dataclass
class Site(LedgerSite):
    """One empty store. `kind` may be swapped for a broken ledger: that is how the contract is itself tested."""

    moments = SOME_MOMENTS
    name: str
    kind: type[Ledger]
    database: Callable[[], Database] | None = None
    store: MemoryStore = field(default_factory=MemoryStore)

    @property
    def shared(self) -> bool:  # type: ignore[override]
        return self.name in BETWEEN_PROCESSES

    def open(self, pipeline: str, kind: type[Ledger] | None = None) -> Ledger:
        kind = kind or self.kind
        if issubclass(kind, MemoryLedger):
            return kind(pipeline, self.store)
        assert issubclass(kind, SqlLedger)
        assert self.database is not None
        return kind(self.database(), pipeline, attempts=ATTEMPTS, backoff=BACKOFF)


def memory_site() -> Site:
    return Site("memory", MemoryLedger)


def sqlite_site(folder: Path) -> Site:
    return Site("sqlite", SqlLedger, lambda: SqliteDatabase(folder / "ledger.db", busy_seconds=10))


def postgres_site(url: str) -> Site:
    return Site("postgres", SqlLedger, lambda: PostgresDatabase(url))


@contextmanager
def before_statement(ledger: Ledger, word: str, act: Callable[[], None]) -> Iterator[None]:
    """Does `act` when the ledger is about to run a statement that holds `word`, or to commit."""

    def commits(connection):
        if word == COMMIT:
            act()

    def listen(connection, cursor, statement, parameters, context, executemany):
        if word in statement:
            act()

    engine = ledger.database.engine
    event.listen(engine, "before_cursor_execute", listen)
    event.listen(engine, "commit", commits)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", listen)
        event.remove(engine, "commit", commits)
