"""What a table in an SQL database holds, window by window. Read-only, with its own statements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from sqlalchemy import (
    CHAR,
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

from landonce.protocol.ranges import Partition
from landonce.read.schema.fields import Schema, is_uuid
from landonce.sinks.sql.table import SqlTable
from landonce.verify.held.port import LAST, Doubled, Held, HeldKeys
from landonce.verify.judge import Counted
from landonce.verify.keys import OFFSET, PLACE, UNKNOWN, plain

Query = Any
"""A SQLAlchemy `select` with any columns."""
_TOPIC: Any = column("_topic", Text)
_NUMBER: Any = column("_partition", Integer)
_OFFSET: Any = column("_offset", BigInteger)
_AT_ONCE = 50_000
_PATIENCE = 3600
"""Seconds that MySQL waits for a reader that pauses to read the topic."""


class Asked:
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

    def __init__(self, opened: SqlTable) -> None:
        self._asked = Asked(opened)
        self.name = self._asked.name

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


def _within(partition: Partition, first: int, end: int) -> Any:
    return and_(partition.topic == _TOPIC, partition.number == _NUMBER, first <= _OFFSET, end > _OFFSET)


def _per_offset(partition: Partition, first: int, end: int) -> Query:
    return (
        select(_OFFSET, func.count()).where(_within(partition, first, end)).group_by(_OFFSET).order_by(_OFFSET)
    )  # fmt: skip


class SqlKeys(HeldKeys):
    """The keys in one table, with the coordinates of their last changes. They are all in memory at once, in columns."""

    def __init__(self, opened: SqlTable, schema: Schema) -> None:
        self._asked = Asked(opened)
        self.name = self._asked.name
        self._key = opened.sink.key
        self._types = {each.name: each.type for each in schema.fields}
        self._opened = opened

    def rows(self, places: Mapping[Partition, int]) -> pa.Table | None:
        if not self._asked.there:
            return None
        kinds = {each["name"]: each["type"] for each in self._opened.shape().columns}
        keys = [exact(name, kinds[name], self._opened.sink.dialect) for name in self._key]
        query: Query = select(*keys, _TOPIC, _NUMBER, _OFFSET)
        found = [self._table(batch, places) for batch in self._asked.stream(query)]
        return pa.concat_tables(found) if found else None

    def doubled(self) -> tuple[Doubled, ...]:
        return ()

    def as_of(self) -> str:
        return ""

    def notes(self) -> tuple[str, ...]:
        return self._asked.notes()

    def _table(self, batch: Sequence[Any], places: Mapping[Partition, int]) -> pa.Table:
        *keys, topics, numbers, offsets = zip(*batch, strict=True)
        named = {name: _array(values, self._types[name]) for name, values in zip(self._key, keys, strict=True)}
        place = [
            places.get(Partition(topic, number), UNKNOWN) if topic is not None else UNKNOWN
            for topic, number in zip(topics, numbers, strict=True)
        ]
        offset = [UNKNOWN if each is None else each for each in offsets]
        table_ = plain(pa.table(named))
        return table_.append_column(PLACE, pa.array(place, pa.int64())).append_column(
            OFFSET, pa.array(offset, pa.int64())
        )


def in_order(query: Query, partition: Partition, first: int, end: int) -> Query:
    """The rows of a range, with `_offset` after these columns, in offset order."""
    return query.add_columns(_OFFSET).where(_within(partition, first, end)).order_by(_OFFSET)


def exact(name: str, kind: Any, dialect: str) -> Any:
    """A value as records hold it: MySQL returns six digits of a FLOAT, and PostgreSQL pads a CHAR with blanks."""
    if dialect in ("mysql", "mariadb") and isinstance(kind, Float):
        return column(name) * literal_column("1e0")
    if dialect == "postgresql" and isinstance(kind, CHAR):
        return cast(column(name), Text)
    return column(name)


def _array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """As the pipeline's decoder makes them: SQLite returns times as text, SQLite and MySQL booleans as numbers,
    PostgreSQL
    UUIDs as objects."""
    if pa.types.is_boolean(type_):
        return pa.array([each if each is None else bool(each) for each in values], type_)
    if is_uuid(type_):
        return pa.array([UUID(str(each)).bytes for each in values], pa.binary(16))
    if values and isinstance(values[0], str) and not pa.types.is_string(type_):
        return pa.array(values, pa.string()).cast(type_)
    return pa.array(values, type_)
