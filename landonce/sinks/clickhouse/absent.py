"""Absent objects, arrays and maps in ClickHouse, which has no NULL for Tuple, Array and Map. Pure.

An absent object becomes a Tuple of NULLs, an absent array an empty Array, an absent map an empty Map, at every depth. That
is done only where nothing becomes a default such as 0 or '': every value in the Tuple is Nullable, an Array, a Map or such a
Tuple; and only in a column whose DEFAULT is just that. So an absent object, a null and an object without any value land alike.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt


def may_be_absent(type_: pa.DataType) -> bool:
    """Whether a column of this nested type can show that there is no value."""
    if pt.is_struct(type_):
        return all(each.nullable or may_be_absent(each.type) for each in type_)
    return bool(pt.is_list(type_) or pt.is_map(type_))


def empty_value(type_: pa.DataType) -> str:
    """The expression for what an absent value becomes."""
    if pt.is_struct(type_):
        return f"tuple({', '.join(empty_value(each.type) for each in type_)})"
    return "[]" if pt.is_list(type_) else "map()" if pt.is_map(type_) else "NULL"


def is_empty_value(expression: str, column_type: str, type_: pa.DataType) -> bool:
    """Whether a DEFAULT is `empty_value`, as ClickHouse writes it."""
    made = empty_value(type_)
    return _bare(expression) in (_bare(made), _bare(f"CAST({made}, '{column_type}')"))


def _bare(expression: str) -> str:
    return expression.replace("tuple(", "(").replace(" ", "")


def absent_inside(type_: pa.DataType) -> pa.DataType:
    """The type that a decoder makes for such a column: what may be absent inside is null there."""

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(absent_inside(field.type)).with_nullable(field.nullable or may_be_absent(field.type))

    if pt.is_struct(type_):
        return pa.struct([inner(each) for each in type_])
    if pt.is_list(type_):
        return pa.list_(inner(type_.value_field))
    return pa.map_(type_.key_type, inner(type_.item_field)) if pt.is_map(type_) else type_


def without_absent(array: pa.Array, type_: pa.DataType, *, nullable: bool = False) -> pa.Array:
    """The values as the column holds them, in this type. `nullable`: a Tuple may be NULL there."""
    if pt.is_struct(type_):
        parts = zip(array.flatten(), type_, strict=True)
        children = [without_absent(each, child.type, nullable=child.nullable) for each, child in parts]
        mask = array.is_null() if nullable and array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=mask)
    if pt.is_map(type_):
        entries = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
        keys, items = entries.flatten().flatten()
        items = without_absent(items, type_.item_type, nullable=type_.item_field.nullable)
        return pa.MapArray.from_arrays(_offsets(entries), keys, items, type=type_)
    if pt.is_list(type_):
        values = without_absent(array.flatten(), type_.value_type, nullable=type_.value_field.nullable)
        return pa.ListArray.from_arrays(_offsets(array), values, type=type_)
    return array


def _offsets(lists: pa.ListArray) -> pa.Int32Array:
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    return pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
