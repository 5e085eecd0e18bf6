"""What a start would create, as text. Nothing is created here."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.schema import Schema as TableSchema
from pyiceberg.types import (
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
    TimestampType,
    TimestamptzType,
)

from landonce.read.schema.fields import Schema
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.iceberg.partitions import parse_spec, spelled
from landonce.sinks.iceberg.table import creation, table_schema

_WORDS: dict[IcebergType, str] = {
    LongType(): "bigint",
    TimestampType(): "timestamp_ntz",
    TimestamptzType(): "timestamp",
}


def creation_text(told: Iceberg, sql_name: str, declared: Schema) -> str:
    """In the words of Spark's SQL, as far as it has words for Iceberg's types."""
    made = creation(told)
    schema = table_schema(declared, made)
    columns = ",\n    ".join(_column(each) for each in schema.fields)
    properties = {**made.properties, "format-version": str(made.version)}
    lines = [f"CREATE TABLE {sql_name}", f"(\n    {columns}\n)", "USING iceberg"]
    if told.partition_by:
        lines.append(f"PARTITIONED BY ({spelled(parse_spec(told.partition_by, schema), schema)})")
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in sorted(properties.items()))
    lines.append(f"TBLPROPERTIES ({listed})")
    return "\n".join((*lines, *_identity(sql_name, schema)))


def _identity(sql_name: str, schema: TableSchema) -> Iterator[str]:
    names = sorted(str(schema.find_column_name(each)) for each in schema.identifier_field_ids)
    if names:
        yield f"ALTER TABLE {sql_name} SET IDENTIFIER FIELDS {', '.join(names)}"


def _column(field: NestedField) -> str:
    return f"`{field.name}` {_type(field.field_type)}{' NOT NULL' if field.required else ''}"


def _type(type_: IcebergType) -> str:
    if isinstance(type_, StructType):
        return f"struct<{', '.join(f'{each.name}: {_type(each.field_type)}' for each in type_.fields)}>"
    if isinstance(type_, ListType):
        return f"array<{_type(type_.element_type)}>"
    if isinstance(type_, MapType):
        return f"map<{_type(type_.key_type)}, {_type(type_.value_type)}>"
    return _WORDS.get(type_, str(type_))
