"""What a table in an SQL database holds, for an audit: coordinates window by window, keys, and values. Read-only, with its own statements.

A table with inserts only has an index on the coordinates, and its values are read range by range. A table whose rows records change has
none: the database sorts it once for each partition, and it is read along with the topic.

Databases return times as text or numbers, booleans as numbers, UUIDs as objects, and documents in a spelling of their own: `as_array` and
`comparable` bring values and records into one form.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from sqlalchemy import BigInteger, Integer, Text, and_, cast, column, func, literal_column, select, table, text
from sqlalchemy import types as sql
from sqlalchemy.dialects import mysql, postgresql

from landonce.protocol.ranges import Partition
from landonce.read.changes import Changes
from landonce.read.route import Routing, Rule
from landonce.read.schema.fields import Schema, is_uuid, landed
from landonce.read.schema.texts import from_text
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
    Piece,
    each_text,
    plain,
)
from landonce.sinks.parts import Parts
from landonce.sinks.sql.driver import sql_recipe
from landonce.sinks.sql.forms import one_spelling
from landonce.sinks.sql.sink import SqlSink, as_name
from landonce.sinks.sql.statements import syntax_of
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.sql.types import XmlText, base_of, element_form, own_form
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
_PLAIN_TEXT = text(
    "SELECT set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO', true), "
    "set_config('IntervalStyle', 'postgres', true)"
)
"""How PostgreSQL writes times as text, until the transaction ends."""


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

    def identity(self, table: str) -> tuple[str, ...]:
        del table
        return self.opened.sink.key

    @property
    def changes(self) -> Changes | None:
        return self.rows.changes

    def known(self) -> tuple[str, ...]:
        return (self.opened.sink.table,)

    def open(self, table: str) -> Held | HeldKeys:
        written = self.schema(table)
        return SqlKeys(self.opened, written) if self.opened.sink.key else SqlRows(self.opened, written)

    def schema(self, table: str) -> Schema:
        del table
        return self.rows.target if self.rows.transforms else self.rows.source

    def close(self) -> None:
        self.opened.close()


class _Read:
    """One table, of which columns of `schema` are written. A missing table holds nothing, and `notes` say so."""

    def __init__(self, opened: SqlTable, schema: Schema) -> None:
        self._opened, self._schema = opened, schema
        self.name, self._key, self._dialect = opened.sink.table, opened.sink.key, opened.sink.dialect
        self._there = opened.exists()
        self._types = {each.name: landed(each.type) for each in schema.fields}

    @cached_property
    def _kinds(self) -> dict[str, Any]:
        """The types of the columns, as SQLAlchemy reflects them."""
        return {each["name"]: each["type"] for each in self._opened.shape().columns} if self._there else {}

    def values(self) -> SqlValues:
        return SqlValues(self._opened, self._schema)

    def notes(self) -> tuple[str, ...]:
        return () if self._there else (f"there is no table {self.name}.",)

    def _batches(self, query: Query, at_once: int = _AT_ONCE) -> Iterator[Sequence[Any]]:
        if not self._there:
            return
        sink = self._opened.sink
        with self._opened.scanning() as connection:
            if sink.dialect in ("mysql", "mariadb"):
                connection.execute(text(f"SET SESSION net_write_timeout = {_PATIENCE}"))
            elif sink.dialect == "postgresql":
                connection.execute(_PLAIN_TEXT)
            found = query.select_from(table(sink.name, schema=sink.schema))
            yield from connection.execution_options(yield_per=at_once).execute(found).partitions()

    def _ask(self, query: Query) -> list[Any]:
        return [row for batch in self._batches(query) for row in batch]


class SqlRows(_Read, Held):
    """The coordinates in one table. `_topic` is the label of a topic."""

    def counted(self, partition: Partition, first: int, end: int) -> CountedOffsets:
        return self._counted(partition, first, end, 1)

    def repeated(self, partition: Partition, first: int, end: int) -> CountedOffsets:
        return self._counted(partition, first, end, 2)

    def _counted(self, partition: Partition, first: int, end: int, least: int) -> CountedOffsets:
        """The offsets that have so many rows or more."""
        query: Query = select(_OFFSET, func.count()).where(_within(partition, first, end)).group_by(_OFFSET)
        query = query.having(func.count() >= least).order_by(_OFFSET)
        found = np.array([tuple(row) for row in self._ask(query)], np.int64).reshape(-1, 2)
        return CountedOffsets(found[:, 0], found[:, 1])

    def count(self, partition: Partition, first: int, end: int = LAST) -> int:
        found = self._ask(select(func.count()).where(_within(partition, first, end)))
        return int(found[0][0]) if found else 0

    def lowest(self, partition: Partition, first: int, end: int = LAST) -> int | None:
        found = self._ask(select(func.min(_OFFSET)).where(_within(partition, first, end)))
        return int(found[0][0]) if found and found[0][0] is not None else None

    def partitions(self, labels: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
        query = select(_TOPIC, _NUMBER, func.count()).where(_TOPIC.in_(sorted(labels))).group_by(_TOPIC, _NUMBER)
        return tuple(sorted((str(label), int(number), int(rows)) for label, number, rows in self._ask(query)))


class SqlKeys(_Read, HeldKeys):
    """The keys in one table, with the coordinates of their last changes. They are all in memory at once, in columns."""

    def rows(self, places: Mapping[Partition, int]) -> pa.Table | None:
        if not self._there:
            return None
        keys = (_exact(name, self._kinds[name], self._dialect) for name in self._key)
        query: Query = select(*keys, _TOPIC, _NUMBER, _OFFSET)
        found = [self._table(batch, places) for batch in self._batches(query)]
        return pa.concat_tables(found) if found else None

    def _table(self, batch: Sequence[Any], places: Mapping[Partition, int]) -> pa.Table:
        *keys, topics, numbers, offsets = zip(*batch, strict=True)
        named = {name: _key_array(values, self._types[name]) for name, values in zip(self._key, keys, strict=True)}
        place = [
            places.get(Partition(topic, number), UNKNOWN) if topic is not None else UNKNOWN
            for topic, number in zip(topics, numbers, strict=True)
        ]
        offset = [UNKNOWN if each is None else each for each in offsets]
        coordinates = pa.table({PLACE: pa.array(place, pa.int64()), OFFSET: pa.array(offset, pa.int64())})
        keyed = plain(pa.table(named))
        return pa.table([*keyed.columns, *coordinates.columns], names=[*named, PLACE, OFFSET])


class SqlValues(_Read, HeldValues):
    """The values of one table."""

    def __init__(self, opened: SqlTable, schema: Schema) -> None:
        super().__init__(opened, schema)
        self._sorted: tuple[Partition, Generator[pa.Table]] | None = None
        self._left: list[pa.Table] = []

    def read(self, partition: Partition, first: int, end: int, names: Sequence[str]) -> Iterator[Piece]:
        if not self._there:
            return
        if self._key:
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
        query: Query = select(*map(self._column, names), _OFFSET)
        query = query.where(_within(partition, first, end)).order_by(_OFFSET)
        types, kinds, dialect = self._types, self._kinds, self._dialect
        for batch in self._batches(query, _VALUES_AT_ONCE):
            *values, offsets = zip(*batch, strict=True)
            arrays = {
                name: as_array(held, types.get(name, pa.string()), kinds[name], dialect)
                for name, held in zip(names, values, strict=True)
            }
            yield pa.table({**arrays, "_offset": pa.array(offsets, pa.int64())})

    def _column(self, name: str) -> Any:
        """PostgreSQL's times have a larger range than Python's, so they are read as numbers."""
        kind, type_ = self._kinds[name], self._types.get(name)
        if self._dialect == "postgresql" and type_ is not None:
            what = syntax_of("postgresql").name(name)
            if pt.is_timestamp(type_):
                return literal_column(f"CAST(EXTRACT(epoch FROM {what}) * 1000000 AS bigint)", BigInteger).label(name)
            if pt.is_date32(type_):
                return literal_column(f"({what} - DATE '1970-01-01')", BigInteger).label(name)
            if element_form(kind):
                return cast(column(as_name(name, self._dialect)), postgresql.ARRAY(Text)).label(name)
            if isinstance(kind, (sql.JSON, XmlText)) or (pt.is_string(type_) and own_form(kind)):
                return cast(column(as_name(name, self._dialect)), Text).label(name)
        return _exact(name, kind, self._dialect)


def _within(partition: Partition, first: int, end: int) -> Any:
    return and_(partition.topic == _TOPIC, partition.number == _NUMBER, first <= _OFFSET, end > _OFFSET)


def _exact(name: str, kind: Any, dialect: str) -> Any:
    """A value as records hold it: MySQL returns six digits of a FLOAT, and PostgreSQL pads a CHAR with blanks."""
    if dialect in ("mysql", "mariadb") and isinstance(kind, sql.Float):
        return column(as_name(name, dialect)) * literal_column("1e0")
    if dialect == "postgresql" and isinstance(kind, sql.CHAR):
        return cast(column(as_name(name, dialect)), Text)
    return column(as_name(name, dialect))


def _key_array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """As the pipeline's decoder makes them: SQLite returns times as text, SQLite and MySQL booleans as numbers, and
    PostgreSQL UUIDs as objects."""
    if pt.is_boolean(type_):
        return pa.array([each if each is None else bool(each) for each in values], type_)
    if is_uuid(type_):
        return pa.array(map(_uuid, values), pa.binary(16))
    if pt.is_time(type_):
        return _times_of_day(values, type_)
    if pt.is_decimal(type_):
        return pa.array(map(_decimal, values), type_)
    if pt.is_uint64(type_):
        return pa.array(map(_number, values), type_)
    if values and isinstance(values[0], str) and not pt.is_string(type_):
        return pa.array(values, pa.string()).cast(type_)
    return pa.array(values, type_)


def comparable(expected: pa.Array, kind: Any, dialect: str) -> pa.Array:
    """What a column of this kind should hold, as `as_array` returns it."""
    if element := element_form(kind):
        spell = _speller(kind, dialect, element)
        return _each(expected.to_pylist(), lambda each: _canonical(_spelled(each, spell)), pa.string())
    if pt.is_nested(expected.type):
        documents = [None if each is None else _document(each, expected.type) for each in expected.to_pylist()]
        return pa.array([None if each is None else _canonical(each) for each in documents], pa.string())
    if pt.is_string(expected.type) and (spell := _speller(kind, dialect)):
        return each_text(expected, spell)
    return expected.storage if is_uuid(expected.type) else expected


def as_array(values: Sequence[Any], type_: pa.DataType, kind: Any, dialect: str) -> pa.Array:
    """What the database's driver returned for a column that was written in this type."""
    if element := element_form(kind):
        spell = _speller(kind, dialect, element)
        return _each(values, lambda each: _canonical(_spelled(each, spell)), pa.string())
    if isinstance(base_of(kind), postgresql.ARRAY):
        return _each(values, lambda each: _canonical(_document(_elements(each, type_.value_type), type_)), pa.string())
    if pt.is_nested(type_):
        return _each(values, _canonical_text, pa.string())
    if pt.is_string(type_) and (spell := _speller(kind, dialect)):
        return _each(values, spell, pa.string())
    if isinstance(kind, mysql.BIT):
        values = list(map(_number, values))
    if pt.is_boolean(type_):
        return _each(values, bool, type_)
    if pt.is_time(type_):
        found = _times_of_day(values, type_)
        changed = found.null_count != sum(each is None for each in values)  # to something that is no time of day
        return _each(values, str, pa.string()) if changed else found
    if is_uuid(type_):
        return _each(values, lambda each: _uuid(each) or str(each).encode(), pa.binary())
    if pt.is_temporal(type_):  # numbers of microseconds or days, text (of SQLite), or Python's own
        some = next((each for each in values if each is not None), None)
        moment = pa.date32() if pt.is_date32(type_) else pa.timestamp("us")
        if isinstance(some, int) and pt.is_timestamp(type_):
            return pa.array(values, pa.int64()).cast(moment)
        return pa.array(values, pa.string()).cast(moment) if isinstance(some, str) else pa.array(values, moment)
    try:
        return pa.array(map(_decimal, values) if pt.is_decimal(type_) else values, type_)
    except (
        InvalidOperation,
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        OverflowError,
    ):  # changed to something that the type cannot hold
        return _each(values, str, pa.string())


