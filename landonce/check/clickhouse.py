"""Sections for targets that deduplicate: the table, what becomes of records, and the position."""

from __future__ import annotations

from collections.abc import Iterator

from landonce.check import common
from landonce.check.found import Look, World
from landonce.protocol.ledger import LedgerState
from landonce.protocol.source import SourceView, Start
from landonce.protocol.target import ahead
from landonce.sinks.contract import Finding, Level, Target, look_by_name
from landonce.sinks.deduplicating import insert_recipe
from landonce.sinks.parts import Parts


def looks(parts: Parts, target: Target, world: World) -> tuple[Look, ...]:
    """In the order in which a start would meet them."""
    return (
        ("ledger", lambda: common.outside_ledger(parts, world)),
        ("table", lambda: _table(parts, target, world)),
        ("records", lambda: _records(parts, target, world)),
        ("position", lambda: _position(parts, target, world)),
    )


def _table(parts: Parts, target: Target, world: World) -> Iterator[Finding]:
    making = _to_be_created(parts, target, world) if parts.sink.create else None
    findings = target.check() if target.exists() else None
    yield from common.table(world, findings, parts.sink.identity, making)


def _to_be_created(parts: Parts, target: Target, world: World) -> Iterator[Finding]:
    yield from target.creatable()
    yield from common.to_be_created(parts, world, parts.deduplicating.creation)


def _records(parts: Parts, target: Target, world: World) -> Iterator[Finding]:
    if world.table:
        yield from common.records(world, insert_recipe(parts, target.schema()))


def _position(parts: Parts, target: Target, world: World) -> Iterator[Finding]:
    if world.source is None or not world.ledger:
        return
    state = common.as_bound(parts, world.state, world.source)
    yield from common.distances(parts, state, world.source)
    if world.fit and state.pending is None:
        unbound = world.state is None or world.state.fresh
        start = Start(parts.config.source.kafka.start)
        yield from _target_ahead(target, state, world.source, start, unbound=unbound)


def _target_ahead(
    target: Target, state: LedgerState, view: SourceView, start: Start, *, unbound: bool
) -> Iterator[Finding]:
    """What the first step of a start would see in the table."""
    floors = [(each, 0 if state.batch == 0 else at) for each, at in state.committed().items()]
    ranges = ahead(state, look_by_name(target, state, floors), view, start, unbound=unbound)
    if ranges:
        span = sum(each.span for each in ranges)
        yield Finding(
            Level.WARNING,
            f"the table holds rows of {len(ranges)} partitions that the ledger does not know of, within {span} offsets",
            "nothing to change: they are compared with Kafka at the next start and not written again",
        )
