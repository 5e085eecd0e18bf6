"""`landonce state accept-position` and `forget-table`: a table is not what it was."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from landonce.cli.files import opened
from landonce.cli.state.decide import decide, load, new_owner
from landonce.cli.state.lake import committing, tables_of
from landonce.errors import NothingToDo, PositionUncertain
from landonce.protocol import operate
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import TableView
from landonce.protocol.ranges import Partition
from landonce.sinks.iceberg.catalog import telling
from landonce.sinks.iceberg.ledger import TableLedger
from landonce.sinks.iceberg.look import last_rows
from landonce.sinks.iceberg.sink import IcebergSink
from landonce.sinks.iceberg.survey import Seen, survey
from landonce.sinks.parts import Parts
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable


def accept_position(file: Path, *, table: str | None, by_rows: bool, yes: bool) -> None:
    with opened(file) as parts:
        _need_iceberg(parts)
        if isinstance(parts.ledger, TableLedger):
            _accept_own(parts, parts.ledger, file, by_rows=by_rows, yes=yes)
            return
        ledger = load(parts)
        asked = [each for each in tables_of(parts, ledger) if table in (None, each.name)]
        if not asked:
            raise NothingToDo(f"the pipeline has no table {table}.", safe="Nothing was changed.")
        doubted = [(each, each.own.last) for each in asked if each.own and each.own.last and each.view.uncertain]
        if by_rows:
            found = [(each.view, copy, _last_rows(parts, each, copy.state)) for each, copy in doubted]
            decision = operate.accept_rows(ledger, found, new_owner())
        else:
            decision = operate.accept_position(ledger, [(each.view, copy) for each, copy in doubted], new_owner())
        decide(parts, file, ledger, decision, yes=yes)


def _last_rows(parts: Parts, seen: Seen, state: LedgerState) -> dict[Partition, int]:
    assert seen.table is not None
    with telling(parts.iceberg.spec):
        return last_rows(seen.table, parts.iceberg.told.branch, state)


def _accept_own(parts: Parts, ledger: TableLedger, file: Path, *, by_rows: bool, yes: bool) -> None:
    try:
        ledger.load()
    except PositionUncertain:
        ledger.vouching = True
    else:
        raise operate.nothing_uncertain()
    state = load(parts)
    (seen,) = survey(parts.iceberg, parts.iceberg.static)
    if seen.own is None or seen.own.last is None:
        raise operate.nothing_uncertain()
    if not by_rows:
        decide(parts, file, state, operate.accept_own_position(state, seen.own.last, new_owner()), yes=yes)
        return
    tops = _last_rows(parts, seen, state)
    decision = operate.accept_own_rows(state, tops, new_owner())

    def change() -> None:
        with committing(parts):
            ledger.set_position(state, decision.new, tuple(sorted(tops.items())), decision.note())

    decide(parts, file, state, decision, yes=yes, change=change)


def forget_table(file: Path, *, table: str, replay: bool, yes: bool) -> None:
    with opened(file) as parts:
        if isinstance(parts.sink, SqlSink):
            _forget_sql(parts, parts.sink, file, table=table, replay=replay, yes=yes)
            return
        _need_iceberg(parts)
        if isinstance(parts.ledger, TableLedger):
            raise NothingToDo(
                "the one table of this pipeline is its own ledger: a new one knows nothing, and gets everything.",
                safe="Nothing was changed.",
                command="landonce run {file}",
            )
        ledger = load(parts)
        known = table in dict(ledger.tables)
        view = survey(parts.iceberg, [table])[0].view if known else TableView(table)
        source = parts.broker.survey(parts.config.source.kafka.topics) if replay else None
        decision = operate.forget_table(ledger, view, new_owner(), replay=replay, source=source)
        decide(parts, file, ledger, decision, yes=yes)


def _forget_sql(parts: Parts, sink: SqlSink, file: Path, *, table: str, replay: bool, yes: bool) -> None:
    """The next plan is bound to the table that is there then."""
    if replay:
        raise NothingToDo(
            "a table of an SQL database is not filled up again by the pipeline that it belongs to.",
            safe="Nothing was changed.",
            command="give the pipeline another `pipeline` name and an empty table in {file}, then: landonce run {file}",
        )
    state = load(parts)
    with closing(SqlTable(replace(sink, table=table))) as there:
        view = TableView(table, there.identity())
    decide(parts, file, state, operate.forget_table(state, view, new_owner()), yes=yes)


def _need_iceberg(parts: Parts) -> None:
    if not isinstance(parts.sink, IcebergSink):
        raise NothingToDo(
            "this pipeline does not write to Iceberg, and other targets carry no position.", safe="Nothing was changed."
        )
