"""One table: how it is created, what workers need to know to write its files, and whether it fits the pipeline file.

landonce never changes a table that exists, except by `evolve` and by the spec that `unpartitioned: true` needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import compute_statistics_plan
from pyiceberg.manifest import ManifestEntry
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema as TableSchema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.update import AddPartitionSpecUpdate, TableUpdate
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyiceberg.types import NestedField
from sqlalchemy.exc import IntegrityError

from landonce.config.secrets import redact
from landonce.errors import ConfigError, TableReshaped, TableUnfit, TargetUnavailable
from landonce.read.schema.ddl import quoted, quoted_if_needed
from landonce.read.schema.fields import Schema
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.iceberg.partitions import fields_along, parse_spec, path_of, spec_differs
from landonce.sinks.iceberg.types import iceberg_schema, widens

_ENDS_ADDRESS = frozenset("#?\0")
_NEWEST = 2
"""The newest format version in which PyIceberg makes tables."""
_TIDY = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "20"}
"""Every commit writes all of the metadata again: without this, the old copies would be kept for ever."""
_MERGE_ON_READ = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "format-version": "2",
}


@dataclass(frozen=True)
class Creation:
    """What a user may say about a table that landonce creates."""

    partition_by: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    """The fields that identify one row. They become required."""
    properties: Mapping[str, str] = field(default_factory=dict)
    merges: bool = False
    """Spark merges changes of rows."""

    @property
    def version(self) -> int:
        """The format version that was asked for."""
        asked = str(self.properties.get(TableProperties.FORMAT_VERSION, TableProperties.DEFAULT_FORMAT_VERSION))
        if asked not in ("1", "2", "3"):
            raise ConfigError(f"sink.iceberg.properties: format-version is 1, 2 or 3, not {asked!r}.")
        return int(asked)

    @property
    def by_spark(self) -> bool:
        """Whether Spark itself writes the table, as far as that is known before there is one."""
        kind = self.properties.get(TableProperties.WRITE_FILE_FORMAT, TableProperties.WRITE_FILE_FORMAT_DEFAULT)
        return self.merges or self.version > _NEWEST or str(kind).lower() != "parquet"


def layout(declared: Schema, creation: Creation) -> tuple[TableSchema, PartitionSpec, dict[str, str]]:
    """Columns, partitions and properties of a table that is to be created. Raises what creating it would, without asking the catalog."""
    schema = table_schema(declared, creation)
    version = {TableProperties.FORMAT_VERSION: str(min(creation.version, _NEWEST))}
    return schema, parse_spec(creation.partition_by, schema), {**creation.properties, **version}


def create_table(catalog: Catalog, identifier: str, declared: Schema, creation: Creation) -> Table:
    """Creates the table, and its namespace if there is none. If another process was faster, returns the table of that one.

    A table of version 3 is created in version 2; Spark then has to run the `upgrade_statement`.
    """
    namespace, _, name = identifier.rpartition(".")
    if not namespace or not name:
        raise ConfigError(f"sink.iceberg.table: {identifier!r} needs a namespace, for example db.{identifier}.")
    if not all(identifier.split(".")) or not _ENDS_ADDRESS.isdisjoint(identifier):
        raise ConfigError(
            f"sink.iceberg.table: {identifier!r} cannot be created: parts of a name are not empty, and hold no `#`, `?` or zero byte, "
            "where the address of its files would end."
        )
    schema, spec, properties = layout(declared, creation)
    parts = namespace.split(".")
    for space in (tuple(parts[:depth]) for depth in range(1, len(parts) + 1)):
        if not catalog.namespace_exists(space):
            with suppress(NamespaceAlreadyExistsError, IntegrityError):  # a SQL catalog raises the second
                catalog.create_namespace(space)
    try:
        return catalog.create_table(identifier, schema, partition_spec=spec, properties=properties)
    except TableAlreadyExistsError:
        return catalog.load_table(identifier)


def table_schema(declared: Schema, creation: Creation) -> TableSchema:
    """The columns of a table that is to be created."""
    schema = iceberg_schema(declared, identity=creation.identity, by_spark=creation.by_spark)
    for one, other in pairwise(sorted(schema.column_names, key=str.lower)):
        if one.lower() == other.lower():
            raise ConfigError(
                f"the fields {one} and {other} differ only in upper and lower case, and Spark cannot tell such columns "
                "apart.",
                command="rename one of them in `source.kafka.schema` or in `transform.select` of {file}",
            )
    return schema


def upgrade_statement(catalog: str, table: Table, creation: Creation) -> str:
    """The statement by which Spark gives a table the format version that was asked for; empty if it has it."""
    if table.metadata.format_version >= creation.version:
        return ""
    return f"ALTER TABLE {quoted(catalog, *table.name())} SET TBLPROPERTIES ('{TableProperties.FORMAT_VERSION}' = '{creation.version}')"


@dataclass(frozen=True)
class TableShape:
    """A picklable description of a table, made on the driver and sent with the task.

    It holds nothing that changes with every commit, so workers can cache what they derive from it.
    """

    name: str
    location: str
    schema: str
    spec: str
    properties: tuple[tuple[str, str], ...]
    io: tuple[tuple[str, str], ...] = field(repr=False)
    """What opens the storage: it may hold credentials."""

    @staticmethod
    def of(table: Table, *, unpartitioned: bool = False) -> TableShape:
        """The shape of a table that Arrow can write for; with `unpartitioned`, of files without partition values."""
        name = ".".join(table.name())
        reason = why_spark(table, unpartitioned=unpartitioned)
        if reason:
            raise TableUnfit(f"{name}: workers cannot write its files, since {reason}.", safe="Nothing was written.")
        spec = unpartitioned_spec(table) if unpartitioned else table.spec()
        if spec is None:
            raise TableUnfit(
                f"{name}: `unpartitioned: true` needs a partition spec without fields, and the table has none.",
                safe="Nothing was written.",
            )
        writing = {key: value for key, value in table.properties.items() if key.startswith("write.")}
        opening = {
            key: str(value)
            for key, value in table.io.properties.items()
            if isinstance(value, str | int | float) and not key.startswith("landonce.")
        }
        return TableShape(
            name=name,
            location=table.location(),
            schema=table.schema().model_dump_json(),
            spec=spec.model_dump_json(),
            properties=tuple(sorted(writing.items())),
            io=tuple(sorted(opening.items())),
        )


def why_spark(table: Table, *, unpartitioned: bool = False) -> str:
    """Why Spark's own writer is needed for a table; empty if workers can write its files with Arrow."""
    properties = table.properties
    kind = properties.get(TableProperties.WRITE_FILE_FORMAT, TableProperties.WRITE_FILE_FORMAT_DEFAULT).lower()
    codec = properties.get(TableProperties.PARQUET_COMPRESSION, TableProperties.PARQUET_COMPRESSION_DEFAULT).lower()
    if table.metadata.format_version > 2:
        return f"its format version is {table.metadata.format_version}"
    if kind != "parquet":
        return f"its files are {kind} (`{TableProperties.WRITE_FILE_FORMAT}`)"
    if not table.sort_order().is_unsorted:
        return "it has a sort order"
    known = codec == "uncompressed"
    with suppress(ValueError):
        known = known or bool(pa.Codec.is_available(codec))
    if not known:
        return f"Arrow does not compress with {codec} (`{TableProperties.PARQUET_COMPRESSION}`)"
    for key, value in properties.items():
        if key.startswith(f"{TableProperties.PARQUET_BLOOM_FILTER_COLUMN_ENABLED_PREFIX}.") and value.lower() == "true":
            return f"it asks for a Bloom filter (`{key}`)"
        if key in ("write.location-provider.impl", "encryption.key-id"):
            return f"`{key}` is set"
    try:
        compute_statistics_plan(table.schema(), properties)
    except ValueError as error:
        return f"`write.metadata.metrics` is not understood: {error}"
    return "" if unpartitioned else unwritable(table.schema(), table.spec())


