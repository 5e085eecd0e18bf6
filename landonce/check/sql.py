"""Sections for SQL databases: the ledger and the table, what becomes of records, and the position."""

from __future__ import annotations

from collections.abc import Iterator

from landonce.check import common
from landonce.check.found import Look, World
from landonce.read.infer import infer
from landonce.run.assemble import Parts, declared_schema
from landonce.run.assemble_sql import file_reachable, flat_sample, sql_of, sql_recipe
from landonce.run.transacting import look_by_name
from landonce.write.sink import Finding, Level
from landonce.write.sql.table import SqlTable


def looks(parts: Parts, table: SqlTable, world: World) -> tuple[Look, ...]:
    """In the order in which a start would meet them."""
    return (
        ("ledger", lambda: _ledger(parts, table, world)),
        ("table", lambda: _table(parts, table, world)),
        ("records", lambda: _records(parts, table, world)),
        ("position", lambda: _position(parts, table, world)),
    )


def _ledger(parts: Parts, table: SqlTable, world: World) -> Iterator[Finding]:
    file_reachable(parts.config)
    if not table.database.may_exist():
        world.ledger = True
        yield Finding(Level.OK, f"none yet: the first run makes {table.database.place}")
        return
    world.state = parts.ledger.load()
    world.ledger = True
    if world.state is None:
        yield Finding(Level.OK, f"{table.database.place} answers, and has no entry for this pipeline yet")
        return
    yield common.entry(world.state)
    if world.state.pending is not None:
        yield Finding(
            Level.WARNING,
            f"batch {world.state.pending.batch} is pending: a driver is at work, or ended before it was done",
            "nothing to change: the next start settles it first",
        )


def _table(parts: Parts, table: SqlTable, world: World) -> Iterator[Finding]:
    world.table = table.exists()
    if world.table:
        findings = table.check(declared_schema(parts.config), selected=bool(parts.config.transform.select))
        world.fit = not any(each.level is Level.REFUSED for each in findings)
        yield from findings
    elif sql_of(parts).create:
        schema = declared_schema(parts.config)
        if schema is None and world.source is not None:
            schema = flat_sample(infer(world.source, parts.consumer))
        if schema is None:
            yield Finding(Level.WARNING, "the table is not there yet; it is created at the first start, from a sample")
        else:
            yield Finding(
                Level.OK, f"the table is not there yet; the first start creates it:\n{table.creation(schema)}"
            )
    else:
        yield Finding(
            Level.REFUSED,
            f"there is no table {parts.sql.table}, or the user may not see it",
            "create it, or say `create: true` in {file} and let landonce do it",
        )


def _records(parts: Parts, table: SqlTable, world: World) -> Iterator[Finding]:
    if not world.table:
        return
    recipe = sql_recipe(parts, table)
    world.recipe = recipe
    yield common.decoded(recipe.source, recipe.max_record_bytes)
    common.same_fingerprint(world)


def _position(parts: Parts, table: SqlTable, world: World) -> Iterator[Finding]:
    if world.source is None or not world.ledger:
        return
    state = common.as_bound(parts, world.state, world.source)
    yield from common.distances(parts, state, world.source)
    if not world.fit or state.pending is not None:
        return
    floors = [(each, 0 if state.batch == 0 else at) for each, at in state.committed().items()]
    for partition, end in look_by_name(table, state, floors).ends:
        yield Finding(
            Level.REFUSED,
            f"{partition}: the table holds offsets up to {end}, and the ledger knows nothing of them",
            "restore the tables landonce_* from the same backup as the table, or name an empty table",
        )
