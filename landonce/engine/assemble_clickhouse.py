"""From a pipeline's parts to a driver that writes to a target that deduplicates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

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
from landonce.engine.inserting import Inserting
from landonce.engine.observe import Observer
from landonce.engine.publish import Letters
from landonce.engine.workers import SparkWorkers
from landonce.errors import ConfigError, Halt
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.source import Start
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.contract import Target
from landonce.sinks.deduplicating import InsertRecipe
from landonce.sinks.parts import Parts


def to_be_made(parts: Parts, target: Target) -> Columns | None:
    """The columns of the table, if the file asks for it and there is none."""
    sink = parts.deduplicating
    if not sink.create or target.exists():
        return None
    return columns_to_make(parts, sink.creation)


def make_recipe(parts: Parts, table: Schema) -> InsertRecipe:
    """What a record is decoded to and what the table takes, and that the one can become the other."""
    config = parts.config
    source = selected_from(config) if config.transform.select else source_schema(declared_schema(config), table)
    return InsertRecipe(
        pipeline=config.pipeline,
        consumer=tuple(sorted(parts.consumer.items())),
        source=source,
        target=table,
        sink=parts.deduplicating,
        dead_letters=config.dead_letters.path,
        max_record_bytes=config.source.kafka.max_record_bytes,
        block_bytes=config.batch.block_bytes,
        select=config.transform.select,
        where=config.transform.where,
    )


def _made(
    parts: Parts,
    target: Target,
    columns: Schema,
    examined: Callable[[Schema], InsertRecipe],
    fit: Callable[[], InsertRecipe],
) -> InsertRecipe:
    """Makes the table. One that turns out not to be fit is not left behind."""
    parts.deduplicating.creation(columns)
    examined(columns)
    parts.deduplicating.make(target, columns)
    try:
        fit()
        return examined(target.schema())
    except (Halt, ConfigError):
        target.take_back()
        raise


def source_schema(declared: Schema | None, table: Schema) -> Schema:
    """Where nothing is selected, the table decides the types, and a declaration which fields there are and must be."""
    if declared is None:
        return table
    columns = table.by_name()
    unknown = [each.name for each in declared.fields if each.name not in columns]
    if unknown:
        raise ConfigError(f"source.kafka.schema: the table has no column {', '.join(map(repr, unknown))}.")
    missing = [name for name, each in columns.items() if each.required and name not in declared.by_name()]
    if missing:
        raise ConfigError(f"source.kafka.schema: lacks {', '.join(map(repr, missing))}, which the table requires.")
    return Schema(tuple(_declared_field(each, columns[each.name]) for each in declared.fields))


def _declared_field(declared: Field, column: Field) -> Field:
    scale = declared.scale if column.scale is not None else None
    return replace(column, required=declared.required or column.required, scale=scale)


def make_driver(
    parts: Parts,
    target: Target,
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
    config = parts.config

    def examined(table: Schema) -> InsertRecipe:
        recipe = make_recipe(parts, table)
        if recipe.transforms:
            transform.examine(session(), recipe)
        return recipe

    def fit() -> InsertRecipe:
        refuse_unfit(target.check())
        return make_recipe(parts, target.schema())

    dead_letters_reachable(config)
    recipe = fit() if columns is None else _made(parts, target, columns(session), examined, fit)
    workers = SparkWorkers(session, partial(transform.examine, recipe=recipe))
    settings = Deduplicating(
        target=parts.deduplicating.table,
        fingerprint=recipe.fingerprint(),
        start=Start(config.source.kafka.start),
        once=once,
        letters=str(recipe.dead_letters),
    )
    letters = Letters(recipe.dead_letters, config.pipeline, parts.ledger.journal)
    performer = Inserting(settings, recipe, target, workers, letters)
    return driver_of(parts, performer, workers, observer, deadline=parts.sink.deadline)
