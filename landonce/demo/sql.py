"""The demo on SQL databases: each kill comes while the transaction of a block is open."""

from __future__ import annotations

import json
import sqlite3
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from landonce.demo.stage import TOPIC, InFlight, Proof, Stage, proof_of
from landonce.local.postgres import LocalPostgres

_PENDING = "SELECT pending FROM landonce_pipeline WHERE EXISTS (SELECT 1 FROM landonce_block WHERE state = 'BEFORE')"
"""A plan with blocks that have not landed: a transaction that is open after this query is a block's."""
_OPEN = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'landonce %' AND xact_start IS NOT NULL "
    "AND (query LIKE 'COPY%' OR query LIKE 'UPDATE%')"
)
_COUNTED = (
    "SELECT _partition, count(*), count(DISTINCT id) FROM {table} "
    "WHERE id % {partitions} = _partition AND id / {partitions} = _offset GROUP BY _partition"
)


class _OnSql(Stage):
    """Kills while a plan is pending and the transaction of one of its blocks is open."""

    @abstractmethod
    def _ask(self, query: str) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def _transacting(self) -> bool: ...

    def in_flight(self, after: int) -> InFlight | None:
        with suppress(psycopg.Error, sqlite3.Error):
            for (pending,) in self._ask(_PENDING):
                batch = int(json.loads(pending)["batch"])
                if batch > after and self._transacting():
                    return InFlight(batch, "the transaction of a block is open")
        return None

    def prove(self, produced: list[int], kills: int) -> Proof:
        """Counts rows and distinct records: finds a record that landed under another's offset."""
        counted = self._ask(_COUNTED.format(table=TOPIC, partitions=len(produced)))
        [(total,)] = self._ask(f"SELECT count(*) FROM {TOPIC}")  # noqa: S608  a constant
        found = {int(partition): (int(rows), int(distinct)) for partition, rows, distinct in counted}
        return proof_of(found, int(total), produced, kills)


class OnPostgres(_OnSql):
    """The driver is killed twice, and the server once."""

    place = "PostgreSQL"

    @contextmanager
    def servers(self) -> Iterator[str]:
        self.folder.chmod(0o711)  # PostgreSQL does not run as root: then the server's user needs access
        with LocalPostgres(self.folder / "postgres") as server:
            self._server = server
            yield f"a real PostgreSQL at port {server.port}"

    def sink(self) -> str:
        return f'sink:\n  sql: {{url: "{self._server.url}", table: {TOPIC}, create: true}}'

    def third_kill(self) -> str:
        self._server.kill()
        self._server.start()
        self._server.wait_ready(60)
        return "killed the PostgreSQL server with -9, and start it again"

    def _transacting(self) -> bool:
        return bool(self._ask(_OPEN)[0][0])

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._server.url.replace("+psycopg", ""), connect_timeout=5) as connection:
            return connection.execute(query.encode()).fetchall()


class OnSqlite(_OnSql):
    """No server: the driver is killed three times."""

    place = "SQLite"

    @contextmanager
    def servers(self) -> Iterator[str]:
        yield "an SQLite file, which needs no server"

    @property
    def _file(self) -> Path:
        return self.folder / "demo.db"

    def sink(self) -> str:
        return f"sink:\n  sql: {{url: 'sqlite:///demo.db', table: {TOPIC}, create: true}}"

    def _transacting(self) -> bool:
        """SQLite keeps its rollback journal beside the file."""
        return Path(f"{self._file}-journal").exists()

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
            return connection.execute(query).fetchall()
