"""Single values: from the result of Arrow's JSON reader to the type of the schema, or a fault. For nested values, see
`columns`.

Nothing here compares values: the result of a value never depends on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.read.formats.json.texts import UNIT_DIGITS, from_text, is_textual, wanted
from landonce.read.schema.fields import Field, spelled

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
    return unless(fits, "lies outside of what the target can hold")


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
