"""Kafka → Iceberg: landonce against Spark's own streaming sink and against Iceberg's Kafka Connect sink."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from iceberg_servers import LocalRestCatalog
from rich.console import Console

from bench.iceberg import ours, spark_stream
from bench.iceberg.connect import ConnectPeer
from bench.iceberg.tables import Lake, Written
from bench.measure import Land, measure_rounds, peak_memory, ratios
from bench.report import Section, speed, times
from bench.topic import fill
from landonce.local import LocalKafka

_TABLES = (1, 10, 200)


@dataclass(frozen=True)
class Figures:
    """Seconds per round, for the same records into a new table each time."""

    records: int
    seconds: dict[str, list[float]]
    written: dict[str, Written]
    """What the last table of each competitor consists of."""
    peak_memory_mb: float
    commit_ms: dict[str, float]
    """The median commit of one batch, by the number of tables that it goes to."""
    flat: list[float]
    """Rows per second of every batch of one million, in one long run."""

    def ratio(self, ours: str, peer: str) -> list[float]:
        return ratios(self.seconds[ours], self.seconds[peer])

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "ratio_spark": median(self.ratio("landonce", "spark")),
            "ratio_connect": median(self.ratio("landonce_often", "connect")),
        }

    def section(self) -> Section:
        latency = ", ".join(f"{count} tables {ms:,.0f} ms" for count, ms in self.commit_ms.items())
        third = max(1, len(self.flat) // 3)
        first, last = median(self.flat[:third]), median(self.flat[-third:])
        rows = (
            self._row("landonce, exactly once, batches of one million records", "landonce"),
            self._row("Spark's `writeStream … toTable`, the same batches", "spark"),
            ("ratio", times(self.ratio("landonce", "spark"))),
            self._row("landonce, with as many commits as the Connect sink makes", "landonce_often"),
            self._row("Iceberg's Kafka Connect sink, two tasks, a commit every second", "connect"),
            ("ratio", times(self.ratio("landonce_often", "connect"))),
            ("peak memory of driver, JVM and workers", f"{self.peak_memory_mb:,.0f} MB"),
            ("commit of one batch", latency),
            (
                f"{len(self.flat)} million records in one run: the first third of the batches, the last third",
                f"{first:,.0f} rows/s, {last:,.0f} rows/s ({last / first:.2f})",
            ),
        )
        return Section("Kafka → Iceberg", _BEFORE, rows, _AFTER)

    def _row(self, what: str, which: str) -> tuple[str, str]:
        return what, f"{speed(self.records, self.seconds[which])}; {self.written[which]}"


def measure(
    folder: Path, records: int, repetitions: int, warm_ups: int, console: Console, *, flat: int = 20_000_000
) -> Figures:
    """All competitors in rounds; then commits, and one long run."""
    with LocalKafka(folder / "kafka") as kafka, LocalRestCatalog(folder / "rest") as rest:
        lake = Lake(rest)
        console.print(f"Kafka → Iceberg: producing {records:,} records")
        fill(kafka.bootstrap_servers, records)
        session = spark_stream.open_session(lake)
        peaks, written = [0.0], dict[str, Written]()
        with ConnectPeer(folder / "connect", kafka.bootstrap_servers, lake) as connect:

            def landonce(table: str, *, often: bool = False) -> float:
                commits = written["connect"].commits if often and "connect" in written else 0
                rows = -(-records // commits) if commits else 1_000_000
                with peak_memory({kafka.pid, rest.pid, connect.pid}) as peak:
                    took = ours.land(session, lake, kafka.bootstrap_servers, table, records, rows, folder)
                peaks.append(peak.megabytes)
                return took

            def spark(table: str) -> float:
                with peak_memory({kafka.pid, rest.pid, connect.pid}):  # its cost is everybody's
                    return spark_stream.land(session, lake, kafka.bootstrap_servers, table, records, folder)

            def connect_(table: str) -> float:
                with peak_memory({kafka.pid, rest.pid, connect.pid}):
                    return connect.land(table, records)

            def in_new_table(name: str, land: Land) -> Land:
                def made(table: str) -> float:
                    lake.make(f"bench.{table}")
                    took = land(f"bench.{table}")
                    written[name] = lake.written(f"bench.{table}")
                    return took

                return made

            competitors: dict[str, Land] = {
                "landonce": landonce,
                "spark": spark,
                "connect": connect_,
                "landonce_often": partial(landonce, often=True),
            }
            competitors = {name: in_new_table(name, land) for name, land in competitors.items()}
            seconds = measure_rounds(competitors, repetitions, warm_ups, records, console)
        commits = {
            str(count): ours.commit_ms(session, lake, kafka.bootstrap_servers, count, folder) for count in _TABLES
        }
        console.print(f"commits, by tables: {commits}; producing up to {flat:,} records for one long run")
        fill(kafka.bootstrap_servers, max(0, flat - records), begin=records, make=False)
        rates = ours.batch_rates(session, lake, kafka.bootstrap_servers, "bench.flat", folder)
        session.stop()
    return Figures(records, seconds, written, max(peaks), commits, rates)


_BEFORE = """\
landonce against Spark's own streaming sink (exactly once as long as its checkpoint exists) and Iceberg's Kafka Connect
sink (standalone, two tasks): the same topic, new tables with the same columns and compression (zstd, level 3), the same
REST catalog. The clock starts when the table exists and the job is started, with a running Spark session or Connect
worker. It stops when every row is visible.
"""
_AFTER = """\
The aims are 1.5 times Spark's sink and 2 times the Connect sink. Spark reads with `kafka.max.poll.records` and fetch sizes raised and
one million records per trigger, in the same session that landonce's tasks run in. The Connect sink writes the records'
own fields only; landonce and Spark also write the coordinates. A landonce table without a compression level of its own
is written with zstd's level 1.
"""
