"""Kafka → ClickHouse: landonce against ClickHouse's own Kafka engine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from bench.clickhouse import kafka_engine, ours
from bench.clickhouse.recovery import seconds_to_recover
from bench.measure import Land, interval, measure_rounds, peak_memory, ratios
from bench.report import Section, speed, times
from bench.topic import fill
from landonce.config.model import Spark
from landonce.engine.spark.session import open_session
from landonce.local import LocalClickHouse, LocalKafka
from landonce.sinks.clickhouse.config import ClickHouse


@dataclass(frozen=True)
class Figures:
    """Seconds per round, for the same records into a new table each time."""

    records: int
    seconds: dict[str, list[float]]
    peak_memory_mb: float
    recovery_seconds: float
    deadline_seconds: float

    @property
    def ratio(self) -> list[float]:
        """landonce against the Kafka engine: above 1 landonce is faster."""
        return ratios(self.seconds["landonce"], self.seconds["kafka_engine"])

    @property
    def tax(self) -> list[float]:
        """What exactly-once costs against the same pipeline without it, as a share of the time."""
        return [each - 1 for each in ratios(self.seconds["plain"], self.seconds["landonce"])]

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": median(self.ratio), "tax": median(self.tax), "tax_interval": interval(self.tax)}

    def section(self) -> Section:
        deadline = f"kill -9 to the first new commit (deadline {self.deadline_seconds:.0f} s)"
        low, high = interval(self.tax)
        rows = (
            ("landonce, exactly once", speed(self.records, self.seconds["landonce"])),
            ("ClickHouse's Kafka engine, at least once", speed(self.records, self.seconds["kafka_engine"])),
            ("ratio", times(self.ratio)),
            ("landonce without ledger, token, deadline and probe", speed(self.records, self.seconds["plain"])),
            (
                f"what exactly-once costs, from {len(self.tax)} pairs",
                f"{median(self.tax):+.1%}   (95 % interval of the median: {low:+.1%} to {high:+.1%})",
            ),
            ("peak memory of driver, JVM and workers", f"{self.peak_memory_mb:,.0f} MB"),
            (deadline, f"{self.recovery_seconds:.1f} s"),
        )
        return Section("Kafka → ClickHouse", _BEFORE, rows, _AFTER)


def measure(folder: Path, records: int, repetitions: int, warm_ups: int, console: Console) -> Figures:
    """landonce, landonce without its guarantee, and the Kafka engine, into tables of the same definition."""
    with LocalKafka(folder / "kafka") as kafka, LocalClickHouse(folder / "clickhouse") as clickhouse:
        console.print(f"Kafka → ClickHouse: producing {records:,} records")
        fill(kafka.bootstrap_servers, records)
        session = open_session(
            "bench", Spark(), expressions=False, work="landonce.engine.task,landonce.sinks.deduplicating"
        )
        ours.make_template(ours.config_for(clickhouse, kafka.bootstrap_servers, TEMPLATE, folder))
        peaks = [0.0]

        def landonce(table: str, *, exactly_once: bool = True) -> float:
            config = ours.config_for(clickhouse, kafka.bootstrap_servers, table, folder)
            with peak_memory({kafka.pid, clickhouse.pid}) as peak:
                took = ours.land(session, config, records, exactly_once=exactly_once)
            if exactly_once:
                peaks.append(peak.megabytes)
            return took

        def kafka_engine_(table: str) -> float:
            with peak_memory({kafka.pid, clickhouse.pid}):  # its cost is everybody's
                return kafka_engine.land(clickhouse, kafka.bootstrap_servers, table, records, consumers=2)

        def in_new_table(land: Land) -> Land:
            def made(table: str) -> float:
                clickhouse.ask(f"CREATE TABLE {table} AS {TEMPLATE}")
                took = land(table)
                clickhouse.ask(f"DROP TABLE {table} SYNC", timeout=60)
                return took

            return made

        competitors: dict[str, Land] = {
            "landonce": in_new_table(landonce),
            "plain": in_new_table(partial(landonce, exactly_once=False)),
            "kafka_engine": in_new_table(kafka_engine_),
        }
        seconds = measure_rounds(competitors, repetitions, warm_ups, records, console)
        session.stop()
        file = folder / "bench.yaml"
        file.write_text(ours.pipeline_text(clickhouse, kafka.bootstrap_servers, "recovery"))
        recovery = seconds_to_recover(file, folder / "recovery.ledger", clickhouse.url)
        sink = ours.config_for(clickhouse, kafka.bootstrap_servers, "recovery", folder).sink
    deadline = sink.deadline if isinstance(sink, ClickHouse) else 0.0
    return Figures(records, seconds, max(peaks), recovery, deadline)


TEMPLATE = "template"
"""The table whose definition all others have: as landonce creates it."""
_BEFORE = """\
landonce against ClickHouse's own Kafka engine: the same server (the engine in PyPI's `chdb`), the same topic, a new
table of the same definition each time. The clock starts when the table exists and the job is started: for landonce with
a running Spark session, for the Kafka engine by creating the table that reads the topic. It stops when the table holds
every row.
"""
_AFTER = """\
The aim is a ratio of at least 1.2 and a cost of at most 5 %. If the interval of the cost holds zero, the cost cannot be
distinguished from noise.

The Kafka engine runs with two consumers, one thread each, blocks of 200,000 rows, and a flush every half second. It is
at least once: after a crash it repeats records. Recovery time is the start of Python and of a JVM, and the rest of the
pending plan's deadline.
"""
