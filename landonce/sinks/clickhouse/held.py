"""What a ClickHouse table holds, for an audit: coordinates window by window, values some thousand rows at a time. Read-only.

The SQL is the audit's own. ClickHouse returns Arrow; what Arrow does not have comes as text: enums, addresses, strings of fixed length,
times, integers of more than 64 bits. Different texts of the same value are unified.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any

import numpy as np
import pyarrow as pa

from landonce.protocol.ledger import LedgerState
from landonce.protocol.ranges import Partition
from landonce.read.changes import Changes
from landonce.read.route import Routing
from landonce.read.schema.fields import ANY_RECORD, Schema, landed
from landonce.sinks.audit import (
    LAST,
    OFFSET,
    PLACE,
    UNKNOWN,
    CountedOffsets,
    Held,
    HeldKeys,
    HeldTables,
    HeldValues,
    NoRows,
    Piece,
    each_text,
    plain,
)
from landonce.sinks.clickhouse.address import literal, quoted
from landonce.sinks.clickhouse.connection import connect
from landonce.sinks.clickhouse.documents import OneOf
from landonce.sinks.clickhouse.nested import like, without_absent
from landonce.sinks.clickhouse.probe import bring_up_to_date
from landonce.sinks.clickhouse.shards import ShardMap, misplaced
from landonce.sinks.clickhouse.sink import ClickHouseSink
from landonce.sinks.clickhouse.table import Column, Table, describe
from landonce.sinks.clickhouse.types import parse_type
from landonce.sinks.deduplicating import InsertRecipe, TablesRecipe, columns_of, there
from landonce.sinks.run import Run

_HERE = "_topic = {label:String} AND _partition = {number:Int32} AND _offset >= {first:Int64} AND _offset < {end:Int64}"
_ALL = "SETTINGS use_skip_indexes_if_final = 0"
"""FINAL compares all rows of a key, also those that a condition leaves out."""
_TOPIC = "__landonce_topic"
_AT_ONCE = 20_000
_CHANGED_AT_ONCE = 200_000
"""Offsets. Where records change rows, few of them have a row, and every question merges the table."""
_SPELLINGS: dict[str, Callable[[str], str]] = {
    "Enum8": str,
    "Enum16": str,
    "UUID": str.lower,
    "IPv4": str,
    "IPv6": lambda each: ip_address(each).exploded,
    "Time": lambda each: _time(each),
    "Time64": lambda each: _time(each),
    "JSON": lambda each: json.dumps(_kept(json.loads(each)), sort_keys=True),
    **dict.fromkeys(("Int128", "UInt128", "Int256", "UInt256"), str),
}
"""Types that are read as text, and how different texts of the same value are unified."""
_READ_AS = {**dict.fromkeys((*_SPELLINGS, "FixedString"), "String"), "BFloat16": "Float32"}
"""What Arrow does not have, or not all of it, is read as another type."""


@dataclass(frozen=True)
class ClickHouseTables(HeldTables):
    """The tables of a pipeline that lands in ClickHouse: those that the file names, those that the ledger knows, and those that records
    name."""

    sink: ClickHouseSink
    run: Run
    insert: InsertRecipe
    state: LedgerState | None

    @property
    def recipe(self) -> InsertRecipe:
        return self.insert

    @property
    def routing(self) -> Routing:
        return self.sink.routing

    def identity(self, table: str) -> tuple[str, ...]:
        del table
        return self.sink.key

    @property
    def changes(self) -> Changes | None:
        return self.sink.changes

    def known(self) -> tuple[str, ...]:
        listed = [name for name, _ in self.state.tables] if self.state is not None else []
        mine = filter(self.routing.could_make, listed)
        return tuple(dict.fromkeys((*self.routing.static, *mine)))

    def open(self, table: str) -> Held | HeldKeys:
        """A missing table of several holds nothing."""
        if not self._there(table):
            return NoRows(table)
        sink = self.sink.one(table)
        if sink.shard_map is not None:
            return ShardedRows(sink.table, sink.shard_map, [ClickHouseRows(each) for each in sink.shards])
        return ClickHouseKeys(sink) if sink.key else ClickHouseRows(sink)

    def schema(self, table: str) -> Schema | None:
        if not isinstance(self.insert, TablesRecipe):
            return self.insert.target if self.insert.transforms else self.insert.source
        if not self._there(table):
            return None
        found = columns_of(self.run, self.sink, table)
        return found.target if self.insert.transforms else found.source

    def lost(self, table: str) -> Schema | None:
        """Records for a table that the file names, or would make, belong into it."""
        should = self.sink.create or table in self.routing.static
        return self.run.declared or ANY_RECORD if should else None

    def _there(self, table: str) -> bool:
        return not self.routing.many or there(self.sink, table)


class _Read:
    """One table, as a user reads it. `_topic` is the label of a topic."""

    def __init__(self, sink: ClickHouseSink) -> None:
        self._connection = connect(sink.access)
        self.table: Table = describe(self._connection, sink.table_name, sink.key)
        self.name, self.place = sink.table, sink.place
        bring_up_to_date(self._connection, self.table)
        self._from = f"FROM {self.table.name.sql}{' FINAL' if self.replaces_rows else ''}"
        sign = self.table.sign_column
        self._only = f"{quoted(sign)} = 1" if sign else "1"

    @property
    def replaces_rows(self) -> bool:
        return self.table.resend_harmless or bool(self.table.sign_column)

    def select(self, partition: Partition, first: int, end: int, columns: str, then: str = "") -> pa.Table:
        """These columns of the rows in a range."""
        sql = (
            f"SELECT {columns} {self._from} WHERE {self._only} AND {_HERE} {then} {_ALL if self.replaces_rows else ''}"
        )
        asked = {"label": partition.topic, "number": str(partition.number), "first": str(first), "end": str(end)}
        return self._connection.ask(sql, asked)

    def values(self) -> ClickHouseValues:
        return ClickHouseValues(self)


class ClickHouseKeys(_Read, HeldKeys):
    """The keys in one table, with the coordinates of their last changes. They are all in memory at once, in columns."""

    def rows(self, places: Mapping[Partition, int]) -> pa.Table | None:
        columns = {each.name: each for each in self.table.columns}
        listed = [f"{value_of(columns[name])} AS {quoted(name)}" for name in self.table.key]
        sql = (
            f"SELECT {', '.join(listed)}, toString(_topic) AS {_TOPIC}, toInt64(_partition) AS {PLACE}, "
            f"toInt64(_offset) AS {OFFSET} {self._from} WHERE {self._only} {self._twice(listed)} {_ALL}"
        )
        found = self._connection.ask(sql)
        if not found.num_rows:
            return None
        topics = found.column(_TOPIC).combine_chunks().dictionary_encode()
        numbers = np.asarray(found.column(PLACE).to_numpy(), np.int64)
        labels, at = topics.dictionary.to_pylist(), np.asarray(topics.indices.to_numpy(), np.int64)
        place = np.full(found.num_rows, UNKNOWN, np.int64)
        for partition, number in places.items():
            if partition.topic in labels:
                place[(at == labels.index(partition.topic)) & (numbers == partition.number)] = number
        keyed = {name: _unified(found.column(name).combine_chunks(), columns[name].type) for name in self.table.key}
        plain_keys = plain(pa.table(keyed))
        return pa.table([*plain_keys.columns, place, found.column(OFFSET)], names=[*keyed, PLACE, OFFSET])

    def _twice(self, listed: Sequence[str]) -> str:
        """FINAL hides that a row was added or taken away twice: such keys come once more, with their last coordinates."""
        if not self.table.sign_column:
            return ""
        last = "argMax(toString(_topic), _offset), argMax(toInt64(_partition), _offset), toInt64(max(_offset))"
        keys = ", ".join(map(quoted, self.table.key))
        sums = f"GROUP BY {keys} HAVING sum({quoted(self.table.sign_column)}) NOT IN (0, 1)"
        return f"UNION ALL SELECT {', '.join(listed)}, {last} FROM {self.table.name.sql} {sums}"  # noqa: S608

    def notes(self) -> tuple[str, ...]:
        return ()


class ClickHouseRows(_Read, Held):
    """The coordinates in one table."""

    def notes(self) -> tuple[str, ...]:
        if not self.replaces_rows:
            return ()
        return (f"{self.table.name} replaces rows: one that a newer row replaced counts as missing.",)

    def counted(self, partition: Partition, first: int, end: int) -> CountedOffsets:
        return self._counted(partition, first, end, "")

    def repeated(self, partition: Partition, first: int, end: int) -> CountedOffsets:
        return self._counted(partition, first, end, "HAVING n > 1")

    def matching(self, condition: str) -> int:
        """How many rows meet a condition."""
        return int(self._connection.one(f"SELECT count() {self._from} WHERE {condition}"))

    def _counted(self, partition: Partition, first: int, end: int, having: str) -> CountedOffsets:
        columns, then = "toInt64(_offset) AS o, toInt64(count()) AS n", f"GROUP BY o {having} ORDER BY o"
        answer = self.select(partition, first, end, columns, then)
        return CountedOffsets(*(np.asarray(column.to_numpy(), np.int64) for column in answer.columns))

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


class ShardedRows(Held):
    """The coordinates in one table on all shards. A row that is on two of them is there twice."""

    def __init__(self, name: str, shards: ShardMap, rows: Sequence[ClickHouseRows]) -> None:
        self.name = name
        self._map, self._shards = shards, tuple(rows)

    @property
    def replaces_rows(self) -> bool:
        return any(each.replaces_rows for each in self._shards)

    def notes(self) -> tuple[str, ...]:
        found = {note for each in self._shards for note in each.notes()}
        astray = ((each.place, each.matching(self._map.elsewhere(at))) for at, each in enumerate(self._shards))
        return (*sorted(found), *(f"{misplaced(place, rows)}." for place, rows in astray if rows))

    def counted(self, partition: Partition, first: int, end: int) -> CountedOffsets:
        found = [each.counted(partition, first, end) for each in self._shards]
        offsets, at = np.unique(np.concatenate([each.offsets for each in found]), return_inverse=True)
        counts = np.zeros(len(offsets), np.int64)
        np.add.at(counts, at, np.concatenate([each.counts for each in found]))
        return CountedOffsets(offsets, counts)

    def repeated(self, partition: Partition, first: int, end: int) -> CountedOffsets:
        found = self.counted(partition, first, end)
        return CountedOffsets(found.offsets[found.counts > 1], found.counts[found.counts > 1])

    def count(self, partition: Partition, first: int, end: int = LAST) -> int:
        return sum(each.count(partition, first, end) for each in self._shards)

    def lowest(self, partition: Partition, first: int, end: int = LAST) -> int | None:
        return min(
            (low for each in self._shards if (low := each.lowest(partition, first, end)) is not None), default=None
        )

    def partitions(self, labels: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
        asked, sums = tuple(labels), Counter[tuple[str, int]]()
        for each in self._shards:
            for label, number, rows in each.partitions(asked):
                sums[label, number] += rows
        return tuple((label, number, rows) for (label, number), rows in sorted(sums.items()))

    def values(self) -> ShardedValues:
        return ShardedValues(self.name, [each.values() for each in self._shards])


class ShardedValues(HeldValues):
    """The values of one table on all shards."""

    def __init__(self, name: str, shards: Sequence[ClickHouseValues]) -> None:
        self.name = name
        self._shards = tuple(shards)

    def read(self, partition: Partition, first: int, end: int, names: Sequence[str]) -> Iterator[Piece]:
        for low in range(first, end, _AT_ONCE):
            pieces = [each.read(partition, low, min(low + _AT_ONCE, end), names) for each in self._shards]
            found = [piece.rows for some in pieces for piece in some]
            if found:
                yield Piece(pa.concat_tables(found).sort_by("_offset"))

    def comparable(self, name: str, expected: pa.Array) -> pa.Array:
        return self._shards[0].comparable(name, expected)

    def filled(self, name: str) -> bool:
        return self._shards[0].filled(name)


class ClickHouseValues(HeldValues):
    """The values of one table."""

    def __init__(self, rows: _Read) -> None:
        self.name = rows.name
        self._rows = rows
        self._columns = {each.name: each for each in rows.table.columns}

    def read(self, partition: Partition, first: int, end: int, names: Sequence[str]) -> Iterator[Piece]:
        listed = [f"{value_of(self._columns[name])} AS {quoted(name)}" for name in names]
        columns = ", ".join([*listed, "toInt64(_offset) AS _offset"])
        at_once = _CHANGED_AT_ONCE if self._rows.table.key else _AT_ONCE
        for low in range(first, end, at_once):
            found = self._rows.select(partition, low, min(low + at_once, end), columns, "ORDER BY _offset")
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
            expected = without_absent(expected, like(landed(column.mapped.arrow), expected.type, column.field()))
        return _unified(expected, _type(column))

    def filled(self, name: str) -> bool:
        column = self._columns[name]
        return bool(column.default_kind) and not column.mapped.nullable


def value_of(column: Column) -> str:
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
    if parsed.name == "FixedString":
        return _unpadded(array)
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


def _unpadded(array: pa.Array) -> pa.Array:
    """Text or bytes without the zero bytes that a FixedString adds."""
    coded = array.cast(pa.binary()).dictionary_encode()
    values = pa.array([each.rstrip(b"\0") for each in coded.dictionary.to_pylist()], pa.binary())
    values = values.take(coded.indices)
    return values.view(pa.string()) if pa.types.is_string(array.type) else values


def _time(text: str) -> str:
    """Without the zeros at the end of a fraction, and without the sign of a zero."""
    whole, _, fraction = text.partition(".")
    short = f"{whole}.{fraction.rstrip('0')}".rstrip(".")
    return short.removeprefix("-") if not short.strip("-0:") else short
