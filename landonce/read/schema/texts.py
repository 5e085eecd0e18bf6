"""Values from their text, as JSON and other formats write them, and back; and casts in which a bad value concerns its own row.

The result of a value never depends on its neighbours. Only `json_texts` loops over values: it is for what no other column type holds. There,
bytes are base64, times are ISO 8601, decimals are numbers with all their digits: as landonce reads them from JSON.
"""

from __future__ import annotations

import binascii
import json
import math
from base64 import b64encode
from datetime import datetime, timezone
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.read.schema.fields import is_uuid, with_children

UNIT_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_ZONE = r"(?:Z|[+-]\d\d(?::?\d\d)?)"
_TIME = r"\A\d\d:\d\d(?::\d\d(?:\.\d+)?)?\z"
_UUID = r"\A(?i:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})\z"
_YEARS_IN_DAYS = (-719_162, 2_932_897)
"""The years 1 to 9999."""
_HEX_OF_UUID = [at for at in range(36) if at not in (8, 13, 18, 23)]
_BASE64 = r"\A(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\z"
_WAYS = 8  # how many pieces a failed cast is cut into
Mask = npt.NDArray[np.bool_]


def is_textual(type_: pa.DataType) -> bool:
    """Whether JSON writes the type only as strings."""
    return bool(
        pt.is_timestamp(type_)
        or pt.is_date32(type_)
        or pt.is_time64(type_)
        or pt.is_binary(type_)
        or pt.is_fixed_size_binary(type_)
        or is_uuid(type_)
    )


def is_key(type_: pa.DataType) -> bool:
    """Whether a map may have keys of this type: JSON writes each of them as a string."""
    number = pt.is_integer(type_) or pt.is_decimal(type_) or pt.is_floating(type_)
    return bool(number or pt.is_string(type_) or pt.is_boolean(type_) or is_textual(type_))


def from_text(text: pa.Array, type_: pa.DataType) -> pa.Array:
    """The column as a type that `is_textual`."""
    if pt.is_timestamp(type_):
        return _timestamps(text, type_)
    if pt.is_time64(type_):  # Arrow cannot read one, so this reads the timestamp that long after the epoch
        clean = pc.if_else(pc.match_substring_regex(text, pattern=_TIME), text, pa.scalar(None, pa.string()))
        moments = pc.binary_join_element_wise("1970-01-01T", clean, "")
        return _timestamps(moments, pa.timestamp(type_.unit)).cast(pa.int64()).cast(type_)
    if is_uuid(type_):
        return _uuids(text)
    if pt.is_binary(type_):
        return _bytes(text)
    if pt.is_fixed_size_binary(type_):
        return fixed(_bytes(text), type_)
    return cast_or_null(text, type_)


