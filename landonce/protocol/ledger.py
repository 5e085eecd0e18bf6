"""The ledger: first and committed position per partition, the pending plan, the epoch.

A `LedgerState` is a value; every change makes a new one and is handed to `Ledger.change(old, new)`, which is one atomic
compare-and-set on pipeline, lineage, epoch, owner and version. What makes new states is pure: the functions here, the batch machine
(`batch`), and the decisions of operators (`operate`). A ledger must never merge, guess or repair: it swaps, or says `Fenced`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from landonce.errors import Fenced, LedgerSetBack, LedgerUnreadable
from landonce.protocol.blocks import Identity, Kind, Plan
from landonce.protocol.ranges import Partition, label_of


@dataclass(frozen=True)
class Position:
    """`first` is the first offset the pipeline ever covered, `committed` the next one to read."""

    first: int
    committed: int


@dataclass(frozen=True)
class Totals:
    """What became of every record since the ledger began. `read` is always the sum of the others."""

    landed: int = 0
    dead_lettered: int = 0
    filtered: int = 0

    @property
    def read(self) -> int:
        return self.landed + self.dead_lettered + self.filtered

    @property
    def listed(self) -> list[int]:
        """As `Totals(*…)` takes it, for JSON."""
        return [self.landed, self.dead_lettered, self.filtered]

    def plus(self, other: Totals) -> Totals:
        return Totals(
            self.landed + other.landed,
            self.dead_lettered + other.dead_lettered,
            self.filtered + other.filtered,
        )

    def minus(self, other: Totals) -> Totals:
        return Totals(
            self.landed - other.landed,
            self.dead_lettered - other.dead_lettered,
            self.filtered - other.filtered,
        )


@dataclass(frozen=True)
class TableMark:
    """One table of a fan-out: which table it is, and the last batch that was committed to it."""

    uuid: str
    batch: int
    columns: tuple[str, ...] = ()
    """All that rows were ever sent for, where the table gets columns by and by: one of them that is gone was dropped, or renamed."""


@dataclass(frozen=True)
class LedgerState:
    """All that the ledger knows of one pipeline."""

    pipeline: str
    lineage: str
    """Random, part of every token: made when the ledger began, and from then on the owner that prepared the last plan.

    So a plan that is made again after the ledger was restored never meets the tokens of the plan that it forgot, one of
    which the target may hold without its rows. A pending plan keeps its lineage when another driver writes it again.
    """
    epoch: int = 0
    owner: str = ""
    """Random per driver, so that a restored ledger that hands out an epoch twice still fences."""
    version: int = 0
    cluster_id: str = ""
    topic_ids: tuple[tuple[str, str], ...] = ()
    positions: tuple[tuple[Partition, Position], ...] = ()
    pending: Plan | None = None
    batch: int = 0
    totals: Totals = field(default_factory=Totals)
    labels: tuple[tuple[str, str], ...] = ()
    """What `_topic` holds for a topic (`topic`) or a partition (`topic[number]`) that was rebased, so that coordinates stay
    unique. Otherwise the topic's name."""
    tables: tuple[tuple[str, TableMark], ...] = ()
    """The tables of a fan-out that were ever committed to. A table that is its own ledger is not listed."""
    lately: Totals = field(default_factory=Totals)
    """Of the batches recorded last, one after the other, that were beyond the limit of dead letters: small ones add up, over restarts, too."""

    @property
    def identity(self) -> Identity:
        return Identity(self.pipeline, self.lineage, self.cluster_id, self.topic_ids)

    @property
    def fresh(self) -> bool:
        """Nothing was ever bound: a first start, or a lost ledger."""
        return not self.cluster_id

    @property
    def inherited(self) -> bool:
        """Another driver than the owner made the last plan."""
        return self.lineage != self.owner

    def label(self, topic: str) -> str:
        """What the target's `_topic` column holds for this topic, but for partitions with a label of their own."""
        return dict(self.labels).get(topic, topic)

    def labelled(self, partition: Partition) -> Partition:
        """The partition as the target knows it."""
        return Partition(label_of(dict(self.labels), partition), partition.number)

    def committed(self) -> dict[Partition, int]:
        return {partition: position.committed for partition, position in self.positions}


