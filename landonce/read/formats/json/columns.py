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

Nothing here compares values or loops over them: the result of a value never depends on its neighbours.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.reasons import Code, Reason
from landonce.read.schema.fields import JSON, KEY, VALUE, Field, Schema, landed, spelled
from landonce.read.schema.texts import is_key, is_textual, mask_of, true_in
from landonce.read.schema.values import (
    KEY_TWICE,
    MISSING,
    NULL_INSIDE,
    VANISHES,
    Fault,
    count_faults,
    lifted,
    repeated,
    settle_keys,
    settle_value,
    unless,
)

ENTRIES = "entries"
"""The name under which `structure` lists the entries of a map."""
NUMBER = secrets.token_urlsafe(9)
"""The name under which `structure` numbers JSON texts. Nobody outside this process can know it, so no record can forge one."""


def require_decodable(schema: Schema, max_record_bytes: int) -> None:
    """Refuses, before any record is read, types that cannot be decoded exactly, and a limit that no array can hold."""
    if not 0 < max_record_bytes <= 2**30:
        raise ValueError(f"max_record_bytes must be between 1 and {2**30}, not {max_record_bytes}")
    for each in schema.fields:
        check_supported(each)


def check_supported(field: Field) -> None:
    """Refuses a type that cannot be decoded exactly."""
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
    return [Fault(true_in(pc.greater_equal(pc.abs(array), limit)), Reason("is large", Code.INEXACT))]


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
        faults = lifted(faults, array) + count_faults(array, field)
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


def _settle_map(array: pa.Array, type_: pa.DataType, field: Field) -> tuple[pa.Array, list[Fault]]:
    entries = array.field(ENTRIES)
    keys, faults = settle_keys(entries.values.field(KEY), type_.key_type, field.inside(KEY))
    values, of_values = _settle(entries.values.field(VALUE), type_.item_type, field.inside(VALUE))
    faults += of_values
    if not type_.item_field.nullable:
        faults += unless(entries.values.field(VALUE).is_valid(), NULL_INSIDE)
    parents = pc.list_parent_indices(entries).to_numpy()
    again = np.zeros(len(entries), np.bool_)
    again[parents[repeated(keys, parents)]] = True
    faults = lifted(faults, entries) + ([Fault(again, KEY_TWICE)] if again.any() else [])
    offsets = entries.offsets
    if keys.null_count:  # of rejected rows
        good = keys.is_valid()
        before = np.concatenate(([0], np.cumsum(mask_of(good))))
        keys, values = keys.filter(good), values.filter(good)
        offsets = pa.array(before[offsets.to_numpy()], pa.int32())
    mask = array.is_null() if array.null_count else None
    return pa.MapArray.from_arrays(offsets, keys, values, type=type_, mask=mask), faults
