"""How a value becomes its column's type, where the pipeline file says `fit`: exactly, or not at all.

The rules are the table in `docs/conversions.md`, and a test reads that table. Each value is decided alone and from its own
text: from the content of a JSON string, from another JSON value as it is written (a *literal*), or from a CSV value. Kernels
convert what is common; `_one` decides what is left, value by value, and says why a value is refused. Nothing here rounds,
and no number is written out that has more digits than its text, whatever its exponent.

Values of formats with schemas have a type of their own. What the format takes without conversions lands as it does then; the rules
decide the others (`converted`), as if JSON wrote them: a number in its shortest form, a time as ISO 8601.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.reasons import Code, Reason
from landonce.read.formats import Indexes
from landonce.read.formats.json.explain import is_exact, vanishes
from landonce.read.schema.fields import JSON, ConversionRule, Unit, spelled
from landonce.read.schema.texts import (
    UNIT_DIGITS,
    as_text,
    cast_or_null,
    decimals,
    from_text,
    from_ticks,
    is_textual,
    mask_of,
    matching,
    true_in,
)
from landonce.read.schema.values import NOT_FINITE, VANISHES, ZERO, Fault, not_valid, unfitting

VERSION = 3
"""Increased whenever a rule changes: it is part of the fingerprint of every plan with `fit`."""


@dataclass
class ConvertedColumn:
    """The values of a column in their type, and why some of its rows must not land: a predicate of the field."""

    values: pa.Array
    problems: dict[int, Reason]

    def faults(self) -> list[Fault]:
        """One fault per problem."""
        rows = {why: np.zeros(len(self.values), np.bool_) for why in self.problems.values()}
        for row, why in self.problems.items():
            rows[why][row] = True
        return [Fault(mask, why) for why, mask in rows.items()]


def patched(values: pa.Array, left: Indexes, more: ConvertedColumn) -> ConvertedColumn:
    """The values, with others in the rows that are left."""
    places = np.arange(len(values))
    places[left] = np.arange(len(values), len(values) + len(left))
    both = pa.concat_arrays([values, more.values]).take(pa.array(places))
    return ConvertedColumn(both, {int(left[at]): why for at, why in more.problems.items()})


_SECONDS_FROM, _SECONDS_TO = 315_532_800, 16_725_225_600
"""1980 and 2500. The unit of a number is the one that gives a time between them: no two units do, and neither does a number
of digits of a date (20260118123000), nor the last second of the year 9999."""
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_PLAIN_INTEGER = r"\A-?(?:0|[1-9][0-9]*)\z"
_WHOLE = r"\A-?(?:0|[1-9][0-9]*)(?:\.0+)?\z"
_POSITIONAL = r"\A-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?\z"
_POINT = r"\A(-?[0-9]+)\.0+\z"
_PARTS = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?", re.ASCII)
_STRICT = re.compile(_NUMBER, re.ASCII)
_LOOSE = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
"""Of decimals in strings, which `strict` reads too."""
_BOOLEANS = ("false", "true", "0", "1")
_EXACT_TO = {pa.float32(): 2**24, pa.float64(): 2**53}
_EPOCHS: tuple[Literal["s", "ms", "us", "ns"], ...] = ("s", "ms", "us", "ns")
_FAR = 10**9
"""An exponent that no type reaches."""


class _Refused(Exception):
    """Why a value does not become the type."""

    def __init__(self, why: Reason) -> None:
        super().__init__(why)
        self.why = why


def is_convertible(type_: pa.DataType) -> bool:
    """Whether a rule says what becomes this type. JSON text takes every value, and structs, lists and maps are what they are."""
    return not pt.is_nested(type_) and type_ != JSON


def from_written(text: pa.StringArray, type_: pa.DataType, rule: ConversionRule) -> ConvertedColumn:
    """From JSON values as they are written; a null is a null."""
    quoted = true_in(pc.starts_with(text, pattern='"'))
    strings, literals = np.flatnonzero(quoted), np.flatnonzero(~quoted & mask_of(text.is_valid()))
    pieces = [
        (strings, from_strings(_unquoted(text.take(pa.array(strings))), type_, rule)),
        (literals, from_literals(text.take(pa.array(literals)), type_, rule)),
    ]
    places = np.full(len(text), -1, np.int64)
    places[np.concatenate((strings, literals))] = np.arange(len(strings) + len(literals))
    values = pa.concat_arrays([piece.values for _, piece in pieces]).take(pa.array(places, mask=places < 0))
    return ConvertedColumn(values, {int(rows[at]): why for rows, piece in pieces for at, why in piece.problems.items()})


def from_strings(text: pa.StringArray, type_: pa.DataType, rule: ConversionRule) -> ConvertedColumn:
    """From the content of JSON strings."""
    if rule.empty_is_null:
        text = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
    return _finished(text, _fast_from_strings(text, type_), type_, lambda each: _one(each, type_, rule, quoted=True))


def from_literals(text: pa.StringArray, type_: pa.DataType, rule: ConversionRule) -> ConvertedColumn:
    """From JSON values that are not strings, as they are written."""
    return _finished(
        text, _fast_from_literals(text, type_, rule), type_, lambda each: _one(each, type_, rule, quoted=False)
    )


def from_integers(numbers: pa.Int64Array, type_: pa.DataType, rule: ConversionRule) -> ConvertedColumn:
    """From JSON integers: times, booleans and strings. A zero becomes no string, because it may be written as -0."""
    if pt.is_string(type_):
        zero = pc.equal(numbers, 0)
        rows = np.flatnonzero(true_in(zero))
        return ConvertedColumn(
            numbers.cast(type_), dict.fromkeys(rows.tolist(), Reason("may be written as -0", Code.INEXACT))
        )
    if pt.is_boolean(type_):
        known = pc.or_(pc.equal(numbers, 0), pc.equal(numbers, 1))
        fast = pc.if_else(known, pc.equal(numbers, 1), pa.scalar(None, pa.bool_()))
    else:
        fast = _times(numbers, type_, rule)
    return _finished(numbers, fast, type_, lambda each: _one(str(each), type_, rule, quoted=False))


def _finished(given: pa.Array, fast: pa.Array, type_: pa.DataType, one: Callable[[str], object]) -> ConvertedColumn:
    """What kernels left null, value by value."""
    left: Indexes = np.flatnonzero(mask_of(pc.and_(fast.is_null(), given.is_valid())))
    if not len(left):
        return ConvertedColumn(fast, {})
    found, problems = list[object](), dict[int, Reason]()
    for at, each in zip(left, given.take(pa.array(left)).to_pylist(), strict=True):
        try:
            found.append(one(each))
        except _Refused as refused:
            problems[int(at)] = refused.why
            found.append(None)
    if len(problems) == len(left):
        return ConvertedColumn(fast, problems)
    raw = pa.int32() if pt.is_date32(type_) else pa.int64() if pt.is_temporal(type_) else type_
    places = np.arange(len(given))
    places[left] = np.arange(len(given), len(given) + len(left))
    values = pa.concat_arrays([fast, pa.array(found, raw).cast(type_)]).take(pa.array(places))
    return ConvertedColumn(values, problems)


# What is common, by kernels: null means undecided.
def _fast_from_strings(text: pa.StringArray, type_: pa.DataType) -> pa.Array:
    if pt.is_string(type_):
        return text
    if pt.is_date32(type_):
        dates = from_text(text, type_)
        left = pc.if_else(dates.is_valid(), pa.scalar(None, pa.string()), text)
        if left.null_count == len(left):
            return dates
        moments = from_text(left, pa.timestamp("us"))
        return pc.coalesce(dates, from_ticks(moments.cast(pa.int64()), type_, 6))
    if is_textual(type_):
        return from_text(text, type_)
    if pt.is_boolean(type_):
        known = pc.index_in(pc.ascii_lower(text), value_set=pa.array(_BOOLEANS))
        return pa.array([False, True, False, True]).take(known)
    return _numbers(text, type_)


def _fast_from_literals(text: pa.StringArray, type_: pa.DataType, rule: ConversionRule) -> pa.Array:
    if pt.is_string(type_):
        return text
    if pt.is_boolean(type_):
        return pa.array([False, True]).take(pc.index_in(text, value_set=pa.array(_BOOLEANS[:2])))
    if pt.is_temporal(type_):
        return _times(cast_or_null(matching(text, _PLAIN_INTEGER), pa.int64()), type_, rule)
    if is_textual(type_):
        return pa.nulls(len(text), type_)
    return _numbers(text, type_)


def _numbers(text: pa.StringArray, type_: pa.DataType) -> pa.Array:
    if pt.is_floating(type_):
        floats = cast_or_null(matching(text, rf"\A{_NUMBER}\z"), type_)
        sure = pc.or_(pc.less(pc.abs(floats), _EXACT_TO[type_]), pc.match_substring_regex(text, pattern="[.eE]"))
        sure = pc.and_(sure, pc.or_(pc.not_equal(floats, 0), pc.match_substring_regex(text, pattern=ZERO)))
        return pc.if_else(pc.and_(pc.is_finite(floats), sure), floats, pa.scalar(None, type_))
    if pt.is_decimal(type_):
        return decimals(matching(text, _POSITIONAL), type_)
    whole = matching(text, _WHOLE)
    if pc.any(pc.match_substring(whole, ".")).as_py():
        whole = pc.replace_substring_regex(whole, pattern=_POINT, replacement=r"\1")
    return cast_or_null(whole, type_)


def _times(numbers: pa.Int64Array, type_: pa.DataType, rule: ConversionRule) -> pa.Array:
    """Integers as times; null where the unit is not known, or the type does not hold it exactly."""
    if pt.is_time64(type_) or rule.epoch == "d":  # rare
        return pa.nulls(len(numbers), type_)
    if rule.epoch is not None:
        return from_ticks(numbers, type_, UNIT_DIGITS[rule.epoch])
    found = pa.nulls(len(numbers), type_)
    for digits in (UNIT_DIGITS[unit] for unit in _EPOCHS):
        first, end = _SECONDS_FROM * 10**digits, min(_SECONDS_TO * 10**digits, 2**63 - 1)
        mine = pc.and_(pc.greater_equal(numbers, first), pc.less(numbers, end))
        if pc.any(mine).as_py():
            chosen = pc.if_else(mine, numbers, pa.scalar(None, pa.int64()))
            found = pc.coalesce(found, from_ticks(chosen, type_, digits))
    return found


def _unquoted(text: pa.StringArray) -> pa.StringArray:
    """The content of JSON strings."""
    plain = pc.utf8_trim(text, characters='"')
    escaped = mask_of(pc.match_substring(text, "\\"))
    if not escaped.any():
        return plain
    listed = text.filter(pa.array(escaped)).to_pylist()
    contents = json.loads(f"[{','.join(listed)}]", strict=False)
    return pc.replace_with_mask(plain, pa.array(escaped), pa.array(contents, pa.string()))


# Every rule, for one value.
def _one(text: str, type_: pa.DataType, rule: ConversionRule, *, quoted: bool) -> object:
    """The value in Arrow's own terms: a time as its ticks. Raises `_Refused`."""
    number = _parsed(text, _LOOSE if quoted and pt.is_decimal(type_) else _STRICT)
    if number is None or (is_textual(type_) and not pt.is_temporal(type_)):
        raise _Refused(_other_kind(text, type_, quoted=quoted))
    if pt.is_temporal(type_):
        return _moment(number, type_, rule, quoted=quoted)
    if pt.is_boolean(type_):
        if quoted or number.whole(0) not in (0, 1):
            raise _Refused(_other_kind(text, type_, quoted=quoted))
        return number.whole(0) == 1
    if pt.is_floating(type_):
        return _float(text, type_)
    if pt.is_integer(type_):
        return _integer(number, type_)
    return _decimal(number, type_)