@dataclass(frozen=True)
class Note:
    """One line of the ledger's journal: what an operator, or landonce itself, decided outside the ordinary flow."""

    at: str
    action: str
    detail: str


def taken(state: LedgerState, owner: str) -> LedgerState:
    """The pipeline belongs to `owner` from here on; every earlier epoch is fenced."""
    return replace(state, epoch=state.epoch + 1, owner=owner, version=state.version + 1)


def bound(
    state: LedgerState,
    cluster_id: str,
    topic_ids: Mapping[str, str],
    added: Mapping[Partition, int],
) -> LedgerState:
    """Tied to this cluster and these topics, with first positions for partitions that are new."""
    positions = dict(state.positions)
    positions.update({partition: Position(first, first) for partition, first in added.items()})
    return replace(
        state,
        version=state.version + 1,
        cluster_id=cluster_id,
        topic_ids=tuple(sorted(topic_ids.items())),
        positions=tuple(sorted(positions.items())),
    )


def prepared(state: LedgerState, plan: Plan) -> LedgerState:
    """BEFORE: the plan is durable, and nothing of it is written yet."""
    if state.pending is not None:
        raise ValueError("a pending plan is never overwritten")
    return replace(state, version=state.version + 1, lineage=state.owner, pending=plan, batch=plan.batch)


def amended(state: LedgerState, plan: Plan) -> LedgerState:
    """The same pending plan with a later deadline, and the next generation for blocks whose token is used up; or without the blocks that
    were not ready in time."""
    return replace(state, version=state.version + 1, pending=plan)


def recorded(
    state: LedgerState, totals: Totals, tables: Mapping[str, TableMark] | None = None, lately: Totals | None = None
) -> LedgerState:
    """AFTER: the pending plan has landed; positions move to its ends and never backwards. Letters were counted before, as such: what landed
    or was filtered of them is no dead letter any more. Those that `accept-gap` made count were never counted."""
    if state.pending is None:
        raise ValueError("there is no pending plan to record")
    if state.pending.kind is Kind.LETTERS:
        counted = min(totals.read, state.totals.dead_lettered)
        totals = replace(totals, dead_lettered=totals.dead_lettered - counted)
    return replace(
        state,
        version=state.version + 1,
        positions=_moved(state, state.pending.ends()),
        pending=None,
        totals=state.totals.plus(totals),
        tables=tuple(sorted({**dict(state.tables), **(tables or {})}.items())),
        lately=state.lately if lately is None else lately,
    )


def resolved(state: LedgerState, landed: Mapping[int, Totals], left: Plan | None) -> LedgerState:
    """Part of the pending plan is settled without being written again: blocks (by index) that were found landed count, and
    of the rest only `left` is still pending. What is in neither never was."""
    if state.pending is None:
        raise ValueError("there is no pending plan to resolve")
    ends: dict[Partition, int] = {}
    totals = state.totals
    for index, found in landed.items():
        totals = totals.plus(found)
        for each in state.pending.blocks[index].ranges:
            ends[each.partition] = each.end
    return replace(state, version=state.version + 1, positions=_moved(state, ends), pending=left, totals=totals)


def _moved(state: LedgerState, ends: Mapping[Partition, int]) -> tuple[tuple[Partition, Position], ...]:
    return tuple(
        (partition, replace(position, committed=max(position.committed, ends.get(partition, 0))))
        for partition, position in state.positions
    )


def settled_change(old: LedgerState, new: LedgerState, seen: LedgerState | None) -> bool:
    """After a change without an answer: True if it was applied, False if it was not and may be sent again.

    Raises `Fenced` if somebody else changed the pipeline in the meantime.
    """
    if seen == new:
        return True
    if seen == old:
        return False
    raise fenced(old, seen)


def set_back(mine: LedgerState, seen: LedgerState | None) -> bool:
    """Whether the ledger holds an earlier state than this driver's: then it was restored, and no newer driver made it so.

    Of one epoch there is one owner, unless the ledger was restored and taken since; then that driver goes on.
    """
    if seen is None or seen.epoch < mine.epoch:
        return True
    return (seen.epoch, seen.owner) == (mine.epoch, mine.owner) and seen.version < mine.version


