"""What a database lets rows vanish by, without an error: views, rules, policies, triggers, conflicts that a table settles itself, and keys
that are compared in two ways."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlalchemy import Connection, text

from landonce.sinks.contract import Finding, Level
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import words_of

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
_ROWID = text("SELECT name, upper(type) FROM pragma_table_info(:name) WHERE pk > 0")
_GAP = r"(?:\s|/\*.*?\*/|--[^\n]*\n)+"
_SETTLES = re.compile(rf"\bON{_GAP}CONFLICT{_GAP}(?:IGNORE|REPLACE|ROLLBACK)\b", re.IGNORECASE | re.DOTALL)
_IGNORES = re.compile(r"\bRAISE\s*\(\s*IGNORE\b", re.IGNORECASE)


def swallowing(sink: SqlSink, connection: Connection) -> Iterator[Finding]:
    """Rows that are only added are counted when they are written; changes cannot be, for an older one rightly changes nothing."""
    if sink.dialect == "postgresql":
        yield from _of_postgres(sink, connection)
    if sink.dialect == "sqlite":
        yield from _of_sqlite(sink, connection)


def rowid_of(sink: SqlSink, connection: Connection) -> str | None:
    """The column that SQLite fills with a number of its own where it is NULL."""
    if sink.dialect != "sqlite":
        return None
    match connection.execute(_ROWID, {"name": sink.name}).all():
        case [(name, "INTEGER")]:
            return str(name)
    return None


def _of_postgres(sink: SqlSink, connection: Connection) -> Iterator[Finding]:
    name = {"name": words_of("postgresql").table(sink.table)}
    for (rule,) in connection.execute(_RULES, {**name, "keyed": bool(sink.key)}):
        yield Finding(
            Level.REFUSED,
            f"the rule {rule} of {sink.table} may put something else in the place of a change, and COPY does not follow it",
            f'DROP RULE "{rule}" ON {sink.table}   (a trigger can do the same)',
        )
    if connection.scalar(_POLICIES, name):
        yield Finding(
            Level.REFUSED,
            f"row-level security of {sink.table} holds for this user: rows that it hides would not be changed or deleted, "
            "without a word",
            "write as the table's owner or as a user with BYPASSRLS",
        )
    for (trigger,) in connection.execute(_TRIGGERS, name) if sink.key else ():
        yield Finding(
            Level.WARNING,
            f"the trigger {trigger} of {sink.table} runs before a row is changed: a change that it leaves out (RETURN NULL) counts "
            "as landed",
            "let it RAISE where it does not take a row: then the record is a dead letter",
        )


def _of_sqlite(sink: SqlSink, connection: Connection) -> Iterator[Finding]:
    name = {"name": sink.name}
    kind, made = connection.execute(_KIND, name).one()
    if kind == "view":
        yield Finding(
            Level.REFUSED,
            f"{sink.table} is a view: what becomes of its rows only its triggers know",
            "name the table itself in {file}",
        )
    elif _SETTLES.search(str(made)):
        yield Finding(
            Level.REFUSED,
            f"{sink.table} is made with ON CONFLICT IGNORE, REPLACE or ROLLBACK: rows would be left out or removed without a word",
            "make the table without that clause",
        )
    for (index,) in connection.execute(_COLLATED, name) if sink.key else ():
        if {column for (column,) in connection.execute(_INDEXED, {"index": index})} == set(sink.key):
            yield Finding(
                Level.REFUSED,
                f"the unique index {index} of {sink.table} has a COLLATE of its own: what it takes for one key a deletion may not find",
                "give the column that collation, and the index none",
            )
    for trigger, body in connection.execute(_LITE_TRIGGERS, name) if sink.key else ():
        if _IGNORES.search(str(body)):
            yield Finding(
                Level.REFUSED,
                f"the trigger {trigger} of {sink.table} leaves changes out without a word: RAISE(IGNORE)",
                "let it RAISE(ABORT, …): then the record is a dead letter",
            )
