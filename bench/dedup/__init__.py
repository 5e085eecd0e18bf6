"""Content deduplication: landonce with SQLite and PostgreSQL against Spark's own operator."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console

from bench.dedup import ours, spark_operator
from bench.dedup.stores import PostgresStores, SqliteStores, Stores, fill
from bench.measure import Land, measure_rounds, peak_memory, ratios
from bench.report import Section, speed, times
from bench.topic import make_topic_with_copies
from landonce.local import LocalClickHouse, LocalKafka
from landonce.local.postgres import LocalPostgres
from landonce.sinks.pipeline_file import Pipeline

_COPIES = (0.0, 0.1, 0.5)
_FEW = _COPIES[1]
"""The share of copies in runs of which the time does not count."""
_BATCHES = 40
"""Of a long run."""


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
    long: int = 0
    """Records of a long run."""
    batches: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of each batch of the long run, by store."""
    merged: dict[str, int] = field(default_factory=dict)
    """Keys in runs that were merged in the long run, by store."""

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
            rows.append(self._long_run(kind))
        return Section("Kafka → deduplication → ClickHouse", _BEFORE, tuple(rows), _AFTER)

    def _long_run(self, kind: str) -> tuple[str, str]:
        batches = self.batches[kind]
        what = f"one run of {_short(self.long)} records from {_short(self.keys[-1])} keys, {kind}, {_FEW:.0%} copies"
        return what, (
            f"{len(batches)} batches; slowest batch {max(batches) / median(batches):.1f} × the median; "
            f"{self.merged[kind]:,} keys merged"
        )


def _name(kind: str, keys: int, copies: float | None = None) -> str:
    return f"{kind}_{keys}" + (f"_{copies * 100:.0f}" if copies is not None else "")


def _short(keys: int) -> str:
    return f"{keys / 1e6:g}M"


def measure(
    folder: Path,
    records: int,
    repetitions: int,
    warm_ups: int,
    console: Console,
    *,
    keys: Sequence[int],
    long: int,
    save: Callable[[Figures], None],
) -> Figures:
    """A run of each store for its memory; then all shares of copies, both kinds of stores, all numbers of keys, and Spark's operator, in
    rounds, which `save` gets; then one long run into each kind of store."""
    figures = Figures(records, tuple(keys), long=long)
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

        def run(
            stores: Stores, template: str, topic: tuple[str, int], table: str, batch: int = ours.BATCH
        ) -> ours.Landed:
            name, unique = topic
            stores.copy(template, table)
            os.sync()  # no run writes what another one, or the copy, left to be written
            config = ours.config_for(
                kafka.bootstrap_servers, name, clickhouse.url, table, stores.section(table), folder, batch
            )
            landed = ours.land(session, config, unique, servers)
            clickhouse.ask(f"DROP TABLE {table} SYNC", timeout=60)
            stores.drop(table)
            return landed

        def landonce(stores: Stores, template: str, copies: float) -> Land:
            def land(table: str) -> float:
                with peak_memory(servers):  # its cost is everybody's
                    landed = run(stores, template, topics[copies], table)
                name = f"{template}_{copies * 100:.0f}"
                figures.stalls.setdefault(name, []).append(landed.stall)
                figures.cpu_seconds.setdefault(name, []).append(landed.cpu_seconds)
                return landed.seconds

            return land

        def spark(copies: float) -> Land:
            def land(table: str) -> float:
                os.sync()
                with peak_memory(servers):  # its cost is everybody's
                    return spark_operator.land(session, kafka.bootstrap_servers, *topics[copies], folder / table)

            return land

        kinds: dict[str, Stores] = {"sqlite": SqliteStores(folder), "postgres": PostgresStores(postgres)}
        for kind, stores in kinds.items():
            for count in figures.keys:
                template = _name(kind, count)
                config = ours.config_for(
                    kafka.bootstrap_servers, topics[0.0][0], clickhouse.url, template, stores.section(template), folder
                )
                figures.bytes_per_key[template] = _filled(session, config, stores, template, count, console)
                with peak_memory(servers, ".keys") as peak:  # before Spark's operator, which would count, too
                    run(stores, template, topics[_FEW], f"{template}_alone")
                figures.memory_mb[template], figures.mapped_mb[template] = peak.megabytes, peak.mapped
                for copies in _COPIES:
                    competitors[_name(kind, count, copies)] = landonce(stores, template, copies)
        competitors.update({_name("spark", 0, copies): spark(copies) for copies in _COPIES})
        figures.seconds = measure_rounds(competitors, repetitions, warm_ups, records, console)
        for noted in (figures.stalls, figures.cpu_seconds):
            for name, values in noted.items():
                noted[name] = values[warm_ups:]
        save(figures)
        console.print(f"producing {long:,} records for one long run into each kind of store")
        topic = make_topic_with_copies(kafka.bootstrap_servers, long, _FEW, "long")
        for kind, stores in kinds.items():
            batch = min(ours.BATCH, max(2, long // _BATCHES))
            landed = run(stores, _name(kind, figures.keys[-1]), topic, f"{kind}_long", batch)
            figures.batches[kind], figures.merged[kind] = landed.batches, landed.merged
        session.stop()
    return figures


def _filled(session: SparkSession, config: Pipeline, stores: Stores, name: str, keys: int, console: Console) -> float:
    """Fills a store, and gives its bytes per key."""
    began = time.monotonic()
    with ours.opened_run(session, config) as both:
        fill(ours.recipe_of(both), keys, int(time.time()))
    console.print(f"{name}: filled in {time.monotonic() - began:.0f} s")
    return stores.size(name) / keys


_BEFORE = """\
landonce with `dedup: {key: [id]}` against Spark's own `dropDuplicatesWithinWatermark` in the same Spark session: the same
topics, in which 0, 10 and 50 % of the records are copies of earlier ones, batches of 250,000 records. landonce writes keys,
payloads and batches to its store, then to ClickHouse; its store holds one or 20 million keys at the start, and every run
begins with a copy of it that is on disk. Spark writes Parquet files, has its state in RocksDB with a changelog, as many shuffle partitions as
there are cores, and no keys at the start. With a running Spark session, the clock starts before the pipeline is opened, or the
query is made, and stops when every unique event is in the table, or when the query has ended. Memory is that of one run of
each store before Spark's operator has run in the session, whose JVM may use 3 GB. The long runs have batches of 250,000
records, too.
"""
_AFTER = """\
The aims: 150,000 events/s at one million keys on two cores, less than 1.5 times the time at 20 million, 1.5 times as fast as
Spark's operator, and no batch that takes more than 5 times the median. A key takes 36 bytes, and what merges rewrite is
free space in the file until it is used again.
"""
