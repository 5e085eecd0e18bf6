"""Single values: from the result of Arrow's JSON reader to the type of the schema, or a fault. For nested values, see
`columns`. Times, dates, UUIDs and bytes are strings in JSON; invalid text becomes null.

Nothing here compares values or loops over them: the result of a value never depends on its neighbours.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.read.schema.fields import Field, is_uuid, spelled

UNIT_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}

_ZONE = r"(?:Z|[+-]\d\d(?::?\d\d)?)"
_TIME = r"\A\d\d:\d\d(?::\d\d(?:\.\d+)?)?\z"
_UUID = r"\A(?i:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})\z"
_HEX_OF_UUID = [at for at in range(36) if at not in (8, 13, 18, 23)]
_BASE64 = r"\A(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\z"
_WAYS = 8  # how many pieces a failed cast is cut into


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


def from_text(text: pa.Array, type_: pa.DataType) -> pa.Array:
    """The column as a type that `is_textual`."""
    if pt.is_timestamp(type_):
        return _timestamps(text, type_)
    if pt.is_time64(type_):
        return _times(text, type_)
    if is_uuid(type_):
        return _uuids(text)
    if pt.is_binary(type_):
        return _bytes(text)
    if pt.is_fixed_size_binary(type_):
        return fixed(_bytes(text), type_)
    return cast_or_null(text, type_)


def wanted(type_: pa.DataType) -> str:
    """What a text should have been, in a sentence."""
    if pt.is_binary(type_):
        return "valid base64"
    if pt.is_fixed_size_binary(type_):
        return f"valid base64 of {type_.byte_width} bytes"
    return f"a valid {spelled(type_)}"


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
    step = -(-len(array) // _WAYS)
    return pa.concat_arrays([cast_or_null(_piece(array, at, step), type_) for at in range(0, len(array), step)])


def _piece(array: pa.Array, at: int, step: int) -> pa.Array:
    """A copy of a slice without its neighbours: a cast reads everything in a map's arrays."""
    piece = array.slice(at, step)
    return piece.take(pa.array(np.arange(len(piece)))) if pt.is_nested(array.type) else piece


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
    text = _drop_surplus_zeros(array, type_.unit)
    has_zone = pc.match_substring_regex(text, pattern=rf"^.{{11,}}{_ZONE}$")
    nothing = pa.scalar(None, pa.string())
    with_zone = cast_or_null(pc.if_else(has_zone, text, nothing), zoned)
    without = cast_or_null(pc.if_else(has_zone, nothing, text), bare)
    return pc.coalesce(with_zone.cast(pa.int64()), without.cast(pa.int64())).cast(type_)


def _drop_surplus_zeros(text: pa.Array, unit: str) -> pa.Array:
    """Removes zeros of a fraction beyond the unit: nothing is lost, and JavaScript writes .000 on every second."""
    digits = UNIT_DIGITS[unit]
    kept = rf"\.\d{{{digits}}}" if digits else ""
    surplus = "0+" if digits else r"\.0+"
    return pc.replace_substring_regex(text, pattern=rf"^(.{{19}}{kept}){surplus}({_ZONE}?)$", replacement=r"\1\2")


def _times(text: pa.Array, type_: pa.DataType) -> pa.Array:
    """A time of day, without a zone. Arrow cannot read one, so this reads the timestamp that long after the epoch."""
    clean = pc.if_else(pc.match_substring_regex(text, pattern=_TIME), text, pa.scalar(None, pa.string()))
    moments = pc.binary_join_element_wise("1970-01-01T", clean, "")
    return _timestamps(moments, pa.timestamp(type_.unit)).cast(pa.int64()).cast(type_)


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


