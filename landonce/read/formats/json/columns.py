"""Converts columns from the type that Arrow's JSON reader reads (the *wire* type) to the schema's type, or to a fault.

The wire type differs from the final type where the reader is not exact enough:

- dates and times: it reads them only as numbers, bytes not at all, and one bad timestamp fails a whole block. So all
  are read as strings (or, for a field with a ``scale``, as integers) and converted by `from_text`, where a bad value
  affects only its own row;
- decimals: it rescales without an overflow check: 1234 read as ``decimal128(38, 37)`` gives 8.98…. A literal has at
  most ``precision`` digits and rescaling adds at most ``scale``, so nothing can wrap in 256 bits as long as ``precision
  + scale <= 76``; `is_wide` checks that;
- structs: it refuses a null struct if a field inside is required, so everything inside is read as nullable;
- maps: it does not support them. `rewrite` makes lists of their entries, and this module makes them maps;
- JSON text: it keeps no text. `rewrite` gives each such value a number, and `unwrapped` exchanges it for the text;
- floats: it lets them overflow to infinity, rounds integers to them, and accepts the literals ``NaN`` and ``Infinity``,
  which are not JSON.

Nothing here compares values or loops over them: the result of a value never depends on its neighbours. `fit` is for columns
that have Arrow types already, from SQL or from another format.
"""

from __future__ import annotations

import binascii
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.reasons import Code, Reason, missing, of_field
from landonce.read.schema.fields import JSON, KEY, VALUE, Field, is_uuid, landed, spelled

ENTRIES = "entries"
"""The name under which `structure` lists the entries of a map."""
NUMBER = secrets.token_urlsafe(9)
"""The name under which `structure` numbers JSON texts. Nobody outside this process can know it, so no record can forge one."""
UNIT_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}

_ZONE = r"(?:Z|[+-]\d\d(?::?\d\d)?)"
_TIME = r"\A\d\d:\d\d(?::\d\d(?:\.\d+)?)?\z"
_UUID = r"\A(?i:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})\z"
_YEARS_IN_DAYS = (-719_162, 2_932_897)
"""The years 1 to 9999."""
_HEX_OF_UUID = [at for at in range(36) if at not in (8, 13, 18, 23)]
_BASE64 = r"\A(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\z"
_INTEGER_KEY, _DECIMAL_KEY, _BOOLEAN_KEY, _FLOAT_KEY = (
    r"\A(?:0|-?[1-9][0-9]*)\z",
    r"\A-?[0-9]+(?:\.[0-9]+)?\z",
    r"\A(?:true|false)\z",
    r"\A-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\z",
)
ZERO = r"\A[+-]?[0.]+(?:[eE]|\z)"
"""How a number begins that is 0."""
_WAYS = 8  # how many pieces a failed cast is cut into


Mask = npt.NDArray[np.bool_]
MISSING = Reason("is missing", Code.MISSING_FIELD)
NULL_INSIDE = Reason("holds a null", Code.MISSING_FIELD)
NOT_FINITE = Reason("is not a finite number of its type", Code.OUT_OF_RANGE)
VANISHES = Reason("is too close to 0 for its type", Code.INEXACT)
KEY_TWICE = Reason("holds a key twice", Code.REPEATED_FIELD)


@dataclass(frozen=True)
class Fault:
    """``rows`` must not land; ``problem`` says why, as a predicate of the field, or of what is at ``where`` inside it."""

    rows: Mask
    problem: Reason
    where: str = ""

    def reason(self, name: str) -> Reason:
        path = name + self.where
        return missing(path) if self.problem == MISSING else of_field(path, self.problem)


def unfitting(type_: pa.DataType) -> Reason:
    """Of a number, a time or bytes that the type cannot hold."""
    if pt.is_fixed_size_binary(type_):
        return Reason(f"does not hold exactly {type_.byte_width} bytes", Code.OUT_OF_RANGE)
    return Reason(f"does not fit {spelled(type_)}", Code.OUT_OF_RANGE)


