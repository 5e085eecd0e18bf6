"""From a pipeline file to a driver that writes Iceberg tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from pyspark.sql import SparkSession

from landonce.commit.publish import Letters
from landonce.errors import ConfigError
from landonce.local.jars import spark_jars
from landonce.read.source import Start
from landonce.run import transform
from landonce.run.assemble import changes_of, dead_letters_reachable, declared_schema, driver_of, sampled_schema
from landonce.run.committing import Committing
from landonce.run.driver import Driver
from landonce.run.observe import Observer
from landonce.run.parts import Parts
from landonce.run.session import open_session, session_if_needed
from landonce.run.snapshots import Settings
from landonce.run.workers import SparkWorkers
from landonce.write.iceberg.lake import Lake
from landonce.write.iceberg.ledger import TableLedger
from landonce.write.iceberg.recipe import FileRecipe
from landonce.write.iceberg.sink import IcebergSink
from landonce.write.iceberg.work import sow, work


def open_lake(parts: Parts, session: Callable[[], SparkSession]) -> Lake:
    """The tables of the file, opened, and made if it says so."""
    config = parts.config
    lake = Lake(parts.iceberg, file_recipe(parts), config.source.kafka.topics, declared_schema(config), session)
    lake.start(lambda: sampled_schema(parts))
    return lake


def file_recipe(parts: Parts) -> FileRecipe:
    """What the file says of records, before any table is looked at."""
    config, sink = parts.config, parts.iceberg
    declared = declared_schema(config)
    if config.transform.select and declared is None:
        raise ConfigError(
            "transform.select: the tables' columns say nothing about the records; declare `source.kafka.schema`."
        )
    by = sink.routing.field
    if config.transform.select and by is not None and "." in by:
        raise ConfigError(f"sink.iceberg: with `select`, records are routed by a column of its result, not by {by!r}.")
    return FileRecipe(
        pipeline=config.pipeline,
        consumer=tuple(sorted(parts.consumer.items())),
        routing=sink.routing,
        tables=(),
        dead_letters=config.dead_letters.path,
        max_record_bytes=config.source.kafka.max_record_bytes,
        block_bytes=config.batch.block_bytes,
        declared=declared if not config.transform.empty else None,
        select=config.transform.select,
        where=config.transform.where,
        changes=changes_of(sink.told.changes),
        meaning=repr((declared.fingerprint() if declared else "", sink.told.case_insensitive, sink.told.identity)),
        evolve=sink.told.evolve,
        coordinates=sink.told.coordinates,
    )


def make_iceberg_driver(parts: Parts, lake: Lake, observer: Observer, *, once: bool) -> Driver:
    """A driver that is ready to run: the tables are fit, the dead letters have a place. Spark is not started, unless a table
    had to be made by it."""
    config = parts.config
    dead_letters_reachable(config)
    workers = SparkWorkers(lake.session, work, sow, lambda session: transform.examine(session, lake.recipe))
    own = parts.ledger if isinstance(parts.ledger, TableLedger) else None
    if own is not None:
        own.build_with(lake.building(lake.tables[0], ()), lake.place(lake.tables[0]))
    settings = Settings(
        target=str(parts.iceberg),
        fingerprint=lake.recipe.fingerprint(),
        start=Start(config.source.kafka.start),
        once=once,
        letters=str(config.dead_letters.path),
        own_ledger=own is not None,
        follow=parts.iceberg.told.rollback == "follow",
    )
    letters = Letters(config.dead_letters.path, config.pipeline, parts.ledger.journal)
    hands = Committing(settings, lake, workers, letters, parts.ledger, own)
    return driver_of(parts, hands, workers, observer)


def lake_conf(lake: Lake) -> dict[str, str]:
    """What Spark needs to know of the catalog, and the jars of Iceberg's runtime, where it writes itself; or where it may
    have to, for a record may name a table that Arrow cannot write for."""
    return iceberg_conf(lake.sink) if lake.by_spark or lake.sink.routing.template is not None else {}


def iceberg_conf(sink: IcebergSink) -> dict[str, str]:
    """A session with these settings reads and writes the sink's catalog."""
    return {**sink.spec.spark_conf(), "spark.jars": ",".join(map(str, spark_jars()))}


def lake_session(parts: Parts) -> AbstractContextManager[Callable[[], SparkSession]]:
    """A session that reads and writes the sink's catalog, if one is needed."""
    spark = parts.config.spark
    return session_if_needed(lambda: open_session(parts.config.pipeline, spark, extra=iceberg_conf(parts.iceberg)))
