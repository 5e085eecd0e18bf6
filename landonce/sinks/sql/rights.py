"""Rights that the user lacks for writing blocks or the ledger. `check` and every start report them.

PostgreSQL tells about rights by name. MySQL and MariaDB explain a statement only to a user who may run it. For SQLite the file and its
folder have to be writable.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from landonce.ledger.mysql import error_code
from landonce.ledger.tables import block_table, journal_table, pipeline_table, position_table
from landonce.sinks.contract import Finding, Level
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import syntax_of

_LACKS = text(
    "SELECT kind FROM unnest(CAST(:kinds AS text[])) AS kind WHERE NOT CASE WHEN kind IN ('SELECT', 'UPDATE') "
    "THEN has_any_column_privilege(:name, kind) ELSE has_table_privilege(:name, kind) END"
)
"""INSERT is needed on the whole table, or a block could not lock it against ALTER. The others may be granted for single columns."""
_SEQUENCES = text(
    """
    SELECT CAST(a.attname AS text), CAST(CAST(s.oid AS regclass) AS text) FROM pg_attrdef AS d
    JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
    JOIN pg_depend AS p ON p.classid = CAST('pg_attrdef' AS regclass) AND p.objid = d.oid
        AND p.refclassid = CAST('pg_class' AS regclass)
    JOIN pg_class AS s ON s.oid = p.refobjid
    WHERE d.adrelid = to_regclass(:name)
        AND NOT CASE WHEN s.relkind = 'S' THEN has_sequence_privilege(s.oid, 'USAGE, UPDATE') ELSE true END ORDER BY 1
    """
)
"""Sequences that defaults of columns use."""
_TEMPORARY = text("SELECT has_database_privilege(current_database(), 'TEMPORARY')")
_MAY_CREATE = text("SELECT has_schema_privilege(current_schema(), 'CREATE')")
_THERE = text("SELECT to_regclass(:name) IS NOT NULL")
_LEDGER = tuple(each.name for each in (pipeline_table, position_table, journal_table, block_table))
_DENIED = (1142, 1143)
"""Denied on the table, and on a column."""
_CHANGES = ("SELECT", "INSERT", "UPDATE", "DELETE")


def check_rights(
    sink: SqlSink, columns: Sequence[str], written: Collection[str], connection: Connection
) -> Iterator[Finding]:
    """Rights that are missing on the table and on the ledger's tables. `written`: the columns that records fill."""
    if sink.dialect == "postgresql":
        yield from _of_postgres(sink, written, connection)
    elif sink.dialect == "sqlite":
        yield from _of_sqlite(sink)
    elif sink.dialect in ("mysql", "mariadb"):
        yield from _of_mysql(sink, columns[0], connection)


def _of_postgres(sink: SqlSink, written: Collection[str], connection: Connection) -> Iterator[Finding]:
    table = syntax_of("postgresql").table(sink.table)
    wanted = _CHANGES if sink.key else ("INSERT", "SELECT")
    yield from _missing(connection, table, sink.table, wanted)
    for column, sequence in connection.execute(_SEQUENCES, {"name": table}):
        if column in written:
            continue
        yield Finding(
            Level.REFUSED,
            f"the user may not use the sequence {sequence}, which fills the column {column} of {sink.table}",
            f"GRANT USAGE ON SEQUENCE {sequence} TO the user",
        )
    if sink.key and not connection.scalar(_TEMPORARY):
        yield Finding(
            Level.REFUSED,
            "the user may not create temporary tables, which changes by key need",
            "GRANT TEMPORARY ON DATABASE … TO the user",
        )
    there = {name for name in _LEDGER if connection.scalar(_THERE, {"name": name})}
    for name in sorted(there):
        yield from _missing(connection, name, name, _CHANGES)
    if there != set(_LEDGER) and not connection.scalar(_MAY_CREATE):
        yield Finding(
            Level.REFUSED,
            "the user may not create the ledger's tables (landonce_*)",
            "GRANT CREATE ON SCHEMA … TO the user, or run the pipeline once as a user who may",
        )


def _missing(connection: Connection, quoted: str, name: str, wanted: tuple[str, ...]) -> Iterator[Finding]:
    lacks = [kind for (kind,) in connection.execute(_LACKS, {"kinds": list(wanted), "name": quoted})]
    if lacks:
        listed = ", ".join(lacks)
        yield Finding(
            Level.REFUSED,
            f"the user has no right to {listed} on the table {name}",
            f"GRANT {listed} ON {name} TO the user",
        )


def _of_sqlite(sink: SqlSink) -> Iterator[Finding]:
    path = Path(str(sink.address.database)).absolute()
    for each in (path, path.parent):
        if not os.access(each, os.W_OK):
            yield Finding(Level.REFUSED, f"{each} is not writable for this user", f"make {each} writable")


def _of_mysql(sink: SqlSink, first: str, connection: Connection) -> Iterator[Finding]:
    syntax = syntax_of(sink.dialect)
    table, column = syntax.table(sink.table), syntax.name(first)
    statements = {"INSERT": f"INSERT INTO {table} ({column}) SELECT {column} FROM {table} WHERE false"}  # noqa: S608
    if sink.key:
        statements["UPDATE"] = f"UPDATE {table} SET {column} = {column} WHERE false"  # noqa: S608
        statements["DELETE"] = f"DELETE FROM {table} WHERE false"  # noqa: S608
    for right, statement in statements.items():
        try:
            connection.exec_driver_sql(f"EXPLAIN {statement}")
        except DBAPIError as failure:
            if error_code(failure.orig) not in _DENIED:  # other errors of this statement do not matter
                continue
            yield Finding(
                Level.REFUSED,
                f"the user has no right to {right} on the table {sink.table}",
                f"GRANT {right} ON {sink.table} TO the user",
            )