def unwritable(schema: TableSchema, spec: PartitionSpec) -> str:
    """Why PyIceberg cannot write manifests of a spec; empty if it can."""
    for each in spec.fields:
        void = isinstance(each.transform, VoidTransform)
        path = path_of(schema, each.source_id)
        if isinstance(each.transform, UnknownTransform):
            return f"its partition field {each.name} has an unknown transform"
        if path is None:
            return f"the source of its partition field {each.name} is gone"
        along = [field.required for field in fields_along(schema, path)]
        if along[-1] and (void or not all(along)):
            return (
                f"its partition field {each.name} can be null and its source is required, which PyIceberg cannot record"
            )
    return ""


def unpartitioned_spec(table: Table) -> PartitionSpec | None:
    """The table's spec without any field, if it has one."""
    return next((spec for spec in table.specs().values() if spec.is_unpartitioned()), None)


def ensure_unpartitioned_spec(table: Table) -> tuple[TableUpdate, ...]:
    """The update that lets files be written without partition values; the default spec stays."""
    added = AddPartitionSpecUpdate(spec=PartitionSpec(spec_id=max(table.specs()) + 1))
    return (added,) if unpartitioned_spec(table) is None else ()


def creation(config: Iceberg) -> Creation:
    """How missing tables are created."""
    properties = {**_TIDY, **{name: as_text(value) for name, value in config.properties.items()}}
    if config.changes is not None:
        properties = {**_MERGE_ON_READ, **properties}
    merges = config.changes is not None and not config.by_equality
    return Creation(config.partition_by, config.identity, properties, merges)


