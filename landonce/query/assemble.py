"""From a sink and a ledger, as a user names them, to the parts that deliver one run of a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from landonce.config import secrets
from landonce.config.model import Batch
from landonce.engine.driver import Driver
from landonce.engine.observe import Observer
from landonce.engine.waiting import Waiting
from landonce.errors import ConfigError
from landonce.ledger.block_ledgers import PushLedger, PushPlace, TargetLedger
from landonce.ledger.database import SqliteDatabase
from landonce.protocol.batch import Policy
from landonce.protocol.cases import OnRewind
from landonce.protocol.claimed import Claimed
from landonce.protocol.deduplicating import Deduplicating
from landonce.protocol.ledger import Ledger
from landonce.protocol.packing import Pace
from landonce.protocol.snapshot import Snapshot
from landonce.protocol.transactional import Transactional
from landonce.query.fit import declared, fingerprint_of, pushed_fingerprint, refuse_misfits
from landonce.query.performers import BatchPerformer, Inserting, Transacting
from landonce.query.pushing import Pushing
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.contract import DeduplicatingSink, Guarantee, Sink
from landonce.sinks.deduplicating import InsertRecipe
from landonce.sinks.run import refuse_unfit
from landonce.sinks.section import SinkSection
from landonce.sinks.sql.fingerprint import refuse_recreation, refuse_replaced
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.sql.worker import SqlRecipe
from landonce.sinks.wrapped.sink import WrappedSink, need_picklable
from landonce.sinks.wrapped.worker import WrappedRecipe

QuerySink = SinkSection | Sink
"""A table, as `landonce.clickhouse`, `sql` and `iceberg` describe it, or what `landonce.wrap` gives."""
P = TypeVar("P", bound=Policy)
LedgerTold = str | Path | Mapping[str, Any] | None


@dataclass(frozen=True)
class Told:
    """What a user said of a query."""

    sink: QuerySink
    ledger: LedgerTold
    on_rewind: OnRewind
    block_rows: int
    stall: float
    observer: Observer


def check_ledger(sink: QuerySink, ledger: LedgerTold) -> None:
    """Some sinks keep the position themselves; every other one needs a ledger."""
    if isinstance(sink, SinkSection) and sink.keeps_position:
        if ledger is not None:
            raise ConfigError(f"ledger: {sink.keeps_position}.")
        return
    if ledger is None:
        raise ConfigError(
            "ledger: say where the position is kept.", command='ledger="sqlite:///path/to/file", or a PostgreSQL URL'
        )
    if isinstance(ledger, Mapping) and (len(ledger) != 1 or not set(ledger) <= {"sqlite", "postgres"}):
        raise ConfigError("ledger: name one, `sqlite` or `postgres`.")


def is_deliverable(sink: object) -> bool:
    """Whether a query can be delivered to it: a table that is described, or what a user wrapped."""
    return isinstance(sink, SinkSection) or (isinstance(sink, Sink) and sink.guarantee is Guarantee.WRAPPED)


def named_sink(sink: QuerySink, name: str) -> Sink:
    """The sink of a query of this name."""
    return sink.to_sink(name) if isinstance(sink, SinkSection) else sink


def ledger_of(sink: Sink, ledger: LedgerTold, name: str) -> Ledger:
    """Opens it. Nothing is asked yet."""
    where = _where(ledger) if ledger is not None else None
    if isinstance(where, str):
        secrets.remember_url(where)
    return sink.open_query_ledger(where, name)


def place_of(told: Told) -> str:
    """Where the position is kept, as it was named."""
    kept = told.sink.position_place if isinstance(told.sink, SinkSection) else ""
    return kept or str(_where(told.ledger))


def _where(ledger: LedgerTold) -> str | Path:
    where = next(iter(ledger.values())) if isinstance(ledger, Mapping) else ledger
    if where is None:
        raise ConfigError("ledger: say where the position is kept.")
    return Path(where) if isinstance(where, Path) else str(where)


def make_driver(told: Told, name: str, frame: DataFrame, opened: ExitStack) -> tuple[Driver, str]:
    """A driver that is ready for micro-batches, and the sink's fingerprint: the table is there and fit, and the rows fit into it."""
    sink = named_sink(told.sink, name)
    ledger = ledger_of(sink, told.ledger, name)
    opened.callback(ledger.close)
    pace = Pace(Batch(), sink.deadline, frame.sparkSession.sparkContext.defaultParallelism)
    waiting = Waiting(told.stall, told.observer.trouble)
    performer = waiting.until(lambda: _PERFORMERS[sink.guarantee](sink, frame, ledger, pace, told))
    opened.callback(performer.close)
    driver = Driver(
        pipeline=name,
        topics=(),
        broker=None,
        ledger=ledger,
        performer=performer,
        pace=pace,
        stall=told.stall,
        observer=told.observer,
    )
    return driver, performer.settings.fingerprint


