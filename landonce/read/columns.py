"""From what Arrow's JSON reader yields (the *wire* type of a column) to what the schema asks for, or a fault.

The reader is not asked for the final type where it cannot be trusted with it:

- dates it reads only as day numbers, and timestamps fail a whole block for one bad value: both are read as strings
  (or, for a field with a ``scale``, as integers) and converted here, where a bad value costs only its own row;
- decimals it rescales without looking for overflow: 1234 read as ``decimal128(38, 37)`` gives 8.98…. A literal is
  held to ``precision`` digits and rescaling adds at most ``scale``, so nothing can wrap in 256 bits as long as
  ``precision + scale <= 76``, and that is what `is_wide` tells apart;
- a struct it refuses for being null if a field inside may not be, so everything inside is read as nullable;
- floats it lets overflow to infinity, and it takes the literals ``NaN`` and ``Infinity``, which are not JSON.

Nothing here looks at more than one value at a time: what becomes of a value never depends on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.read.schema import Field

Mask = npt.NDArray[np.bool_]

MISSING = "is missing"

_UNIT_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_ZONE = r"(?:Z|[+-]\d\d(?::?\d\d)?)"
_WAYS = 8  # how many pieces a failed cast is cut into


@dataclass(frozen=True)
class Fault:
    """``rows`` must not be landed, and ``problem`` says why, as a sentence about the field."""

    rows: Mask
    problem: str

    def reason(self, name: str) -> str:
        return f"missing required field {name!r}" if self.problem == MISSING else f"field {name!r} {self.problem}"


def check_supported(field: Field) -> None:
    """Refuse a type that cannot be decoded exactly, before any record is read."""
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
    elif pt.is_timestamp(type_):
        if type_.tz not in (None, "UTC"):
            raise TypeError(f"field {name!r}: timestamps are decoded as UTC, not {type_.tz}")
    elif pt.is_decimal128(type_) or pt.is_decimal256(type_):
        if not 0 <= type_.scale <= type_.precision:
            raise TypeError(f"field {name!r}: {type_} needs 0 <= scale <= precision")
    elif not (
        pt.is_integer(type_)
        or pt.is_float32(type_)
        or pt.is_float64(type_)
        or pt.is_boolean(type_)
        or pt.is_string(type_)
        or pt.is_date32(type_)
    ):
        raise TypeError(f"field {name!r}: {type_} cannot be decoded from JSON")


def is_wide(type_: pa.DataType) -> bool:
    """Whether the reader could wrap a decimal of this type around without a word."""
    if pt.is_list(type_):
        return is_wide(type_.value_type)
    if pt.is_struct(type_):
        return any(is_wide(child.type) for child in type_)
    return bool(pt.is_decimal(type_) and type_.precision + type_.scale > 76)


def wire_type(type_: pa.DataType, *, integers: bool = False) -> pa.DataType:
    """What the reader is asked for, so that `settle` can make ``type_`` of it."""
    if pt.is_list(type_):
        return pa.list_(wire_type(type_.value_type))
    if pt.is_struct(type_):
        return pa.struct([pa.field(child.name, wire_type(child.type)) for child in type_])
    if pt.is_timestamp(type_) or pt.is_date32(type_):
        return pa.int64() if integers else pa.string()
    if pt.is_decimal(type_):
        return pa.decimal256(type_.precision, type_.scale)
    return type_


def settle(array: pa.Array, field: Field) -> tuple[pa.Array, list[Fault]]:
    """The column in its final type, and the rows that it must not be landed with, the gravest fault first."""
    settled, faults = _settle(array, field.type, field)
    if field.required and settled.null_count:
        faults.append(Fault(_rows(settled.is_null()), MISSING))
    return settled, faults


def fit(array: pa.Array, field: Field) -> tuple[pa.Array, list[Fault]]:
    """A column of any type as the field's type, losslessly, and the rows where that cannot be: for what SQL yields."""
    fitted = array if array.type == field.type else _cast_or_null(array, field.type)
    fits = pc.or_(fitted.is_valid(), array.is_null())
    faults = _unless(pc.and_(fits, _unchanged(array, fitted)), f"does not fit {field.type}")
    faults += _unfit(fitted, field.type, field)
    if field.required and array.null_count:
        faults.append(Fault(_rows(array.is_null()), MISSING))
    return fitted, faults


