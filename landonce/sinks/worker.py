"""What goes to a worker, and what a sink does there.

A `Recipe` says what the rows are and where they go, a `Task` names one block; both are picklable, and their repr hides secrets. The
task that Spark runs (`engine.task`) is the same for all sinks: read, decode, route, fit, stage dead letters. The rest is the sink's
part, a `BlockWorker`.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeAlias, TypedDict, TypeVar

from typing_extensions import Never

from landonce import errors
from landonce.config.secrets import redact
from landonce.protocol.blocks import Block
from landonce.protocol.ranges import Range, label_of
from landonce.protocol.receipt import BlockResult, Fate, Receipt, Want
from landonce.read.block import ReadBlock, Reader, Rejected
from landonce.read.decoding import Decoding, Identities
from landonce.read.evolution import Evolution
from landonce.read.kafka.records import NoRecords, RecordSource
from landonce.read.schema.fields import Schema
from landonce.sinks.contract import Sink

T = TypeVar("T", bound="Task")
T_contra = TypeVar("T_contra", bound="Task", contravariant=True)


class Basics(TypedDict):
    """What a recipe says whatever the sink: the fields of `Recipe`."""

    pipeline: str
    records: RecordSource
    dead_letters: Path
    halts: bool
    decoding: Decoding
    block_bytes: int
    select: tuple[str, ...]
    where: str | None
    shuffled: bool


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC, Generic[T_contra]):
    """What every recipe says: who reads, how much at most, which expressions follow, and where dead letters go."""

    pipeline: str
    records: RecordSource = field(default_factory=NoRecords)
    dead_letters: Path = Path()
    halts: bool = False
    """A record that cannot land is an error, before anything of its block is written."""
    decoding: Decoding = field(default_factory=Decoding)
    block_bytes: int = 0
    """What a block should hold. One that holds many times more is refused before it fills a worker's memory."""
    select: tuple[str, ...] = ()
    where: str | None = None
    shuffled: bool = False
    """Rows come through a shuffle of a user's query. Spark may run two tasks of one block at once, and ends one when the other
    returns."""

    @property
    def most_bytes(self) -> int:
        """Eight times what a block should hold, and never less than one large record needs."""
        return max(8 * self.block_bytes, 2 * self.decoding.max_record_bytes)

    @property
    def transforms(self) -> bool:
        return bool(self.select) or self.where is not None

    if TYPE_CHECKING:  # a property here would be taken for the default of a subclass's field

        @property
        def source(self) -> Schema:
            """What a record is decoded to."""

        @property
        def target(self) -> Schema:
            """What rows may hold: the columns of the table, or what expressions may make."""

    @property
    def identities(self) -> Identities | None:
        """Which rows records change. None where they are only added, or where nobody asks."""
        return None

    @property
    def marks(self) -> bool:
        """Whether the sink keeps the latest timestamp and the highest offset of each partition beside the rows."""
        return False

    @property
    def describes_records(self) -> bool:
        """Whether a record lands if and only if it can be decoded to `source`: there is one table, and it does not evolve."""
        return True

    @abstractmethod
    def worker(self, task: T_contra) -> BlockWorker:
        """What the sink does with the block of this task."""

    def fingerprint(self) -> str:
        """Changes with anything that could make other rows of the same records."""
        decisive = [
            *self.decoding.decisive(),
            *self._decisive(),
            version("pyspark") if self.transforms else "",
        ]
        return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()

    def judgement(self) -> str:
        """Changes with anything that could let a dead letter land: also with the tables' columns, where these may change between batches."""
        judges = [self.fingerprint(), self.source.fingerprint(), self.target.fingerprint()]
        return hashlib.sha256(json.dumps(judges).encode()).hexdigest()[:16]

    @abstractmethod
    def _decisive(self) -> tuple[object, ...]:
        """What else decides what the rows are: the expressions, and what this kind of sink says of rows."""


AnyRecipe: TypeAlias = Recipe[Never]
"""A recipe of any kind of sink, where no task is given to it."""

Parts = list[tuple[int, object]]
"""What a block gives to others, by shard. Picklable."""


