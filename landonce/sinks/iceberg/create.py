"""Creating a table from a declared schema, with coordinates beside every row. A table that is there is never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema as TableSchema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from sqlalchemy.exc import IntegrityError

from landonce.errors import ConfigError
from landonce.read.schema.fields import Schema
from landonce.sinks.iceberg.partitioning import parse_spec
from landonce.sinks.iceberg.types import iceberg_schema

_NEWEST = 2
"""The newest format version in which PyIceberg makes tables."""


@dataclass(frozen=True)
class Creation:
    """What a user may say about a table that landonce creates."""

    partition_by: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    """The fields that name one row. They become required."""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The format version that was asked for."""
        told = str(self.properties.get(TableProperties.FORMAT_VERSION, TableProperties.DEFAULT_FORMAT_VERSION))
        if told not in ("1", "2", "3"):
            raise ConfigError(f"sink.iceberg.properties: format-version is 1, 2 or 3, not {told!r}.")
        return int(told)


def require_creatable(declared: Schema, creation: Creation) -> None:
    """Raises what `create_table` would say of the columns, without asking the catalog."""
    parse_spec(creation.partition_by, table_schema(declared, creation))


def create_table(catalog: Catalog, identifier: str, declared: Schema, creation: Creation) -> Table:
    """Makes the table, and its namespace if there is none. Harmless if another process was faster: then it is that one.

    A table of version 3 is made in version 2, and `upgrade_statement` says what Spark must be told afterwards.
    """
    namespace, _, name = identifier.rpartition(".")
    if not namespace or not name:
        raise ConfigError(f"sink.iceberg.table: {identifier!r} needs a namespace, for example db.{identifier}.")
    schema = table_schema(declared, creation)
    spec = parse_spec(creation.partition_by, schema)
    properties = dict(creation.properties)
    properties[TableProperties.FORMAT_VERSION] = str(min(creation.version, _NEWEST))
    _make_namespace(catalog, tuple(namespace.split(".")))
    try:
        return catalog.create_table(identifier, schema, partition_spec=spec, properties=properties)
    except TableAlreadyExistsError:
        return catalog.load_table(identifier)


def planned_table(identifier: str, declared: Schema, creation: Creation) -> Table:
    """The table that `create_table` would make, in memory alone, to be looked at. Raises what it would say of the columns."""
    schema = table_schema(declared, creation)
    spec = parse_spec(creation.partition_by, schema)
    properties = {**creation.properties, TableProperties.FORMAT_VERSION: str(min(creation.version, _NEWEST))}
    metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, f"file:///{identifier}", properties)
    return Table(tuple(identifier.split(".")), metadata, "", load_file_io(), NoopCatalog("planned"))


def table_schema(declared: Schema, creation: Creation) -> TableSchema:
    """The columns that the table gets."""
    schema = iceberg_schema(declared, identity=creation.identity)
    _refuse_twins(schema)
    try:
        schema.check_format_version_compatibility(min(creation.version, _NEWEST))
    except ValueError:
        raise ConfigError(
            "a declared field has a type that tables of format version 2 do not know.",
            command="declare times with TIMESTAMP(6) or coarser in {file}, or create the table yourself",
        ) from None
    return schema


def _refuse_twins(schema: TableSchema) -> None:
    names = sorted(schema.column_names, key=str.lower)
    for one, other in pairwise(names):
        if one.lower() == other.lower():
            raise ConfigError(
                f"the fields {one} and {other} differ in upper and lower case alone, and Spark cannot tell such columns apart.",
                command="rename one of them in `source.kafka.schema` or in `transform.select` of {file}",
            )


def upgrade_statement(catalog: str, table: Table, creation: Creation) -> str:
    """What Spark must be told before the table has the format version that was asked for; empty if it has."""
    if table.metadata.format_version >= creation.version:
        return ""
    name = ".".join(f"`{part}`" for part in (catalog, *table.name()))
    return f"ALTER TABLE {name} SET TBLPROPERTIES ('{TableProperties.FORMAT_VERSION}' = '{creation.version}')"


def _make_namespace(catalog: Catalog, namespace: tuple[str, ...]) -> None:
    for depth in range(1, len(namespace) + 1):
        if not catalog.namespace_exists(namespace[:depth]):
            try:
                catalog.create_namespace(namespace[:depth])
            except (NamespaceAlreadyExistsError, IntegrityError):  # the second is how a SQL catalog says the same
                continue
