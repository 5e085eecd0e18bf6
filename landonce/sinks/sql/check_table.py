"""Whether a table can hold the guarantee, and what to change where it cannot. Reads only.

asked                       refused, for example
──────────────────────────  ─────────────────────────────────────────────────────────────────────────────────────────────
the columns and keys        no coordinates; a column that must be filled and cannot be; no unique key to change rows by
where rows are stored       an unlogged table; an engine without transactions; a key that compares only beginnings
what makes rows vanish      views, rules, row policies, triggers, ON CONFLICT IGNORE, two collations of one key
what the user may do        `rights`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sqlalchemy import Connection, Dialect, text
from sqlalchemy import types as sql
from sqlalchemy.dialects import mysql, postgresql

from landonce.ledger.tables import block_table, pipeline_table, position_table
from landonce.read.schema.fields import Field
from landonce.sinks.contract import COORDINATES, Finding, Level
from landonce.sinks.sql.columns import Column, Shape
from landonce.sinks.sql.ddl import add_coordinates
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import syntax_of

_LONGEST_TOPIC = 249
"""Characters that a topic's name may have in Kafka."""
_CHANGE_COLUMN = {
    False: "give the column a default, make it nullable, or change its type",
    True: "change its type, or declare `source.kafka.schema` in {file}: without the column, or, for a NUMERIC, with its digits, or, for SQLite's INTEGER PRIMARY KEY, with it",
}
"""By whether the column may be NULL."""

FilledColumns = Iterable[tuple[Column, Field | str | None]]
"""Each column with what `column_field` says of it."""


def check_columns(sink: SqlSink, shape: Shape, filled: FilledColumns, dialect: Dialect) -> Iterator[Finding]:
    """What columns and keys say. Pure."""
    missing = [name for name in COORDINATES if name not in shape.names]
    if missing:
        yield Finding(
            Level.REFUSED,
            f"the table {sink.table} has no column {', '.join(missing)}",
            "; ".join(add_coordinates(sink, missing, dialect)),
        )
    yield from _coordinates(sink, shape)
    for column, found in filled:
        if isinstance(column["type"], sql.JSON):
            yield Finding(
                Level.OK, f"column {column['name']} holds documents: it is written if `source.kafka.schema` names it"
            )
        elif isinstance(found, str):
            yield Finding(Level.REFUSED, found, _CHANGE_COLUMN[bool(column["nullable"])])
    if sink.key:
        yield from _key(sink, shape)
    elif sink.dialect == "yql" and frozenset(COORDINATES) not in shape.unique:
        yield Finding(
            Level.REFUSED,
            f"the primary key of {sink.table} is not its coordinates ({', '.join(COORDINATES)}): rows go in by UPSERT, and would "
            "replace others with the same key",
            "make the table with that primary key (`create: true` does), or say `mode: upsert` and `key` in {file}",
        )
    elif not missing:
        yield from _index(sink, shape)


def check_storage(sink: SqlSink, connection: Connection) -> Iterator[Finding]:
    """Tables that lose rows silently, forget what was committed, never commit anything, or take two keys for one."""
    if sink.dialect == "postgresql":
        yield from _postgres_loses_rows(sink, connection)
        yield from _postgres_storage(sink, connection)
    elif sink.dialect == "sqlite":
        yield from _sqlite_loses_rows(sink, connection)
    elif sink.dialect in ("mysql", "mariadb"):
        yield from _mysql_storage(sink, connection)


# Columns and keys.


def _coordinates(sink: SqlSink, shape: Shape) -> Iterator[Finding]:
    """In a column that is too small every record would become a dead letter, and COPY does not widen numbers."""
    kinds = {each["name"]: each["type"] for each in shape.columns}
    for name, wanted, fits in zip(COORDINATES, _WANTED, _FITS, strict=True):
        if name in kinds and not fits(kinds[name], sink.dialect):
            yield Finding(
                Level.REFUSED,
                f"the column {name} of {sink.table} is {kinds[name]!r}, and has to be {wanted}",
                f"change the type of {name} to {wanted}",
            )


def _holds_topics(kind: Any, dialect: str) -> bool:
    if dialect in ("sqlite", "yql"):
        return dialect == "yql" or isinstance(kind, (sql.String, sql.NullType))
    otherwise = isinstance(kind, (sql.CHAR, postgresql.CITEXT)) and dialect == "postgresql"
    return isinstance(kind, sql.String) and not otherwise and (kind.length or _LONGEST_TOPIC) >= _LONGEST_TOPIC


def _holds_partitions(kind: Any, dialect: str) -> bool:
    if dialect in ("sqlite", "yql"):
        return _is_whole(kind, dialect)
    small = isinstance(kind, (sql.SmallInteger, mysql.TINYINT))
    return (
        isinstance(kind, sql.Integer)
        and not small
        and (dialect != "postgresql" or not isinstance(kind, sql.BigInteger))
    )


