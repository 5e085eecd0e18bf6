"""Text that becomes values of a type: the fields of CSV, and keys. A value that is not written as its type is a fault of its own row."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.reasons import Code, Reason
from landonce.read.formats.json.columns import (
    MISSING,
    VANISHES,
    ZERO,
    Fault,
    cast_or_null,
    decimals,
    is_textual,
    mask_of,
    not_valid,
    settle_value,
    unfit_value,
    unless,
)
from landonce.read.schema.fields import JSON, Field, spelled

_INTEGER = r"\A[+-]?[0-9]+\z"
_NUMBER = r"\A[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\z"
_FIXED = r"\A[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)\z"
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def check_supported(field: Field) -> None:
    """Raises if no text becomes this field."""
    type_ = _type(field)
    plain = pt.is_string(type_) or pt.is_boolean(type_) or pt.is_integer(type_) or pt.is_floating(type_)
    if not (plain or pt.is_decimal(type_) or is_textual(type_)):
        raise ValueError(f"field {field.name!r}: text cannot become {spelled(type_)}")


def from_text(text: pa.StringArray, field: Field) -> tuple[pa.Array, list[Fault]]:
    """The values in the field's type, and the faults of those that must not land."""
    values, faults = _typed(text, field)
    if field.required and text.null_count:
        faults.append(Fault(mask_of(text.is_null()), MISSING))
    return values, faults


def _typed(text: pa.StringArray, field: Field) -> tuple[pa.Array, list[Fault]]:
    type_ = _type(field)
    if is_textual(type_) or pt.is_string(type_):
        return settle_value(text, type_, field)
    faults: list[Fault] = []
    if pt.is_boolean(type_):
        known = pa.array(list(_BOOLEANS), pa.string())
        values = pa.array(list(_BOOLEANS.values())).take(pc.index_in(pc.utf8_lower(text), value_set=known))
    elif pt.is_integer(type_):
        plain = pc.utf8_ltrim(_written(text, _INTEGER), characters="+")
        values = cast_or_null(plain, type_)
        beyond = Reason(f"is out of the range of {spelled(type_)}", Code.OUT_OF_RANGE)
        faults += unless(pc.or_(values.is_valid(), plain.is_null()), beyond)
        text = pc.if_else(plain.is_null(), text, pa.scalar(None, pa.string()))  # the others are judged
    elif pt.is_decimal(type_):
        values = decimals(_written(text, _FIXED), type_)
    else:
        values = cast_or_null(_written(text, _NUMBER), type_)
        finite = pc.is_finite(values)
        values = pc.if_else(finite, values, pa.scalar(None, type_))
        faults += _inexact(text, values, type_)
        faults += unless(pc.or_(pc.not_equal(values, 0), pc.match_substring_regex(text, pattern=ZERO)), VANISHES)
    faults += unless(pc.or_(values.is_valid(), text.is_null()), not_valid(spelled(type_)))
    return values, faults + unfit_value(values, type_, field)


def _inexact(text: pa.StringArray, values: pa.Array, type_: pa.DataType) -> list[Fault]:
    """Integers that became another number. One with a point or an exponent becomes the nearest float, as in JSON."""
    large = pc.greater_equal(pc.abs(values), 2.0**24 if pt.is_float32(type_) else 2.0**53)
    asked = np.flatnonzero(
        mask_of(pc.fill_null(pc.and_(large, pc.match_substring_regex(text, pattern=_INTEGER)), False))
    )
    found = np.zeros(len(text), np.bool_)
    found[asked] = [Decimal(text[at].as_py()) != Decimal(values[at].as_py()) for at in asked.tolist()]
    if not found.any():
        return []
    return [Fault(found, Reason(f"is an integer that {spelled(type_)} cannot hold exactly", Code.INEXACT))]


def _type(field: Field) -> pa.DataType:
    """A number of any size is a JSON text in records, and a plain text here. So is what no column takes."""
    return pa.string() if field.type == JSON and (field.unquoted or not field.is_filled) else field.type


def _written(text: pa.StringArray, pattern: str) -> pa.StringArray:
    """The values that are written like this; null for all others."""
    return pc.if_else(pc.match_substring_regex(text, pattern=pattern), text, pa.scalar(None, pa.string()))
