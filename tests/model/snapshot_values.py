"""The values of the model of tables with snapshots: what may go wrong, what there is to read, and the state of everything.

As in `values`: production values are interned as integers, coordinates are bits, and a `Lake` (the world) is a small tuple.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from .values import Routed, quick

NONE = -1


@dataclass(frozen=True)
class Faults:
    """How often each thing may happen in one run."""

    crash: int = 0
    """A driver dies."""
    lost: int = 0
    """A commit is accepted, and its answer is lost: the driver performs the effect from the start."""
    late: int = 0
    """A commit is on its way when its driver gives it up or dies: it arrives at any time, or never."""
    rollback: int = 0
    """A table goes back to an earlier snapshot of its branch."""
    forward: int = 0
    """A table is set to a snapshot that is not in its branch: one that a rollback had left."""
    foreign: int = 0
    """Somebody else appends to the table."""
    compact: int = 0
    """The table's files are written again by somebody else."""
    expire: int = 0
    """Old snapshots are removed; what they hold is still in the newer ones."""
    replace: int = 0
    """A table is dropped and made again, empty."""
    drop: int = 0
    """A table is dropped."""
    lose: int = 0
    """The ledger is lost."""
    restore: int = 0
    """The ledger is restored from a backup that was taken at any time before."""
    doubt: int = 0
    """A worker's answer does not come: its files count for nothing."""
    slow: int = 0
    """There is a commit timeout, and some blocks are not ready when it is over."""


KINDS = tuple(Faults.__dataclass_fields__)


@dataclass(frozen=True)
class Scenario(Routed):
    """What there is to read, where it goes, how it is cut, and what may go wrong."""

    own: bool = False
    """The one table is the ledger."""
    absent: str = ""
    """Tables that are not there yet: a worker asks for them."""
    once: bool = True
    """Drivers end when all is done. Otherwise they wait, and look at the tables now and then."""
    follow: bool = True
    careless: bool = False
    """A ledger is lost or restored while drivers run and commits are under way."""


@quick
class Snap(NamedTuple):
    """One snapshot. `total` is everything that the branch holds with it."""

    parent: int
    mark: int
    rows: int
    total: int
    kept: bool
    rewrites: bool
    """A compaction: the same rows, in other files."""


@quick
class Tab(NamedTuple):
    """One table. Snapshots are numbered from 0, and `copy` is the mark that its property holds."""

    uuid: int
    there: bool
    head: int
    snaps: tuple[Snap, ...]
    copy: int


@quick
class Attempt(NamedTuple):
    """A commit that was judged and goes to the catalog: it counts if the head is still the one that was loaded."""

    table: int
    uuid: int
    head: int
    mark: int
    rows: int


@quick
class Agent(NamedTuple):
    """A driver that lives, between two things that it does."""

    number: int
    takes: int
    """How often it took the pipeline: each time under a new name."""
    driver: int
    effect: int
    level: int
    """What it clips the topics to, once it surveyed them; -1 before that, or if it does not."""
    idle: bool
    done: tuple[Any, ...]
    """What is done of the effect: tables that were looked at, verdicts of the tables that were committed to, …"""
    attempt: Attempt | None
    expected: int
    """The table as this driver last saw or left it, where the table is the ledger."""
    came: tuple[int, int] | None = None
    """What Spark brings to a query: the range of the one partition."""
    owed: int = 0
    """What was slow in a batch of this driver."""


@quick
class Lake(NamedTuple):
    """All that is, between two steps."""

    level: int
    ledger: int
    backup: int
    tables: tuple[int, ...]
    drivers: tuple[Agent, ...]
    flights: tuple[Attempt, ...]
    """Commits that are still on their way, and that nobody waits for."""
    letters: int
    left: tuple[int, ...]
    starts: int
    promised: tuple[int, ...]
    """Where each Kafka partition began when the pipeline was bound for the first time; from there on all is owed."""
    halted: str
    """Why the last driver halted, once everybody else is gone."""
