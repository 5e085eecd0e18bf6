"""A table that is there, as workers are told of it; and how one is made that is not. Refused where it does not fit the file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pyiceberg.schema import Schema as TableSchema
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from landonce.errors import TableReshaped, TableUnfit
from landonce.read.schema.fields import Schema
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.iceberg.create import Creation, planned_table
from landonce.sinks.iceberg.evolve import widens
from landonce.sinks.iceberg.limits import limits_of
from landonce.sinks.iceberg.names import schema_for
from landonce.sinks.iceberg.partitioning import parse_spec, spec_differs
from landonce.sinks.iceberg.recipe import TableRecipe
from landonce.sinks.iceberg.scratch import Scratch
from landonce.sinks.iceberg.shape import TableShape, fast_path

_TIDY = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "20"}
"""Every commit writes all of the metadata anew: without this, the old copies would be kept for ever."""
_MERGE_ON_READ = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "format-version": "2",
}


def table_recipe(told: Iceberg, name: str, table: Table, declared: Schema | None = None) -> TableRecipe:
    """What workers are told of a table."""
    recipe = _without_files(told, name, table, declared)
    shape = None if recipe.scratch else TableShape.of(table, unpartitioned=told.unpartitioned)
    return replace(recipe, shape=shape)


def planned_recipe(told: Iceberg, name: str, columns: Schema) -> TableRecipe:
    """As much of it as is known before the table is made of these columns. Raises what making it would say of them."""
    return _without_files(told, name, planned_table(name, columns, creation(told)), columns)


def _without_files(told: Iceberg, name: str, table: Table, declared: Schema | None) -> TableRecipe:
    staged = told.changes is not None or bool(fast_path(table))
    return TableRecipe(
        name=name,
        schema=schema_for(table, coordinates=True, fold_case=told.case_insensitive, declared=declared),
        shape=None,
        scratch=Scratch.of(table) if staged else None,
        identity=told.identity if told.changes is not None else (),
        limits=limits_of(table.spec(), table.schema()) if staged or not told.unpartitioned else (),
    )


def known_by(table: Table) -> tuple[Any, ...]:
    """Changes with whatever workers are told of a table: its columns and files, and how its storage is opened."""
    metadata = table.metadata
    writing = ((key, value) for key, value in table.properties.items() if not key.startswith("landonce."))
    opening = ((key, str(value)) for key, value in table.io.properties.items())
    return (
        metadata.table_uuid,
        metadata.format_version,
        metadata.current_schema_id,
        metadata.default_spec_id,
        metadata.default_sort_order_id,
        metadata.location,
        frozenset(writing),
        frozenset(opening),
    )


def creation(told: Iceberg) -> Creation:
    """How tables are made that are not there."""
    properties = {**_TIDY, **{name: as_text(value) for name, value in told.properties.items()}}
    if told.changes is not None:
        properties = {**_MERGE_ON_READ, **properties}
    return Creation(told.partition_by, told.identity, properties)


def as_text(value: object) -> str:
    """A property's value as Iceberg writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def require_spec(told: Iceberg, name: str, table: Table) -> None:
    """Raises unless the table is partitioned as the file says, if it says so."""
    if not told.partition_by:
        return
    wrong = spec_differs(parse_spec(told.partition_by, table.schema()), table.spec(), table.schema())
    if wrong:
        raise TableUnfit(
            f"the table {name} is not partitioned as `partition_by` says: {wrong}.",
            safe="Nothing was read or written.",
            command="correct `partition_by` in {file}, or change the table's partition spec",
        )


def require_shape(
    name: str, written_for: Table, table: Table, *, specs: Iterable[int] = (), by_name: bool = False
) -> None:
    """Raises where files that were written for a table do not fit it any more. They hold its columns by their ids, so that what was
    only renamed keeps its values, and partition values by these `specs`; or columns `by_name`, if they wait for Spark."""
    before, now = written_for.schema(), table.schema()
    fits = (before.schema_id, before) == (now.schema_id, now) if by_name else _readable(before, now)
    same = all(table.specs().get(each) == written_for.specs()[each] for each in specs)
    if not fits or not same or written_for.metadata.format_version != table.metadata.format_version:
        raise TableReshaped(
            f"the columns of {name} were changed while a batch was written for it, or its partitions, or its format version."
        )


def _readable(written: TableSchema, now: TableSchema) -> bool:
    """Whether files of the one schema are read by the other as what they hold. Ids alone do not say it: a table that is replaced
    keeps the ids of columns by their names, and an older spec or schema that was removed may leave its number to another."""
    return all(
        each in now.field_ids and _reads(written.find_field(each), now.find_field(each)) for each in written.field_ids
    )


def _reads(written: NestedField, now: NestedField) -> bool:
    if now.required and not written.required:
        return False
    old, new = written.field_type, now.field_type
    if not old.is_primitive or not new.is_primitive:
        return type(old) is type(new)
    return bool(old == new) or widens(old, new)


def no_table(name: str) -> TableUnfit:
    return TableUnfit(
        f"the catalog has no table {name}, or the user may not see it.",
        safe="Nothing was read or written.",
        command="create it, or say `create: true` in {file} and let landonce do it",
    )