def same(mine: LedgerState, seen: LedgerState | None) -> bool:
    """Whether the ledger holds the very state that this driver made."""
    if seen is None or seen.lineage != mine.lineage:
        return False
    return (seen.epoch, seen.owner, seen.version) == (mine.epoch, mine.owner, mine.version)


def require_owner(mine: LedgerState, seen: LedgerState | None) -> None:
    """Raises for a driver that is not the owner any more, before it changes what a newer one may have settled."""
    if seen is None or (seen.epoch, seen.owner) != (mine.epoch, mine.owner):
        raise fenced(mine, seen)


def fenced(mine: LedgerState, seen: LedgerState | None) -> Fenced | LedgerUnreadable:
    """What a driver hears that is not the owner any more, or whose ledger lacks what belongs to the state in it."""
    if same(mine, seen):
        return LedgerUnreadable(
            f"the ledger of pipeline {mine.pipeline!r} is at epoch {mine.epoch}, version {mine.version}, as this "
            "driver left it, but lacks tables or rows, such as the rows of the pending plan's blocks. Somebody "
            "removed them.",
            safe="Nothing more was written, and the position did not move.",
            command="restore the whole ledger from a backup (in an SQL database: all tables landonce_*, together with "
            "the table that records land in), then: landonce run {file}",
        )
    found = f"epoch {seen.epoch}, version {seen.version}" if seen else "no entry at all"
    if set_back(mine, seen):
        return LedgerSetBack(
            f"the ledger of pipeline {mine.pipeline!r} was set back: this driver holds epoch {mine.epoch}, version "
            f"{mine.version}, and the ledger has {found}. The ledger, or the table that holds it, was restored from a "
            "backup.",
            safe="This driver stops and changes nothing more. No other driver has the pipeline. The next start "
            "compares ledger and target.",
            command="start again: landonce run {file}",
        )
    return Fenced(
        f"pipeline {mine.pipeline!r} was taken over: this driver holds epoch {mine.epoch}, version {mine.version}, "
        f"and the ledger has {found}.",
        safe="This driver stops and changes nothing more. Nothing is lost: the newer driver continues.",
    )


class Ledger(ABC):
    """Where a pipeline's state is kept. One object serves one pipeline.

    Hazard: `change` may raise `LedgerUnavailable` after the store has applied it. Implementations settle that
    themselves with `settled_change`, and raise only when they could not find out.
    """

    pipeline: str

    @abstractmethod
    def load(self) -> LedgerState | None:
        """The state, or None if the pipeline has none yet. Reads only: makes no table and no file."""

    def load_while_idle(self) -> LedgerState | None:
        """As `load`, for a driver that waits for records. None where its own looks at the target say whether it was superseded."""
        return self.load()

    @abstractmethod
    def create(self, state: LedgerState) -> LedgerState:
        """Makes the first state unless there is one, and gives back what is there afterwards."""

    @abstractmethod
    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        """Swaps `old` for `new` atomically, with `note` in the journal; `Fenced` if `old` is not what is there."""

    @abstractmethod
    def journal(self) -> tuple[Note, ...]:
        """All notes, oldest first."""

    @abstractmethod
    def close(self) -> None:
        """Gives connections back. A ledger that was killed instead is not harmed."""


Key = tuple[str, int, str, int, str]


def key(state: LedgerState) -> Key:
    """The compare of the compare-and-set. Owner and lineage are random, so a restored ledger cannot repeat a key."""
    return (state.pipeline, state.epoch, state.owner, state.version, state.lineage)


def check_change(pipeline: str, old: LedgerState, new: LedgerState) -> None:
    """Raises for a change that no caller can mean: a mistake in the program, never in the world."""
    if not pipeline == old.pipeline == new.pipeline:
        raise ValueError(f"this ledger keeps {pipeline!r}, not {old.pipeline!r} or {new.pipeline!r}")
    if new.version <= old.version:
        raise ValueError(f"version {new.version} does not follow version {old.version}")
    check_order(new)


def check_order(state: LedgerState) -> None:
    """A store gives positions back in order, so only a state in order comes back equal to itself."""
    partitions = [partition for partition, _ in state.positions]
    if any(left >= right for left, right in pairwise(partitions)):
        raise ValueError("positions are in order, each partition once")
