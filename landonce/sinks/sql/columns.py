"""The columns of a table as the database reflects them, and the field of a record that fills each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, inspect, text
from sqlalchemy import types as sql
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import NoSuchTableError

from landonce import errors
from landonce.read.schema.fields import Field
from landonce.sinks.contract import COORDINATES
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import syntax_of
from landonce.sinks.sql.types import Unsupported, document_of, field_of, number_of

Column = Mapping[str, Any]
"""As SQLAlchemy reflects it. `rowid` is added: the name of the column that SQLite numbers itself."""
_PARTIAL = {"postgresql_where", "sqlite_where"}
"""Options of an index that does not cover every row."""
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
_ROWID = text("SELECT name, upper(type) FROM pragma_table_info(:name) WHERE pk > 0")
_DOMAINS = text(
    """
    WITH RECURSIVE made(name, type, typmod) AS (
        SELECT CAST(attname AS text), atttypid, atttypmod FROM pg_attribute
        WHERE attrelid = to_regclass(:name) AND attnum > 0 AND NOT attisdropped
        UNION ALL SELECT made.name, typbasetype, typtypmod FROM made JOIN pg_type ON oid = type AND typtype = 'd'
    )
    SELECT made.name, format_type(type, typmod) FROM made JOIN pg_type ON oid = type AND typtype <> 'd'
    """
)
_NUMBERS = re.compile(r"\((-?\d+)(?:,(-?\d+))?\)")


@dataclass(frozen=True)
class Shape:
    """The columns and keys of a table."""

    columns: tuple[Column, ...]
    unique: tuple[frozenset[str], ...]
    """Sets of columns. No two rows hold the same values in one of them."""
    indexed: tuple[frozenset[str], ...] = ()
    deferred: tuple[frozenset[str], ...] = ()
    """Unique sets that PostgreSQL finds no row by: the constraint is DEFERRABLE, or its index was never finished."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each["name"] for each in self.columns)


def read_shape(sink: SqlSink, connection: Connection) -> Shape:
    """Asks the database. Raises `TableUnfit` if there is no such table."""
    found = inspect(connection)
    name, schema = sink.name, sink.schema
    try:
        rowid = _rowid(sink, connection)
        columns = tuple({**each, "rowid": rowid} for each in found.get_columns(name, schema=schema))
    except NoSuchTableError:
        raise errors.TableUnfit(
            f"there is no table {sink.table}, or the user may not see it.",
            safe="Nothing was read or written.",
            command="create it, or say `create: true` in {file} and let landonce do it",
        ) from None
    _complete_domains(sink, columns, connection)
    indexes = found.get_indexes(name, schema=schema)
    sets: list[list[Any]] = [found.get_pk_constraint(name, schema=schema)["constrained_columns"]]
    sets += [each["column_names"] for each in found.get_unique_constraints(name, schema=schema)]
    sets += [
        each["column_names"]
        for each in indexes
        if each["unique"] and _PARTIAL.isdisjoint(each.get("dialect_options") or {})
    ]
    deferred = _deferred_keys(sink, connection)
    unique = dict.fromkeys(frozenset(each) for each in sets if each and None not in each)
    return Shape(
        columns,
        tuple(each for each in unique if each not in deferred),
        tuple(frozenset(filter(None, each["column_names"])) for each in indexes),
        deferred,
    )


def column_field(
    sink: SqlSink, column: Column, declared: Field | None, *, selected: bool = False, chosen: bool = True
) -> Field | str | None:
    """The field that fills a column. None: the column is not written. A text: it has to be written, and why it cannot be.

    A column with a default that records need not fill is left to the database, unless it is declared. `selected`: expressions make
    the columns, and JSON documents are text. `chosen`: the user said which columns are written. Otherwise all are written, and one of
    a type that no value fits would silently stay empty.
    """
    name, kind = column["name"], column["type"]
    if name in COORDINATES or column.get("computed") is not None or column.get("identity") is not None:
        return None
    required = not column["nullable"]
    if name == column.get("rowid") and not sink.key:  # SQLite's INTEGER PRIMARY KEY is never NULL, whatever is written
        if declared is None and not chosen:
            return f"column {name}: SQLite gives it a number of its own where a record holds none"
        required = declared is not None
    if declared is None and required and (column.get("default") is not None or column.get("autoincrement") is True):
        return None
    held = declared.type if declared is not None else pa.string() if selected else None
    if held is not None:
        found = document_of(name, kind, held, sink.dialect, required=required)
        if found is None and sink.dialect == "postgresql":
            found = number_of(name, kind, held, required=not column["nullable"])
        if found is not None:
            return found
    try:
        return field_of(name, kind, sink.dialect, required=required)
    except Unsupported as reason:
        left = chosen or column.get("default") is not None or isinstance(kind, sql.JSON)
        return f"column {name}: {reason}" if required or declared is not None or not left else None


def _rowid(sink: SqlSink, connection: Connection) -> str | None:
    """The column that SQLite fills with a number of its own where it is NULL."""
    if sink.dialect != "sqlite":
        return None
    match connection.execute(_ROWID, {"name": sink.name}).all():
        case [(name, "INTEGER")]:
            return str(name)
    return None


def _deferred_keys(sink: SqlSink, connection: Connection) -> tuple[frozenset[str], ...]:
    if sink.dialect != "postgresql":
        return ()
    found = connection.execute(_KEYS, {"name": syntax_of("postgresql").table(sink.table)}).all()
    usable = {frozenset(columns) for at_once, columns in found if at_once}
    return tuple({frozenset(columns) for at_once, columns in found if not at_once} - usable)


def _complete_domains(sink: SqlSink, columns: tuple[Column, ...], connection: Connection) -> None:
    """Adds length, precision and time zone to PostgreSQL's domains: SQLAlchemy leaves them out. Follows domains of domains."""
    if not any(isinstance(each["type"], postgresql.DOMAIN) for each in columns):
        return
    found = connection.execute(_DOMAINS, {"name": syntax_of("postgresql").table(sink.table)})
    base_types: Mapping[str, str] = {row[0]: row[1] for row in found}
    for each in columns:
        kind = each["type"]
        while isinstance(kind, postgresql.DOMAIN):
            kind = kind.data_type
            _complete(kind, base_types[each["name"]])


def _complete(kind: Any, spelled: str) -> None:
    """`spelled`: `varchar(5)`, `timestamp(0) with time zone`, `numeric(10,2)`."""
    numbers = _NUMBERS.search(spelled)
    first, second = (int(each) if each else None for each in numbers.groups()) if numbers else (None, None)
    if isinstance(kind, sql.String):
        kind.length = first
    elif isinstance(kind, sql.DateTime):
        kind.timezone = spelled.endswith("with time zone")
        kind.precision = first  # type: ignore[attr-defined]
    elif isinstance(kind, sql.Numeric) and not isinstance(kind, sql.Float):
        kind.precision, kind.scale = first, second
