"""The table as the driver sees it: whether it exists and fits, what it takes and holds, and how it is created."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import pyarrow as pa
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Dialect,
    MetaData,
    Table,
    and_,
    delete,
    func,
    inspect,
    or_,
    select,
    text,
)
from sqlalchemy import types as sql
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.mysql.mariadb import INET4, INET6
from sqlalchemy.exc import DBAPIError, NoSuchTableError, SAWarning
from sqlalchemy.schema import CreateIndex, CreateTable

from landonce import errors
from landonce.ledger.database import Database
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.target import TargetView
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.contract import COORDINATES, Finding
from landonce.sinks.sql.fingerprint import fingerprint_statements, identity, table_fingerprint
from landonce.sinks.sql.sink import SqlSink, open_database
from landonce.sinks.sql.statements import syntax_of
from landonce.sinks.sql.types import (
    JsonText,
    ReflectedColumn,
    UuidText,
    XmlText,
    add_column,
    column_field,
    column_or_text,
    column_type,
    coordinate_types,
    copied_form,
    name_fault,
    new_table,
    note_of,
    server_of,
)
from landonce.sinks.transactional import TransactionalTable

_RANGES_AT_ONCE = 200
_PARTIAL = {"postgresql_where", "sqlite_where"}
"""Options of an index that does not cover every row."""
_KEYS = text(
    """
    SELECT i.indimmediate AND i.indisvalid, array_agg(CAST(a.attname AS text))
    FROM pg_index AS i CROSS JOIN LATERAL unnest(CAST(i.indkey AS int2[])) WITH ORDINALITY AS k(number, at)
    JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
    WHERE i.indrelid = to_regclass(:name) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
        AND k.at <= i.indnkeyatts
    GROUP BY i.indexrelid, i.indimmediate, i.indisvalid
    """
)
_DOMAINS = text(
    """
    WITH RECURSIVE made(name, type, typmod) AS (
        SELECT CAST(attname AS text), atttypid, atttypmod FROM pg_attribute
        WHERE attrelid = to_regclass(:name) AND attnum > 0 AND NOT attisdropped
        UNION ALL SELECT made.name, typbasetype, typtypmod FROM made JOIN pg_type ON oid = type AND typtype = 'd'
    )
    SELECT made.name, format_type(type, typmod) FROM made JOIN pg_type ON oid = type AND typtype <> 'd'
    """
)
_ROWID = text("SELECT name, upper(type) FROM pragma_table_info(:name) WHERE pk > 0")
"""The column that SQLite fills with a number of its own where it is NULL: a single primary key of the type INTEGER."""
_OF_TYPE = text("SELECT name FROM pragma_table_info(:name) WHERE upper(type) = :type")
_OF_MYSQL = text(
    "SELECT column_name, column_type, 0 FROM information_schema.columns "
    "WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
)
_WRITTEN = {
    "postgresql": text(
        "SELECT CAST(attname AS text), format_type(atttypid, atttypmod), CAST(CASE t.typtype WHEN 'd' THEN b.typelem ELSE t.typelem END AS bigint) "
        "FROM pg_attribute JOIN pg_type AS t ON t.oid = atttypid LEFT JOIN pg_type AS b ON b.oid = t.typbasetype "
        "WHERE attrelid = to_regclass(:name) AND attnum > 0 AND NOT attisdropped"
    ),
    "mysql": _OF_MYSQL,
    "mariadb": _OF_MYSQL,
}
"""The types of columns as the server writes them, since SQLAlchemy does not know all, and the oid of an array's elements."""
_UNFOUND: dict[str, dict[str, Any]] = {
    "mysql": {"inet4": INET4(), "inet6": INET6()},
    "mariadb": {"inet4": INET4(), "inet6": INET6()},
    "postgresql": {"xml": XmlText()},
}
"""Types that SQLAlchemy does not find, as the server writes them."""
_NUMBERS = re.compile(r"\((-?\d+)(?:,(-?\d+))?\)")


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

    def shape(self) -> SqlShape:
        with self.reading() as connection:
            return read_shape(self.sink, connection)

    def schema(self, declared: Schema | None = None, *, selected: bool = False) -> Schema:
        """What records must hold (`column_field`). Columns of JSON documents are written only if they are declared."""
        named, chosen = declared.by_name() if declared is not None else {}, declared is not None or selected
        fields = []
        for each in self.shape().columns:
            found = column_field(self.sink, each, named.get(each["name"]), selected=selected, chosen=chosen)
            if isinstance(found, Field):
                fields.append(found)
            elif found is not None and isinstance(each["type"], sql.JSON):
                raise errors.ConfigError(
                    f"source.kafka.schema: column {each['name']!r} of {self.sink.table} holds documents; declare what they "
                    "hold (a STRUCT, an ARRAY, a MAP), or STRING where records hold them as text."
                )
        return Schema(tuple(fields))

    def own_forms(self) -> tuple[tuple[str, str], ...]:
        """The columns that PostgreSQL takes in a form of their own."""
        if self.sink.dialect != "postgresql":
            return ()
        return tuple((each["name"], form) for each in self.shape().columns if (form := copied_form(each)))

    def check(self, declared: Schema | None = None, *, selected: bool = False) -> tuple[Finding, ...]:
        """Whether the table can hold the guarantee, and what else the user should know."""
        from landonce.sinks.sql.check import check_columns, check_rights, check_storage

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
        """One past the highest offset that is there, for each partition that holds any at or above its floor. A table with a key has no
        index on the coordinates: it is scanned once for all partitions."""
        asked, highest = tuple(floors), dict[Partition, int | None]()
        if not asked:
            return TargetView(())
        topic, number, offset = (self._coordinates.c[name] for name in COORDINATES)
        with self.scanning() as connection:
            if self.sink.key:
                labels = sorted({partition.topic for partition, _ in asked})
                grouped = select(topic, number, func.max(offset)).where(topic.in_(labels)).group_by(topic, number)
                highest = {Partition(label, at): end for label, at, end in connection.execute(grouped)}
            else:
                for partition, floor in asked:
                    mine = and_(topic == partition.topic, number == partition.number, offset >= floor)
                    highest[partition] = connection.scalar(select(func.max(offset)).where(mine))
        ends = ((each, floor, highest.get(each)) for each, floor in asked)
        return TargetView(tuple((each, int(end) + 1) for each, floor, end in ends if end is not None and end >= floor))

    def count(self, ranges: Iterable[Range]) -> int:
        """How many rows there are with these offsets."""
        rows = select(func.count()).select_from(self._coordinates)
        with self.scanning() as connection:
            return sum(int(connection.scalar(rows.where(some)) or 0) for some in self._within(ranges))

    def no_removal(self) -> str:
        return ""

    def remove(self, ranges: Iterable[Range]) -> None:
        """In one transaction. The statements are made before it, because PostgreSQL ends a transaction that is idle."""
        statements = [delete(self._coordinates).where(some) for some in self._within(ranges)]
        with self._begun(self.database.writing) as connection:
            for each in statements:
                connection.execute(each)

    def _within(self, ranges: Iterable[Range]) -> Iterator[ColumnElement[bool]]:
        """Conditions for these offsets, each for some of the ranges: databases limit the depth and the parameters of a statement."""
        topic, number, offset = (self._coordinates.c[name] for name in COORDINATES)
        left = iter(ranges)
        while some := list(islice(left, _RANGES_AT_ONCE)):
            yield or_(
                *(
                    and_(
                        topic == each.partition.topic,
                        number == each.partition.number,
                        offset >= each.first,
                        offset < each.end,
                    )
                    for each in some
                )
            )

    @cached_property
    def _coordinates(self) -> Table:
        columns = [Column(name, kind) for name, kind in coordinate_types(self.sink.dialect).items()]
        return Table(self.sink.name, MetaData(), *columns, schema=self.sink.schema)

    @property
    def _dialect(self) -> Dialect:
        """Of the engine, which knows the server's version after the first connection."""
        database: Any = self.database
        dialect: Dialect = database.engine.dialect
        return dialect

    def create(self, declared: Schema) -> None:
        """Does nothing if the table exists."""
        table = new_table(self.sink, declared, self._dialect)
        with self._begun(self.database.creating) as connection:
            table.create(connection, checkfirst=True)

    def creation(self, declared: Schema) -> str:
        """The statements that `create` runs."""
        table, dialect = new_table(self.sink, declared, self._dialect), self._dialect
        made: list[Any] = [CreateTable(table), *(CreateIndex(each) for each in sorted(table.indexes, key=str))]
        return "\n".join(str(each.compile(dialect=dialect)).strip() for each in made)

    def add(self, wanted: Mapping[str, pa.DataType]) -> tuple[str, ...]:
        """Adds the columns that are missing, and returns their names."""
        with self._begun(self.database.creating) as connection:
            there = {each.lower() for each in read_shape(self.sink, connection).names}
            added = []
            for name, type_ in sorted(wanted.items()):
                if name.lower() in there or name_fault(name, self.sink.dialect, "column"):
                    continue
                server = server_of(self.sink.dialect, self._dialect)
                kept = column_or_text(type_, server)
                note = note_of(self.sink, kept, server)
                statement = add_column(self.sink, name, column_type(kept, server), self._dialect)
                statement += f" COMMENT '{note}'" if note else ""
                connection.execute(text(statement.replace(":", "\\:")))
                there.add(name.lower())
                added.append(name)
        return tuple(added)

    def reading(self) -> AbstractContextManager[Connection]:
        """A transaction in which all reads see one state."""
        return self._begun(self.database.reading)

    def scanning(self) -> AbstractContextManager[Connection]:
        """The same, for statements that may read the whole table."""
        return self._begun(self.database.scanning)

    @contextmanager
    def _begun(self, begin: Callable[[], AbstractContextManager[Connection]]) -> Iterator[Connection]:
        try:
            with begin() as connection:
                yield connection
        except DBAPIError as failure:
            fault, said = self.database.fault(failure), self.database.reason(failure)
            raise (fault or errors.TargetUnavailable(f"{self.database.place}: {said}")) from None


