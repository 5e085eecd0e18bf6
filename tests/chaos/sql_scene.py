"""A pipeline of its own that writes to an SQL database: its file, its topic, its table, its drivers, and the judge.

The judge asks over connections of its own, with plain SQL. In PostgreSQL its driver is not the one that landonce writes rows with; in SQLite
and MariaDB it is the same one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import oracle
import psycopg
from chain import Kill
from harness import SCHEMA, Drivers, Feed, Home
from mariadb_server import LocalMariaDB
from scene import Play

from landonce.local import LocalKafka
from landonce.local.postgres import DATABASE

_PIPELINE = Template("""\
pipeline: $pipeline
source:
  kafka: {bootstrap_servers: "$bootstrap", topics: [$topic], schema: "$schema"}
sink:
  sql: {url: "$url", table: events, create: true, $sink}
batch: {$batch}
dead_letters: {path: dead}
stall: 60s
spark: {master: "$master"}
""")
IN_TRANSACTIONS = [
    Kill("acquire.after"),
    Kill("prepare.after"),
    Kill("flip.after", replay=True),
    Kill("rows.after", replay=True),
    Kill("landed.after", replay=True),
    Kill("rows.after", replay=True),
    Kill("record.before"),
    Kill("record.after"),
]
"""Everywhere in the transactions of one plan's blocks, and around them."""
_ROWS = "SELECT _topic, _partition, _offset, id, word, amount FROM events"


@dataclass(frozen=True)
class Judge:
    """Asks the database."""

    ask: Callable[[str], list[tuple[Any, ...]]]
    there: Callable[[], bool]


def sqlite_judge(path: Path) -> Judge:
    def ask(query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path, timeout=60)) as connection:
            return connection.execute(query).fetchall()

    def there() -> bool:
        return path.exists() and bool(ask("SELECT 1 FROM sqlite_master WHERE name = 'events'"))

    return Judge(ask, there)


def postgres_judge(url: str) -> Judge:
    plain = url.replace("postgresql+psycopg://", "postgresql://")

    def ask(query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(plain) as connection:
            return connection.execute(query).fetchall()

    return Judge(ask, lambda: bool(ask("SELECT 1 FROM pg_tables WHERE tablename = 'events'")))


def mariadb_judge(server: LocalMariaDB, database: str = DATABASE) -> Judge:
    def ask(query: str) -> list[tuple[Any, ...]]:
        with server.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    return Judge(ask, lambda: bool(ask("SELECT 1 FROM information_schema.tables WHERE table_name = 'events'")))


@dataclass
class Base(Play):
    """A pipeline that writes to one table, which its ledger lies beside."""

    judge: Judge = field(kw_only=True)

    def landed(self) -> dict[str, list[oracle.Row]]:
        return {"events": self.judge.ask(_ROWS) if self.judge.there() else []}

    def count(self) -> int:
        return len(self.landed()["events"])

    def complete(self) -> bool:
        return self.count() == len(self.due()["events"])

    def blocks(self) -> list[tuple[Any, ...]]:
        """Of the pending plan: number, epoch, state."""
        return sorted(self.judge.ask("SELECT number, epoch, state FROM landonce_block"))

    def traces(self) -> tuple[object, ...]:
        """Everything that a driver can change and that counts."""
        tables = ("events", "landonce_pipeline", "landonce_position", "landonce_block")
        rows = [sorted(self.judge.ask(f"SELECT * FROM {table}"), key=repr) for table in tables]
        letters = sorted((each.name, each.read_bytes()) for each in self.site.dead.glob("[!.]*.jsonl"))
        return (*rows, letters)


@contextmanager
def base(
    folder: Path,
    kafka: LocalKafka,
    topic: str,
    url: str,
    judge: Judge,
    *,
    partitions: int = 2,
    batch: str = "interval: 0s, max_rows: 600, block_rows: 300",
    sink: str = "evolve: false",
    master: str = "local[1]",
    drivers: type[Drivers] = Drivers,
) -> Iterator[Base]:
    """`drivers`: with Spark, or plain ones."""
    home = Home(folder)
    home.save(
        _PIPELINE.substitute(
            pipeline="chaos",
            bootstrap=kafka.bootstrap_servers,
            topic=topic,
            schema=SCHEMA,
            url=url,
            sink=sink,
            batch=batch,
            master=master,
        )
    )
    with drivers(home) as started:
        yield Base(home, started, Feed(kafka.bootstrap_servers, topic, partitions), judge=judge)
