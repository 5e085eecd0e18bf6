"""The table as the driver sees it: whether it exists and fits, what it takes and holds, and how it is created."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from sqlalchemy import Column, Connection, Dialect, MetaData, Table, and_, func, inspect, or_, select, text
from sqlalchemy import types as sql
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateTable

from landonce import errors
from landonce.ledger.database import Database
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.target import TargetView
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.contract import COORDINATES, Finding
from landonce.sinks.sql.check_table import check_columns, check_storage
from landonce.sinks.sql.columns import Shape, column_field, read_shape
from landonce.sinks.sql.databases import engine_of, open_database
from landonce.sinks.sql.ddl import add_column, new_table
from landonce.sinks.sql.fingerprint import fingerprint_statements, identity, table_fingerprint
from landonce.sinks.sql.rights import check_rights
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.types import column_type, key_type
from landonce.sinks.transactional import TransactionalTable

_LONGEST_NAME = 63


@dataclass
class SqlTable(TransactionalTable):
    """One table. Opening asks nothing."""

    sink: SqlSink
    database: Database = field(init=False)

    def __post_init__(self) -> None:
        self.database = open_database(self.sink.address)

    def close(self) -> None:
        self.database.close()

    def exists(self) -> bool:
        if not self.database.may_exist():
            return False
        with self.reading() as connection:
            return bool(inspect(connection).has_table(self.sink.name, schema=self.sink.schema))

    def shape(self) -> Shape:
        with self.reading() as connection:
            return read_shape(self.sink, connection)

    def schema(self, declared: Schema | None = None, *, selected: bool = False) -> Schema:
        """What records must hold (`column_field`). Columns of JSON documents are written only if they are declared."""
        named = declared.by_name() if declared is not None else {}
        fields = []
        for each in self.shape().columns:
            found = column_field(self.sink, each, named.get(each["name"]), selected=selected)
            if isinstance(found, Field):
                fields.append(found)
            elif found is not None and isinstance(each["type"], sql.JSON):
                raise errors.ConfigError(
                    f"source.kafka.schema: column {each['name']!r} of {self.sink.table} holds documents; declare what they "
                    "hold (a STRUCT, an ARRAY, a MAP), or STRING where records hold them as text."
                )
        return Schema(tuple(fields))

    def jsonb(self) -> tuple[str, ...]:
        """The columns that hold documents in PostgreSQL's binary form."""
        return tuple(each["name"] for each in self.shape().columns if isinstance(each["type"], postgresql.JSONB))

    def check(self, declared: Schema | None = None, *, selected: bool = False) -> tuple[Finding, ...]:
        """Whether the table can hold the guarantee, and what else the user should know."""
        sink, chosen = self.sink, declared is not None or selected
        named = declared.by_name() if declared is not None and not selected else {}
        with self.reading() as connection:
            shape = read_shape(sink, connection)
            filled = [
                (each, column_field(sink, each, named.get(each["name"]), chosen=chosen)) for each in shape.columns
            ]
            written = {each["name"] for each, found in filled if isinstance(found, Field)}
            return (
                *check_storage(sink, connection),
                *check_columns(sink, shape, filled, self._dialect),
                *check_rights(sink, shape.names, written, connection),
            )

    def fingerprint(self) -> str:
        """For workers to compare (`table_fingerprint`). Take it before `check` and `schema`, so that an ALTER in between is noticed."""
        if self.sink.dialect == "yql":
            return ""
        with self.reading() as connection:
            if not inspect(connection).has_table(self.sink.name, schema=self.sink.schema):
                return "none"
            answers = [connection.exec_driver_sql(*each).all() for each in fingerprint_statements(self.sink, "%s")]
            return table_fingerprint(row for answer in answers for row in answer)

    def identity(self) -> str:
        """Which table it is (`identity`). Take it after `fingerprint`, so that a block notices if the table is replaced in between."""
        if self.sink.dialect == "yql":
            return ""
        with self.reading() as connection:
            return identity(self.sink, connection)

    def holds_any(self, topics: Iterable[str]) -> bool:
        """Whether there is a row of these topics, given by their labels."""
        topic = self._coordinates.c[COORDINATES[0]]
        rows = select(text("1")).select_from(self._coordinates).where(topic.in_(sorted(set(topics))))
        with self.scanning() as connection:
            return connection.execute(rows.limit(1)).first() is not None

    def look(self, floors: Iterable[tuple[Partition, int]]) -> TargetView:
        """One past the highest offset that is there, for each partition that holds any at or above its floor."""
        asked = tuple(floors)
        if not asked:
            return TargetView(())
        with self.scanning() as connection:
            held = self._highest(connection, asked)
        return TargetView(tuple((each, held[each] + 1) for each, floor in asked if held.get(each, -1) >= floor))

    def _highest(self, connection: Connection, asked: Iterable[tuple[Partition, int]]) -> dict[Partition, int]:
        """The highest offset of each partition at or above its floor. A table with a key has no index on the coordinates: it is
        scanned once for all partitions, and the floors are left to the caller."""
        topic, number, offset = (self._coordinates.c[name] for name in COORDINATES)
        if self.sink.key:
            labels = sorted({partition.topic for partition, _ in asked})
            grouped = select(topic, number, func.max(offset)).where(topic.in_(labels)).group_by(topic, number)
            return {Partition(label, at): int(end) for label, at, end in connection.execute(grouped)}
        found = {}
        for partition, floor in asked:
            mine = and_(topic == partition.topic, number == partition.number, offset >= floor)
            end = connection.scalar(select(func.max(offset)).where(mine))
            if end is not None:
                found[partition] = int(end)
        return found

    def count(self, ranges: Iterable[Range]) -> int:
        """How many rows there are with these offsets."""
        columns = self._coordinates
        topic, number, offset = (columns.c[name] for name in COORDINATES)
        wanted = [
            and_(
                topic == each.partition.topic, number == each.partition.number, offset >= each.first, offset < each.end
            )
            for each in ranges
        ]
        if not wanted:
            return 0
        with self.scanning() as connection:
            return int(connection.scalar(select(func.count()).select_from(columns).where(or_(*wanted))) or 0)

    @cached_property
    def _coordinates(self) -> Table:
        kinds = (key_type(self.sink.dialect), sql.Integer(), sql.BigInteger())
        columns = [Column(name, kind) for name, kind in zip(COORDINATES, kinds, strict=True)]
        return Table(self.sink.name, MetaData(), *columns, schema=self.sink.schema)

    @property
    def _dialect(self) -> Dialect:
        """Of the engine, which knows the server's version after the first connection."""
        return engine_of(self.database).dialect

    def create(self, declared: Schema) -> None:
        """Does nothing if the table exists."""
        table = new_table(self.sink, declared, self._dialect)
        with self._creating() as connection:
            table.create(connection, checkfirst=True)

    def creation(self, declared: Schema) -> str:
        """The statements that `create` runs."""
        table, dialect = new_table(self.sink, declared, self._dialect), self._dialect
        made: list[Any] = [CreateTable(table), *(CreateIndex(each) for each in sorted(table.indexes, key=str))]
        return "\n".join(str(each.compile(dialect=dialect)).strip() for each in made)

    def add(self, wanted: Mapping[str, pa.DataType]) -> tuple[str, ...]:
        """Adds the columns that are missing, and returns their names."""
        with self._creating() as connection:
            there = {each.lower() for each in read_shape(self.sink, connection).names}
            added = []
            for name, type_ in sorted(wanted.items()):
                if name.lower() in there or len(name.encode()) > _LONGEST_NAME:
                    continue
                kind = column_type(type_, self.sink.dialect, name)
                connection.execute(text(add_column(self.sink, name, kind, self._dialect)))
                there.add(name.lower())
                added.append(name)
        return tuple(added)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction in which all reads see one state."""
        with self._errors(), self.database.reading() as connection:
            yield connection

    @contextmanager
    def scanning(self) -> Iterator[Connection]:
        """The same, for statements that may read the whole table."""
        with self._errors(), self.database.scanning() as connection:
            yield connection

    @contextmanager
    def _creating(self) -> Iterator[Connection]:
        with self._errors(), self.database.creating() as connection:
            yield connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as failure:
            fault = self.database.fault(failure)
            said = self.database.reason(failure)
            raise (fault or errors.TargetUnavailable(f"{self.database.place}: {said}")) from None
