"""Kafka → Iceberg: landonce against Spark's own streaming sink and against Iceberg's Kafka Connect sink."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from bench.iceberg import ours, spark_stream
from bench.iceberg.connect import ConnectPeer
from bench.iceberg.tables import Lake
from bench.memory import peak_memory
from bench.report import Section, speed
from bench.topic import fill
from landonce.local import LocalKafka, LocalRestCatalog

_TABLES = (1, 10, 200)


@dataclass(frozen=True)
class Figures:
    """Seconds per repetition, for the same records into a new table each time."""

    records: int
    landonce: list[float]
    spark: list[float]
    connect: list[float]
    peak_memory_mb: float
    commit_ms: dict[str, float]
    """The median commit of one batch, by the number of tables that it goes to."""
    flat: list[float]
    """Rows per second of every batch of one million, in one long run."""

    def ratio(self, peer: list[float]) -> float:
        return median(peer) / median(self.landonce)

    def told(self) -> dict[str, Any]:
        return asdict(self) | {"ratio_spark": self.ratio(self.spark), "ratio_connect": self.ratio(self.connect)}

    def section(self) -> Section:
        latency = ", ".join(f"{count} tables {ms:,.0f} ms" for count, ms in self.commit_ms.items())
        third = max(1, len(self.flat) // 3)
        first, last = median(self.flat[:third]), median(self.flat[-third:])
        rows = (
            ("landonce, exactly once", speed(self.records, self.landonce)),
            ("Spark's `writeStream … toTable`", speed(self.records, self.spark)),
            ("ratio", f"{self.ratio(self.spark):.2f}"),
            ("Iceberg's Kafka Connect sink, two tasks", speed(self.records, self.connect)),
            ("ratio", f"{self.ratio(self.connect):.2f}"),
            ("peak memory of driver, JVM and workers", f"{self.peak_memory_mb:,.0f} MB"),
            ("commit of one batch", latency),
            (
                f"{len(self.flat)} million records in one run: the first third of the batches, the last third",
                f"{first:,.0f} rows/s, {last:,.0f} rows/s ({last / first:.2f})",
            ),
        )
        return Section("Kafka → Iceberg", _BEFORE, rows, _AFTER)


def measure(folder: Path, records: int, repetitions: int, console: Console, *, flat: int = 20_000_000) -> Figures:
    """One warm-up of each, then all three in turn, as often as asked; then commits, and one long run."""
    with LocalKafka(folder / "kafka") as kafka, LocalRestCatalog(folder / "rest") as rest:
        lake = Lake(rest)
        console.print(f"Kafka → Iceberg: producing {records:,} records")
        fill(kafka.bootstrap_servers, records)
        session = spark_stream.open_session(lake)
        seconds: dict[str, list[float]] = {"landonce": [], "spark": [], "connect": []}
        memory = 0.0
        with ConnectPeer(folder / "connect", kafka.bootstrap_servers, lake) as connect:
            for repetition in range(repetitions + 1):
                for which in seconds:
                    table = f"bench.{which}_{repetition}"
                    with peak_memory({kafka.pid, rest.pid, connect.pid}) as peak:
                        if which == "landonce":
                            took = ours.land(session, lake, kafka.bootstrap_servers, table, records, folder)
                        elif which == "spark":
                            took = spark_stream.land(session, lake, kafka.bootstrap_servers, table, records, folder)
                        else:
                            took = connect.land(table, records)
                    if which == "landonce":
                        memory = max(memory, peak.megabytes)
                    warm = "" if repetition else "   (warm-up)"
                    console.print(f"{which:14} {records / took:10,.0f} rows/s{warm}")
                    if repetition:
                        seconds[which].append(took)
        commits = {
            str(count): ours.commit_ms(session, lake, kafka.bootstrap_servers, count, folder) for count in _TABLES
        }
        console.print(f"commits, by tables: {commits}; producing up to {flat:,} records for one long run")
        fill(kafka.bootstrap_servers, max(0, flat - records), begin=records, make=False)
        rates = ours.batch_rates(session, lake, kafka.bootstrap_servers, "bench.flat", folder)
        session.stop()
    return Figures(records, **seconds, peak_memory_mb=memory, commit_ms=commits, flat=rates)


_BEFORE = """\
landonce against Spark's own streaming sink (exactly once as long as its checkpoint lives) and against Iceberg's Kafka Connect sink
with two tasks (standalone), all on the same topic, into new tables with the same columns in the same REST catalog, in the same
run, warm.
"""
_AFTER = """\
The aim is a ratio of at least 1.3 against each. Spark reads with `kafka.max.poll.records` and fetch sizes raised and one million
records per trigger, in the same session that landonce's tasks run in; the Connect worker commits every second, and the time counts
until every row is visible.
"""
