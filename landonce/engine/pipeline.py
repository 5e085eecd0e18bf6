"""A whole run: open the ends, make the table if asked, start Spark, drive. What `landonce run` does, for programs.

    open ─► columns to make ─► refuse what is unfit ─► make ─► recipe ─► performer of the sink's kind ─► driver

The same for every sink: what differs, the sink says (`sinks.run.OpenSink`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TypedDict

from pyspark.sql import SparkSession

from landonce.engine import transform
from landonce.engine.committing import Committing
from landonce.engine.driver import Driver, Topics
from landonce.engine.observe import InferenceObserver, Observer, Silent
from landonce.engine.perform import Inserting, Performer, Pushing, Transacting, Workers
from landonce.engine.publish import Letters
from landonce.engine.spark.session import active_session, is_remote, open_session
from landonce.engine.waiting import Waiting
from landonce.engine.workers import SparkWorkers
from landonce.errors import ConfigError, LandonceError, SourceUnavailable, Transient
from landonce.jvm import spark_errors
from landonce.protocol.cases import OnRewind
from landonce.protocol.claimed import Claimed
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.ledger import Totals
from landonce.protocol.packing import Pace
from landonce.protocol.snapshot import Snapshot
from landonce.protocol.source import SourceView, Start, available, everything
from landonce.protocol.transactional import Transactional
from landonce.read.schema.fields import Schema
from landonce.sinks.claimed import OpenClaimed
from landonce.sinks.contract import Sink
from landonce.sinks.declared import sampled_schema, selected_from
from landonce.sinks.deduplicating import OpenDeduplicating
from landonce.sinks.parts import Parts, open_parts
from landonce.sinks.pipeline_file import Pipeline
from landonce.sinks.run import Expressions, OpenSink, Run, SparkNeeds, plan_fingerprint, refuse_conversions, run_of
from landonce.sinks.snapshot import OpenSnapshot
from landonce.sinks.transactional import OpenTransactional

_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0)


def run_pipeline(
    config: Pipeline,
    *,
    sink: Sink | None = None,
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
    if config.dedup is not None:
        raise ConfigError("dedup: call `landonce.run_pipeline`, which accepts events before it lands them.")
    parts, watching = open_parts(config, sink), observer or Silent()
    waiting = Waiting(config.stall, watching.trouble, stopping or threading.Event())
    with spark_errors(), closing(parts.ledger), session_of(config) as session:
        require_topics(parts, watching)
        with driver_of(parts, session, watching, waiting, once=once) as driver:
            driver.start_late = once and _nothing_to_do(parts)
            if ready is not None:
                ready(driver)
            return driver.run()


@dataclass
class RunSession:
    """The Spark session of a run, opened when it is first asked for. The sink says what it needs of it."""

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

    def needs(self, needs: SparkNeeds) -> None:
        """Before it is opened: what a sink needs of it, beside what others do."""
        modules = dict.fromkeys((*filter(None, self.work.split(",")), "landonce.engine.task", *needs.modules))
        self.work, self.extra = ",".join(modules), {**(self.extra or {}), **needs.conf}
        self.expressions = self.expressions or needs.plans


@contextmanager
def session_of(config: Pipeline) -> Iterator[RunSession]:
    """Stopped after a run that ended well, unless it was there before."""
    borrowed = active_session() is not None
    session = RunSession(config, expressions=not config.transform.empty)
    yield session
    if session.opened is not None and not borrowed:
        session.opened.stop()


def require_topics(parts: Parts, observer: Observer) -> None:
    """A mistyped topic or address is reported before Spark starts. A Kafka that is unreachable is waited for later, by the
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


def pipeline_run(parts: Parts, session: Callable[[], SparkSession], observer: Observer) -> Run:
    """A pipeline's run with all that the engine can do for its sink."""

    def examine(expressions: Expressions) -> None:
        if expressions.transforms:
            transform.examine(session(), expressions)

    return replace(
        run_of(parts, remote=is_remote(parts.config.spark)),
        session=session,
        examine=examine,
        select_columns=lambda: selected_columns(parts.config, session),
        sample=lambda usable, tidy: sampled_columns(parts, usable, tidy, observer),
        tell=observer.trouble,
    )


def selected_columns(config: Pipeline, session: Callable[[], SparkSession]) -> Schema:
    """What `select` makes of the declared fields."""
    return transform.selected_schema(session(), selected_from(config), config.transform.select)


def sampled_columns(
    parts: Parts, usable: Callable[[Schema], object], tidy: Callable[[Schema], Schema], observer: Observer
) -> Schema:
    """The columns of some records of the topics. They must be `usable`."""
    inferred = sampled_schema(parts, _surveyed(parts), usable, tidy)
    if inferred.words and isinstance(observer, InferenceObserver):
        observer.inferred(inferred.words)
    return inferred.schema


