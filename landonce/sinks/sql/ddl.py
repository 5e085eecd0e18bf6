"""The table that landonce creates, and the columns that it adds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow.types as pt
from sqlalchemy import Column, Dialect, Index, MetaData, Table
from sqlalchemy import types as sql

from landonce import errors
from landonce.ledger.tables import ENGINE
from landonce.protocol.ledger import LedgerState
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.contract import COORDINATES
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.types import column_type, key_type


def new_table(sink: SqlSink, declared: Schema, dialect: Dialect) -> Table:
    """The key is the primary key. Without a key the coordinates are indexed."""
    unknown = [name for name in sink.key if name not in declared.by_name()]
    if unknown:
        raise errors.ConfigError(f"sink.sql.key: the records have no field {', '.join(unknown)}.")
    columns = [_column(sink, each, dialect) for each in declared.fields]
    keyed = sink.dialect == "yql" and not sink.key  # every table of YDB has a primary key
    beside = [
        Column(name, kind, nullable=False, primary_key=keyed, autoincrement=False)
        for name, kind in _kinds(sink).items()
    ]
    charset: dict[str, Any] = {"mysql_charset": "utf8mb4", "mariadb_charset": "utf8mb4"}
    table = Table(sink.name, MetaData(), *beside, *columns, schema=sink.schema, **ENGINE, **charset)
    if not sink.key and not keyed:
        brin = sink.dialect == "postgresql"  # a unique index would cost twice as much as COPY itself
        indexed = [table.c[name] for name in COORDINATES]
        Index(f"{sink.name[:40]}_coordinates", *indexed, unique=not brin, postgresql_using="brin")
    return table


def refuse_recreation(sink: SqlSink, state: LedgerState | None) -> None:
    """Refuses to create a table again that records landed in: they would be missing, and the pipeline would go on after them."""
    if state is not None and (state.totals.landed or state.pending is not None):
        raise errors.TableReplaced(
            f"there is no table {sink.table}, and the ledger says that {state.totals.landed:,} records of {state.pipeline!r} landed. "
            "A new table would be without them.",
            safe="Nothing was made or written.",
            command="restore the table with the tables landonce_*, or correct `table` in {file}; to land all of it again, give the "
            "pipeline another name; to go on without what landed, create the table yourself, then: "
            f"landonce state forget-table {{file}} {sink.table}",
        )


def _column(sink: SqlSink, field: Field, dialect: Dialect) -> Column[Any]:
    named = field.name in sink.key
    is_key_text = named and pt.is_string(field.type)
    kind = _key_text(sink, dialect) if is_key_text else column_type(field.type, sink.dialect, field.name)
    return Column(field.name, kind, primary_key=named, nullable=not (field.required or named), autoincrement=False)


def _key_text(sink: SqlSink, dialect: Dialect) -> sql.TypeEngine[Any]:
    """In MySQL's other collations `a` and `a ` are one key."""
    padless = "utf8mb4_nopad_bin" if getattr(dialect, "is_mariadb", False) else "utf8mb4_0900_bin"
    return key_type(sink.dialect, padless)


def add_column(sink: SqlSink, name: str, type_: sql.TypeEngine[Any], dialect: Dialect) -> str:
    """`ALTER TABLE … ADD COLUMN …`, escaped for SQLAlchemy's `text`, which treats colons and percent signs in its own way."""
    prepare: Any = dialect.identifier_preparer
    table = ".".join(prepare.quote_identifier(part) for part in sink.table.split("."))
    quoted = prepare.quote_identifier(name)
    if prepare._double_percents:
        quoted = quoted.replace("%%", "%")
    spelled = dialect.type_compiler_instance.process(type_.dialect_impl(dialect))
    return f"ALTER TABLE {table} ADD COLUMN {quoted} {spelled}".replace(":", "\\:")


def add_coordinates(sink: SqlSink, names: Iterable[str], dialect: Dialect) -> Iterator[str]:
    """The statements that add coordinate columns."""
    return (add_column(sink, name, _kinds(sink)[name], dialect) for name in names)


def _kinds(sink: SqlSink) -> dict[str, sql.TypeEngine[Any]]:
    return dict(zip(COORDINATES, (key_type(sink.dialect), sql.Integer(), sql.BigInteger()), strict=True))
