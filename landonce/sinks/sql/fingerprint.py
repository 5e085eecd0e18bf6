"""Which table it is, and whether it was altered since the driver examined it.

**Altered?** An ALTER under a running driver changes what values become (another type, rounded digits), which row a change finds (another unique
key) and whether a transaction rolls back (another engine). So each block's transaction first locks the table against ALTER, then compares
its fingerprint with the one that the driver took. YDB is not asked.

**Replaced?** Another table may have the same fingerprint. What is remembered to tell them apart:

    database         what is remembered                it changes when
    ───────────────  ────────────────────────────────  ──────────────────────────────────────────────────────────────────────
    PostgreSQL       the table's oid                   the table is dropped and made again, swapped or restored. Not by ALTER,
                                                       RENAME, TRUNCATE or VACUUM
    MySQL, MariaDB   the second in which the table     the same, and also by TRUNCATE and by an ALTER that rebuilds the table
                     was created
    SQLite           the version of the file's schema  the same, and also by any other change of the schema, and by VACUUM
    YDB              nothing                           -

In PostgreSQL another oid is another table, and a person decides. The other databases have no lasting name for a table, so a change only
says that something may have happened. Then the table is asked for rows of the pipeline's topics; if it holds none, it counts as another
table.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, text

from landonce.errors import TableReplaced
from landonce.ledger.block_ledgers import TargetLedger
from landonce.protocol.block_rows import BlockState
from landonce.protocol.ledger import LedgerState
from landonce.protocol.receipt import Receipt
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import Statement, Syntax, parts_statement, syntax_of

if TYPE_CHECKING:
    from landonce.sinks.sql.table import SqlTable

_POSTGRES = """
SELECT concat_ws(' ', c.oid, c.relkind, c.relpersistence, c.relhasrules, c.relrowsecurity, c.relforcerowsecurity)
FROM pg_class AS c JOIN parts ON c.oid = id AND root
UNION ALL
SELECT concat_ws(' ', 'column', a.attnum, quote_ident(a.attname), a.atttypid, a.atttypmod, a.attcollation, a.attnotnull,
    a.atthasdef, a.attidentity, a.attgenerated, t.typnotnull,
    (SELECT string_agg(quote_literal(e.enumlabel), ',' ORDER BY e.enumsortorder) FROM pg_enum AS e
     WHERE e.enumtypid IN (t.oid, t.typbasetype, t.typelem,
        (SELECT b.typelem FROM pg_type AS b WHERE b.oid = t.typbasetype))))
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid JOIN parts ON a.attrelid = id AND root
WHERE a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT concat_ws(' ', 'unique', i.indkey, i.indcollation, i.indclass, i.indisvalid, i.indimmediate, i.indpred IS NULL)
FROM pg_index AS i JOIN parts ON i.indrelid = id AND root WHERE i.indisunique
UNION ALL
SELECT concat_ws(' ', 'trigger', quote_ident(g.tgname), g.tgtype, g.tgenabled)
FROM pg_trigger AS g JOIN parts ON g.tgrelid = id AND root WHERE NOT g.tgisinternal
UNION ALL
SELECT concat_ws(' ', 'partition', p.oid, p.relkind, p.relpersistence)
FROM pg_class AS p JOIN parts ON p.oid = id AND NOT root
WHERE p.relkind NOT IN ('r', 'p') OR p.relpersistence <> 'p'
"""
"""By oid where a name depends on the session. Only partitions that make a table unfit: others come and go."""
_SQLITE = (
    "SELECT type, name, sql FROM sqlite_master WHERE tbl_name = ? COLLATE NOCASE "
    "UNION ALL SELECT 'schema', schema_version, '' FROM pragma_schema_version"
)
_MYSQL = (
    "SELECT create_time FROM information_schema.tables "
    "WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s"
)
_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")
_CREATED = text(
    "SELECT CAST(create_time AS char) FROM information_schema.tables "
    "WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
)
_IDENTITIES = {
    "postgresql": ("oid", text("SELECT CAST(CAST(to_regclass(:quoted) AS oid) AS text)")),
    "sqlite": (
        "schema",
        text(
            "SELECT schema_version FROM pragma_schema_version WHERE EXISTS "
            "(SELECT 1 FROM sqlite_master WHERE lower(name) = lower(:name) AND type = 'table')"
        ),
    ),
    "mysql": ("created", _CREATED),
    "mariadb": ("created", _CREATED),
}


def lock_statement(syntax: Syntax, table: str) -> str:
    """Keeps the table from being altered until the transaction ends. In MySQL any access does, and in SQLite the write lock."""
    if syntax.dialect == "postgresql":
        return f"LOCK TABLE ONLY {syntax.table(table)} IN ROW EXCLUSIVE MODE"
    return f"SELECT 1 FROM {syntax.table(table)} LIMIT 0"  # noqa: S608  (a quoted name)


def fingerprint_statements(sink: SqlSink, mark: str = "") -> tuple[Statement, ...]:
    """The queries whose rows make the fingerprint. `mark`: how PostgreSQL's parameter is written for another driver than ADBC."""
    syntax = syntax_of(sink.dialect)
    if sink.dialect == "postgresql":
        return (
            (parts_statement(f"CAST({mark or syntax.parameter(1)} AS text)", _POSTGRES), (syntax.table(sink.table),)),
        )
    if sink.dialect == "sqlite":
        return ((_SQLITE, (sink.name,)),)
    return (f"SHOW CREATE TABLE {syntax.table(sink.table)}", ()), (_MYSQL, (sink.schema, sink.name))


