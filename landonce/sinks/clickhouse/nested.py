"""What is inside of a column, at every depth: bytes or text, and values that are absent. Pure.

**Bytes.** A String holds any bytes, and a FixedString bytes of its length. A column does not show whether it holds text or bytes. The schema
of the records says so (that of the pipeline file, or the one that the format names), or the comment of the column, which landonce writes when
it creates the column.

**Absent objects, arrays and maps.** ClickHouse has no NULL for Tuple, Array and Map. An absent object becomes a Tuple of NULLs, an absent array
an empty Array, an absent map an empty Map. That is done only where nothing becomes a default such as 0 or '': every value in the Tuple is
Nullable, an Array, a Map or such a Tuple; and only in a column whose DEFAULT is just that. So an absent object, a null and an object without
any value land alike.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.read.record_columns import RECORD_COLUMNS
from landonce.read.schema.fields import ELEMENT, VALUE, Field, Path, Schema, json_note, with_note

_NOTE = "landonce: bytes"


def taking(table: Schema, given: Schema | None, text: Collection[str] = ()) -> Schema:
    """The columns, with bytes where the records have bytes, and text where they have text. `text`: columns that hold text in any case."""
    described = given.by_name() if given is not None else {}

    def taken(field: Field) -> Field:
        other = described.get(field.name)
        if field.name in RECORD_COLUMNS:
            return field
        if field.name in text:
            return replace(field, type=as_text(field.type))
        return replace(field, type=like(field.type, other.type, field)) if other is not None else field

    return replace(table, fields=tuple(map(taken, table.fields)))


def like(type_: pa.DataType, given: pa.DataType, limits: Field) -> pa.DataType:
    """The type of a column, with bytes or text wherever `given` has them. A column whose texts are of a form of their own has no bytes."""
    if pt.is_string(type_) and _is_bytes(given):
        formed = (limits.allowed, limits.pattern, limits.bounds, limits.judge)
        if any(each is not None for each in formed):
            return type_
        return pa.binary(limits.most_bytes) if limits.most_bytes is not None else pa.binary()
    if _is_bytes(type_) and pt.is_string(given):
        return pa.string()
    if pt.is_struct(type_) and pt.is_struct(given):
        others = {each.name: each.type for each in given}
        parts = [(each, others.get(each.name, each.type), limits.inside(each.name)) for each in type_]
        return pa.struct([each.with_type(like(each.type, other, inner)) for each, other, inner in parts])
    if pt.is_list(type_) and pt.is_list(given):
        return pa.list_(type_.value_field.with_type(like(type_.value_type, given.value_type, limits)))
    if pt.is_map(type_) and pt.is_map(given):
        item = like(type_.item_type, given.item_type, limits.inside(VALUE))
        return pa.map_(type_.key_type, type_.item_field.with_type(item))
    return type_


def as_text(type_: pa.DataType) -> pa.DataType:
    """The type with text in place of bytes."""
    return _everywhere(type_, pa.string())


def as_sent(array: pa.Array) -> pa.Array:
    """The values with bytes of any length: ClickHouse reads no others as strings."""
    type_ = _everywhere(array.type, pa.binary())
    return array if array.type == type_ else array.cast(type_)


def note(type_: pa.DataType) -> str:
    """The comment of a column for a field of this type: where it holds bytes, and where JSON. Empty if it holds neither."""
    paths = [list(each) for each in _paths(type_)]
    of_bytes = "" if not paths else _NOTE if paths == [[]] else f"{_NOTE} in {json.dumps(paths)}"
    return "; ".join(filter(None, (of_bytes, json_note(type_))))


def noted(field: Field, comment: str) -> Field:
    """The field of a column with such a comment."""
    paths: list[list[str]] = []
    rest, listed = comment, f"{_NOTE} in "
    if comment == _NOTE or comment.startswith(f"{_NOTE}; "):
        rest, paths = comment.removeprefix(_NOTE).removeprefix("; "), [[]]
    elif comment.startswith(listed):
        with suppress(ValueError):
            paths, end = json.JSONDecoder().raw_decode(comment, len(listed))
            rest = comment[end:].removeprefix("; ")
    given = field.type
    for path in paths:
        given = _put(given, path)
    return replace(field, type=with_note(like(field.type, given, field), rest))


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(pt.is_binary(type_) or pt.is_fixed_size_binary(type_))


def _everywhere(type_: pa.DataType, made: pa.DataType) -> pa.DataType:
    """The type with another in place of bytes."""
    if _is_bytes(type_):
        return made
    if pt.is_struct(type_):
        return pa.struct([each.with_type(_everywhere(each.type, made)) for each in type_])
    if pt.is_list(type_):
        return pa.list_(type_.value_field.with_type(_everywhere(type_.value_type, made)))
    if pt.is_map(type_):
        return pa.map_(type_.key_type, type_.item_field.with_type(_everywhere(type_.item_type, made)))
    return type_


def _paths(type_: pa.DataType) -> Iterator[Path]:
    if _is_bytes(type_):
        yield ()
    elif pt.is_struct(type_):
        yield from ((each.name, *path) for each in type_ for path in _paths(each.type))
    elif pt.is_list(type_):
        yield from ((ELEMENT, *path) for path in _paths(type_.value_type))
    elif pt.is_map(type_):
        yield from ((VALUE, *path) for path in _paths(type_.item_type))


def _put(type_: pa.DataType, path: list[str]) -> pa.DataType:
    """The type with bytes at this place, if there is text."""
    if not path:
        return pa.binary() if pt.is_string(type_) else type_
    name, *rest = path
    if pt.is_struct(type_):
        return pa.struct([each.with_type(_put(each.type, rest)) if each.name == name else each for each in type_])
    if pt.is_list(type_) and name == ELEMENT:
        return pa.list_(type_.value_field.with_type(_put(type_.value_type, rest)))
    if pt.is_map(type_) and name == VALUE:
        return pa.map_(type_.key_type, type_.item_field.with_type(_put(type_.item_type, rest)))
    return type_


# Absent values.


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
    found, *fitting = (
        each.replace("tuple(", "(").replace(" ", "") for each in (expression, made, f"CAST({made}, '{column_type}')")
    )
    return found in fitting


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