def _speller(kind: Any, dialect: str, form: str = "") -> Callable[[Any], str] | None:
    """How a text of a column, or of an array's elements in this form, becomes the one text of its value. None: every text is a value."""
    kind = base_of(kind)
    if isinstance(kind, sql.JSON) or form in ("json", "jsonb"):
        return _canonical_text
    if dialect == "postgresql" and isinstance(kind, sql.CHAR):  # padded with blanks, which are ignored
        return lambda each: str(each).rstrip(" ")
    if isinstance(kind, mysql.TIME):
        return _span
    if isinstance(kind, mysql.SET):
        return lambda each: ",".join(sorted(set(each.split(",") if isinstance(each, str) else each)))
    form = form or own_form(kind)
    return (lambda each: one_spelling(str(each), form)) if form and form != "array" else None


def _span(value: Any) -> str:
    """A length of time of MySQL, as its seconds."""
    if isinstance(value, timedelta):
        return str(value.total_seconds())
    hours, minutes, seconds = (*value.lstrip("-").split(":"), "0")[:3]
    length = (int(hours) * 60 + int(minutes)) * 60 + Decimal(seconds)
    return str(float(-length if value.startswith("-") else length))


def _spelled(values: Sequence[str | None], spell: Callable[[Any], str] | None) -> list[str | None]:
    return [each if each is None or spell is None else spell(each) for each in values]