def _other_kind(text: str, type_: pa.DataType, *, quoted: bool) -> Reason:
    if quoted:
        return not_valid(spelled(type_))
    kinds = {"{": "an object", "[": "an array", "t": "a boolean", "f": "a boolean"}
    return Reason(f"should be {spelled(type_)} but is {kinds.get(text[:1], 'a number')}", Code.WRONG_TYPE)


@dataclass(frozen=True)
class _Number:
    """`digits` × 10 to the power of `power`: the value of a number's text. Without zeros at either end."""

    negative: bool
    digits: str
    power: int

    def whole(self, places: int) -> int | None:
        """The value × 10 to the power of `places`, if it is whole. What no type holds is cut to what none holds either."""
        if not self.digits:
            return 0
        power = self.power + places
        if power < 0:
            return None
        size = 10**100 if len(self.digits) + power > 100 else int(self.digits) * 10**power
        return -size if self.negative else size

    def unit(self) -> Unit | None:
        """The unit in which the value is a time from 1980 to 2499."""
        length = len(self.digits) + self.power
        if self.negative or not 0 < length <= 20:
            return None
        rounded_down = int(self.digits[:length].ljust(length, "0"))
        for unit in _EPOCHS:
            if _SECONDS_FROM <= rounded_down // 10 ** UNIT_DIGITS[unit] < _SECONDS_TO:
                return unit
        return None


