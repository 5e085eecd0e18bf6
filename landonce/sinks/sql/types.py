"""Which SQL type holds which Arrow type exactly, the columns of a table that landonce creates, and nested values as JSON. Pure.

    SQL                                     Arrow                                       of which databases
    ──────────────────────────────────────  ──────────────────────────────────────────  ─────────────────────────────
    BOOLEAN (MySQL: TINYINT(1))             bool                                        all
    SMALLINT, INTEGER, BIGINT               int16, int32, int64 (SQLite, YDB: int64)    all
    TINYINT, … UNSIGNED                     int8, uint8 … uint64                        MySQL
    REAL, DOUBLE PRECISION                  float, double (SQLite, YDB: double)         all
    NUMERIC(p, s)                           decimal128, up to 38 digits                 all (SQLite: up to 15)
    NUMERIC, or with more digits            JSON text of a number; decimal128, where    PostgreSQL, MySQL
                                            NUMERIC is declared as DECIMAL(p, s)
    TEXT, VARCHAR(n)                        string, of at most n characters             all
    BYTEA, BLOB                             binary (base64 in JSON)                     all
    BINARY(n), VARBINARY(n)                 bytes of exactly, of at most n              MySQL
    YEAR                                    int16, 1901 to 2155                         MySQL
    DATE, TIMESTAMP, TIMESTAMPTZ            date32, microseconds, the latter in UTC     all
    TIME                                    microseconds since midnight (MySQL: where   all but YDB
                                            it is declared, else text)
    UUID                                    uuid                                        PostgreSQL, MariaDB, SQLite
    CHAR(36), where landonce made it        uuid                                        MySQL
    ENUM                                    string of a closed set                      PostgreSQL, MySQL
    INET, CIDR, MACADDR, INET4, INET6       string of a pattern                         PostgreSQL, MariaDB
    INTERVAL, TIMETZ, BIT, VARBIT, XML      string                                      PostgreSQL
    INT4RANGE, … TSTZRANGE                  string                                      PostgreSQL
    BIT(n), SET                             uint64, string of a pattern                 MySQL
    arrays of most of these                 list                                        PostgreSQL
    JSON, JSONB, TEXT                       any nested type, as JSON                    all but YDB, where it is declared
    JSON, JSONB; a column of JSON text      any value, as its JSON text                 all but YDB

A column of another type is left to its default or to NULL, and a record with a value for it is a dead letter; it is refused if it is
required or `source.kafka.schema` names it. Values are never approximated.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from sqlalchemy import Column, Dialect, Index, MetaData, Table
from sqlalchemy import types as sql
from sqlalchemy.dialects import mysql, postgresql

from landonce.errors import ConfigError
from landonce.ledger.names import quoted
from landonce.ledger.tables import ENGINE
from landonce.read.schema.ddl import UnfitFields
from landonce.read.schema.fields import (
    JSON,
    KEY,
    VALUE,
    Digits,
    Field,
    Schema,
    Unquoted,
    UnsupportedType,
    is_uuid,
    json_note,
    landed,
    spelled,
    text_type,
    with_note,
    with_text,
)
from landonce.read.schema.texts import UNIT_DIGITS
from landonce.sinks.contract import COORDINATES
from landonce.sinks.sql.forms import ANY_NUMBER, RANGES, Parsed, address_field, kind_of
from landonce.sinks.sql.sink import SqlSink, as_name

_LONGEST_PART = 40
_LONGEST_PATTERN = 1000
"""As often RE2 repeats a part of a pattern."""
_NO_DECLARATION = r"(?s)(?:[^<].*|<[^?].*)?"
"""PostgreSQL changes the declaration of XML."""
_CUT_SHORT = ('"char"', "name")
"""Text of one byte, and of 63 bytes: SQLAlchemy takes them for text of any length."""
_SYSTEM_COLUMNS = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")
_DAY = 86_400
_MICROSECONDS = 10**6
_MOST_FIXED = 255
"""Bytes of MySQL's BINARY."""
UUID_NOTE = "landonce: UUID"
"""The comment of a column for UUIDs that landonce makes in MySQL, which has no type for them."""
_POSTGRES_DATE = (-2_440_588, 2_145_042_905)
"""From the 24th of November 4714 BC on, in days."""
_POSTGRES_MOMENT = (_POSTGRES_DATE[0] * _DAY * _MICROSECONDS, 2**63 - 1)
_PYTHONS_DAYS = (-719_162, 2_932_897)
"""The years 1 to 9999."""
_FINITE = ("sqlite", "mysql", "mariadb")
"""SQLite turns NaN into NULL, and MySQL has neither NaN nor infinity."""
_NO_NUMBER = r"(?s)[\s\v]*(?:[^-+.0-9\s\v].*)?"
"""SQLite turns text in a JSON column into a number if it looks like one: `007` would become 7."""
_NO_BLANK_AT_THE_END = r"(?s)(?:.*[^ ])?"
"""MySQL's CHAR drops trailing blanks."""
_MYSQL_DATE = (-354_285, 2_932_896)
"""The years 1000 to 9999, in days."""
_MYSQL_TIMESTAMP = (1, 2**31 - 1)
_MYSQL_TIME = r"-?(?:[0-9]{2}|[1-7][0-9]{2}|8[0-2][0-9]|83[0-8]):[0-5][0-9]"
_MYSQL_YEAR = (1901, 2155)
"""MySQL takes 1 to 99 for years of this century and the last."""
_MOST_DIGITS = 38
"""Of a decimal that Arrow, Spark and all formats have. A number with more digits is carried as text."""
_SQLITE_DIGITS = 15
"""SQLite keeps a decimal as an integer or a double, from which so many digits come back."""
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


