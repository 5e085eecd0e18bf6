"""Content deduplication: landonce with SQLite and PostgreSQL against Spark's own operator."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console

from bench.dedup import ours, spark_operator
from bench.dedup.stores import PostgresStores, SqliteStores, Stores, fill
from bench.measure import Land, Peak, measure_rounds, peak_memory, ratios
from bench.report import Section, speed, times
from bench.topic import make_topic_with_copies
from landonce.local import LocalClickHouse, LocalKafka
from landonce.local.postgres import LocalPostgres
from landonce.sinks.pipeline_file import Pipeline

_COPIES = (0.0, 0.1, 0.5)


@dataclass
class Figures:
    """Seconds per round, for the same records into a new table each time."""

    records: int
    keys: tuple[int, ...]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    stalls: dict[str, list[float]] = field(default_factory=dict)
    """The slowest batch against the median, by competitor."""
    cpu_seconds: dict[str, list[float]] = field(default_factory=dict)
    memory_mb: dict[str, float] = field(default_factory=dict)
    mapped_mb: dict[str, float] = field(default_factory=dict)
    bytes_per_key: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def section(self) -> Section:
        rows: list[tuple[str, str]] = []
        for copies in _COPIES:
            of = f"{copies:.0%} copies"
            peer = self.seconds[_name("spark", 0, copies)]
            rows.append((f"Spark's `dropDuplicatesWithinWatermark`, no keys at first, {of}", speed(self.records, peer)))
            for kind in ("sqlite", "postgres"):
                for keys in self.keys:
                    name = _name(kind, keys, copies)
                    mine = self.seconds[name]
                    cpu = median(self.cpu_seconds[name]) / self.records * 1e6
                    measured = [
                        speed(self.records, mine),
                        f"{times(ratios(mine, peer))} × Spark",
                        f"{cpu:.1f} CPU s per million",
                        f"slowest batch {max(self.stalls[name]):.1f} × the median",
                    ]
                    rows.append((f"landonce, {kind}, {_short(keys)} keys, {of}", "; ".join(measured)))
        for kind in ("sqlite", "postgres"):
            for keys in self.keys:
                name = _name(kind, keys)
                measured = [
                    f"{self.memory_mb[name]:,.0f} MB",
                    f"keys mapped: {self.mapped_mb[name]:,.0f} MB",
                    f"on disk: {self.bytes_per_key[name]:.0f} bytes per key",
                ]
                rows.append(
                    (f"peak memory of driver, JVM and workers, {kind}, {_short(keys)} keys", "; ".join(measured))
                )
            for copies in _COPIES:
                few, many = (self.seconds[_name(kind, keys, copies)] for keys in (self.keys[0], self.keys[-1]))
                what = (
                    f"time at {_short(self.keys[-1])} keys against {_short(self.keys[0])}, {kind}, {copies:.0%} copies"
                )
                rows.append((what, times(ratios(few, many))))
        return Section("Kafka → deduplication → ClickHouse", _BEFORE, tuple(rows), _AFTER)


def _name(kind: str, keys: int, copies: float | None = None) -> str:
    return f"{kind}_{keys}" + (f"_{copies * 100:.0f}" if copies is not None else "")


def _short(keys: int) -> str:
    return f"{keys / 1e6:g}M"


def measure(
    folder: Path, records: int, repetitions: int, warm_ups: int, console: Console, *, keys: Sequence[int]
) -> Figures:
    """All shares of copies, both kinds of stores, all numbers of keys, and Spark's operator, in rounds."""
    figures = Figures(records, tuple(keys))
    folder.chmod(0o711)  # PostgreSQL does not run as root, and enters it
    with (
        LocalKafka(folder / "kafka") as kafka,
        LocalClickHouse(folder / "clickhouse") as clickhouse,
        LocalPostgres(folder / "postgres") as postgres,
    ):
        console.print(f"Deduplication: producing {len(_COPIES)} topics of {records:,} records")
        topics = {each: make_topic_with_copies(kafka.bootstrap_servers, records, each) for each in _COPIES}
        session = spark_operator.open_session(os.cpu_count() or 1)
        servers = {kafka.pid, clickhouse.pid, postgres.pid}
        competitors: dict[str, Land] = {}

        def landonce(stores: Stores, template: str, copies: float) -> Land:
            topic, unique = topics[copies]

            def land(table: str) -> float:
                stores.copy(template, table)
                config = ours.config_for(
                    kafka.bootstrap_servers, topic, clickhouse.url, table, stores.section(table), folder
                )
                with peak_memory(servers, ".keys") as peak:
                    landed = ours.land(session, config, unique)
                clickhouse.ask(f"DROP TABLE {table} SYNC", timeout=60)
                stores.drop(table)
                _note(figures, template, f"{template}_{copies * 100:.0f}", landed, peak)
                return landed.seconds

            return land

        def spark(copies: float) -> Land:
            def land(table: str) -> float:
                with peak_memory(servers):  # its cost is everybody's
                    return spark_operator.land(session, kafka.bootstrap_servers, *topics[copies], folder / table)

            return land

        for kind, stores in {"sqlite": SqliteStores(folder), "postgres": PostgresStores(postgres)}.items():
            for count in figures.keys:
                template = _name(kind, count)
                config = ours.config_for(
                    kafka.bootstrap_servers, topics[0.0][0], clickhouse.url, template, stores.section(template), folder
                )
                figures.bytes_per_key[template] = _filled(session, config, stores, template, count, console)
                for copies in _COPIES:
                    competitors[_name(kind, count, copies)] = landonce(stores, template, copies)
        competitors.update({_name("spark", 0, copies): spark(copies) for copies in _COPIES})
        figures.seconds = measure_rounds(competitors, repetitions, warm_ups, records, console)
        session.stop()
    for noted in (figures.stalls, figures.cpu_seconds):
        for name, values in noted.items():
            noted[name] = values[warm_ups:]
    return figures


