"""Creating a table from a declared schema, made for the guarantee: coordinates, an index on them, a token window.

Only `CREATE TABLE IF NOT EXISTS`: a table that is there is never changed, and never replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from landonce.errors import ConfigError
from landonce.read.schema import Field, Schema
from landonce.write.clickhouse.address import TableName, literal, quoted
from landonce.write.clickhouse.connection import Connection
from landonce.write.clickhouse.types import Unsupported, column_type
from landonce.write.sink import COORDINATES

WINDOW = 10_000
"""Tokens that a created table remembers. The probe is the proof; this only makes a resend useless."""

_COORDINATE_COLUMNS = (
    "`_topic` LowCardinality(String)",
    "`_partition` Int32",
    "`_offset` Int64 CODEC(Delta(8), LZ4)",
    "INDEX landonce_offset `_offset` TYPE minmax GRANULARITY 1",
)
_IN_ORDER = "_topic, _partition, _offset"
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Creation:
    """What a user may say about a table that landonce creates. The two keys are SQL expressions, as in the DDL."""

    order_by: str = ""
    """Empty: by coordinates, which makes probing cheapest."""
    partition_by: str = ""
    engine: str = "MergeTree"
    coordinates: bool = True
    settings: Mapping[str, str | int] = field(default_factory=dict)


def create_table(connection: Connection, table: TableName, declared: Schema, creation: Creation) -> None:
    """Creates the table if it is not there."""
    connection.do(create_statement(table, declared, creation))


def create_statement(table: TableName, declared: Schema, creation: Creation) -> str:
    """The DDL, to run or to show."""
    columns = [_column(each) for each in declared.fields] + list(_COORDINATE_COLUMNS if creation.coordinates else ())
    order_by = creation.order_by or (_IN_ORDER if creation.coordinates else "tuple()")
    settings = {"non_replicated_deduplication_window": WINDOW, **creation.settings}
    partition_by = f"\nPARTITION BY {creation.partition_by}" if creation.partition_by else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {table.sql}\n(\n    "
        + ",\n    ".join(columns)
        + f"\n)\nENGINE = {creation.engine}{partition_by}\nORDER BY ({order_by})\nSETTINGS "
        + ", ".join(f"{_setting_name(name)} = {_setting_value(value)}" for name, value in settings.items())
    )


def _column(declared: Field) -> str:
    if declared.name in COORDINATES:
        raise ConfigError(f"a declared field cannot be called {declared.name}: that is one of the coordinates")
    try:
        type_ = column_type(declared.type, required=declared.required)
    except Unsupported as why:
        raise ConfigError(f"field {declared.name!r}: {why}") from why
    default = " DEFAULT []" if pa.types.is_list(declared.type) and not declared.required else ""
    return f"{quoted(declared.name)} {type_}{default}"


def _setting_name(name: str) -> str:
    if not _SETTING.fullmatch(name):
        raise ConfigError(f"{name!r} is not the name of a table setting")
    return name


def _setting_value(value: str | int) -> str:
    return str(int(value)) if isinstance(value, int) else literal(value)
