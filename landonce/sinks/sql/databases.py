"""The target database of each dialect, as the driver opens it. It holds the ledger too."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Inspector, make_url, text
from sqlalchemy.exc import ArgumentError

from landonce.errors import ConfigError, LandonceError
from landonce.ledger.database import Database, SqliteDatabase, misplaced
from landonce.ledger.mysql import MySqlDatabase
from landonce.ledger.postgres import PostgresDatabase
from landonce.ledger.ydb import YdbDatabase

DIALECTS = ("postgresql", "sqlite", "mysql", "mariadb", "yql")
"""As SQLAlchemy calls them; `ydb` in a URL is `yql` there."""
BUSY_SECONDS = 60.0
"""SQLite has one writer at a time. The others wait so long before they report that it is busy."""
_END_WRITERS = text(
    """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = :name AND usename = current_user AND datname = current_database()
      AND pid <> pg_backend_pid()
    """
)


class TargetPostgres(PostgresDatabase):
    """Workers' sessions carry the pipeline's name, so that a takeover can end the sessions of a stopped machine."""

    def end_writers(self, connection: Connection, pipeline: str) -> None:
        connection.execute(_END_WRITERS, {"name": session_name(pipeline)})


class TargetSqlite(SqliteDatabase):
    """A file that may hold the user's own tables."""

    def check_ours(self, inspector: Inspector) -> None:
        del inspector

    def _fault(self, said: str, *, passing: bool) -> LandonceError | None:
        if not self.path.exists() and os.access(self.path.parent, os.W_OK, effective_ids=True):
            return misplaced(
                f"there is no database file {self.path}, and so no table in it.",
                "say `create: true` under `sink.sql` in {file}, or make the file and the table",
            )
        return super()._fault(said, passing=passing)


def session_name(pipeline: str) -> str:
    """The name of workers' sessions. PostgreSQL keeps 63 bytes of a name."""
    return f"landonce {hashlib.sha256(pipeline.encode()).hexdigest()[:32]}"


def parsed(url: str) -> URL:
    """The URL, or an error that does not show it."""
    try:
        found = make_url(url)
        dialect = dialect_of(found)
    except (ArgumentError, ValueError):
        raise ConfigError(
            "sink.sql.url: cannot be read (it is not shown, since it may hold a password).",
            command="write it as postgresql://user:password@host:5432/database, with special characters of the password "
            "percent-encoded; or sqlite:///file.db, mysql://…, ydb://…",
        ) from None
    if dialect not in DIALECTS:
        raise ConfigError(
            f"sink.sql.url: landonce writes to PostgreSQL, SQLite, MySQL, MariaDB and YDB, not to {dialect!r}.",
            command="write it as postgresql://…, sqlite:///file.db, mysql://…, mariadb://… or ydb://…",
        )
    if dialect in ("mysql", "mariadb") and "init_command" in found.query:
        raise ConfigError(
            "sink.sql.url: `init_command` would replace landonce's own, which sets strict mode and UTC: values that do "
            "not fit would be changed silently.",
            command="remove `init_command` from the URL in {file}; set what it sets for the user or the server",
        )
    if dialect == "sqlite" and found.database in (None, "", ":memory:"):
        raise ConfigError("sink.sql.url: a SQLite database in memory is lost at the end of the run; name a file.")
    return found


def dialect_of(url: URL) -> str:
    """The database's name in SQLAlchemy."""
    name = url.get_backend_name()
    return "yql" if name in ("ydb", "yql") else name


def open_database(url: URL) -> Database:
    """Opens nothing yet."""
    dialect = dialect_of(url)
    if dialect == "postgresql":
        return TargetPostgres(url)
    if dialect == "sqlite":
        return TargetSqlite(Path(str(url.database)), busy_seconds=BUSY_SECONDS)
    if dialect == "yql":
        return YdbDatabase(url)
    return MySqlDatabase(url)


def engine_of(database: Any) -> Engine:
    engine: Engine = database.engine
    return engine