def _parsed(text: str, form: re.Pattern[str]) -> _Number | None:
    parts = _PARTS.fullmatch(text) if form.fullmatch(text) else None
    if parts is None:
        return None
    sign, whole, fraction, exponent = (each or "" for each in parts.groups())
    digits = (whole + fraction).lstrip("0")
    kept = digits.rstrip("0")
    size = exponent.lstrip("+-0")
    power = (_FAR if len(size) > 9 else int(size or 0)) * (-1 if exponent.startswith("-") else 1)
    return _Number(sign == "-", kept, power - len(fraction) + len(digits) - len(kept))


def _integer(number: _Number, type_: pa.DataType) -> int:
    whole = number.whole(0)
    if whole is None:
        raise _Refused(Reason(f"has a fraction, which {spelled(type_)} cannot hold", Code.INEXACT))
    bits, signed = type_.bit_width, pt.is_signed_integer(type_)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    if not low <= whole < high:
        raise _Refused(Reason(f"is out of the range of {spelled(type_)}", Code.OUT_OF_RANGE))
    return whole


def _decimal(number: _Number, type_: pa.DataType) -> Decimal:
    whole = number.whole(type_.scale)
    if whole is None or abs(whole) >= 10**type_.precision:
        raise _Refused(unfitting(type_))
    return Decimal((int(whole < 0), tuple(map(int, str(abs(whole)))), -type_.scale))


