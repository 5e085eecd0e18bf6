"""From a pipeline file to a driver that writes Iceberg tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import SparkSession

from landonce.engine import transform
from landonce.engine.assemble import (
    Columns,
    columns_to_make,
    dead_letters_reachable,
    driver_of,
    selected_columns,
)
from landonce.engine.committing import Committing
from landonce.engine.driver import Driver
from landonce.engine.observe import Observer
from landonce.engine.publish import Letters
from landonce.engine.workers import SparkWorkers
from landonce.protocol.snapshot import Snapshot
from landonce.protocol.source import Start
from landonce.sinks.declared import landing_schema
from landonce.sinks.iceberg import evolve
from landonce.sinks.iceberg.driver import Lake, file_recipe
from landonce.sinks.parts import Parts
from landonce.sinks.snapshot import TableLedger


def open_lake(parts: Parts, session: Callable[[], SparkSession]) -> Lake:
    """The tables of the file that are there, opened."""
    config = parts.config
    lake = Lake(parts.iceberg, file_recipe(parts), config.source.kafka.topics, landing_schema(config), session)
    lake.start()
    return lake


def lake_to_be_made(parts: Parts, lake: Lake) -> Columns | None:
    """The columns of the tables that are not there, if there are such. What a sample shows is made so that readers can tell it
    apart."""
    tidy = lambda columns: evolve.distinguishable(columns.fields)  # noqa: E731
    return columns_to_make(parts, lake.plan, tidy) if lake.missing else None


def make_missing(parts: Parts, lake: Lake, columns: Columns | None) -> None:
    """Makes the tables that are not there, once nothing is in the way: neither the expressions nor the dead letters."""
    if columns is None:
        return
    dead_letters_reachable(parts.config)
    made = columns(lake.session)
    recipe = lake.plan(made)
    if recipe.transforms:  # only then Spark has to start
        transform.examine(lake.session(), recipe)
    lake.make(made)


def make_iceberg_driver(parts: Parts, lake: Lake, observer: Observer, *, once: bool) -> Driver:
    """A driver that is ready to run: the tables are fit and made, the dead letters have a place. Spark is not started, unless a
    table had to be made by it, or of what `select` makes."""
    config = parts.config
    dead_letters_reachable(config)

    def examine(session: SparkSession) -> None:
        if config.transform.select and lake.sink.routing.template is not None:
            lake.recipe = replace(lake.recipe, selected=selected_columns(config, lambda: session))
        transform.examine(session, lake.recipe)

    workers = SparkWorkers(lake.session, examine)
    own = parts.ledger if isinstance(parts.ledger, TableLedger) else None
    if own is not None:
        own.table = lake.marked(lake.tables[0])
    settings = Snapshot(
        target=str(parts.iceberg),
        fingerprint=lake.recipe.fingerprint(),
        start=Start(config.source.kafka.start),
        once=once,
        letters=str(config.dead_letters.path),
        own_ledger=own is not None,
        follow=parts.iceberg.config.rollback == "follow",
    )
    letters = Letters(config.dead_letters.path, config.pipeline, parts.ledger.journal)
    performer = Committing(settings, lake, workers, letters, parts.ledger, own)
    return driver_of(parts, performer, workers, observer)


def lake_conf(lake: Lake) -> dict[str, str]:
    """What Spark needs to know of the catalog, and the jars of Iceberg's runtime, where it writes itself; or where it may
    have to: a record may name a table that Arrow cannot write for, and `select` may make the columns of one."""
    told = lake.sink.config
    unknown = lake.missing and not lake.planned and bool(told.properties or told.partition_by)
    open_ended = lake.sink.routing.template is not None
    return lake.sink.spark_conf() if lake.by_spark or open_ended or unknown else {}
