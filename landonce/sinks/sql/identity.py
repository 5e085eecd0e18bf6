"""Which table it is, and whether it is still the one that records landed in.

    database         what is remembered                it changes when
    ───────────────  ────────────────────────────────  ──────────────────────────────────────────────────────────────────────
    PostgreSQL       the table's oid                   the table is dropped and made again, swapped or restored. Not by ALTER,
                                                       RENAME, TRUNCATE or VACUUM
    MySQL, MariaDB   the second in which the table     the same, and also by TRUNCATE and by an ALTER that rebuilds the table
                     was created
    SQLite           the version of the file's schema  the same, and also by any other change of the schema, and by VACUUM
    YDB              nothing                           -

In PostgreSQL another oid is another table, and a person decides. The others keep nothing that names a table for good, so what they
remember only says that something may have happened. Then the table is asked for rows of the pipeline's topics, and counts as another
one if it holds none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sqlalchemy import Connection, text

from landonce.errors import TableReplaced
from landonce.ledger.block_ledgers import TargetLedger
from landonce.protocol.block_rows import Mark
from landonce.protocol.ledger import LedgerState
from landonce.protocol.receipt import Receipt
from landonce.sinks.sql.making import refuse_made_anew
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import words_of

_OID = text("SELECT CAST(CAST(to_regclass(:name) AS oid) AS text)")
_CREATED = text(
    "SELECT CAST(create_time AS char) FROM information_schema.tables "
    "WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
)
_SCHEMA = text(
    "SELECT schema_version FROM pragma_schema_version WHERE EXISTS "
    "(SELECT 1 FROM sqlite_master WHERE lower(name) = lower(:name) AND type = 'table')"
)


class Asked(Protocol):
    """The table, as far as it is asked here."""

    sink: SqlSink

    def exists(self) -> bool: ...
    def identity(self) -> str: ...
    def holds_any(self, topics: Iterable[str]) -> bool: ...


def identity(sink: SqlSink, connection: Connection) -> str:
    """Empty if there is no such table, and where the database cannot be asked."""
    if sink.dialect == "postgresql":
        found = connection.scalar(_OID, {"name": words_of("postgresql").table(sink.table)})
        return f"oid {found}" if found is not None else ""
    if sink.dialect == "sqlite":
        found = connection.scalar(_SCHEMA, {"name": sink.name})
        return f"schema {found}" if found is not None else ""
    if sink.dialect == "yql":
        return ""
    found = connection.scalar(_CREATED, {"schema": sink.schema, "name": sink.name})
    return f"created {found}" if found is not None else ""


def refuse_replaced(table: Asked, ledger: TargetLedger, safe: str = "Nothing was read or written.") -> str:
    """Which table it is. Raises if it is gone, or another one than records landed in."""
    state = ledger.load()
    if not table.exists():
        refuse_made_anew(table.sink, state)
        return ""
    seen = table.identity()
    if state is not None and state.tables and seen:
        ((name, known),) = state.tables
        same = known.uuid == seen and (table.sink.dialect == "postgresql" or name == table.sink.table)
        landed = 0 if same else _landed(ledger, state)
        if landed and not _same_rows(table, state):
            raise _replaced(table.sink, state, name, landed, safe)
    return seen


def _landed(ledger: TargetLedger, state: LedgerState) -> int:
    """Records that landed, those of a pending plan among them."""
    rows = ledger.blocks(state.pending.batch) if state.pending is not None else ()
    receipts = [Receipt.from_json(row.receipt) for row in rows if row.mark is Mark.AFTER and row.receipt]
    return state.totals.landed + sum(each.landed for each in receipts)


def _same_rows(table: Asked, state: LedgerState) -> bool:
    if table.sink.dialect == "postgresql":
        return False
    return table.holds_any(state.labelled(partition).topic for partition, _ in state.positions)


def _replaced(sink: SqlSink, state: LedgerState, name: str, landed: int, safe: str) -> TableReplaced:
    return TableReplaced(
        f"the table {sink.table} is not the one that {landed:,} records of {state.pipeline!r} landed in"
        + (f", {name}" if name != sink.table else "")
        + ": it was dropped and made again, swapped for another, or restored from a backup.",
        safe=f"{safe} What it lacks of these records would never land in it.",
        command=f"bring the old table back; or, if the table holds what it should hold (it was restored with the tables landonce_*): "
        f"landonce state forget-table {{file}} {name}; to land everything again, give the pipeline another name and an empty table",
    )
