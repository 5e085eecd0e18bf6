"""`exactly_once`: what Spark calls for every micro-batch of a user's own query.

    once = landonce.exactly_once(landonce.clickhouse(url, "clicks"), ledger="sqlite:///clicks.ledger", name="clicks")
    events.writeStream.foreachBatch(once).option("checkpointLocation", …).start()

Spark's checkpoint says which ranges come, the ledger what is done with them. So a lost checkpoint, a replayed batch, a
query that went back or is cut otherwise can neither duplicate nor lose a record.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspark.sql import DataFrame

from landonce import errors
from landonce.config.model import pipeline_name
from landonce.config.secrets import redact
from landonce.plan.cases import OnRewind
from landonce.query import refusals
from landonce.query.assemble import LedgerTold, Told, check_ledger, ledger_of, make_driver
from landonce.query.examine import examine
from landonce.query.hands import BatchHands
from landonce.query.judging import Incoming
from landonce.query.offsets import Span, ranges_of, starting_offsets, topics_of
from landonce.query.rows import with_coordinates
from landonce.query.running import RunningQuery, Source, ask_brokers, running_query
from landonce.query.sinks import Sink
from landonce.read.broker import Broker
from landonce.run.driver import Driver
from landonce.run.observe import Observer, Silent

_MOST_ROWS = 1_000_000
_log = logging.getLogger("landonce")


class _Logged(Silent):
    """Trouble that landonce deals with by itself goes to Python's log."""

    def trouble(self, what: str) -> None:
        _log.warning("%s", redact(what))


def exactly_once(
    sink: Sink,
    ledger: LedgerTold = None,
    *,
    name: str | None = None,
    on_rewind: Literal["drop", "error"] = "drop",
    block_rows: int = 100_000,
    stall: float = 300.0,
    observer: Observer | None = None,
) -> ExactlyOnce:
    """A function for `writeStream.foreachBatch` that lands every record of the query once.

    `sink`: `landonce.clickhouse(…)`, `landonce.iceberg(…)`, `landonce.sql(…)` or `landonce.wrap(…)`. `ledger`: where the position is kept,
    `"sqlite:///path"` or a PostgreSQL URL; an Iceberg table and a database keep their own. `name`: what the position is kept under; without it, the query's own name.
    `on_rewind`: what becomes of ranges that were delivered long ago. `block_rows`: how many offsets of a partition are written
    as one unit. `stall`: for how many seconds something may be away before the query ends with an error.
    """
    if name is not None:
        _sound(name)
    if not 0 < block_rows <= _MOST_ROWS:
        raise errors.ConfigError(f"block_rows: between 1 and {_MOST_ROWS}, not {block_rows}.")
    if not isinstance(sink, Sink):
        raise errors.ConfigError(
            f"sink: {type(sink).__name__} is not one that a query can be delivered to.",
            command="landonce.clickhouse(url, table), landonce.iceberg(table), landonce.sql(url, table), landonce.wrap(push, idempotent=…)",
        )
    if on_rewind not in ("drop", "error"):
        raise errors.ConfigError(f"on_rewind: drop or error, not {on_rewind!r}.")
    check_ledger(sink, ledger)
    return ExactlyOnce(Told(sink, ledger, OnRewind(on_rewind), block_rows, stall, observer or _Logged()), name)