class _Named(sql.UserDefinedType[str]):
    """A type that SQLAlchemy does not have, by its name."""

    cache_ok = True
    name: str

    def get_col_spec(self, **_: Any) -> str:
        return self.name


class JsonText(_Named):
    """A column of JSON text in SQLite. In a column of the type JSON, SQLite would make `1.10` the number 1.1; a type whose name holds
    TEXT keeps text as it is."""

    name = "JSON_TEXT"


class UuidText(_Named):
    """A column of UUIDs in SQLite, as text: no UUID looks like a number, so SQLite keeps it as it is."""

    name = "UUID"


class XmlText(_Named):
    """PostgreSQL's XML."""

    name = "xml"


def column_field(
    sink: SqlSink, column: ReflectedColumn, declared: Field | None, *, selected: bool = False, chosen: bool = True
) -> Field | str | None:
    """The field that fills a column. None: the column is not written. A text: it has to be written, and why it cannot be.

    A column with a default that records need not fill is left to the database, unless it is declared. `selected`: expressions make
    the columns, and JSON documents are text. `chosen`: the user said which columns are written. Otherwise all are written, and a value
    for one of a type that no value fits is a dead letter.
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
    if column.get("comment") == UUID_NOTE and isinstance(kind, sql.CHAR):
        return Field(name, pa.uuid(), required)
    if declared is not None:
        held = declared.type
    elif selected:
        held = pa.string()
    else:  # any JSON value; or landonce has made the column for JSON text
        is_json = isinstance(kind, (sql.JSON, JsonText)) or with_note(pa.string(), column.get("comment")) == JSON
        held = JSON if is_json else None
    if isinstance(kind, mysql.TIME) and name in sink.key:
        held = pa.time64("us")
    if held is not None and (found := document_of(name, kind, held, sink.dialect, required=required)) is not None:
        return found
    try:
        if sink.dialect == "postgresql" and str(column.get("written")).removesuffix("[]") in _CUT_SHORT:
            raise UnsupportedType(f"PostgreSQL's {column['written']} does not hold every text")
        made = field_of(name, kind, sink.dialect, required=required)
        if name in sink.key and (made.unquoted or isinstance(made.judge, Parsed) or isinstance(kind, mysql.SET)):
            digits = "; declare it as DECIMAL(p, s) in `source.kafka.schema`" if _is_open_number(kind) else ""
            raise UnsupportedType(f"several texts are one value of its type, so it cannot be part of the key{digits}")
        return made
    except UnsupportedType as reason:
        if required or declared is not None:
            return f"column {name}: {reason}"
        return (
            None if chosen or isinstance(kind, sql.JSON) else Field.unfilled(name, column.get("written") or f"{kind!r}")
        )


def _is_open_number(type_: Any) -> bool:
    """PostgreSQL's NUMERIC without digits: a declaration gives it some."""
    return isinstance(type_, sql.Numeric) and not isinstance(type_, sql.Float) and type_.precision is None


