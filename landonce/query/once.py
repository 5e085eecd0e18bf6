"""`exactly_once`: what Spark calls for every micro-batch of a user's own query.

    once = landonce.exactly_once(landonce.clickhouse(url, "clicks"), ledger="sqlite:///clicks.ledger", name="clicks")
    events.writeStream.foreachBatch(once).option("checkpointLocation", …).start()

Spark's checkpoint says which ranges come, the ledger what is done with them. So a lost checkpoint, a replayed batch, a
query that went back or is cut otherwise can neither duplicate nor lose a record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

from pydantic import ValidationError
from pyspark.sql import DataFrame

from landonce import errors
from landonce.config.dedup import Dedup
from landonce.config.secrets import redact
from landonce.engine.driver import Driver
from landonce.engine.observe import Observer
from landonce.engine.outside import LedgerChoice, Logged, NamedSink, named_sink, refuse_mistakes, sound_name
from landonce.jvm import spark_errors
from landonce.protocol import query_refusals as refusals
from landonce.protocol.cases import OnRewind
from landonce.protocol.match_ranges import Incoming, begun, ranges_of, starting_offsets, topics_of
from landonce.protocol.ranges import Partition
from landonce.query.assemble import QueryDrivers, QuerySettings, make_drivers
from landonce.query.examine import examine, fingerprint, keeps_coordinates, kept_timestamp, shape_of
from landonce.query.rows import with_coordinates
from landonce.query.running import Admin, QuerySource, RunningQuery, running_query
from landonce.read.kafka.broker import Broker
from landonce.sinks.section import SinkSection


def exactly_once(
    sink: NamedSink,
    ledger: LedgerChoice = None,
    *,
    name: str | None = None,
    on_rewind: Literal["drop", "error"] = "drop",
    block_rows: int = 100_000,
    stall: float = 300.0,
    observer: Observer | None = None,
    dedup: Mapping[str, Any] | None = None,
) -> ExactlyOnce:
    """A function for `writeStream.foreachBatch` that lands every record of the query once.

    `sink`: `landonce.clickhouse(…)`, `landonce.iceberg(…)`, `landonce.sql(…)`, `landonce.wrap(…)`, or another package's sink. `ledger`:
    where the position is kept, `"sqlite:///path"`, a PostgreSQL URL, or a mapping as in a pipeline file; tables that commit atomically and
    databases keep their own. `name`: what the position is kept under; without it, the query's own name. `on_rewind`: what becomes of ranges that were delivered long ago. `block_rows`: how many
    offsets of a partition are written as one unit. `stall`: for how many seconds something may be away before the query ends with an error.
    `dedup`: as in a pipeline file, `{"key": ["id"], "ttl": "60d"}`: of rows with the same key, the first one lands.
    """
    if name is not None:
        sound_name(name)
    refuse_mistakes(sink, ledger, on_rewind, block_rows)
    settings = QuerySettings(
        sink, ledger, OnRewind(on_rewind), block_rows, stall, observer or Logged(), dedup=_dedup(dedup)
    )
    if settings.dedup is not None:
        if isinstance(sink, SinkSection) and sink.no_dedup:
            raise errors.ConfigError(f"dedup: {sink.no_dedup}.")
        settings.store_place("query")
    return ExactlyOnce(settings, name)


def _dedup(given: Mapping[str, Any] | None) -> Dedup | None:
    if given is None:
        return None
    try:
        made = Dedup.model_validate(dict(given)).beside(Path.cwd())
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, ("dedup", *found["loc"])))
        raise errors.ConfigError(redact(f"{where}: {found['msg'].removeprefix('Value error, ')}.")) from None
    if made.marked:
        raise errors.ConfigError("dedup: the rows of a query have no schema that marks a key; name its columns.")
    if made.copies == "keep":
        raise errors.ConfigError("dedup: copies are kept for pipeline files only; a query counts them.")
    if any(part.field is None for key in made.keys.values() for part in key):
        raise errors.ConfigError(
            "dedup: the rows of a query have no Kafka key and no headers; select them as columns, and name those."
        )
    return made


@dataclass
class _Run:
    """One start of a query, and all that is open for it."""

    query: RunningQuery
    sources: tuple[QuerySource, ...]
    admins: tuple[Admin, ...]
    shape: list[Any]
    """What the query does with a record."""
    yields: str
    """The schema of its rows."""
    drivers: QueryDrivers
    sink: str
    """What the sink says of itself in every fingerprint."""
    committed: dict[Partition, int]
    """Up to where records are delivered, as far as this run knows."""
    opened: ExitStack
    batch_shape: list[Any] | None = None
    """What was done with the rows of the last micro-batch before it came here."""

    @property
    def driver(self) -> Driver:
        return self.drivers.driver

    def incoming(self, batch: int) -> Incoming:
        """What this micro-batch brings. Brokers are asked every time: a topic may be deleted and created while the query runs."""
        spans = self.query.spans(batch, self.sources)
        topics = topics_of(spans)
        replies = [
            self.driver.ask(partial(admin.ask, mine))
            for admin, span in zip(self.admins, spans, strict=True)
            if (mine := topics_of([span]))
        ]
        clusters = {each.cluster_id for each in replies}
        if len(clusters) > 1:
            raise refusals.query("it reads from several Kafka clusters", "write one query for each cluster")
        ids = {topic: topic_id for each in replies for topic, topic_id in each.topic_ids.items()}
        return Incoming(
            ranges_of(spans), "".join(clusters), tuple((topic, ids[topic]) for topic in topics), begun(spans)
        )

    def delivered(self, incoming: Incoming) -> int:
        """How many offsets of a micro-batch that is done were delivered before it. From here on all of them are."""
        again = 0
        for each in incoming.ranges:
            position = self.committed.get(each.partition, each.first)
            again += max(0, min(position, each.end) - each.first)
            self.committed[each.partition] = max(position, each.end)
        return again


_kept: WeakValueDictionary[tuple[str, str, str], ExactlyOnce] = WeakValueDictionary()
"""Who delivers, by the start of a query, the name of the position, and the place of the ledger."""
_delivered: dict[tuple[str, str, str], int] = {}
"""The last micro-batch that is done, by the same. A second call for it is refused: its rows would be taken for delivered, and dropped."""


class ExactlyOnce:
    """Called by Spark with every micro-batch. One object serves one query at a time. A copy begins again."""

    def __init__(self, settings: QuerySettings, name: str | None) -> None:
        self._settings, self._name = settings, name
        self._run: _Run | None = None
        self._sources: tuple[QuerySource, ...] = ()
        self._over: dict[str, Callable[[], errors.LandonceError]] = {}
        """The starts of queries that may not go on, each with the error that it gets."""
        self._turn = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return (ExactlyOnce, (self._settings, self._name))

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        try:
            with self._turn, spark_errors():
                self._take(batch, batch_id)
        except errors.LandonceError as error:
            error.command = error.command.replace("{file}", "FILE")
            raise

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        query = running_query(batch)
        if query.run in self._over:
            raise self._over[query.run]()
        try:
            self._deliver(query, batch, batch_id)
        except BaseException:
            self._leave(refusals.went_wrong)
            self._over[query.run] = refusals.went_wrong
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
        ledger = self._settings.open_ledger(named_sink(self._settings.sink, self._name), self._name)
        try:
            state = ledger.load()
        finally:
            ledger.close()
        if state is not None:
            refusals.same_source(state, view.cluster_id, view.topic_ids)
        committed = state.committed() if state is not None else {}
        return starting_offsets(committed, (partition for partition, _ in view.extents))

    def _deliver(self, query: RunningQuery, batch: DataFrame, batch_id: int) -> None:
        if self._run is None or self._run.query.run != query.run:
            self._leave(refusals.taken_over)
            examine(query.plan)
            self._sources = query.sources()
        analyzed = batch._jdf.queryExecution().analyzed()
        examine(analyzed, query.plan)
        rows, shape = with_coordinates(batch), shape_of(analyzed)
        if self._run is None or self._run.batch_shape != shape:
            keeps_coordinates(query.plan, analyzed, batch.columns)
            timestamp = kept_timestamp(query.plan, analyzed, batch.columns)
        else:
            timestamp = self._run.drivers.workers.timestamp
        run = self._entered(query, rows)
        run.batch_shape = shape
        key = (query.run, run.driver.pipeline, self._settings.place)
        if _delivered.get(key) == batch_id:
            raise refusals.same_batch(batch_id)
        incoming = run.incoming(batch_id)
        if not incoming.ranges:
            _delivered[key] = batch_id
            return
        performer = run.driver.performer
        performer.settings = replace(performer.settings, fingerprint=fingerprint([run.shape, shape], rows, run.sink))
        several = performer.reads_again(incoming.ranges)
        workers = run.drivers.workers
        workers.incoming, workers.frame = incoming, rows.persist() if several else rows
        workers.timestamp = timestamp
        try:
            run.drivers.run()
        finally:
            if several:
                rows.unpersist()
        _delivered[key] = batch_id
        if again := run.delivered(incoming):
            self._settings.observer.trouble(
                f"{again} offsets of batch {batch_id} were delivered already, and were dropped."
            )

    def _entered(self, query: RunningQuery, rows: DataFrame) -> _Run:
        """The run that a micro-batch belongs to. Where its rows have other columns than those before, all is examined again."""
        yields = rows.schema.json()
        if self._run is not None and self._run.yields != yields:
            self._close()
        if self._run is None:
            sources = self._sources
            name = _sound(self._name or query.name)
            if _kept.setdefault((query.run, name, self._settings.place), self) is not self:
                raise refusals.same_name(name)
            with ExitStack() as opened:
                admins = tuple(Admin(query.jvm, source.client) for source in sources)
                for admin in admins:
                    opened.callback(admin.close)
                drivers = make_drivers(self._settings, name, rows, opened)
                sink = drivers.driver.performer.settings.fingerprint
                shape = [shape_of(query.plan), [source.client.get("isolation.level") for source in sources]]
                all_ = opened.pop_all()
                self._run = _Run(query, sources, admins, shape, yields, drivers, sink, _committed(drivers.driver), all_)
        return self._run

    def _leave(self, why: Callable[[], errors.LandonceError]) -> None:
        """Ends the run that is open. It may not go on."""
        if self._run is not None:
            self._over[self._run.query.run] = why
            self._close()

    def _close(self) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            run.opened.close()


def _committed(driver: Driver) -> dict[Partition, int]:
    """Only messages use it. A ledger that is unreachable now is waited for later."""
    try:
        state = driver.ledger.load()
    except errors.Transient:
        return {}
    return state.committed() if state is not None else {}


def _sound(name: str | None) -> str:
    if name is None:
        raise errors.ConfigError(
            "name: the position is kept under a name, and neither `exactly_once` nor the query has one.",
            command='exactly_once(…, name="clicks"), or writeStream.queryName("clicks")',
        )
    return sound_name(name)