def not_valid(called: str) -> Reason:
    """Of a text that is not written as its type."""
    return Reason(f"is not a valid {called}", Code.INVALID_VALUE)


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
    step = -(-len(array) // _WAYS)
    return pa.concat_arrays([cast_or_null(_piece(array, at, step), type_) for at in range(0, len(array), step)])


def _piece(array: pa.Array, at: int, step: int) -> pa.Array:
    """A copy of a slice without its neighbours: a cast reads everything in a map's arrays."""
    piece = array.slice(at, step)
    return piece.take(pa.array(np.arange(len(piece)))) if pt.is_nested(array.type) else piece


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
        return _uuid_text(array)
    text = array.cast(pa.string())
    if pt.is_time(array.type):  # a target may have no place for digits that are all zero
        return pc.replace_substring_regex(text, pattern=r"\.0+$", replacement="")
    per_day = 1 if pt.is_date32(array.type) else 86_400 * 10 ** UNIT_DIGITS[array.type.unit]
    count = array.cast(pa.int32() if per_day == 1 else pa.int64()).cast(pa.int64())
    low, high = max(_YEARS_IN_DAYS[0] * per_day, -(2**63)), min(_YEARS_IN_DAYS[1] * per_day, 2**63) - 1
    dated = pc.and_(
        pc.greater_equal(count, low), pc.less_equal(count, high)
    )  # Arrow writes the wrong year beyond 32767
    return pc.replace_substring(pc.if_else(dated, text, pa.scalar(None, pa.string())), pattern=" ", replacement="T")


def _uuid_text(array: pa.Array) -> pa.Array:
    storage = array.storage
    digits = np.frombuffer(b"".join(each or bytes(16) for each in storage.to_pylist()).hex().encode(), np.uint8)
    text = np.full((len(array), 36), ord("-"), np.uint8)
    text[:, _HEX_OF_UUID] = digits.reshape(-1, 32)
    made = pa.Array.from_buffers(pa.binary(36), len(array), [None, pa.py_buffer(text)]).cast(pa.binary())
    return pc.if_else(storage.is_valid(), made.cast(pa.string()), pa.scalar(None, pa.string()))


def _data(text: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The bytes of all strings, one after the other."""
    _, offsets, data = text.buffers()
    first, last = np.frombuffer(offsets, np.int32, len(text) + 1, text.offset * 4)[[0, -1]]
    return np.frombuffer(data, np.uint8)[first:last] if last > first else np.empty(0, np.uint8)


def settle_value(array: pa.Array, type_: pa.DataType, field: Field) -> tuple[pa.Array, list[Fault]]:
    """The values in their final type, and the faults of those that must not land."""
    if is_textual(type_):
        ticks = pt.is_integer(array.type)
        settled = from_ticks(array, type_, field.scale or 0) if ticks else from_text(array, type_)
        faults = []
        if settled.null_count != array.null_count:
            wanted = f"a valid {spelled(type_)}"
            if pt.is_binary(type_) or pt.is_fixed_size_binary(type_):
                wanted = "valid base64" + ("" if pt.is_binary(type_) else f" of {type_.byte_width} bytes")
            bad = mask_of(pc.and_(settled.is_null(), array.is_valid()))
            faults = [Fault(bad, Reason(f"is not {wanted}", Code.INVALID_VALUE))]
        return settled, faults + unfit_value(settled, type_, field)
    if pt.is_decimal(type_):
        largest = Decimal((0, (9,) * type_.precision, -type_.scale))
        fits = pc.less_equal(pc.abs(array), pa.scalar(largest, array.type))
        faults = unless(fits, unfitting(type_))
        if faults:
            array = pc.if_else(fits, array, pa.scalar(None, array.type))
        return array.cast(type_), faults
    if pt.is_floating(type_):
        return array, unless(pc.is_finite(array), NOT_FINITE) + _float_faults(array, field)
    if pt.is_string(type_) and field.unquoted:
        array = pc.utf8_trim(array, characters='"')  # a number of any size may be written as a string
    return array, unfit_value(array, type_, field)


def unfit_value(array: pa.Array, type_: pa.DataType, field: Field) -> list[Fault]:
    """Values of the right type that the target cannot hold."""
    if pt.is_string(type_):
        return _string_faults(array, field)
    if pt.is_floating(type_):
        faults = (
            unless(pc.is_finite(array), Reason("is not a finite number", Code.OUT_OF_RANGE)) if field.finite else []
        )
        return faults + _float_faults(array, field)
    if not (pt.is_temporal(type_) or pt.is_integer(type_)):
        return []
    faults = []
    if field.bounds is not None:
        whole = array if pt.is_integer(type_) else array.cast(pa.int32() if pt.is_date32(array.type) else pa.int64())
        fits = pc.and_(pc.greater_equal(whole, field.bounds[0]), pc.less_equal(whole, field.bounds[1]))
        faults += unless(fits, Reason("is outside the range of the target", Code.OUT_OF_RANGE))
    has_digits = field.digits is not None and (pt.is_timestamp(type_) or pt.is_time64(type_))
    surplus = UNIT_DIGITS[array.type.unit] - (field.digits or 0) if has_digits else 0
    if surplus > 0:  # a target with two digits after the second is decoded in milliseconds, and must not cut the third
        whole = array.cast(pa.int64())
        even = pc.equal(pc.multiply(pc.divide(whole, 10**surplus), 10**surplus), whole)
        faults += unless(even, Reason("is finer than the target can hold", Code.INEXACT))
    return faults


def _float_faults(array: pa.Array, field: Field) -> list[Fault]:
    """Floats with more significant bits than the target keeps."""
    if field.bits is None:
        return []
    surplus = pc.bit_wise_and(array.view(pa.uint32()), pa.scalar(2 ** (24 - field.bits) - 1, pa.uint32()))
    return unless(pc.equal(surplus, 0), Reason(f"is not a number that {field.called} holds exactly", Code.INEXACT))


def _whole_within(text: pa.Array, bounds: tuple[int, int]) -> pa.Array:
    """Whether each text is an integer within the bounds. It compares digits, because no type here has 256 bits."""
    whole = pc.match_substring_regex(text, pattern=r"\A(?:0|-?[1-9][0-9]*)\z")
    digits = pc.utf8_ltrim(text, characters="-")
    low, high = _at_most(digits, -bounds[0]), _at_most(digits, bounds[1])
    return pc.and_(whole, pc.if_else(pc.starts_with(text, pattern="-"), low, high))


def _at_most(digits: pa.Array, limit: int) -> pa.Array:
    most = str(limit)
    length = pc.binary_length(digits)
    return pc.or_(
        pc.less(length, len(most)), pc.and_(pc.equal(length, len(most)), pc.less_equal(digits, pa.scalar(most)))
    )


def _string_faults(array: pa.Array, field: Field) -> list[Fault]:
    faults = []
    if field.bounds is not None:
        within = Reason(f"is not an integer in the range of {field.called}", Code.OUT_OF_RANGE)
        faults += unless(_whole_within(array, field.bounds), within)
    if field.most_bytes is not None:
        longer = Reason(f"is longer than {field.most_bytes} bytes", Code.OUT_OF_RANGE)
        faults += unless(pc.less_equal(pc.binary_length(array), field.most_bytes), longer)
    if field.allowed is not None:
        names = pa.array(sorted(field.allowed), pa.string())
        known = pc.or_kleene(pc.is_in(array, value_set=names), array.is_null())
        faults += unless(known, Reason("is not one of the allowed names", Code.INVALID_VALUE))
    if field.pattern is not None:
        whole = pc.match_substring_regex(array, pattern=rf"\A(?:{field.pattern})\z")
        unlike = Reason("does not match its pattern", Code.INVALID_VALUE)
        faults += unless(whole, not_valid(field.called) if field.called else unlike)
    if field.longest is not None:
        short = pc.less_equal(pc.utf8_length(array), field.longest)
        faults += unless(short, Reason(f"is longer than {field.longest} characters", Code.OUT_OF_RANGE))
    if field.without_nul:
        zero = Reason("holds a zero byte, which the table cannot", Code.INVALID_VALUE)
        faults += unless(pc.invert(pc.match_substring(array, "\0")), zero)
    if field.judge is not None:
        problems = field.judge(array)
        for problem in problems.drop_null().unique().to_pylist():
            faults += unless(pc.not_equal(problems, problem), Reason(problem, Code.INVALID_VALUE))
    return faults


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


def unless(fine: pa.Array, problem: Reason) -> list[Fault]:
    """A fault for every row where ``fine`` is false; null is fine, since a missing value has no fault."""
    if pc.all(fine, min_count=0).as_py():
        return []
    return [Fault(mask_of(pc.invert(fine).fill_null(False)), problem)]


def mask_of(mask: pa.Array) -> Mask:
    rows: Mask = mask.to_numpy(zero_copy_only=False)
    return rows


def check_supported(field: Field) -> None:
    """Refuses a type that cannot be decoded exactly, before any record is read."""
    _check_type(field.type, field.name)
    if field.pattern is not None:
        try:
            pc.match_substring_regex(pa.array([""]), pattern=field.pattern)
        except pa.ArrowInvalid as error:
            raise ValueError(f"field {field.name!r}: the pattern is not a valid RE2 expression") from error


def _check_type(type_: pa.DataType, name: str) -> None:
    if pt.is_list(type_):
        _check_type(type_.value_type, f"{name}[]")
    elif pt.is_struct(type_):
        names = [child.name for child in type_]
        if not names or len(set(names)) < len(names):
            raise TypeError(f"field {name!r}: a struct needs fields with unique names")
        for child in type_:
            _check_type(child.type, f"{name}.{child.name}")
    elif pt.is_map(type_):
        if not is_key(type_.key_type):
            raise TypeError(
                f"field {name!r}: the keys of a map are strings in JSON, and {spelled(type_.key_type)} is not written as one"
            )
        _check_type(type_.key_type, f"{name}.{KEY}")
        _check_type(type_.item_type, f"{name}.{VALUE}")
    elif pt.is_timestamp(type_):
        if type_.tz not in (None, "UTC"):
            raise TypeError(f"field {name!r}: timestamps are decoded as UTC, not {type_.tz}")
    elif pt.is_decimal128(type_) or pt.is_decimal256(type_):
        if not 0 <= type_.scale <= type_.precision:
            raise TypeError(f"field {name!r}: {spelled(type_)} needs 0 <= scale <= precision")
    elif not (
        pt.is_integer(type_)
        or pt.is_float32(type_)
        or pt.is_float64(type_)
        or pt.is_boolean(type_)
        or pt.is_string(type_)
        or type_ == JSON
        or (is_textual(type_) and type_ != pa.time64("ns"))
    ):
        raise TypeError(f"field {name!r}: {spelled(type_)} cannot be decoded from JSON")


def is_wide(type_: pa.DataType) -> bool:
    """Whether the reader could silently wrap a decimal of this type around."""
    if pt.is_list(type_):
        return is_wide(type_.value_type)
    if pt.is_struct(type_):
        return any(is_wide(child.type) for child in type_)
    if pt.is_map(type_):
        return is_wide(type_.item_type)
    return bool(pt.is_decimal(type_) and type_.precision + type_.scale > 76)


def wire_type(type_: pa.DataType, *, integers: bool = False) -> pa.DataType:
    """The type to read, from which `settle` can make ``type_``."""
    if pt.is_list(type_):
        return pa.list_(wire_type(type_.value_type))
    if pt.is_struct(type_):
        return pa.struct([pa.field(child.name, wire_type(child.type)) for child in type_])
    if pt.is_map(type_):
        entry = [pa.field(KEY, pa.string()), pa.field(VALUE, wire_type(type_.item_type))]
        return pa.struct([pa.field(ENTRIES, pa.list_(pa.struct(entry)))])
    if type_ == JSON:
        return pa.struct([pa.field(NUMBER, pa.int64())])
    if is_textual(type_):
        return pa.int64() if integers else pa.string()
    if pt.is_decimal(type_):
        return pa.decimal256(type_.precision, type_.scale)
    return type_


def holds_float(type_: pa.DataType) -> bool:
    """Whether a number of a record may be rounded to one of this type."""
    if pt.is_nested(type_):
        return any(holds_float(type_.field(at).type) for at in range(type_.num_fields))
    return bool(pt.is_floating(type_))


def beyond_exact(array: pa.Array, limits: Mapping[pa.DataType, int]) -> list[Fault]:
    """Rows of a wire column with a float at or beyond the limit of its type. If there is none, this only reads the
    extremes."""
    if pt.is_list(array.type):
        return lifted(beyond_exact(array.values, limits), array)
    if pt.is_struct(array.type):
        return [fault for at in range(array.type.num_fields) for fault in beyond_exact(array.field(at), limits)]
    if not pt.is_floating(array.type):
        return []
    limit = float(limits[array.type])
    extremes = pc.min_max(array)
    if all(each is None or abs(each) < limit for each in (extremes["min"].as_py(), extremes["max"].as_py())):
        return []
    return [Fault(mask_of(pc.greater_equal(pc.abs(array), limit).fill_null(False)), Reason("is large", Code.INEXACT))]


def holding_zero(array: pa.Array) -> list[Fault]:
    """Rows of a wire column with a float that is 0: the record may hold a number that is not."""
    if pt.is_list(array.type):
        return lifted(holding_zero(array.values), array)
    if pt.is_struct(array.type):
        return [fault for at in range(array.type.num_fields) for fault in holding_zero(array.field(at))]
    return unless(pc.not_equal(array, 0), VANISHES) if pt.is_floating(array.type) else []


def settle(array: pa.Array, field: Field) -> tuple[pa.Array, list[Fault]]:
    """The column in its final type, and its faults, the most serious first."""
    settled, faults = _settle(array, landed(field.type), field)
    if field.required and settled.null_count:
        faults.append(Fault(mask_of(settled.is_null()), MISSING))
    return settled, faults


def fit(array: pa.Array, field: Field) -> tuple[pa.Array, list[Fault]]:
    """Converts a column of any type (from SQL) to the field's type without loss; also returns the faults."""
    type_ = landed(field.type)
    fitted = array if array.type == type_ else _fitted(array, type_)
    fits = pc.or_(fitted.is_valid(), array.is_null())
    faults = unless(pc.and_(fits, _unchanged(array, fitted)), unfitting(type_))
    faults += _unfit(fitted, type_, field)
    if field.required and array.null_count:
        faults.append(Fault(mask_of(array.is_null()), MISSING))
    return fitted, faults


def _fitted(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if pt.is_string(array.type) and (is_uuid(type_) or pt.is_time64(type_)):
        return from_text(array, type_)
    if pt.is_string(type_) and (is_uuid(array.type) or pt.is_time(array.type)):
        return as_text(array)
    if pt.is_binary(array.type) and (is_uuid(type_) or pt.is_fixed_size_binary(type_)):
        return fixed(array, type_.storage_type if is_uuid(type_) else type_).cast(type_)
    return cast_or_null(array, type_)


def can_fit(yielded: pa.DataType, field: Field) -> bool:
    """Whether `fit` can convert this type to the field's."""
    if is_uuid(field.type):
        return bool(is_uuid(yielded) or pt.is_string(yielded) or pt.is_binary(yielded))
    try:
        _fitted(pa.array([], yielded), landed(field.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _unchanged(array: pa.Array, fitted: pa.Array) -> pa.Array:
    """Whether each value survives a round trip. A double becomes the nearest float, unless that is infinite, or 0."""
    everywhere = pa.array(np.ones(len(array), dtype=np.bool_))
    exact = is_uuid(fitted.type) or is_uuid(array.type) or pt.is_time64(fitted.type)
    if exact or fitted.type == array.type or pt.is_nested(array.type):
        return everywhere
    if pt.is_float64(array.type) and pt.is_float32(fitted.type):
        same_kind = pc.and_(
            pc.equal(pc.is_finite(fitted), pc.is_finite(array)), pc.equal(pc.equal(fitted, 0), pc.equal(array, 0))
        )
        return pc.fill_null(same_kind, True)
    try:
        return pc.fill_null(pc.equal(fitted.cast(array.type, safe=False), array), True)
    except pa.ArrowNotImplementedError:
        return everywhere


def _unfit(array: pa.Array, type_: pa.DataType, field: Field) -> list[Fault]:
    """Faults that a cast does not find: it checks types, not nulls inside required places."""
    if pt.is_list(type_):
        inside = array.flatten()
        faults = _unfit(inside, type_.value_type, field)
        if not type_.value_field.nullable:
            faults += unless(inside.is_valid(), NULL_INSIDE)
        return lifted(faults, array) + _count_faults(array, field)
    if pt.is_struct(type_):
        faults = []
        for at, child in enumerate(type_):
            faults += _unfit(array.field(at), child.type, field.inside(child.name))
            if not child.nullable:
                faults += unless(pc.or_(array.field(at).is_valid(), array.is_null()), NULL_INSIDE)
        return faults
    if pt.is_map(type_):
        listed = pa.list_(pa.struct([type_.key_field, type_.item_field]))
        return _unfit(array.cast(listed), listed, field)
    return unfit_value(array, type_, field)


def _settle(array: pa.Array, type_: pa.DataType, field: Field) -> tuple[pa.Array, list[Fault]]:
    if pt.is_map(type_):
        return _settle_map(array, type_, field)
    if not (pt.is_list(type_) or pt.is_struct(type_)):
        return settle_value(array, type_, field)
    mask = array.is_null() if array.null_count else None
    if pt.is_list(type_):
        inside = array.values
        values, faults = _settle(inside, type_.value_type, field)
        if not type_.value_field.nullable:
            faults += unless(inside.is_valid(), NULL_INSIDE)
        faults = lifted(faults, array) + _count_faults(array, field)
        if array.type != type_ or values is not inside:
            array = pa.ListArray.from_arrays(array.offsets, values, type=type_, mask=mask)
        return array, faults
    columns, faults = [], []
    changed = array.type != type_
    for at, child in enumerate(type_):
        part = array.field(at)
        column, found = _settle(part, child.type, field.inside(child.name))
        columns.append(column)
        changed = changed or column is not part
        faults += found
        if not child.nullable:
            faults += unless(pc.or_(part.is_valid(), array.is_null()), NULL_INSIDE)
    if changed:
        array = pa.StructArray.from_arrays(columns, fields=list(type_), mask=mask)
    return array, faults


def _count_faults(lists: pa.Array, field: Field) -> list[Fault]:
    if field.items is None:
        return []
    wanted = Reason(f"does not hold {field.items} items", Code.INVALID_VALUE)
    return unless(pc.equal(pc.list_value_length(lists), field.items), wanted)


def lifted(faults: list[Fault], lists: pa.Array) -> list[Fault]:
    """Converts faults of items to faults of the rows whose lists hold them."""
    parents = pc.list_parent_indices(lists).to_numpy() if faults else np.empty(0, np.int64)
    found = []
    for fault in faults:
        rows = np.zeros(len(lists), dtype=np.bool_)
        rows[parents[fault.rows]] = True
        found.append(replace(fault, rows=rows))
    return found


def _settle_map(array: pa.Array, type_: pa.DataType, field: Field) -> tuple[pa.Array, list[Fault]]:
    entries = array.field(ENTRIES)
    keys, faults = settle_keys(entries.values.field(KEY), type_.key_type, field.inside(KEY))
    values, of_values = _settle(entries.values.field(VALUE), type_.item_type, field.inside(VALUE))
    faults += of_values
    if not type_.item_field.nullable:
        faults += unless(entries.values.field(VALUE).is_valid(), NULL_INSIDE)
    faults = lifted(faults, entries) + _repeated(keys, entries)
    offsets = entries.offsets
    if keys.null_count:  # of rejected rows
        good = keys.is_valid()
        before = np.concatenate(([0], np.cumsum(mask_of(good))))
        keys, values = keys.filter(good), values.filter(good)
        offsets = pa.array(before[offsets.to_numpy()], pa.int32())
    mask = array.is_null() if array.null_count else None
    return pa.MapArray.from_arrays(offsets, keys, values, type=type_, mask=mask), faults


def settle_keys(text: pa.Array, type_: pa.DataType, field: Field) -> tuple[pa.Array, list[Fault]]:
    """JSON writes every key as a string. An integer has one spelling. Decimals and floats may have several: `key_codes` compares values."""
    if pt.is_string(type_) or is_textual(type_):
        return _settle(text, type_, field)
    if pt.is_floating(type_):
        keys = _float_keys(text, type_)
        wrong = Reason(f"holds a key that is not a {spelled(type_)}, or that it cannot hold", Code.INVALID_VALUE)
        return keys, unless(pc.or_(keys.is_valid(), text.is_null()), wrong) + _float_faults(keys, field)
    spelling = _BOOLEAN_KEY if pt.is_boolean(type_) else _DECIMAL_KEY if pt.is_decimal(type_) else _INTEGER_KEY
    fits = pc.match_substring_regex(text, pattern=spelling)
    clean = pc.if_else(fits, text, pa.scalar(None, pa.string()))
    keys = (decimals if pt.is_decimal(type_) else cast_or_null)(clean, type_)
    wrong = Reason(f"holds a key that is not a valid {spelled(type_)}", Code.INVALID_VALUE)
    return keys, unless(pc.or_(keys.is_valid(), text.is_null()), wrong)


def _float_keys(text: pa.Array, type_: pa.DataType) -> pa.Array:
    """The nearest floats; null for what is none: infinity, a number that would become 0, an integer that is not held exactly."""
    written = pc.match_substring_regex(text, pattern=_FLOAT_KEY)
    keys = cast_or_null(pc.if_else(written, text, pa.scalar(None, pa.string())), type_)
    fine = pc.and_(pc.is_finite(keys), pc.or_(pc.not_equal(keys, 0), pc.match_substring_regex(text, pattern=ZERO)))
    whole = pc.and_(pc.match_substring_regex(text, pattern=_INTEGER_KEY), pc.greater_equal(pc.abs(keys), 2.0**24))
    changed = np.zeros(len(text), np.bool_)
    for at in np.flatnonzero(mask_of(pc.fill_null(pc.and_(whole, fine), False))).tolist():
        changed[at] = Decimal(text[at].as_py()) != Decimal(keys[at].as_py())
    return pc.if_else(pc.and_(fine, pc.invert(pa.array(changed))), keys, pa.scalar(None, type_))


def key_codes(keys: pa.Array) -> npt.NDArray[np.int64]:
    """A number for each key, the same for equal keys."""
    plain = keys.storage if is_uuid(keys.type) else keys
    plain = pc.add(plain, pa.scalar(0.0, plain.type)) if pt.is_floating(plain.type) else plain  # -0.0 is 0.0
    codes = plain.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return np.asarray(codes.astype(np.int64))


def _repeated(keys: pa.Array, entries: pa.Array) -> list[Fault]:
    """Rows with a map that holds a key twice."""
    codes = key_codes(keys)
    parents = pc.list_parent_indices(entries).to_numpy()
    order = np.lexsort((codes, parents))
    same = (np.diff(codes[order]) == 0) & (np.diff(parents[order]) == 0)
    rows = np.zeros(len(entries), dtype=np.bool_)
    rows[parents[order][1:][same]] = True
    return [Fault(rows, KEY_TWICE)] if rows.any() else []
