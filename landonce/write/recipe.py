"""What a worker needs to know: the recipe of a pipeline, and the task for one block. Picklable, and quiet in logs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from landonce.plan.blocks import Block
from landonce.read.schema import Schema
from landonce.write.settle import Mode
from landonce.write.sink import Sink

_DECODER = 1
"""Raised whenever the decoder makes other rows of the same bytes."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what the rows are and where they go."""

    pipeline: str
    consumer: tuple[tuple[str, object], ...] = field(repr=False)
    source: Schema
    """What a record is decoded to."""
    target: Schema
    """What the table takes."""
    sink: Sink
    dead_letters: Path
    max_record_bytes: int
    select: tuple[str, ...] = ()
    where: str | None = None

    @property
    def transforms(self) -> bool:
        return bool(self.select) or self.where is not None

    def fingerprint(self) -> str:
        """Changes with anything that could make other rows of the same records."""
        told = [
            "json",
            _DECODER,
            self.source.fingerprint(),
            self.target.fingerprint(),
            list(self.select),
            self.where,
            self.max_record_bytes,
            pyspark.__version__ if self.transforms else "",
        ]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()


@dataclass(frozen=True)
class Task:
    """One block to be written by one Spark task."""

    index: int
    batch: int
    plan: str
    """What the plan's dead letters are called."""
    block: Block
    token: str
    deadline: int
    mode: Mode
    fill: bool
    labels: tuple[tuple[str, str], ...] = ()
