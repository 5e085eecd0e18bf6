"""Says why a record was refused, in a few words that never repeat its content.

Arrow's reader decides whether a record is refused; the standard library's reader says why, and which fields hold
integers. A finding is ``certain`` if Arrow must come to the same result; then asking Arrow for each of many bad records
would only cost time. A test compares the two. This module decides by itself only for a schema with a decimal that Arrow
might wrap around (see `columns.is_wide`).

It is slow, and never called for a record that Arrow read together with its neighbours.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from landonce.protocol.reasons import Code, Reason, of_field
from landonce.read.formats.json.structure import MOST_LEVELS
from landonce.read.schema.fields import JSON, Place, Schema, by_record_name, folded, spelled
from landonce.read.schema.texts import is_textual
from landonce.read.schema.values import VANISHES, unfitting

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_NOT_ZERO = re.compile(r"[-+.0]*[1-9]")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


_LONE_SURROGATE = Reason("holds an escaped surrogate without its other half", Code.NOT_UTF8)
BEYOND_DOUBLE = Reason("holds a number beyond the range of a double", Code.OUT_OF_RANGE)
_TOO_DEEP = Reason("nested too deeply", Code.TOO_LARGE)


@dataclass(frozen=True)
class Explained:
    """``reason`` is None if nothing is wrong; ``integers`` are the positions of fields that hold an integer, or
    None if the record could not be read that far.
    """

    reason: Reason | None = None
    integers: frozenset[int] | None = None
    empty: bool = False
    certain: bool = False


class _Problem(NamedTuple):
    reason: Reason
    certain: bool = True
    rounds: bool = False


class _Literal:
    __slots__ = ("text",)
    kind = ""

    def __init__(self, text: str) -> None:
        self.text = text


class _Integer(_Literal):
    kind = "an integer"


class _Fraction(_Literal):
    kind = "a number with a fraction"


class _NotFinite(_Literal):
    kind = "NaN or Infinity"


class _BeyondDouble(Exception):
    """Raised inside the reader, because its hooks cannot return a result."""


class _Object(list[tuple[str, Any]]):
    """The members of an object with repeated keys, which a dict would hide."""


def explain(text: str, schema: Schema) -> Explained:
    """Examines one record by itself."""
    try:
        value = _READER.decode(text)
        if not isinstance(value, _Object):
            return Explained(Reason(f"not a JSON object but {_kind(value)}", Code.MALFORMED), certain=True)
        if _SURROGATE.search(text) and _has_lone_surrogate(value):
            return Explained(_LONE_SURROGATE)
        level = _level(schema)
        problem = next(_members(value, level, "", {field.name: field.scale for field in schema.fields}), None)
    except json.JSONDecodeError as error:
        # Arrow accepts NaN, Inf and Infinity in fields that it skips, some in spellings that Python does not know.
        return Explained(_syntax(error), certain="NaN" not in text and "Inf" not in text)
    except _BeyondDouble:
        return Explained(BEYOND_DOUBLE)
    except RecursionError:
        return Explained(_TOO_DEEP)
    members = {name: members[-1][1] for name, members in level.sort(value).items()}
    integers = frozenset(
        position for position, field in enumerate(schema.fields) if isinstance(members.get(field.name), _Integer)
    )
    if problem is None:
        return Explained(None, integers, empty=not value)
    return Explained(problem.reason, integers, certain=problem.certain)


def rounded(text: str, schema: Schema) -> Reason | None:
    """The number that its field cannot hold, in a record that Arrow has read: an integer that it would round, or a number that would become
    0. None if there is none.

    Arrow accepts some texts that are not JSON. The standard library cannot read them, so they are refused.
    """
    try:
        problems = _members(_reader(_Fraction).decode(text), _level(schema), "", {})
        return next((each.reason for each in problems if each.rounds), None)
    except json.JSONDecodeError as error:
        return _syntax(error)
    except RecursionError:
        return _TOO_DEEP


def _fraction(literal: str) -> _Fraction:
    if math.isinf(float(literal)):
        raise _BeyondDouble
    return _Fraction(literal)


def _reader(fraction: Callable[[str], _Fraction]) -> json.JSONDecoder:
    """Literals stay text: Python limits the digits of an integer, and a float would not show what was written."""
    return json.JSONDecoder(
        object_pairs_hook=_Object, parse_int=_Integer, parse_float=fraction, parse_constant=_NotFinite
    )


_READER = _reader(_fraction)


def _has_lone_surrogate(value: Any) -> bool:
    if isinstance(value, str):
        return any("\ud800" <= character <= "\udfff" for character in value)
    return isinstance(value, (list, tuple)) and any(map(_has_lone_surrogate, value))


def _syntax(error: json.JSONDecodeError) -> Reason:
    if error.msg == "Extra data":
        return Reason(f"not one JSON value: more follows at character {error.pos}", Code.MALFORMED)
    what = error.msg.partition(": ")[0].removesuffix(" at")
    return Reason(f"not valid JSON: {what} at character {error.pos}", Code.MALFORMED)


def _kind(value: Any) -> str:
    if isinstance(value, _Literal):
        return value.kind
    for type_, kind in ((bool, "a boolean"), (str, "a string"), (_Object, "an object"), (list, "an array")):
        if isinstance(value, type_):
            return kind
    return "null"


class _Level:
    """The fields of an object, and which of its members mean which of them."""

    def __init__(self, places: tuple[Place, ...], fold_case: bool) -> None:
        self.places = places
        self.fold_case = fold_case
        self._known = by_record_name(places, fold_case)

    def sort(self, value: _Object) -> dict[str, list[tuple[str, Any]]]:
        members = defaultdict(list)
        for name, item in value:
            place = self._known.get(folded(name, self.fold_case))
            if place is not None:
                members[place.name].append((name, item))
        return members

    def inside(self, place: Place) -> _Level:
        return _Level(place.inside, self.fold_case)


@lru_cache(maxsize=8)
def _level(schema: Schema) -> _Level:
    return _Level(schema.places(), schema.fold_case)


def _members(value: _Object, level: _Level, path: str, scales: dict[str, int | None]) -> Iterator[_Problem]:
    members = level.sort(value)
    for place in level.places:
        where = f"{path}{place.name}"
        mine = members.get(place.name, [])
        if len(mine) > 1:
            more = "more than once" if len({name for name, _ in mine}) == 1 else "under more than one name"
            yield _wrong(where, f"occurs {more}", Code.REPEATED_FIELD)
        elif mine:
            yield from _value(mine[0][1], place, level, where, scales.get(place.name))


def _value(value: Any, place: Place, level: _Level, where: str, scale: int | None) -> Iterator[_Problem]:
    type_ = place.type
    if value is None:
        return  # Arrow reads it; the column check finds out whether it may be missing
    if type_ == JSON:
        yield from _text_problems(value, where)
        return
    is_map = pt.is_map(type_) and isinstance(value, _Object)
    if is_map or (pt.is_list(type_) and type(value) is list):
        for item in value:
            yield from _value(item[1] if is_map else item, place.inside[0], level, f"{where}[]", None)
    elif place.positional and type(value) is list:
        if len(value) != len(place.inside):
            yield _wrong(where, f"should have {len(place.inside)} items but has {len(value)}", Code.WRONG_TYPE)
        for at, (item, part) in enumerate(zip(value, place.inside, strict=False)):
            yield from _value(item, part, level, f"{where}[{at}]", None)
    elif pt.is_struct(type_) and isinstance(value, _Object):
        yield from _members(value, level.inside(place), f"{where}.", {})
    elif not _is_kind_for(value, type_, scale):
        certain = not isinstance(value, _NotFinite)
        yield _wrong(where, f"should be {spelled(type_)} but is {_kind(value)}", Code.WRONG_TYPE, certain)
    elif pt.is_integer(type_) and not _integer_fits(value.text, type_):
        yield _wrong(where, f"is out of the range of {spelled(type_)}", Code.OUT_OF_RANGE)
    elif pt.is_decimal(type_) and not _decimal_fits(value if isinstance(value, str) else value.text, type_):
        yield _Problem(of_field(where, unfitting(type_)), certain=False)
    elif pt.is_floating(type_) and isinstance(value, _Integer) and not is_exact(value.text, type_):
        held = "double" if pt.is_float64(type_) else "float"
        rounds = Reason(f"is an integer that a {held} cannot hold exactly", Code.INEXACT)
        yield _Problem(of_field(where, rounds), certain=False, rounds=True)
    elif pt.is_floating(type_) and vanishes(value.text, type_):
        yield _Problem(of_field(where, VANISHES), certain=False, rounds=True)


def _wrong(where: str, problem: str, code: Code, certain: bool = True) -> _Problem:
    return _Problem(of_field(where, Reason(problem, code)), certain)


def _text_problems(value: Any, where: str) -> Iterator[_Problem]:
    """What a value holds that JSON does not have, or that is nested too deeply."""
    inside, level = [value], 0
    while inside:
        if any(isinstance(each, _NotFinite) for each in inside):
            yield _wrong(where, "holds NaN or Infinity", Code.MALFORMED, certain=False)
        containers = [each for each in inside if isinstance(each, list)]
        level += bool(containers)
        if level > MOST_LEVELS:
            yield _wrong(where, "is nested too deeply", Code.TOO_LARGE, certain=False)
        inside = [item[1] if isinstance(each, _Object) else item for each in containers for item in each]


def _is_kind_for(value: Any, type_: pa.DataType, scale: int | None) -> bool:
    if pt.is_integer(type_):
        return isinstance(value, _Integer)
    if pt.is_floating(type_):
        return isinstance(value, (_Integer, _Fraction))
    if pt.is_decimal(type_):
        return isinstance(value, (_Integer, _Fraction, str))
    if pt.is_boolean(type_):
        return isinstance(value, bool)
    if pt.is_string(type_):
        return isinstance(value, str)
    if is_textual(type_):
        return isinstance(value, str) or (scale is not None and isinstance(value, _Integer))
    return False


def _integer_fits(literal: str, type_: pa.DataType) -> bool:
    if len(literal) > 20:
        return False
    number, bits = int(literal), type_.bit_width
    if pt.is_signed_integer(type_):
        return bool(-(2 ** (bits - 1)) <= number < 2 ** (bits - 1))
    return bool(number < 2**bits and not literal.startswith("-"))


def is_exact(literal: str, type_: pa.DataType) -> bool:
    """Whether the float nearest to an integer equals it. An integer beyond the range is another fault."""
    nearest = float(literal)
    if pt.is_float32(type_) and math.isfinite(nearest):
        with np.errstate(over="ignore"):
            nearest = float(np.float32(nearest))
    return not math.isfinite(nearest) or Decimal(nearest) == Decimal(literal)


def vanishes(literal: str, type_: pa.DataType) -> bool:
    """Whether the float nearest to a number is 0, and the number is not."""
    nearest = float(literal)
    if pt.is_float32(type_):
        with np.errstate(over="ignore", under="ignore"):
            nearest = float(np.float32(nearest))
    return nearest == 0 and _NOT_ZERO.match(literal) is not None


def _decimal_fits(literal: str, type_: pa.DataType) -> bool:
    """Whether the type holds it and Arrow accepts it; Arrow counts the digits as written."""
    if not _DECIMAL.fullmatch(literal):
        return False
    try:
        _, digits, power = Decimal(literal).as_tuple()
    except InvalidOperation:
        return False
    if digits == (0,):
        return True
    exponent, precision, scale = int(power), int(type_.precision), int(type_.scale)
    whole = len(digits) + exponent
    trailing_zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    written = max(len(digits), whole)
    return written <= precision and whole <= precision - scale and -exponent - trailing_zeros <= scale
