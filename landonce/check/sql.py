"""Sections for SQL databases: the ledger and the table, what becomes of records, and the position."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from landonce.check import common
from landonce.check.found import Look, World, writable
from landonce.engine.spark.session import is_remote
from landonce.ledger.block_ledgers import TargetLedger
from landonce.sinks.contract import Finding, Level, look_by_name
from landonce.sinks.declared import declared_schema
from landonce.sinks.parts import Parts
from landonce.sinks.sql.driver import file_reachable, sql_creation, sql_of, sql_recipe
from landonce.sinks.sql.identity import refuse_replaced
from landonce.sinks.sql.table import SqlTable


def looks(parts: Parts, table: SqlTable, world: World) -> tuple[Look, ...]:
    """In the order in which a start would meet them."""
    return (
        ("ledger", lambda: _ledger(parts, table, world)),
        ("table", lambda: _table(parts, table, world)),
        ("records", lambda: _records(parts, table, world)),
        ("position", lambda: _position(parts, table, world)),
    )


def _ledger(parts: Parts, table: SqlTable, world: World) -> Iterator[Finding]:
    file_reachable(parts.config, remote=is_remote(parts.config.spark))
    if not table.database.may_exist():
        world.ledger = True
        folder = Path(table.database.place).parent
        yield from writable(folder, f"none yet: the first run makes {table.database.place}", f"mkdir -p {folder}")
        return
    yield from common.entries(parts, world, f"{table.database.place} ")


def _table(parts: Parts, table: SqlTable, world: World) -> Iterator[Finding]:
    declared, selected = declared_schema(parts.config), bool(parts.config.transform.select)
    statement = partial(sql_creation, parts, table)
    making = common.to_be_created(parts, world, statement) if sql_of(parts).create else None
    findings = table.check(declared, selected=selected) if table.exists() else None
    if world.state is not None and isinstance(parts.ledger, TargetLedger):
        refuse_replaced(table, parts.ledger)
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
            f"{partition}: the table holds offsets up to {end - 1}, and the ledger of this pipeline knows nothing of them",
            "give the pipeline the name that it had when they landed, restore the tables landonce_* from the same backup as the table, "
            "or name an empty table",
        )
