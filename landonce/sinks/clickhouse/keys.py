"""Whether a row always goes to the same table partition, however often it is sent.

ClickHouse itself refuses a partition key that is not deterministic. What is left are columns in the key that landonce
does not send, or that take a default: their expressions are followed down to the columns of the record.
"""

from __future__ import annotations

import re

from landonce.sinks.clickhouse.columns import Column
from landonce.sinks.clickhouse.connection import Connection
from landonce.sinks.clickhouse.tables import Table

_WORDS = re.compile(r"`((?:[^`\\]|\\.)+)`|([A-Za-z_]\w*)")
_STRINGS = re.compile(r"'(?:[^'\\]|\\.|'')*'")


def partition_key_faults(connection: Connection, table: Table) -> tuple[str, ...]:
    """What could send the same row to another partition. Empty if nothing can."""
    expressions = tuple(each for each in key_columns(table) if each.default)
    if not expressions:
        return ()
    called = {word for each in expressions for word in words(each.default)}
    sql = "SELECT name FROM system.functions WHERE name IN {names:Array(String)} AND NOT {column}"
    column = _deterministic_column(connection)
    loose = set(connection.ask(sql.replace("{column}", column), {"names": sorted(called)}).column(0).to_pylist())
    return tuple(
        f"column {each.name} takes {each.default_kind} {each.default}"
        for each in expressions
        if loose & words(each.default)
    )


def words(expression: str) -> frozenset[str]:
    """Every name in an expression, function or column."""
    return frozenset(quoted or plain for quoted, plain in _WORDS.findall(_STRINGS.sub("''", expression)))


def key_columns(table: Table) -> tuple[Column, ...]:
    """The columns that decide about the partition, directly or through the expressions of others. Each stands behind those that its
    own expression names."""
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


def _deterministic_column(connection: Connection) -> str:
    sql = (
        "SELECT name FROM system.columns WHERE database = 'system' AND table = 'functions' "
        "AND name IN ('deterministic', 'is_deterministic')"
    )
    found = connection.ask(sql).column(0).to_pylist()
    return f"ifNull({found[0]}, 1)" if found else "1"
