"""Which SQL type holds which Arrow type exactly, and nested values as JSON. Pure.

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

A column of another type is left to its default, or left out if `source.kafka.schema` does not name it; otherwise it is refused. Values
are never approximated.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from sqlalchemy import types as sql
from sqlalchemy.dialects import mysql, postgresql

from landonce.errors import ConfigError
from landonce.read.schema.fields import Field, is_uuid, spelled

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


_MYSQL_BLOBS = ("TINYBLOB", "MEDIUMBLOB", "LONGBLOB")


class Unsupported(Exception):
    """Records cannot become this type exactly. The message names it."""


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
        return _moment(name, type_, dialect, required)
    plain = _plain(type_, dialect)
    if pt.is_date32(plain) and dialect == "postgresql":
        return Field(name, plain, required, bounds=_POSTGRES_DATE)
    return Field(name, plain, required, finite=pt.is_floating(plain) and dialect in _FINITE)


def _moment(name: str, type_: Any, dialect: str, required: bool) -> Field:
    arrow = pa.timestamp("us", tz="UTC" if getattr(type_, "timezone", False) else None)
    if dialect != "postgresql":
        return Field(name, arrow, required)
    return Field(name, arrow, required, bounds=_POSTGRES_MOMENT, digits=getattr(type_, "precision", None))


def document_of(name: str, type_: Any, declared: pa.DataType, dialect: str = "", *, required: bool) -> Field | None:
    """The field for a column of JSON documents, or of text that holds one. None for another column."""
    if isinstance(type_, sql.JSON) and pt.is_string(declared):
        return Field(name, declared, required, pattern=_NO_NUMBER if dialect == "sqlite" else None)
    if isinstance(type_, sql.JSON) and pt.is_nested(declared):
        return Field(name, declared, required)
    is_text = isinstance(type_, sql.String) and not isinstance(type_, sql.Enum)
    return Field(name, declared, required) if is_text and pt.is_nested(declared) else None


def number_of(name: str, type_: Any, declared: pa.DataType, *, required: bool) -> Field | None:
    """The field for a NUMERIC without digits, which takes any number of digits. None for another column."""
    is_open = isinstance(type_, sql.Numeric) and not isinstance(type_, sql.Float) and type_.precision is None
    return Field(name, declared, required) if is_open and pt.is_decimal128(declared) else None


def _plain(type_: Any, dialect: str) -> pa.DataType:
    loose = dialect in ("sqlite", "yql")
    kinds: tuple[tuple[type, pa.DataType], ...] = (
        (sql.Boolean, pa.bool_()),
        (sql.SmallInteger, pa.int64() if loose else pa.int16()),
        (sql.BigInteger, pa.int64()),
        (sql.Integer, pa.int64() if loose else pa.int32()),
        (sql.LargeBinary, pa.binary()),
        (sql.Date, pa.date32()),
    )
    for kind, arrow in kinds:
        if isinstance(type_, kind):
            return arrow
    if isinstance(type_, sql.Uuid) and dialect == "postgresql":
        return pa.uuid()
    if isinstance(type_, sql.Float) or type(type_).__name__ in ("REAL", "DOUBLE", "DOUBLE_PRECISION", "FLOAT"):
        single = type(type_).__name__ == "REAL" or (isinstance(type_, mysql.FLOAT))
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
    if kind in _MYSQL_BLOBS:
        return Field(name, pa.binary(), required)
    if kind == "SET" or (kind in ("FLOAT", "DOUBLE") and type_.scale is not None):
        raise Unsupported(f"records cannot become {type_!r} exactly: MySQL puts it in order, or rounds it")
    if kind in ("CHAR", "NCHAR"):
        return Field(name, pa.string(), required, longest=type_.length, pattern=_NO_BLANK_AT_THE_END)
    if kind == "DATE":
        return Field(name, pa.date32(), required, bounds=_MYSQL_DATE)
    if kind in ("DATETIME", "TIMESTAMP"):
        bounds = tuple(each * _DAY * _MICROSECONDS for each in (_MYSQL_DATE[0], _MYSQL_DATE[1] + 1))
        if kind == "TIMESTAMP":
            bounds = tuple(each * _MICROSECONDS for each in _MYSQL_TIMESTAMP)
        digits = type_.fsp or 0
        zone = "UTC" if kind == "TIMESTAMP" else None
        return Field(
            name, pa.timestamp("us", tz=zone), required, bounds=(bounds[0], bounds[1] - 1), digits=digits
        )  # fmt: skip
    return None


def column_type(type_: pa.DataType, dialect: str, name: str) -> sql.TypeEngine[Any]:
    """The type of a column that landonce creates: `field_of` gives the same Arrow type back."""
    if dialect == "sqlite" and pt.is_decimal(type_):
        raise _not_here(name, "SQLite has no exact decimals; declare it as STRING or DOUBLE")
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
    if pt.is_timestamp(type_):
        return _timestamp(type_, name)
    if pt.is_decimal128(type_):
        return sql.Numeric(type_.precision, type_.scale)
    if is_uuid(type_) and dialect == "postgresql":
        return postgresql.UUID(as_uuid=False)
    if pt.is_nested(type_) and dialect != "yql":
        return sql.JSON().with_variant(postgresql.JSONB(), "postgresql")
    raise _not_here(
        name, f"{spelled(type_)} is no type of a column here; `select` parts of it, or make text of it with to_json"
    )


def _timestamp(type_: pa.TimestampType, name: str) -> sql.TypeEngine[Any]:
    if type_.unit == "ns":
        raise _not_here(name, "times have microseconds here; declare TIMESTAMP or TIMESTAMP(3)")
    return sql.DateTime(timezone=type_.tz is not None).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def key_type(dialect: str, collation: str = "utf8mb4_bin") -> sql.TypeEngine[Any]:
    """Text that can be part of a key and distinguishes upper and lower case."""
    if dialect in ("mysql", "mariadb"):
        return mysql.VARCHAR(255, charset="utf8mb4", collation=collation)
    return sql.Text()


def _not_here(name: str, why: str) -> ConfigError:
    return ConfigError(f"sink.sql.create: column {name!r}: {why}.")


def documents_as_text(rows: pa.Table) -> pa.Table:
    """The rows with nested values as JSON. Value by value: Arrow has no writer for it."""
    for at, each in enumerate(rows.schema):
        if pt.is_nested(each.type):
            texts = [_json_text(value, each.type) for value in rows.column(at).to_pylist()]
            rows = rows.set_column(at, each.name, pa.array(texts, pa.string()))
    return rows


def as_jsonb(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """JSON as PostgreSQL's binary JSONB: the version 1, then the text."""
    return pc.binary_join_element_wise("\x01", column, "")


def _json_text(value: Any, type_: pa.DataType) -> str | None:
    if value is None:
        return None
    return json.dumps(_json_value(value, type_), ensure_ascii=False, separators=(",", ":"))


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
