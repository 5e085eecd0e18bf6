"""What `landonce check` says of an SQL database, and whether a table can hold the guarantee, at every start. Reads only.

asked                       refused, for example
──────────────────────────  ─────────────────────────────────────────────────────────────────────────────────────────────
the columns and keys        no coordinates; a column that must be filled and cannot be; no unique key to change rows by
where rows are stored       an unlogged table; an engine without transactions; a key that compares only beginnings
what makes rows vanish      views, rules, row policies, triggers, ON CONFLICT IGNORE, two collations of one key
what the user may do        rights that the user lacks for writing blocks or the ledger
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Dialect, text
from sqlalchemy import types as sql
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.exc import DBAPIError

from landonce.ledger.block_ledgers import TargetLedger
from landonce.ledger.mysql import error_code
from landonce.ledger.names import quoted
from landonce.ledger.tables import block_table, journal_table, pipeline_table, position_table
from landonce.read.schema.fields import Field
from landonce.sinks import checking
from landonce.sinks.checking import CheckRun, Findings, Sections
from landonce.sinks.contract import COORDINATES, Finding, Level
from landonce.sinks.declared import declared_schema
from landonce.sinks.sql.driver import file_reachable, sql_creation, sql_recipe
from landonce.sinks.sql.fingerprint import refuse_replaced
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import parts_statement, syntax_of, triggers_statement
from landonce.sinks.sql.table import SqlShape, SqlTable
from landonce.sinks.sql.types import ReflectedColumn, add_column, coordinate_types, index_name

_refused, _warning = partial(Finding, Level.REFUSED), partial(Finding, Level.WARNING)
_LONGEST_TOPIC = 249
"""Characters that a topic's name may have in Kafka."""
_COORDINATE_TYPES = ("text of at least 249 characters", "INTEGER", "BIGINT")
FilledColumns = Iterable[tuple[ReflectedColumn, Field | str | None]]
"""Each column with what `column_field` says of it."""


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
        yield from checking.writable(folder, f"none yet: the first run creates {database.place}", f"mkdir -p {folder}")
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
    yield from checking.records(run, recipe, recipe.source, recipe.sink.key, recipe.changes)


# Columns and keys.


def check_columns(sink: SqlSink, shape: SqlShape, filled: FilledColumns, dialect: Dialect) -> Iterator[Finding]:
    """What columns and keys say. Pure."""
    types = coordinate_types(sink.dialect)
    missing = [name for name in COORDINATES if name not in shape.names]
    if missing:
        yield _refused(
            f"the table {sink.table} has no column {', '.join(missing)}",
            "; ".join(add_column(sink, name, types[name], dialect) for name in missing),
        )
    kinds = {each["name"]: each["type"] for each in shape.columns}
    for name, wanted in zip(COORDINATES, _COORDINATE_TYPES, strict=True):
        if name in kinds and not _coordinate_fits(name, kinds[name], sink.dialect):
            yield _refused(
                f"the column {name} of {sink.table} is {kinds[name]!r}, and has to be {wanted}",
                f"change the type of {name} to {wanted}",
            )
    for column, found in filled:
        if isinstance(column["type"], sql.JSON):
            yield Finding(
                Level.OK, f"column {column['name']} holds documents: it is written if `source.kafka.schema` names it"
            )
        elif isinstance(found, str) and column["nullable"]:
            yield _refused(
                found,
                "change its type, or declare `source.kafka.schema` in {file}: without the column, "
                "or, for SQLite's INTEGER PRIMARY KEY, with it",
            )
        elif isinstance(found, Field) and not found.is_filled:
            yield _warning(
                f"column {column['name']} is left to the database: no record becomes {column.get('written') or column['type']!r} "
                "exactly, and one with a value for it is a dead letter",
                "nothing to change if no record holds the field",
            )
        elif isinstance(found, str):
            yield _refused(found, "give the column a default, make it nullable, or change its type")
    if sink.key:
        yield _key(sink, shape)
    elif sink.dialect == "yql" and frozenset(COORDINATES) not in shape.unique:
        yield _refused(
            f"the primary key of {sink.table} is not its coordinates ({', '.join(COORDINATES)}): rows go in by UPSERT, and would "
            "replace others with the same key",
            "make the table with that primary key (`create: true` does), or say `mode: upsert` and `key` in {file}",
        )
    elif not missing:
        yield _index(sink, shape)


