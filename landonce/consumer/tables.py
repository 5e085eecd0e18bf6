"""The table of `SqlOffsets`, and what differs between databases: a row that may be there, and limits for waiting."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Executable, Integer, MetaData, String, Table, text
from sqlalchemy.dialects import mysql, postgresql, sqlite

GROUP_LENGTH = 255
"""MySQL and MariaDB cut what is longer, and take no notice of spaces at the end."""


def offset_table(name: str, schema: str | None) -> Table:
    """Names compare exactly: MariaDB's default would take `a` for `A`."""

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
    """Inserts a row, or leaves the one that is there."""
    if dialect in ("mysql", "mariadb"):
        return mysql.insert(table).prefix_with("IGNORE")
    if dialect == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing()
    return postgresql.insert(table).on_conflict_do_nothing()


@contextmanager
def waiting(connection: Connection, seconds: float) -> Iterator[None]:
    """No lock is waited for longer. MySQL has no such limit for one transaction, so the session's is put back."""
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
        told = f"{max(1, int(seconds * 1000))}ms"
        connection.execute(text("SELECT set_config('lock_timeout', :limit, true)"), {"limit": told})
    yield


def end_when_idle(connection: Connection, seconds: float) -> None:
    """PostgreSQL ends the session that stands still in this transaction for so long."""
    limit = text("SELECT set_config('idle_in_transaction_session_timeout', :limit, true)")
    connection.execute(limit, {"limit": f"{int(seconds * 1000)}ms"})
