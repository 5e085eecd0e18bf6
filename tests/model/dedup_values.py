"""The values of the model of deduplication: what is in the topics, what may go wrong, and the state of everything between two steps."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

from .values import quick


@dataclass(frozen=True)
class Faults:
    """How often each thing may happen in one run."""

    crash: int = 0
    """A driver dies, with its workers."""
    lost: int = 0
    """A commit or a send takes effect, and is not answered."""
    unsure: int = 0
    """A commit or a send does not take effect, and is not answered."""
    merge: int = 0
    """A worker that searches a shard merges its runs."""
    expire: int = 0
    """Somebody looks for ids that expired; what it finds, it drops at any time after that."""
    reshard: int = 0
    """Somebody splits or joins the runs for another number of shards, and puts them in place at any time after that."""
    restore: int = 0
    """The store is restored from a backup that was taken at any time before. Nobody runs meanwhile."""


KINDS = tuple(Faults.__dataclass_fields__)


@dataclass(frozen=True)
class Scenario:
    """What there is to read, who reads it, and what may go wrong."""

    name: str
    topics: tuple[str, ...]
    """By pipeline: what it reads. Partitions are separated by `|`, records by blanks: the key, and when it was produced (0, if nothing is
    said). Pipelines with the same text read the same topic."""
    faults: Faults
    _: KW_ONLY
    accepting: int = 2
    """Drivers that accept, in all. They are of one pipeline after the other."""
    pushing: int = 1
    """Drivers that push, in all. 0: nothing is pushed before the end."""
    alive: int = 2
    """Drivers of each kind at the same time."""
    batch_rows: tuple[int, ...] = (9,)
    """Records in a batch. Of the first driver, the second, … as the pace varies."""
    block_rows: int = 2
    shards: int = 1
    ttl: int = 9
    clock: int = 0
    """How far time goes."""
    tick: int = 1
    """Seconds from one moment to the next, for whoever removes bytes that no list names."""
    cleans: bool = False
    """Chunks and stored blocks are removed once they are not needed."""
    codes: str = "x"
    """Of the first push driver, the second, …: each makes other bytes of the same records."""
    ledger_inside: bool = False
    """The ledger of the push pipeline is in the database of the store, and is restored with it."""
    by_content: bool = False
    """The target knows a block by its content, and not by its token: then only what is stored keeps a retry from landing twice."""
    compares: bool = True
    """The target can be asked what it holds."""
    part: int = 0


@quick
class Store(NamedTuple):
    """The database: the lists of the scope, and blocks as they are sent."""

    lists: int
    blocks: frozenset[Any]
    """(pipeline, batch, block, ranges, content, sent)"""
    removed: tuple[Any, ...]
    """By pipeline: up to where chunks were removed, by partition."""


@quick
class Agent(NamedTuple):
    """A driver of either kind."""

    number: int
    pipeline: int
    takes: int
    machine: int
    effect: int
    expected: int
    """The view of the store's mark that it expects. Nobody who pushes needs one."""
    terms: Any
    """What its workers split and judge by."""
    done: tuple[Any, ...]
    """How far it is inside of an effect."""
    written_at: int
    """When its workers began to write bytes that no list names yet."""
    swept: bool
    """They are gone: somebody took them for left over."""


@quick
class World(NamedTuple):
    """All that is, between two steps."""

    clock: int
    store: Store
    backup: Any
    ledgers: tuple[int, ...]
    """Of the push pipelines."""
    accepting: tuple[Agent, ...]
    pushing: tuple[Agent, ...]
    jobs: tuple[Any, ...]
    """What somebody is about to do: to drop buckets, or to change the number of shards."""
    compared: frozenset[int]
    """The pipelines whose store was found not to be behind the target, since it was restored: their events may be sent."""
    target: frozenset[Any]
    """(pipeline, block, content)"""
    late: frozenset[Any]
    """Records that are dead letters because they came too late."""
    left: tuple[int, ...]
    starts: tuple[int, int]
    halted: str
