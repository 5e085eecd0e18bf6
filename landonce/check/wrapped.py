"""Sections for wrapped sinks: the ledger that workers claim blocks in, the sink itself, records, and the position."""

from __future__ import annotations

from collections.abc import Iterator

from landonce.check import common
from landonce.check.found import Look, World
from landonce.engine.spark.session import is_remote
from landonce.errors import PlanChanged
from landonce.ledger.block_ledgers import PushLedger
from landonce.protocol.block_rows import Mark
from landonce.protocol.claimed import key_of
from landonce.sinks.contract import Finding, Level
from landonce.sinks.parts import Parts
from landonce.sinks.wrapped.driver import ledger_reachable, wrapped_recipe
from landonce.sinks.wrapped.find import need_picklable


def looks(parts: Parts, world: World) -> tuple[Look, ...]:
    """In the order in which a start would meet them."""
    return (
        ("ledger", lambda: _ledger(parts, world)),
        ("sink", lambda: _sink(parts)),
        ("records", lambda: _records(parts, world)),
        ("position", lambda: _position(parts, world)),
    )


def _ledger(parts: Parts, world: World) -> Iterator[Finding]:
    yield from common.outside_ledger(parts, world)
    ledger_reachable(parts, remote=is_remote(parts.config.spark))
    state = world.state
    if state is None or state.pending is None or not isinstance(parts.ledger, PushLedger):
        return
    rows = {row.number: row for row in parts.ledger.status(state.pending.batch).rows}
    for block in state.pending.blocks:
        row = rows.get(block.number)
        if row is not None and row.mark is Mark.CLAIMED and not parts.wrapped.idempotent:
            yield Finding(
                Level.WARNING,
                f"block {key_of(state, block)} was pushed and is not settled: it may be on its way, or nobody knows",
                "the next start asks the sink's probe"
                if parts.wrapped.can_probe
                else "look for it in the target; `landonce state settle {file}` says what you found",
            )


def _sink(parts: Parts) -> Iterator[Finding]:
    sink = parts.wrapped
    need_picklable(sink)
    yield Finding(Level.OK, f"{sink} can be sent to workers")
    if sink.idempotent or sink.can_probe:
        return
    yield Finding(
        Level.WARNING,
        "the sink is not idempotent and has no probe: whenever nobody knows whether a block arrived, the pipeline halts with "
        "OutcomeUnknown until a person says",
        "give it a probe, if the target can be asked for a block's key or coordinates",
    )


def _records(parts: Parts, world: World) -> Iterator[Finding]:
    recipe = wrapped_recipe(parts)
    yield common.decoded(recipe.source, recipe.max_record_bytes)
    pending = world.state.pending if world.state else None
    if pending is not None and pending.fingerprint != recipe.fingerprint():
        raise PlanChanged(
            "the pending plan was made with another sink, transform, schema, decoder or version of pyarrow than there is now",
            command="put the old file back and run it once, or: landonce state accept-change {file}",
        )


def _position(parts: Parts, world: World) -> Iterator[Finding]:
    if world.source is None or not world.ledger:
        return
    yield from common.distances(parts, common.as_bound(parts, world.state, world.source), world.source)
