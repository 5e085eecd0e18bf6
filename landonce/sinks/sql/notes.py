"""What a database tells of a table beside its columns: whether it commits anything, and whether it keeps that."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, text

from landonce.ledger.tables import block_table, pipeline_table, position_table
from landonce.sinks.contract import Finding, Level
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import words_of
from landonce.sinks.sql.swallowed import swallowing

_POSTGRES = text(
    """
    WITH RECURSIVE parts AS (
        SELECT CAST(to_regclass(:name) AS oid) AS id, true AS root
        UNION SELECT h.inhrelid, false FROM pg_inherits AS h JOIN parts ON h.inhparent = parts.id
    )
    SELECT CAST(CAST(c.oid AS regclass) AS text), root FROM parts JOIN pg_class AS c ON c.oid = parts.id
    WHERE (root OR c.relispartition) AND (c.relpersistence <> 'p' OR c.relkind NOT IN ('r', 'p')) ORDER BY 1
    """
)
"""The table and its partitions, as far as they are no ordinary tables. Those that inherit from it hold no rows of its own."""
_KEYS = text(
    """
    SELECT i.indimmediate AND i.indisvalid, array_agg(CAST(a.attname AS text))
    FROM pg_index AS i CROSS JOIN LATERAL unnest(CAST(i.indkey AS int2[])) WITH ORDINALITY AS k(number, at)
    JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
    WHERE i.indrelid = to_regclass(:name) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
        AND k.at <= i.indnkeyatts
    GROUP BY i.indexrelid, i.indimmediate, i.indisvalid
    """
)
_HERE = "table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
_BESIDE = ", ".join(f"'{each.name}'" for each in (block_table, pipeline_table, position_table))
_ENGINES = text(
    f"SELECT table_name, engine FROM information_schema.tables WHERE ({_HERE}) "  # noqa: S608  (constants)
    f"OR (table_schema = DATABASE() AND table_name IN ({_BESIDE})) ORDER BY table_name"
)
_PREFIXES = text(
    f"SELECT DISTINCT index_name FROM information_schema.statistics WHERE {_HERE} "  # noqa: S608  (constants)
    "AND non_unique = 0 AND sub_part IS NOT NULL ORDER BY index_name"
)
_EXPRESSIONS = text(
    f"SELECT DISTINCT index_name FROM information_schema.statistics WHERE {_HERE} "  # noqa: S608  (constants)
    "AND non_unique = 0 AND column_name IS NULL ORDER BY index_name"
)
"""MySQL 8 has keys on expressions, and SQLAlchemy leaves them out."""


def notes(sink: SqlSink, connection: Connection) -> Iterator[Finding]:
    """Tables that forget what was committed, or never commit anything, or take two keys for one, or let rows vanish."""
    yield from swallowing(sink, connection)
    if sink.dialect == "postgresql":
        yield from _of_postgres(sink, connection)
    if sink.dialect in ("mysql", "mariadb"):
        yield from _of_mysql(sink, connection)


def deferred_keys(sink: SqlSink, connection: Connection) -> tuple[frozenset[str], ...]:
    """Columns that are unique in PostgreSQL only at the end of a transaction, or by an index that is not valid."""
    if sink.dialect != "postgresql":
        return ()
    found = connection.execute(_KEYS, {"name": words_of("postgresql").table(sink.table)}).all()
    usable = {frozenset(columns) for at_once, columns in found if at_once}
    return tuple({frozenset(columns) for at_once, columns in found if not at_once} - usable)


def _of_postgres(sink: SqlSink, connection: Connection) -> Iterator[Finding]:
    for name, is_root in connection.execute(_POSTGRES, {"name": words_of("postgresql").table(sink.table)}):
        told = sink.table if is_root else f"{name}, a partition of {sink.table},"
        yield Finding(
            Level.REFUSED,
            f"{told} is no ordinary table: an unlogged or temporary one is empty after a crash, and its ledger is not; a foreign one "
            "is another server's",
            f"ALTER TABLE {sink.table if is_root else name} SET LOGGED",
        )


def _of_mysql(sink: SqlSink, connection: Connection) -> Iterator[Finding]:
    place = {"name": sink.name, "schema": sink.schema}
    for name, engine in connection.execute(_ENGINES, place):
        if str(engine).lower() != "innodb":
            yield Finding(
                Level.REFUSED,
                f"{name} has the engine {engine}, which has no transactions",
                f"ALTER TABLE {name} ENGINE = InnoDB",
            )
    for (index,) in connection.execute(_EXPRESSIONS, place) if sink.key else ():
        yield Finding(
            Level.REFUSED,
            f"the table has another unique key, {index}, on an expression, and MySQL changes the row that any of them finds",
            f"DROP INDEX {index} ON {sink.table}",
        )
    for (index,) in connection.execute(_PREFIXES, place) if sink.key else ():
        yield Finding(
            Level.REFUSED,
            f"the unique key {index} of {sink.table} compares only the beginning of a column, and MySQL would take two keys "
            "that begin alike for one row",
            "make the column a VARCHAR that a key can hold whole, and the key without a length",
        )
