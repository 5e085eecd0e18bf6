"""One table in one real database, with the ledger of one pipeline beside it, and a judge with a connection of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from mariadb_server import LocalMariaDB

from landonce.ledger.block_ledgers import TargetLedger
from landonce.ledger.plain_sql import BlockKey
from landonce.protocol.block_rows import Claim
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.ledger import LedgerState, Position, prepared, taken
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.transact import Transacting
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.sql.worker import Found, refused_rows
from landonce.sinks.sql.writer import open_writer
from landonce.sinks.transactional import BlockTransaction, settle_rows

PIPELINE = "contract"
TOPIC = Partition("t", 0)
RECEIPT = '{"read":3,"landed":3}'


@dataclass
class Site:
    """`ask` runs plain SQL, over another connection."""

    url: str
    ask: Callable[[str], list[tuple[Any, ...]]]
    key: tuple[str, ...] = ()
    table: str = "events"
    examined: str = ""
    tables: list[SqlTable] = field(default_factory=list)

    @property
    def sink(self) -> SqlSink:
        return SqlSink(self.url, self.table, PIPELINE, self.key, examined=self.examined)

    def made(self, schema: str = "id BIGINT NOT NULL, word STRING") -> SqlTable:
        table = SqlTable(self.sink)
        table.create(parse_schema(schema))
        self.tables.append(table)
        return table

    def ledger(self) -> TargetLedger:
        table = SqlTable(self.sink)
        self.tables.append(table)
        return TargetLedger(table.database, PIPELINE, attempts=3, backoff=0.05)

    def prepared(self, *ranges: tuple[int, int]) -> LedgerState:
        """A plan with a block for each range of offsets is pending, under a driver that just took the pipeline."""
        ledger = self.ledger()
        state = ledger.load() or ledger.create(LedgerState(PIPELINE, "lineage"))
        state = ledger.change(state, taken(state, "first"))
        bound = replace(
            state, version=state.version + 1, cluster_id="c", positions=((TOPIC, Position(0, ranges[0][0])),)
        )
        state = ledger.change(state, bound)
        blocks = tuple(Block((Range(TOPIC, a, b),), self.table, number=at) for at, (a, b) in enumerate(ranges))
        return ledger.change(state, prepared(state, Plan(state.batch + 1, blocks, "f", 0)))

    def taken_over(self, state: LedgerState, owner: str = "second") -> LedgerState:
        return self.ledger().change(state, taken(state, owner))

    def writer(self, number: int = 0, batch: int = 1, url: str = "") -> BlockTransaction:
        return open_writer(replace(self.sink, url=url or self.url), BlockKey(PIPELINE, batch, number))

    def settle(
        self, state: LedgerState, rows: pa.Table, number: int = 0, url: str = "", receipt: str = RECEIPT
    ) -> Transacting:
        batch = state.pending.batch if state.pending else 0
        return settle_rows(lambda: self.writer(number, batch, url), Claim.of(state), receipt, rows, "block")

    def refused(self, state: LedgerState, rows: pa.Table, number: int = 0) -> Found | None:
        batch = state.pending.batch if state.pending else 0
        return refused_rows(lambda: self.writer(number, batch), Claim.of(state), rows, "block")

    def blocks(self) -> list[tuple[Any, ...]]:
        return sorted(self.ask("SELECT number, epoch, owner, state, receipt FROM landonce_block"))

    def coordinates(self) -> list[tuple[Any, ...]]:
        return sorted(self.ask(f"SELECT _topic, _partition, _offset FROM {self.table}"))

    def close(self) -> None:
        for each in self.tables:
            each.close()


def rows(*offsets: int, words: dict[int, str] | None = None) -> pa.Table:
    given = words or {}
    return pa.table(
        {
            "_topic": pa.array(["t"] * len(offsets), pa.string()),
            "_partition": pa.array([0] * len(offsets), pa.int32()),
            "_offset": pa.array(offsets, pa.int64()),
            "id": pa.array(offsets, pa.int64()),
            "word": pa.array([given.get(at, f"w{at}") for at in offsets], pa.string()),
        }
    )


def changes(*given: tuple[int, str, int, str | None]) -> pa.Table:
    """(offset, operation, id, word) each."""
    return pa.table(
        {
            "_topic": pa.array(["t"] * len(given), pa.string()),
            "_partition": pa.array([0] * len(given), pa.int32()),
            "_offset": pa.array([each[0] for each in given], pa.int64()),
            "_op": pa.array([each[1] for each in given], pa.string()),
            "id": pa.array([each[2] for each in given], pa.int64()),
            "word": pa.array([each[3] for each in given], pa.string()),
        }
    )


def sqlite_site(folder: Path, **options: Any) -> Site:
    path = folder / "target.db"

    def ask(query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
            return connection.execute(query).fetchall()

    return Site(f"sqlite:///{path}", ask, **options)


def postgres_site(url: str, **options: Any) -> Site:
    def ask(query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else []

    return Site(url, ask, **options)


def mariadb_site(server: LocalMariaDB, database: str, **options: Any) -> Site:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")

    def ask(query: str) -> list[tuple[Any, ...]]:
        with server.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    return Site(server.url_of(database), ask, **options)


def ydb_site(endpoint: str, table: str, **options: Any) -> Site:
    """A live YDB: the ledger's tables are shared, and so are emptied first."""
    from sqlalchemy import create_engine, text

    url = endpoint.replace("grpc://", "ydb://", 1)
    engine = create_engine(url.replace("ydb://", "yql+ydb://", 1), isolation_level="AUTOCOMMIT")

    def ask(query: str) -> list[tuple[Any, ...]]:
        with engine.connect() as connection:
            found = connection.execute(text(query))
            return [tuple(row) for row in found] if found.returns_rows else []

    for name in ("schema", "pipeline", "position", "journal", "block"):
        ask(f"DROP TABLE IF EXISTS landonce_{name}")
    ask(f"DROP TABLE IF EXISTS {table}")
    return Site(url, ask, table=table, **options)
