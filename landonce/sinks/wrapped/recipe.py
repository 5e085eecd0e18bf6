"""What a worker needs to know to push a block: the recipe of a pipeline, and the task. Picklable, and quiet in logs."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from landonce.ledger.block_ledgers import PushPlace
from landonce.protocol.block_rows import Claim
from landonce.read.schema.fields import Schema
from landonce.sinks.worker import BlockWorker, Recipe, Task
from landonce.sinks.wrapped.sink import WrappedSink


@dataclass(frozen=True, kw_only=True)
class WrappedRecipe(Recipe):
    """Of a wrapped sink."""

    source: Schema
    """What a record is decoded to."""
    target: Schema
    """What the sink gets: the source, or what `select` makes of it. Rows of a query are pushed as they are."""
    sink: WrappedSink
    ledger: PushPlace

    def _decisive(self) -> tuple[object, ...]:
        return pa.__version__, self.sink.identity, self.source.fingerprint(), self.select, self.where

    def worker(self, task: WrappedTask) -> BlockWorker:
        from landonce.sinks.wrapped.worker import WrappedWorker

        return WrappedWorker(self, task)


@dataclass(frozen=True, kw_only=True)
class WrappedTask(Task):
    """One block to be pushed."""

    key: str
    claim: Claim
