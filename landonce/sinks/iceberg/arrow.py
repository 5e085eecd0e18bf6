"""Rows as a table's files hold them: its columns in its order, in its types, with its field ids."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Accessor, Schema
from pyiceberg.types import NestedField, StructType

from landonce.errors import TableUnfit

_REFUSED = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


def arrow_schema(schema: Schema) -> pa.Schema:
    """The table's schema in Arrow's types with 32-bit offsets, which are what a block's rows come in."""
    return pa.schema([each.with_type(_narrow(each.type)) for each in schema_to_pyarrow(schema)])


def _narrow(kind: pa.DataType) -> pa.DataType:
    if pt.is_large_string(kind):
        return pa.string()
    if pt.is_large_binary(kind):
        return pa.binary()
    if pt.is_large_list(kind):
        return pa.list_(_narrowed(kind.value_field))
    if pt.is_map(kind):
        return pa.map_(_narrowed(kind.key_field), _narrowed(kind.item_field))
    if pt.is_struct(kind):
        return pa.struct([_narrowed(each) for each in kind])
    return kind


def _narrowed(field: pa.Field) -> pa.Field:
    return field.with_type(_narrow(field.type))


Path = tuple[int, ...]


def path_of(schema: Schema, field_id: int) -> Path | None:
    """Where a field is: the position of its column, then of the field in each struct. None inside of lists and maps."""
    try:
        accessor: Accessor | None = schema.accessor_for_field(field_id)
    except ValueError:
        return None
    path = []
    while accessor is not None:
        path.append(accessor.position)
        accessor = accessor.inner
    return tuple(path)


def fields_along(schema: Schema, path: Path) -> Iterator[NestedField]:
    """The column, and each field in it down to the one at the end of the path."""
    struct = schema.as_struct()
    for position in path:
        field = struct.fields[position]
        yield field
        if isinstance(field.field_type, StructType):
            struct = field.field_type


def at_path(rows: pa.Table, path: Path) -> pa.ChunkedArray:
    """The values there; null where a struct around them is null."""
    column = rows.column(path[0])
    return pc.struct_field(column, list(path[1:])) if path[1:] else column


def arranged(rows: pa.Table, names: tuple[str, ...], target: pa.Schema, table: str) -> pa.Table:
    """The rows as `target`, whose columns are called `names` in the rows. A column that is not there is null."""
    strange = sorted(set(rows.column_names) - set(names))
    if strange or len(set(rows.column_names)) < rows.num_columns:
        raise _unfit(table, f"the rows have a column that it does not have, or have one twice: {', '.join(strange)}")
    columns, fields = [], []
    for name, field in zip(names, target, strict=True):
        if name in rows.column_names:
            column = _fitted(rows.column(name), field.type, name, table)
        else:
            column = pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        if column.null_count and not field.nullable:
            raise _unfit(table, f"its column {name} is required, and a row has no value for it")
        columns.append(column)
        fields.append(field.with_type(column.type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _fitted(column: pa.ChunkedArray, wanted: pa.DataType, name: str, table: str) -> pa.ChunkedArray:
    """Losslessly in the table's type. A dictionary of strings stays one: Parquet takes its indices as they are."""
    if column.type.equals(wanted, check_metadata=True):
        return column
    if pt.is_dictionary(column.type):
        if column.type.value_type == wanted and (pt.is_string(wanted) or pt.is_binary(wanted)):
            return column
        column = column.cast(column.type.value_type)
    surplus = _surplus(column.type, wanted)
    if surplus:
        raise _unfit(table, f"the rows have a field in {name} that it does not have: {surplus}")
    try:
        return column.cast(wanted)
    except _REFUSED:
        raise _unfit(table, f"its column {name} cannot hold every value of the rows as {wanted}") from None


def _surplus(given: pa.DataType, wanted: pa.DataType) -> str:
    """A field inside of a column that a cast would drop without a word."""
    if pt.is_struct(given) and pt.is_struct(wanted):
        for each in given:
            at = wanted.get_field_index(each.name)
            inner = _surplus(each.type, wanted.field(at).type) if at >= 0 else each.name
            if inner:
                return inner
    if pt.is_map(given) and pt.is_map(wanted):
        return _surplus(given.key_type, wanted.key_type) or _surplus(given.item_type, wanted.item_type)
    if _is_list(given) and _is_list(wanted):
        return _surplus(given.value_type, wanted.value_type)
    return ""


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _unfit(table: str, what: str) -> TableUnfit:
    return TableUnfit(f"{table}: {what}.", safe="Nothing of this block was committed.")