def is_wide_number(type_: Any) -> bool:
    """A NUMERIC of PostgreSQL or MySQL that holds what `decimal128` does not: any digits, more than 38, or digits far from the point."""
    if not isinstance(type_, sql.Numeric) or isinstance(type_, sql.Float):
        return False
    digits, scale = type_.precision, type_.scale or 0
    return digits is None or digits > _MOST_DIGITS or not 0 <= scale <= digits


def _wide_number(name: str, type_: Any, required: bool) -> Field:
    digits, scale = type_.precision, type_.scale or 0
    if digits is not None and not 0 <= scale <= digits:
        raise UnsupportedType(f"records cannot become {type_!r} exactly: its digits are far from the point")
    judge = ANY_NUMBER if digits is None else Digits(digits - scale, scale)
    called = "NUMERIC" if digits is None else f"NUMERIC({digits}, {scale})"
    return Field(name, JSON, required, judge=judge, called=called)


def document_of(name: str, type_: Any, declared: pa.DataType, dialect: str = "", *, required: bool) -> Field | None:
    """The field for a column that takes what is declared: JSON documents, text that holds one, PostgreSQL's NUMERIC without digits, and
    MySQL's TIME as a time of day. None for another column."""
    if isinstance(type_, mysql.TIME) and pt.is_time(declared):
        return Field(name, pa.time64("us"), required, digits=type_.fsp or 0)
    if isinstance(type_, JsonText):
        return Field(name, declared, required) if pt.is_string(landed(declared)) else None
    if isinstance(type_, sql.JSON) and pt.is_string(landed(declared)):
        return Field(name, declared, required, pattern=_NO_NUMBER if dialect == "sqlite" else None)
    is_text = isinstance(type_, sql.String) and not isinstance(type_, sql.Enum)
    if is_text and declared == JSON:
        return Field(name, declared, required, longest=type_.length)
    fits = pt.is_nested(declared) and landed(declared) == declared and (is_text or isinstance(type_, sql.JSON))
    fits = fits or (dialect == "postgresql" and _is_open_number(type_) and pt.is_decimal128(declared))
    return replace(_within_python(name, declared), required=required) if fits else None


def _within_python(name: str, type_: pa.DataType) -> Field:
    """The field of a document, with the limits of its dates and times: `documents_as_text` writes them as Python does, which ends with
    the year 9999, and has no text for the smallest number of nanoseconds."""
    inside = type_
    while pt.is_list(inside):
        inside = inside.value_type
    if pt.is_struct(inside) or pt.is_map(inside):
        of_map = pt.is_map(inside)
        named = (
            [(KEY, inside.key_type), (VALUE, inside.item_type)]
            if of_map
            else [(each.name, each.type) for each in inside]
        )
        parts = tuple(_within_python(*each) for each in named)
        limited = any(each.inner or each.bounds is not None for each in parts)
        return Field(name, type_, inner=parts if limited else ())
    if not (pt.is_date32(inside) or pt.is_timestamp(inside)):
        return Field(name, type_)
    per_day = 1 if pt.is_date32(inside) else _DAY * 10 ** UNIT_DIGITS[inside.unit]
    first, end = (day * per_day for day in _PYTHONS_DAYS)
    return Field(name, type_, bounds=(max(first, 1 - 2**63), min(end, 2**63) - 1))


def field_of(name: str, type_: Any, dialect: str, *, required: bool) -> Field:
    """The field that a record must hold for a column of this type."""
    if dialect in ("mysql", "mariadb") and (found := _of_mysql(name, type_, required)) is not None:
        return found
    if isinstance(type_, postgresql.DOMAIN):
        return field_of(name, type_.data_type, dialect, required=required or bool(type_.not_null))
    if isinstance(type_, postgresql.ARRAY):
        return _array(name, type_, required)
    if kind := kind_of(type_):
        return address_field(name, kind, required=required)
    if dialect == "postgresql" and (found := _of_postgres(name, type_, required)) is not None:
        return found
    if isinstance(type_, sql.Enum):
        return Field(name, pa.string(), required, allowed=frozenset(type_.enums))
    if isinstance(type_, sql.String):
        return Field(name, pa.string(), required, longest=type_.length, without_nul=dialect == "postgresql")
    if isinstance(type_, sql.DateTime):
        moment = pa.timestamp("us", tz="UTC" if getattr(type_, "timezone", False) else None)
        if dialect != "postgresql":  # the drivers of SQLite and YDB take Python's times
            return replace(_within_python(name, moment), required=required)
        return Field(name, moment, required, bounds=_POSTGRES_MOMENT, digits=getattr(type_, "precision", None))
    if isinstance(type_, sql.Time) and dialect != "yql" and not getattr(type_, "timezone", False):
        return Field(name, pa.time64("us"), required, digits=getattr(type_, "precision", None))
    plain = _plain(type_, dialect)
    bounds = _POSTGRES_DATE if dialect == "postgresql" else _within_python(name, plain).bounds
    bounds = bounds if pt.is_date32(plain) else None
    return Field(name, plain, required, bounds=bounds, finite=pt.is_floating(plain) and dialect in _FINITE)