def _filled(session: SparkSession, config: Pipeline, stores: Stores, name: str, keys: int, console: Console) -> float:
    """Fills a store, and gives its bytes per key."""
    began = time.monotonic()
    with ours.opened_run(session, config) as both:
        fill(ours.recipe_of(both), keys, int(time.time()))
    console.print(f"{name}: filled in {time.monotonic() - began:.0f} s")
    return stores.size(name) / keys


def _note(figures: Figures, template: str, name: str, landed: ours.Landed, peak: Peak) -> None:
    figures.stalls.setdefault(name, []).append(landed.stall)
    figures.cpu_seconds.setdefault(name, []).append(landed.cpu_seconds)
    figures.memory_mb[template] = max(peak.megabytes, figures.memory_mb.get(template, 0.0))
    figures.mapped_mb[template] = max(peak.mapped, figures.mapped_mb.get(template, 0.0))


_BEFORE = """\
landonce with `dedup: {key: [id]}` against Spark's own `dropDuplicatesWithinWatermark` in the same Spark session: the same
topics, in which 0, 10 and 50 % of the records are copies of earlier ones, batches of 250,000 records. landonce writes keys,
payloads and batches to its store, then to ClickHouse; its store holds one or 20 million keys at the start, and every run
begins with a copy of it. Spark writes Parquet files, has its state in RocksDB with a changelog, as many shuffle partitions as
there are cores, and no keys at the start. The clock starts with a running Spark session, and stops when every unique event
is in the table, or when the query has ended.
"""
_AFTER = """\
The aims: 150,000 events/s at one million keys on two cores, less than 1.5 times the time at 20 million, 1.5 times as fast as
Spark's operator, and no batch that takes more than 5 times the median. A key takes 36 bytes, and what merges rewrite is
free space in the file until it is used again.
"""
