"""Schema evolution: a table gets the columns that its records need. Nothing is ever narrowed, renamed or dropped.

A column is added (as `create` makes it), widened (an integer to more bits of the same sign, Float32 to Float64, a Decimal to more digits), or made
Nullable. A column that rows are sorted or partitioned by stays as it is: records that do not fit it are dead letters. Workers
report what is needed (`landonce.read.evolution`); the driver merges their reports and changes the table in one ALTER, before any block that
needs it is sent. Fields inside of objects are left alone: a Tuple keeps its members.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pt

from landonce.errors import TargetUnavailable
from landonce.read.evolution import Evolution
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.clickhouse.address import TableName, quoted
from landonce.sinks.clickhouse.connection import Connection
from landonce.sinks.clickhouse.table import Column, Layout, Table, column_definitions, describe, words
from landonce.sinks.clickhouse.types import parse_type, unfit
from landonce.sinks.contract import COORDINATES


def possible(columns: Schema, wanted: Evolution) -> Evolution:
    """As much of this as a table of these columns can be changed for."""
    known = columns.by_name()
    return Evolution(
        tuple((path, shape) for path, shape in wanted.added if path[0] not in known and _new(path, shape.type())),
        tuple((path, type_) for path, type_ in wanted.widened if len(path) == 1),
        tuple(path for path in wanted.optional if len(path) == 1 and not pt.is_nested(known[path[0]].type)),
    )


def _new(path: tuple[str, ...], type_: pa.DataType | None) -> bool:
    """Whether a column can be made for a field: at the top, and of a type that ClickHouse holds exactly."""
    if len(path) != 1 or path[0] in COORDINATES or type_ is None:
        return False
    return not any(True for _ in unfit(type_, path[0], required=False))


def apply(connection: Connection, name: TableName, wanted: Evolution, layout: Layout) -> None:
    """One ALTER, of what the table lacks now: somebody else may have altered it since workers asked. Then the table is asked again: a
    server may alter it later (`alter_sync = 0`), and what the table does not know then would be left out of the rows."""
    todo = list(steps(describe(connection, name), wanted))
    if not todo:
        return
    connection.do(f"ALTER TABLE {name.sql}{layout.on_cluster} {', '.join(todo)}")
    if left := list(steps(describe(connection, name), wanted)):
        raise TargetUnavailable(
            f"ClickHouse accepted an ALTER of {name}, and the table does not show it yet: {left[0]}.",
            safe="No record was written.",
            command="landonce run {file}",
        )


def steps(table: Table, wanted: Evolution) -> Iterator[str]:
    """The commands of the ALTER. A column whose type is not the one that is widened stays as it is."""
    columns = {each.name: each for each in table.columns}
    for path, shape in wanted.added:
        type_ = shape.type()
        if path[0] not in columns and type_ is not None:
            (definition,) = column_definitions(Schema((Field(path[0], type_),)))
            yield f"ADD COLUMN IF NOT EXISTS {definition}"
    wider = {path[0]: type_ for path, type_ in wanted.widened}
    in_key = words(table.sorting_key) | words(table.partition_key)  # ClickHouse does not change such a column
    for each in sorted(({*wider, *(path[0] for path in wanted.optional)} & columns.keys()) - in_key):
        column = columns[each]
        changed = _changed(column, wider.get(each), nullable=(each,) in wanted.optional)
        if changed != column.type:
            yield f"MODIFY COLUMN {quoted(each)} {changed}"


def _changed(column: Column, wider: pa.DataType | None, *, nullable: bool) -> str:
    """The type that holds what it holds now, and more. The type itself, where that cannot be."""
    parsed = parse_type(column.type)
    wraps = parsed.name == "Nullable"
    inner = parse_type(parsed.arguments[0]) if wraps else parsed
    if wider is not None:
        inner = parse_type(_widened(str(inner), wider))
    may = nullable and not column.default_kind and inner.name not in _NEVER_NULL
    return f"Nullable({inner})" if wraps or may else str(inner)


_NEVER_NULL = ("Array", "Map", "Tuple", "Nested", "LowCardinality", "Variant", "Dynamic", "JSON")


def _widened(type_: str, wider: pa.DataType) -> str:
    if (type_, wider) in _NUMBERS:
        return _NUMBERS[type_, wider]
    parsed = parse_type(type_)
    if parsed.name == "Decimal" and pt.is_decimal(wider):
        precision, scale = map(int, parsed.arguments)
        return f"Decimal({wider.precision}, {scale})" if wider.precision > precision and wider.scale == scale else type_
    return type_


_NUMBERS = {("Float32", pa.float64()): "Float64"} | {
    (f"{sign}{narrow}", pa.type_for_alias(f"{sign}{wide}".lower())): f"{sign}{wide}"
    for sign in ("Int", "UInt")
    for narrow in (8, 16, 32)
    for wide in (16, 32, 64)
    if narrow < wide
}
