"""Which field of a record means which column of a table.

By the table's name mapping (`schema.name-mapping.default`): a column that it gives names has these and no other. Any other
column has its own name. Nested fields likewise. Where upper and lower case do not matter, they matter for neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow.types as pt
from pyiceberg.schema import Schema as TableSchema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from landonce.errors import TableUnfit
from landonce.read.schema.fields import ELEMENT, VALUE, Field, Names, Path, Schema
from landonce.sinks.iceberg.types import schema_of


def schema_for(table: Table, *, coordinates: bool, fold_case: bool = False, declared: Schema | None = None) -> Schema:
    """What the decoder must produce for a table, and under which names records hold it.

    What is declared may ask for more: that a field is there, and how long a tick is where a time is an integer, which
    Iceberg's types do not say.
    """
    schema = schema_of(table.schema(), coordinates=coordinates)
    told = declared.by_name() if declared is not None else {}
    stricter = Schema(tuple(_declared(each, told.get(each.name)) for each in schema.fields))
    return with_names(stricter, table.schema(), _mapping(table), fold_case=fold_case)


def _declared(column: Field, declared: Field | None) -> Field:
    if declared is None:
        return column
    timed = pt.is_timestamp(column.type) or pt.is_date32(column.type)
    scale = declared.scale if timed else None
    return replace(column, required=column.required or declared.required, scale=scale)


def with_names(schema: Schema, table_schema: TableSchema, mapping: NameMapping | None, *, fold_case: bool) -> Schema:
    """The schema of a table, with the names that records use."""
    names = _names_by_id(mapping) if mapping is not None else {}
    columns = {each.name: each for each in table_schema.fields}
    fields = tuple(_named(each, columns[each.name], names) for each in schema.fields)
    try:
        return Schema(fields, fold_case=fold_case)
    except ValueError as error:
        raise TableUnfit(
            f"the names of the table's columns cannot be told apart: {error}.",
            safe="Nothing was written.",
            command="rename a column"
            + (f", correct the table's property {TableProperties.DEFAULT_NAME_MAPPING}" if names else "")
            + (", or say `case_insensitive: false` in {file}" if fold_case else ""),
        ) from None


def _mapping(table: Table) -> NameMapping | None:
    try:
        return table.name_mapping()
    except ValueError:
        raise TableUnfit(
            f"the table's property {TableProperties.DEFAULT_NAME_MAPPING} is not a name mapping.",
            safe="Nothing was written.",
            command="correct the property, or remove it",
        ) from None


def _names_by_id(fields: Iterable[MappedField]) -> dict[int, Names]:
    found: dict[int, Names] = {}
    for each in fields:
        if each.field_id is not None and each.names:
            found[each.field_id] = tuple(each.names)
        found.update(_names_by_id(each.fields))
    return found


def _named(field: Field, column: NestedField, names: Mapping[int, Names]) -> Field:
    inside = tuple(
        (path, names[each.field_id]) for path, each in _inner_fields(column.field_type, ()) if each.field_id in names
    )
    inner = tuple((path, told) for path, told in inside if told != (path[-1],))
    told = names.get(column.field_id, (column.name,))
    return replace(field, aliases=told if told != (column.name,) else (), inner_aliases=inner)


def _inner_fields(type_: IcebergType, path: Path) -> Iterator[tuple[Path, NestedField]]:
    """The fields of structs inside of a column. Elements and values have no names in records."""
    if isinstance(type_, StructType):
        for each in type_.fields:
            yield (*path, each.name), each
            yield from _inner_fields(each.field_type, (*path, each.name))
    elif isinstance(type_, ListType):
        yield from _inner_fields(type_.element_type, (*path, ELEMENT))
    elif isinstance(type_, MapType):
        yield from _inner_fields(type_.value_type, (*path, VALUE))
