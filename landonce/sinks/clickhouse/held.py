"""What a ClickHouse table holds, for an audit: coordinates window by window, values some thousand rows at a time. Read-only.

The SQL is the audit's own. ClickHouse returns Arrow; enums, addresses and strings of fixed length come as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.ranges import Partition
from landonce.read.route import Routing, Rule
from landonce.read.schema.fields import Schema
from landonce.sinks.audit import LAST, Counted, Held, HeldTables, HeldValues, Piece, each_text
from landonce.sinks.clickhouse.address import quoted
from landonce.sinks.clickhouse.connection import connect
from landonce.sinks.clickhouse.probe import bring_up_to_date
from landonce.sinks.clickhouse.sink import ClickHouseSink
from landonce.sinks.clickhouse.table import Table, describe
from landonce.sinks.clickhouse.types import parse_type
from landonce.sinks.deduplicating import InsertRecipe, insert_recipe
from landonce.sinks.parts import Parts
from landonce.sinks.run import run_of

_HERE = "_topic = {label:String} AND _partition = {number:Int32} AND _offset >= {first:Int64} AND _offset < {end:Int64}"
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


def held(parts: Parts, sink: ClickHouseSink) -> ClickHouseTables:
    """The one table of the pipeline."""
    target = sink.target()
    try:
        return ClickHouseTables(sink, insert_recipe(run_of(parts), sink, target.schema()))
    finally:
        target.close()


@dataclass(frozen=True)
class ClickHouseTables(HeldTables):
    """The one table of a pipeline that lands in ClickHouse."""

    sink: ClickHouseSink
    insert: InsertRecipe

    @property
    def recipe(self) -> InsertRecipe:
        return self.insert

    @property
    def routing(self) -> Routing:
        return Routing(None, (Rule(self.sink.table),))

    def known(self) -> tuple[str, ...]:
        return (self.sink.table,)

    def open(self, table: str) -> ClickHouseRows:
        del table
        return ClickHouseRows(self.sink)

    def schema(self, table: str) -> Schema:
        del table
        return self.insert.target if self.insert.transforms else self.insert.source


class ClickHouseRows(Held):
    """The coordinates in one table. `_topic` is the label of a topic."""

    def __init__(self, sink: ClickHouseSink) -> None:
        self._connection = connect(sink.access)
        self.table: Table = describe(self._connection, sink.table_name)
        self.name = sink.table
        bring_up_to_date(self._connection, self.table)
        self._from = f"FROM {self.table.name.sql}{' FINAL' if self.replaces_rows else ''}"

    @property
    def replaces_rows(self) -> bool:
        return self.table.resend_harmless

    def select(self, partition: Partition, first: int, end: int, columns: str, then: str = "") -> pa.Table:
        """These columns of the rows in a range."""
        sql = f"SELECT {columns} {self._from} WHERE {_HERE} {then}"
        asked = {"label": partition.topic, "number": str(partition.number), "first": str(first), "end": str(end)}
        return self._connection.ask(sql, asked)

    def values(self) -> ClickHouseValues:
        return ClickHouseValues(self)

    def notes(self) -> tuple[str, ...]:
        if not self.replaces_rows:
            return ()
        return (f"{self.table.name} replaces rows: one that a newer row replaced counts as missing.",)

    def counted(self, partition: Partition, first: int, end: int) -> Counted:
        return self._counted(partition, first, end, "")

    def repeated(self, partition: Partition, first: int, end: int) -> Counted:
        return self._counted(partition, first, end, "HAVING n > 1")

    def _counted(self, partition: Partition, first: int, end: int, having: str) -> Counted:
        columns, then = "toInt64(_offset) AS o, toInt64(count()) AS n", f"GROUP BY o {having} ORDER BY o"
        answer = self.select(partition, first, end, columns, then)
        return Counted(*(np.asarray(column.to_numpy(), np.int64) for column in answer.columns))

    def count(self, partition: Partition, first: int, end: int = LAST) -> int:
        return int(self.select(partition, first, end, "toInt64(count())").column(0)[0].as_py())

    def lowest(self, partition: Partition, first: int, end: int = LAST) -> int | None:
        answer = self.select(partition, first, end, "toInt64(minOrDefault(_offset)), toInt64(count())")
        return int(answer.column(0)[0].as_py()) if answer.column(1)[0].as_py() else None

    def partitions(self, labels: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
        sql = (
            f"SELECT toString(_topic) AS label, toInt64(_partition) AS number, toInt64(count()) AS n {self._from} "
            "WHERE _topic IN {labels:Array(String)} GROUP BY label, number ORDER BY label, number"
        )
        rows = self._connection.ask(sql, {"labels": sorted(labels)}).to_pylist()
        return tuple((row["label"], row["number"], row["n"]) for row in rows)


class ClickHouseValues(HeldValues):
    """The values of one table."""

    def __init__(self, rows: ClickHouseRows) -> None:
        self.name = rows.name
        self._rows = rows
        self._columns = {each.name: each for each in rows.table.columns}

    def read(self, partition: Partition, first: int, end: int, names: Sequence[str]) -> Iterator[Piece]:
        listed = [f"{_expression(self._columns[name].type, quoted(name))} AS {quoted(name)}" for name in names]
        columns = ", ".join([*listed, "toInt64(_offset) AS _offset"])
        for low in range(first, end, _AT_ONCE):
            found = self._rows.select(partition, low, min(low + _AT_ONCE, end), columns, "ORDER BY _offset")
            if not found.num_rows:
                continue
            for at, name in enumerate(found.column_names):
                if name in self._columns and _leaf(self._columns[name].type) in _SPELLINGS:
                    found = found.set_column(at, name, self._spell(name, found.column(name).combine_chunks()))
            yield Piece(found)

    def comparable(self, name: str, expected: pa.Array) -> pa.Array:
        if pt.is_list(expected.type) and expected.null_count:
            expected = pc.coalesce(expected, pa.scalar([], expected.type))
        return self._spell(name, expected)

    def filled(self, name: str) -> bool:
        column = self._columns[name]
        return bool(column.default_kind) and not column.mapped.nullable

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