def _each(values: Sequence[Any], convert: Callable[[Any], Any], type_: pa.DataType) -> pa.Array:
    return pa.array([None if each is None else convert(each) for each in values], type_)


def _elements(values: Sequence[Any], type_: pa.DataType) -> list[Any]:
    """Of an array, as Arrow would give them: PostgreSQL's driver knows no single floats, and has times in the session's zone."""
    if pt.is_float32(type_):
        return [float(np.float32(each)) if isinstance(each, float) else each for each in values]
    if pt.is_timestamp(type_) and type_.tz is not None:
        return [each.astimezone(timezone.utc) if isinstance(each, datetime) else each for each in values]
    return list(values)


def _times_of_day(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Python's times, MySQL's durations, or SQLite's text; NULL for what is no time of day."""
    within = timedelta(0), timedelta(days=1)
    texts = [
        (datetime.min + each).time().isoformat()
        if isinstance(each, timedelta) and within[0] <= each < within[1]
        else each and str(each)
        for each in values
    ]
    return from_text(pa.array(texts, pa.string()), type_)


def _uuid(value: Any) -> bytes | None:
    """None for a text of SQLite that is no UUID."""
    try:
        return UUID(str(value)).bytes
    except ValueError:
        return None


def _number(value: Any) -> int | None:
    """PyMySQL returns the bytes of a BIT."""
    return int.from_bytes(value, "big") if isinstance(value, bytes) else value


def _decimal(value: Any) -> Decimal | None:
    """SQLite returns an integer or a double, whose 15 digits are those of the decimal."""
    return None if value is None else Decimal(f"{value:.15g}" if isinstance(value, float) else str(value))


def _canonical_text(text: Any) -> str:
    """A document in one canonical spelling; anything else unchanged."""
    try:
        return _canonical(json.loads(text)) if isinstance(text, (str, bytes)) else _canonical(text)
    except ValueError:
        return str(text)


def _canonical(value: Any) -> str:
    return json.dumps(_numbers(value), sort_keys=True, ensure_ascii=False)


def _numbers(value: Any) -> Any:
    """1 and 1.0 are the same number in JSON."""
    if isinstance(value, dict):
        return {key: _numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _document(value: Any, type_: pa.DataType) -> Any:
    """A nested value as JSON has it: times as ISO 8601, bytes in base64, decimals by their digits."""
    if value is None:
        return None
    if pt.is_struct(type_):
        return {each.name: _document(value[each.name], each.type) for each in type_}
    if pt.is_map(type_):
        keys = (_document(key, type_.key_type) for key, _ in value)
        texts = (key if isinstance(key, str) else json.dumps(key) for key in keys)
        return {text: _document(each, type_.item_type) for text, (_, each) in zip(texts, value, strict=True)}
    if pt.is_list(type_):
        return [_document(each, type_.value_type) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if pt.is_temporal(type_):
        return value.isoformat()
    return value if isinstance(value, (bool, int, float, str)) else str(value)
