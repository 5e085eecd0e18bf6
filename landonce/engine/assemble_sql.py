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
    declared_schema,
    driver_of,
    refuse_unfit,
    selected_from,
)
from landonce.engine.driver import Driver
from landonce.engine.observe import Observer
from landonce.engine.publish import Letters
from landonce.engine.spark.session import is_remote
from landonce.engine.transacting import Transacting
from landonce.engine.workers import SparkWorkers
from landonce.errors import ConfigError, TableUnfit
from landonce.ledger.in_target import TargetLedger
from landonce.protocol.source import Start
from landonce.protocol.transactional import Transactional
from landonce.read.decoders import decoder_of
from landonce.read.schema.ddl import UnfitFields
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.parts import Parts
from landonce.sinks.pipeline_file import Pipeline
from landonce.sinks.sql.config import Sql
from landonce.sinks.sql.identity import refuse_replaced
from landonce.sinks.sql.making import refuse_made_anew
from landonce.sinks.sql.recipe import SqlRecipe
from landonce.sinks.sql.table import SqlTable

_NOTHING = "Nothing was read or written."
_ALTERED = (
    "The table was altered since the start. The block's transaction was rolled back, and the position did not move."
)


def sql_of(parts: Parts) -> Sql:
    """The file's section on the database."""
    if not isinstance(parts.config.sink, Sql):
        raise TypeError(f"{parts.config.sink!r} is not an SQL database")
    return parts.config.sink


def file_reachable(config: Pipeline) -> None:
    """Workers write to the file, so they must be on its machine."""
    told = config.sink
    if isinstance(told, Sql) and is_remote(config.spark) and told.url.get_secret_value().startswith("sqlite"):
        raise ConfigError(
            "sink.sql.url: an SQLite file is one of this machine, and the workers, which write to it, run on others.",
            safe="Nothing was made or written.",
            command="name another database, or a local Spark master, in {file}",
        )


def sql_to_be_made(parts: Parts, table: SqlTable) -> Columns | None:
    """The columns of the table, if the file asks for it and there is none."""
    if not sql_of(parts).create or table.exists():
        return None
    refuse_made_anew(parts.sql, parts.ledger.load())
    return columns_to_make(parts, lambda columns: sql_creation(parts, table, columns))


def sql_creation(parts: Parts, table: SqlTable, columns: Schema) -> str:
    """The statements that make the table."""
    if declared_schema(parts.config) is None:
        _refuse_nested_sample(columns)
    made = table.creation(columns)
    _refuse_key(selected_from(parts.config) if parts.config.transform.select else columns, sql_of(parts), parts)
    return made


def _refuse_nested_sample(sampled: Schema) -> None:
    """A sample does not tell what else a document may hold, so those are declared."""
    nested = [each.name for each in sampled.fields if pa.types.is_nested(each.type)]
    if nested:
        why = "a nested value becomes a column of JSON, and a sample does not tell what else it may hold"
        raise UnfitFields([(name, why) for name in nested], sampled)


def sql_recipe(parts: Parts, table: SqlTable) -> SqlRecipe:
    """What a record is decoded to and what the table takes, and that the one can become the other."""
    config, told = parts.config, sql_of(parts)
    declared = declared_schema(config)
    selecting = bool(config.transform.select)
    target = table.schema(None if selecting else declared, selected=selecting)
    source = selected_from(config) if selecting else _source(declared, target, evolve=told.evolve)
    recipe = SqlRecipe(
        pipeline=config.pipeline,
        consumer=tuple(sorted(parts.consumer.items())),
        source=source,
        target=target,
        sink=replace(parts.sql, jsonb=table.jsonb()),
        dead_letters=config.dead_letters.path,
        max_record_bytes=config.source.kafka.max_record_bytes,
        block_bytes=config.batch.block_bytes,
        select=config.transform.select,
        where=config.transform.where,
        changes=told.meaning.decoding() if told.meaning is not None else None,
        evolve=told.evolve,
        declared=declared.fingerprint() if declared is not None else "",
    )
    _refuse_key(source, told, parts)
    return recipe


def _refuse_key(source: Schema, told: Sql, parts: Parts) -> None:
    """What no change of a record can be decoded by, before any is read."""
    try:
        decoder_of(
            source,
            parts.sql.key,
            told.meaning.decoding() if told.meaning is not None else None,
            max_record_bytes=parts.config.source.kafka.max_record_bytes,
        )
    except ValueError as reason:
        raise ConfigError(
            f"sink.sql.key: {reason}.", command="correct `key` or `source.kafka.schema` in {file}"
        ) from None


def _source(declared: Schema | None, table: Schema, *, evolve: bool) -> Schema:
    """The table decides the types, and a declaration which fields there are and must be; columns that were added since
    are filled too, where the table may evolve."""
    if declared is None:
        return table
    columns, named = table.by_name(), declared.by_name()
    unknown = [name for name in named if name not in columns]
    if unknown:
        raise ConfigError(
            f"source.kafka.schema: the table has no column {', '.join(map(repr, unknown))} that landonce writes.",
            safe=_NOTHING,
            command="add the column to the table, or take the field out of `source.kafka.schema` in {file}",
        )
    missing = [name for name, each in columns.items() if each.required and name not in named]
    if missing:
        raise ConfigError(
            f"source.kafka.schema: lacks {', '.join(map(repr, missing))}, which the table requires.",
            safe=_NOTHING,
            command="declare the field in {file}, or let the column be NULL or have a default",
        )
    fields = [_declared(each, columns[each.name]) for each in declared.fields]
    return Schema((*fields, *(each for name, each in columns.items() if evolve and name not in named)))


def _as_selected(column: Field) -> Field:
    """A column of documents takes text from an expression: `to_json(…)`."""
    return replace(column, type=pa.string()) if pa.types.is_nested(column.type) else column


def _declared(declared: Field, column: Field) -> Field:
    return replace(column, required=declared.required or column.required, scale=declared.scale)


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

    def examined(safe: str = _NOTHING) -> SqlRecipe:
        seen = table.likeness()
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