@dataclass(frozen=True)
class SqlShape:
    """The columns and keys of a table."""

    columns: tuple[ReflectedColumn, ...]
    unique: tuple[frozenset[str], ...]
    """Sets of columns. No two rows hold the same values in one of them."""
    indexed: tuple[frozenset[str], ...] = ()
    deferred: tuple[frozenset[str], ...] = ()
    """Unique sets that PostgreSQL finds no row by: the constraint is DEFERRABLE, or its index was never finished."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each["name"] for each in self.columns)


def read_shape(sink: SqlSink, connection: Connection) -> SqlShape:
    """Asks the database. Raises `TableUnfit` if there is no such table."""
    found = inspect(connection)
    name, schema = sink.name, sink.schema
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Did not recognize type", SAWarning)
            columns = tuple({**each, "rowid": None} for each in found.get_columns(name, schema=schema))
    except NoSuchTableError:
        raise errors.TableUnfit(
            f"there is no table {sink.table}, or the user may not see it.",
            safe="Nothing was read or written.",
            command="create it, or set `create: true` in {file}",
        ) from None
    deferred: set[frozenset[str]] = set()
    if sink.dialect in ("mysql", "mariadb"):
        # SQLAlchemy reads SHOW CREATE TABLE, where a backtick in a name is doubled.
        columns = tuple({**each, "name": str(each["name"]).replace("``", "`")} for each in columns)
    elif sink.dialect == "sqlite":
        match connection.execute(_ROWID, {"name": name}).all():
            case [(rowid, "INTEGER")]:
                columns = tuple({**each, "rowid": rowid} for each in columns)
        for own in (JsonText, UuidText):
            of_type = connection.scalars(_OF_TYPE, {"name": name, "type": own.name}).all()
            columns = tuple({**each, "type": own()} if each["name"] in of_type else each for each in columns)
    elif sink.dialect == "postgresql":
        quoted = {"name": syntax_of("postgresql").table(sink.table)}
        _complete_domains(columns, connection, quoted)
        keys = [(at_once, frozenset(names)) for at_once, names in connection.execute(_KEYS, quoted)]
        deferred = {names for at_once, names in keys if not at_once} - {names for at_once, names in keys if at_once}
    if sink.dialect in _WRITTEN:
        of_table = (
            {"name": syntax_of(sink.dialect).table(sink.table)}
            if sink.dialect == "postgresql"
            else {"name": name, "schema": schema}
        )
        written = {row[0]: (row[1], row[2]) for row in connection.execute(_WRITTEN[sink.dialect], of_table)}
        columns = tuple(
            {
                **each,
                "written": spelled,
                "element": element,
                "type": _UNFOUND[sink.dialect].get(str(spelled), each["type"]),
            }
            for each in columns
            for spelled, element in (written.get(str(each["name"]), (None, 0)),)
        )
    indexes = found.get_indexes(name, schema=schema)
    sets: list[list[Any]] = [found.get_pk_constraint(name, schema=schema)["constrained_columns"]]
    sets += [each["column_names"] for each in found.get_unique_constraints(name, schema=schema)]
    sets += [
        each["column_names"]
        for each in indexes
        if each["unique"] and _PARTIAL.isdisjoint(each.get("dialect_options") or {})
    ]
    unique = dict.fromkeys(frozenset(each) for each in sets if each and None not in each)
    return SqlShape(
        columns,
        tuple(each for each in unique if each not in deferred),
        tuple(frozenset(filter(None, each["column_names"])) for each in indexes),
        tuple(deferred),
    )


def _complete_domains(columns: tuple[ReflectedColumn, ...], connection: Connection, table: dict[str, str]) -> None:
    """Adds length, precision, fields and time zone to PostgreSQL's domains: SQLAlchemy leaves them out. Follows domains of domains."""
    if not any(isinstance(each["type"], postgresql.DOMAIN) for each in columns):
        return
    base_types: dict[str, str] = {row[0]: row[1] for row in connection.execute(_DOMAINS, table)}
    for each in columns:
        spelled = base_types.get(each["name"], "")  # `varchar(5)`, `timestamp(0) with time zone`, `numeric(10,2)`
        numbers = _NUMBERS.search(spelled)
        first, second = (int(part) if part else None for part in numbers.groups()) if numbers else (None, None)
        kind = each["type"]
        while isinstance(kind, postgresql.DOMAIN):
            kind = kind.data_type
            if isinstance(kind, sql.String):
                kind.length = first
            elif isinstance(kind, (sql.DateTime, sql.Time)):
                kind.timezone = spelled.endswith("with time zone")
                kind.precision = first  # type: ignore[union-attr]
            elif isinstance(kind, postgresql.INTERVAL):
                kind.precision, kind.fields = first, spelled.partition("(")[0].removeprefix("interval").strip() or None
            elif isinstance(kind, postgresql.BIT):
                kind.length, kind.varying = first, "varying" in spelled
            elif isinstance(kind, sql.Numeric) and not isinstance(kind, sql.Float):
                kind.precision, kind.scale = first, second
