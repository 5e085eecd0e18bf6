"""Nested values as JSON, for columns that hold documents or text. Value by value: Arrow has no writer for it."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt


def as_text(rows: pa.Table) -> pa.Table:
    """The rows, with JSON in place of what is nested."""
    for at, each in enumerate(rows.schema):
        if pt.is_nested(each.type):
            told = [_text(value, each.type) for value in rows.column(at).to_pylist()]
            rows = rows.set_column(at, each.name, pa.array(told, pa.string()))
    return rows


def versioned(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as PostgreSQL takes JSONB in its binary form: a version, which is one, and the text."""
    return pc.binary_join_element_wise("\x01", column, "")


def _text(value: Any, type_: pa.DataType) -> str | None:
    if value is None:
        return None
    return json.dumps(_plain(value, type_), ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any, type_: pa.DataType) -> Any:
    """In values that JSON has. What it has not is text: times as ISO 8601 has them, bytes in base64, decimals by their digits."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if pt.is_struct(type_):
        return {child.name: _plain(value[child.name], child.type) for child in type_}
    if pt.is_map(type_):
        return {str(_plain(key, type_.key_type)): _plain(each, type_.item_type) for key, each in value}
    if pt.is_list(type_):
        return [_plain(each, type_.value_type) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if pt.is_temporal(type_) else str(value)
