"""Opens the ledger that a pipeline names. Opening creates nothing and does not connect: `load` and `create` do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError

from landonce.config import model
from landonce.config.secrets import redact
from landonce.errors import ConfigError, LandonceError
from landonce.ledger.database import Database, SqliteDatabase, misplaced
from landonce.ledger.memory import MemoryLedger
from landonce.ledger.postgres import PostgresDatabase
from landonce.ledger.sql import SqlLedger
from landonce.packages import plug_in, require
from landonce.protocol.ledger import Ledger

GROUP = "landonce.ledgers"
"""The group of entry points that offer ledgers."""
_KEY = "ledger.plugin"


def sqlite_ledger(path: Path | str, pipeline: str, *, attempts: int = 8, backoff: float = 0.2) -> SqlLedger:
    """A file on this machine: the default."""
    return SqlLedger(SqliteDatabase(Path(path)), pipeline, attempts=attempts, backoff=backoff)


def postgres_ledger(where: str | URL | Engine, pipeline: str, *, attempts: int = 8, backoff: float = 0.2) -> SqlLedger:
    """A PostgreSQL database, for drivers that may start on any machine."""
    require("postgres", "ledger.postgres")
    return SqlLedger(PostgresDatabase(where), pipeline, attempts=attempts, backoff=backoff)


def open_ledger(
    where: Path | str | URL | Engine, pipeline: str, *, attempts: int = 8, backoff: float = 0.2
) -> SqlLedger:
    """A path or a `sqlite:` URL is a file; everything else is a SQLAlchemy URL."""
    return SqlLedger(database_of(where), pipeline, attempts=attempts, backoff=backoff)


def named_ledger(named: model.LedgerSection, pipeline: str) -> Ledger:
    """The ledger that a pipeline file names."""
    if named.sqlite is not None:
        return sqlite_ledger(named.sqlite, pipeline)
    if named.plugin is not None:
        return plugged_ledger(named.plugin.name, named.plugin.options, pipeline, named.plugin.folder)
    if named.memory:
        return MemoryLedger(pipeline)
    if named.keeper_map is not None:
        raise ConfigError(
            "ledger.keeper_map: is a table of ClickHouse, and this sink is none.",
            command="name `sqlite` or `postgres` under `ledger` in {file}",
        )
    if named.postgres is None:
        raise ConfigError("ledger: name sqlite, postgres, keeper_map, plugin or memory.")
    return postgres_ledger(named.postgres.get_secret_value(), pipeline)


def database_of(where: Path | str | URL | Engine) -> Database:
    """The database at this place."""
    if isinstance(where, Path) or (isinstance(where, str) and "://" not in where):
        return SqliteDatabase(Path(where))
    try:
        url = where.url if isinstance(where, Engine) else make_url(where)
    except (ArgumentError, ValueError):
        return PostgresDatabase(str(where))  # it reports the mistake without showing the URL
    if url.get_backend_name() != "sqlite":
        return PostgresDatabase(where)
    if url.database in (None, "", ":memory:"):
        raise misplaced("a ledger in SQLite's memory is lost when the process ends.", "name a file for `ledger`")
    return SqliteDatabase(Path(str(url.database)))


def plugged_ledger(name: str, options: Mapping[str, Any], pipeline: str, folder: Path) -> Ledger:
    """The ledger of another package, by entry point.

    The entry point names a function `open_ledger(pipeline, folder, **options)` that returns a `Ledger` and does not
    connect yet. `folder` is the folder of the pipeline file: paths in the options are relative to it, so every start
    opens the same ledger.
    """
    opens = plug_in(GROUP, name, key=f"{_KEY}.name", instead="name `sqlite` or `postgres`")
    try:
        ledger = opens(pipeline, folder, **options)
    except LandonceError:
        raise
    except Exception as error:
        raise ConfigError(redact(f"{_KEY}: {name} failed: {type(error).__name__}: {error}")) from None
    if not isinstance(ledger, Ledger) or ledger.pipeline != pipeline:
        raise ConfigError(
            f"{_KEY}: {name} returns {type(ledger).__name__}, which is not a ledger of pipeline {pipeline!r}."
        )
    return ledger
