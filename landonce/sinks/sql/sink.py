"""The description of a table in an SQL database, and the database as the driver opens it: it holds the ledger too.

The description is picklable; its repr hides the password.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, Inspector, make_url, text
from sqlalchemy.exc import ArgumentError
from sqlalchemy.sql import quoted_name

from landonce.errors import ConfigError, LandonceError
from landonce.ledger.block_ledgers import TargetLedger
from landonce.ledger.database import Database, SqliteDatabase, misplaced
from landonce.ledger.mysql import MySqlDatabase
from landonce.ledger.plain_sql import BlockKey
from landonce.ledger.postgres import PostgresDatabase
from landonce.ledger.ydb import YdbDatabase
from landonce.sinks.transactional import BlockTransaction, TransactionalSink

if TYPE_CHECKING:
    from landonce.protocol.ledger import LedgerState
    from landonce.sinks.audit import HeldTables
    from landonce.sinks.checking import CheckRun, Sections
    from landonce.sinks.operations import Operations, Sessions
    from landonce.sinks.parts import Parts
    from landonce.sinks.pipeline_file import Pipeline
    from landonce.sinks.run import Run
    from landonce.sinks.sql.driver import OpenSql
    from landonce.sinks.sql.table import SqlTable

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


@dataclass(frozen=True)
class SqlSink(TransactionalSink):
    """Where rows go, and how they get there."""

    url: str = field(repr=False)
    table: str
    pipeline: str
    key: tuple[str, ...] = ()
    """The columns by which rows are changed; empty where rows are only added."""
    own_forms: tuple[tuple[str, str], ...] = ()
    """Columns that PostgreSQL takes in a form of their own, and which: `jsonb`, `array`, `inet` and others (`copied_form`)."""
    examined: str = ""
    """The table's fingerprint when the driver examined it. Empty: workers do not compare it."""
    create: bool = field(default=False, repr=False, compare=False)

    def __str__(self) -> str:
        place = self.address.set(username=None, password=None, query={}).render_as_string()
        return f"{place}, table {self.table}"

    def open_ledger(self, config: Pipeline) -> TargetLedger:
        return TargetLedger(open_database(self.address), config.pipeline)

    def open(self, run: Run) -> OpenSql:
        from landonce.sinks.sql.driver import OpenSql

        return OpenSql(self, run)

    def open_table(self) -> SqlTable:
        from landonce.sinks.sql.table import SqlTable

        return SqlTable(self)

    def open_block(self, block: BlockKey) -> BlockTransaction:
        from landonce.sinks.sql.writer import open_writer

        return open_writer(self, block)

    @property
    def notes(self) -> bool:
        """Whether a column of JSON text needs a comment that says so: the others have a type for it."""
        return self.dialect in ("mysql", "mariadb")

    @property
    def changes_rows(self) -> bool:
        return bool(self.key)

    def open_query_ledger(self, where: str | Path | None, name: str) -> TargetLedger:
        del where
        return TargetLedger(open_database(self.address), name)

    def checks(self, run: CheckRun) -> Sections:
        from landonce.sinks.sql.check import sections

        return sections(run, self)

    def operations(self, parts: Parts, sessions: Sessions) -> Operations:
        from landonce.sinks.sql.driver import SqlOperations

        return SqlOperations(parts, sessions, self)

    def held(self, parts: Parts, state: LedgerState | None) -> HeldTables:
        from landonce.sinks.sql.held import held

        del state
        return held(parts, self)

    @property
    def identity(self) -> str:
        """Which table it is. A pending plan is not written to another one."""
        address = self.address
        return f"{self.dialect}://{address.host or ''}:{address.port or ''}/{address.database}#{self.table}"

    @cached_property
    def address(self) -> URL:
        return parsed(self.url)

    @property
    def dialect(self) -> str:
        return dialect_of(self.address)

    @property
    def name(self) -> str:
        return as_name(self.table.rpartition(".")[2], self.dialect)

    @property
    def schema(self) -> str | None:
        return self.table.rpartition(".")[0] or None


_KEYWORDS = frozenset({"collation", "concurrently", "current_schema", "lateral", "system_user", "tablesample"})


def as_name(name: str, dialect: str) -> str:
    """A name for SQLAlchemy's constructs. They leave some names without quotes that need them: keywords that they do not know, of which
    MySQL and MariaDB have many, and a name that ends with a line break, which would be another name."""
    bare = dialect not in ("mysql", "mariadb") and not name.endswith("\n") and name.lower() not in _KEYWORDS
    return name if bare else quoted_name(name, quote=True)


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
