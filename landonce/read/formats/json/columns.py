"""Converts columns from the type that Arrow's JSON reader reads (the *wire* type) to the schema's type, or to a fault.

The wire type differs from the final type where the reader is not exact enough:

- dates and times: it reads them only as numbers, bytes not at all, and one bad timestamp fails a whole block. So all
  are read as strings (or, for a field with a ``scale``, as integers) and converted by `texts`, where a bad value
  affects only its own row;
- decimals: it rescales without an overflow check: 1234 read as ``decimal128(38, 37)`` gives 8.98…. A literal has at
  most ``precision`` digits and rescaling adds at most ``scale``, so nothing can wrap in 256 bits as long as ``precision
  + scale <= 76``; `is_wide` checks that;
- structs: it refuses a null struct if a field inside is required, so everything inside is read as nullable;
- maps: it does not support them. `rewrite` makes lists of their entries, and this module makes them maps;
- floats: it lets them overflow to infinity, rounds integers to them, and accepts the literals ``NaN`` and ``Infinity``,
  which are not JSON.

Nothing here compares values: the result of a value never depends on its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.read.formats.json.rewrite import ENTRIES
from landonce.read.formats.json.values import (
    MISSING,
    Fault,
    cast_or_null,
    fixed,
    from_text,
    is_textual,
    mask_of,
    settle_value,
    unfit_value,
    unless,
)
from landonce.read.schema.fields import KEY, VALUE, Field, is_uuid, spelled


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
        if not (pt.is_string(type_.key_type) or is_textual(type_.key_type)):
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
        return _lifted(beyond_exact(array.values, limits), array)
    if pt.is_struct(array.type):
        return [fault for at in range(array.type.num_fields) for fault in beyond_exact(array.field(at), limits)]
    if not pt.is_floating(array.type):
        return []
    limit = float(limits[array.type])
    extremes = pc.min_max(array)
    if all(each is None or abs(each) < limit for each in (extremes["min"].as_py(), extremes["max"].as_py())):
        return []
    return [Fault(mask_of(pc.greater_equal(pc.abs(array), limit).fill_null(False)), "is large")]


def settle(array: pa.Array, field: Field) -> tuple[pa.Array, list[Fault]]:
    """The column in its final type, and its faults, the most serious first."""
    settled, faults = _settle(array, field.type, field)
    if field.required and settled.null_count:
        faults.append(Fault(mask_of(settled.is_null()), MISSING))
    return settled, faults


def fit(array: pa.Array, field: Field) -> tuple[pa.Array, list[Fault]]:
    """Converts a column of any type (from SQL) to the field's type without loss; also returns the faults."""
    fitted = array if array.type == field.type else _fitted(array, field.type)
    fits = pc.or_(fitted.is_valid(), array.is_null())
    faults = unless(pc.and_(fits, _unchanged(array, fitted)), f"does not fit {spelled(field.type)}")
    faults += _unfit(fitted, field.type, field)
    if field.required and array.null_count:
        faults.append(Fault(mask_of(array.is_null()), MISSING))
    return fitted, faults


