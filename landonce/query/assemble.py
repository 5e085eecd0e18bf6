"""From a sink and a ledger, as a user names them, to the driver that delivers one run of a query.

A query opens its sink as a pipeline does (`sinks.run.OpenSink`), and gets the performer of the sink's kind. Only its workers differ: they get
rows of a DataFrame instead of reading Kafka, and say which ranges there are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from landonce.config import secrets
from landonce.config.dedup import Dedup
from landonce.config.model import Batch
from landonce.dedup.accept import OpenAccept
from landonce.dedup.chunks import StoredTopics
from landonce.dedup.rows import StoredRows
from landonce.dedup.run import PushObserver, accept_sink, compare
from landonce.dedup.store import StorePlace
from landonce.engine.driver import Driver, Topics
from landonce.engine.observe import Observer
from landonce.engine.perform import Workers
from landonce.engine.pipeline import Choices, performer_of
from landonce.engine.publish import NoLetters
from landonce.engine.waiting import Waiting
from landonce.engine.workers import SparkWorkers
from landonce.errors import ConfigError
from landonce.protocol.cases import OnRewind
from landonce.protocol.ledger import Ledger
from landonce.protocol.packing import Pace
from landonce.query.rows import QueryWorkers
from landonce.read.decoding import Decoding
from landonce.read.kafka.records import NoRecords
from landonce.sinks.contract import Sink
from landonce.sinks.run import OpenSink, Run
from landonce.sinks.section import LedgerPlace, SinkSection
from landonce.sinks.snapshot import TableLedger
from landonce.sinks.worker import Basics

QuerySink = SinkSection | Sink
"""What `landonce.clickhouse`, `sql`, `iceberg` and `wrap` give, or another package's description of its sink."""
LedgerChoice = str | Path | Mapping[str, Any] | None


@dataclass(frozen=True)
class Settings:
    """What a user says of a query."""

    sink: QuerySink
    ledger: LedgerChoice
    on_rewind: OnRewind
    block_rows: int
    stall: float
    observer: Observer
    dedup: Dedup | None = None

    def store_place(self, name: str) -> StorePlace:
        """Where the keys of events are kept: the store that is named, or the ledger's database."""
        if self.dedup is None:
            raise ValueError("this query has no store")
        where: str | Path | None = self.dedup.store.place if self.dedup.store is not None else _where(self.ledger)
        section = self.sink if isinstance(self.sink, SinkSection) else None
        if where is None and section and section.ledger_place(named=False) is LedgerPlace.BESIDE_ROWS:
            where = section.position_place
        if where is None:
            raise ConfigError("dedup.store: say where the keys of events are kept: sqlite, postgres, mysql or ydb.")
        return StorePlace(where, self.dedup.scope or name)

    @property
    def place(self) -> str:
        """Where the position is kept, as it was named."""
        kept = self.sink.position_place if isinstance(self.sink, SinkSection) else ""
        return kept or str(_where(self.ledger) or named_sink(self.sink, "query").identity)

    def open_ledger(self, sink: Sink, name: str) -> Ledger:
        """Nothing is asked yet."""
        where = _where(self.ledger)
        if isinstance(where, str):
            secrets.remember_url(where)
        return sink.open_query_ledger(where, name)


def named_sink(sink: QuerySink, name: str) -> Sink:
    """The sink of a query of this name."""
    return sink.to_sink(name) if isinstance(sink, SinkSection) else sink


def check_sink(sink: object) -> None:
    """Raises, in one sentence, where no query can be delivered to it."""
    if not isinstance(sink, SinkSection | Sink):
        raise ConfigError(
            f"sink: {type(sink).__name__} is not a sink for queries.",
            command="landonce.clickhouse(url, table), landonce.iceberg(table), landonce.sql(url, table), landonce.wrap(push, idempotent=…)",
        )
    if reason := named_sink(sink, "query").no_query:
        raise ConfigError(f"sink: {reason}", command="write a pipeline file for it, or name another sink")


def check_ledger(sink: QuerySink, ledger: LedgerChoice) -> None:
    """Some sinks keep the position themselves; every other one needs a ledger."""
    if named_sink(sink, "query").keeps_position:
        if ledger is not None:
            kept = sink.keeps_position if isinstance(sink, SinkSection) else ""
            raise ConfigError(f"ledger: {kept or 'the position is kept in the target, with its rows'}.")
        return
    if ledger is None:
        raise ConfigError(
            "ledger: say where the position is kept.", command='ledger="sqlite:///path/to/file", or a PostgreSQL URL'
        )
    if isinstance(ledger, Mapping) and (len(ledger) != 1 or not set(ledger) <= {"sqlite", "postgres"}):
        raise ConfigError("ledger: name one, `sqlite` or `postgres`.")


