"""Sections for SQL databases: the ledger and the table, what becomes of records, and the position."""

from __future__ import annotations

from collections.abc import Iterator

from landonce.check import common
from landonce.check.found import Look, World
from landonce.read.schema import Schema
from landonce.run.assemble import Parts, declared_schema
from landonce.run.assemble_sql import flat_sample, sql_of, sql_recipe
from landonce.write.sink import Finding, Level, look_by_name
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
    if not table.database.may_exist():
        world.ledger = True
        yield Finding(Level.OK, f"none yet: the first run makes {table.database.place}")
        return
    yield from common.entries(parts, world, f"{table.database.place} ")


def _table(parts: Parts, table: SqlTable, world: World) -> Iterator[Finding]:
    def statement(schema: Schema) -> str:
        return table.creation(schema if declared_schema(parts.config) is not None else flat_sample(schema))

    making = common.to_be_created(parts, world, statement) if sql_of(parts).create else None
    findings = table.check() if table.exists() else None
    yield from common.table(world, findings, parts.sql.table, making)


def _records(parts: Parts, table: SqlTable, world: World) -> Iterator[Finding]:
    if world.table:
        yield from common.records(world, sql_recipe(parts, table))


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