def _fitted(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if pt.is_string(array.type) and (is_uuid(type_) or pt.is_time64(type_)):
        return from_text(array, type_)
    if pt.is_binary(array.type) and (is_uuid(type_) or pt.is_fixed_size_binary(type_)):
        return fixed(array, type_.storage_type if is_uuid(type_) else type_).cast(type_)
    return cast_or_null(array, type_)


def can_fit(yielded: pa.DataType, field: Field) -> bool:
    """Whether `fit` can convert this type to the field's."""
    if is_uuid(field.type):
        return bool(is_uuid(yielded) or pt.is_string(yielded) or pt.is_binary(yielded))
    try:
        _fitted(pa.array([], yielded), field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _unchanged(array: pa.Array, fitted: pa.Array) -> pa.Array:
    """Whether each value survives a round trip. A double may lose digits as a float: only overflow counts."""
    everywhere = pa.array(np.ones(len(array), dtype=np.bool_))
    if fitted.type == array.type or pt.is_nested(array.type) or is_uuid(fitted.type) or pt.is_time64(fitted.type):
        return everywhere
    if pt.is_float64(array.type) and pt.is_float32(fitted.type):
        return pc.fill_null(pc.equal(pc.is_finite(fitted), pc.is_finite(array)), True)
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
            faults += unless(inside.is_valid(), "holds a null")
        return _lifted(faults, array)
    if pt.is_struct(type_):
        faults = []
        for at, child in enumerate(type_):
            faults += _unfit(array.field(at), child.type, field.inside(child.name))
            if not child.nullable:
                faults += unless(pc.or_(array.field(at).is_valid(), array.is_null()), "holds a null")
        return faults
    if pt.is_map(type_):
        return _unfit(array.cast(_listed(type_)), _listed(type_), field)
    return unfit_value(array, type_, field)


def _settle(array: pa.Array, type_: pa.DataType, field: Field) -> tuple[pa.Array, list[Fault]]:
    if pt.is_list(type_):
        return _settle_list(array, type_, field)
    if pt.is_struct(type_):
        return _settle_struct(array, type_, field)
    if pt.is_map(type_):
        return _settle_map(array, type_, field)
    return settle_value(array, type_, field)


def _settle_list(array: pa.Array, type_: pa.DataType, field: Field) -> tuple[pa.Array, list[Fault]]:
    values, faults = _settle(array.values, type_.value_type, field)
    if not type_.value_field.nullable:
        faults += unless(array.values.is_valid(), "holds a null")
    faults = _lifted(faults, array)
    if array.type != type_:
        mask = array.is_null() if array.null_count else None
        array = pa.ListArray.from_arrays(array.offsets, values, type=type_, mask=mask)
    return array, faults


def _lifted(faults: list[Fault], lists: pa.Array) -> list[Fault]:
    """Converts faults of items to faults of the rows whose lists hold them."""
    parents = pc.list_parent_indices(lists).to_numpy() if faults else np.empty(0, np.int64)
    lifted = []
    for fault in faults:
        rows = np.zeros(len(lists), dtype=np.bool_)
        rows[parents[fault.rows]] = True
        lifted.append(Fault(rows, fault.problem))
    return lifted


def _settle_struct(array: pa.Array, type_: pa.DataType, field: Field) -> tuple[pa.Array, list[Fault]]:
    settled = [_settle(array.field(i), child.type, field.inside(child.name)) for i, child in enumerate(type_)]
    for i, child in enumerate(type_):
        if not child.nullable:
            settled[i][1].extend(unless(pc.or_(array.field(i).is_valid(), array.is_null()), "holds a null"))
    if array.type != type_:
        mask = array.is_null() if array.null_count else None
        array = pa.StructArray.from_arrays([child for child, _ in settled], fields=list(type_), mask=mask)
    return array, [fault for _, faults in settled for fault in faults]


def _settle_map(array: pa.Array, type_: pa.DataType, field: Field) -> tuple[pa.Array, list[Fault]]:
    entries = array.field(ENTRIES)
    keys, faults = _settle(entries.values.field(KEY), type_.key_type, field)
    values, of_values = _settle(entries.values.field(VALUE), type_.item_type, field)
    faults += of_values
    if not type_.item_field.nullable:
        faults += unless(entries.values.field(VALUE).is_valid(), "holds a null")
    faults = _lifted(faults, entries) + _repeated(keys, entries)
    offsets = entries.offsets
    if keys.null_count:  # of rejected rows
        good = keys.is_valid()
        before = np.concatenate(([0], np.cumsum(mask_of(good))))
        keys, values = keys.filter(good), values.filter(good)
        offsets = pa.array(before[offsets.to_numpy()], pa.int32())
    mask = array.is_null() if array.null_count else None
    return pa.MapArray.from_arrays(offsets, keys, values, type=type_, mask=mask), faults


def _repeated(keys: pa.Array, entries: pa.Array) -> list[Fault]:
    """Rows with a map that holds a key twice."""
    plain = keys.storage if is_uuid(keys.type) else keys
    codes = plain.dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
    parents = pc.list_parent_indices(entries).to_numpy()
    order = np.lexsort((codes, parents))
    same = (np.diff(codes[order]) == 0) & (np.diff(parents[order]) == 0)
    rows = np.zeros(len(entries), dtype=np.bool_)
    rows[parents[order][1:][same]] = True
    return [Fault(rows, "holds a key twice")] if rows.any() else []


def _listed(type_: pa.DataType) -> pa.DataType:
    """A map as the list that it is."""
    return pa.list_(pa.struct([type_.key_field, type_.item_field]))
