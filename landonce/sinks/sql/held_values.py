"""Values of an SQL database in the form in which they compare with records. Pure.

Databases return times as text or numbers, booleans as numbers, UUIDs as objects, and documents in a spelling of their own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from sqlalchemy import types as sql

from landonce.read.schema.fields import is_uuid
from landonce.sinks.audit import each_text


def comparable(expected: pa.Array, kind: Any, dialect: str) -> pa.Array:
    """What a column of this kind should hold, as `as_array` returns it."""
    if pt.is_nested(expected.type):
        documents = [None if each is None else _document(each, expected.type) for each in expected.to_pylist()]
        return pa.array([None if each is None else _canonical(each) for each in documents], pa.string())
    if pt.is_string(expected.type) and isinstance(kind, sql.JSON):
        return each_text(expected, _canonical_text)
    if pt.is_string(expected.type) and _is_padded(kind, dialect):
        return each_text(expected, lambda each: each.rstrip(" "))
    return expected.storage if is_uuid(expected.type) else expected


def as_array(values: Sequence[Any], type_: pa.DataType, kind: Any, dialect: str) -> pa.Array:
    """What the database's driver returned for a column that was written in this type."""
    if pt.is_nested(type_) or (pt.is_string(type_) and isinstance(kind, sql.JSON)):
        return _each(values, _canonical_text, pa.string())
    if pt.is_string(type_) and _is_padded(kind, dialect):
        return _each(values, lambda each: str(each).rstrip(" "), pa.string())
    if pt.is_boolean(type_):
        return _each(values, bool, type_)
    if is_uuid(type_):
        return _each(values, lambda each: UUID(str(each)).bytes, pa.binary())
    return _moments(values, type_) if pt.is_temporal(type_) else _loose(values, type_)


def _each(values: Sequence[Any], convert: Callable[[Any], Any], type_: pa.DataType) -> pa.Array:
    return pa.array([None if each is None else convert(each) for each in values], type_)


def _moments(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Numbers of microseconds or days, text (of SQLite), or Python's own."""
    some = next((each for each in values if each is not None), None)
    if isinstance(some, int) and pt.is_timestamp(type_):
        return pa.array(values, pa.int64()).cast(pa.timestamp("us"))
    if isinstance(some, str):
        return pa.array(values, pa.string()).cast(pa.date32() if pt.is_date32(type_) else pa.timestamp("us"))
    return pa.array(values, pa.date32() if pt.is_date32(type_) else pa.timestamp("us"))


def _loose(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """In the type that was written, or as text if a value was changed to something that type cannot hold."""
    try:
        return pa.array(values, type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return _each(values, str, pa.string())


def _is_padded(kind: Any, dialect: str) -> bool:
    """PostgreSQL pads a CHAR with blanks, which are ignored."""
    return dialect == "postgresql" and isinstance(kind, sql.CHAR)


def _canonical_text(text: Any) -> str:
    """A document in one canonical spelling; anything else unchanged."""
    try:
        return _canonical(json.loads(text)) if isinstance(text, (str, bytes)) else _canonical(text)
    except ValueError:
        return str(text)


def _canonical(value: Any) -> str:
    return json.dumps(_numbers(value), sort_keys=True, ensure_ascii=False)


def _numbers(value: Any) -> Any:
    """1 and 1.0 are the same number in JSON."""
    if isinstance(value, dict):
        return {key: _numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _document(value: Any, type_: pa.DataType) -> Any:
    """A nested value as JSON has it: times as ISO 8601, bytes in base64, decimals by their digits."""
    if value is None:
        return None
    if pt.is_struct(type_):
        return {each.name: _document(value[each.name], each.type) for each in type_}
    if pt.is_map(type_):
        return {str(_document(key, type_.key_type)): _document(each, type_.item_type) for key, each in value}
    if pt.is_list(type_):
        return [_document(each, type_.value_type) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if pt.is_temporal(type_):
        return value.isoformat()
    return value if isinstance(value, (bool, int, float, str)) else str(value)
