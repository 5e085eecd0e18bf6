"""One Iceberg table: whether the pipeline can write to it, how it would, and what to change; or what a start would create, as text.
Reads only: nothing is created here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyiceberg.schema import Schema as TableSchema
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
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

from landonce.errors import TableUnfit
from landonce.read.schema.evolution import READERS_OWN
from landonce.read.schema.fields import Schema
from landonce.sinks.contract import Finding, Level
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.iceberg.partitions import parse_spec, spec_differs, spelled
from landonce.sinks.iceberg.table import creation, table_schema, why_spark
from landonce.sinks.iceberg.types import COLUMNS, COORDINATE_TYPES, coordinate_faults, schema_for

_SQL = {"long": "bigint"}
_AGE = "history.expire.max-snapshot-age-ms"
_SHORT = 24 * 3_600_000
_MODE = "write.merge.mode"
_WORDS: dict[IcebergType, str] = {
    LongType(): "bigint",
    TimestampType(): "timestamp_ntz",
    TimestamptzType(): "timestamp",
}


def table_findings(config: Iceberg, sql_name: str, table: Table) -> Iterator[Finding]:
    """`sql_name` is what Spark calls the table."""
    schema = table.schema()
    yield Finding(
        Level.OK,
        f"is there: format version {table.metadata.format_version}, {len(schema.fields)} columns, partitioned by "
        f"{spelled(table.spec(), schema)}",
    )
    yield from _branch(config.branch, table)
    yield from _partitions(config, table)
    yield from _coordinates(sql_name, schema)
    yield from _columns(config, table)
    yield from _writer(config, table)
    if config.changes is not None:
        yield from _changes(config, sql_name, table)
    yield from _expiry(table.properties)


def _branch(branch: str, table: Table) -> Iterator[Finding]:
    refs = table.metadata.refs
    if branch == "main":
        return
    if branch in refs and refs[branch].snapshot_ref_type is not SnapshotRefType.BRANCH:
        yield Finding(Level.REFUSED, f"{branch} is a tag of the table, not a branch", "name a branch in {file}")
    elif branch in refs:
        yield Finding(Level.OK, f"branch {branch} is there; what lands on it is not in main until you publish it")
    elif "main" in refs:
        yield Finding(Level.OK, f"branch {branch} is made by the first start, where main is now")
    else:
        yield Finding(Level.OK, f"branch {branch} is made by the first start, empty as the table is")


def _partitions(config: Iceberg, table: Table) -> Iterator[Finding]:
    wrong = ""
    if config.partition_by:
        wrong = spec_differs(parse_spec(config.partition_by, table.schema()), table.spec(), table.schema())
    if wrong:
        yield Finding(
            Level.REFUSED,
            f"is not partitioned as `partition_by` says: {wrong}",
            "correct `partition_by` in {file}, or change the table's partition spec",
        )
    if config.unpartitioned:
        yield Finding(Level.OK, "files are committed without partition values, whatever the table's spec says")


def _coordinates(sql_name: str, schema: TableSchema) -> Iterator[Finding]:
    faults = coordinate_faults(schema)
    if faults:
        yield Finding(
            Level.REFUSED, f"cannot hold the coordinates of its rows: {'; '.join(faults)}", _adding(sql_name, schema)
        )
    else:
        yield Finding(Level.OK, f"{', '.join(COLUMNS)} say which record each row came from")


def _adding(sql_name: str, schema: TableSchema) -> str:
    missing = ", ".join(
        f"{name} {_SQL.get(str(kind), str(kind))}"
        for name, kind in COORDINATE_TYPES.items()
        if name not in schema.column_names
    )
    return f"ALTER TABLE {sql_name} ADD COLUMNS ({missing})" if missing else "give these columns other types"


def _columns(config: Iceberg, table: Table) -> Iterator[Finding]:
    names = table.schema().column_names
    reserved = sorted(set(READERS_OWN) & set(names))
    if reserved:
        by_spark = config.changes is not None or bool(why_spark(table, unpartitioned=config.unpartitioned))
        yield Finding(
            Level.REFUSED if by_spark else Level.WARNING,
            f"{', '.join(reserved)} is a name that Iceberg's readers keep for themselves: Spark can neither read nor "
            "merge nor compact the table",
            "rename the column",
        )
    try:
        schema_for(table, coordinates=not coordinate_faults(table.schema()), fold_case=config.case_insensitive)
    except TableUnfit as error:
        yield Finding(Level.REFUSED, error.what, error.command)


def _writer(config: Iceberg, table: Table) -> Iterator[Finding]:
    reason = why_spark(table, unpartitioned=config.unpartitioned)
    if config.changes is not None:
        yield Finding(Level.OK, f"Spark merges changes into it by {', '.join(config.identity)}")
    elif reason:
        yield Finding(Level.OK, f"Spark's own writer makes its files, since {reason}")
    else:
        yield Finding(Level.OK, "workers write its files themselves, with Arrow: the fast path")


def _changes(config: Iceberg, sql_name: str, table: Table) -> Iterator[Finding]:
    schema = table.schema()
    for name in config.identity:
        if name not in schema.column_names:
            yield Finding(
                Level.REFUSED,
                f"has no column {name}, by which `identity` says that rows are found",
                "correct `identity` in {file}; the table has " + ", ".join(schema.column_names),
            )
        elif not schema.find_field(name).required:
            yield Finding(
                Level.WARNING,
                f"{name}, which names a row, may be null in the table; a record without it becomes a dead letter",
                f"ALTER TABLE {sql_name} ALTER COLUMN {name} SET NOT NULL, if no row lacks it",
            )
    if table.metadata.format_version == 1:
        yield Finding(
            Level.WARNING,
            "format version 1 knows no deletes: every batch rewrites whole files that hold a changed row",
            f"ALTER TABLE {sql_name} SET TBLPROPERTIES ('format-version' = '2', '{_MODE}' = 'merge-on-read')",
        )
    elif table.properties.get(_MODE, "copy-on-write") != "merge-on-read":
        yield Finding(
            Level.WARNING,
            f"`{_MODE}` is copy-on-write: every batch rewrites whole files that hold a changed row",
            f"ALTER TABLE {sql_name} SET TBLPROPERTIES ('{_MODE}' = 'merge-on-read')",
        )


def _expiry(properties: Mapping[str, str]) -> Iterator[Finding]:
    age = properties.get(_AGE, "")
    if age.isdigit() and int(age) < _SHORT:
        yield Finding(
            Level.WARNING,
            f"snapshots may be expired after {int(age) / 3_600_000:.1f} h: the table cannot be rolled back further than that",
            "nothing to change for landonce: a copy of the position is in the table's properties",
        )


def creation_text(config: Iceberg, sql_name: str, declared: Schema) -> str:
    """In the words of Spark's SQL, as far as it has words for Iceberg's types."""
    made = creation(config)
    schema = table_schema(declared, made)
    columns = ",\n    ".join(_column(each) for each in schema.fields)
    properties = {**made.properties, "format-version": str(made.version)}
    lines = [f"CREATE TABLE {sql_name}", f"(\n    {columns}\n)", "USING iceberg"]
    if config.partition_by:
        lines.append(f"PARTITIONED BY ({spelled(parse_spec(config.partition_by, schema), schema)})")
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in sorted(properties.items()))
    lines.append(f"TBLPROPERTIES ({listed})")
    return "\n".join((*lines, *_identifier(sql_name, schema)))


def _identifier(sql_name: str, schema: TableSchema) -> Iterator[str]:
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
