"""A table as the server describes it (engine, keys, columns), and the statement that creates one.

A created table has what the guarantee needs: coordinates, an index on them, a window of tokens. The statement is only `CREATE TABLE IF NOT EXISTS`:
an existing table is never changed or replaced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from landonce.errors import ConfigError, TargetRefused
from landonce.read.schema.ddl import UnfitFields
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.clickhouse.address import TableName, literal, quoted
from landonce.sinks.clickhouse.columns import Column
from landonce.sinks.clickhouse.connection import Connection
from landonce.sinks.clickhouse.types import column_type, instead_of, split_list, unfit, unquote
from landonce.sinks.contract import COORDINATES

_TABLE = """
SELECT engine, engine_full, partition_key, sorting_key,
       arrayMap((d, t) -> concat(d, '.', t), dependencies_database, dependencies_table) AS views
FROM system.tables WHERE database = {database:String} AND name = {name:String}
"""
_SHAPE = "hex(sipHash128(toString(groupArray((name, type, default_kind, default_expression)))))"
_COLUMNS = """
SELECT name, type, default_kind, default_expression, is_in_partition_key
FROM system.columns WHERE database = {database} AND table = {name} ORDER BY position
"""
_DESCRIBED = f"""
SELECT groupArray((name, type, default_kind, default_expression, is_in_partition_key)) AS columns, {_SHAPE} AS shape
FROM ({_COLUMNS.format(database="{database:String}", name="{name:String}")})
"""  # noqa: S608

_NAMES = re.compile(r"`((?:[^`\\]|\\.)+)`|([A-Za-z_]\w*)")
_STRINGS = re.compile(r"'(?:[^'\\]|\\.|'')*'")


@dataclass(frozen=True)
class Table:
    """A table, its keys as ClickHouse writes them, and the views behind it."""

    name: TableName
    engine: str
    engine_full: str
    partition_key: str
    sorting_key: str
    views: tuple[str, ...]
    columns: tuple[Column, ...]
    shape: str = ""
    """A hash of the name, type and default of every column."""

    @property
    def replicated(self) -> bool:
        return self.engine.startswith(("Replicated", "Shared"))

    @property
    def family(self) -> str:
        """The engine without `Replicated` or `Shared`."""
        return re.sub(r"^(Replicated|Shared)", "", self.engine)

    @property
    def version_column(self) -> str:
        """The column whose highest value a Replacing table keeps; empty if it has none."""
        if self.family != "ReplacingMergeTree":
            return ""
        named = [each for each in self._engine_arguments() if not each.startswith("'")]
        return unquote(named[0]) if named else ""

    @property
    def resend_harmless(self) -> bool:
        """Whether two copies of a row become one: a Replacing table with a version column that landonce fills."""
        version = self.version_column
        return any(each.name == version and not each.default_kind for each in self.columns)

    @property
    def ttl(self) -> str:
        """When rows expire; empty if they never do."""
        found = re.search(r"(?s)\sTTL (.+?)(?:\sSETTINGS \w+ = .*)?$", self.engine_full)
        return found[1] if found else ""

    def setting(self, name: str) -> str | None:
        """A setting in the table's own definition."""
        found = re.search(rf"\b{re.escape(name)}\s*=\s*([^,\s]+)", self.engine_full)
        return unquote(found[1]) if found else None

    def _engine_arguments(self) -> list[str]:
        rest = self.engine_full[len(self.engine) :]
        if not rest.startswith("("):
            return []
        depth = 0
        for at, character in enumerate(rest):
            depth += (character == "(") - (character == ")")
            if depth == 0:
                return split_list(rest[1:at])
        return []


def describe(connection: Connection, name: TableName) -> Table:
    """The table as it is now. Raises `TargetRefused` if there is none."""
    asked = {"database": name.database, "name": name.name}
    found = connection.ask(_TABLE, asked).to_pylist()
    if not found:
        raise TargetRefused(
            f"ClickHouse has no table {name}, or the user may not see it.",
            safe="Nothing was written.",
            command="create it, or set `create: true` in {file}; or grant SELECT and INSERT on it",
        )
    (described,) = connection.ask(_DESCRIBED, asked).to_pylist()
    columns = [Column(*values) for values in (each.values() for each in described["columns"])]
    (row,) = found
    return Table(
        name=name, **{**row, "views": tuple(sorted(row["views"]))}, columns=tuple(columns), shape=described["shape"]
    )


def shape_now(name: TableName) -> str:
    """A subquery that yields the table's shape when the statement runs."""
    columns = _COLUMNS.format(database=literal(name.database), name=literal(name.name))
    return f"SELECT {_SHAPE} FROM ({columns})"  # noqa: S608


def words(expression: str) -> frozenset[str]:
    """Every name of a function or column in an expression."""
    return frozenset(quoted or plain for quoted, plain in _NAMES.findall(_STRINGS.sub("''", expression)))


def key_columns(table: Table) -> tuple[Column, ...]:
    """The columns that decide on the table partition, directly or through default expressions. Each comes after those that its own
    expression names."""
    columns = {each.name: each for each in table.columns}
    ordered: dict[str, Column] = {}
    entered: set[str] = set()

    def enter(column: Column) -> None:
        if column.name in entered:
            return
        entered.add(column.name)
        for word in sorted(words(column.default)):
            if word in columns:
                enter(columns[word])
        ordered[column.name] = column

    for each in table.columns:
        if each.in_partition_key:
            enter(each)
    return tuple(ordered.values())


WINDOW = 10_000
"""Tokens that a created table remembers."""

_COORDINATE_COLUMNS = (
    "`_topic` LowCardinality(String)",
    "`_partition` Int32",
    "`_offset` Int64 CODEC(Delta(8), LZ4)",
    "INDEX landonce_offset `_offset` TYPE minmax GRANULARITY 1",
)
_IN_ORDER = "_topic, _partition, _offset"


@dataclass(frozen=True)
class Creation:
    """The keys of a table that landonce creates, as SQL expressions."""

    order_by: str = ""
    """Empty: by coordinates, which makes a probe cheapest."""
    partition_by: str = ""


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