def _unchanged(array: pa.Array, fitted: pa.Array) -> pa.Array:
    """Where a value can be had back. A double loses digits as a float, which is what a float is: only overflow counts."""
    everywhere = pa.array(np.ones(len(array), dtype=np.bool_))
    if fitted.type == array.type or pt.is_nested(array.type):
        return everywhere
    if pt.is_float64(array.type) and pt.is_float32(fitted.type):
        return pc.fill_null(pc.equal(pc.is_finite(fitted), pc.is_finite(array)), True)
    try:
        return pc.fill_null(pc.equal(fitted.cast(array.type, safe=False), array), True)
    except pa.ArrowNotImplementedError:
        return everywhere


def _unfit(array: pa.Array, type_: pa.DataType, field: Field) -> list[Fault]:
    """What a cast lets pass: it looks at types, and not at what may stand in a place."""
    if pt.is_list(type_):
        inside = array.flatten()
        faults = _unfit(inside, type_.value_type, field)
        if not type_.value_field.nullable:
            faults += _unless(inside.is_valid(), "holds a null")
        return _lifted(faults, array)
    if pt.is_struct(type_):
        faults = []
        for at, child in enumerate(type_):
            faults += _unfit(array.field(at), child.type, field)
            if not child.nullable:
                faults += _unless(pc.or_(array.field(at).is_valid(), array.is_null()), "holds a null")
        return faults
    if pt.is_string(type_):
        return _string_faults(array, field)
    return _out_of_bounds(array, field) + _too_fine(array, field) if pt.is_temporal(type_) else []


def _settle(array: pa.Array, type_: pa.DataType, field: Field) -> tuple[pa.Array, list[Fault]]:
    if pt.is_list(type_):
        return _settle_list(array, type_, field)
    if pt.is_struct(type_):
        return _settle_struct(array, type_, field)
    if pt.is_timestamp(type_) or pt.is_date32(type_):
        ticks = pt.is_integer(array.type)
        settled, faults = _from_ticks(array, type_, field.scale or 0) if ticks else _from_text(array, type_)
        return settled, faults + _out_of_bounds(settled, field) + _too_fine(settled, field)
    if pt.is_decimal(type_):
        return _settle_decimal(array, type_)
    if pt.is_floating(type_):
        return array, _unless(pc.is_finite(array), "is not a finite number of its type")
    if pt.is_string(type_):
        return array, _string_faults(array, field)
    return array, []


def _settle_list(array: pa.Array, type_: pa.DataType, field: Field) -> tuple[pa.Array, list[Fault]]:
    values, faults = _settle(array.values, type_.value_type, field)
    if not type_.value_field.nullable:
        faults += _unless(array.values.is_valid(), "holds a null")
    faults = _lifted(faults, array)
    if array.type != type_:
        mask = array.is_null() if array.null_count else None
        array = pa.ListArray.from_arrays(array.offsets, values, type=type_, mask=mask)
    return array, faults


def _lifted(faults: list[Fault], lists: pa.Array) -> list[Fault]:
    """Faults of the items as faults of the rows whose lists hold them."""
    parents = pc.list_parent_indices(lists).to_numpy() if faults else np.empty(0, np.int64)
    lifted = []
    for fault in faults:
        rows = np.zeros(len(lists), dtype=np.bool_)
        rows[parents[fault.rows]] = True
        lifted.append(Fault(rows, fault.problem))
    return lifted


def _settle_struct(array: pa.Array, type_: pa.DataType, field: Field) -> tuple[pa.Array, list[Fault]]:
    settled = [_settle(array.field(i), child.type, field) for i, child in enumerate(type_)]
    for i, child in enumerate(type_):
        if not child.nullable:
            settled[i][1].extend(_unless(pc.or_(array.field(i).is_valid(), array.is_null()), "holds a null"))
    if array.type != type_:
        mask = array.is_null() if array.null_count else None
        array = pa.StructArray.from_arrays([child for child, _ in settled], fields=list(type_), mask=mask)
    return array, [fault for _, faults in settled for fault in faults]


def _settle_decimal(array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, list[Fault]]:
    largest = Decimal((0, (9,) * type_.precision, -type_.scale))
    fits = pc.less_equal(pc.abs(array), pa.scalar(largest, array.type))
    faults = _unless(fits, f"does not fit {type_}")
    if faults:
        array = pc.if_else(fits, array, pa.scalar(None, array.type))
    return array.cast(type_), faults


def _string_faults(array: pa.Array, field: Field) -> list[Fault]:
    faults = []
    if field.allowed is not None:
        names = pa.array(sorted(field.allowed), pa.string())
        known = pc.or_kleene(pc.is_in(array, value_set=names), array.is_null())
        faults += _unless(known, "is not one of the allowed names")
    if field.pattern is not None:
        whole = pc.match_substring_regex(array, pattern=rf"\A(?:{field.pattern})\z")
        faults += _unless(whole, "does not match its pattern")
    return faults