def _coordinate_fits(name: str, kind: Any, dialect: str) -> bool:
    """In a column that is too small every record would become a dead letter, and COPY does not widen numbers. In a text column SQLite would
    compare numbers as text, and 10 would be older than 9; a column without a type keeps numbers."""
    if dialect == "yql":
        return True
    if name == "_topic":
        if dialect == "sqlite":
            return isinstance(kind, (sql.String, sql.NullType))
        otherwise = isinstance(kind, (sql.CHAR, postgresql.CITEXT)) and dialect == "postgresql"
        return isinstance(kind, sql.String) and not otherwise and (kind.length or _LONGEST_TOPIC) >= _LONGEST_TOPIC
    if dialect == "sqlite":
        return isinstance(kind, (sql.Integer, sql.NullType))
    big, small = isinstance(kind, sql.BigInteger), isinstance(kind, (sql.SmallInteger, mysql.TINYINT))
    if name == "_offset":
        return big
    return isinstance(kind, sql.Integer) and not small and not (big and dialect == "postgresql")


def _key(sink: SqlSink, shape: SqlShape) -> Finding:
    unknown = [name for name in sink.key if name not in shape.names]
    listed, key = ", ".join(sink.key), frozenset(sink.key)
    index = f"CREATE UNIQUE INDEX {_named(sink, 'key')} ({syntax_of(sink.dialect).names(sink.key)})"
    if unknown:
        return _refused(f"key: the table has no column {', '.join(unknown)}", "correct `key` in {file}")
    if key not in shape.unique and key in shape.deferred:
        return _refused(
            f"the unique key ({listed}) is DEFERRABLE, or its index is not valid: PostgreSQL finds no row to change by it",
            f"{index}, or make the constraint without DEFERRABLE",
        )
    if key not in shape.unique:
        return _refused(
            f"the table has no unique key ({listed}): it may hold a key twice, so rows cannot be changed by it",
            index,
        )
    if sink.dialect in ("mysql", "mariadb") and len(shape.unique) > 1:
        return _refused(
            "the table has another unique key, and MySQL changes the row that any of them finds",
            "drop the other unique keys",
        )
    return Finding(Level.OK, f"{sink.table} exists, and holds no key twice")


def _index(sink: SqlSink, shape: SqlShape) -> Finding:
    if frozenset(COORDINATES) in shape.unique:
        return Finding(Level.OK, f"{sink.table} exists, and holds no coordinates twice")
    if frozenset(COORDINATES) in shape.indexed:
        return Finding(Level.OK, f"{sink.table} exists, and its coordinates are indexed")
    using = " USING brin" if sink.dialect == "postgresql" else ""
    return _warning(
        f"{sink.table} exists, and its coordinates have no index: every start reads the whole table",
        f"CREATE INDEX {_named(sink, 'coordinates')}{using} ({syntax_of(sink.dialect).names(COORDINATES)})",
    )


def _named(sink: SqlSink, suffix: str) -> str:
    """`name ON table` of an index. Only PostgreSQL chooses a name itself."""
    syntax = syntax_of(sink.dialect)
    return f"{syntax.name(index_name(sink.name, suffix))} ON {syntax.table(sink.table)}"


# Where rows are stored, and what makes them vanish without an error. Rows that are only added are counted when they are written; changes cannot
# be counted, since an older one rightly changes nothing.

