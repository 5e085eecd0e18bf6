"""Fields of bytes in ClickHouse: a String holds any bytes, and a FixedString bytes of its length. Pure.

A column does not show whether it holds text or bytes. The schema of the records says so (that of the pipeline file, or the one that the
format names), or the comment of the column, which landonce writes when it creates the column.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import replace

import pyarrow as pa
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
    rest, paths = _parsed(comment)
    given = field.type
    for path in paths:
        given = _put(given, path)
    return replace(field, type=with_note(like(field.type, given, field), rest))


def _parsed(comment: str) -> tuple[str, list[list[str]]]:
    """What else a comment says, and the places of bytes that it names."""
    if comment == _NOTE or comment.startswith(f"{_NOTE}; "):
        return comment.removeprefix(_NOTE).removeprefix("; "), [[]]
    if not comment.startswith(f"{_NOTE} in "):
        return comment, []
    try:
        paths, end = json.JSONDecoder().raw_decode(comment, len(f"{_NOTE} in "))
    except ValueError:
        return comment, []
    return comment[end:].removeprefix("; "), paths


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