def _array(name: str, type_: Any, required: bool) -> Field:
    """PostgreSQL does not say how many dimensions an array has: one is written. Its elements may be NULL."""
    item = type_.item_type
    if isinstance(item, (sql.CHAR, postgresql.DOMAIN)):
        raise UnsupportedType(f"records cannot become an array of {item!r} exactly".replace("()", ""))
    inner = Field(name, JSON) if isinstance(item, sql.JSON) else field_of(name, item, "postgresql", required=False)
    if pt.is_date32(inner.type) or pt.is_timestamp(inner.type):  # the driver of the audit knows Python's times only
        first, end = (day * (1 if pt.is_date32(inner.type) else _DAY * _MICROSECONDS) for day in _PYTHONS_DAYS)
        inner = replace(inner, bounds=(first, end - 1))
    return replace(inner, type=pa.list_(inner.type), required=required)


def _plain(type_: Any, dialect: str) -> pa.DataType:
    loose = dialect in ("sqlite", "yql")
    for kind, arrow, loosely in _PLAIN:
        if isinstance(type_, kind):
            return loosely if loose else arrow
    if isinstance(type_, (sql.Uuid, UuidText)) and dialect != "yql":
        return pa.uuid()
    spelling = type(type_).__name__
    if isinstance(type_, sql.Float) or spelling in ("REAL", "DOUBLE", "DOUBLE_PRECISION", "FLOAT"):
        single = spelling == "REAL" or isinstance(type_, mysql.FLOAT)
        return pa.float32() if single and not loose else pa.float64()
    most = _SQLITE_DIGITS if dialect == "sqlite" else _MOST_DIGITS
    if isinstance(type_, sql.Numeric) and type_.precision and type_.precision <= most:
        return pa.decimal128(type_.precision, type_.scale or 0)
    raise UnsupportedType(f"records cannot become {type_!r} exactly".replace("()", ""))


def _of_postgres(name: str, type_: Any, required: bool) -> Field | None:
    """The field of a type that only PostgreSQL has."""
    if is_wide_number(type_):
        return _wide_number(name, type_, required)
    if isinstance(type_, XmlText):
        return Field(name, pa.string(), required, pattern=_NO_DECLARATION, called="XML", without_nul=True)
    if isinstance(type_, postgresql.BIT):
        return _bits(name, type_, required)
    kind = own_form(type_)
    if not kind or kind in ("jsonb", "array"):
        return None
    digits = getattr(type_, "precision", None)
    pattern = None if digits is None else rf"[^.]*(?:\.[0-9]{{0,{digits}}}0*(?:[^0-9.].*)?)?"
    called = kind.upper() if digits is None else f"{kind.upper()}({digits})"
    return Field(name, pa.string(), required, pattern=pattern, called=called, judge=Parsed(kind))


def _bits(name: str, type_: postgresql.BIT, required: bool) -> Field:
    if type_.varying:
        return Field(name, pa.string(), required, pattern="[01]*", called="VARBIT", longest=type_.length)
    length = type_.length or 1
    if length > _LONGEST_PATTERN:
        raise UnsupportedType(f"records cannot become {type_!r} exactly: it has more than {_LONGEST_PATTERN} bits")
    return Field(name, pa.string(), required, pattern=f"[01]{{{length}}}", called=f"BIT({length})")


