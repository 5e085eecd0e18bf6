"""A whole run: open the ends, make the table if asked, start Spark, drive. What `landonce run` does, for programs.

    open ─► columns to make ─► refuse what is unfit ─► make ─► recipe ─► performer of the sink's kind ─► driver

The same for every sink: what differs, the sink says (`sinks.run.OpenSink`).
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypedDict

from pyspark.sql import SparkSession

from landonce.engine import transform
from landonce.engine.committing import CommitPerformer, CommitTimeout
from landonce.engine.driver import Driver, Topics
from landonce.engine.letter_topic import LetterTopic
from landonce.engine.observe import InferenceObserver, Observer, Silent
from landonce.engine.perform import InsertPerformer, Performer, PushPerformer, TransactPerformer, Workers
from landonce.engine.publish import Letters
from landonce.engine.replay import LedgerTopics, Replay, ReplayAgain, refuse_other_rows
from landonce.engine.spark.session import active_session, is_remote, open_session
from landonce.engine.waiting import Waiting
from landonce.engine.workers import SparkWorkers
from landonce.errors import ConfigError, LandonceError, ReplayRefused, SourceUnavailable, Transient
from landonce.jvm import spark_errors
from landonce.protocol.cases import OnRewind
from landonce.protocol.claimed import Claimed
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.ledger import Totals
from landonce.protocol.packing import Pace
from landonce.protocol.ranges import Partition
from landonce.protocol.snapshot import Snapshot
from landonce.protocol.source import Start, StartAt, available, everything
from landonce.protocol.tolerance import Tolerance
from landonce.protocol.transactional import Transactional
from landonce.read.schema.fields import Schema
from landonce.sinks.audit import HeldKeys
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
_SPAN = 1_000_000
"""Offsets whose rows are looked for at once."""


def run_pipeline(
    config: Pipeline,
    *,
    sink: Sink | None = None,
    once: bool = False,
    observer: Observer | None = None,
    ready: Callable[[Driver], None] | None = None,
    stopping: threading.Event | None = None,
) -> Totals:
    """`landonce.run_pipeline`, for a pipeline without `dedup`: `landonce.dedup.run` says what the arguments mean."""
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
        if (letters := LetterTopic.of(parts.config)) is not None:
            letters.require()
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
        source = parts.source()
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
    view = None
    for pause in _PAUSES:  # a topic that was made a moment ago has no leader yet
        try:
            view = parts.source()
            break
        except SourceUnavailable:
            time.sleep(pause)
    inferred = sampled_schema(parts, view or parts.source(), usable, tidy)
    if inferred.words and isinstance(observer, InferenceObserver):
        observer.inferred(inferred.words)
    return inferred.schema


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
    replay: Replay | None = None,
) -> Driver:
    """A driver for a sink that is ready. `topics`: who says which ranges there are, if not the brokers. `replay`: dead letters that are
    to land, and nothing else."""
    workers = SparkWorkers(session, lambda _: opened.examine())
    config, dead = parts.config, parts.config.dead_letters
    letters = Letters(dead.path, config.pipeline, parts.ledger.journal, parts.ledger.load, LetterTopic.of(config))
    choices = Choices(
        start=parts.start,
        once=once,
        letters=str(dead.path),
        tolerance=Tolerance(dead.limit, dead.floor, dead.on_bad == "halt"),
        replay=replay is not None,
    )
    seconds = config.batch.commit_timeout
    timeout = CommitTimeout(seconds, workers) if seconds is not None else None
    performer = performer_of(parts.sink, opened, workers, letters, choices, timeout)
    driver = assembled(parts, performer, workers, observer, topics)
    driver.replay = replay
    return driver


def replay_letters(config: Pipeline, replay: Replay, *, observer: Observer | None = None) -> Driver:
    """Lands dead letters in place, in a run of its own that does not read Kafka and fences a driver that runs. Returns its own driver, which
    knows what became of the letters."""
    parts = open_parts(for_letters(config))
    refuse_replay(parts, again=isinstance(replay, ReplayAgain))
    return land_letters(parts, replay, observer or Silent())


def for_letters(config: Pipeline) -> Pipeline:
    """The file without a limit for dead letters: a letter that cannot land is not a new one."""
    return config.model_copy(
        update={"dead_letters": config.dead_letters.model_copy(update={"on_bad": "divert", "limit": 1.0})}
    )


def land_letters(parts: Parts, replay: Replay, observer: Observer) -> Driver:
    """A run of letters alone."""
    with (
        spark_errors(),
        closing(parts.ledger),
        session_of(parts.config) as session,
        opened_sink(parts, session, observer) as opened,
    ):
        if isinstance(replay, ReplayAgain):
            replay.present = partial(_present, parts)
        if opened.recipe.identities is not None:
            refuse_other_rows(replay, opened.recipe.identities)
        topics = LedgerTopics(parts.ledger)
        driver = driver_for(parts, opened, session, observer, once=True, topics=topics, replay=replay)
        driver.start_late, driver.mirror = True, None
        driver.run()
        return driver


def _present(parts: Parts, label: Partition, offsets: Sequence[int]) -> set[int]:
    """Those of these offsets, which are in order, whose rows are in a table of the target."""
    found: set[int] = set()
    with closing(parts.sink.held(parts, parts.ledger.load())) as tables:
        for table in map(tables.open, tables.known()):
            if isinstance(table, HeldKeys):
                raise TypeError(f"{table.name} has no rows by coordinates")
            at = 0
            while at < len(offsets):
                end = bisect_left(offsets, offsets[at] + _SPAN)
                held = set(table.counted(label, offsets[at], offsets[end - 1] + 1).offsets.tolist())
                found.update(held.intersection(offsets[at:end]))
                at = end
    return found


def refuse_replay(parts: Parts, *, again: bool = False) -> None:
    """Raises where an old record that lands late could undo a newer one. `again`: the rows that an earlier replay landed are looked for."""
    if again and parts.sink.changes_rows and not parts.sink.no_replay:
        raise ReplayRefused(
            f"{parts.sink} changes rows by a key, and keeps only the newest row of each: nobody can tell which replayed letters have lost theirs.",
            safe="Nothing was written.",
            command="produce the records to the topic again, from the .replayed files beside the dead letters",
        )
    if not parts.sink.no_replay:
        return
    unique = parts.config.dedup is not None
    raise ReplayRefused(
        parts.sink.no_replay,
        safe="Nothing was written.",
        command="landonce dead export {file} --to fixed.jsonl, then produce the values to the topic again"
        + (": those of records that were never accepted land. " + BY_HAND if unique else ""),
    )


BY_HAND = (
    "An event that was accepted and could not be sent has its key taken: write such values to the target yourself."
)


class Choices(TypedDict, total=False):
    """What a pipeline file or a query decides for every kind of sink: fields of `Policy`."""

    start: Start | StartAt
    once: bool
    letters: str
    tolerance: Tolerance
    on_rewind: OnRewind
    block_rows: int
    replay: bool


def performer_of(
    sink: Sink,
    opened: OpenSink,
    workers: Workers,
    letters: Letters,
    choices: Choices,
    timeout: CommitTimeout | None = None,
) -> Performer:
    """The performer of the sink's kind. The plans of a query name the whole target, so that a query with another target is refused:
    Spark's ranges would be compared with the wrong rows. `timeout`: for pipelines with tables that commit atomically."""
    run, recipe = opened.run, opened.recipe
    fingerprint = plan_fingerprint(sink, recipe)
    target = sink.identity if run.query is not None else ""
    if isinstance(opened, OpenDeduplicating):
        ordered = opened.sink.ordered
        inserting = Deduplicating(target or opened.sink.table, fingerprint, ordered=ordered, **choices)
        return InsertPerformer(inserting, opened.recipe, opened.target, workers, letters, opened)
    if isinstance(opened, OpenTransactional):
        ordered = bool(opened.sink.key)
        transacting = Transactional(target or opened.sink.table, fingerprint, ordered=ordered, **choices)
        return TransactPerformer(transacting, opened, workers, letters)
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
        return PushPerformer(pushing, opened.recipe, workers, letters, opened.ledger, run.tell)
    if isinstance(opened, OpenSnapshot):
        own = opened.own is not None
        committing = Snapshot(
            target or str(sink),
            fingerprint,
            own_ledger=own,
            follow=opened.follow,
            in_parts=timeout is not None,
            **choices,
        )
        return CommitPerformer(committing, opened, workers, letters, run.ledger, timeout)
    raise TypeError(f"{opened!r} is of none of the four kinds of sinks")


def assembled(
    parts: Parts, performer: Performer, workers: SparkWorkers, observer: Observer, topics: Topics | None = None
) -> Driver:
    """The same for every kind of sink: only its performer differs."""
    return Driver(
        pipeline=parts.config.pipeline,
        topics=parts.config.source.kafka.topics,
        broker=topics or parts.broker,
        begins=parts.begins,
        mirror=parts.mirror(),
        ledger=parts.ledger,
        performer=performer,
        pace=Pace(parts.config.batch.every(parts.sink.interval), parts.sink.deadline, parallelism=os.cpu_count() or 1),
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