def _inserting(sink: DeduplicatingSink, frame: DataFrame, ledger: Ledger, pace: Pace, told: Told) -> Inserting:
    yields = to_arrow_schema(frame.schema)
    target = sink.target()
    if sink.create and not target.exists():
        sink.make(target, declared(yields))
    refuse_unfit(target.check())
    taken = target.schema()
    recipe = InsertRecipe(
        pipeline=ledger.pipeline, source=taken, target=taken, sink=sink, shuffled=True, wary=not _one_process(frame)
    )
    refuse_misfits(yields, recipe.target, sink.identity)
    fingerprint = fingerprint_of(sink.identity, recipe.target)
    return Inserting(_policy(Deduplicating, told, sink.identity, fingerprint), pace, recipe, target)


def _transacting(sink: SqlSink, frame: DataFrame, ledger: Ledger, pace: Pace, told: Told) -> Transacting:
    yields = to_arrow_schema(frame.schema)
    if sink.dialect == "sqlite" and not str(frame.sparkSession.sparkContext.master).startswith("local"):
        raise ConfigError("sink: an SQLite file is on this machine, and the query's workers run on other machines.")
    table = SqlTable(sink)
    if sink.create and not table.exists():
        refuse_recreation(sink, ledger.load())
        table.create(declared(yields))
    beside = cast(TargetLedger, ledger)

    def examined() -> SqlRecipe:
        seen = replace(sink, examined=table.fingerprint())
        beside.table = sink.table, refuse_replaced(table, beside)
        refuse_unfit(table.check(declared(yields)))
        taken = table.schema(declared(yields))
        recipe = SqlRecipe(pipeline=seen.pipeline, source=taken, target=taken, sink=seen, shuffled=True)
        refuse_misfits(yields, recipe.target, sink.table)
        return recipe

    recipe = examined()
    if beside.make_tables():
        recipe = examined()
    fingerprint = fingerprint_of(sink.identity, recipe.target)
    return Transacting(_policy(Transactional, told, sink.identity, fingerprint), pace, recipe, table, beside)


def _committing(sink: Any, frame: DataFrame, ledger: Ledger, pace: Pace, told: Told) -> BatchPerformer:
    """Loads PyIceberg only for whoever needs it."""
    from landonce.query.lake import committing

    policy = replace(_policy(Snapshot, told, sink.table, sink.identity), own_ledger=True)
    return committing(sink, frame, cast(Any, ledger), policy, pace)


def _pushing(sink: WrappedSink, frame: DataFrame, ledger: Ledger, pace: Pace, told: Told) -> Pushing:
    """Workers claim blocks in the ledger, so they must see it, wherever their own folder is."""
    need_picklable(sink)
    claims = cast(PushLedger, ledger)
    remote = not str(frame.sparkSession.sparkContext.master).startswith("local")
    if remote and isinstance(claims.database, SqliteDatabase):
        raise ConfigError(
            "ledger: an SQLite file is on this machine, and the query's workers, which claim blocks in it, run on "
            "other machines.",
            command="name a PostgreSQL URL",
        )
    place = claims.database.path if isinstance(claims.database, SqliteDatabase) else _where(told.ledger)
    given = Schema(tuple(Field(each.name, each.type) for each in to_arrow_schema(frame.schema)))
    recipe = WrappedRecipe(
        pipeline=ledger.pipeline,
        source=given,
        target=given,
        sink=sink,
        ledger=PushPlace(place, ledger.pipeline),
        shuffled=True,
    )
    policy = replace(
        _policy(Claimed, told, sink.identity, pushed_fingerprint(sink.identity)),
        harmless=sink.idempotent,
        can_probe=sink.can_probe,
        wait=sink.wait,
    )
    return Pushing(policy, pace, recipe, claims, told.observer.trouble)


def _policy(kind: type[P], told: Told, target: str, fingerprint: str) -> P:
    """What the query and its sink decide."""
    return kind(target, fingerprint, once=True, on_rewind=told.on_rewind, block_rows=told.block_rows)


def _one_process(frame: DataFrame) -> bool:
    """Tasks run in the driver's own JVM: no executor is ever lost alone."""
    return re.fullmatch(r"local(\[.*\])?", str(frame.sparkSession.sparkContext.master)) is not None


_PERFORMERS: dict[Guarantee, Callable[..., BatchPerformer]] = {
    Guarantee.DEDUPLICATING: _inserting,
    Guarantee.TRANSACTIONAL: _transacting,
    Guarantee.SNAPSHOT: _committing,
    Guarantee.WRAPPED: _pushing,
}
