"""The values in a ClickHouse table, some thousand rows at a time. Read-only, with its own SQL.

ClickHouse returns Arrow; enums, addresses and strings of fixed length come as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.ranges import Partition
from landonce.sinks.clickhouse.address import quoted
from landonce.sinks.clickhouse.types import parse_type
from landonce.verify.held.clickhouse import ClickHouseRows
from landonce.verify.held.port import HeldValues, Piece
from landonce.verify.values import each_text

_AT_ONCE = 20_000
_INSIDE = ("Nullable", "LowCardinality", "Array")
_SPELLINGS: dict[str, Callable[[str], str]] = {
    "Enum8": str,
    "Enum16": str,
    "UUID": str.lower,
    "IPv4": str,
    "IPv6": lambda each: ip_address(each).exploded,
    "FixedString": lambda each: each.rstrip("\0"),
}
"""Types that are read as text, and how different texts of the same value are unified."""


class ClickHouseValues(HeldValues):
    """The rows of one table."""

    def __init__(self, rows: ClickHouseRows) -> None:
        self.name = rows.name
        self._rows = rows
        self._columns = {each.name: each for each in rows.columns}

    def read(self, partition: Partition, first: int, end: int, names: Sequence[str]) -> Iterator[Piece]:
        columns = ", ".join(
            f"{_expression(self._columns[name].type, quoted(name))} AS {quoted(name)}" for name in names
        )
        for low in range(first, end, _AT_ONCE):
            found = self._rows.select(partition, low, min(low + _AT_ONCE, end), columns)
            if found.num_rows:
                yield Piece(self._spelled(found))

    def comparable(self, name: str, expected: pa.Array) -> pa.Array:
        if pt.is_list(expected.type) and expected.null_count:
            expected = pc.coalesce(expected, pa.scalar([], expected.type))
        return self._spell(name, expected)

    def filled(self, name: str) -> bool:
        column = self._columns[name]
        return bool(column.default_kind) and not column.mapped.nullable

    def _spelled(self, found: pa.Table) -> pa.Table:
        for at, name in enumerate(found.column_names):
            if name in self._columns and _leaf(self._columns[name].type) in _SPELLINGS:
                found = found.set_column(at, name, self._spell(name, found.column(name).combine_chunks()))
        return found

    def _spell(self, name: str, array: pa.Array) -> pa.Array:
        spell = _SPELLINGS.get(_leaf(self._columns[name].type))
        return each_text(array, spell) if spell is not None else array


def _leaf(type_: str) -> str:
    """The element type of arrays."""
    parsed = parse_type(type_)
    while parsed.name in _INSIDE:
        parsed = parsed.inner
    return parsed.name


def _expression(type_: str, what: str, depth: int = 0) -> str:
    """The SQL that reads a column. Types that are read as text do not occur inside tuples."""
    if _leaf(type_) not in _SPELLINGS:
        return what
    parsed = parse_type(type_)
    while parsed.name in ("Nullable", "LowCardinality"):
        parsed = parsed.inner
    if parsed.name != "Array":
        return f"toString({what})"
    item = f"x{depth}"
    return f"arrayMap({item} -> {_expression(str(parsed.inner), item, depth + 1)}, {what})"