def _float(text: str, type_: pa.DataType) -> float:
    value = cast_or_null(pa.array([text]), type_)
    if value.null_count or not pc.is_finite(value)[0].as_py():
        raise _Refused(NOT_FINITE)
    if not set(text) & set(".eE") and not is_exact(text, type_):
        held = "double" if pt.is_float64(type_) else "float"
        raise _Refused(Reason(f"is an integer that a {held} cannot hold exactly", Code.INEXACT))
    if vanishes(text, type_):
        raise _Refused(VANISHES)
    found: float = value[0].as_py()
    return found


def _moment(number: _Number, type_: pa.DataType, rule: ConversionRule, *, quoted: bool) -> int:
    """Ticks of the type since 1970, or since midnight; days for a date."""
    time_of_day = pt.is_time64(type_)
    unit = rule.epoch or (None if quoted or time_of_day else number.unit())
    if unit is None and quoted:
        raise _Refused(not_valid(spelled(type_)))
    if unit is None:
        raise _Refused(Reason("is a number, and its unit is not known: declare `epoch`", Code.INVALID_VALUE))
    digits = 0 if pt.is_date32(type_) else UNIT_DIGITS[type_.unit]
    in_days = unit == "d"
    ticks = number.whole(0 if in_days else digits - UNIT_DIGITS[unit])
    if ticks is None:
        raise _Refused(Reason(f"is finer than {spelled(type_)} can hold", Code.INEXACT))
    if in_days:
        ticks *= 86_400 * 10**digits
    if pt.is_date32(type_):
        if ticks % 86_400:
            raise _Refused(Reason("has a time of day, which DATE cannot hold", Code.INEXACT))
        ticks //= 86_400
    most = 2**31 - 1 if pt.is_date32(type_) else 2**63 - 1
    low, high = (0, 86_400 * 10**digits - 1) if time_of_day else (-most, most)
    if not low <= ticks <= high:
        raise _Refused(Reason(f"is out of the range of {spelled(type_)}", Code.OUT_OF_RANGE))
    return ticks


