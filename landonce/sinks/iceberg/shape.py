"""What a worker has to know of a table in order to write files for it, and which tables it can write for at all."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.update import AddPartitionSpecUpdate, TableUpdate
from pyiceberg.transforms import UnknownTransform, VoidTransform

from landonce.errors import TableUnfit
from landonce.sinks.iceberg.arrow import fields_along, path_of
from landonce.sinks.iceberg.metrics import plan_of

_BLOOM = f"{TableProperties.PARQUET_BLOOM_FILTER_COLUMN_ENABLED_PREFIX}."
_JAVA_LOCATIONS = "write.location-provider.impl"
_ENCRYPTION = "encryption.key-id"
_OURS = "landonce."

Properties = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class TableShape:
    """A picklable description of a table, made on the driver and sent with the task.

    It holds nothing that changes with every commit, so that workers can keep what they make of it.
    """

    name: str
    location: str
    schema: str
    spec: str
    properties: Properties
    io: Properties = field(repr=False)
    """What opens the storage: it may hold credentials."""

    @staticmethod
    def of(table: Table, *, unpartitioned: bool = False) -> TableShape:
        """The shape of a table that Arrow can write for; with `unpartitioned`, of files without partition values."""
        name = ".".join(table.name())
        reason = fast_path(table, unpartitioned=unpartitioned)
        if reason:
            raise TableUnfit(f"{name}: workers cannot write its files, since {reason}.", safe="Nothing was written.")
        spec = unpartitioned_spec(table) if unpartitioned else table.spec()
        if spec is None:
            raise TableUnfit(
                f"{name}: files without partition values were asked for, and the table has no such spec.",
                safe="Nothing was written.",
            )
        opening = {key: value for key, value in table.io.properties.items() if not key.startswith(_OURS)}
        return TableShape(
            name=name,
            location=table.location(),
            schema=table.schema().model_dump_json(),
            spec=spec.model_dump_json(),
            properties=tuple(
                sorted((key, value) for key, value in table.properties.items() if key.startswith("write."))
            ),
            io=tuple(
                sorted((key, str(value)) for key, value in opening.items() if isinstance(value, str | int | float))
            ),
        )


def fast_path(table: Table, *, unpartitioned: bool = False) -> str:
    """Why Spark's own writer is needed for a table; empty if workers can write its files with Arrow."""
    properties = table.properties
    kind = properties.get(TableProperties.WRITE_FILE_FORMAT, TableProperties.WRITE_FILE_FORMAT_DEFAULT).lower()
    codec = _codec(properties)
    if table.metadata.format_version > 2:
        return f"its format version is {table.metadata.format_version}"
    if kind != "parquet":
        return f"its files are {kind} (`{TableProperties.WRITE_FILE_FORMAT}`)"
    if not table.sort_order().is_unsorted:
        return "it has a sort order"
    if codec != "uncompressed" and not _available(codec):
        return f"Arrow does not compress with {codec} (`{TableProperties.PARQUET_COMPRESSION}`)"
    for key, value in properties.items():
        if key.startswith(_BLOOM) and value.lower() == "true":
            return f"it asks for a Bloom filter (`{key}`)"
        if key in (_JAVA_LOCATIONS, _ENCRYPTION):
            return f"`{key}` is set"
    return _metrics_reason(table) or ("" if unpartitioned else unwritable(table.schema(), table.spec()))


def _codec(properties: dict[str, str]) -> str:
    return properties.get(TableProperties.PARQUET_COMPRESSION, TableProperties.PARQUET_COMPRESSION_DEFAULT).lower()


def _available(codec: str) -> bool:
    try:
        return bool(pa.Codec.is_available(codec))
    except ValueError:
        return False


def unwritable(schema: Schema, spec: PartitionSpec) -> str:
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


def _metrics_reason(table: Table) -> str:
    try:
        plan_of(table.schema(), table.properties)
    except ValueError as error:
        return f"`write.metadata.metrics` is not understood: {error}"
    return ""


def unpartitioned_spec(table: Table) -> PartitionSpec | None:
    """A spec of the table without any field."""
    return next((spec for spec in table.specs().values() if spec.is_unpartitioned()), None)


def ensure_unpartitioned_spec(table: Table) -> tuple[TableUpdate, ...]:
    """What the driver commits before files can be written without partition values; the default spec stays."""
    if unpartitioned_spec(table) is not None:
        return ()
    return (AddPartitionSpecUpdate(spec=PartitionSpec(spec_id=max(table.specs()) + 1)),)