_RULES = text(
    "SELECT rulename FROM pg_rewrite WHERE ev_class = to_regclass(:name) AND rulename <> '_RETURN' AND ev_enabled <> 'D' "
    "AND (:keyed OR ev_type = '3') ORDER BY rulename"
)
"""Rules on any change, or on INSERT only."""
_POLICIES = text("SELECT row_security_active(CAST(to_regclass(:name) AS oid))")
_TRIGGERS = text(triggers_statement(":name", 4 | 8 | 16))
_NOT_ORDINARY = text(
    parts_statement(
        ":name",
        "SELECT CAST(CAST(c.oid AS regclass) AS text), root FROM parts JOIN pg_class AS c ON c.oid = id "
        "WHERE c.relpersistence <> 'p' OR c.relkind NOT IN ('r', 'p') ORDER BY 1",
    )
)
_HERE = "table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
_BESIDE = ", ".join(f"'{each.name}'" for each in (block_table, pipeline_table, position_table))
_ENGINES = text(
    f"SELECT table_name, engine FROM information_schema.tables WHERE ({_HERE}) "  # noqa: S608  (constants)
    f"OR (table_schema = DATABASE() AND table_name IN ({_BESIDE})) ORDER BY table_name"
)
_ODD_KEYS = text(
    f"SELECT DISTINCT index_name, column_name IS NULL FROM information_schema.statistics WHERE {_HERE} "  # noqa: S608  (constants)
    "AND non_unique = 0 AND (column_name IS NULL OR sub_part IS NOT NULL) ORDER BY 2 DESC, 1"
)
"""Unique keys on expressions, which MySQL 8 has and SQLAlchemy leaves out, and on the beginnings of columns."""
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


def check_storage(sink: SqlSink, connection: Connection) -> Iterator[Finding]:
    """Tables that lose rows silently, forget what was committed, never commit anything, or take two keys for one."""
    if sink.dialect == "postgresql":
        yield from _postgres_storage(sink, connection)
    elif sink.dialect == "sqlite":
        yield from _sqlite_storage(sink, connection)
    elif sink.dialect in ("mysql", "mariadb"):
        yield from _mysql_storage(sink, connection)


def _postgres_storage(sink: SqlSink, connection: Connection) -> Iterator[Finding]:
    name = {"name": syntax_of("postgresql").table(sink.table)}
    for (rule,) in connection.execute(_RULES, {**name, "keyed": bool(sink.key)}):
        yield _refused(
            f"the rule {rule} of {sink.table} may replace a change by something else, and COPY does not follow rules",
            f"DROP RULE {syntax_of('postgresql').name(rule)} ON {name['name']}   (a trigger can do the same)",
        )
    if connection.scalar(_POLICIES, name):
        yield _refused(
            f"row-level security of {sink.table} holds for this user: rows that it hides would silently not be changed or "
            "deleted",
            "write as the table's owner or as a user with BYPASSRLS",
        )
    for (trigger,) in connection.execute(_TRIGGERS, name) if sink.key else ():
        yield _warning(
            f"the trigger {trigger} of {sink.table} runs before a row is changed: a change that it leaves out (RETURN NULL) counts "
            "as landed",
            "let it RAISE if it does not take a row: then the record is a dead letter",
        )
    for part, is_root in connection.execute(_NOT_ORDINARY, name):
        what = sink.table if is_root else f"{part}, a partition of {sink.table},"
        yield _refused(
            f"{what} is not an ordinary table: an unlogged or temporary one is empty after a crash, and its ledger is not; a foreign "
            "one is another server's",
            f"ALTER TABLE {part} SET LOGGED",
        )


def _mysql_storage(sink: SqlSink, connection: Connection) -> Iterator[Finding]:
    place, dialect = {"name": sink.name, "schema": sink.schema}, syntax_of(sink.dialect).made
    for name, engine in connection.execute(_ENGINES, place):
        if str(engine).lower() != "innodb":
            own = sink.table.split(".")
            parts = own if name.lower() == own[-1].lower() else [name]
            yield _refused(
                f"{name} has the engine {engine}, which has no transactions",
                f"ALTER TABLE {quoted(dialect, *parts)} ENGINE = InnoDB",
            )
    for index, on_expression in connection.execute(_ODD_KEYS, place) if sink.key else ():
        if on_expression:
            yield _refused(
                f"the table has another unique key, {index}, on an expression, and MySQL changes the row that any of them finds",
                f"DROP INDEX {quoted(dialect, index)} ON {quoted(dialect, *sink.table.split('.'))}",
            )
        else:
            yield _refused(
                f"the unique key {index} of {sink.table} compares only the beginning of a column, and MySQL would take two keys "
                "that begin alike for one row",
                "make the column a VARCHAR that a key can hold whole, and the key without a length",
            )