def _holds_offsets(kind: Any, dialect: str) -> bool:
    return _is_whole(kind, dialect) if dialect in ("sqlite", "yql") else isinstance(kind, sql.BigInteger)


def _is_whole(kind: Any, dialect: str) -> bool:
    """In a text column SQLite would compare numbers as text, and 10 would be older than 9. A column without a type keeps numbers."""
    return dialect == "yql" or isinstance(kind, (sql.Integer, sql.NullType))


_WANTED = ("text of at least 249 characters", "INTEGER", "BIGINT")
_FITS: tuple[Callable[[Any, str], bool], ...] = (_holds_topics, _holds_partitions, _holds_offsets)


def _key(sink: SqlSink, shape: Shape) -> Iterator[Finding]:
    unknown = [name for name in sink.key if name not in shape.names]
    if unknown:
        yield Finding(Level.REFUSED, f"key: the table has no column {', '.join(unknown)}", "correct `key` in {file}")
    elif frozenset(sink.key) not in shape.unique and frozenset(sink.key) in shape.deferred:
        yield Finding(
            Level.REFUSED,
            f"the unique key ({', '.join(sink.key)}) is DEFERRABLE, or its index is not valid: PostgreSQL finds no row to change by it",
            f"CREATE UNIQUE INDEX {_named(sink, 'key')} ({_quoted(sink, sink.key)}), or make the constraint without DEFERRABLE",
        )
    elif frozenset(sink.key) not in shape.unique:
        listed = ", ".join(sink.key)
        yield Finding(
            Level.REFUSED,
            f"the table has no unique key ({listed}): it may hold a key twice, so rows cannot be changed by it",
            f"CREATE UNIQUE INDEX {_named(sink, 'key')} ({_quoted(sink, sink.key)})",
        )
    elif sink.dialect in ("mysql", "mariadb") and len(shape.unique) > 1:
        yield Finding(
            Level.REFUSED,
            "the table has another unique key, and MySQL changes the row that any of them finds",
            "drop the other unique keys",
        )
    else:
        yield Finding(Level.OK, f"{sink.table} exists, and holds no key twice")


def _index(sink: SqlSink, shape: Shape) -> Iterator[Finding]:
    if frozenset(COORDINATES) in shape.unique:
        yield Finding(Level.OK, f"{sink.table} exists, and holds no coordinates twice")
    elif frozenset(COORDINATES) in shape.indexed:
        yield Finding(Level.OK, f"{sink.table} exists, and its coordinates are indexed")
    else:
        using = " USING brin" if sink.dialect == "postgresql" else ""
        yield Finding(
            Level.WARNING,
            f"{sink.table} exists, and its coordinates have no index: every start reads the whole table",
            f"CREATE INDEX {_named(sink, 'coordinates')}{using} ({_quoted(sink, COORDINATES)})",
        )


def _named(sink: SqlSink, suffix: str) -> str:
    """`name ON table` of an index. Only PostgreSQL chooses a name itself."""
    syntax = syntax_of(sink.dialect)
    return f"{syntax.name(f'{sink.name[:40]}_{suffix}')} ON {syntax.table(sink.table)}"


def _quoted(sink: SqlSink, columns: Iterable[str]) -> str:
    return syntax_of(sink.dialect).names(columns)


# Where rows are stored.

_NOT_ORDINARY = text(
    """
    WITH RECURSIVE parts AS (
        SELECT CAST(to_regclass(:name) AS oid) AS id, true AS root
        UNION SELECT h.inhrelid, false FROM pg_inherits AS h JOIN parts ON h.inhparent = parts.id
    )
    SELECT CAST(CAST(c.oid AS regclass) AS text), root FROM parts JOIN pg_class AS c ON c.oid = parts.id
    WHERE (root OR c.relispartition) AND (c.relpersistence <> 'p' OR c.relkind NOT IN ('r', 'p')) ORDER BY 1
    """
)
"""The table and its partitions, if they are not ordinary tables. Tables that only inherit from it hold no rows of it."""
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


def _postgres_storage(sink: SqlSink, connection: Connection) -> Iterator[Finding]:
    for name, is_root in connection.execute(_NOT_ORDINARY, {"name": syntax_of("postgresql").table(sink.table)}):
        what = sink.table if is_root else f"{name}, a partition of {sink.table},"
        yield Finding(
            Level.REFUSED,
            f"{what} is no ordinary table: an unlogged or temporary one is empty after a crash, and its ledger is not; a foreign one "
            "is another server's",
            f"ALTER TABLE {sink.table if is_root else name} SET LOGGED",
        )