def _out_of_bounds(array: pa.Array, field: Field) -> list[Fault]:
    if field.bounds is None:
        return []
    whole = array.cast(pa.int32() if pt.is_date32(array.type) else pa.int64())
    least, most = field.bounds
    fits = pc.and_(pc.greater_equal(whole, least), pc.less_equal(whole, most))
    return _unless(fits, "lies outside of what the target can hold")


def _too_fine(array: pa.Array, field: Field) -> list[Fault]:
    """A target with, say, two digits after the second is decoded in milliseconds, and must not cut the third."""
    if field.digits is None or not pt.is_timestamp(array.type) or field.digits >= _UNIT_DIGITS[array.type.unit]:
        return []
    step = 10 ** (_UNIT_DIGITS[array.type.unit] - field.digits)
    whole = array.cast(pa.int64())
    even = pc.equal(pc.multiply(pc.divide(whole, step), step), whole)
    return _unless(even, "is finer than the target can hold")


def _from_ticks(array: pa.Array, type_: pa.DataType, scale: int) -> tuple[pa.Array, list[Fault]]:
    """Integers of 10**-scale s in the type's own unit. A tick finer than the unit must fall on a whole unit."""
    per_second = 10**scale
    if pt.is_date32(type_):
        bound, times, over = 2**31 - 1, 1, 86_400 * per_second
    else:
        unit = 10 ** _UNIT_DIGITS[type_.unit]
        bound, times, over = 2**63 - 1, max(1, unit // per_second), max(1, per_second // unit)
    ticks = array.fill_null(0).to_numpy()
    whole, rest = np.divmod(ticks, over)
    unfit = (rest != 0) | (whole > bound // times) | (whole < -(bound // times))
    whole = np.where(unfit, 0, whole) * times
    settled = pa.array(whole, mask=_rows(array.is_null()) | unfit)
    if pt.is_date32(type_):
        settled = settled.cast(pa.int32())
    return settled.cast(type_), [Fault(unfit, f"is not a valid {type_}")] if unfit.any() else []


def _from_text(array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, list[Fault]]:
    settled = _cast_or_null(array, type_) if pt.is_date32(type_) else _timestamps(array, type_)
    if settled.null_count == array.null_count:
        return settled, []
    return settled, [Fault(_rows(pc.and_(settled.is_null(), array.is_valid())), f"is not a valid {type_}")]


def _timestamps(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """ISO 8601 with or without a zone, which means UTC; null where it is not one, or finer than the type's unit.

    Arrow casts text with a zone only to a type with one and text without only to a type without. Nearly always a
    topic has one kind, so both are tried on the whole column before the column is taken apart.
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
    with_zone = _cast_or_null(pc.if_else(has_zone, text, nothing), zoned)
    without = _cast_or_null(pc.if_else(has_zone, nothing, text), bare)
    return pc.coalesce(with_zone.cast(pa.int64()), without.cast(pa.int64())).cast(type_)


def _drop_surplus_zeros(text: pa.Array, unit: str) -> pa.Array:
    """Cut zeros beyond the unit off a fraction: they lose nothing, and JavaScript writes .000 on every second."""
    digits = _UNIT_DIGITS[unit]
    kept = rf"\.\d{{{digits}}}" if digits else ""
    surplus = "0+" if digits else r"\.0+"
    return pc.replace_substring_regex(text, pattern=rf"^(.{{19}}{kept}){surplus}({_ZONE}?)$", replacement=r"\1\2")


def _cast_or_null(text: pa.Array, type_: pa.DataType) -> pa.Array:
    """A cast in which a value that fails becomes null instead of taking the others with it."""
    try:
        return text.cast(type_)
    except pa.ArrowInvalid:
        if len(text) == 1:
            return pa.nulls(1, type_)
    step = -(-len(text) // _WAYS)
    return pa.concat_arrays([_cast_or_null(text.slice(at, step), type_) for at in range(0, len(text), step)])


def _unless(fine: pa.Array, problem: str) -> list[Fault]:
    """A fault for every row where ``fine`` is false; null is fine, since a missing value has no fault."""
    if pc.all(fine, min_count=0).as_py():
        return []
    return [Fault(_rows(pc.invert(fine).fill_null(False)), problem)]


def _rows(mask: pa.Array) -> Mask:
    rows: Mask = mask.to_numpy(zero_copy_only=False)
    return rows
