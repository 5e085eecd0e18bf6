"""What a ClickHouse table holds, for an audit: coordinates window by window, values some thousand rows at a time. Read-only.

The SQL is the audit's own. ClickHouse returns Arrow; what Arrow does not have comes as text: enums, addresses, strings of fixed length,
times, integers of more than 64 bits. Different texts of the same value are unified.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any

import numpy as np
import pyarrow as pa

from landonce.protocol.ranges import Partition
from landonce.read.route import Routing, Rule
from landonce.read.schema.fields import Schema, landed
from landonce.sinks.audit import LAST, Counted, Held, HeldTables, HeldValues, Piece, each_text
from landonce.sinks.clickhouse.absent import without_absent
from landonce.sinks.clickhouse.address import literal, quoted
from landonce.sinks.clickhouse.connection import connect
from landonce.sinks.clickhouse.documents import OneOf
from landonce.sinks.clickhouse.probe import bring_up_to_date
from landonce.sinks.clickhouse.sink import ClickHouseSink
from landonce.sinks.clickhouse.table import Column, Table, describe
from landonce.sinks.clickhouse.types import parse_type
from landonce.sinks.deduplicating import InsertRecipe, insert_recipe
from landonce.sinks.parts import Parts
from landonce.sinks.run import run_of

_HERE = "_topic = {label:String} AND _partition = {number:Int32} AND _offset >= {first:Int64} AND _offset < {end:Int64}"
_AT_ONCE = 20_000
_SPELLINGS: dict[str, Callable[[str], str]] = {
    "Enum8": str,
    "Enum16": str,
    "UUID": str.lower,
    "IPv4": str,
    "IPv6": lambda each: ip_address(each).exploded,
    "FixedString": lambda each: each.rstrip("\0"),
    "Time": lambda each: _time(each),
    "Time64": lambda each: _time(each),
    "JSON": lambda each: json.dumps(_kept(json.loads(each)), sort_keys=True),
    **dict.fromkeys(("Int128", "UInt128", "Int256", "UInt256"), str),
}
"""Types that are read as text, and how different texts of the same value are unified."""
_READ_AS = {**dict.fromkeys(_SPELLINGS, "String"), "BFloat16": "Float32"}
"""What Arrow does not have, or not all of it, is read as another type."""


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
        listed = [f"{self._value(self._columns[name])} AS {quoted(name)}" for name in names]
        columns = ", ".join([*listed, "toInt64(_offset) AS _offset"])
        for low in range(first, end, _AT_ONCE):
            found = self._rows.select(partition, low, min(low + _AT_ONCE, end), columns, "ORDER BY _offset")
            if not found.num_rows:
                continue
            for at, name in enumerate(found.column_names):
                if name in self._columns:
                    values = _unified(found.column(name).combine_chunks(), _type(self._columns[name]))
                    found = found.set_column(at, name, values)
            yield Piece(found)

    def comparable(self, name: str, expected: pa.Array) -> pa.Array:
        column = self._columns[name]
        judge = column.mapped.judge
        if isinstance(judge, OneOf):
            expected = judge.lists(expected)
        if column.empty_default:
            expected = without_absent(expected, landed(column.mapped.arrow))
        return _unified(expected, _type(column))

    def filled(self, name: str) -> bool:
        column = self._columns[name]
        return bool(column.default_kind) and not column.mapped.nullable

    @staticmethod
    def _value(column: Column) -> str:
        """The SQL that reads a column. The cast is on the whole column, so it also reaches what is inside."""
        if column.mapped.members:
            return f"CAST({_members(column)}, {literal(_read_as(_type(column)))})"
        read_as = _read_as(column.type)
        return column.value if read_as == column.type else f"CAST({column.value}, {literal(read_as)})"


def _type(column: Column) -> str:
    """The type whose values are compared. A Variant or a Dynamic is a list of one value or none for each of its types."""
    members = column.mapped.members
    return f"Tuple({', '.join(f'Array({each})' for each in members)})" if members else column.type


def _members(column: Column) -> str:
    """The values of a Variant or a Dynamic, in lists by their types. A value of another type is in none of them."""
    kind = parse_type(column.type).name.lower()
    lists = []
    for each in column.mapped.members:
        value = f"{kind}Element({column.value}, {literal(each)})"
        of_type = f"{kind}Type({column.value}) = {literal(each)}"
        lists.append(f"arrayFilter(landonce_item -> {of_type}, [{value}])")
    return f"tuple({', '.join(lists)})"


def _kept(value: Any) -> Any:
    """What the type JSON keeps: members that are null or empty are as good as absent, and 1.0 is 1."""
    if isinstance(value, list):
        return [_kept(each) for each in value]
    if isinstance(value, dict):
        kept = {name: _kept(each) for name, each in value.items()}
        return {name: each for name, each in kept.items() if each is not None and each != {}}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _read_as(type_: str) -> str:
    """The type in which a column is read."""
    parsed = parse_type(type_)
    if parsed.name in _READ_AS:
        return _READ_AS[parsed.name]
    if parsed.name.startswith("Interval"):
        return "Int64"
    if parsed.name in ("LowCardinality", "SimpleAggregateFunction"):
        return _read_as(parsed.arguments[-1])
    if parsed.name == "QBit":
        return f"Array({_read_as(parsed.arguments[0])})"
    if parsed.name in ("Nullable", "Array", "Map"):
        return f"{parsed.name}({', '.join(map(_read_as, parsed.arguments))})"
    if parsed.name in ("Tuple", "Nested"):
        elements = [f"{quoted(name)} {_read_as(each)}" if name else _read_as(each) for name, each in parsed.elements()]
        inner = f"Tuple({', '.join(elements)})"
        return inner if parsed.name == "Tuple" else f"Array({inner})"
    return type_


def _unified(array: pa.Array, type_: str) -> pa.Array:
    """The same values with every text in one spelling. `type_`: of the column."""
    parsed = parse_type(type_)
    while parsed.name in ("Nullable", "LowCardinality", "SimpleAggregateFunction"):
        parsed = parse_type(parsed.arguments[-1])
    if parsed.name in _SPELLINGS:
        return each_text(array, _SPELLINGS[parsed.name])
    if parsed.name not in ("Array", "Map", "Nested", "Tuple"):
        return array
    array = pa.concat_arrays([array, array.slice(0, 0)]) if array.offset else array
    mask = array.is_null() if array.null_count else None
    if parsed.name == "Map":
        keys, values = (
            _unified(part, of) for part, of in zip((array.keys, array.items), parsed.arguments, strict=True)
        )
        return pa.MapArray.from_arrays(array.offsets, keys, values, mask=mask)
    if parsed.name == "Array":
        return pa.ListArray.from_arrays(array.offsets, _unified(array.values, parsed.arguments[0]), mask=mask)
    if parsed.name == "Nested":
        inner = str(replace(parsed, name="Tuple"))
        return pa.ListArray.from_arrays(array.offsets, _unified(array.values, inner), mask=mask)
    children = [_unified(array.field(at), each) for at, (_, each) in enumerate(parsed.elements())]
    return pa.StructArray.from_arrays(children, [each.name for each in array.type], mask=mask)


def _time(text: str) -> str:
    """Without the zeros at the end of a fraction, and without the sign of a zero."""
    whole, _, fraction = text.partition(".")
    short = f"{whole}.{fraction.rstrip('0')}".rstrip(".")
    return short.removeprefix("-") if not short.strip("-0:") else short
