"""What becomes of fields for which a table has no column type: text, at the places that do not fit and nowhere else. Pure.

Times of any kind and UUIDs become strings, since their text is theirs alone; everything else becomes JSON text.
A place is named by its path: `a.b` in an object, `a[]` in an array, `a.*` in a map.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.types as pt

from landonce.read.schema.fields import JSON, Schema, is_uuid


def text_type(type_: pa.DataType) -> pa.DataType:
    """The type of the text that holds values of this type."""
    return pa.string() if pt.is_temporal(type_) or is_uuid(type_) else JSON


def with_text(schema: Schema, places: Collection[str]) -> Schema:
    """The schema with text at these places. A place that is not found is in a column that becomes text as a whole."""
    known = {path for each in schema.fields for path, _ in parts(each.type, each.name)}
    lost = set(places) - known
    whole = {
        each.name for each in schema.fields if any(re.match(rf"{re.escape(each.name)}[.\[]", path) for path in lost)
    }
    made = ((each, text_at(each.type, each.name, {*places, *whole})) for each in schema.fields)
    fields = (replace(each, type=type_, scale=each.scale if type_ == each.type else None) for each, type_ in made)
    return Schema(tuple(fields), schema.fold_case)


def text_at(type_: pa.DataType, path: str, places: Collection[str]) -> pa.DataType:
    """The type of what is at `path`, with text at these places."""
    if path in places:
        return text_type(type_)
    made = [text_at(each, inner, places) for inner, each in _inside(type_, path)]
    if pt.is_list(type_):
        return pa.list_(type_.value_field.with_type(made[0]))
    if pt.is_map(type_):
        return pa.map_(type_.key_type, type_.item_field.with_type(made[0]))
    if pt.is_struct(type_):
        return pa.struct([each.with_type(inner) for each, inner in zip(type_, made, strict=True)])
    return type_


def _inside(type_: pa.DataType, path: str) -> Iterator[tuple[str, pa.DataType]]:
    if pt.is_list(type_):
        yield f"{path}[]", type_.value_type
    elif pt.is_map(type_):
        yield f"{path}.*", type_.item_type
    elif pt.is_struct(type_):
        yield from ((f"{path}.{each.name}", each.type) for each in type_)


def parts(type_: pa.DataType, path: str) -> Iterator[tuple[str, pa.DataType]]:
    """The field and every part of it, by its path."""
    yield path, type_
    for inner, each in _inside(type_, path):
        yield from parts(each, inner)