def _sqlite_storage(sink: SqlSink, connection: Connection) -> Iterator[Finding]:
    name = {"name": sink.name}
    kind, made = connection.execute(_KIND, name).one()
    if kind == "view":
        yield _refused(
            f"{sink.table} is a view: its triggers decide what becomes of rows",
            "name the table itself in {file}",
        )
    elif _SETTLES.search(str(made)):
        yield _refused(
            f"{sink.table} is made with ON CONFLICT IGNORE, REPLACE or ROLLBACK: rows would be left out or removed silently",
            "make the table without that clause",
        )
    for (index,) in connection.execute(_COLLATED, name) if sink.key else ():
        if {column for (column,) in connection.execute(_INDEXED, {"index": index})} == set(sink.key):
            yield _refused(
                f"the unique index {index} of {sink.table} has a COLLATE of its own: a deletion may not find a key that the index takes for the same",
                "give the column that collation, and the index none",
            )
    for trigger, body in connection.execute(_LITE_TRIGGERS, name) if sink.key else ():
        if _IGNORES.search(str(body)):
            yield _refused(
                f"the trigger {trigger} of {sink.table} leaves changes out silently: RAISE(IGNORE)",
                "let it RAISE(ABORT, …): then the record is a dead letter",
            )


# Rights. PostgreSQL tells about rights by name. MySQL and MariaDB explain a statement only to a user who may run it. For SQLite the file and
# its folder have to be writable.

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
        yield from _postgres_rights(sink, written, connection)
    elif sink.dialect == "sqlite":
        path = Path(str(sink.address.database)).absolute()
        for each in (path, path.parent):
            if not os.access(each, os.W_OK):
                yield _refused(f"{each} is not writable for this user", f"make {each} writable")
    elif sink.dialect in ("mysql", "mariadb"):
        yield from _mysql_rights(sink, columns[0], connection)


def _lacks(sink: SqlSink, rights: str, table: str) -> Finding:
    named = quoted(syntax_of(sink.dialect).made, *table.split("."))
    return _refused(
        f"the user has no right to {rights} on the table {table}",
        f"GRANT {rights} ON {named} TO the user",
    )


def _postgres_rights(sink: SqlSink, written: Collection[str], connection: Connection) -> Iterator[Finding]:
    named = syntax_of("postgresql").table(sink.table)
    there = sorted(name for name in _LEDGER if connection.scalar(_THERE, {"name": name}))
    wanted = [(named, sink.table, _CHANGES if sink.key else ("INSERT", "SELECT"))]
    for name, shown, kinds in [*wanted, *((name, name, _CHANGES) for name in there)]:
        lacks = [kind for (kind,) in connection.execute(_LACKS, {"kinds": list(kinds), "name": name})]
        if lacks:
            yield _lacks(sink, ", ".join(lacks), shown)
    for column, sequence in connection.execute(_SEQUENCES, {"name": named}):
        if column not in written:
            yield _refused(
                f"the user may not use the sequence {sequence}, which fills the column {column} of {sink.table}",
                f"GRANT USAGE ON SEQUENCE {sequence} TO the user",
            )
    if sink.key and not connection.scalar(_TEMPORARY):
        yield _refused(
            "the user may not create temporary tables, which changes by key need",
            "GRANT TEMPORARY ON DATABASE … TO the user",
        )
    if len(there) < len(_LEDGER) and not connection.scalar(_MAY_CREATE):
        yield _refused(
            "the user may not create the ledger's tables (landonce_*)",
            "GRANT CREATE ON SCHEMA … TO the user, or run the pipeline once as a user who may",
        )


def _mysql_rights(sink: SqlSink, first: str, connection: Connection) -> Iterator[Finding]:
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
            if error_code(failure.orig) in _DENIED:  # other errors of this statement do not matter
                yield _lacks(sink, right, sink.table)
