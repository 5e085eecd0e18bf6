"""Where the cases of a ledger run, two sound stores (in memory, and in an SQLite file), and the states that the cases write.

A march is a series of states of which each version is known. It makes a torn state visible: what a ledger holds after a crash must be exactly
the march's state of that version.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path

from landonce.ledger.claims import ClaimPlace
from landonce.ledger.database import SqliteDatabase
from landonce.ledger.entry_claims import EntryClaims
from landonce.ledger.memory import MemoryLedger, MemoryStore
from landonce.ledger.sql import SqlLedger
from landonce.protocol.blocks import Block, Kind, Plan
from landonce.protocol.ledger import (
    Ledger,
    LedgerState,
    Note,
    Position,
    TableMark,
    Totals,
    bound,
    prepared,
    recorded,
    taken,
)
from landonce.protocol.ranges import Partition, Range
from landonce.testing.case import Need
from landonce.testing.crashing import MOST_MOMENTS, SOME_MOMENTS

PIPELINE = "orders"
MARCH_PARTITIONS = tuple(Partition("march", number) for number in range(30))
STEP = 10


def note(number: int) -> Note:
    return Note(f"2026-11-01T00:00:{number:02}Z", "accept-gap", f"detail {number} ✓")


def first_state(pipeline: str = PIPELINE, lineage: str = "lineage-1") -> LedgerState:
    return LedgerState(pipeline, lineage)


def full_state(pipeline: str = PIPELINE) -> LedgerState:
    """Every field differs from its default, and from every other field."""
    blocks = (
        Block((Range(Partition("a.b", 0), 0, 5), Range(Partition("ü", 7), 2**62, 2**62 + 9)), "db.täble", "s1", 3),
        Block((Range(Partition("ü", 8), 1, 2),), "db.täble", number=1),
    )
    return LedgerState(
        pipeline,
        lineage="lineage-1",
        epoch=2**40,
        owner="owner 'quoted' \"twice\" ✓",
        version=2**41,
        cluster_id="cluster",
        topic_ids=(("ü", "id-1"), ("a.b", "id-2")),
        positions=(
            (Partition("B", 0), Position(0, 0)),
            (Partition("a.b", 0), Position(3, 2**62)),
            (Partition("a.b", 10), Position(4, 5)),
            (Partition("ü", 9), Position(6, 7)),
        ),
        pending=Plan(17, blocks, "fingerprint", 1_790_000_000_123, Kind.FILL),
        batch=17,
        totals=Totals(2**50, 11, 12),
        labels=(("ü", "ü@2"), ("a.b", "a.b@1")),
        tables=(("db.täble", TableMark("uuid-1", 17)), ("evolving", TableMark("", 16, ("id", "ü")))),
        lately=Totals(13, 2**49, 14),
    )


def wide_state(count: int) -> LedgerState:
    """Bound to `count` partitions, with a pending plan of as many blocks."""
    partitions = [Partition("wide", number) for number in range(count)]
    state = bound(first_state(), "cluster", {"wide": "id"}, dict.fromkeys(partitions, 0))
    blocks = tuple(Block((Range(each, 0, STEP),), "table") for each in partitions)
    return prepared(state, Plan(1, blocks, "fingerprint", 1))


def claimable_state(blocks: int, pipeline: str = PIPELINE) -> LedgerState:
    """Bound to as many partitions as there are to be blocks, and ready for a plan."""
    partitions = [Partition("claimed", number) for number in range(blocks)]
    return bound(taken(first_state(pipeline), "driver"), "cluster", {"claimed": "id"}, dict.fromkeys(partitions, 0))


def claimable_plan(blocks: int) -> Plan:
    """A block for each partition."""
    ranges = [Range(Partition("claimed", number), 0, STEP) for number in range(blocks)]
    return Plan(1, tuple(Block((each,), "sink", number=at) for at, each in enumerate(ranges)), "fingerprint", 0)


@dataclass(frozen=True)
class _NoPlace(ClaimPlace):
    """A case opens its ledgers from its site."""

    def open(self) -> EntryClaims:
        raise NotImplementedError("a case opens its ledgers from its site")


def claims_of(ledger: Ledger) -> EntryClaims:
    """The ledger as a wrapped sink has it."""
    return EntryClaims(ledger, _NoPlace())


def advanced(state: LedgerState) -> LedgerState:
    """The march's next state: take, bind, then prepare and record in turn, every partition by one step."""
    if not state.owner:
        return taken(state, "marcher")
    if state.fresh:
        return bound(state, "cluster", {"march": "id"}, dict.fromkeys(MARCH_PARTITIONS, 0))
    if state.pending is not None:
        return recorded(state, Totals(landed=STEP * len(MARCH_PARTITIONS)))
    start = state.positions[0][1].committed
    blocks = tuple(Block((Range(each, start, start + STEP),), "table") for each in MARCH_PARTITIONS)
    return prepared(state, Plan(state.batch + 1, blocks, "fingerprint", 1))


def marched(version: int) -> LedgerState:
    """The march's state of this version."""
    state = first_state()
    for _ in range(version):
        state = advanced(state)
    return state


def check_whole(seen: LedgerState | None) -> None:
    """Raises unless this is a state of the march, whole."""
    assert seen is not None
    assert seen == marched(seen.version), "torn: not a state that anybody wrote"


def moved(state: LedgerState, owner: str = "moved") -> LedgerState:
    """Every position by one step, and nothing else but the owner."""
    positions = tuple((each, replace(at, committed=at.committed + STEP)) for each, at in state.positions)
    return replace(state, owner=owner, version=state.version + 1, positions=positions)


def counter() -> LedgerState:
    return replace(first_state(), positions=((Partition("counter", 0), Position(0, 0)),))


def counted(state: LedgerState, owner: str) -> LedgerState:
    """One more on the only counter: what two writers lose if either is not fenced."""
    (partition, position), *others = state.positions
    more = replace(position, committed=position.committed + 1)
    return replace(state, owner=owner, version=state.version + 1, positions=((partition, more), *others))


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
