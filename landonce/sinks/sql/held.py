"""What a table in an SQL database holds, for an audit: coordinates window by window, keys, and values. Read-only, with its own statements.

A table with inserts only has an index on the coordinates, and its values are read range by range. A table whose rows records change has
none: the database sorts it once for each partition, and it is read along with the topic.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from sqlalchemy import (
    CHAR,
    JSON,
    BigInteger,
    Float,
    Integer,
    Text,
    and_,
    cast,
    column,
    func,
    literal_column,
    select,
    table,
    text,
)
from sqlalchemy.dialects import postgresql

from landonce.protocol.ranges import Partition
from landonce.read.changes.decode import Changes
from landonce.read.route import Routing, Rule
from landonce.read.schema.fields import Schema, is_uuid
from landonce.sinks.audit import (
    LAST,
    OFFSET,
    PLACE,
    UNKNOWN,
    Counted,
    Held,
    HeldKeys,
    HeldTables,
    HeldValues,
    Piece,
    plain,
)
from landonce.sinks.parts import Parts
from landonce.sinks.sql.driver import sql_recipe
from landonce.sinks.sql.held_values import as_array, comparable
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.sql.worker import SqlRecipe

Query = Any
"""A SQLAlchemy `select` with any columns."""
_TOPIC: Any = column("_topic", Text)
_NUMBER: Any = column("_partition", Integer)
_OFFSET: Any = column("_offset", BigInteger)
_AT_ONCE = 50_000
_VALUES_AT_ONCE = 20_000
_PATIENCE = 3600
"""Seconds that MySQL waits for a reader that pauses to read the topic."""


def held(parts: Parts, sink: SqlSink) -> SqlTables:
    """The one table of the pipeline."""
    opened = SqlTable(sink)
    try:
        return SqlTables(opened, sql_recipe(parts, opened))
    except BaseException:
        opened.close()
        raise


@dataclass(frozen=True)
class SqlTables(HeldTables):
    """The one table of a pipeline that lands in an SQL database."""

    opened: SqlTable
    rows: SqlRecipe

    @property
    def recipe(self) -> SqlRecipe:
        return self.rows

    @property
    def routing(self) -> Routing:
        return Routing(None, (Rule(self.opened.sink.table),))

    @property
    def identity(self) -> tuple[str, ...]:
        return self.opened.sink.key

    @property
    def changes(self) -> Changes | None:
        return self.rows.changes

    def known(self) -> tuple[str, ...]:
        return (self.opened.sink.table,)

    def open(self, table: str) -> Held | HeldKeys:
        written = self.schema(table)
        return SqlKeys(self.opened, written) if self.identity else SqlRows(self.opened, written)

    def schema(self, table: str) -> Schema:
        del table
        return self.rows.target if self.rows.transforms else self.rows.source

    def close(self) -> None:
        self.opened.close()


class _Asked:
    """One table. A missing table holds nothing, and `notes` say so."""

    def __init__(self, opened: SqlTable) -> None:
        self._opened = opened
        self.name = opened.sink.table
        self.there = opened.exists()
        self.rows = table(opened.sink.name, schema=opened.sink.schema)

    def ask(self, query: Query) -> list[Any]:
        return [row for batch in self.stream(query) for row in batch] if self.there else []

    def stream(self, query: Query, at_once: int = _AT_ONCE) -> Iterator[Sequence[Any]]:
        with self._opened.scanning() as connection:
            if self._opened.sink.dialect in ("mysql", "mariadb"):
                connection.execute(text(f"SET SESSION net_write_timeout = {_PATIENCE}"))
            found = connection.execution_options(yield_per=at_once).execute(query.select_from(self.rows))
            yield from found.partitions()

    def notes(self) -> tuple[str, ...]:
        return () if self.there else (f"there is no table {self.name}.",)


class SqlRows(Held):
    """The coordinates in one table. `_topic` is the label of a topic."""

    def __init__(self, opened: SqlTable, schema: Schema) -> None:
        self._opened, self._schema = opened, schema
        self._asked = _Asked(opened)
        self.name = self._asked.name

    def values(self) -> SqlValues:
        return SqlValues(self._opened, self._schema)

    def notes(self) -> tuple[str, ...]:
        return self._asked.notes()

    def counted(self, partition: Partition, first: int, end: int) -> Counted:
        return self._counted(_per_offset(partition, first, end))

    def repeated(self, partition: Partition, first: int, end: int) -> Counted:
        return self._counted(_per_offset(partition, first, end).having(func.count() > 1))

    def count(self, partition: Partition, first: int, end: int = LAST) -> int:
        return int(self._one(select(func.count()).where(_within(partition, first, end))) or 0)

    def lowest(self, partition: Partition, first: int, end: int = LAST) -> int | None:
        found = self._one(select(func.min(_OFFSET)).where(_within(partition, first, end)))
        return int(found) if found is not None else None

    def partitions(self, labels: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
        query = select(_TOPIC, _NUMBER, func.count()).where(_TOPIC.in_(sorted(labels))).group_by(_TOPIC, _NUMBER)
        return tuple(sorted((str(label), int(number), int(rows)) for label, number, rows in self._asked.ask(query)))

    def _one(self, query: Query) -> Any:
        found = self._asked.ask(query)
        return found[0][0] if found else None

    def _counted(self, query: Query) -> Counted:
        found = np.array([tuple(row) for row in self._asked.ask(query)], np.int64).reshape(-1, 2)
        return Counted(found[:, 0], found[:, 1])


class SqlKeys(HeldKeys):
    """The keys in one table, with the coordinates of their last changes. They are all in memory at once, in columns."""

    def __init__(self, opened: SqlTable, schema: Schema) -> None:
        self._asked = _Asked(opened)
        self.name = self._asked.name
        self._key = opened.sink.key
        self._opened, self._schema = opened, schema
        self._types = {each.name: each.type for each in schema.fields}

    def values(self) -> SqlValues:
        return SqlValues(self._opened, self._schema)

    def rows(self, places: Mapping[Partition, int]) -> pa.Table | None:
        if not self._asked.there:
            return None
        kinds = {each["name"]: each["type"] for each in self._opened.shape().columns}
        keys = [_exact(name, kinds[name], self._opened.sink.dialect) for name in self._key]
        query: Query = select(*keys, _TOPIC, _NUMBER, _OFFSET)
        found = [self._table(batch, places) for batch in self._asked.stream(query)]
        return pa.concat_tables(found) if found else None

    def notes(self) -> tuple[str, ...]:
        return self._asked.notes()

    def _table(self, batch: Sequence[Any], places: Mapping[Partition, int]) -> pa.Table:
        *keys, topics, numbers, offsets = zip(*batch, strict=True)
        named = {name: _key_array(values, self._types[name]) for name, values in zip(self._key, keys, strict=True)}
        place = [
            places.get(Partition(topic, number), UNKNOWN) if topic is not None else UNKNOWN
            for topic, number in zip(topics, numbers, strict=True)
        ]
        offset = [UNKNOWN if each is None else each for each in offsets]
        table_ = plain(pa.table(named))
        return table_.append_column(PLACE, pa.array(place, pa.int64())).append_column(
            OFFSET, pa.array(offset, pa.int64())
        )


class SqlValues(HeldValues):
    """The rows of one table, written with `schema`."""

    def __init__(self, opened: SqlTable, schema: Schema) -> None:
        self._asked = _Asked(opened)
        self.name = self._asked.name
        self._dialect = opened.sink.dialect
        self._keyed = bool(opened.sink.key)
        self._kinds = {each["name"]: each["type"] for each in opened.shape().columns} if self._asked.there else {}
        self._types = {each.name: each.type for each in schema.fields}
        self._sorted: tuple[Partition, Generator[pa.Table]] | None = None
        self._left: list[pa.Table] = []

    def read(self, partition: Partition, first: int, end: int, names: Sequence[str]) -> Iterator[Piece]:
        if not self._asked.there:
            return
        if self._keyed:
            yield from (Piece(each) for each in self._along(partition, first, end, names))
            return
        for low in range(first, end, _VALUES_AT_ONCE):
            for rows in self._stream(partition, low, min(low + _VALUES_AT_ONCE, end), names):
                yield Piece(rows)

    def comparable(self, name: str, expected: pa.Array) -> pa.Array:
        return comparable(expected, self._kinds[name], self._dialect)

    def _along(self, partition: Partition, first: int, end: int, names: Sequence[str]) -> Iterator[pa.Table]:
        """Continues in the sorted rows of the partition, and keeps rows beyond the end for the next range."""
        if self._sorted is None or self._sorted[0] != partition:
            if self._sorted is not None:
                self._sorted[1].close()
            self._sorted = partition, self._stream(partition, first, LAST, names)
            self._left = []
        while True:
            batch = self._left.pop() if self._left else next(self._sorted[1], None)
            if batch is None:
                return
            offsets = batch.column("_offset").to_numpy()
            low, high = np.searchsorted(offsets, (first, end))
            if low < high:
                yield batch.slice(low, high - low)
            if high < len(offsets):
                self._left.append(batch.slice(high))
                return

    def _stream(self, partition: Partition, first: int, end: int, names: Sequence[str]) -> Generator[pa.Table]:
        query = _in_order(select(*(self._column(name) for name in names)), partition, first, end)
        for batch in self._asked.stream(query, _VALUES_AT_ONCE):
            *values, offsets = zip(*batch, strict=True)
            arrays = {name: self._array(name, held) for name, held in zip(names, values, strict=True)}
            yield pa.table({**arrays, "_offset": pa.array(offsets, pa.int64())})

    def _column(self, name: str) -> Any:
        """PostgreSQL's times have a larger range than Python's, so they are read as numbers."""
        kind, type_ = self._kinds[name], self._types.get(name)
        if self._dialect == "postgresql" and type_ is not None:
            what = str(postgresql.dialect().identifier_preparer.quote_identifier(name))
            if pt.is_timestamp(type_):
                return literal_column(f"CAST(EXTRACT(epoch FROM {what}) * 1000000 AS bigint)", BigInteger).label(name)
            if pt.is_date32(type_):
                return literal_column(f"({what} - DATE '1970-01-01')", BigInteger).label(name)
            if isinstance(kind, JSON):
                return cast(column(name), Text).label(name)
        return _exact(name, kind, self._dialect)

    def _array(self, name: str, values: Sequence[Any]) -> pa.Array:
        return as_array(values, self._types.get(name, pa.string()), self._kinds[name], self._dialect)


def _within(partition: Partition, first: int, end: int) -> Any:
    return and_(partition.topic == _TOPIC, partition.number == _NUMBER, first <= _OFFSET, end > _OFFSET)


def _per_offset(partition: Partition, first: int, end: int) -> Query:
    return (
        select(_OFFSET, func.count()).where(_within(partition, first, end)).group_by(_OFFSET).order_by(_OFFSET)
    )  # fmt: skip


def _in_order(query: Query, partition: Partition, first: int, end: int) -> Query:
    """The rows of a range, with `_offset` after these columns, in offset order."""
    return query.add_columns(_OFFSET).where(_within(partition, first, end)).order_by(_OFFSET)


def _exact(name: str, kind: Any, dialect: str) -> Any:
    """A value as records hold it: MySQL returns six digits of a FLOAT, and PostgreSQL pads a CHAR with blanks."""
    if dialect in ("mysql", "mariadb") and isinstance(kind, Float):
        return column(name) * literal_column("1e0")
    if dialect == "postgresql" and isinstance(kind, CHAR):
        return cast(column(name), Text)
    return column(name)


def _key_array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """As the pipeline's decoder makes them: SQLite returns times as text, SQLite and MySQL booleans as numbers, and
    PostgreSQL UUIDs as objects."""
    if pa.types.is_boolean(type_):
        return pa.array([each if each is None else bool(each) for each in values], type_)
    if is_uuid(type_):
        return pa.array([UUID(str(each)).bytes for each in values], pa.binary(16))
    if values and isinstance(values[0], str) and not pa.types.is_string(type_):
        return pa.array(values, pa.string()).cast(type_)
    return pa.array(values, type_)