Strictly = Callable[[pa.Array], pa.Array]
"""What a format makes of values without conversions. Null: nothing."""


def takes(own: pa.DataType, type_: pa.DataType, rule: ConversionRule) -> bool:
    """Whether a rule says what becomes this type of values of their own type. Bytes and UUIDs are what the format takes them for."""
    if pt.is_nested(type_) or (is_textual(type_) and not pt.is_temporal(type_)):
        return False
    if pt.is_boolean(own):
        return bool(pt.is_boolean(type_) or pt.is_string(type_))
    if pt.is_temporal(own):
        return bool((pt.is_date32(own) and pt.is_timestamp(type_)) or (pt.is_timestamp(own) and pt.is_date32(type_)))
    if pt.is_integer(own) or pt.is_floating(own) or pt.is_decimal(own):
        return rule.epoch is not None or not pt.is_time64(type_)
    return bool(pt.is_string(own))


def converted(given: pa.Array, type_: pa.DataType, rule: ConversionRule, strictly: Strictly | None) -> ConvertedColumn:
    """The values as this type. `strictly`: None if the format takes no such values without conversions."""
    if rule.empty_is_null and (pt.is_string(given.type) or pt.is_binary(given.type)):
        given = pc.if_else(pc.equal(pc.binary_length(given), 0), pa.scalar(None, given.type), given)
    if strictly is None:
        return _by_rules(given, type_, rule)
    values = strictly(given)
    left = np.flatnonzero(mask_of(pc.and_(values.is_null(), given.is_valid())))
    return (
        patched(values, left, _by_rules(given.take(pa.array(left)), type_, rule))
        if len(left)
        else ConvertedColumn(values, {})
    )


def _by_rules(given: pa.Array, type_: pa.DataType, rule: ConversionRule) -> ConvertedColumn:
    own = given.type
    if not takes(own, type_, rule):
        return ConvertedColumn(pa.nulls(len(given), type_), _all(given.is_valid(), unfitting(type_)))
    if pt.is_integer(own) and own != pa.uint64() and pt.is_temporal(type_):
        return from_integers(given.cast(pa.int64()), type_, rule)
    if pt.is_timestamp(own) and pt.is_date32(type_):
        return from_integers(given.cast(pa.int64()), type_, ConversionRule(own.unit))
    text = _written(given)
    found = (from_strings if pt.is_string(own) or pt.is_temporal(own) else from_literals)(text, type_, rule)
    lost = pc.and_(text.is_null(), given.is_valid())
    return ConvertedColumn(
        found.values, {**found.problems, **_all(lost, NOT_FINITE if pt.is_floating(own) else unfitting(type_))}
    )


def _all(rows: pa.BooleanArray, why: Reason) -> dict[int, Reason]:
    return dict.fromkeys(np.flatnonzero(mask_of(rows)).tolist(), why)


def _written(given: pa.Array) -> pa.StringArray:
    """The text of each value; null if it has none, as NaN and a year beyond 9999."""
    own, nothing = given.type, pa.scalar(None, pa.string())
    if pt.is_temporal(own):
        return as_text(given)
    text = given.cast(pa.string())
    if pt.is_floating(own):
        whole = pc.invert(pc.match_substring_regex(text, pattern="[.e]"))
        text = pc.if_else(whole, pc.binary_join_element_wise(text, "0", "."), text)
        return pc.if_else(pc.is_finite(given), text, nothing)
    if pt.is_decimal(own):
        short = pc.match_substring(text, "E")
        plain = [format(Decimal(each), "f") for each in text.filter(short).drop_null().to_pylist()]
        return pc.replace_with_mask(text, pc.fill_null(short, False), pa.array(plain, pa.string()))
    return text
