"""Changes of a large Iceberg table: equality deletes against Spark's MERGE, and what readers pay for them until a compaction."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from iceberg_servers import LocalRestCatalog
from pyspark.sql import SparkSession
from rich.console import Console

from bench.iceberg import spark_stream
from bench.iceberg.ours import Timed
from bench.iceberg.tables import Lake
from bench.measure import measure_rounds, ratios
from bench.report import Section, speed, times
from bench.topic import PARTITIONS, SCHEMA, make_topic, produce, record
from landonce.engine.pipeline import driver_of
from landonce.local import LocalKafka
from landonce.sinks.iceberg.commit import TableBranch
from landonce.sinks.iceberg.maintain.compact import census, compact, drop_dangling
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import parse

_TOPIC = "changes"
_CHANGES = 50_000
"""In a batch, over random keys."""
_AT_ONCE = 1_000_000
_SCANS = 3


@dataclass(frozen=True)
class Figures:
    """Seconds per batch, and seconds of a scan of the whole table."""

    rows: int
    seconds: dict[str, list[float]]
    scans: dict[str, list[float]]
    """By Spark: before the first batch, after the last one, and after a compaction."""
    compaction: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio_merge": median(ratios(self.seconds["equality"], self.seconds["merge"]))}

    def section(self) -> Section:
        batches = len(self.seconds["merge"])
        rows = (
            ("`write: equality`", self._batch("equality")),
            ("`write: merge`, Spark's MERGE", self._batch("merge")),
            ("ratio", times(ratios(self.seconds["equality"], self.seconds["merge"]))),
            ("scan of the table by Spark, before", self._scan("before")),
            (f"scan after the batches, `write: merge` ({batches} counted)", self._scan("merge")),
            ("scan after the batches, `write: equality`", self._scan("equality")),
            ("scan after that and a compaction", self._scan("compacted")),
            ("the compaction", f"{self.compaction:.0f} s"),
        )
        return Section("Changes of an Iceberg table", _BEFORE.format(rows=self.rows, changes=_CHANGES), rows, _AFTER)

    def _batch(self, which: str) -> str:
        seconds = self.seconds[which]
        return f"{median(seconds):.2f} s a batch ({min(seconds):.2f} to {max(seconds):.2f}); {speed(_CHANGES, seconds)}"

    def _scan(self, which: str) -> str:
        return f"{median(self.scans[which]):.2f} s"


def measure(
    folder: Path, records: int, repetitions: int, warm_ups: int, console: Console, *, rows: int = 10_000_000
) -> Figures:
    """Each way lands the same batches into a table of its own, batch by batch, in shuffled order."""
    del records
    with LocalKafka(folder / "kafka") as kafka, LocalRestCatalog(folder / "rest") as rest:
        lake = Lake(rest)
        console.print(f"changes of an Iceberg table: two tables of {rows:,} rows")
        for table in ("merge", "equality"):
            lake.make(f"bench.{table}", {"write.merge.mode": "merge-on-read"})
            for begin in range(0, rows, _AT_ONCE):
                lake.catalog.load_table(f"bench.{table}").append(_rows(begin, min(_AT_ONCE, rows - begin)))
        make_topic(kafka.bootstrap_servers, _TOPIC)
        session = spark_stream.open_session(lake)
        chance, landed = random.Random(20261119), dict.fromkeys(("merge", "equality"), 0)
        scans = {"before": _scans(session, "merge")}

        def land(name: str) -> float:
            if landed[name] == max(landed.values()):  # the first one of a round: its changes are not there yet
                produce(kafka.bootstrap_servers, _TOPIC, _changes(chance, rows))
            landed[name] += 1
            return _batch(session, lake, kafka.bootstrap_servers, name, folder)

        ways = {name: (lambda _table, name=name: land(name)) for name in landed}
        seconds = measure_rounds(ways, repetitions, warm_ups, _CHANGES, console)
        scans |= {name: _scans(session, name) for name in landed}
        _same(session)
        began = time.monotonic()
        place = TableBranch(lake.spec, lambda: lake.catalog, "bench.equality", "main", "equality")
        compact(session, lake.spec, place.identifier, census(place.load(), "main", None))
        drop_dangling(place)
        took = time.monotonic() - began
        scans["compacted"] = _scans(session, "equality")
        _same(session)
        session.stop()
    return Figures(rows, seconds, scans, took)


def _rows(first: int, count: int) -> pa.Table:
    """Rows that another writer brought: no batch lands them again."""
    numbers = np.arange(first, first + count)
    at = datetime(2026, 11, 1, tzinfo=timezone.utc)
    return pa.table(
        {
            "id": pa.array(numbers),
            "user": pa.array(numbers % 50_000).cast(pa.string()),
            "event": pa.array(["click"] * count),
            "at": pa.array([at] * count, pa.timestamp("us", "UTC")),
            "amount": pa.array(numbers % 100 + 0.25),
            "page": pa.array(numbers % 500).cast(pa.string()),
            "_topic": pa.array(["before"] * count),
            "_kafka_partition": pa.array(np.zeros(count, np.int32)),
            "_offset": pa.array(numbers),
        }
    )


def _changes(chance: random.Random, rows: int) -> Iterator[bytes]:
    """Of ten, seven replace a row, two are new rows, one deletes a row. A key stays in its partition of the topic."""
    for number in range(_CHANGES):
        fate = chance.random()
        key = chance.randrange(rows // PARTITIONS) * PARTITIONS + number % PARTITIONS + (rows if fate < 0.2 else 0)
        operation = b"c" if fate < 0.2 else b"d" if fate < 0.3 else b"u"
        yield b'{"op":"%b",' % operation + record(key)[1:]


def _batch(session: SparkSession, lake: Lake, bootstrap_servers: str, name: str, folder: Path) -> float:
    """Seconds of the one batch that waits."""
    text = f"""\
