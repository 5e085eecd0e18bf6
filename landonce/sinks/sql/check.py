"""What `landonce check` says of an SQL database: the ledger and the table, what becomes of records, and the position."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

from landonce.ledger.block_ledgers import TargetLedger
from landonce.sinks import checking
from landonce.sinks.checking import CheckRun, Findings, Sections
from landonce.sinks.declared import declared_schema
from landonce.sinks.sql.driver import file_reachable, sql_creation, sql_recipe
from landonce.sinks.sql.fingerprint import refuse_replaced
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable


def sections(run: CheckRun, sink: SqlSink) -> Sections:
    """In the order in which a start would meet them."""
    with closing(SqlTable(sink)) as table:
        yield "ledger", _ledger(run, table)
        yield "table", _table(run, table)
        if run.table:
            yield "records", _records(run, table)
        yield "position", checking.unknown_rows(run, table)


def _ledger(run: CheckRun, table: SqlTable) -> Findings:
    file_reachable(run.parts.config, remote=run.remote)
    database = table.database
    if not database.may_exist():
        run.ledger = True
        folder = Path(database.place).parent
        yield from checking.writable(folder, f"none yet: the first run makes {database.place}", f"mkdir -p {folder}")
        return
    yield from checking.entries(run, f"{database.place} ")


def _table(run: CheckRun, table: SqlTable) -> Findings:
    parts = run.parts
    declared, selected = declared_schema(parts.config), bool(parts.config.transform.select)
    created = checking.to_be_created(run, partial(sql_creation, parts, table)) if table.sink.create else None
    findings = table.check(declared, selected=selected) if table.exists() else None
    if run.state is not None and isinstance(parts.ledger, TargetLedger):
        refuse_replaced(table, parts.ledger)
    yield from checking.table(run, findings, table.sink.table, created)


def _records(run: CheckRun, table: SqlTable) -> Findings:
    recipe = sql_recipe(run.parts, table)
    yield from checking.records(run, recipe, recipe.source)
