"""Values that have a type of their own, from formats with schemas, as the type of their column.

What the format takes without conversions lands as it does then. The rules decide the others, as if JSON wrote them: a number in its
shortest form, a time as ISO 8601.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.reasons import Reason
from landonce.read.convert.rules import ConvertedColumn, from_integers, from_literals, from_strings, patched
from landonce.read.formats.json.columns import NOT_FINITE, as_text, is_textual, mask_of, unfitting
from landonce.read.schema.fields import ConversionRule

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
