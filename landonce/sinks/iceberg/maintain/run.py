"""All tables of a pipeline, one after the other. One that cannot be looked after does not keep the others from it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyiceberg.table import Table

from landonce.errors import ConfigError, LandonceError
from landonce.protocol.ledger import LedgerState
from landonce.sinks.iceberg.maintain.keep import pipelines_of
from landonce.sinks.iceberg.maintain.report import TableReport
from landonce.sinks.iceberg.maintain.tend import Tender
from landonce.sinks.iceberg.sink import IcebergSink
from landonce.sinks.iceberg.survey import catalog_made, names_of
from landonce.sinks.operations import Sessions, Upkeep, Watch
from landonce.sinks.parts import Parts
from landonce.sinks.snapshot import TableLedger


def maintain(
    parts: Parts, sink: IcebergSink, options: Upkeep, watch: Watch, sessions: Sessions, tables: tuple[str, ...] = ()
) -> tuple[TableReport, ...]:
    """Looks after the tables that were named, or all that the pipeline writes. Spark is only started where it is needed."""
    if not catalog_made(sink):
        return ()
    ledger = None if isinstance(parts.ledger, TableLedger) else parts.ledger.load()
    names = names_of(sink, ledger)
    there = _there(sink, names)
    ours = _ours(sink, ledger, names, there)
    unknown = sorted(set(tables) - set(ours))
    if unknown:
        raise ConfigError(f"--table: the pipeline writes no {', '.join(unknown)}; it writes {', '.join(ours)}.")
    wanted = tables or ours
    reports = []
    with sessions(sink.spark_conf()) as session:
        for number, name in enumerate(wanted, 1):
            others = tuple(table.location() for other, table in there.items() if other != name)
            tender = Tender(
                place=sink.place(name),
                options=options,
                session=session,
                say=partial(watch.step, name),
                ledger_epoch=_epoch(parts, ledger),
                others=others,
                alone=sink.told.one_table,
            )
            reports.append(_tended(tender, there=name in there))
            watch.done(reports[-1], number, len(wanted))
    return tuple(reports)


def _there(sink: IcebergSink, names: tuple[str, ...]) -> dict[str, Table]:
    """The tables that exist."""
    places = {name: sink.place(name) for name in names}
    return {name: place.load() for name, place in places.items() if place.exists()}


def _ours(
    sink: IcebergSink, ledger: LedgerState | None, names: tuple[str, ...], there: Mapping[str, Table]
) -> tuple[str, ...]:
    """A table whose name could be of the template may be somebody else's: it is ours if it carries a mark, or the ledger knows it."""
    told = {*sink.static, *(dict(ledger.tables) if ledger is not None else ())}
    marked = {each for each, table in there.items() if sink.pipeline in pipelines_of(table.metadata)}
    return tuple(each for each in names if each in told | marked)


def _epoch(parts: Parts, ledger: LedgerState | None) -> int | None:
    """None where the table is the ledger. One that is lost says nothing of anybody being superseded."""
    if isinstance(parts.ledger, TableLedger):
        return None
    return ledger.epoch if ledger is not None else 0


def _tended(tender: Tender, *, there: bool) -> TableReport:
    if not there:
        return TableReport(tender.place.identifier, notes=("the table is not there",))
    try:
        return tender.tend()
    except LandonceError as error:
        return TableReport(tender.place.identifier, error=error.what, exit_code=error.exit_code)
