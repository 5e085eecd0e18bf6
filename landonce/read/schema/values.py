"""Columns of values as a field wants them: in its type, within its limits, and the faults of those that must not land.

The result of a value never depends on its neighbours. `fit` is for columns that have Arrow types already, from SQL or from another format.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.reasons import Code, Reason, missing, of_field
from landonce.read.schema.fields import JSON, Field, is_uuid, landed, spelled
from landonce.read.schema.texts import (
    UNIT_DIGITS,
    Mask,
    as_text,
    cast_or_null,
    decimals,
    fixed,
    from_text,
    from_ticks,
    is_textual,
    mask_of,
    matching,
    true_in,
)

_INTEGER_KEY, _DECIMAL_KEY, _BOOLEAN_KEY, _FLOAT_KEY = (
    r"\A(?:0|-?[1-9][0-9]*)\z",
    r"\A-?[0-9]+(?:\.[0-9]+)?\z",
    r"\A(?:true|false)\z",
    r"\A-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\z",
)
ZERO = r"\A[+-]?[0.]+(?:[eE]|\z)"
"""How a number begins that is 0."""
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


def add_reasons(reasons: dict[int, Reason], faults: Iterable[Fault], name: str) -> None:
    """Adds why each row of this field must not land: the first reason of each row counts."""
    for fault in faults:
        for row in np.flatnonzero(fault.rows).tolist():
            reasons.setdefault(row, fault.reason(name))


def unfitting(type_: pa.DataType) -> Reason:
    """Of a number, a time or bytes that the type cannot hold."""
    if pt.is_fixed_size_binary(type_):
        return Reason(f"does not hold exactly {type_.byte_width} bytes", Code.OUT_OF_RANGE)
    return Reason(f"does not fit {spelled(type_)}", Code.OUT_OF_RANGE)


def not_valid(called: str) -> Reason:
    """Of a text that is not written as its type."""
    return Reason(f"is not a valid {called}", Code.INVALID_VALUE)


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


def unless(fine: pa.Array, problem: Reason) -> list[Fault]:
    """A fault for every row where ``fine`` is false; null is fine, since a missing value has no fault."""
    if pc.all(fine, min_count=0).as_py():
        return []
    return [Fault(true_in(pc.invert(fine)), problem)]


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
        return lifted(faults, array) + count_faults(array, field)
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


def count_faults(lists: pa.Array, field: Field) -> list[Fault]:
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


def settle_keys(text: pa.Array, type_: pa.DataType, field: Field) -> tuple[pa.Array, list[Fault]]:
    """JSON writes every key as a string. An integer has one spelling. Decimals and floats may have several: `key_codes` compares values."""
    if pt.is_string(type_) or is_textual(type_):
        return settle_value(text, type_, field)
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
    for at in np.flatnonzero(true_in(pc.and_(whole, fine))).tolist():
        changed[at] = Decimal(text[at].as_py()) != Decimal(keys[at].as_py())
    return pc.if_else(pc.and_(fine, pc.invert(pa.array(changed))), keys, pa.scalar(None, type_))


def repeated(keys: pa.Array, owner: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The places of keys that occur again, later in the same map. `owner`: the number of each key's map."""
    plain = keys.storage if is_uuid(keys.type) else keys
    plain = pc.add(plain, pa.scalar(0.0, plain.type)) if pt.is_floating(plain.type) else plain  # -0.0 is 0.0
    codes = plain.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    order = np.lexsort((codes, owner))
    return np.asarray(order[:-1][(np.diff(codes[order]) == 0) & (np.diff(owner[order]) == 0)], np.int64)


_INTEGER = r"\A[+-]?[0-9]+\z"
_NUMBER = r"\A[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\z"
_FIXED = r"\A[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)\z"
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def check_plain(field: Field) -> None:
    """Raises if no text becomes this field."""
    type_ = _type(field)
    plain = pt.is_string(type_) or pt.is_boolean(type_) or pt.is_integer(type_) or pt.is_floating(type_)
    if not (plain or pt.is_decimal(type_) or is_textual(type_)):
        raise ValueError(f"field {field.name!r}: text cannot become {spelled(type_)}")


def from_plain(text: pa.StringArray, field: Field) -> tuple[pa.Array, list[Fault]]:
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
        plain = pc.utf8_ltrim(matching(text, _INTEGER), characters="+")
        values = cast_or_null(plain, type_)
        beyond = Reason(f"is out of the range of {spelled(type_)}", Code.OUT_OF_RANGE)
        faults += unless(pc.or_(values.is_valid(), plain.is_null()), beyond)
        text = pc.if_else(plain.is_null(), text, pa.scalar(None, pa.string()))  # the others are judged
    elif pt.is_decimal(type_):
        values = decimals(matching(text, _FIXED), type_)
    else:
        values = cast_or_null(matching(text, _NUMBER), type_)
        finite = pc.is_finite(values)
        values = pc.if_else(finite, values, pa.scalar(None, type_))
        faults += _inexact(text, values, type_)
        faults += unless(pc.or_(pc.not_equal(values, 0), pc.match_substring_regex(text, pattern=ZERO)), VANISHES)
    faults += unless(pc.or_(values.is_valid(), text.is_null()), not_valid(spelled(type_)))
    return values, faults + unfit_value(values, type_, field)


def _inexact(text: pa.StringArray, values: pa.Array, type_: pa.DataType) -> list[Fault]:
    """Integers that became another number. One with a point or an exponent becomes the nearest float, as in JSON."""
    large = pc.greater_equal(pc.abs(values), 2.0**24 if pt.is_float32(type_) else 2.0**53)
    asked = np.flatnonzero(true_in(pc.and_(large, pc.match_substring_regex(text, pattern=_INTEGER))))
    found = np.zeros(len(text), np.bool_)
    found[asked] = [Decimal(text[at].as_py()) != Decimal(values[at].as_py()) for at in asked.tolist()]
    if not found.any():
        return []
    return [Fault(found, Reason(f"is an integer that {spelled(type_)} cannot hold exactly", Code.INEXACT))]


def _type(field: Field) -> pa.DataType:
    """A number of any size is a JSON text in records, and a plain text here. So is what no column takes."""
    return pa.string() if field.type == JSON and (field.unquoted or not field.is_filled) else field.type
