"""Offsets in an SQL table, saved in the user's own transaction.

A zombie cannot commit, whenever it wakes up. Its `save` updates the partition's row if epoch and owner are still its
own, and holds the row's lock until its transaction ends. The new owner's `load` updates the same row. One of the two
comes first:

    save first    `load` waits for the end of the zombie's transaction. Then it reads the offset that the zombie
                  committed, or the old one if it rolled back. No record takes effect twice
    load first    `save` finds another epoch: it updates no row and raises `Fenced`, and the transaction must roll
                  back. It does not matter whether the zombie slept before `save` or during its COMMIT

In all of these databases an UPDATE reads what is committed now, even if a SELECT of the same transaction would read
an older snapshot (MariaDB). PostgreSQL above READ COMMITTED, and SQLite with an old snapshot, refuse it instead. The
owner is a random name beside the epoch, so a database restored from a backup cannot issue the same fence again.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    Executable,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    and_,
    create_engine,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from landonce.consumer.offsets import NOBODY, OffsetOrigin, OffsetStep, Stored, fenced, out_of_step
from landonce.errors import ConfigError, LedgerUnavailable, TransactionUnsettled
from landonce.ledger.database import first_line
from landonce.ledger.names import quoted
from landonce.protocol.ranges import Partition

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")
_DIALECTS = ("postgresql", "sqlite", "mysql", "mariadb")
_BLOCKING = {
    "psycopg": "psycopg",
    "psycopg_async": "psycopg",
    "asyncpg": "psycopg",
    "aiosqlite": "pysqlite",
    "aiomysql": "pymysql",
    "asyncmy": "pymysql",
}
"""The driver that waits, for each that does not."""
_BEGUN = (2, 3)
"""libpq's INTRANS and INERROR: a statement of this transaction was answered."""
_SERVER_STATUS_IN_TRANS = 1
"""Of the protocol of MySQL."""
_PAUSE = 0.2
GROUP_LENGTH = 255
"""MySQL and MariaDB cut longer names, and ignore trailing spaces."""


