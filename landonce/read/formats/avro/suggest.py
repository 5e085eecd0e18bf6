"""The fields that Avro schemas suggest for a table, if none are declared. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt

from landonce.read.formats.avro.schema import Array, Map, Node, Primitive, Record, Union, branch_names, records_in
from landonce.read.formats.avro.values import meaning
from landonce.read.schema.fields import Field, Schema

_NULL = Primitive("null")
_NUMBERS = ("int", "long", "float", "double")


def fields_of(schemas: Sequence[Node]) -> Schema:
    """The fields of all of these schemas. Raises `TypeError` if they do not agree, or are no records.

    A field that one of them lacks may be null. Numbers of different types become the wider one.
    """
    records = [record for each in schemas for record in _records(each)]
    for each in records:
        _refuse_empty(each)
    tables = [pa.schema(_members(each)) for each in records]
    try:
        joined = pa.unify_schemas(tables, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise TypeError(f"the Avro schemas of these records do not agree: {error}") from None
    everywhere = {each.name for each in joined if all(each.name in table.names for table in tables)}
    return Schema(
        tuple(Field(each.name, each.type, required=not each.nullable and each.name in everywhere) for each in joined)
    )


def _records(node: Node) -> list[Record]:
    branches = [each for each in node.branches if each != _NULL] if isinstance(node, Union) else [node]
    records = [each for each in branches if isinstance(each, Record)]
    if len(records) < len(branches) or not all(each.fields for each in records):
        raise TypeError("the Avro schema is not a record with fields")
    return records


def _refuse_empty(record: Record) -> None:
    """JSON text holds a record without fields, and no other column does."""
    if not record.fields:
        raise TypeError(f"the Avro type {record.name} is a record without fields, which no column holds")
    for each in record.fields:
        for inner, _ in records_in(each.type):
            _refuse_empty(inner)


def _members(record: Record) -> list[pa.Field]:
    made = []
    for each in record.fields:
        type_, nullable = type_of(each.type)
        made.append(pa.field(each.name, type_, nullable))
    return made


def type_of(node: Node) -> tuple[pa.DataType, bool]:
    """The type of a column, and whether it may be null."""
    if isinstance(node, Union):
        kinds = [each for each in node.branches if each != _NULL]
        nullable = len(kinds) < len(node.branches)
        made = _union(kinds)
        return (_loose(made) if nullable else made), nullable
    if isinstance(node, Record):
        return pa.struct(_members(node)), False
    if isinstance(node, Array):
        type_, nullable = type_of(node.items)
        return pa.list_(pa.field("element", type_, nullable)), False
    if isinstance(node, Map):
        type_, nullable = type_of(node.values)
        return pa.map_(pa.string(), pa.field("value", type_, nullable)), False
    if node == _NULL:
        return pa.string(), True
    return _common(meaning(node)), False


def _loose(type_: pa.DataType) -> pa.DataType:
    """A struct that may be null, with parts that may be: some targets have no other way to say that it is."""
    return pa.struct([pa.field(each.name, _loose(each.type)) for each in type_]) if pt.is_struct(type_) else type_


def _common(type_: pa.DataType) -> pa.DataType:
    """A type that every sink has: times in microseconds, unless they are finer."""
    if pt.is_timestamp(type_) and type_.unit == "ms":
        return pa.timestamp("us", type_.tz)
    return pa.time64("us") if pt.is_time(type_) else type_


def _union(kinds: Sequence[Node]) -> pa.DataType:
    """One type as it is; numbers as the widest; several types as a struct with a field for each, as in Avro's JSON."""
    if not kinds:
        return pa.string()
    if len(kinds) == 1:
        return type_of(kinds[0])[0]
    plain = [each.kind for each in kinds if isinstance(each, Primitive) and each.logical is None]
    if len(plain) == len(kinds) and all(each in _NUMBERS for each in plain):
        widest = max(plain, key=_NUMBERS.index)
        exact = widest in ("int", "long") or "long" not in plain
        return (
            meaning(Primitive("double" if widest == "float" and "int" in plain else widest))
            if exact
            else _struct(kinds)
        )
    return _struct(kinds)


def _struct(kinds: Sequence[Node]) -> pa.DataType:
    names = branch_names(kinds)
    return pa.struct([pa.field(name, type_of(each)[0]) for name, each in zip(names, kinds, strict=True)])