def _of_mysql(name: str, type_: Any, required: bool) -> Field | None:
    kind = type(type_).__name__
    if is_wide_number(type_):
        return _wide_number(name, type_, required)
    if kind == "BIT":
        bits = type_.length or 1
        return Field(name, pa.uint64(), required, bounds=(0, 2**bits - 1) if bits < 64 else None)
    if kind == "SET":
        member = f"(?:{'|'.join(map(re.escape, type_.values))})"
        return Field(name, pa.string(), required, pattern=f"(?:{member}(?:,{member})*)?", called="SET")
    if kind == "TINYINT" and type_.display_width == 1:
        return Field(name, pa.bool_(), required)
    if kind in _MYSQL_INTEGERS:
        return Field(name, _MYSQL_INTEGERS[kind][bool(type_.unsigned)], required)
    if kind == "MEDIUMINT":
        return Field(name, pa.int32(), required, bounds=(0, 2**24 - 1) if type_.unsigned else (-(2**23), 2**23 - 1))
    if kind == "YEAR":
        return Field(name, pa.int16(), required, bounds=_MYSQL_YEAR)
    if kind in ("TINYBLOB", "MEDIUMBLOB", "LONGBLOB", "VARBINARY"):
        return Field(name, pa.binary(), required)
    if kind == "BINARY":  # MySQL would add zero bytes to a shorter value
        return Field(name, pa.binary(type_.length or 1), required)
    if kind in ("FLOAT", "DOUBLE") and type_.scale is not None:
        raise UnsupportedType(f"records cannot become {type_!r} exactly: MySQL rounds it")
    if kind in ("CHAR", "NCHAR"):
        return Field(name, pa.string(), required, longest=type_.length, pattern=_NO_BLANK_AT_THE_END)
    if kind == "TIME":  # of a day, or a length of time
        seconds = rf"(?::[0-5][0-9](?:\.[0-9]{{0,{type_.fsp or 0}}}0*)?)?"
        called = f"TIME({type_.fsp})" if type_.fsp else "TIME"
        return Field(name, JSON, required, pattern=_MYSQL_TIME + seconds, called=called, judge=Unquoted())
    if kind == "DATE":
        return Field(name, pa.date32(), required, bounds=_MYSQL_DATE)
    if kind == "DATETIME":
        low, end = (day * _DAY * _MICROSECONDS for day in (_MYSQL_DATE[0], _MYSQL_DATE[1] + 1))
        return Field(name, pa.timestamp("us"), required, bounds=(low, end - 1), digits=type_.fsp or 0)
    if kind == "TIMESTAMP":
        low, end = (second * _MICROSECONDS for second in _MYSQL_TIMESTAMP)
        return Field(name, pa.timestamp("us", tz="UTC"), required, bounds=(low, end - 1), digits=type_.fsp or 0)
    return None


def base_of(type_: Any) -> Any:
    """The type behind a domain."""
    while isinstance(type_, postgresql.DOMAIN):
        type_ = type_.data_type
    return type_


def own_form(type_: Any) -> str:
    """How PostgreSQL's COPY takes a column that it takes in a form of its own: `jsonb`, `array`, or a type that is written as text."""
    type_ = base_of(type_)
    if isinstance(type_, postgresql.ARRAY):
        return "array"
    if isinstance(type_, postgresql.JSONB):
        return "jsonb"
    if isinstance(type_, postgresql.INTERVAL):
        return "" if getattr(type_, "fields", None) else "interval"
    if isinstance(type_, postgresql.BIT):
        return "bit"
    if isinstance(type_, sql.Time):
        return "timetz" if getattr(type_, "timezone", False) else ""
    if isinstance(type_, sql.Numeric):
        return "numeric" if is_wide_number(type_) else ""
    name = type(type_).__name__.lower()
    return name if name in RANGES else kind_of(type_)


def element_form(type_: Any) -> str:
    """The form of the elements of an array, if landonce encodes the array; empty if the driver does, or if it is none."""
    array = base_of(type_)
    if not isinstance(array, postgresql.ARRAY):
        return ""
    item = array.item_type
    return own_form(item) or ("json" if isinstance(item, sql.JSON) else "text" if isinstance(item, sql.Enum) else "")


def copied_form(column: ReflectedColumn) -> str:
    """The form of a column, and of an array that landonce encodes also its elements: `array 1186 interval`."""
    inner = element_form(column["type"])
    return f"array {column['element']} {inner}" if inner else own_form(column["type"])


