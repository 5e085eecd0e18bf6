"""From a pipeline's parts to a driver that writes to a target that deduplicates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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
from landonce.engine.inserting import Inserting
from landonce.engine.observe import Observer
from landonce.engine.publish import Letters
from landonce.engine.workers import SparkWorkers
from landonce.errors import ConfigError, Halt
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.source import Start
from landonce.read.schema.fields import Schema
from landonce.sinks.contract import Target
from landonce.sinks.deduplicating import InsertRecipe, insert_recipe
from landonce.sinks.parts import Parts


def to_be_made(parts: Parts, target: Target) -> Columns | None:
    """The columns of the table, if the file asks for it and there is none."""
    sink = parts.deduplicating
    if not sink.create or target.exists():
        return None
    return columns_to_make(parts, sink.creation)


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
        recipe = insert_recipe(parts, table)
        if recipe.transforms:
            transform.examine(session(), recipe)
        return recipe

    def fit() -> InsertRecipe:
        refuse_unfit(target.check())
        return insert_recipe(parts, target.schema())

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