def table_fingerprint(answer: Iterable[Sequence[Any]]) -> str:
    """A hash of all rows. The table's AUTO_INCREMENT counter does not count."""
    lines = sorted(_COUNTER.sub("", repr(tuple(row))) for row in answer)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def identity(sink: SqlSink, connection: Connection) -> str:
    """Empty if there is no such table, or the database offers nothing to identify it by."""
    if sink.dialect not in _IDENTITIES:
        return ""
    what, query = _IDENTITIES[sink.dialect]
    quoted = syntax_of(sink.dialect).table(sink.table)
    found = connection.scalar(query, {"quoted": quoted, "schema": sink.schema, "name": sink.name})
    return f"{what} {found}" if found is not None else ""


def refuse_replaced(table: SqlTable, ledger: TargetLedger, safe: str = "Nothing was read or written.") -> str:
    """Returns which table it is. Raises if it is gone, or not the one that records landed in."""
    sink, state = table.sink, ledger.load()
    if not table.exists():
        refuse_recreation(sink, state)
        return ""
    seen = table.identity()
    if state is None or not state.tables or not seen:
        return seen
    ((name, known),) = state.tables
    if known.uuid == seen and (sink.dialect == "postgresql" or name == sink.table):
        return seen
    pending = ledger.blocks(state.pending.batch) if state.pending is not None else ()
    receipts = [Receipt.from_json(row.receipt) for row in pending if row.mark is BlockState.AFTER and row.receipt]
    landed = state.totals.landed + sum(each.landed for each in receipts)
    topics = [state.labelled(partition).topic for partition, _ in state.positions]
    if landed and (sink.dialect == "postgresql" or not table.holds_any(topics)):
        raise TableReplaced(
            f"the table {sink.table} is not the one that {landed:,} records of {state.pipeline!r} landed in"
            + (f", {name}" if name != sink.table else "")
            + ": it was dropped and created again, swapped for another, or restored from a backup.",
            safe=f"{safe} Records that it lacks would never land in it.",
            command="restore the old table; or, if the table holds what it should hold (it was restored with the tables "
            f"landonce_*): landonce state forget-table {{file}} {name}; to land everything again, give the "
            "pipeline another name and an empty table",
        )
    return seen


def refuse_recreation(sink: SqlSink, state: LedgerState | None) -> None:
    """Refuses to create a table again that records landed in: they would be missing, and the pipeline would go on after them."""
    if state is not None and (state.totals.landed or state.pending is not None):
        raise TableReplaced(
            f"there is no table {sink.table}, and the ledger says that {state.totals.landed:,} records of "
            f"{state.pipeline!r} landed. A new table would lack them.",
            safe="Nothing was created or written.",
            command="restore the table with the tables landonce_*, or correct `table` in {file}; to land all of it "
            "again, give the pipeline another name; to continue without them, create the table yourself, "
            f"then: landonce state forget-table {{file}} {sink.table}",
        )