def column_type(type_: pa.DataType, dialect: str) -> sql.TypeEngine[Any]:
    """The type of a column that landonce creates: `column_field` gives the same Arrow type back, where the type itself says how long
    its values are. Raises `UnsupportedType`."""
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
    if pt.is_decimal128(type_) and (dialect != "sqlite" or type_.precision <= _SQLITE_DIGITS):
        return sql.Numeric(type_.precision, type_.scale)
    if pt.is_time(type_) and type_.unit != "ns" and dialect != "yql":
        return sql.Time().with_variant(mysql.TIME(fsp=6), "mysql", "mariadb")
    if is_uuid(type_) and dialect != "yql":
        of_mysql = mysql.CHAR(36, charset="ascii", collation="ascii_bin")
        return UuidText() if dialect == "sqlite" else of_mysql if dialect == "mysql" else sql.UUID(as_uuid=False)
    if pt.is_fixed_size_binary(type_) and not is_uuid(type_):
        sized = dialect in ("mysql", "mariadb") and 0 < type_.byte_width <= _MOST_FIXED
        return sql.BINARY(type_.byte_width) if sized else plain[pa.binary()]
    if type_ == JSON and dialect != "yql":
        own: dict[str, sql.TypeEngine[Any]] = {"postgresql": postgresql.JSON(), "sqlite": JsonText()}
        return own.get(dialect, plain[pa.string()])
    if pt.is_nested(type_) and landed(type_) == type_ and dialect != "yql":
        return sql.JSON().with_variant(postgresql.JSONB(), "postgresql")
    if landed(type_) != type_ and dialect != "yql":
        raise UnsupportedType("a document cannot hold JSON texts; the whole column can be JSON")
    if pt.is_timestamp(type_):
        raise UnsupportedType("times have microseconds here; TIMESTAMP(6) is possible")
    if pt.is_decimal(type_):
        most = _SQLITE_DIGITS if dialect == "sqlite" else _MOST_DIGITS
        raise UnsupportedType(f"exact decimals have at most {most} digits here")
    raise UnsupportedType(f"there is no type for {spelled(type_)} here")


def column_or_text(type_: pa.DataType, dialect: str) -> pa.DataType:
    """The type itself, or that of the text which holds its values where there is no column for it."""
    try:
        column_type(type_, dialect)
        return type_
    except UnsupportedType:
        return text_type(type_)


def note_of(sink: SqlSink, type_: pa.DataType, server: str) -> str:
    """The comment of a column whose type does not say all. Empty if it does."""
    return "" if not sink.notes else UUID_NOTE if is_uuid(type_) and server == "mysql" else json_note(type_)


def coordinate_types(dialect: str) -> dict[str, sql.TypeEngine[Any]]:
    """The types of the coordinate columns that landonce creates."""
    return dict(zip(COORDINATES, (_key_type(dialect), sql.Integer(), sql.BigInteger()), strict=True))


def _key_type(dialect: str, collation: str = "utf8mb4_bin") -> sql.TypeEngine[Any]:
    """Text that can be part of a key and distinguishes upper and lower case."""
    if dialect in ("mysql", "mariadb"):
        return mysql.VARCHAR(255, charset="utf8mb4", collation=collation)
    return sql.Text()


def index_name(table: str, suffix: str) -> str:
    """A name for an index that every database takes whole: tables whose long names begin alike have different ones."""
    short = table.encode()[:_LONGEST_PART].decode(errors="ignore")
    mark = "" if short == table else f"_{hashlib.sha256(table.encode()).hexdigest()[:8]}"
    return f"{short}{mark}_{suffix}"


def name_fault(name: str, dialect: str, what: str) -> str:
    """Why the database or SQLAlchemy would refuse a name, or change it (PostgreSQL cuts long ones silently); empty if neither does."""
    if not name or "\0" in name:
        return "it is empty, or holds a zero byte"
    if dialect == "postgresql" and len(name.encode()) > 63:
        return "PostgreSQL's names have at most 63 bytes"
    if dialect == "postgresql" and what == "column" and name in _SYSTEM_COLUMNS:
        return "every table of PostgreSQL has a hidden column of that name"
    if dialect in ("mysql", "mariadb") and len(name) > 64:
        return "MySQL's names have at most 64 characters"
    if dialect in ("mysql", "mariadb") and (name.endswith(" ") or max(name) > "\uffff" or "\n" in name):
        return "MySQL's names do not end with a blank, and hold no line break and no character beyond U+FFFF"
    if dialect == "sqlite" and what == "table" and name.lower().startswith("sqlite_"):
        return "SQLite keeps names that begin with sqlite_ for itself"
    return "SQLAlchemy takes names of at most 255 characters" if len(name) > 255 else ""