@dataclass(frozen=True, kw_only=True)
class ExchangingRecipe(Recipe[T_contra], Generic[T_contra]):
    """Of a sink whose blocks depend on each other: after all blocks of a write are read, parts of them are brought together by shard."""

    shards: int

    @abstractmethod
    def split(self, result: BlockResult) -> tuple[BlockResult, Parts]:
        """What a block's worker wrote, and what it gives to the shards."""

    @abstractmethod
    def join(self, parts: Mapping[int, list[object]]) -> object:
        """On a worker: all parts of some shards."""

    @abstractmethod
    def whole(self, results: Sequence[BlockResult], joined: Sequence[object]) -> tuple[BlockResult, ...]:
        """On the driver: the results of the blocks, once all shards are joined."""


@dataclass(frozen=True, kw_only=True)
class OneTable(Recipe[T_contra], Generic[T_contra]):
    """Of a sink with one table."""

    source: Schema
    """What a record is decoded to."""
    target: Schema
    """What the table takes."""
    sink: Sink

    def _decisive(self) -> tuple[object, ...]:
        return self.sink.identity, self.source.fingerprint(), self.target.fingerprint(), self.select, self.where


@dataclass(frozen=True, kw_only=True)
class Task:
    """One block to be written by one Spark task."""

    index: int
    batch: int
    plan: str
    """What the plan's dead letters are called."""
    block: Block
    labels: tuple[tuple[str, str], ...] = ()
    topic_ids: tuple[tuple[str, str], ...] = ()
    """Which topics the plan is about. Empty where the task reads nothing from Kafka itself."""
    inherited: bool = True
    """An earlier driver made the plan, and may have left dead letters of the block."""

    @property
    def topics(self) -> dict[str, str]:
        """The block's topics with their ids, as far as they are known."""
        ids = dict(self.topic_ids)
        names = {each.partition.topic for each in self.block.ranges}
        return {name: ids[name] for name in sorted(names) if name in ids}

    @property
    def labelled(self) -> tuple[Range, ...]:
        """The block's ranges under the names that the target knows the topics by."""
        labels = dict(self.labels)
        return tuple(
            Range(
                replace(each.partition, topic=label_of(labels, each.partition)),
                each.first,
                each.end,
            )
            for each in self.block.ranges
        )


@dataclass(frozen=True)
class Wants(Want):
    """What must be done to a table before a block can be written."""

    table: str
    sample: tuple[bytes, ...] = ()
    """Some records for a table that does not exist."""
    evolution: Evolution | None = None


Refuse = Callable[[Sequence[Rejected]], str]
"""Stages records that the target itself refused as dead letters, and returns the name of the file."""


class BlockWorker(ABC):
    """A sink's part in writing one block. It is opened for one task, on a worker."""

    @abstractmethod
    def reader(self) -> Reader:
        """How records, or rows that expressions made of them, become rows of the sink's tables."""

    def wants(self, block: ReadBlock) -> tuple[Want, ...]:
        """What the driver must do before this block can be written."""
        del block
        return ()

    def landed_anyway(self, rejected: Sequence[Rejected]) -> frozenset[Rejected]:
        """Those of these records whose rows the target holds though: they landed before."""
        del rejected
        return frozenset()

    def run_again(self) -> BlockResult | None:
        """For a task that Spark runs again, or a second time beside the first: its result, if it must not write. None: it may."""
        return None

    def landed_before(self) -> int:
        """How many rows of a block are there whose records are gone, if they prove that all of it landed. 0: nothing is proven."""
        return 0

    @abstractmethod
    def write(self, block: ReadBlock, receipt: Receipt, refuse: Refuse | None) -> BlockResult:
        """Writes the rows. `receipt` is the account but for these rows. Without `refuse` there are no dead letters: rows that the
        target refuses are an error."""


def halted(task: Task, error: errors.LandonceError) -> BlockResult:
    return BlockResult(task.index, Fate.HALTED, error=error)


def failed(task: Task, error: Exception) -> BlockResult:
    """An exception as a fate: what may pass is doubt, what is named halts, and a defect halts too."""
    if isinstance(error, errors.Transient):
        return BlockResult(task.index, Fate.DOUBTFUL, why=redact(error.what))
    return halted(task, named(task, error))


def named(task: Task, error: Exception) -> errors.LandonceError:
    """The error itself, or a defect as a `Halt`."""
    if isinstance(error, errors.LandonceError):
        return error
    return errors.Halt(
        redact(f"block {task.block}: {type(error).__name__}: {error}"),
        safe="The position did not move; the plan is pending and will be settled at the next start.",
    )
