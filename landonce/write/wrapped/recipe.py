"""What a worker needs to know to push a block: the recipe of a pipeline, and the task. Picklable, and quiet in logs."""

from __future__ import annotations

from dataclasses import dataclass

from landonce.read.schema import Schema
from landonce.record.blocks import Claim
from landonce.record.push_ledger import PushPlace
from landonce.write.recipe import AnyRecipe, AnyTask
from landonce.write.wrapped.sink import WrappedSink


@dataclass(frozen=True, kw_only=True)
class WrappedRecipe(AnyRecipe):
    """Of a wrapped sink."""

    source: Schema
    """What a record is decoded to."""
    target: Schema
    """What the sink gets: the source, or what `select` makes of it."""
    sink: WrappedSink
    ledger: PushPlace

    def _decisive(self) -> tuple[object, ...]:
        return self.sink.identity, self.source.fingerprint(), self.select, self.where


@dataclass(frozen=True, kw_only=True)
class WrappedTask(AnyTask):
    """One block to be pushed."""

    key: str
    claim: Claim