def fixed(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Bytes as bytes of a fixed length."""
    fits = pc.equal(pc.binary_length(array), type_.byte_width)
    return pc.if_else(fits, array, pa.scalar(None, array.type)).cast(type_)


def cast_or_null(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """A cast in which a value that fails becomes null and does not fail the others."""
    try:
        return array.cast(type_)
    except pa.ArrowInvalid:
        if len(array) == 1:
            return pa.nulls(1, type_)
    step, pieces = -(-len(array) // _WAYS), []
    for at in range(0, len(array), step):
        piece = array.slice(at, step)
        if pt.is_nested(array.type):  # a copy: a cast reads everything in a map's arrays, beyond a slice, too
            piece = piece.take(pa.array(np.arange(len(piece))))
        pieces.append(cast_or_null(piece, type_))
    return pa.concat_arrays(pieces)


def matching(text: pa.StringArray, pattern: str) -> pa.StringArray:
    """The values that are written like this; null for all others."""
    return pc.if_else(pc.match_substring_regex(text, pattern=pattern), text, pa.scalar(None, pa.string()))


def decimals(text: pa.Array, type_: pa.DataType) -> pa.Array:
    """Digits with an optional point as decimals, without loss; null if the type does not hold them. Arrow lets more digits wrap around."""
    whole, parts = type_.precision - type_.scale, type_.scale
    surplus = rf"(\.[0-9]{{{parts}}})0+\z" if parts else r"()\.0*\z"
    exact = pc.replace_substring_regex(text, pattern=surplus, replacement=r"\1")
    fits = pc.match_substring_regex(exact, pattern=rf"\A[+-]?0*[0-9]{{0,{whole}}}(?:\.[0-9]{{0,{parts}}})?\z")
    return cast_or_null(pc.if_else(fits, exact, pa.scalar(None, pa.string())), type_)


def _timestamps(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """ISO 8601; without a zone it means UTC. Null if it is invalid, or finer than the type's unit.

    Arrow casts text with a zone only to a type with one and text without only to a type without. A topic nearly
    always has one kind, so this tries both on the whole column before it splits the column.
    """
    zoned, bare = pa.timestamp(type_.unit, "UTC"), pa.timestamp(type_.unit)
    for attempt in (zoned, bare):
        try:
            return array.cast(attempt).cast(type_)
        except pa.ArrowInvalid:
            continue
    # Zeros of a fraction beyond the unit: nothing is lost without them, and JavaScript writes .000 on every second.
    digits = UNIT_DIGITS[type_.unit]
    kept, surplus = (rf"\.\d{{{digits}}}", "0+") if digits else ("", r"\.0+")
    pattern = rf"^(.{{19}}{kept}){surplus}({_ZONE}?)$"
    text = pc.replace_substring_regex(array, pattern=pattern, replacement=r"\1\2")
    has_zone = pc.match_substring_regex(text, pattern=rf"^.{{11,}}{_ZONE}$")
    nothing = pa.scalar(None, pa.string())
    with_zone = cast_or_null(pc.if_else(has_zone, text, nothing), zoned)
    without = cast_or_null(pc.if_else(has_zone, nothing, text), bare)
    return pc.coalesce(with_zone.cast(pa.int64()), without.cast(pa.int64())).cast(type_)


def _uuids(text: pa.Array) -> pa.Array:
    fits = pc.fill_null(pc.match_substring_regex(text, pattern=_UUID), False)
    clean = pc.if_else(fits, text, pa.scalar("0" * 8 + "-0000-0000-0000-" + "0" * 12))
    letters = _data(clean).reshape(-1, 36)[:, _HEX_OF_UUID]
    data = pa.py_buffer(binascii.unhexlify(letters.tobytes()))
    storage = pa.Array.from_buffers(pa.binary(16), len(text), [None, data])
    return pa.ExtensionArray.from_storage(pa.uuid(), pc.if_else(fits, storage, pa.scalar(None, pa.binary(16))))


def _bytes(text: pa.Array) -> pa.Array:
    """Base64 with its padding. Decodes all values at once, and removes the bytes of the padding."""
    fits = pc.fill_null(pc.match_substring_regex(text, pattern=_BASE64), False)
    clean = pc.if_else(fits, text, pa.scalar(""))
    padding = pc.count_substring(clean, pattern="=").to_numpy()
    decoded = np.frombuffer(binascii.a2b_base64(_data(clean).tobytes().replace(b"=", b"A")), np.uint8)
    ends = np.cumsum(pc.binary_length(clean).to_numpy(), dtype=np.int64) // 4 * 3
    kept = np.ones(len(decoded), dtype=np.bool_)
    kept[ends[padding > 0] - 1] = False
    kept[ends[padding > 1] - 2] = False
    offsets = np.concatenate(([0], ends - np.cumsum(padding))).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(decoded[kept])]
    values = pa.Array.from_buffers(pa.binary(), len(text), buffers)
    return pc.if_else(fits, values, pa.scalar(None, pa.binary()))


def as_text(array: pa.Array) -> pa.Array:
    """Dates, times and UUIDs as the text that `from_text` reads: ISO 8601, with the digits of the type after the second. Null beyond the
    years 1 to 9999."""
    if is_uuid(array.type):
        storage = array.storage
        digits = np.frombuffer(b"".join(each or bytes(16) for each in storage.to_pylist()).hex().encode(), np.uint8)
        letters = np.full((len(array), 36), ord("-"), np.uint8)
        letters[:, _HEX_OF_UUID] = digits.reshape(-1, 32)
        made = pa.Array.from_buffers(pa.binary(36), len(array), [None, pa.py_buffer(letters)]).cast(pa.binary())
        return pc.if_else(storage.is_valid(), made.cast(pa.string()), pa.scalar(None, pa.string()))
    text = array.cast(pa.string())
    if pt.is_time(array.type):  # a target may have no place for digits that are all zero
        return pc.replace_substring_regex(text, pattern=r"\.0+$", replacement="")
    per_day = 1 if pt.is_date32(array.type) else 86_400 * 10 ** UNIT_DIGITS[array.type.unit]
    count = array.cast(pa.int32() if per_day == 1 else pa.int64()).cast(pa.int64())
    low, high = max(_YEARS_IN_DAYS[0] * per_day, -(2**63)), min(_YEARS_IN_DAYS[1] * per_day, 2**63) - 1
    # Arrow writes the wrong year beyond 32767.
    dated = pc.and_(pc.greater_equal(count, low), pc.less_equal(count, high))
    return pc.replace_substring(pc.if_else(dated, text, pa.scalar(None, pa.string())), pattern=" ", replacement="T")


def _data(text: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The bytes of all strings, one after the other."""
    _, offsets, data = text.buffers()
    first, last = np.frombuffer(offsets, np.int32, len(text) + 1, text.offset * 4)[[0, -1]]
    return np.frombuffer(data, np.uint8)[first:last] if last > first else np.empty(0, np.uint8)


def from_ticks(array: pa.Array, type_: pa.DataType, scale: int) -> pa.Array:
    """Integers of 10**-scale s in the type's own unit; null if that is not a whole number, or too large."""
    per_second = 10**scale
    if pt.is_date32(type_):
        bound, times, over = 2**31 - 1, 1, 86_400 * per_second
    else:
        unit = 10 ** UNIT_DIGITS[type_.unit]
        bound, times, over = 2**63 - 1, max(1, unit // per_second), max(1, per_second // unit)
    ticks = array.fill_null(0).to_numpy()
    whole, rest = np.divmod(ticks, over)
    unfit = (rest != 0) | (whole > bound // times) | (whole < -(bound // times))
    whole = np.where(unfit, 0, whole) * times
    settled = pa.array(whole, mask=mask_of(array.is_null()) | unfit)
    return (settled.cast(pa.int32()) if pt.is_date32(type_) else settled).cast(type_)


def mask_of(mask: pa.Array) -> Mask:
    rows: Mask = mask.to_numpy(zero_copy_only=False)
    return rows


def json_texts(array: pa.Array) -> list[str | None]:
    """The text of each value; None for a null, and for a value that JSON cannot hold, such as NaN or a year beyond 9999."""
    plain = _countable(array.type)
    texts: list[str | None] = []
    for each in array if plain == array.type else array.cast(plain):
        try:
            value = each.as_py()
            texts.append(None if value is None else _written(value, array.type))
        except (ValueError, OverflowError):
            texts.append(None)
    return texts


def _countable(type_: pa.DataType) -> pa.DataType:
    """The type with integers for times that Python cannot hold: it has microseconds."""
    if pt.is_timestamp(type_) and type_.unit == "ns":
        return pa.int64()
    return with_children(type_, lambda _, each: _countable(each))


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


def true_in(where: pa.Array) -> Mask:
    return mask_of(where.fill_null(False))