def _surveyed(parts: Parts) -> SourceView:
    """A topic that was made a moment ago has no leader yet."""
    for pause in _PAUSES:
        try:
            return parts.broker.survey(parts.config.source.kafka.topics)
        except SourceUnavailable:
            time.sleep(pause)
    return parts.broker.survey(parts.config.source.kafka.topics)


@contextmanager
def driver_of(
    parts: Parts,
    session: Callable[[], SparkSession],
    observer: Observer,
    waiting: Waiting | None = None,
    *,
    once: bool,
) -> Iterator[Driver]:
    """A driver that is ready to run: the table is fit, the dead letters have a place. Spark is not started yet, unless a table is to be made
    that expressions decide about. Whatever can be refused without Spark is refused here."""
    with opened_sink(parts, session, observer, waiting) as opened:
        yield driver_for(parts, opened, session, observer, once=once)


@contextmanager
def opened_sink(
    parts: Parts,
    session: Callable[[], SparkSession],
    observer: Observer,
    waiting: Waiting | None = None,
) -> Iterator[OpenSink]:
    """The sink, opened and ready."""
    patient = waiting or Waiting(parts.config.stall, observer.trouble)
    with closing(parts.sink.open(pipeline_run(parts, session, observer))) as opened:
        patient.until(opened.start)
        columns = patient.until(opened.columns_to_make)
        if isinstance(session, RunSession):
            session.needs(opened.spark())
        dead_letters_reachable(parts.config)
        patient.until(lambda: opened.make_ready(columns))
        refuse_conversions(opened.recipe)
        yield opened


def driver_for(
    parts: Parts,
    opened: OpenSink,
    session: Callable[[], SparkSession],
    observer: Observer,
    *,
    once: bool,
    topics: Topics | None = None,
) -> Driver:
    """A driver for a sink that is ready. `topics`: who says which ranges there are, if not the brokers."""
    workers = SparkWorkers(session, lambda _: opened.examine())
    config = parts.config
    folder, start = config.dead_letters.path, Start(config.source.kafka.start)
    letters = Letters(folder, config.pipeline, parts.ledger.journal)
    choices = Choices(start=start, once=once, letters=str(folder))
    performer = performer_of(parts.sink, opened, workers, letters, choices)
    return assembled(parts, performer, workers, observer, topics)


class Choices(TypedDict, total=False):
    """What a pipeline file or a query decides, whatever the sink: fields of `Policy`."""

    start: Start
    once: bool
    letters: str
    on_rewind: OnRewind
    block_rows: int


def performer_of(sink: Sink, opened: OpenSink, workers: Workers, letters: Letters, choices: Choices) -> Performer:
    """The performer of the sink's kind. A query names the target wholly in its plans: where it is another one by now, Spark's ranges would
    be compared with that."""
    run, recipe = opened.run, opened.recipe
    fingerprint = plan_fingerprint(sink, recipe)
    target = sink.identity if run.query is not None else ""
    if isinstance(opened, OpenDeduplicating):
        inserting = Deduplicating(target or opened.sink.table, fingerprint, **choices)
        return Inserting(inserting, opened.recipe, opened.target, workers, letters)
    if isinstance(opened, OpenTransactional):
        keyed = bool(opened.sink.key)
        transacting = Transactional(target or opened.sink.table, fingerprint, keyed=keyed, **choices)
        return Transacting(transacting, opened, workers, letters)
    if isinstance(opened, OpenClaimed):
        pushes = opened.recipe.pushes
        pushing = Claimed(
            target or pushes.name,
            fingerprint,
            harmless=pushes.idempotent,
            can_probe=pushes.can_probe,
            wait=pushes.wait,
            **choices,
        )
        return Pushing(pushing, opened.recipe, workers, letters, opened.ledger, run.tell)
    if isinstance(opened, OpenSnapshot):
        own = opened.own is not None
        committing = Snapshot(target or str(sink), fingerprint, own_ledger=own, follow=opened.follow, **choices)
        return Committing(committing, opened, workers, letters, run.ledger)
    raise TypeError(f"{opened!r} is of none of the four kinds of sinks")


def assembled(
    parts: Parts, performer: Performer, workers: SparkWorkers, observer: Observer, topics: Topics | None = None
) -> Driver:
    """The same for every kind of sink: only its performer differs."""
    return Driver(
        pipeline=parts.config.pipeline,
        topics=parts.config.source.kafka.topics,
        broker=topics or parts.broker,
        ledger=parts.ledger,
        performer=performer,
        pace=Pace(parts.config.batch, parts.sink.deadline, parallelism=os.cpu_count() or 1),
        stall=parts.config.stall,
        observer=observer,
        start_workers=workers.start,
        finished=workers.finished,
    )


def dead_letters_reachable(config: Pipeline) -> None:
    """Workers and driver see the same folder, or nothing starts."""
    if is_remote(config.spark) and not config.dead_letters.shared:
        raise ConfigError(
            f"dead_letters.path: {config.dead_letters.path} is a folder on this machine, and the workers run on other "
            "machines.",
            command="use a folder that all machines share, and set `shared: true` under `dead_letters`",
        )
