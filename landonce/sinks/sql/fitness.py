"""Whether a table holds the guarantee, from what the database tells of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Dialect
from sqlalchemy import types as sql
from sqlalchemy.dialects import mysql, postgresql

from landonce.read.schema.fields import Field
from landonce.sinks.contract import COORDINATES, Finding, Level
from landonce.sinks.sql.making import additions
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import words_of


@dataclass(frozen=True)
class Shape:
    """The columns of a table, as the database reflects them."""

    columns: tuple[Mapping[str, Any], ...]
    unique: tuple[frozenset[str], ...]
    """Each set of columns of which no two rows may hold the same."""
    indexed: tuple[frozenset[str], ...] = ()
    notes: tuple[Finding, ...] = ()
    deferred: tuple[frozenset[str], ...] = ()
    """Sets that are unique, and that PostgreSQL finds no row by: DEFERRABLE, or with an index that was never finished."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each["name"] for each in self.columns)


_LONGEST_TOPIC = 249
"""Characters that a topic's name may have in Kafka."""
_MEND = {
    False: "give the column a default, make it nullable, or change its type",
    True: "change its type, or declare `source.kafka.schema` in {file}: without the column, or, for a NUMERIC, with its digits, or, for SQLite's INTEGER PRIMARY KEY, with it",
}
"""For columns that may be NULL, and those that may not."""

Told = Iterable[tuple[Mapping[str, Any], Field | str | None]]
"""Each column, with the field that fills it, the reason why none can, or nothing."""


def findings(sink: SqlSink, shape: Shape, told: Told, dialect: Dialect) -> Iterator[Finding]:
    yield from shape.notes
    missing = [name for name in COORDINATES if name not in shape.names]
    if missing:
        yield Finding(
            Level.REFUSED,
            f"the table {sink.table} has no column {', '.join(missing)}",
            "; ".join(additions(sink, missing, dialect)),
        )
    yield from _of_coordinates(sink, shape)
    yield from _of_columns(told)
    if sink.key:
        yield from _of_key(sink, shape)
    elif sink.dialect == "yql" and frozenset(COORDINATES) not in shape.unique:
        yield Finding(
            Level.REFUSED,
            f"the primary key of {sink.table} is not its coordinates ({', '.join(COORDINATES)}): rows go in by UPSERT, and would "
            "replace others with the same key",
            "make the table with that primary key (`create: true` does), or say `mode: upsert` and `key` in {file}",
        )
    elif not missing:
        yield from _of_index(sink, shape)


def _of_coordinates(sink: SqlSink, shape: Shape) -> Iterator[Finding]:
    """A column that is too small for them would make a dead letter of every record, and COPY makes no numbers wider."""
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
    """SQLite compares what is in a column of text as text: 10 would be older than 9. A column without a type takes numbers as they are."""
    return dialect == "yql" or isinstance(kind, (sql.Integer, sql.NullType))


_WANTED = ("text of at least 249 characters", "INTEGER", "BIGINT")
_FITS: tuple[Callable[[Any, str], bool], ...] = (_holds_topics, _holds_partitions, _holds_offsets)


def _of_columns(told: Told) -> Iterator[Finding]:
    for column, found in told:
        is_document = isinstance(column["type"], sql.JSON)
        if isinstance(found, str) and not is_document:
            yield Finding(Level.REFUSED, found, _MEND[bool(column["nullable"])])
        elif is_document:
            yield Finding(
                Level.OK, f"column {column['name']} holds documents: it is written if `source.kafka.schema` names it"
            )


def _of_key(sink: SqlSink, shape: Shape) -> Iterator[Finding]:
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
            f"nothing keeps the table from holding a key ({listed}) twice, so rows cannot be changed by it",
            f"CREATE UNIQUE INDEX {_named(sink, 'key')} ({_quoted(sink, sink.key)})",
        )
    elif sink.dialect in ("mysql", "mariadb") and len(shape.unique) > 1:
        yield Finding(
            Level.REFUSED,
            "the table has another unique key, and MySQL changes the row that any of them finds",
            "drop the other unique keys",
        )
    else:
        yield Finding(Level.OK, f"{sink.table} is there, and no key stands in it twice")


def _of_index(sink: SqlSink, shape: Shape) -> Iterator[Finding]:
    if frozenset(COORDINATES) in shape.unique:
        yield Finding(Level.OK, f"{sink.table} is there, and no coordinates stand in it twice")
    elif frozenset(COORDINATES) in shape.indexed:
        yield Finding(Level.OK, f"{sink.table} is there, and its coordinates are indexed")
    else:
        using = " USING brin" if sink.dialect == "postgresql" else ""
        yield Finding(
            Level.WARNING,
            f"{sink.table} is there, and has no index on its coordinates: every start reads all of it",
            f"CREATE INDEX {_named(sink, 'coordinates')}{using} ({_quoted(sink, COORDINATES)})",
        )


def _named(sink: SqlSink, suffix: str) -> str:
    """A name for an index, and the table that it is on: only PostgreSQL finds names by itself."""
    words = words_of(sink.dialect)
    return f"{words.name(f'{sink.name[:40]}_{suffix}')} ON {words.table(sink.table)}"


def _quoted(sink: SqlSink, columns: Iterable[str]) -> str:
    return words_of(sink.dialect).names(columns)
