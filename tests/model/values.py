"""The values of the model: what may go wrong, what there is to read, and the state of everything between two steps.

A `World` is a small tuple of integers, so that millions can be compared and kept: production values are interned in a
`Table`, and coordinates are bits.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple, TypeVar

Values = TypeVar("Values", bound=type)


def quick(values: Values) -> Values:
    """A NamedTuple whose `_replace` takes two thirds of the time."""
    at = {name: number for number, name in enumerate(values._fields)}

    def _replace(self: tuple[Any, ...], /, **changes: Any) -> Any:
        new = list(self)
        for name, value in changes.items():
            new[at[name]] = value
        return tuple.__new__(values, new)

    values._replace = _replace
    return values


TOPIC = "t"
FRESH = -1
NOBODY = 0


@dataclass(frozen=True)
class Faults:
    """How often each thing may go wrong in one run."""

    crash: int = 0
    """A driver dies, and its workers with it; its inserts stay under way."""
    abandon: int = 0
    """A driver dies, and its workers go on."""
    rerun: int = 0
    """Spark runs a task again: the driver hears DOUBTFUL, and the first run goes on unheard."""
    lost: int = 0
    """An insert is not answered; it is still under way."""
    refused: int = 0
    """The target ends an insert with an error; what has landed of it stays."""
    server: int = 0
    """The server dies: nothing that ran is answered; what has landed stays."""
    burn: int = 0
    """The server dies between a token and its part: the token is known, the rows are not there."""
    forget: int = 0
    """The window rolled: a token is not known any more."""
    unsure: int = 0
    """A change of the ledger is not answered: it was applied, or it was not."""
    restore: int = 0
    """The ledger is restored from a backup that was taken at any time before."""
    lose: int = 0
    """The ledger is lost."""
    stale: int = 0
    """A survey is answered with what was there before the last records arrived."""
    leak: int = 0
    """A kill misses what runs (another replica, a proxy): then the token alone stands between us and a duplicate."""


KINDS = tuple(Faults.__dataclass_fields__)


@dataclass(frozen=True)
class Scenario:
    """What there is to read, how it is cut, and what may go wrong."""

    name: str
    levels: tuple[tuple[int, ...], ...]
    """The stable end of each Kafka partition, as records arrive; -1 where the partition does not exist yet."""
    faults: Faults
    table_partitions: int = 2
    """Records of one Kafka partition alternate between so many partitions of the table."""
    tables: int = 1
    """And between so many tables. The target remembers tokens without their tables: that is the worst that it can do."""
    max_rows: int = 8
    block_rows: int = 8
    parallelism: int = 1
    patience: int = 1
    starts: int = 2
    """Drivers in all."""
    alive: int = 2
    """Drivers at the same time: all but the last that acquired are zombies."""
    clock: int = 4
    gone: frozenset[tuple[int, int]] = frozenset()
    """Offsets that do not exist (compaction)."""
    filtered: frozenset[tuple[int, int]] = frozenset()
    dead: frozenset[tuple[int, int]] = frozenset()
    corrected: bool = False
    """Once the ledger was restored, the file is corrected: what was a dead letter lands when it is delivered again."""
    latest: bool = False
    """The pipeline begins at the end of the topic: what is there before its first start is not asked for."""
    fingerprints: tuple[str, ...] = ("f",)
    """Of the first driver, the second, …"""
    limits: tuple[float, ...] = (1.0,)
    """The share of dead letters that the first driver accepts, the second, …; those that come when nothing goes wrong any more accept all."""
    zombie_restore: bool = False
    """A restore may find an older driver alive, if the restored state is not its own (an epoch is handed out twice)."""
    careless: bool = False
    """A restore waits for nothing and nobody: against the documented condition, and wrong."""
    part: int = 0
    """There are too many worlds to see all of them: so many are searched, and more in the long run. 0: all are."""


@dataclass(frozen=True)
class Routed:
    """A scenario of other protocols: letters say what there is to read, and where it goes."""

    name: str
    routes: tuple[str, ...]
    """One letter for each offset of each Kafka partition: the table that it goes to (`A`, `B`, …), `*` for all of them,
    `-` for a record that is filtered, `!` for a dead letter, and a blank where there is no record."""
    faults: Any
    _: KW_ONLY
    tables: str = "A"
    levels: tuple[tuple[int, ...], ...] = ()
    """The stable end of each Kafka partition, as records arrive; -1 where it does not exist yet. None given: all at once."""
    max_rows: tuple[int, ...] = (8,)
    """Of the first driver, the second, … as the pace varies."""
    block_rows: int = 8
    starts: int = 2
    """Drivers in all."""
    alive: int = 2
    """Drivers at the same time: all but the last that acquired are zombies."""
    latest: bool = False
    """The pipeline begins at the end of the topic: what is there before its first start is not asked for."""
    fingerprints: tuple[str, ...] = ("f",)
    limits: tuple[float, ...] = (1.0,)
    """The share of dead letters that the first driver accepts, the second, …; those that come when nothing goes wrong any more accept all."""
    floor: int = 1
    halts: tuple[str, ...] = ()
    """The named errors that a driver may end in here, which nobody has taken over. All others are defects."""
    part: int = 0
    """There are too many worlds to see all of them: so many are searched, and more in the long run. 0: all are."""


@quick
class World(NamedTuple):
    """All that is, between two steps."""

    clock: int
    level: int
    ledger: int
    backup: int
    drivers: tuple[Agent, ...]
    workers: tuple[Worker, ...]
    inserts: tuple[Insert, ...]
    """Inserts that nobody waits for any more."""
    landed: int
    tokens: frozenset[int]
    dead: int
    left: tuple[int, ...]
    starts: int
    restored: int
    promised: tuple[int, ...]
    """Where each Kafka partition began when the pipeline was bound for the first time; from there on all is owed."""


@quick
class Agent(NamedTuple):
    """A driver: its number is its owner nonce."""

    number: int
    driver: int
    effect: int
    results: Any
    """For each block of the write under way, the result or 0; None before the workers are started."""
    unsure: int
    came: tuple[int, int] | None = None
    """What Spark brings to a query: the range of the one partition."""


@quick
class Worker(NamedTuple):
    """A worker and its block. `heard` is the driver that it reports to."""

    heard: int
    block: int
    settling: int
    missing: int
    insert: Any
    """Its own insert: (running, what has still to land in each table partition), or ()."""


@quick
class Insert(NamedTuple):
    """An insert whose worker has gone or has given up."""

    block: int
    running: int
    parts: tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """What a worker gets: one block, its token and its deadline."""

    index: int
    token: int
    deadline: int
    parts: tuple[int, ...]
    rows: int
    result: Any
    fill: bool
    title: str
    place: int = 0
    """Of its table among those that the block has rows for."""
    tables: int = 1
    then: int = -1
    """The job of the next one."""


@dataclass(frozen=True)
class Violation:
    """What must never be."""

    what: str


@dataclass
class Table:
    """Values as small integers, and back."""

    values: list[Any] = field(default_factory=list)
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def of(self, value: Any) -> int:
        number = self.numbers.get(value)
        if number is None:
            number = self.numbers[value] = len(self.values)
            self.values.append(value)
        return number
