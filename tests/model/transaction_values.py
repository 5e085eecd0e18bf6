"""The values of the model of a database that holds rows and ledger: what may go wrong, what there is, and the state of all.

As in `values`: production values are interned as integers, coordinates are bits, and a `Base` (the world) is a small tuple.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .values import Routed, quick

NONE = -1
NOBODY = 0


@dataclass(frozen=True)
class Faults:
    """How often each thing may happen in one run."""

    crash: int = 0
    """A driver dies, and its workers with it: their open transactions roll back."""
    abandon: int = 0
    """A driver dies, and its workers go on."""
    rerun: int = 0
    """Spark runs a task again: the first run goes on unheard."""
    lost: int = 0
    """A COMMIT is not answered: it held, it did not, or it is still under way."""
    server: int = 0
    """The database is restarted: every open transaction rolls back."""
    unsure: int = 0
    """A change of the ledger is not answered: it was applied, or it was not."""
    lose: int = 0
    """The ledger's tables are removed, and the table of rows is not."""
    restore: int = 0
    """The whole database is restored from a backup that was taken at any time before."""
    wants: int = 0
    """A worker asks for a column first."""


KINDS = tuple(Faults.__dataclass_fields__)


@dataclass(frozen=True)
class Scenario(Routed):
    """What there is to read, how it is cut, and what may go wrong."""

    keyed: bool = False


@quick
class Row(NamedTuple):
    """A block's row: interned claim and receipt."""

    batch: int
    number: int
    claim: int
    after: bool
    receipt: int


@quick
class Worker(NamedTuple):
    """A worker with its block. `open`: its transaction holds the block's row; `wrote`: rows that it holds back."""

    heard: int
    job: int
    transacting: int
    open: bool
    wrote: int
    orphan: bool
    """Only its COMMIT is left, inside the server."""


@quick
class Agent(NamedTuple):
    """A driver that lives."""

    number: int
    driver: int
    effect: int
    results: tuple[int, ...] | None
    unsure: bool
    came: tuple[int, int] | None = None
    """What Spark brings to a query: the range of the one partition."""


@quick
class Job(NamedTuple):
    """One block for one worker."""

    index: int
    batch: int
    number: int
    claim: int
    rows: int
    receipt: int
    title: str


@quick
class Stored(NamedTuple):
    """What a backup holds."""

    ledger: int
    rows: tuple[Row, ...]
    landed: int


@quick
class Base(NamedTuple):
    """All that is, between two steps."""

    level: int
    ledger: int
    rows: tuple[Row, ...]
    landed: int
    backup: Stored | None
    drivers: tuple[Agent, ...]
    workers: tuple[Worker, ...]
    letters: int
    left: tuple[int, ...]
    starts: int
    promised: tuple[int, ...]
    halted: str
    beyond: int = 0
    """The records of the last batches that were recorded beyond the limit, one after the other."""
