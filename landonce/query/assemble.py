"""From what a user says of a query to the drivers that deliver one run of it (`engine.outside`): its workers get rows of a DataFrame."""

from __future__ import annotations

import re
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from landonce.config.dedup import Dedup
from landonce.dedup.accept import OpenAccept
from landonce.dedup.chunks import StoredTopics
from landonce.dedup.chunks import opened as opened_store
from landonce.dedup.pipelines import accept_sink
from landonce.dedup.rows import StoredRows
from landonce.dedup.run import PushObserver, compare
from landonce.dedup.store import StorePlace
from landonce.engine.driver import Driver
from landonce.engine.observe import Observer
from landonce.engine.outside import Outside, named_sink, outside_basics
from landonce.engine.waiting import Waiting
from landonce.engine.workers import SparkWorkers
from landonce.errors import ConfigError
from landonce.protocol.ledger import Ledger
from landonce.query.rows import QueryWorkers
from landonce.sinks.run import Run
from landonce.sinks.section import LedgerPlace, SinkSection
from landonce.sinks.snapshot import TableLedger


@dataclass(frozen=True)
class QuerySettings(Outside):
    """What a user says of a query."""

    dedup: Dedup | None = None

    def store_place(self, name: str) -> StorePlace:
        """Where the keys of events are kept: the store that is named, or the ledger's database."""
        if self.dedup is None:
            raise ValueError("this query has no store")
        where: str | Path | None = self.dedup.store.place if self.dedup.store is not None else self.ledger_where
        section = self.sink if isinstance(self.sink, SinkSection) else None
        if where is None and section and section.ledger_place(named=False) is LedgerPlace.BESIDE_ROWS:
            where = section.position_place
        if where is None:
            raise ConfigError("dedup.store: say where the keys of events are kept: sqlite, postgres, mysql or ydb.")
        return StorePlace(where, self.dedup.scope or name)


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


def make_drivers(settings: QuerySettings, name: str, frame: DataFrame, stack: ExitStack) -> QueryDrivers:
    """Drivers that are ready for micro-batches: the table is there and fit, and the rows fit into it."""
    sink = named_sink(settings.sink, name)
    ledger = stack.enter_context(closing(settings.open_ledger(sink, name)))
    workers = QueryWorkers()
    if settings.dedup is None:
        opened = settings.opened(sink, _run(name, ledger, frame, settings.observer), stack)
        return QueryDrivers(settings.driver(sink, opened, workers, _parallelism(frame)), workers)
    place = settings.store_place(name)
    store, run = opened_store(place), _run(name, ledger, frame, settings.observer)
    store.require_shared(remote=run.remote)
    stored = replace(run, basics={**run.basics, "records": StoredRows(place, name), "shuffled": False})
    target = settings.opened(sink, stored, stack)
    pushed = PushObserver(settings.observer, store, name, settings.dedup.keep_sent, settings.stall)
    reading, topics = SparkWorkers(lambda: frame.sparkSession), StoredTopics(place, name)
    push = settings.driver(sink, target, reading, _parallelism(frame), topics, pushed)
    accepting = accept_sink(settings.dedup, place, name, target.recipe.target, of_query=True)
    own = TableLedger(accepting.open_table(), name)
    accepted = settings.opened(accepting, _run(name, own, frame, settings.observer), stack)
    if not isinstance(accepted, OpenAccept):
        raise TypeError("the store opens itself as `OpenAccept`")
    waiting = Waiting(settings.stall, settings.observer.trouble)

    def known() -> None:
        ranges = workers.incoming.ranges if workers.incoming is not None else ()
        compare(store, push, waiting, {each.partition: each.first for each in ranges})

    accepted.taken = known
    accepted.sent_up_to = lambda: push.state.committed() if push.state is not None else {}
    return QueryDrivers(settings.driver(accepting, accepted, workers, _parallelism(frame)), workers, push)


def _run(name: str, ledger: Ledger, frame: DataFrame, observer: Observer) -> Run:
    """What the sink gets to know of a query."""
    master = str(frame.sparkSession.sparkContext.master)
    return Run(
        name=name,
        ledger=ledger,
        basics=outside_basics(name, shuffled=True),
        query=to_arrow_schema(frame.schema),
        remote=not master.startswith("local"),
        one_process=re.fullmatch(r"local(\[.*\])?", master) is not None,
        session=lambda: frame.sparkSession,
        tell=observer.trouble,
    )


def _parallelism(frame: DataFrame) -> int:
    return int(frame.sparkSession.sparkContext.defaultParallelism)