def identity_of(config: Iceberg, name: str, table: Table) -> tuple[str, ...]:
    """The columns that name one row: those of the file, or else the table's own identifier fields."""
    if config.identity:
        return config.identity
    schema = table.schema()
    named = [str(schema.find_column_name(each)) for each in sorted(schema.identifier_field_ids)]
    inside = [each for each in named if each not in {field.name for field in schema.fields}]
    if named and not inside:
        return tuple(named)
    what = (
        f"the identifier field {inside[0]} is inside another column" if inside else "the table has no identifier fields"
    )
    raise TableUnfit(
        f"{name}: {{file}} names no `identity`, and {what}: landonce does not know which row a change is for.",
        safe="Nothing was written.",
        command=f"set `identity` in {{file}}, or ALTER TABLE {'.'.join(map(quoted_if_needed, table.name()))} SET IDENTIFIER FIELDS …",
    )


def as_text(value: object) -> str:
    """A property's value as Iceberg writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def live_files(table: Table, branch: str) -> Iterator[ManifestEntry]:
    """The files of data and of deletes that count at the head of a branch."""
    head = table.metadata.snapshot_by_name(branch)
    try:
        for manifest in head.manifests(table.io) if head is not None else ():
            yield from manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    except (OSError, ValueError) as error:
        raise TargetUnavailable(f"the table's manifests cannot be read: {redact(str(error))}") from None


def whole_number(properties: Mapping[str, str], name: str, default: int) -> int:
    """The value of a table's property."""
    try:
        return int(properties.get(name) or default)
    except ValueError:
        raise TableUnfit(
            f"`{name}` is not a whole number: {properties[name]!r}.",
            safe="Nothing was written.",
            command="correct the property of the table, or remove it",
        ) from None


def require_spec(config: Iceberg, name: str, table: Table) -> None:
    """Raises if the table is not partitioned as the file says. A file without `partition_by` accepts any table."""
    if not config.partition_by:
        return
    wrong = spec_differs(parse_spec(config.partition_by, table.schema()), table.spec(), table.schema())
    if wrong:
        raise TableUnfit(
            f"the table {name} is not partitioned as `partition_by` says: {wrong}.",
            safe="Nothing was read or written.",
            command="correct `partition_by` in {file}, or change the table's partition spec",
        )


def require_unchanged(
    name: str,
    written_for: Table,
    table: Table,
    *,
    specs: Iterable[int] = (),
    all_specs: bool = False,
    by_name: bool = False,
) -> None:
    """Raises if files that were written for a table no longer fit it. Data files hold columns by field id, so a renamed column
    keeps its values, and partition values by these `specs`. Files that wait for Spark hold columns `by_name`.

    `all_specs`: the table must not have got another spec either, since equality deletes would not reach rows in its partitions.
    """
    before, now = written_for.schema(), table.schema()
    fits = (before.schema_id, before) == (now.schema_id, now) if by_name else _readable(before, now)
    same = all(table.specs().get(each) == written_for.specs()[each] for each in specs)
    same = same and (not all_specs or set(written_for.specs()) == set(table.specs()))
    if not fits or not same or written_for.metadata.format_version != table.metadata.format_version:
        raise TableReshaped(
            f"the columns of {name} were changed while a batch was written for it, or its partitions, or its format version."
        )


def _readable(written: TableSchema, now: TableSchema) -> bool:
    """Whether files of one schema are read correctly by the other. Ids alone do not prove it: a table that is replaced keeps the
    ids of columns by their names, and the number of a removed spec or schema may be used again."""

    def reads(old: NestedField, new: NestedField) -> bool:
        if new.required and not old.required:
            return False
        before, after = old.field_type, new.field_type
        if not before.is_primitive or not after.is_primitive:
            return type(before) is type(after)
        return bool(before == after) or widens(before, after)

    return all(
        each in now.field_ids and reads(written.find_field(each), now.find_field(each)) for each in written.field_ids
    )


def no_table(name: str, create: str = "set `create: true` in {file}") -> TableUnfit:
    return TableUnfit(
        f"the catalog has no table {name}, or the user may not see it.",
        safe="Nothing was read or written.",
        command=f"create it, or {create}",
    )
