"""From a sink and a ledger, as a user names them, to the parts that deliver one run of a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from landonce.config import secrets
from landonce.config.model import Batch
from landonce.engine.assemble import refuse_unfit
from landonce.engine.driver import Driver
from landonce.engine.observe import Observer
from landonce.engine.waiting import Waiting
from landonce.errors import ConfigError
from landonce.ledger.in_target import TargetLedger
from landonce.ledger.open import open_ledger
from landonce.ledger.push_ledger import PushLedger, PushPlace
from landonce.ledger.sqlite import SqliteDatabase
from landonce.protocol.cases import OnRewind
from landonce.protocol.ledger import Ledger
from landonce.protocol.pace import Pace
from landonce.protocol.query_batches import Settings
from landonce.query.fit import declared, refuse_misfits
from landonce.query.lake import committing, table_ledger
from landonce.query.landing import InsertRecipe, TransactRecipe, fingerprint_of
from landonce.query.performers import BatchPerformer, Inserting, Transacting
from landonce.query.pushing import Pushing, PushRecipe
from landonce.query.sinks import ClickHouseTable, IcebergTable, Sink, SqlTable
from landonce.sinks.sql.databases import open_database
from landonce.sinks.sql.identity import refuse_replaced
from landonce.sinks.sql.making import refuse_made_anew
from landonce.sinks.sql.table import SqlTable as OpenTable
from landonce.sinks.wrapped.find import need_picklable
from landonce.sinks.wrapped.sink import WrappedSink

LedgerTold = str | Path | Mapping[str, Any] | None


@dataclass(frozen=True)
class Told:
    """What a user said of a query."""

    sink: Sink
    ledger: LedgerTold
    on_rewind: OnRewind
    block_rows: int
    stall: float
    observer: Observer


def check_ledger(sink: Sink, ledger: LedgerTold) -> None:
    """A table of Iceberg and a database keep their own ledger; every other sink needs one."""
    if isinstance(sink, IcebergTable):
        if ledger is not None:
            raise ConfigError(
                "ledger: with `landonce.iceberg` the position is kept in the table itself, with its rows."
            )
        return
    if isinstance(sink, SqlTable):
        if ledger is not None:
            raise ConfigError(
                "ledger: with `landonce.sql` the position is kept in the target database, beside the table."
            )
        return
    if ledger is None:
        raise ConfigError(
            "ledger: say where the position is kept.", command='ledger="sqlite:///path/to/file", or a PostgreSQL URL'
        )
    if isinstance(ledger, Mapping) and (len(ledger) != 1 or not set(ledger) <= {"sqlite", "postgres"}):
        raise ConfigError("ledger: name one, `sqlite` or `postgres`.")


def ledger_of(sink: Sink, ledger: LedgerTold, name: str) -> Ledger:
    """Opens it. Nothing is asked yet."""
    if isinstance(sink, IcebergTable):
        return table_ledger(sink, name)
    if isinstance(sink, SqlTable):
        return TargetLedger(open_database(sink.named(name).address), name)
    where = _where(ledger)
    if isinstance(where, str):
        secrets.remember_url(where)
    return PushPlace(where, name).open() if isinstance(sink, WrappedSink) else open_ledger(where, name)


def place_of(told: Told) -> str:
    """Where the position is kept, as it was named."""
    if isinstance(told.sink, IcebergTable):
        return f"{told.sink.table} in {told.sink.told.catalog.properties()}"
    return told.sink.url if isinstance(told.sink, SqlTable) else str(_where(told.ledger))


def _where(ledger: LedgerTold) -> str | Path:
    where = next(iter(ledger.values())) if isinstance(ledger, Mapping) else ledger
    if where is None:
        raise ConfigError("ledger: say where the position is kept.")
    return Path(where) if isinstance(where, Path) else str(where)


def make_driver(told: Told, name: str, frame: DataFrame, opened: ExitStack) -> tuple[Driver, str]:
    """A driver that is ready for micro-batches, and the sink's fingerprint: the table is there and fit, and the rows fit into it."""
    ledger = ledger_of(told.sink, told.ledger, name)
    opened.callback(ledger.close)
    settings = Settings("", "", told.block_rows, on_rewind=told.on_rewind)
    pace = Pace(Batch(), getattr(told.sink, "deadline", 0.0), frame.sparkSession.sparkContext.defaultParallelism)
    waiting = Waiting(told.stall, told.observer.trouble)
    performer = waiting.until(lambda: _performer(told, name, frame, ledger, settings, pace))
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