@dataclass
class _Run:
    """One start of a query, and all that is open for it."""

    query: RunningQuery
    sources: tuple[Source, ...]
    driver: Driver
    opened: ExitStack
    cluster_id: str = ""
    topic_ids: dict[str, str] = field(default_factory=dict)

    def incoming(self, batch: int) -> Incoming:
        """What this micro-batch brings."""
        spans = self.query.spans(batch, self.sources)
        topics = topics_of(spans)
        if not self.topic_ids.keys() >= set(topics):
            self._ask(spans)
        return Incoming(ranges_of(spans), self.cluster_id, tuple((topic, self.topic_ids[topic]) for topic in topics))

    def _ask(self, spans: tuple[Span, ...]) -> None:
        clusters = set()
        for source, span in zip(self.sources, spans, strict=True):
            if not (topics := topics_of([span])):
                continue
            brokers = ask_brokers(self.query.jvm, source.client, topics)
            clusters.add(brokers.cluster_id)
            self.topic_ids.update(brokers.topic_ids)
        if len(clusters) != 1:
            raise refusals.query("it reads from several Kafka clusters", "write one query for each cluster")
        self.cluster_id = clusters.pop()


class ExactlyOnce:
    """Called by Spark with every micro-batch. One object serves one query at a time."""

    def __init__(self, told: Told, name: str | None) -> None:
        self._told, self._name = told, name
        self._run: _Run | None = None
        self._former: set[str] = set()
        self._turn = threading.Lock()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        with self._turn:
            try:
                self._deliver(batch, batch_id)
            except Exception as error:
                self._leave()
                if isinstance(error, errors.LandonceError):
                    error.command = error.command.replace("{file}", "FILE")
                raise

    def starting_offsets(
        self, bootstrap_servers: str, topics: Iterable[str], options: Mapping[str, Any] | None = None
    ) -> str:
        """For Spark's option `startingOffsets`, where the checkpoint is new: the ledger's position in these topics.

        What the ledger does not know begins at its beginning. `options` are those of librdkafka, where the brokers ask for a
        password or a certificate.
        """
        if self._name is None:
            raise errors.ConfigError(
                "name: `starting_offsets` needs it; the query that would give one does not run yet."
            )
        view = Broker(bootstrap_servers, options or {}).survey(tuple(topics))
        ledger = ledger_of(self._told.sink, self._told.ledger, self._name)
        try:
            state = ledger.load()
        finally:
            ledger.close()
        if state is not None:
            refusals.same_source(state, view.cluster_id, view.topic_ids)
        committed = state.committed() if state is not None else {}
        return starting_offsets(committed, (partition for partition, _ in view.extents))

    def _deliver(self, batch: DataFrame, batch_id: int) -> None:
        query = running_query(batch)
        analyzed = batch._jdf.queryExecution().analyzed()
        examine([analyzed])
        rows = with_coordinates(batch)
        run = self._entered(query, rows, (query.plan, analyzed))
        incoming = run.incoming(batch_id)
        if not incoming.ranges:
            return
        hands = run.driver.hands
        if not isinstance(hands, BatchHands):
            raise TypeError(f"not the hands of a query: {hands!r}")
        several = hands.reads_again(incoming)
        hands.take(incoming, rows.persist() if several else rows)
        try:
            run.driver.run()
        finally:
            if several:
                rows.unpersist()

    def _entered(self, query: RunningQuery, rows: DataFrame, plans: tuple[Any, ...]) -> _Run:
        """The run that a micro-batch belongs to. One that another start of the query has replaced may not go on."""
        if query.run in self._former:
            raise refusals.taken_over()
        if self._run is None or self._run.query.run != query.run:
            self._leave()
            sources = query.sources()
            examine([query.plan])
            name = _sound(self._name or query.name)
            with ExitStack() as opened:
                driver = make_driver(self._told, name, rows, plans, opened)
                self._run = _Run(query, sources, driver, opened.pop_all())
        return self._run

    def _leave(self) -> None:
        if self._run is not None:
            self._former.add(self._run.query.run)
            self._run.opened.close()
            self._run = None


def _sound(name: str | None) -> str:
    if name is None:
        raise errors.ConfigError(
            "name: the position is kept under a name, and neither `exactly_once` nor the query has one.",
            command='exactly_once(…, name="clicks"), or writeStream.queryName("clicks")',
        )
    try:
        return pipeline_name(name)
    except ValueError as error:
        raise errors.ConfigError(f"name: {error}.") from None
