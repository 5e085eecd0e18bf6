"""From a pipeline file to a driver that writes to an SQL database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from landonce.engine import transform
from landonce.engine.assemble import (
    Columns,
    columns_to_make,
    dead_letters_reachable,
    driver_of,
    refuse_unfit,
)
from landonce.engine.driver import Driver
from landonce.engine.observe import Observer
from landonce.engine.publish import Letters
from landonce.engine.transacting import Transacting
from landonce.engine.workers import SparkWorkers
from landonce.errors import ConfigError, TableUnfit
from landonce.ledger.block_ledgers import TargetLedger
from landonce.protocol.source import Start
from landonce.protocol.transactional import Transactional
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.declared import declared_schema
from landonce.sinks.parts import Parts
from landonce.sinks.sql.ddl import refuse_recreation
from landonce.sinks.sql.driver import NOTHING, sql_creation, sql_of, sql_recipe
from landonce.sinks.sql.fingerprint import refuse_replaced
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.sql.worker import SqlRecipe

_ALTERED = (
    "The table was altered since the start. The block's transaction was rolled back, and the position did not move."
)


def sql_to_be_made(parts: Parts, table: SqlTable) -> Columns | None:
    """The columns of the table, if the file asks for it and there is none."""
    if not sql_of(parts).create or table.exists():
        return None
    refuse_recreation(parts.sql, parts.ledger.load())
    return columns_to_make(parts, lambda columns: sql_creation(parts, table, columns))


def _as_selected(column: Field) -> Field:
    """A column of documents takes text from an expression: `to_json(…)`."""
    return replace(column, type=pa.string()) if pa.types.is_nested(column.type) else column


def _make(parts: Parts, table: SqlTable, session: Callable[[], SparkSession], columns: Schema) -> None:
    """Makes the table, once the expressions are known to be sound."""
    told = parts.config.transform
    sql_creation(parts, table, columns)
    if not told.empty:
        source = declared_schema(parts.config) or columns
        taken = Schema(tuple(map(_as_selected, columns.fields))) if told.select else columns
        transform.examine(session(), transform.Expressions(source, taken, told.select, told.where))
    table.create(columns)


def make_sql_driver(
    parts: Parts,
    table: SqlTable,
    session: Callable[[], SparkSession],
    observer: Observer,
    *,
    once: bool,
    columns: Columns | None = None,
) -> Driver:
    """A driver that is ready to run: the table is fit, the dead letters have a place. Spark is not started yet, unless a table
    is to be made that expressions decide about.

    `columns`: of a table that is to be made. It is made once nothing else is in the way.
    """
    config, ledger = parts.config, parts.ledger
    if not isinstance(ledger, TargetLedger):
        raise TypeError("the ledger of a database is in it")

    def examined(safe: str = NOTHING) -> SqlRecipe:
        seen = table.fingerprint()
        ledger.table = parts.sql.table, refuse_replaced(table, ledger, safe)
        refuse_unfit(table.check(declared_schema(config), selected=bool(config.transform.select)), safe)
        recipe = sql_recipe(parts, table)
        return replace(recipe, sink=replace(recipe.sink, examined=seen))

    def examined_again() -> SqlRecipe:
        """What the file and the table disagree on now is the table's doing: the file was right at the start."""
        try:
            recipe = examined(_ALTERED)
            transform.examine(session(), recipe)
            return recipe
        except ConfigError as error:
            raise TableUnfit(
                f"{parts.sql.table} was altered and does not fit the pipeline any more: {error.what}",
                safe=_ALTERED,
                command=f"change the table back, or {error.command or 'change {file} as the message says'}; then: landonce run {{file}}",
            ) from None

    dead_letters_reachable(config)
    if columns is not None:
        _make(parts, table, session, columns(session))
    recipe = examined()
    if ledger.make_tables():
        recipe = examined()
    workers = SparkWorkers(session, partial(transform.examine, recipe=recipe))
    settings = Transactional(
        target=parts.sql.table,
        fingerprint=recipe.fingerprint(),
        start=Start(config.source.kafka.start),
        once=once,
        letters=str(config.dead_letters.path),
        keyed=bool(parts.sql.key),
    )
    letters = Letters(config.dead_letters.path, config.pipeline, parts.ledger.journal)
    performer = Transacting(settings, recipe, examined_again, table, workers, letters, ledger)
    return driver_of(parts, performer, workers, observer)
