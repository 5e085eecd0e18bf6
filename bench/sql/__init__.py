"""Rows → PostgreSQL: landonce's transaction of a block, by COPY from Arrow, against plain `executemany`, into the same kind of table."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from rich.console import Console

from bench.report import Section, speed
from landonce.local.postgres import LocalPostgres
from landonce.plan.blocks import Block, Plan
from landonce.plan.ranges import Partition, Range
from landonce.read.ddl import parse_schema
from landonce.record.blocks import Claim
from landonce.record.in_target import TargetLedger
from landonce.record.ledger import LedgerState, Position, Totals, prepared, recorded, taken
from landonce.write.sql import SqlSink
from landonce.write.sql.opened import open_writer
from landonce.write.sql.statements import Place
from landonce.write.sql.table import SqlTable
from landonce.write.sql.writer import settle_block

_SCHEMA = "id BIGINT NOT NULL, word STRING, amount DOUBLE, at TIMESTAMP"
_PARTITION = Partition("t", 0)
_BLOCK = 200_000
_MOST = 600_000
_COLUMNS = "_topic, _partition, _offset, id, word, amount, at"


@dataclass(frozen=True)
class Figures:
    """Seconds per repetition, for the same rows into a new table each time."""

    records: int
    landonce: list[float]
    executemany: list[float]

    @property
    def ratio(self) -> float:
        return median(self.executemany) / median(self.landonce)

    def told(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio}

    def section(self) -> Section:
        rows = (
            ("landonce: blocks of 200,000 rows, each with its row in the ledger", speed(self.records, self.landonce)),
            ("plain `executemany` of psycopg, one transaction per 200,000 rows", speed(self.records, self.executemany)),
            ("ratio", f"{self.ratio:.1f}"),
        )
        return Section("Arrow → PostgreSQL", _BEFORE, rows, _AFTER)


_BEFORE = """\
Rows that are in memory already, into a table as landonce makes it, over one connection at a time.
"""
_AFTER = """\
Plain `executemany` gets Python tuples that were made beforehand, and is psycopg's own: an INSERT per row, sent without waiting for each
answer. landonce gets an Arrow table, as its decoder makes it, and connects, plans, flips and records the blocks. The aim is a ratio
of at least 10.
"""


def measure(folder: Path, records: int, repetitions: int, console: Console) -> Figures:
    folder.chmod(0o755)
    count = max(_BLOCK, min(records, _MOST) // _BLOCK * _BLOCK)
    rows = _rows(count)
    tuples = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    ours, plain = [], []
    with LocalPostgres(folder / "postgres") as server:
        for number in range(repetitions):
            ours.append(_landonce(server.url, f"ours{number}", rows))
            plain.append(_executemany(server.url, f"plain{number}", tuples))
            console.print(f"PostgreSQL, {count:,} rows: landonce {ours[-1]:.1f} s, executemany {plain[-1]:.1f} s")
    return Figures(count, ours, plain)


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
        place = Place(name, 1, number)
        part = rows.slice(number * _BLOCK, _BLOCK)
        settle_block(lambda place=place: open_writer(sink, place), Claim.of(state), "{}", part, name)  # type: ignore[misc]
    ledger.change(state, recorded(state, Totals(landed=rows.num_rows)))
    took = time.monotonic() - began
    table.close()
    return took


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
