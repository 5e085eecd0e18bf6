"""Rows that a program pushes into one target, one process after the other; for tests of pushes.

An offset stands for a row, or for none where the source filtered it: so rows do not show where a push began.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from clickhouse_connect import get_client
from query_site import SELECT, DiesAt, Row

import landonce
from landonce.local import LocalClickHouse

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


def there(first: int, end: int) -> list[int]:
    """The offsets that have a row: the ends of most pushes have none."""
    return [at for at in range(first, end) if at % 5 not in (0, 4)]


def rows(first: int, end: int, partition: int = 0) -> list[dict[str, Any]]:
    return [{"_offset": at, "id": 1000 * partition + at, "word": f"w{at}"} for at in there(first, end)]


@dataclass
class Site:
    """One target, and the sinks that push to it, one process after the other."""

    folder: Path
    sink: Any
    ask: Callable[[], list[Row]]
    ledger: str | dict[str, Any] | None = None
    sinks: list[landonce.ExactlyOnceSink] = field(default_factory=list)

    def once(self, **how: Any) -> landonce.ExactlyOnceSink:
        """Another process: nothing is known of the one before but what it left in the ledger."""
        how = {"name": "pushed", "schema": SCHEMA, **how}
        self.sinks.append(landonce.ExactlyOnceSink(self.sink, self.ledger, **how))
        return self.sinks[-1]

    def dies(self, step: str, first: int, end: int, *, partition: int = 0, skip: int = 0, **how: Any) -> None:
        with pytest.raises(RuntimeError, match=f"died before {step}"):
            self.push(self.once(observer=DiesAt(step, skip), **how), first, end, partition=partition)

    def push(self, once: landonce.ExactlyOnceSink, first: int, end: int, *, partition: int = 0) -> landonce.PushResult:
        return once.push(partition, rows(first, end, partition), first=first, end=end)

    def holds(self, *ends: int) -> None:
        """Every row below these ends, partition by partition, is there once."""
        due = [
            ("pushed", number, at, 1000 * number + at, f"w{at}")
            for number, end in enumerate(ends)
            for at in there(0, end)
        ]
        assert sorted(map(tuple, self.ask())) == due


def in_clickhouse(clickhouse: LocalClickHouse, table: str) -> list[Row]:
    with get_client(dsn=clickhouse.url) as client:
        return [tuple(row) for row in client.query(f"{SELECT} {table}").result_rows]


def comes_back(site: Site, *, in_commit: bool = False) -> None:
    """Same, overlapping, starts before, wholly before: after each end, the source begins where `position` says, or far before it.
    `in_commit`: the position is in the commit that adds the rows."""
    at = 10
    site.push(site.once(), 0, at)
    for step, back, more in [("prepare", 0, 0), ("write", 0, 3), ("commit", 10, 0), ("record", 25, 3)]:
        site.dies(step, at, at + 10)
        again, end = site.once(), at + 10 + more
        assert again.position(0) == (at + 10 if in_commit and step == "record" else at)
        done = site.push(again, at - back if back < at else 0, end)
        assert done.position == end == again.position(0)
        assert done.skipped >= len(there(max(0, at - back), at))
        at = end
    site.holds(at)
