"""What the driver of a pipeline with a wrapped sink makes of the pipeline file: the recipe, a ledger that workers reach, and what an operator
may decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from landonce.errors import ConfigError
from landonce.ledger.block_ledgers import PushLedger, PushPlace
from landonce.protocol.block_rows import Row
from landonce.protocol.ledger import LedgerState
from landonce.sinks.declared import declared_schema
from landonce.sinks.operations import Operations
from landonce.sinks.parts import Parts
from landonce.sinks.wrapped.sink import HANDED_OVER, WrappedSink
from landonce.sinks.wrapped.worker import WrappedRecipe


def wrapped_recipe(parts: Parts) -> WrappedRecipe:
    """What a record is decoded to, and who gets it. What `select` makes of it is known once there is a session."""
    config = parts.config
    source = declared_schema(config)
    if source is None:
        raise ConfigError(
            "source.kafka.schema: is missing. A wrapped sink has no columns that could say what a record holds.",
            command='declare it in {file}, for example `schema: "id BIGINT NOT NULL, word STRING"`',
        )
    return WrappedRecipe(
        pipeline=config.pipeline,
        consumer=tuple(sorted(parts.consumer.items())),
        source=source,
        target=source,
        sink=parts.wrapped,
        ledger=PushPlace(config.outside_ledger.place, config.pipeline),
        dead_letters=config.dead_letters.path,
        max_record_bytes=config.source.kafka.max_record_bytes,
        block_bytes=config.batch.block_bytes,
        select=config.transform.select,
        where=config.transform.where,
    )


def ledger_reachable(parts: Parts, *, remote: bool) -> None:
    """Workers claim blocks in the ledger, so they must see it. `remote`: they may run on other machines."""
    path = parts.config.outside_ledger.sqlite
    if path is not None and remote:
        raise ConfigError(
            f"ledger.sqlite: {path} is a file of this machine, and the workers, which claim blocks in it, run on others.",
            command="name a PostgreSQL ledger: `ledger: {postgres: …}`",
        )


@dataclass
class WrappedOperations(Operations):
    """The target cannot be asked; the ledger says what became of each block."""

    sink: WrappedSink
    no_fill = "there is nothing to fill: a block is pushed whole, and its row in the ledger says what became of it."

    @property
    def settles_within(self) -> int:  # type: ignore[override]
        return self.sink.wait if self.sink is not HANDED_OVER else 0

    def rows(self, state: LedgerState) -> Sequence[Row]:
        ledger = self.parts.ledger
        return ledger.status(state.pending.batch).rows if state.pending and isinstance(ledger, PushLedger) else ()
