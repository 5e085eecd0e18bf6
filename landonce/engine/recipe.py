"""What a worker needs to know: the recipe of a pipeline, which says what the rows are and where they go, and the task for one
block. Picklable, and quiet in logs."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyspark

from landonce.protocol.blocks import Block, Kind
from landonce.protocol.ranges import Range, label_of
from landonce.protocol.settle import Mode
from landonce.read.formats.json import decode
from landonce.read.schema.fields import Schema
from landonce.sinks.contract import DeduplicatingSink


@dataclass(frozen=True, kw_only=True)
class AnyRecipe(ABC):
    """What every recipe says: who reads, how much at most, which expressions follow, and where dead letters go."""

    pipeline: str
    consumer: tuple[tuple[str, object], ...] = field(repr=False)
    dead_letters: Path
    max_record_bytes: int
    block_bytes: int
    """What a block should hold. One that holds many times more is refused before it fills a worker's memory."""
    select: tuple[str, ...] = ()
    where: str | None = None

    @property
    def most_bytes(self) -> int:
        """Eight times what a block should hold, and never less than one large record needs."""
        return max(8 * self.block_bytes, 2 * self.max_record_bytes)

    @property
    def transforms(self) -> bool:
        return bool(self.select) or self.where is not None

    @property
    def timestamps(self) -> bool:
        """Whether records' timestamps are looked at, which takes somebody who asks for them."""
        return False

    def fingerprint(self) -> str:
        """Changes with anything that could make other rows of the same records."""
        told = [
            "json",
            decode.VERSION,
            *self._decisive(),
            self.max_record_bytes,
            pyspark.__version__ if self.transforms else "",
        ]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    @abstractmethod
    def _decisive(self) -> tuple[object, ...]:
        """What else decides what the rows are: the expressions, and what this kind of sink says of rows."""


@dataclass(frozen=True, kw_only=True)
class Recipe(AnyRecipe):
    """Of a target that deduplicates."""

    source: Schema
    """What a record is decoded to."""
    target: Schema
    """What the table takes."""
    sink: DeduplicatingSink

    def _decisive(self) -> tuple[object, ...]:
        return self.sink.identity, self.source.fingerprint(), self.target.fingerprint(), self.select, self.where


@dataclass(frozen=True, kw_only=True)
class AnyTask:
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


@dataclass(frozen=True, kw_only=True)
class Task(AnyTask):
    """One block to be inserted."""

    token: str
    deadline: int
    mode: Mode
    kind: Kind
