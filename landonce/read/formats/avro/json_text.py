"""Decoded values as JSON text, for columns that hold it. One value at a time: this is for what no other column type holds.

Bytes are base64, times are ISO 8601, decimals are numbers with all their digits: as landonce reads them from JSON.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.types as pt


def json_texts(array: pa.Array) -> list[str | None]:
    """The text of each value; None for a null, and for a value that JSON cannot hold, such as NaN or a year beyond 9999."""
    plain = _countable(array.type)
    return [_text(each, array.type) for each in (array if plain == array.type else array.cast(plain))]


def _countable(type_: pa.DataType) -> pa.DataType:
    """The type with integers for times that Python cannot hold: it has microseconds."""
    if pt.is_timestamp(type_) and type_.unit == "ns":
        return pa.int64()
    if pt.is_list(type_):
        return pa.list_(type_.value_field.with_type(_countable(type_.value_type)))
    if pt.is_map(type_):
        return pa.map_(type_.key_type, type_.item_field.with_type(_countable(type_.item_type)))
    if pt.is_struct(type_):
        return pa.struct([each.with_type(_countable(each.type)) for each in type_])
    return type_


def _text(scalar: pa.Scalar, type_: pa.DataType) -> str | None:
    try:
        value = scalar.as_py()
        return None if value is None else _written(value, type_)
    except (ValueError, OverflowError):
        return None


def _written(value: Any, type_: pa.DataType) -> str:
    if value is None:
        return "null"
    if pt.is_struct(type_):
        return _object((each.name, _written(value[each.name], each.type)) for each in type_)
    if pt.is_map(type_):
        return _object((key, _written(each, type_.item_type)) for key, each in value)
    if pt.is_list(type_):
        return "[" + ",".join(_written(each, type_.value_type) for each in value) + "]"
    if pt.is_floating(type_) and not math.isfinite(value):
        raise ValueError
    if pt.is_boolean(type_) or pt.is_integer(type_) or pt.is_floating(type_) or pt.is_string(type_):
        return json.dumps(value, ensure_ascii=False)
    if pt.is_decimal(type_):
        return format(value, "f")
    if pt.is_binary(type_) or pt.is_fixed_size_binary(type_):
        return json.dumps(b64encode(value).decode())
    if pt.is_timestamp(type_) and type_.unit == "ns":
        moment = datetime.fromtimestamp(value // 10**9, timezone.utc).replace(tzinfo=None)
        return f'"{moment.isoformat()}.{value % 10**9:09}{"Z" if type_.tz else ""}"'
    if pt.is_temporal(type_):
        return json.dumps(value.isoformat().replace("+00:00", "Z"))
    return json.dumps(str(value))  # a UUID


def _object(entries: Any) -> str:
    return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in entries) + "}"
