"""Creating a table from a declared schema, made for the guarantee: coordinates, an index on them, a token window.

Only `CREATE TABLE IF NOT EXISTS`: a table that is there is never changed, and never replaced.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from landonce.errors import ConfigError
from landonce.read.schema.ddl import UnfitFields
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.clickhouse.address import TableName, quoted
from landonce.sinks.clickhouse.connection import Connection
from landonce.sinks.clickhouse.types import column_type, instead_of, unfit
from landonce.sinks.contract import COORDINATES

WINDOW = 10_000
"""Tokens that a created table remembers. The probe is the proof; this only makes a resend useless."""

_COORDINATE_COLUMNS = (
    "`_topic` LowCardinality(String)",
    "`_partition` Int32",
    "`_offset` Int64 CODEC(Delta(8), LZ4)",
    "INDEX landonce_offset `_offset` TYPE minmax GRANULARITY 1",
)
_IN_ORDER = "_topic, _partition, _offset"


@dataclass(frozen=True)
class Creation:
    """What a user may say about a table that landonce creates. The two keys are SQL expressions, as in the DDL."""

    order_by: str = ""
    """Empty: by coordinates, which makes probing cheapest."""
    partition_by: str = ""


def create_table(connection: Connection, table: TableName, declared: Schema, creation: Creation) -> None:
    """Creates the table if it is not there."""
    connection.do(create_statement(table, declared, creation))


def create_statement(table: TableName, declared: Schema, creation: Creation) -> str:
    """The DDL, to run or to show."""
    faults = [fault for each in declared.fields for fault in unfit(each.type, each.name, required=each.required)]
    if faults:
        raise UnfitFields(faults, instead_of(declared))
    columns = [_column(each) for each in declared.fields] + list(_COORDINATE_COLUMNS)
    order_by = creation.order_by or _IN_ORDER
    partition_by = f"\nPARTITION BY {creation.partition_by}" if creation.partition_by else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {table.sql}\n(\n    "
        + ",\n    ".join(columns)
        + f"\n)\nENGINE = MergeTree{partition_by}\nORDER BY ({order_by})\n"
        + f"SETTINGS non_replicated_deduplication_window = {WINDOW}"
    )


def _column(declared: Field) -> str:
    if declared.name in COORDINATES:
        raise ConfigError(f"a declared field cannot be called {declared.name}: that is one of the coordinates")
    type_ = column_type(declared.type, required=declared.required)
    default = " DEFAULT []" if pa.types.is_list(declared.type) and not declared.required else ""
    return f"{quoted(declared.name)} {type_}{default}"