def _mysql_storage(sink: SqlSink, connection: Connection) -> Iterator[Finding]:
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


# What makes rows vanish without an error. Rows that are only added are counted when they are written; changes cannot be counted, since an
# older one rightly changes nothing.

_RULES = text(
    "SELECT rulename FROM pg_rewrite WHERE ev_class = to_regclass(:name) AND rulename <> '_RETURN' AND ev_enabled <> 'D' "
    "AND (:keyed OR ev_type = '3') ORDER BY rulename"
)
"""Rules on any change, or on INSERT only."""
_POLICIES = text("SELECT row_security_active(CAST(to_regclass(:name) AS oid))")
_TRIGGERS = text(
    "SELECT DISTINCT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled <> 'D' AND tgtype & 3 = 3 AND tgtype & 28 <> 0 "
    "AND (tgrelid = to_regclass(:name) OR tgrelid IN (SELECT relid FROM pg_partition_tree(to_regclass(:name)))) ORDER BY tgname"
)
"""Before each row that is inserted (4), deleted (8) or updated (16), on the table or a partition of it."""
_KIND = text("SELECT type, sql FROM sqlite_master WHERE lower(name) = lower(:name) AND type IN ('table', 'view')")
_LITE_TRIGGERS = text(
    "SELECT name, sql FROM sqlite_master WHERE lower(tbl_name) = lower(:name) AND type = 'trigger' ORDER BY name"
)
_COLLATED = text(
    "SELECT name FROM sqlite_master WHERE lower(tbl_name) = lower(:name) AND type = 'index' AND sql LIKE '%UNIQUE%COLLATE%' "
    "ORDER BY name"
)
_INDEXED = text("SELECT name FROM pragma_index_info(:index)")
_GAP = r"(?:\s|/\*.*?\*/|--[^\n]*\n)+"
_SETTLES = re.compile(rf"\bON{_GAP}CONFLICT{_GAP}(?:IGNORE|REPLACE|ROLLBACK)\b", re.IGNORECASE | re.DOTALL)
_IGNORES = re.compile(r"\bRAISE\s*\(\s*IGNORE\b", re.IGNORECASE)


def _postgres_loses_rows(sink: SqlSink, connection: Connection) -> Iterator[Finding]:
    name = {"name": syntax_of("postgresql").table(sink.table)}
    for (rule,) in connection.execute(_RULES, {**name, "keyed": bool(sink.key)}):
        yield Finding(
            Level.REFUSED,
            f"the rule {rule} of {sink.table} may replace a change by something else, and COPY does not follow rules",
            f'DROP RULE "{rule}" ON {sink.table}   (a trigger can do the same)',
        )
    if connection.scalar(_POLICIES, name):
        yield Finding(
            Level.REFUSED,
            f"row-level security of {sink.table} holds for this user: rows that it hides would silently not be changed or "
            "deleted",
            "write as the table's owner or as a user with BYPASSRLS",
        )
    for (trigger,) in connection.execute(_TRIGGERS, name) if sink.key else ():
        yield Finding(
            Level.WARNING,
            f"the trigger {trigger} of {sink.table} runs before a row is changed: a change that it leaves out (RETURN NULL) counts "
            "as landed",
            "let it RAISE if it does not take a row: then the record is a dead letter",
        )


def _sqlite_loses_rows(sink: SqlSink, connection: Connection) -> Iterator[Finding]:
    name = {"name": sink.name}
    kind, made = connection.execute(_KIND, name).one()
    if kind == "view":
        yield Finding(
            Level.REFUSED,
            f"{sink.table} is a view: its triggers decide what becomes of rows",
            "name the table itself in {file}",
        )
    elif _SETTLES.search(str(made)):
        yield Finding(
            Level.REFUSED,
            f"{sink.table} is made with ON CONFLICT IGNORE, REPLACE or ROLLBACK: rows would be left out or removed silently",
            "make the table without that clause",
        )
    for (index,) in connection.execute(_COLLATED, name) if sink.key else ():
        if {column for (column,) in connection.execute(_INDEXED, {"index": index})} == set(sink.key):
            yield Finding(
                Level.REFUSED,
                f"the unique index {index} of {sink.table} has a COLLATE of its own: a deletion may not find a key that the index takes for the same",
                "give the column that collation, and the index none",
            )
    for trigger, body in connection.execute(_LITE_TRIGGERS, name) if sink.key else ():
        if _IGNORES.search(str(body)):
            yield Finding(
                Level.REFUSED,
                f"the trigger {trigger} of {sink.table} leaves changes out silently: RAISE(IGNORE)",
                "let it RAISE(ABORT, …): then the record is a dead letter",
            )
