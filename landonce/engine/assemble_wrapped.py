"""From a pipeline file to a driver that has a user's own function deliver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from landonce.engine import transform
from landonce.engine.assemble import dead_letters_reachable, driver_of
from landonce.engine.driver import Driver
from landonce.engine.observe import Observer
from landonce.engine.publish import Letters
from landonce.engine.pushing import Pushing
from landonce.engine.spark.session import is_remote
from landonce.engine.workers import SparkWorkers
from landonce.ledger.block_ledgers import PushLedger
from landonce.protocol.claimed import Claimed
from landonce.protocol.source import Start
from landonce.read.schema.fields import Schema
from landonce.sinks.parts import Parts
from landonce.sinks.wrapped.driver import ledger_reachable, wrapped_recipe
from landonce.sinks.wrapped.find import need_picklable
from landonce.sinks.wrapped.worker import WrappedRecipe


def with_selected(session: SparkSession, recipe: WrappedRecipe) -> WrappedRecipe:
    """The recipe with the columns that `select` makes; nothing but the expressions decides about them."""
    made = transform.selected_schema(session, recipe.source, recipe.select)
    return replace(recipe, target=Schema(tuple(replace(each, required=False) for each in made.fields)))


def make_wrapped_driver(parts: Parts, session: Callable[[], SparkSession], observer: Observer, *, once: bool) -> Driver:
    """A driver that is ready to run: workers can load the sink and reach the ledger. Spark is not started yet, unless it has to
    say which columns `select` makes."""
    config, ledger, sink = parts.config, parts.ledger, parts.wrapped
    if not isinstance(ledger, PushLedger):
        raise TypeError("the ledger of a wrapped sink keeps a row per block")
    dead_letters_reachable(config)
    recipe = wrapped_recipe(parts)
    if recipe.select:
        recipe = with_selected(session(), recipe)
    workers = SparkWorkers(session, partial(transform.examine, recipe=recipe))
    settings = Claimed(
        target=sink.name,
        fingerprint=recipe.fingerprint(),
        harmless=sink.idempotent,
        can_probe=sink.can_probe,
        wait=sink.wait,
        start=Start(config.source.kafka.start),
        once=once,
        letters=str(config.dead_letters.path),
    )
    letters = Letters(config.dead_letters.path, config.pipeline, parts.ledger.journal)
    performer = Pushing(settings, recipe, workers, letters, ledger, observer.trouble)
    return driver_of(parts, performer, workers, observer)


def refuse_unfit(parts: Parts) -> None:
    """What can be told before Spark starts."""
    wrapped_recipe(parts)
    ledger_reachable(parts, remote=is_remote(parts.config.spark))
    need_picklable(parts.wrapped)
