"""Rows → PostgreSQL: landonce's transaction of a block against raw ingest, COPY and `executemany`, into tables of one definition."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from adbc_driver_postgresql import dbapi
from rich.console import Console

from bench.measure import Land, measure_rounds, ratios
from bench.report import Section, speed, times
from landonce.ledger.block_ledgers import TargetLedger
from landonce.ledger.plain_sql import BlockKey
from landonce.local.postgres import LocalPostgres
from landonce.protocol.block_rows import Claim
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.ledger import LedgerState, Position, Totals, prepared, recorded, taken
from landonce.protocol.ranges import Partition, Range
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.sql.writer import open_writer
from landonce.sinks.transactional import settle_block

_SCHEMA = "id BIGINT NOT NULL, word STRING, amount DOUBLE, at TIMESTAMP"
_PARTITION = Partition("t", 0)
_BLOCK = 200_000
_MOST = 600_000
_COLUMNS = "_topic, _partition, _offset, id, word, amount, at"
_TYPES = ("text", "int4", "int8", "int8", "text", "float8", "timestamptz")


@dataclass(frozen=True)
class Figures:
    """Seconds per round, for the same rows into a new table each time."""

    records: int
    seconds: dict[str, list[float]]

    def ratio(self, peer: str) -> list[float]:
        return ratios(self.seconds["landonce"], self.seconds[peer])

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {f"ratio_{peer}": median(self.ratio(peer)) for peer in self.seconds if peer != "landonce"}

    def section(self) -> Section:
        ours = "landonce: blocks of 200,000 rows, each with its row in the ledger"
        peers = (
            ("raw ingest: ADBC's `adbc_ingest`, as landonce uses it, one transaction per 200,000 rows", "adbc"),
            ("`COPY … (FORMAT BINARY)` by psycopg, row by row, one transaction per 200,000 rows", "copy"),
            ("`executemany` of psycopg, one transaction per 200,000 rows", "executemany"),
        )
        rows = [(ours, speed(self.records, self.seconds["landonce"]))]
        for what, peer in peers:
            rows += [(what, speed(self.records, self.seconds[peer])), ("landonce against it", times(self.ratio(peer)))]
        return Section("Arrow → PostgreSQL", _BEFORE, tuple(rows), _AFTER)


_BEFORE = """\
Rows that are already in memory are written to a table as landonce creates it, over one connection at a time. The clock
starts before the connection is opened and stops at the last COMMIT.
"""
_AFTER = """\
psycopg gets Python tuples that were made beforehand; landonce and ADBC get an Arrow table, as landonce's decoder makes
it. landonce also plans and records the blocks, and checks that the table was not altered: the ratio to the raw ingest
shows what that costs. `executemany` sends one INSERT per row without waiting for each answer.
"""


def measure(folder: Path, records: int, repetitions: int, warm_ups: int, console: Console) -> Figures:
    folder.chmod(0o755)
    count = max(_BLOCK, min(records, _MOST) // _BLOCK * _BLOCK)
    rows = _rows(count)
    tuples = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    console.print(f"Arrow → PostgreSQL: {count:,} rows")
    with LocalPostgres(folder / "postgres") as server:
        competitors: dict[str, Land] = {
            "landonce": lambda name: _landonce(server.url, name, rows),
            "adbc": lambda name: _adbc(server.url, name, rows),
            "copy": lambda name: _copy(server.url, name, tuples),
            "executemany": lambda name: _executemany(server.url, name, tuples),
        }
        return Figures(count, measure_rounds(competitors, repetitions, warm_ups, count, console))


def _rows(count: int) -> pa.Table:
    ids = np.arange(count)
    return pa.table(
        {
            "_topic": pa.array(["t"] * count),
            "_partition": pa.array(np.zeros(count, np.int32)),
            "_offset": pa.array(ids),
            "id": pa.array(ids),
            "word": pa.array([f"word number {each}" for each in ids]),
            "amount": pa.array(ids / 4),
            "at": pa.array(ids * 1_000_000, pa.timestamp("us", tz="UTC")),
        }
    )


def _table(url: str, name: str) -> SqlSink:
    sink = SqlSink(url, name, name)
    table = SqlTable(sink)
    table.create(parse_schema(_SCHEMA))
    table.close()
    return sink


def _landonce(url: str, name: str, rows: pa.Table) -> float:
    sink = _table(url, name)
    table = SqlTable(sink)
    ledger = TargetLedger(table.database, name)
    state = ledger.create(LedgerState(name, "bench"))
    state = ledger.change(state, taken(state, "bench"))
    bound = replace(state, version=state.version + 1, cluster_id="c", positions=((_PARTITION, Position(0, 0)),))
    state = ledger.change(state, bound)
    began = time.monotonic()
    ends = range(_BLOCK, rows.num_rows + 1, _BLOCK)
    blocks = tuple(Block((Range(_PARTITION, end - _BLOCK, end),), name, number=at) for at, end in enumerate(ends))
    state = ledger.change(state, prepared(state, Plan(1, blocks, "f", 0)))
    for number in range(len(blocks)):
        place = BlockKey(name, 1, number)
        part = rows.slice(number * _BLOCK, _BLOCK)
        settle_block(lambda place=place: open_writer(sink, place), Claim.of(state), "{}", part, name)  # type: ignore[misc]
    ledger.change(state, recorded(state, Totals(landed=rows.num_rows)))
    took = time.monotonic() - began
    table.close()
    return took


def _adbc(url: str, name: str, rows: pa.Table) -> float:
    _table(url, name)
    began = time.monotonic()
    with dbapi.connect(url.replace("+psycopg", "")) as connection, connection.cursor() as cursor:
        for first in range(0, rows.num_rows, _BLOCK):
            cursor.adbc_ingest(name, rows.slice(first, _BLOCK), mode="append")
            connection.commit()
    return time.monotonic() - began


def _copy(url: str, name: str, tuples: list[tuple[Any, ...]]) -> float:
    _table(url, name)
    began = time.monotonic()
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        for first in range(0, len(tuples), _BLOCK):
            with (
                connection.transaction(),
                connection.cursor() as cursor,
                cursor.copy(f"COPY {name} ({_COLUMNS}) FROM STDIN (FORMAT BINARY)".encode()) as copy,
            ):
                copy.set_types(_TYPES)
                for row in tuples[first : first + _BLOCK]:
                    copy.write_row(row)
    return time.monotonic() - began


def _executemany(url: str, name: str, tuples: list[tuple[Any, ...]]) -> float:
    _table(url, name)
    marks = ", ".join(["%s"] * len(tuples[0]))
    began = time.monotonic()
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        for first in range(0, len(tuples), _BLOCK):
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO {name} ({_COLUMNS}) VALUES ({marks})".encode(), tuples[first : first + _BLOCK]
                )
    return time.monotonic() - began