def _performer(
    told: Told, name: str, frame: DataFrame, ledger: Ledger, settings: Settings, pace: Pace
) -> BatchPerformer:
    if isinstance(told.sink, WrappedSink):
        return _pushing(told.sink, name, frame, ledger, settings, pace, told)
    return _PERFORMERS[type(told.sink)](told.sink, name, frame, ledger, settings, pace)


def _inserting(
    sink: ClickHouseTable, name: str, frame: DataFrame, ledger: Ledger, settings: Settings, pace: Pace
) -> Inserting:
    del ledger
    yields = to_arrow_schema(frame.schema)
    made = sink.named(name)
    target = made.target()
    if sink.create and not target.exists():
        target.create(declared(yields), order_by=sink.order_by, partition_by=sink.partition_by)
    refuse_unfit(target.check())
    recipe = InsertRecipe(made, target.schema(), wary=not _one_process(frame))
    refuse_misfits(yields, recipe.target, str(made.table_name))
    settings = replace(settings, table=made.identity, fingerprint=fingerprint_of(recipe))
    return Inserting(settings, pace, recipe, target)


def _transacting(
    sink: SqlTable, name: str, frame: DataFrame, ledger: Ledger, settings: Settings, pace: Pace
) -> Transacting:
    yields = to_arrow_schema(frame.schema)
    made = sink.named(name)
    if made.dialect == "sqlite" and not str(frame.sparkSession.sparkContext.master).startswith("local"):
        raise ConfigError("sink: a SQLite file is one of this machine, and the query's workers run on others.")
    table = OpenTable(made)
    if sink.create and not table.exists():
        refuse_made_anew(made, ledger.load())
        table.create(declared(yields))
    beside = cast(TargetLedger, ledger)

    def examined() -> TransactRecipe:
        seen = replace(made, examined=table.likeness())
        beside.table = made.table, refuse_replaced(table, beside)
        refuse_unfit(table.check(declared(yields)))
        recipe = TransactRecipe(seen, table.schema(declared(yields)))
        refuse_misfits(yields, recipe.target, sink.table)
        return recipe

    recipe = examined()
    if beside.make_tables():
        recipe = examined()
    settings = replace(settings, table=made.identity, fingerprint=fingerprint_of(recipe), deadlines=False)
    return Transacting(settings, pace, recipe, table, beside)


def _pushing(
    sink: WrappedSink, name: str, frame: DataFrame, ledger: Ledger, settings: Settings, pace: Pace, told: Told
) -> Pushing:
    """Workers claim blocks in the ledger, so they must see it, wherever their own folder is."""
    need_picklable(sink)
    claims = cast(PushLedger, ledger)
    remote = not str(frame.sparkSession.sparkContext.master).startswith("local")
    if remote and isinstance(claims.database, SqliteDatabase):
        raise ConfigError(
            "ledger: a SQLite file is one of this machine, and the query's workers, which claim blocks in it, run on others.",
            command="name a PostgreSQL URL",
        )
    place = claims.database.path if isinstance(claims.database, SqliteDatabase) else _where(told.ledger)
    recipe = PushRecipe(sink, PushPlace(place, name))
    settings = replace(settings, table=sink.identity, fingerprint=recipe.fingerprint(), deadlines=False)
    return Pushing(settings, pace, recipe, claims, told.observer.trouble)


def _one_process(frame: DataFrame) -> bool:
    """Tasks run in the driver's own JVM: no executor is ever lost alone."""
    return re.fullmatch(r"local(\[.*\])?", str(frame.sparkSession.sparkContext.master)) is not None


_PERFORMERS: dict[type, Callable[..., BatchPerformer]] = {
    ClickHouseTable: _inserting,
    SqlTable: _transacting,
    IcebergTable: committing,
}
