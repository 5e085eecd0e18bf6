"""PostgreSQL's domains with all that they are made of: SQLAlchemy leaves out how long, how fine, and with which zone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy import types as sql
from sqlalchemy.dialects import postgresql

from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import words_of

_MADE_OF = text(
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


def complete_domains(sink: SqlSink, columns: tuple[dict[str, Any], ...], connection: Connection) -> None:
    """Down to what the last domain of a chain is made of."""
    if not any(isinstance(each["type"], postgresql.DOMAIN) for each in columns):
        return
    found = connection.execute(_MADE_OF, {"name": words_of("postgresql").table(sink.table)})
    spelled: Mapping[str, str] = {row[0]: row[1] for row in found}
    for each in columns:
        kind = each["type"]
        while isinstance(kind, postgresql.DOMAIN):
            kind = kind.data_type
            complete(kind, spelled[each["name"]])


def complete(kind: Any, spelled: str) -> None:
    """`varchar(5)`, `timestamp(0) with time zone`, `numeric(10,2)`."""
    numbers = _NUMBERS.search(spelled)
    first, second = (int(each) if each else None for each in numbers.groups()) if numbers else (None, None)
    if isinstance(kind, sql.String):
        kind.length = first
    elif isinstance(kind, sql.DateTime):
        kind.timezone = spelled.endswith("with time zone")
        kind.precision = first  # type: ignore[attr-defined]
    elif isinstance(kind, sql.Numeric) and not isinstance(kind, sql.Float):
        kind.precision, kind.scale = first, second