def new_table(sink: SqlSink, declared: Schema, dialect: Dialect) -> Table:
    """The table that landonce creates. The key is the primary key. Without a key the coordinates are indexed."""
    for name, what in ((sink.name, "table"), *((each.name, "column") for each in declared.fields)):
        if fault := name_fault(name, sink.dialect, what):
            raise ConfigError(f"sink.sql.create: {name!r} cannot be the name of a {what}: {fault}.")
    unknown = [name for name in sink.key if name not in declared.by_name()]
    if unknown:
        raise ConfigError(f"sink.sql.key: the records have no field {', '.join(unknown)}.")
    server = server_of(sink.dialect, dialect)
    kinds = _column_types(declared, sink, server)
    keyed = sink.dialect == "yql" and not sink.key  # every table of YDB has a primary key
    columns = [
        Column(name, kind, nullable=False, primary_key=keyed, autoincrement=False)
        for name, kind in coordinate_types(sink.dialect).items()
    ]
    for each in declared.fields:
        named = each.name in sink.key
        columns.append(
            Column(
                as_name(each.name, sink.dialect),
                kinds[each.name],
                primary_key=named,
                nullable=not (each.required or named),
                autoincrement=False,
                comment=note_of(sink, each.type, server) or None,
            )
        )
    charset: dict[str, Any] = {"mysql_charset": "utf8mb4", "mariadb_charset": "utf8mb4"}
    table = Table(sink.name, MetaData(), *columns, schema=sink.schema, **ENGINE, **charset)
    if not sink.key and not keyed:
        brin = sink.dialect == "postgresql"  # a unique index would cost twice as much as COPY itself
        indexed = [table.c[name] for name in COORDINATES]
        Index(index_name(sink.name, "coordinates"), *indexed, unique=not brin, postgresql_using="brin")
    return table


def _column_types(declared: Schema, sink: SqlSink, server: str) -> dict[str, sql.TypeEngine[Any]]:
    """By name. Raises `UnfitFields` for those that have none."""
    # In MySQL's other collations `a` and `a ` are one key.
    padless = "utf8mb4_nopad_bin" if server == "mariadb" else "utf8mb4_0900_bin"
    kinds: dict[str, sql.TypeEngine[Any]] = {}
    faults = []
    for each in declared.fields:
        named = each.name in sink.key
        if named and each.type == JSON and sink.dialect != "sqlite":
            raise ConfigError(
                f"sink.sql.key: {each.name!r} would be a column of JSON text, which cannot be a key here."
            )
        try:
            is_key_text = named and pt.is_string(each.type)
            kinds[each.name] = _key_type(sink.dialect, padless) if is_key_text else column_type(each.type, server)
        except UnsupportedType as why:
            faults.append((each.name, str(why)))
    if faults:
        raise UnfitFields(faults, with_text(declared, {name for name, _ in faults}))
    return kinds


def server_of(name: str, dialect: Dialect) -> str:
    """A MariaDB may be reached under MySQL's name. What it is, only its server says."""
    return "mariadb" if getattr(dialect, "is_mariadb", False) else name


def add_column(sink: SqlSink, name: str, type_: sql.TypeEngine[Any], dialect: Dialect) -> str:
    """`ALTER TABLE … ADD COLUMN …`, as a person would run it."""
    spelling = dialect.type_compiler_instance.process(type_.dialect_impl(dialect))
    return f"ALTER TABLE {quoted(dialect, *sink.table.split('.'))} ADD COLUMN {quoted(dialect, name)} {spelling}"


def documents_as_text(rows: pa.Table, arrays: Collection[str] = ()) -> pa.Table:
    """The rows with nested values as JSON, but for columns that are arrays. Value by value: Arrow has no writer for it."""
    for at, each in enumerate(rows.schema):
        if pt.is_nested(each.type) and each.name not in arrays:
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
        keys = (_json_value(key, type_.key_type) for key, _ in value)
        texts = (key if isinstance(key, str) else json.dumps(key) for key in keys)  # `true`, and not `True`
        return {text: _json_value(each, type_.item_type) for text, (_, each) in zip(texts, value, strict=True)}
    if pt.is_list(type_):
        return [_json_value(each, type_.value_type) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if pt.is_temporal(type_) else str(value)
