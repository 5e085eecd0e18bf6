"""The values in a table in an SQL database, some thousand rows at a time. Read-only, with its own statements.

A table with inserts only has an index on the coordinates, and is read range by range. A table whose rows records change
has none: the database sorts it once for each partition, and it is read along with the topic.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from sqlalchemy import BigInteger, Text, cast, column, literal_column, select
from sqlalchemy import types as sql
from sqlalchemy.dialects import postgresql

from landonce.protocol.ranges import Partition
from landonce.read.schema.fields import Schema, is_uuid
from landonce.sinks.sql.table import SqlTable
from landonce.verify.held.port import LAST, HeldValues, Piece
from landonce.verify.held.sql import Asked, exact, in_order
from landonce.verify.values import each_text

_AT_ONCE = 20_000


class SqlValues(HeldValues):
    """The rows of one table, written with `schema`."""

    def __init__(self, opened: SqlTable, schema: Schema) -> None:
        self._asked = Asked(opened)
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
        for low in range(first, end, _AT_ONCE):
            for rows in self._stream(partition, low, min(low + _AT_ONCE, end), names):
                yield Piece(rows)

    def comparable(self, name: str, expected: pa.Array) -> pa.Array:
        kind = self._kinds[name]
        if pt.is_nested(expected.type):
            documents = [None if each is None else _document(each, expected.type) for each in expected.to_pylist()]
            return pa.array([None if each is None else _canonical(each) for each in documents], pa.string())
        if pt.is_string(expected.type) and isinstance(kind, sql.JSON):
            return each_text(expected, _canonical_text)
        if pt.is_string(expected.type) and _is_padded(kind, self._dialect):
            return each_text(expected, lambda each: each.rstrip(" "))
        return expected.storage if is_uuid(expected.type) else expected

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
        query = in_order(select(*(self._column(name) for name in names)), partition, first, end)
        for batch in self._asked.stream(query, _AT_ONCE):
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
            if isinstance(kind, sql.JSON):
                return cast(column(name), Text).label(name)
        return exact(name, kind, self._dialect)

    def _array(self, name: str, values: Sequence[Any]) -> pa.Array:
        type_, kind = self._types.get(name, pa.string()), self._kinds[name]
        read = _reader(type_, kind, _is_padded(kind, self._dialect))
        return read(values)


def _reader(type_: pa.DataType, kind: Any, padded: bool) -> Callable[[Sequence[Any]], pa.Array]:
    """The function that turns the values of the database driver into an array of this type."""
    if pt.is_nested(type_) or (pt.is_string(type_) and isinstance(kind, sql.JSON)):
        return lambda values: pa.array(
            [None if each is None else _canonical_text(each) for each in values], pa.string()
        )
    if pt.is_string(type_) and padded:
        return lambda values: pa.array(
            [None if each is None else str(each).rstrip(" ") for each in values], pa.string()
        )
    if pt.is_boolean(type_):
        return lambda values: pa.array([None if each is None else bool(each) for each in values], type_)
    if is_uuid(type_):
        return lambda values: pa.array(
            [None if each is None else UUID(str(each)).bytes for each in values], pa.binary()
        )
    if pt.is_temporal(type_):
        return lambda values: _moments(values, type_)
    return lambda values: _loose(values, type_)


def _moments(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Numbers of microseconds or days, text (of SQLite), or Python's own."""
    some = next((each for each in values if each is not None), None)
    if isinstance(some, int) and pt.is_timestamp(type_):
        return pa.array(values, pa.int64()).cast(pa.timestamp("us"))
    if isinstance(some, str):
        return pa.array(values, pa.string()).cast(pa.date32() if pt.is_date32(type_) else pa.timestamp("us"))
    return pa.array(values, pa.date32() if pt.is_date32(type_) else pa.timestamp("us"))


def _loose(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """In the type that was written, or as text if a value was changed to something that type cannot hold."""
    try:
        return pa.array(values, type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None if each is None else str(each) for each in values], pa.string())


def _is_padded(kind: Any, dialect: str) -> bool:
    """PostgreSQL pads a CHAR with blanks, which are ignored."""
    return dialect == "postgresql" and isinstance(kind, sql.CHAR)


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
        return {str(_document(key, type_.key_type)): _document(each, type_.item_type) for key, each in value}
    if pt.is_list(type_):
        return [_document(each, type_.value_type) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if pt.is_temporal(type_):
        return value.isoformat()
    return value if isinstance(value, (bool, int, float, str)) else str(value)
