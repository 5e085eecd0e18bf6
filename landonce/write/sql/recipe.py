"""What a worker needs to know to land a block in an SQL database: the recipe of a pipeline, and the task. Picklable."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from landonce.plan.blocks import Block
from landonce.read import decode
from landonce.read.changes import Changes
from landonce.read.schema import Schema
from landonce.record.blocks import Claim
from landonce.write.recipe import Portions
from landonce.write.sql.sink import SqlSink


@dataclass(frozen=True)
class SqlRecipe(Portions):
    """Everything that decides what the rows are and where they go."""

    pipeline: str
    consumer: tuple[tuple[str, object], ...] = field(repr=False)
    source: Schema
    """What a record is decoded to."""
    target: Schema
    """What the table takes."""
    sink: SqlSink
    dead_letters: Path
    max_record_bytes: int
    block_bytes: int
    select: tuple[str, ...] = ()
    where: str | None = None
    changes: Changes | None = None
    evolve: bool = False
    declared: str = ""
    """The declared schema's fingerprint."""

    @property
    def timestamps(self) -> bool:
        """Whether records' timestamps are looked at; nobody asks for them here."""
        return False

    def fingerprint(self) -> str:
        """Changes with anything that the file says of rows. The table's own columns may change: each block lands whole."""
        told = [
            "json",
            decode.VERSION,
            self.sink.identity,
            list(self.sink.key),
            self.sink.coordinates,
            self.declared,
            list(self.select),
            self.where,
            repr(self.changes),
            self.max_record_bytes,
            pyspark.__version__ if self.transforms else "",
        ]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()


@dataclass(frozen=True)
class SqlTask:
    """One block to be written by one Spark task."""

    index: int
    batch: int
    plan: str
    """What the plan's dead letters are called."""
    block: Block
    claim: Claim
    final: bool = False
    """Columns were added already: what the table does not know now is left out."""
    labels: tuple[tuple[str, str], ...] = ()
