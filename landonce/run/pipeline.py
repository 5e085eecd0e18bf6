"""A whole run: open the ends, make the table if asked, start Spark, drive. What `landonce run` does, for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

from pyspark.sql import SparkSession

from landonce.config.model import Pipeline
from landonce.errors import Transient
from landonce.record.ledger import Totals
from landonce.run.assemble_clickhouse import make_driver, to_be_made
from landonce.run.driver import Driver
from landonce.run.observe import Observer, Silent
from landonce.run.parts import Parts, open_parts
from landonce.run.session import active_session, open_session
from landonce.spark import spark_errors
from landonce.write.wrapped import WrappedSink


def run_pipeline(
    config: Pipeline,
    *,
    sink: WrappedSink | None = None,
    once: bool = False,
    observer: Observer | None = None,
    ready: Callable[[Driver], None] | None = None,
) -> Totals:
    """Runs a pipeline until it is stopped, or (`once`) until what is there has landed; gives what became of the records.

    `ready` gets the driver before it starts; `driver.stopping.set()` from a signal handler or another thread finishes the
    batch in hand. `sink` is one made by `landonce.wrap`, for a pipeline that says `sink: {wrapped: {}}`. Every way out but a
    return is an error of `landonce.errors`, and after each of them starting again is safe.
    """
    parts = open_parts(config, sink)
    borrowed = active_session()
    with spark_errors(), closing(parts.ledger):
        _require_topics(parts)
        with _ready(parts, observer or Silent(), once=once) as (driver, session):
            if ready is not None:
                ready(driver)
            totals = driver.run()
            if borrowed is None:
                session.stop()
            return totals


def _require_topics(parts: Parts) -> None:
    """Whoever mistyped a topic need not wait for Spark to hear it. A Kafka that is away is waited for later, by the driver."""
    with suppress(Transient):
        parts.broker.require(parts.config.source.kafka.topics)


@contextmanager
def _ready(parts: Parts, observer: Observer, *, once: bool) -> Iterator[tuple[Driver, SparkSession]]:
    """The driver for the file's sink, and the session that its workers run in."""
    config = parts.config
    if config.sink.iceberg is not None:
        yield _ready_for_iceberg(parts, observer, once=once)
        return
    if config.sink.sql is not None:
        with _ready_for_sql(parts, observer, once=once) as ready:
            yield ready
        return
    if config.sink.wrapped is not None:
        yield _ready_for_wrapped(parts, observer, once=once)
        return
    with closing(parts.clickhouse.target()) as target:
        columns = to_be_made(parts, target)
        session = _session(config, "landonce.write.work")
        yield make_driver(parts, target, session, observer, once=once, columns=columns), session


def _ready_for_iceberg(parts: Parts, observer: Observer, *, once: bool) -> tuple[Driver, SparkSession]:
    from landonce.run.assemble_iceberg import (
        lake_conf,
        lake_to_be_made,
        make_iceberg_driver,
        make_missing,
        open_lake,
    )

    config = parts.config
    opened: list[SparkSession] = []
    lake = open_lake(parts, lambda: opened[0])
    columns = lake_to_be_made(parts, lake)
    expressions = lake.recipe.transforms or lake.by_spark
    opened.append(
        open_session(
            config.pipeline,
            config.spark,
            expressions=expressions,
            extra=lake_conf(lake),
            work="landonce.write.iceberg.work",
        )
    )
    make_missing(parts, lake, opened[0], columns)
    lake.upgrade()
    return make_iceberg_driver(parts, lake, opened[0], observer, once=once), opened[0]


def _ready_for_wrapped(parts: Parts, observer: Observer, *, once: bool) -> tuple[Driver, SparkSession]:
    from landonce.run.assemble_wrapped import make_wrapped_driver, refuse_unfit

    config = parts.config
    refuse_unfit(parts)
    session = _session(config, "landonce.write.wrapped.work")
    return make_wrapped_driver(parts, session, observer, once=once), session


@contextmanager
def _ready_for_sql(parts: Parts, observer: Observer, *, once: bool) -> Iterator[tuple[Driver, SparkSession]]:
    from landonce.run.assemble_sql import file_reachable, make_sql_driver, sql_to_be_made
    from landonce.write.sql.table import SqlTable

    config = parts.config
    file_reachable(config)
    with closing(SqlTable(parts.sql)) as table:
        columns = sql_to_be_made(parts, table)
        session = _session(config, "landonce.write.sql.work")
        yield make_sql_driver(parts, table, session, observer, once=once, columns=columns), session


def _session(config: Pipeline, work: str) -> SparkSession:
    """For sinks that evaluate no more than what the file says."""
    return open_session(config.pipeline, config.spark, expressions=not config.transform.empty, work=work)