class SqlOffsets:
    """One table for any number of groups, in PostgreSQL, SQLite, MySQL or MariaDB.

    `load` waits at most `lock_seconds` for another consumer's open transaction. PostgreSQL ends a transaction that has
    saved and stays idle for `idle_seconds`, so a consumer that is stopped in it does not block its successor for ever;
    None keeps the server's setting.

    With an async engine, `save` runs in your transaction by `AsyncConnection.run_sync`. Fences are taken while `poll` waits anyway, by
    connections of their own to the same URL, which wait, too.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        *,
        table: str = "landonce_offset",
        schema: str | None = None,
        lock_seconds: float = 60.0,
        idle_seconds: float | None = 60.0,
    ) -> None:
        if engine.dialect.name not in _DIALECTS:
            raise ConfigError(
                f"offsets cannot be kept in {engine.dialect.name}: its row locks are not known.",
                safe="Nothing was changed.",
                command=f"use one of {', '.join(_DIALECTS)}",
            )
        self._engine = engine if isinstance(engine, Engine) else blocking(engine)
        self._table = offset_table(table, schema)
        self._lock_seconds = lock_seconds
        self._idle_seconds = idle_seconds

    def initialize(self, group: str) -> None:
        """Two consumers may do this at once: the second one finds the table."""
        if len(group) > GROUP_LENGTH or group.endswith(" "):
            raise ConfigError(
                f"group {group!r} cannot be stored: it has {len(group)} characters, or a trailing space.",
                safe="Nothing was changed.",
                command=f"name a group of at most {GROUP_LENGTH} characters, without a trailing space",
            )
        try:
            self._table.create(self._engine, checkfirst=True)
        except DBAPIError:
            if not inspect(self._engine).has_table(self._table.name, self._table.schema):
                raise
        self._widen()

    def _widen(self) -> None:
        """A table of 0.1 lacks the columns of an `OffsetOrigin`. Its consumers may go on beside this one."""
        for column in self._lacking():
            kind = column.type.compile(self._engine.dialect)
            table = quoted(self._engine.dialect, *filter(None, (self._table.schema, self._table.name)))
            statement = f"ALTER TABLE {table} ADD COLUMN {column.name} {kind}"
            try:
                with self._engine.begin() as connection:
                    connection.execute(text(statement.replace(":", "\\:")))
            except DBAPIError as failure:
                if column.name in {each.name for each in self._lacking()}:
                    raise ConfigError(
                        f"the table {self._table} has no column {column.name}, and it cannot be added: {first_line(failure)}",
                        safe="Nothing was changed.",
                        command=statement,
                    ) from failure

    def _lacking(self) -> list[Column[Any]]:
        there = {each["name"] for each in inspect(self._engine).get_columns(self._table.name, self._table.schema)}
        return [self._table.c[name] for name in asdict(NOBODY) if name not in there]

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            yield connection
            if not connection.in_transaction():
                raise TransactionUnsettled(
                    "the transaction was ended inside its block, and its outcome is unknown.",
                    safe="Nothing was lost: the next poll continues from the stored offset.",
                    command="leave COMMIT and ROLLBACK to store.transaction(), which rolls back after an exception; "
                    "drop the records that you hold, and continue to poll",
                )

    def load(
        self, group: str, partitions: Collection[Partition], held: Mapping[Partition, Stored] | None = None
    ) -> dict[Partition, Stored]:
        return self._patiently(lambda connection: self._take(connection, group, partitions, held))

    def save(self, group: str, steps: Mapping[Partition, OffsetStep], transaction: Any) -> None:
        """`transaction`: a connection or session of SQLAlchemy (of an async one, what `run_sync` gives), or a plain connection of the
        engine's driver."""
        connection = self._connection(transaction)
        if connection.commits_itself if isinstance(connection, PlainConnection) else autocommits(connection):
            raise ConfigError(
                "the connection commits every statement by itself, so results and offsets are not one transaction.",
                safe="No offset was saved.",
                command="use an engine without isolation_level AUTOCOMMIT",
            )
        if self._idle_seconds is not None and connection.dialect.name == "postgresql":
            limit = text("SELECT set_config('idle_in_transaction_session_timeout', :limit, true)")
            connection.execute(limit, {"limit": f"{int(self._idle_seconds * 1000)}ms"})
        for partition, step in sorted(steps.items()):
            if self._move(connection, group, partition, step) != 1:
                raise self._refusal(connection, group, partition, step)

    def reset(self, group: str, offsets: Mapping[Partition, int | None]) -> None:
        def put(connection: Connection) -> None:
            for partition in self._take(connection, group, offsets, None):
                values = {"next_offset": offsets[partition], "topic_id": "", **asdict(NOBODY)}
                connection.execute(update(self._table).where(self._key(group, partition)).values(values))

        self._patiently(put)

    def _connection(self, transaction: Any) -> Connection | PlainConnection:
        if isinstance(transaction, Session):
            return transaction.connection()
        if hasattr(transaction, "run_sync"):
            raise ConfigError(
                f"an {type(transaction).__name__} cannot be waited for here.",
                safe="No offset was saved.",
                command="await connection.run_sync(lambda plain: store.save_many(messages, plain))",
            )
        return (
            transaction if isinstance(transaction, Connection) else PlainConnection(transaction, self._engine.dialect)
        )

    # Statements.

    def _take(
        self,
        connection: Connection,
        group: str,
        partitions: Collection[Partition],
        held: Mapping[Partition, Stored] | None,
    ) -> dict[Partition, Stored]:
        """In the same order for everyone, so that two consumers with the same partitions cannot deadlock."""
        taken: dict[Partition, Stored] = {}
        owner, row = uuid.uuid4().hex, self._table.c
        for partition in sorted(partitions):
            mine = [row.epoch == held[partition].epoch, row.owner == held[partition].owner] if held else []
            here = self._key(group, partition)
            fence = update(self._table).where(here, *mine).values(epoch=row.epoch + 1, owner=owner)
            if connection.execute(fence).rowcount != 1:
                if held:
                    continue
                key = {"consumer_group": group, "topic": partition.topic, "kafka_partition": partition.number}
                new = {**key, "next_offset": None, "epoch": 0, "owner": "", "topic_id": ""}
                connection.execute(insert_new(self._table, connection.dialect.name), new)
                connection.execute(fence)
            found = connection.execute(select(self._table).where(here).with_for_update()).one()
            origin = OffsetOrigin(found.member or "", found.generation, found.metadata or "")
            taken[partition] = Stored(found.next_offset, found.epoch, found.owner, found.topic_id, origin)
        return taken

    def _move(
        self, connection: Connection | PlainConnection, group: str, partition: Partition, step: OffsetStep
    ) -> int:
        row = self._table.c
        move = (
            update(self._table)
            .where(
                self._key(group, partition),
                row.epoch == step.epoch,
                row.owner == step.owner,
                row.next_offset.is_(None) if step.previous is None else row.next_offset == step.previous,
            )
            .values(next_offset=step.offset, topic_id=step.topic_id, **asdict(step.origin))
        )
        driver: Any = self._engine.dialect.loaded_dbapi
        try:
            return connection.execute(move).rowcount
        except (DBAPIError, driver.Error) as failure:
            if self._fence_moved(group, partition, step):
                raise fenced(partition) from failure
            raise

    def _refusal(
        self, connection: Connection | PlainConnection, group: str, partition: Partition, step: OffsetStep
    ) -> Exception:
        """Reads with a lock, which sees what is committed now, as the UPDATE does."""
        here = select(self._table).where(self._key(group, partition))
        if isinstance(connection, PlainConnection):
            with self._engine.connect() as other:
                found = other.execute(here).one_or_none()
        else:
            found = connection.execute(here.with_for_update()).one_or_none()
        if found is None or (found.epoch, found.owner) != (step.epoch, step.owner):
            return fenced(partition)
        return out_of_step(partition, found.next_offset, step)

    def _fence_moved(self, group: str, partition: Partition, step: OffsetStep) -> bool:
        """Uses another connection: after an error the user's transaction may not answer."""
        try:
            with self._engine.connect() as connection:
                found = connection.execute(select(self._table).where(self._key(group, partition))).one_or_none()
        except DBAPIError:
            return False
        return found is not None and (found.epoch, found.owner) != (step.epoch, step.owner)

    def _key(self, group: str, partition: Partition) -> ColumnElement[bool]:
        row = self._table.c
        return and_(row.consumer_group == group, row.topic == partition.topic, row.kafka_partition == partition.number)

    def _patiently(self, work: Callable[[Connection], T]) -> T:
        """Tries again after a lock timeout, a deadlock or a lost connection, until the time is over."""
        deadline = time.monotonic() + self._lock_seconds
        while True:
            try:
                with self._engine.connect() as connection:
                    if connection.dialect.name != "sqlite":
                        # Whatever the engine's default: a statement that waited must see the current row.
                        connection = connection.execution_options(isolation_level="READ COMMITTED")
                    with connection.begin(), waiting(connection, deadline - time.monotonic()):
                        return work(connection)
            except (OperationalError, InterfaceError) as failure:
                if time.monotonic() > deadline:
                    raise LedgerUnavailable(
                        f"the offsets could not be taken over within {self._lock_seconds:g} s: {first_line(failure)}.",
                        safe="Nothing was changed. Another consumer may be stopped in the middle of its transaction.",
                        command="poll again, or end that consumer's database session",
                    ) from failure
                time.sleep(_PAUSE)