def _data(text: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The bytes of all strings, one after the other."""
    _, offsets, data = text.buffers()
    first, last = np.frombuffer(offsets, np.int32, len(text) + 1, text.offset * 4)[[0, -1]]
    return np.frombuffer(data, np.uint8)[first:last] if last > first else np.empty(0, np.uint8)


Mask = npt.NDArray[np.bool_]

MISSING = "is missing"


@dataclass(frozen=True)
class Fault:
    """``rows`` must not land; ``problem`` says why, as a predicate of the field."""

    rows: Mask
    problem: str

    def reason(self, name: str) -> str:
        return f"missing required field {name!r}" if self.problem == MISSING else f"field {name!r} {self.problem}"


def settle_value(array: pa.Array, type_: pa.DataType, field: Field) -> tuple[pa.Array, list[Fault]]:
    """The values in their final type, and the faults of those that must not land."""
    if is_textual(type_):
        ticks = pt.is_integer(array.type)
        settled, faults = _from_ticks(array, type_, field.scale or 0) if ticks else _from_text(array, type_)
        return settled, faults + unfit_value(settled, type_, field)
    if pt.is_decimal(type_):
        return _settle_decimal(array, type_)
    if pt.is_floating(type_):
        return array, unless(pc.is_finite(array), "is not a finite number of its type")
    return array, unfit_value(array, type_, field)


def unfit_value(array: pa.Array, type_: pa.DataType, field: Field) -> list[Fault]:
    """Values of the right type that the target cannot hold."""
    if pt.is_string(type_):
        return _string_faults(array, field)
    if pt.is_floating(type_) and field.finite:
        return unless(pc.is_finite(array), "is not a finite number")
    return _out_of_bounds(array, field) + _too_fine(array, field) if pt.is_temporal(type_) else []


def _settle_decimal(array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, list[Fault]]:
    largest = Decimal((0, (9,) * type_.precision, -type_.scale))
    fits = pc.less_equal(pc.abs(array), pa.scalar(largest, array.type))
    faults = unless(fits, f"does not fit {spelled(type_)}")
    if faults:
        array = pc.if_else(fits, array, pa.scalar(None, array.type))
    return array.cast(type_), faults


def _string_faults(array: pa.Array, field: Field) -> list[Fault]:
    faults = []
    if field.allowed is not None:
        names = pa.array(sorted(field.allowed), pa.string())
        known = pc.or_kleene(pc.is_in(array, value_set=names), array.is_null())
        faults += unless(known, "is not one of the allowed names")
    if field.pattern is not None:
        whole = pc.match_substring_regex(array, pattern=rf"\A(?:{field.pattern})\z")
        faults += unless(whole, "does not match its pattern")
    if field.longest is not None:
        short = pc.less_equal(pc.utf8_length(array), field.longest)
        faults += unless(short, f"is longer than {field.longest} characters")
    if field.without_nul:
        faults += unless(pc.invert(pc.match_substring(array, "\0")), "holds a zero byte, which the table cannot")
    return faults


def _out_of_bounds(array: pa.Array, field: Field) -> list[Fault]:
    if field.bounds is None:
        return []
    whole = array.cast(pa.int32() if pt.is_date32(array.type) else pa.int64())
    least, most = field.bounds
    fits = pc.and_(pc.greater_equal(whole, least), pc.less_equal(whole, most))
    return unless(fits, "is outside the range of the target")


def _too_fine(array: pa.Array, field: Field) -> list[Fault]:
    """A target with, say, two digits after the second is decoded in milliseconds, and must not cut the third."""
    if field.digits is None or not pt.is_timestamp(array.type) or field.digits >= UNIT_DIGITS[array.type.unit]:
        return []
    step = 10 ** (UNIT_DIGITS[array.type.unit] - field.digits)
    whole = array.cast(pa.int64())
    even = pc.equal(pc.multiply(pc.divide(whole, step), step), whole)
    return unless(even, "is finer than the target can hold")


def _from_ticks(array: pa.Array, type_: pa.DataType, scale: int) -> tuple[pa.Array, list[Fault]]:
    """Integers of 10**-scale s in the type's own unit. A finer tick must fall on a whole unit."""
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
    if pt.is_date32(type_):
        settled = settled.cast(pa.int32())
    return settled.cast(type_), [Fault(unfit, f"is not a valid {spelled(type_)}")] if unfit.any() else []


def _from_text(array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, list[Fault]]:
    settled = from_text(array, type_)
    if settled.null_count == array.null_count:
        return settled, []
    return settled, [Fault(mask_of(pc.and_(settled.is_null(), array.is_valid())), f"is not {wanted(type_)}")]


def unless(fine: pa.Array, problem: str) -> list[Fault]:
    """A fault for every row where ``fine`` is false; null is fine, since a missing value has no fault."""
    if pc.all(fine, min_count=0).as_py():
        return []
    return [Fault(mask_of(pc.invert(fine).fill_null(False)), problem)]


def mask_of(mask: pa.Array) -> Mask:
    rows: Mask = mask.to_numpy(zero_copy_only=False)
    return rows
