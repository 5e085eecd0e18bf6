"""Schema evolution: a table gets the columns that its records need. Nothing is ever narrowed or dropped.

A column is added (also inside structs, list elements and map values), widened (int to long, float to double, a decimal
to more digits), or made optional. Workers report what is needed, see `landonce.read.evolution`; the driver merges their
reports and changes the schema once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.types as pt
from pyiceberg.schema import Schema as TableSchema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import IcebergType, ListType, NestedField, StructType

from landonce.errors import NothingToInfer, TargetRefused
from landonce.protocol.marks import Verdict
from landonce.read.evolution import RESERVED, Evolution, ValueShape, distinct
from landonce.read.sample import of_sample
from landonce.read.schema.fields import ELEMENT, KEY, VALUE, Field, Path, Schema, text_at
from landonce.sinks.iceberg.commit import Attempt, TableBranch
from landonce.sinks.iceberg.types import doc_of, iceberg_type, parts_of, unfit, widens


@dataclass(frozen=True)
class ColumnChange:
    """A column, or a field of a struct, is added, always as an optional one; or gets a type that holds more; or, without a type, may be
    null from now on."""

    path: Path
    type: IcebergType | None = None
    new: bool = False
    doc: str | None = None

    def stage(self, update: UpdateSchema) -> None:
        if self.type is None:
            update.make_column_optional(self.path)
        elif self.new:
            update.add_column(self.path, self.type, doc=self.doc)
        else:
            update.update_column(self.path, field_type=self.type)


def steps(schema: TableSchema, changes: Evolution, *, by_spark: bool = False) -> tuple[ColumnChange, ...]:
    """What a table with this schema still needs. Leaves out what it has, and what Iceberg cannot change. `by_spark`: Spark writes the table."""
    found: list[ColumnChange] = []
    names = _Names(schema.column_names)
    for path, shape in changes.added:
        found += [
            each
            for each in _additions(schema, path, shape, by_spark)
            if each.type is not None and names.take(each.path, each.type)
        ]
    for path, type_ in changes.widened:
        field = _at(schema, path)
        wide = iceberg_type(type_, itertools.count(1))
        if field is not None and widens(field.field_type, wide):
            found.append(ColumnChange(path, wide))
    for path in changes.optional:
        field = _at(schema, path)
        if field is not None and field.required:
            inside = TableSchema(field).field_ids
            if not any(each in inside for each in schema.identifier_field_ids):  # it neither is nor holds the identity
                found.append(ColumnChange(path))
    return tuple(found)


def apply(place: TableBranch, changes: Evolution, *, by_spark: bool = False) -> Table:
    """Changes the table's schema in one commit. If somebody else changes it meanwhile, the rest is done on top of that."""

    def step(table: Table) -> Attempt | Verdict:
        todo = steps(table.schema(), changes, by_spark=by_spark)
        if not todo:
            return Verdict.DONE
        update = Transaction(table).update_schema()
        for each in todo:
            each.stage(update)
        return Attempt(*update._commit())

    try:
        return place.commit(step)[1]
    except ValueError as error:
        raise TargetRefused(
            f"the schema of {place.identifier} cannot be changed: {error}",
            safe="Nothing was changed.",
            command="change the table's schema by hand, or set `evolve: false` in {file}",
        ) from None


def schema_of_sample(sample: list[bytes]) -> Schema:
    """The columns of a table that is to be created from these records.

    A field that cannot be a column beside the others is left out, as when a table evolves: one odd record does not decide.
    """
    return distinguishable(of_sample(sample).fields)


def distinguishable(found: Iterable[Field]) -> Schema:
    """The fields of records as columns that every reader can tell apart. Leaves out fields that differ from another only in
    case, in structs too, and fields with a reserved name."""
    names = _Names(RESERVED)
    plain = [replace(each, type=_distinct(each.type)) for each in found]
    fields = tuple(each for each in plain if names.take((each.name,), each.type))
    if not fields:
        raise NothingToInfer("the records hold no value to make a column for.", safe="Nothing was created.")
    return Schema(fields)


def _distinct(type_: pa.DataType) -> pa.DataType:
    if pt.is_struct(type_):
        inner = {each.name: each for each in type_}
        return pa.struct([inner[name].with_type(_distinct(inner[name].type)) for name in distinct(inner)])
    if pt.is_list(type_):
        return pa.list_(type_.value_field.with_type(_distinct(type_.value_type)))
    if pt.is_map(type_):
        return pa.map_(type_.key_type, type_.item_field.with_type(_distinct(type_.item_type)))
    return type_


class _Names:
    """The dotted names in a schema so far. Iceberg takes each of them once, whatever is nested in what, and its readers ignore
    case."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {each.lower() for each in taken}

    def take(self, path: Path, type_: pa.DataType | IcebergType) -> bool:
        """Whether a column and all that is in it can have their names; then they have them."""
        new = [".".join(each).lower() for each in _inside(path, type_)]
        if len(set(new)) < len(new) or self._taken.intersection(new):
            return False
        self._taken.update(new)
        return True


def _inside(path: Path, type_: pa.DataType | IcebergType) -> Iterator[Path]:
    """The path of a column, and of every field in it."""
    yield path
    if isinstance(type_, IcebergType):
        inner = [(each.name, each.field_type) for each in parts_of(type_)]
    elif pt.is_struct(type_):
        inner = [(each.name, each.type) for each in type_]
    elif pt.is_list(type_):
        inner = [(ELEMENT, type_.value_type)]
    elif pt.is_map(type_):
        inner = [(KEY, type_.key_type), (VALUE, type_.item_type)]
    else:
        inner = []
    for name, each in inner:
        yield from _inside((*path, name), each)


def _additions(schema: TableSchema, path: Path, shape: ValueShape, by_spark: bool) -> Iterator[ColumnChange]:
    """The column, or, if it exists by now, the fields that are missing inside it."""
    field = _at(schema, path)
    if field is not None:
        yield from _inner_additions(schema, path, field.field_type, shape, by_spark)
        return
    around, type_ = _at(schema, path[:-1]), shape.type()
    in_struct = len(path) == 1 or (around is not None and isinstance(around.field_type, StructType))
    if in_struct and type_ is not None:
        type_ = text_at(type_, "", {place for place, _ in unfit(type_, "", by_spark=by_spark)})
        yield ColumnChange(path, iceberg_type(type_, itertools.count(1)), new=True, doc=doc_of(type_))


def _inner_additions(
    schema: TableSchema, path: Path, type_: IcebergType, shape: ValueShape, by_spark: bool
) -> Iterator[ColumnChange]:
    if isinstance(type_, StructType):
        for name, inner in shape.fields:
            yield from _additions(schema, (*path, name), inner, by_spark)
    elif isinstance(type_, ListType) and shape.element is not None:
        yield from _inner_additions(schema, (*path, ELEMENT), type_.element_type, shape.element, by_spark)


def _at(schema: TableSchema, path: Path) -> NestedField | None:
    """The field at a path, name by name: a name may hold a dot."""
    here: IcebergType = schema.as_struct()
    field = None
    for name in path:
        field = next((each for each in parts_of(here) if each.name == name), None)
        if field is None:
            return None
        here = field.field_type
    return field
