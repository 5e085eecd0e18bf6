"""The table as the driver sees it: is it there, what does it take, is it fit, what does it hold, and making it."""

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
from sqlalchemy.exc import DBAPIError, NoSuchTableError
from sqlalchemy.schema import CreateIndex, CreateTable

from landonce import errors
from landonce.ledger.database import Database
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.target import TargetView
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.contract import COORDINATES, Finding
from landonce.sinks.sql.databases import engine_of, open_database
from landonce.sinks.sql.domains import complete_domains
from landonce.sinks.sql.fitness import Shape, findings
from landonce.sinks.sql.identity import identity
from landonce.sinks.sql.likeness import asking, likeness
from landonce.sinks.sql.making import addition, made_table
from landonce.sinks.sql.notes import deferred_keys, notes
from landonce.sinks.sql.rights import lacking
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.swallowed import rowid_of
from landonce.sinks.sql.types import Unsupported, column_type, document_of, field_of, key_type, number_of
from landonce.sinks.transactional import TransactionalTable

_LONGEST_NAME = 63
_PARTIAL = {"postgresql_where", "sqlite_where"}
"""What an index has that does not speak of every row."""


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
            return self._shape(connection)

    def schema(self, declared: Schema | None = None, *, selected: bool = False) -> Schema:
        """What records must hold. A column that need not be told and has a default is left to it, unless it is declared, and so
        is one of documents. `selected`: expressions yield the columns, and documents as text."""
        named = declared.by_name() if declared is not None else {}
        fields = []
        for each in self.shape().columns:
            found = self._field(each, told=named.get(each["name"]), selected=selected)
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

    def _field(
        self, column: Mapping[str, Any], *, told: Field | None, selected: bool = False, chosen: bool = True
    ) -> Field | str | None:
        """None for what is not written; a reason for what should be, and cannot. `chosen`: somebody has said which columns are
        written; otherwise all are, and a value that none can take would be left out without a word."""
        name = column["name"]
        if name in COORDINATES or column.get("computed") is not None or column.get("identity") is not None:
            return None
        required = not column["nullable"]
        if self._invents(column):
            if told is None and not chosen:
                return f"column {name}: SQLite gives it a number of its own where a record holds none"
            required = told is not None
        if told is None and required and (column.get("default") is not None or column.get("autoincrement") is True):
            return None
        held = told.type if told is not None else pa.string() if selected else None
        if held is not None:
            for found in (
                document_of(name, column["type"], held, self.sink.dialect, required=required),
                self._number(column, held),
            ):
                if found is not None:
                    return found
        try:
            return field_of(name, column["type"], self.sink.dialect, required=required)
        except Unsupported as reason:
            left = chosen or column.get("default") is not None or isinstance(column["type"], sql.JSON)
            return f"column {name}: {reason}" if required or told is not None or not left else None

    def _invents(self, column: Mapping[str, Any]) -> bool:
        """SQLite's `INTEGER PRIMARY KEY`, where rows are only added: it is never NULL, whatever is written."""
        return column["name"] == column.get("rowid") and not self.sink.key

    def _number(self, column: Mapping[str, Any], told: pa.DataType) -> Field | None:
        """PostgreSQL's NUMERIC without digits takes any, so what is declared says how many there are."""
        if self.sink.dialect != "postgresql":
            return None
        return number_of(column["name"], column["type"], told, required=not column["nullable"])

    def check(self, declared: Schema | None = None, *, selected: bool = False) -> tuple[Finding, ...]:
        """Whether the table holds the guarantee, and what else is worth knowing."""
        shape = self.shape()
        named = declared.by_name() if declared is not None and not selected else {}
        chosen = declared is not None or selected
        fields = [(each, self._field(each, told=named.get(each["name"]), chosen=chosen)) for each in shape.columns]
        with self.reading() as connection:
            written = {each["name"] for each, found in fields if isinstance(found, Field)}
            rights = tuple(lacking(self.sink, shape.names, written, connection))
        return (*findings(self.sink, shape, fields, self._dialect), *rights)

    def likeness(self) -> str:
        """What it is like now, for the workers to compare. Asked before `check` and `schema`: what is altered in between is noticed then."""
        if self.sink.dialect == "yql":
            return ""
        with self.reading() as connection:
            if not inspect(connection).has_table(self.sink.name, schema=self.sink.schema):
                return "none"
            answers = [connection.exec_driver_sql(*each).all() for each in asking(self.sink, "%s")]
            return likeness(row for answer in answers for row in answer)

    def identity(self) -> str:
        """Which table it is (`identity`). Asked after `likeness`: whatever takes its place in between, a block notices."""
        if self.sink.dialect == "yql":
            return ""
        with self.reading() as connection:
            return identity(self.sink, connection)

    def holds_any(self, topics: Iterable[str]) -> bool:
        """Whether there is a row of these topics, by their labels."""
        table, topic = self._coordinates, self._coordinates.c[COORDINATES[0]]
        rows = select(text("1")).select_from(table)
        wanted = rows.where(topic.in_(sorted(set(topics))))
        with self.scanning() as connection:
            return connection.execute(wanted.limit(1)).first() is not None

    def look(self, floors: Iterable[tuple[Partition, int]]) -> TargetView:
        """One past the highest offset that is there, for each partition that holds any at or above its floor."""
        asked = tuple(floors)
        if not asked:
            return TargetView(())
        with self.scanning() as connection:
            held = self._highest(connection, asked)
        return TargetView(tuple((each, held[each] + 1) for each, floor in asked if held.get(each, -1) >= floor))

    def _highest(self, connection: Connection, asked: Iterable[tuple[Partition, int]]) -> dict[Partition, int]:
        """The highest offset of each partition, or of those at or above its floor. A table with a key has no index on the
        coordinates, so it is scanned once for all of them."""
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
        """How many rows are there of these offsets."""
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

    # Making it.

    @property
    def _dialect(self) -> Dialect:
        """Of the engine, which knows the server once it was asked anything."""
        return engine_of(self.database).dialect

    def create(self, declared: Schema) -> None:
        """Harmless if it is there."""
        table = made_table(self.sink, declared, self._dialect)
        with self._creating() as connection:
            table.create(connection, checkfirst=True)

    def creation(self, declared: Schema) -> str:
        """What `create` would say."""
        table, dialect = made_table(self.sink, declared, self._dialect), self._dialect
        made: list[Any] = [CreateTable(table), *(CreateIndex(each) for each in sorted(table.indexes, key=str))]
        return "\n".join(str(each.compile(dialect=dialect)).strip() for each in made)

    def add(self, wanted: Mapping[str, pa.DataType]) -> tuple[str, ...]:
        """Adds the columns that are not there. Gives the names of those that it added."""
        with self._creating() as connection:
            there = {each.lower() for each in self._shape(connection).names}
            added = []
            for name, type_ in sorted(wanted.items()):
                if name.lower() in there or len(name.encode()) > _LONGEST_NAME:
                    continue
                kind = column_type(type_, self.sink.dialect, name)
                connection.execute(text(addition(self.sink, name, kind, self._dialect)))
                there.add(name.lower())
                added.append(name)
        return tuple(added)

    # Asking.

    def _shape(self, connection: Connection) -> Shape:
        found = inspect(connection)
        name, schema = self.sink.name, self.sink.schema
        try:
            rowid = rowid_of(self.sink, connection)
            columns = tuple({**each, "rowid": rowid} for each in found.get_columns(name, schema=schema))
        except NoSuchTableError:
            raise errors.TableUnfit(
                f"there is no table {self.sink.table}, or the user may not see it.",
                safe="Nothing was read or written.",
                command="create it, or say `create: true` in {file} and let landonce do it",
            ) from None
        complete_domains(self.sink, columns, connection)
        sets: list[list[Any]] = [found.get_pk_constraint(name, schema=schema)["constrained_columns"]]
        sets += [each["column_names"] for each in found.get_unique_constraints(name, schema=schema)]
        sets += [
            each["column_names"]
            for each in found.get_indexes(name, schema=schema)
            if each["unique"] and _PARTIAL.isdisjoint(each.get("dialect_options") or {})
        ]
        deferred = deferred_keys(self.sink, connection)
        unique = dict.fromkeys(frozenset(each) for each in sets if each and None not in each)
        usable = tuple(each for each in unique if each not in deferred)
        indexed = [frozenset(filter(None, each["column_names"])) for each in found.get_indexes(name, schema=schema)]
        return Shape(columns, usable, tuple(indexed), tuple(notes(self.sink, connection)), deferred)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction in which all reads see one moment."""
        with self._told(), self.database.reading() as connection:
            yield connection

    @contextmanager
    def scanning(self) -> Iterator[Connection]:
        """Likewise, for statements that may read all of the table."""
        with self._told(), self.database.scanning() as connection:
            yield connection

    @contextmanager
    def _creating(self) -> Iterator[Connection]:
        with self._told(), self.database.creating() as connection:
            yield connection

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as failure:
            fault = self.database.fault(failure)
            said = self.database.reason(failure)
            raise (fault or errors.TargetUnavailable(f"{self.database.place}: {said}")) from None
