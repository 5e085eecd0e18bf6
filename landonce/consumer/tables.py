"""The table of `SqlOffsets`, and what differs between databases: inserting a missing row, and lock timeouts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Executable, Integer, MetaData, String, Table, text
from sqlalchemy.dialects import mysql, postgresql, sqlite

GROUP_LENGTH = 255
"""MySQL and MariaDB cut longer names, and ignore trailing spaces."""


def offset_table(name: str, schema: str | None) -> Table:
    """Names compare exactly: with MariaDB's default, `a` would equal `A`."""

    def words(length: int) -> Any:
        exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
        return String(length).with_variant(exact, "mysql", "mariadb")

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


def end_when_idle(connection: Connection, seconds: float) -> None:
    """PostgreSQL ends the session if it stays idle in this transaction for so long."""
    limit = text("SELECT set_config('idle_in_transaction_session_timeout', :limit, true)")
    connection.execute(limit, {"limit": f"{int(seconds * 1000)}ms"})
