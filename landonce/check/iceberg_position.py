"""Where an Iceberg pipeline would go on, and how each table of a fan-out stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from landonce.check import common
from landonce.check.found import World
from landonce.errors import TargetAhead
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import TableReport, TableState, TableView, adopted, report_on
from landonce.protocol.own_ledger import rollback_refused
from landonce.protocol.source import SourceView
from landonce.sinks.contract import Finding, Level
from landonce.sinks.iceberg.ledger import TableLedger
from landonce.sinks.iceberg.marks import holds
from landonce.sinks.iceberg.sink import survey, table_names
from landonce.sinks.parts import Parts


def position(parts: Parts, world: World) -> Iterator[Finding]:
    """As a start would find it."""
    if world.source is None or not world.ledger:
        return
    fan_out = not isinstance(parts.ledger, TableLedger)
    views = _views(parts, world) if fan_out and world.catalog else ()
    state, found = _known(parts, world, views)
    yield from found
    bound = common.as_bound(parts, state, world.source)
    yield from common.distances(parts, bound, world.source)
    if fan_out:
        follow = parts.iceberg.config.rollback == "follow"
        yield from _tables([report_on(bound, view) for view in views], world.source, follow=follow)


def _views(parts: Parts, world: World) -> tuple[TableView, ...]:
    names = table_names(parts.iceberg, world.state)
    return tuple(each.view for each in survey(parts.iceberg, names))


def _known(parts: Parts, world: World, views: Iterable[TableView]) -> tuple[LedgerState | None, tuple[Finding, ...]]:
    """The ledger's word, or, where it has none, what the tables' marks say."""
    state = world.state
    if state is not None and not state.fresh:
        return state, ()
    found = adopted(state or LedgerState(parts.config.pipeline, lineage="check"), views)
    if found is None:
        _refuse_foreign_rows(parts, world)
        return state, ()
    told = Finding(
        Level.WARNING,
        f"the ledger is new, and the tables' marks say how far the pipeline had come: batch {found.batch}",
        "nothing to change, if the ledger was lost: the next start goes on from there",
    )
    return found, (told,)


def _refuse_foreign_rows(parts: Parts, world: World) -> None:
    """Rows of these topics in a table that says nothing of this pipeline would be delivered again."""
    sink = parts.iceberg
    for name, each in world.tables.items():
        if each.table is not None and holds(each.table, sink.config.branch, parts.config.source.kafka.topics):
            raise TargetAhead(
                f"the table {name} holds records of these topics, and nothing in it says how far this pipeline had come",
                command="take a new table, the name of the pipeline that wrote them, or `landonce state import {file}`",
            )


def _tables(reports: list[TableReport], source: SourceView, *, follow: bool) -> Iterator[Finding]:
    """Those that need a word, one by one; the others in one line."""
    starts = {partition: extent.start for partition, extent in source.extents}
    for each in reports:
        name = each.view.table
        if each.command:
            yield Finding(Level.REFUSED, each.words.removesuffix("."), each.command)
        elif each.status is TableState.BEHIND and not follow and not (each.view.mark and each.view.mark.behind):
            refused = rollback_refused([name])
            yield Finding(Level.REFUSED, refused.what, refused.command)
        elif any(starts.get(one.partition, one.first) > one.first for one in each.lacks):
            yield Finding(
                Level.REFUSED,
                f"{name} {each.words}; Kafka has deleted some of that",
                "roll the table forward again, or `landonce state accept-gap {file}`",
            )
        elif each.status in (TableState.BEHIND, TableState.AHEAD):
            yield Finding(Level.WARNING, f"{name} {each.words}", "nothing to change: the next start does so")
    yield from _calm(reports)


def _calm(reports: list[TableReport]) -> Iterator[Finding]:
    carrying = [each for each in reports if each.status is TableState.IN_STEP and each.view.mark]
    if carrying:
        batches = [each.view.mark.batch for each in carrying if each.view.mark]
        oldest, newest = min(batches), max(batches)
        span = f"batch {newest}" if oldest == newest else f"batches {oldest} to {newest}"
        yield Finding(Level.OK, f"{len(carrying)} tables are in step; the last that they carry: {span}")
    new = [each.view.table for each in reports if each.status is TableState.UNTOUCHED]
    if new:
        yield Finding(Level.OK, f"nothing was committed yet to {len(new)} tables")
