"""What the driver of a pipeline with a wrapped sink makes of the pipeline file: the recipe, a ledger that workers reach, and what an operator
may decide."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from landonce.errors import ConfigError
from landonce.ledger.claims import AttemptDecision, ClaimLedger
from landonce.protocol import operate
from landonce.protocol.block_rows import BlockState, PushRow, Spot, over
from landonce.protocol.claimed import key_of
from landonce.protocol.ledger import LedgerState
from landonce.read.changes import Changes
from landonce.read.decoding import BesideChanges, decoder_of
from landonce.read.kafka.records import NoRecords
from landonce.read.record_columns import without_record_columns
from landonce.read.rows import CHANGE
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.claimed import OpenClaimed
from landonce.sinks.declared import declared_schema
from landonce.sinks.operations import Choice, Operations, nothing_to_settle
from landonce.sinks.parts import Parts
from landonce.sinks.run import Columns, Run, SparkNeeds, run_of
from landonce.sinks.wrapped.config import Wrapped
from landonce.sinks.wrapped.sink import HANDED_OVER, WrappedSink, claim_place, need_picklable, needed
from landonce.sinks.wrapped.worker import WrappedRecipe


def wrapped_recipe(parts: Parts, sink: WrappedSink) -> WrappedRecipe:
    """What a record is decoded to, and who gets it. What `select` makes of it is known once there is a session."""
    config = parts.config
    source = declared_schema(config)
    if source is None:
        raise ConfigError(
            "source.kafka.schema: is missing. A wrapped sink has no columns that could say what a record holds.",
            command='declare it in {file}, for example `schema: "id BIGINT NOT NULL, word STRING"`',
        )
    ledger = claim_place(config.outside_ledger, config.pipeline)
    recipe = WrappedRecipe(**run_of(parts).basics, source=source, target=source, sink=needed(sink), ledger=ledger)
    section = config.sink
    if isinstance(section, Wrapped) and section.changes is not None:
        return _of_changes(recipe, section.key, section.changes.decoding())
    return recipe


def _of_changes(recipe: WrappedRecipe, key: tuple[str, ...], changes: Changes) -> WrappedRecipe:
    """Records change rows: a block says of each what it does, and a deletion has nothing but its key."""
    try:
        if any(each.name == CHANGE for each in recipe.source.fields):
            raise ValueError(f"the field {CHANGE} does not go with `changes`")
        decoder_of(without_record_columns(recipe.source), recipe.decoding, key, changes)
        BesideChanges.of(recipe.source, recipe.decoding, key, changes)
    except ValueError as reason:
        raise ConfigError(
            f"sink.wrapped.changes: {reason}.",
            command="correct `key`, `changes` or `source.kafka.schema` in {file}",
        ) from None
    return replace(recipe, key=key, changes=changes)


def ledger_reachable(parts: Parts, *, remote: bool) -> None:
    """Workers claim blocks in the ledger, so they must see it. `remote`: they may run on other machines."""
    path = parts.config.outside_ledger.sqlite
    if path is not None and remote:
        raise ConfigError(
            f"ledger.sqlite: {path} is a file on this machine, and the workers, which claim blocks in it, run on other "
            "machines.",
            command="name a ledger that workers reach: `ledger: {postgres: …}`, or a plug-in",
        )


def block_rows(parts: Parts, state: LedgerState) -> tuple[PushRow, ...]:
    """What the ledger says of the blocks of the pending plan."""
    ledger = parts.ledger
    return ledger.status(state.pending.batch).rows if state.pending and isinstance(ledger, ClaimLedger) else ()


def claimed_blocks(parts: Parts, state: LedgerState) -> tuple[str, ...]:
    """The keys of the blocks that were pushed, and of which the ledger does not say what became of them."""
    claimed = {row.number for row in block_rows(parts, state) if row.mark is BlockState.CLAIMED}
    blocks = state.pending.blocks if state.pending is not None else ()
    return tuple(key_of(state, block) for block in blocks if block.number in claimed)


@dataclass
class WrappedOperations(Operations):
    """The target cannot be asked; the ledger says what became of each block."""

    sink: WrappedSink
    no_fill = "there is nothing to fill: a block is pushed whole, and its row in the ledger says what became of it."

    def fingerprint(self) -> str:
        return wrapped_recipe(self.parts, self.sink).fingerprint()

    def rows(self, state: LedgerState) -> tuple[PushRow, ...]:
        return block_rows(self.parts, state)

    def claimed(self, state: LedgerState) -> tuple[str, ...]:
        return claimed_blocks(self.parts, state)

    def settle(self, block: str, owner: str, *, landed: bool) -> Choice:
        """What was claimed is waited out first: then the person's word holds."""
        ledger, state = self.parts.ledger, self.required()
        if not isinstance(ledger, ClaimLedger) or state.pending is None:
            raise nothing_to_settle()
        batch = state.pending.batch
        blocks = {key_of(state, each): each for each in state.pending.blocks}
        decision, row = operate.settle(state, blocks, self.rows(state), block, owner, landed=landed)
        within = self.sink.wait if self.sink is not HANDED_OVER else 0  # 0: the claims themselves say it

        def wait_out() -> None:
            while not over(row, ledger.status(batch).now, within):
                time.sleep(0.5)

        def change(decided: operate.Decision) -> None:
            settled = AttemptDecision(Spot(batch, row.number), row.nonce, landed)
            ledger.decide(state, decided.new, decided.note(), settled)

        return Choice(state, decision, before=wait_out, change=change)


class OpenWrapped(OpenClaimed):
    """A wrapped sink, opened on the driver: workers can load it and reach the ledger."""

    def __init__(self, sink: WrappedSink, run: Run) -> None:
        super().__init__(run)
        if not isinstance(run.ledger, ClaimLedger):
            raise TypeError("the ledger of a wrapped sink keeps a row per block")
        self.sink, self.ledger = sink, run.ledger

    def start(self) -> None:
        if self.run.parts is not None:
            wrapped_recipe(self.run.parts, self.sink)
            ledger_reachable(self.run.parts, remote=self.run.remote)
        elif self.run.remote and self.ledger.address.file is not None:
            raise ConfigError(
                "ledger: a SQLite file is one of this machine, and the query's workers, which claim blocks in it, run on others.",
                command="name a PostgreSQL URL",
            )
        if not self.run.pushed:  # it stays in this process
            need_picklable(self.sink)

    def spark(self) -> SparkNeeds:
        return SparkNeeds(("landonce.sinks.wrapped.worker",))

    def make_ready(self, columns: Columns | None) -> None:
        """Nothing but the expressions decides about the columns that `select` makes. Rows of a query are pushed as they are."""
        del columns
        if self.run.parts is None:
            given = Schema(tuple(Field(each.name, each.type) for each in self.run.query or ()))
            brought = isinstance(self.run.basics["records"], NoRecords)
            self.recipe = WrappedRecipe(
                **self.run.basics,
                source=given,
                target=given,
                sink=self.sink,
                ledger=self.ledger.address,
                as_given=brought,
            )
            return
        recipe = wrapped_recipe(self.run.parts, self.sink)
        if recipe.select:
            made = tuple(replace(each, required=False) for each in self.run.select_columns().fields)
            recipe = replace(recipe, target=Schema(made))
        self.recipe = recipe