def blocking(engine: AsyncEngine) -> Engine:
    """An engine for the same database whose connections wait. It connects when it is used."""
    backend, driver = engine.url.get_backend_name(), engine.url.get_driver_name()
    database = engine.url.database or ":memory:"
    memory = ":memory:" in database or engine.url.query.get("mode") == "memory"
    if backend == "sqlite" and memory and engine.url.query.get("cache") != "shared":
        raise ConfigError(
            "offsets cannot be taken over in SQLite's memory: connections of their own would see another, empty database.",
            safe="Nothing was changed.",
            command="name a file in the engine's URL",
        )
    try:
        return create_engine(engine.url.set(drivername=f"{backend}+{_BLOCKING[driver]}"))
    except (KeyError, ImportError, SQLAlchemyError) as failure:
        raise ConfigError(
            f"offsets cannot be taken over through {backend}+{driver}: no driver is known, or installed, that waits for its answers.",
            safe="Nothing was changed.",
            command=f"pip install {_BLOCKING[driver]}" if driver in _BLOCKING else "SqlOffsets(create_engine(…))",
        ) from failure


def offset_table(name: str, schema: str | None) -> Table:
    """Names compare exactly: with MariaDB's default, `a` would equal `A`."""

    def words(length: int) -> Any:
        exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
        return String(length).with_variant(exact, "mysql", "mariadb")

    free = Text().with_variant(mysql.TEXT(charset="utf8mb4"), "mysql", "mariadb")
    return Table(
        name,
        MetaData(),
        Column("consumer_group", words(GROUP_LENGTH), primary_key=True),
        Column("topic", words(249), primary_key=True),
        Column("kafka_partition", Integer, primary_key=True, autoincrement=False),
        Column("next_offset", BigInteger),
        Column("epoch", BigInteger, nullable=False),
        Column("owner", words(32), nullable=False),
        Column("topic_id", words(64), nullable=False),
        Column("member", free),
        Column("generation", Integer),
        Column("metadata", free),
        schema=schema,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


def insert_new(table: Table, dialect: str) -> Executable:
    """Inserts a row, or keeps the existing one."""
    if dialect in ("mysql", "mariadb"):
        return mysql.insert(table).prefix_with("IGNORE")
    if dialect == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing()
    return postgresql.insert(table).on_conflict_do_nothing()


@contextmanager
def waiting(connection: Connection, seconds: float) -> Iterator[None]:
    """Limits how long a lock is waited for. MySQL has only a limit per session, so the old one is restored."""
    if connection.dialect.name in ("mysql", "mariadb"):
        before = connection.scalar(text("SELECT @@SESSION.innodb_lock_wait_timeout"))
        limit = text("SET SESSION innodb_lock_wait_timeout = :limit")
        connection.execute(limit, {"limit": max(1, math.ceil(seconds))})
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.execute(limit, {"limit": before})
        return
    if connection.dialect.name == "postgresql":
        timeout = f"{max(1, int(seconds * 1000))}ms"
        connection.execute(text("SELECT set_config('lock_timeout', :limit, true)"), {"limit": timeout})
    yield


def autocommits(connection: Connection) -> bool:
    """Whether each statement of this connection commits by itself. SQLite engines may send BEGIN in events."""
    if not connection.in_transaction():
        connection.execute(select(1))
    opened = connection.connection
    driver = opened.dbapi_connection if connection.dialect.is_async else opened.driver_connection
    return _driver_autocommits(driver, connection.dialect)


def _driver_autocommits(driver: Any, dialect: Dialect) -> bool:
    if dialect.name == "sqlite":
        driver = getattr(driver, "driver_connection", driver)  # SQLAlchemy's, around aiosqlite's
        mode = getattr(driver, "autocommit", None)  # from Python 3.12 on; without it, isolation_level says it
        alone = mode if isinstance(mode, bool) else driver.isolation_level is None
        return alone and not driver.in_transaction
    return dialect.detect_autocommit_setting(driver) and not _in_transaction(driver)


def _in_transaction(driver: Any) -> bool:
    """Whether a transaction was begun though statements commit by themselves otherwise, such as by `connection.transaction()` of psycopg, or
    `begin()` of PyMySQL."""
    driver = getattr(driver, "driver_connection", driver)  # SQLAlchemy's, around those of async drivers
    if hasattr(driver, "is_in_transaction"):  # asyncpg's
        return bool(driver.is_in_transaction())
    found = getattr(getattr(driver, "info", None), "transaction_status", None)  # psycopg's, in all of its versions
    if found is not None:
        return found in _BEGUN
    status = getattr(driver, "server_status", 0)  # PyMySQL's
    return isinstance(status, int) and bool(status & _SERVER_STATUS_IN_TRANS)


class PlainConnection:
    """A connection of the engine's driver that SQLAlchemy did not open, with as much of SQLAlchemy's as a save needs. It only ever executes:
    the transaction is the user's."""

    def __init__(self, connection: Any, dialect: Dialect) -> None:
        self.dialect = dialect
        self._driver = getattr(connection, "driver_connection", connection)
        wanted = str(getattr(dialect.loaded_dbapi, "__name__", "")).partition(".")[0]
        if not any(each.__module__.partition(".")[0] == wanted for each in type(self._driver).__mro__):
            raise ConfigError(
                f"offsets are saved in a connection of {wanted}, as the engine's, and this is a {type(connection).__qualname__} of "
                f"{type(connection).__module__}.",
                safe="No offset was saved.",
                command=f"pass a connection of {wanted}, or one of SQLAlchemy; or make the engine with the other driver",
            )

    @property
    def commits_itself(self) -> bool:
        return _driver_autocommits(self._driver, self.dialect)

    def execute(self, statement: Any, values: Mapping[str, Any] | None = None) -> Any:
        """The driver's cursor."""
        compiled = statement.compile(dialect=self.dialect)
        named = compiled.construct_params(values)
        cursor = self._driver.cursor()
        cursor.execute(str(compiled), [named[each] for each in compiled.positiontup] if compiled.positional else named)
        return cursor
