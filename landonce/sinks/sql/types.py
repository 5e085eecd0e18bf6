"""Which SQL type holds which Arrow type exactly, the columns of a table that landonce creates, and nested values as JSON. Pure.

    SQL                                     Arrow                                       of which databases
    ──────────────────────────────────────  ──────────────────────────────────────────  ─────────────────────────────
    BOOLEAN (MySQL: TINYINT(1))             bool                                        all
    SMALLINT, INTEGER, BIGINT               int16, int32, int64 (SQLite, YDB: int64)    all
    TINYINT, … UNSIGNED                     int8, uint8 … uint64                        MySQL
    REAL, DOUBLE PRECISION                  float, double (SQLite, YDB: double)         all
    NUMERIC(p, s)                           decimal128, up to 38 digits                 all but SQLite, which has none
    NUMERIC                                 decimal128, where it is declared            PostgreSQL
    TEXT, VARCHAR(n)                        string, of at most n characters             all
    BYTEA, BLOB                             binary (base64 in JSON)                     all
    DATE, TIMESTAMP, TIMESTAMPTZ            date32, microseconds, the latter in UTC     all
    UUID, ENUM                              uuid, string of a closed set                PostgreSQL
    JSON, JSONB, TEXT                       any nested type, as JSON                    all but YDB, where it is declared
    JSON, JSONB; a column of JSON text      any value, as its JSON text                 all but YDB

A column of another type is left to its default, or left out if `source.kafka.schema` does not name it; otherwise it is refused. Values
are never approximated.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from sqlalchemy import Column, Dialect, Index, MetaData, Table
from sqlalchemy import types as sql
from sqlalchemy.dialects import mysql, postgresql

from landonce.errors import ConfigError
from landonce.ledger.tables import ENGINE
from landonce.read.schema.fields import JSON, Field, Schema, is_uuid, json_note, landed, spelled, with_note
from landonce.sinks.contract import COORDINATES
from landonce.sinks.sql.sink import SqlSink

_DAY = 86_400
_MICROSECONDS = 10**6
_POSTGRES_DATE = (-2_440_588, 2_145_042_905)
"""From the 24th of November 4714 BC on, in days."""
_POSTGRES_MOMENT = (_POSTGRES_DATE[0] * _DAY * _MICROSECONDS, 2**63 - 1)
_FINITE = ("sqlite", "mysql", "mariadb")
"""SQLite turns NaN into NULL, and MySQL has neither NaN nor infinity."""
_NO_NUMBER = r"(?s)[\s\v]*(?:[^-+.0-9\s\v].*)?"
"""SQLite turns text in a JSON column into a number if it looks like one: `007` would become 7."""
_NO_BLANK_AT_THE_END = r"(?s)(?:.*[^ ])?"
"""MySQL's CHAR drops trailing blanks."""
_MYSQL_DATE = (-354_285, 2_932_896)
"""The years 1000 to 9999, in days."""
_MYSQL_TIMESTAMP = (1, 2**31 - 1)
_MYSQL_INTEGERS = {
    "TINYINT": (pa.int8(), pa.uint8()),
    "SMALLINT": (pa.int16(), pa.uint16()),
    "INTEGER": (pa.int32(), pa.uint32()),
    "BIGINT": (pa.int64(), pa.uint64()),
}
_PLAIN: tuple[tuple[type, pa.DataType, pa.DataType], ...] = (
    (sql.Boolean, pa.bool_(), pa.bool_()),
    (sql.SmallInteger, pa.int16(), pa.int64()),
    (sql.BigInteger, pa.int64(), pa.int64()),
    (sql.Integer, pa.int32(), pa.int64()),
    (sql.LargeBinary, pa.binary(), pa.binary()),
    (sql.Date, pa.date32(), pa.date32()),
)
"""The last: in SQLite and YDB."""

ReflectedColumn = Mapping[str, Any]
"""As SQLAlchemy reflects it. `rowid` is added: the name of the column that SQLite numbers itself."""


