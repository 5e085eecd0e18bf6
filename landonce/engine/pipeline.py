"""A whole run: open the ends, make the table if asked, start Spark, drive. What `landonce run` does, for programs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from landonce.engine.assemble_clickhouse import make_driver, to_be_made
from landonce.engine.driver import Driver
from landonce.engine.observe import Observer, Silent
from landonce.engine.spark.session import active_session, is_remote, open_session
from landonce.engine.waiting import Waiting
from landonce.errors import LandonceError, Transient
from landonce.jvm import spark_errors
from landonce.protocol.ledger import Totals
from landonce.protocol.source import available, everything
from landonce.sinks.contract import Guarantee
from landonce.sinks.parts import Parts, open_parts
from landonce.sinks.pipeline_file import Pipeline
from landonce.sinks.wrapped.sink import WrappedSink


def run_pipeline(
    config: Pipeline,
    *,
    sink: WrappedSink | None = None,
    once: bool = False,
    observer: Observer | None = None,
    ready: Callable[[Driver], None] | None = None,
    stopping: threading.Event | None = None,
) -> Totals:
    """Runs a pipeline until it is stopped, or (`once`) until what is there has landed; gives what became of the records.

    `ready` gets the driver before it starts; `driver.stopping.set()` from a signal handler or another thread finishes the
    batch in hand. `stopping`, once it is set, ends a start that waits for something that is unreachable. `sink` is one made by
    `landonce.wrap`, for a pipeline that says `sink: {wrapped: {}}`. Every way out but a return is an error of `landonce.errors`,
    and after each of them starting again is safe.
    """
    parts, watching = open_parts(config, sink), observer or Silent()
    waiting = Waiting(config.stall, watching.trouble, stopping or threading.Event())
    with spark_errors(), closing(parts.ledger), _session_of(config) as session:
        _require_topics(parts, watching)
        with _ready(parts, session, watching, waiting, once=once) as driver:
            driver.start_late = once and _nothing_to_do(parts)
            if ready is not None:
                ready(driver)
            return driver.run()


@dataclass
class _Session:
    """The Spark session of a run, opened when it is first asked for. Each kind of sink says what it needs of it."""

    config: Pipeline
    expressions: bool
    work: str = ""
    extra: Mapping[str, str] | None = None
    opened: SparkSession | None = None

    def __call__(self) -> SparkSession:
        if self.opened is None:
            self.opened = open_session(
                self.config.pipeline,
                self.config.spark,
                expressions=self.expressions,
                extra=self.extra,
                work=self.work,
            )
        return self.opened


@contextmanager
def _session_of(config: Pipeline) -> Iterator[_Session]:
    """Stopped after a run that ended well, unless it was there before."""
    borrowed = active_session() is not None
    session = _Session(config, expressions=not config.transform.empty)
    yield session
    if session.opened is not None and not borrowed:
        session.opened.stop()


def _require_topics(parts: Parts, observer: Observer) -> None:
    """Whoever mistyped a topic or an address need not wait for Spark to hear it. A Kafka that is unreachable is waited for later, by the
    driver."""
    try:
        parts.broker.require(parts.config.source.kafka.topics)
    except Transient as error:
        observer.trouble(f"{error.what} It is tried again for {parts.config.stall:.0f} s.")


def _nothing_to_do(parts: Parts) -> bool:
    """No plan is pending, and the topics hold nothing new. Then the driver takes the pipeline and looks at the target as ever,
    and in all likelihood ends before it needs Spark.

    This look decides nothing else. What goes wrong in it, the driver meets again, and names.
    """
    try:
        state = parts.ledger.load()
        if state is not None and state.pending is not None:
            return False
        source = parts.broker.survey(parts.config.source.kafka.topics)
    except LandonceError:
        return False
    if state is None or state.fresh:
        return not everything(source)
    known = state.committed()
    return not available(state, source) and all(partition in known for partition, _ in source.extents)


@contextmanager
def _ready(parts: Parts, session: _Session, observer: Observer, waiting: Waiting, *, once: bool) -> Iterator[Driver]:
    """The driver for the file's sink. Whatever can be refused without Spark is refused here."""
    kind = parts.sink.guarantee
    if kind is Guarantee.SNAPSHOT:
        yield _ready_for_iceberg(parts, session, observer, waiting, once=once)
    elif kind is Guarantee.TRANSACTIONAL:
        with _ready_for_sql(parts, session, observer, waiting, once=once) as driver:
            yield driver
    elif kind is Guarantee.WRAPPED:
        yield _ready_for_wrapped(parts, session, observer, once=once)
    else:
        session.work = "landonce.engine.task,landonce.sinks.deduplicating"
        with closing(parts.deduplicating.target()) as target:
            columns = waiting.until(lambda: to_be_made(parts, target))
            yield waiting.until(lambda: make_driver(parts, target, session, observer, once=once, columns=columns))


def _ready_for_iceberg(parts: Parts, session: _Session, observer: Observer, waiting: Waiting, *, once: bool) -> Driver:
    from landonce.engine.assemble_iceberg import (
        lake_conf,
        lake_to_be_made,
        make_iceberg_driver,
        make_missing,
        open_lake,
    )

    lake = waiting.until(lambda: open_lake(parts, session))
    columns = waiting.until(lambda: lake_to_be_made(parts, lake))
    session.expressions = lake.recipe.transforms or lake.by_spark
    session.extra = lake_conf(lake)
    session.work = "landonce.sinks.iceberg.worker,landonce.engine.task"
    waiting.until(lambda: make_missing(parts, lake, columns))
    waiting.until(lake.upgrade)
    return waiting.until(lambda: make_iceberg_driver(parts, lake, observer, once=once))


def _ready_for_wrapped(parts: Parts, session: _Session, observer: Observer, *, once: bool) -> Driver:
    from landonce.engine.assemble_wrapped import make_wrapped_driver, refuse_unfit

    refuse_unfit(parts)
    session.work = "landonce.sinks.wrapped.worker,landonce.engine.task"
    return make_wrapped_driver(parts, session, observer, once=once)


@contextmanager
def _ready_for_sql(
    parts: Parts, session: _Session, observer: Observer, waiting: Waiting, *, once: bool
) -> Iterator[Driver]:
    from landonce.engine.assemble_sql import make_sql_driver, sql_to_be_made
    from landonce.sinks.sql.driver import file_reachable
    from landonce.sinks.sql.table import SqlTable

    file_reachable(parts.config, remote=is_remote(parts.config.spark))
    session.work = "landonce.sinks.sql.worker,landonce.engine.task"
    with closing(SqlTable(parts.sql)) as table:
        columns = waiting.until(lambda: sql_to_be_made(parts, table))
        yield waiting.until(lambda: make_sql_driver(parts, table, session, observer, once=once, columns=columns))
