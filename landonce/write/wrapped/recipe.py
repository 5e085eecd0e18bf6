"""What a worker needs to know to push a block: the recipe of a pipeline, and the task. Picklable, and quiet in logs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyspark

from landonce.plan.blocks import Block
from landonce.read import decode
from landonce.read.schema import Schema
from landonce.record.blocks import Claim
from landonce.record.push_ledger import PushPlace
from landonce.write.recipe import Portions
from landonce.write.wrapped.sink import WrappedSink


@dataclass(frozen=True)
class WrappedRecipe(Portions):
    """Everything that decides what the rows are and where they go."""

    pipeline: str
    consumer: tuple[tuple[str, object], ...] = field(repr=False)
    source: Schema
    """What a record is decoded to."""
    target: Schema
    """What the sink gets: the source, or what `select` makes of it."""
    sink: WrappedSink
    ledger: PushPlace
    dead_letters: Path
    max_record_bytes: int
    block_bytes: int
    select: tuple[str, ...] = ()
    where: str | None = None

    @property
    def timestamps(self) -> bool:
        """Whether records' timestamps are looked at; nobody asks for them here."""
        return False

    def fingerprint(self) -> str:
        """Changes with anything that could make other rows of the same records, or other bytes of the same rows."""
        told = [
            "json",
            decode.VERSION,
            pa.__version__,
            self.sink.identity,
            self.source.fingerprint(),
            list(self.select),
            self.where,
            self.max_record_bytes,
            pyspark.__version__ if self.transforms else "",
        ]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()


@dataclass(frozen=True)
class WrappedTask:
    """One block to be pushed by one Spark task."""

    index: int
    batch: int
    plan: str
    """What the plan's dead letters are called."""
    block: Block
    key: str
    claim: Claim
    labels: tuple[tuple[str, str], ...] = ()