class JsonText(sql.UserDefinedType[str]):
    """A column of JSON text in SQLite. In a column of the type JSON, SQLite would make `1.10` the number 1.1; a type whose name holds
    TEXT keeps text as it is."""

    cache_ok = True
    name = "JSON_TEXT"

    def get_col_spec(self, **_: Any) -> str:
        return self.name


class Unsupported(Exception):
    """Records cannot become this type exactly. The message names it."""


def column_field(
    sink: SqlSink, column: ReflectedColumn, declared: Field | None, *, selected: bool = False, chosen: bool = True
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
    held = declared.type if declared is not None else pa.string() if selected else _undeclared(column)
    if held is not None and (found := document_of(name, kind, held, sink.dialect, required=required)) is not None:
        return found
    try:
        return field_of(name, kind, sink.dialect, required=required)
    except Unsupported as reason:
        left = chosen or column.get("default") is not None or isinstance(kind, sql.JSON)
        return f"column {name}: {reason}" if required or declared is not None or not left else None


def _undeclared(column: ReflectedColumn) -> pa.DataType | None:
    """`JSON` for a column that can hold any JSON value, or that landonce has made for JSON text."""
    if isinstance(column["type"], (sql.JSON, JsonText)):
        return JSON
    return JSON if with_note(pa.string(), column.get("comment")) == JSON else None


def document_of(name: str, type_: Any, declared: pa.DataType, dialect: str = "", *, required: bool) -> Field | None:
    """The field for a column that takes what is declared: JSON documents, text that holds one, and PostgreSQL's NUMERIC without digits.
    None for another column."""
    if isinstance(type_, JsonText):
        return Field(name, declared, required) if pt.is_string(landed(declared)) else None
    if isinstance(type_, sql.JSON) and pt.is_string(landed(declared)):
        return Field(name, declared, required, pattern=_NO_NUMBER if dialect == "sqlite" else None)
    is_text = isinstance(type_, sql.String) and not isinstance(type_, sql.Enum)
    if is_text and declared == JSON:
        return Field(name, declared, required, longest=type_.length)
    open_number = isinstance(type_, sql.Numeric) and not isinstance(type_, sql.Float) and type_.precision is None
    fits = pt.is_nested(declared) and landed(declared) == declared and (is_text or isinstance(type_, sql.JSON))
    fits = fits or (dialect == "postgresql" and open_number and pt.is_decimal128(declared))
    return Field(name, declared, required) if fits else None


def field_of(name: str, type_: Any, dialect: str, *, required: bool) -> Field:
    """The field that a record must hold for a column of this type."""
    if dialect in ("mysql", "mariadb") and (found := _of_mysql(name, type_, required)) is not None:
        return found
    if isinstance(type_, postgresql.DOMAIN):
        return field_of(name, type_.data_type, dialect, required=required or bool(type_.not_null))
    if isinstance(type_, sql.Enum):
        return Field(name, pa.string(), required, allowed=frozenset(type_.enums))
    if isinstance(type_, sql.String):
        return Field(name, pa.string(), required, longest=type_.length, without_nul=dialect == "postgresql")
    if isinstance(type_, sql.DateTime):
        moment = pa.timestamp("us", tz="UTC" if getattr(type_, "timezone", False) else None)
        if dialect != "postgresql":
            return Field(name, moment, required)
        return Field(name, moment, required, bounds=_POSTGRES_MOMENT, digits=getattr(type_, "precision", None))
    plain = _plain(type_, dialect)
    bounds = _POSTGRES_DATE if pt.is_date32(plain) and dialect == "postgresql" else None
    return Field(name, plain, required, bounds=bounds, finite=pt.is_floating(plain) and dialect in _FINITE)


def _plain(type_: Any, dialect: str) -> pa.DataType:
    loose = dialect in ("sqlite", "yql")
    for kind, arrow, loosely in _PLAIN:
        if isinstance(type_, kind):
            return loosely if loose else arrow
    if isinstance(type_, sql.Uuid) and dialect == "postgresql":
        return pa.uuid()
    spelling = type(type_).__name__
    if isinstance(type_, sql.Float) or spelling in ("REAL", "DOUBLE", "DOUBLE_PRECISION", "FLOAT"):
        single = spelling == "REAL" or isinstance(type_, mysql.FLOAT)
        return pa.float32() if single and not loose else pa.float64()
    if isinstance(type_, sql.Numeric) and dialect != "sqlite" and type_.precision and type_.precision <= 38:
        return pa.decimal128(type_.precision, type_.scale or 0)
    raise Unsupported(f"records cannot become {type_!r} exactly".replace("()", ""))


def _of_mysql(name: str, type_: Any, required: bool) -> Field | None:
    kind = type(type_).__name__
    if kind == "TINYINT" and type_.display_width == 1:
        return Field(name, pa.bool_(), required)
    if kind in _MYSQL_INTEGERS:
        return Field(name, _MYSQL_INTEGERS[kind][bool(type_.unsigned)], required)
    if kind in ("TINYBLOB", "MEDIUMBLOB", "LONGBLOB"):
        return Field(name, pa.binary(), required)
    if kind == "SET" or (kind in ("FLOAT", "DOUBLE") and type_.scale is not None):
        raise Unsupported(f"records cannot become {type_!r} exactly: MySQL puts it in order, or rounds it")
    if kind in ("CHAR", "NCHAR"):
        return Field(name, pa.string(), required, longest=type_.length, pattern=_NO_BLANK_AT_THE_END)
    if kind == "DATE":
        return Field(name, pa.date32(), required, bounds=_MYSQL_DATE)
    if kind == "DATETIME":
        low, end = (day * _DAY * _MICROSECONDS for day in (_MYSQL_DATE[0], _MYSQL_DATE[1] + 1))
        return Field(name, pa.timestamp("us"), required, bounds=(low, end - 1), digits=type_.fsp or 0)
    if kind == "TIMESTAMP":
        low, end = (second * _MICROSECONDS for second in _MYSQL_TIMESTAMP)
        return Field(name, pa.timestamp("us", tz="UTC"), required, bounds=(low, end - 1), digits=type_.fsp or 0)
    return None


def column_type(type_: pa.DataType, dialect: str, name: str) -> sql.TypeEngine[Any]:
    """The type of a column that landonce creates: `field_of` gives the same Arrow type back."""
    plain: dict[pa.DataType, sql.TypeEngine[Any]] = {
        pa.bool_(): sql.Boolean(),
        pa.int8(): sql.SmallInteger(),
        pa.int16(): sql.SmallInteger(),
        pa.int32(): sql.Integer(),
        pa.int64(): sql.BigInteger(),
        pa.float32(): sql.REAL().with_variant(mysql.FLOAT(), "mysql", "mariadb"),
        pa.float64(): sql.Double(),
        pa.string(): sql.Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb"),
        pa.binary(): sql.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"),
        pa.date32(): sql.Date(),
    }
    if type_ in plain:
        return plain[type_]
    if pt.is_timestamp(type_) and type_.unit != "ns":
        return sql.DateTime(timezone=type_.tz is not None).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    if pt.is_decimal128(type_) and dialect != "sqlite":
        return sql.Numeric(type_.precision, type_.scale)
    if is_uuid(type_) and dialect == "postgresql":
        return postgresql.UUID(as_uuid=False)
    if type_ == JSON and dialect != "yql":
        return (
            postgresql.JSON() if dialect == "postgresql" else JsonText() if dialect == "sqlite" else plain[pa.string()]
        )
    if pt.is_nested(type_) and landed(type_) == type_ and dialect != "yql":
        return sql.JSON().with_variant(postgresql.JSONB(), "postgresql")
    why = f"{spelled(type_)} cannot be the type of a column here; `select` parts of it, or convert it to text with to_json"
    if landed(type_) != type_ and dialect != "yql":
        why = "a document cannot hold JSON texts; declare the whole column as JSON"
    elif pt.is_timestamp(type_):
        why = "times have microseconds here; declare TIMESTAMP or TIMESTAMP(3)"
    elif pt.is_decimal(type_) and dialect == "sqlite":
        why = "SQLite has no exact decimals; declare it as STRING or DOUBLE"
    raise ConfigError(f"sink.sql.create: column {name!r}: {why}.")


def coordinate_types(dialect: str) -> dict[str, sql.TypeEngine[Any]]:
    """The types of the coordinate columns that landonce creates."""
    return dict(zip(COORDINATES, (_key_type(dialect), sql.Integer(), sql.BigInteger()), strict=True))


def _key_type(dialect: str, collation: str = "utf8mb4_bin") -> sql.TypeEngine[Any]:
    """Text that can be part of a key and distinguishes upper and lower case."""
    if dialect in ("mysql", "mariadb"):
        return mysql.VARCHAR(255, charset="utf8mb4", collation=collation)
    return sql.Text()


def new_table(sink: SqlSink, declared: Schema, dialect: Dialect) -> Table:
    """The table that landonce creates. The key is the primary key. Without a key the coordinates are indexed."""
    unknown = [name for name in sink.key if name not in declared.by_name()]
    if unknown:
        raise ConfigError(f"sink.sql.key: the records have no field {', '.join(unknown)}.")
    keyed = sink.dialect == "yql" and not sink.key  # every table of YDB has a primary key
    columns = [
        Column(name, kind, nullable=False, primary_key=keyed, autoincrement=False)
        for name, kind in coordinate_types(sink.dialect).items()
    ]
    # In MySQL's other collations `a` and `a ` are one key.
    padless = "utf8mb4_nopad_bin" if getattr(dialect, "is_mariadb", False) else "utf8mb4_0900_bin"
    for each in declared.fields:
        named = each.name in sink.key
        is_key_text = named and pt.is_string(each.type)
        kind = _key_type(sink.dialect, padless) if is_key_text else column_type(each.type, sink.dialect, each.name)
        optional = not (each.required or named)
        note = (json_note(each.type) or None) if sink.notes else None
        columns.append(Column(each.name, kind, primary_key=named, nullable=optional, autoincrement=False, comment=note))
    charset: dict[str, Any] = {"mysql_charset": "utf8mb4", "mariadb_charset": "utf8mb4"}
    table = Table(sink.name, MetaData(), *columns, schema=sink.schema, **ENGINE, **charset)
    if not sink.key and not keyed:
        brin = sink.dialect == "postgresql"  # a unique index would cost twice as much as COPY itself
        indexed = [table.c[name] for name in COORDINATES]
        Index(f"{sink.name[:40]}_coordinates", *indexed, unique=not brin, postgresql_using="brin")
    return table


def add_column(sink: SqlSink, name: str, type_: sql.TypeEngine[Any], dialect: Dialect) -> str:
    """`ALTER TABLE … ADD COLUMN …`, escaped for SQLAlchemy's `text`, which treats colons and percent signs in its own way."""
    prepare: Any = dialect.identifier_preparer
    table = ".".join(prepare.quote_identifier(part) for part in sink.table.split("."))
    quoted = prepare.quote_identifier(name)
    if prepare._double_percents:
        quoted = quoted.replace("%%", "%")
    spelling = dialect.type_compiler_instance.process(type_.dialect_impl(dialect))
    return f"ALTER TABLE {table} ADD COLUMN {quoted} {spelling}".replace(":", "\\:")


def documents_as_text(rows: pa.Table) -> pa.Table:
    """The rows with nested values as JSON. Value by value: Arrow has no writer for it."""
    for at, each in enumerate(rows.schema):
        if pt.is_nested(each.type):
            values = [_json_value(value, each.type) for value in rows.column(at).to_pylist()]
            texts = [
                None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
                for value in values
            ]
            rows = rows.set_column(at, each.name, pa.array(texts, pa.string()))
    return rows


def _json_value(value: Any, type_: pa.DataType) -> Any:
    """As a JSON value. Times are ISO 8601 text, bytes are base64, decimals are text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if pt.is_struct(type_):
        return {child.name: _json_value(value[child.name], child.type) for child in type_}
    if pt.is_map(type_):
        return {str(_json_value(key, type_.key_type)): _json_value(each, type_.item_type) for key, each in value}
    if pt.is_list(type_):
        return [_json_value(each, type_.value_type) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if pt.is_temporal(type_) else str(value)
