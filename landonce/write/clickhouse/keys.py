"""Whether a row always goes to the same table partition, however often it is sent.

ClickHouse itself refuses a partition key that is not deterministic. What is left are columns in the key that landonce
does not send, or that take a default: their expressions are followed down to the columns of the record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from landonce.write.clickhouse.columns import Column
from landonce.write.clickhouse.connection import Connection
from landonce.write.clickhouse.tables import Table

_WORDS = re.compile(r"`((?:[^`\\]|\\.)+)`|([A-Za-z_]\w*)")
_STRINGS = re.compile(r"'(?:[^'\\]|\\.|'')*'")


def partition_key_faults(connection: Connection, table: Table) -> tuple[str, ...]:
    """What could send the same row to another partition. Empty if nothing can."""
    expressions = tuple(_expressions(table))
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


def _expressions(table: Table) -> Iterator[Column]:
    """The columns that decide about the partition and are computed by ClickHouse, directly or through others."""
    columns = {each.name: each for each in table.columns}
    waiting = [each for each in table.columns if each.in_partition_key]
    seen: set[str] = set()
    while waiting:
        column = waiting.pop()
        if column.name in seen or not column.default:
            continue
        seen.add(column.name)
        yield column
        waiting += [columns[word] for word in words(column.default) if word in columns]


def _deterministic_column(connection: Connection) -> str:
    sql = (
        "SELECT name FROM system.columns WHERE database = 'system' AND table = 'functions' "
        "AND name IN ('deterministic', 'is_deterministic')"
    )
    found = connection.ask(sql).column(0).to_pylist()
    return f"ifNull({found[0]}, 1)" if found else "1"