def _where(ledger: LedgerChoice) -> str | Path | None:
    where = next(iter(ledger.values())) if isinstance(ledger, Mapping) else ledger
    return where if isinstance(where, Path) or where is None else str(where)


@dataclass(frozen=True)
class QueryDrivers:
    """What delivers the micro-batches of a query. With `dedup`, one driver accepts them, and another one pushes what was accepted."""

    driver: Driver
    workers: QueryWorkers
    push: Driver | None = None

    def run(self) -> None:
        """The micro-batch in hand. What was accepted and not pushed before a crash is pushed, too."""
        self.driver.run()
        if self.push is not None:
            self.push.run()


def make_drivers(settings: Settings, name: str, frame: DataFrame, stack: ExitStack) -> QueryDrivers:
    """Drivers that are ready for micro-batches: the table is there and fit, and the rows fit into it."""
    sink = named_sink(settings.sink, name)
    ledger = stack.enter_context(closing(settings.open_ledger(sink, name)))
    workers = QueryWorkers()
    if settings.dedup is None:
        opened = _opened(settings, sink, _run(name, ledger, frame, settings.observer), stack)
        return QueryDrivers(_driver(settings, sink, opened, workers), workers)
    place = settings.store_place(name)
    run = _run(name, ledger, frame, settings.observer)
    stored = replace(run, basics={**run.basics, "records": StoredRows(place, name), "shuffled": False})
    target = _opened(settings, sink, stored, stack)
    push = _driver(
        settings,
        sink,
        target,
        SparkWorkers(lambda: frame.sparkSession),
        StoredTopics(place, name),
        PushObserver(settings.observer, place.open(), name, settings.dedup.keep_sent),
    )
    accepting = accept_sink(settings.dedup, place, name, target.recipe.target, of_query=True)
    own = TableLedger(accepting.open_table(), name)
    accepted = _opened(settings, accepting, _run(name, own, frame, settings.observer), stack)
    if not isinstance(accepted, OpenAccept):
        raise TypeError("the store opens itself as `OpenAccept`")
    waiting = Waiting(settings.stall, settings.observer.trouble)

    def known() -> None:
        ranges = workers.incoming.ranges if workers.incoming is not None else ()
        compare(place.open(), push, waiting, {each.partition: each.first for each in ranges})

    accepted.taken = known
    accepted.sent_up_to = lambda: push.state.committed() if push.state is not None else {}
    return QueryDrivers(_driver(settings, accepting, accepted, workers), workers, push)


def _opened(settings: Settings, sink: Sink, run: Run, stack: ExitStack) -> OpenSink:
    waiting = Waiting(settings.stall, settings.observer.trouble)
    opened = stack.enter_context(closing(waiting.until(lambda: sink.open(run))))
    waiting.until(opened.start)
    columns = waiting.until(opened.columns_to_make)
    waiting.until(lambda: opened.make_ready(columns))
    return opened


def _driver(
    settings: Settings,
    sink: Sink,
    opened: OpenSink,
    workers: Workers,
    topics: Topics | None = None,
    observer: Observer | None = None,
) -> Driver:
    """`topics`: who says which ranges there are, where Spark does not."""
    run = opened.run
    choices = Choices(once=True, on_rewind=settings.on_rewind, block_rows=settings.block_rows)
    return Driver(
        pipeline=run.name,
        topics=(),
        broker=topics,
        ledger=run.ledger,
        performer=performer_of(sink, opened, workers, NoLetters(), choices),
        pace=Pace(Batch(), sink.deadline, run.session().sparkContext.defaultParallelism),
        stall=settings.stall,
        observer=observer or settings.observer,
    )


def _run(name: str, ledger: Ledger, frame: DataFrame, observer: Observer) -> Run:
    """What the sink gets to know of a query."""
    master = str(frame.sparkSession.sparkContext.master)
    return Run(
        name=name,
        ledger=ledger,
        basics=Basics(
            pipeline=name,
            records=NoRecords(),
            dead_letters=Path(),
            decoding=Decoding(),
            block_bytes=0,
            select=(),
            where=None,
            shuffled=True,
        ),
        query=to_arrow_schema(frame.schema),
        remote=not master.startswith("local"),
        one_process=re.fullmatch(r"local(\[.*\])?", master) is not None,
        session=lambda: frame.sparkSession,
        tell=observer.trouble,
    )