pipeline: {name}
source:
  kafka: {{bootstrap_servers: "{bootstrap_servers}", topics: [{_TOPIC}], schema: "{SCHEMA.replace(" NOT NULL", "")}"}}
sink:
  iceberg:
    catalog: {{type: rest, uri: "{lake.rest.uri}"}}
    table: bench.{name}
    identity: id
    changes: {{mode: operation, field: op}}
    write: {name}
batch: {{interval: 0s, max_rows: 1000000, block_rows: 200000}}
"""
    parts, timed = open_parts(parse(text, folder / "bench.yaml")), Timed()
    with closing(parts.ledger), driver_of(parts, lambda: session, timed, once=True) as driver:
        driver.run()
    if len(timed.rates) != 1:
        raise RuntimeError(f"{len(timed.rates)} batches where one was waiting")
    return _CHANGES / timed.rates[0]


def _scans(session: SparkSession, name: str) -> list[float]:
    """Seconds in which Spark adds up a column of the whole table."""
    found = []
    for _ in range(_SCANS):
        session.sql(f"REFRESH TABLE landonce.bench.{name}")
        began = time.monotonic()
        session.sql(f"SELECT count(*), sum(amount) FROM landonce.bench.{name}").collect()
        found.append(time.monotonic() - began)
    return found


def _same(session: SparkSession) -> None:
    """Raises if the tables differ."""
    sums = "SELECT count(*), sum(id), sum(amount), sum(_offset), count(DISTINCT id) FROM landonce.bench."
    for name in ("merge", "equality"):
        session.sql(f"REFRESH TABLE landonce.bench.{name}")
    merged, written = (session.sql(f"{sums}{name}").collect()[0] for name in ("merge", "equality"))
    if tuple(merged) != tuple(written) or merged[0] != merged[4]:
        raise RuntimeError(f"the tables differ: {merged} and {written}")


_BEFORE = """\
The two ways to write changes, `write: equality` and `write: merge` (see [iceberg.md](iceberg.md#equality-deletes)): tables of
{rows:,} rows in a REST catalog, and batches of {changes:,} changes of random keys, of which seven of ten replace a row,
two are new and one deletes. Both land the same batches, one after the other in shuffled order, in the same Spark session.
`write.merge.mode` is `merge-on-read`. The time is that of the batch: read, write, commit. At the end both tables hold the same rows.
"""
_AFTER = """\
MERGE looks for the keys in the table, and these are everywhere. Where they are near each other, MERGE skips files, and is
faster than here. The scans add up one column of the whole table.
"""
