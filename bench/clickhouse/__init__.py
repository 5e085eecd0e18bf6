"""Kafka → ClickHouse: landonce against ClickHouse's own Kafka engine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from bench.clickhouse import kafka_engine, ours
from bench.clickhouse.recovery import seconds_to_recover
from bench.memory import peak_memory
from bench.report import Section, speed
from bench.topic import fill
from landonce.config.model import Spark
from landonce.local import LocalClickHouse, LocalKafka
from landonce.run.session import open_session


@dataclass(frozen=True)
class Figures:
    """Seconds per repetition, for the same records into a new table each time."""

    records: int
    landonce: list[float]
    plain: list[float]
    kafka_engine: list[float]
    peak_memory_mb: float
    recovery_seconds: float
    deadline_seconds: float

    @property
    def ratio(self) -> float:
        """landonce against the Kafka engine: above 1 landonce is faster."""
        return median(self.kafka_engine) / median(self.landonce)

    @property
    def tax(self) -> float:
        """What exactly-once costs against the same pipeline without it, as a share of the time."""
        return median(self.landonce) / median(self.plain) - 1

    def told(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "tax": self.tax}

    def section(self) -> Section:
        deadline = f"kill -9 to the first new commit (deadline {self.deadline_seconds:.0f} s)"
        rows = (
            ("landonce, exactly once", speed(self.records, self.landonce)),
            ("ClickHouse's Kafka engine, at least once", speed(self.records, self.kafka_engine)),
            ("ratio", f"{self.ratio:.2f}"),
            ("landonce without ledger, token, deadline and probe", speed(self.records, self.plain)),
            ("what exactly-once costs", f"{self.tax:+.1%}"),
            ("peak memory of driver, JVM and workers", f"{self.peak_memory_mb:,.0f} MB"),
            (deadline, f"{self.recovery_seconds:.1f} s"),
        )
        return Section("Kafka → ClickHouse", _BEFORE, rows, _AFTER)


def measure(folder: Path, records: int, repetitions: int, console: Console) -> Figures:
    """One warm-up of each, then all three in turn, as often as asked."""
    with LocalKafka(folder / "kafka") as kafka, LocalClickHouse(folder / "clickhouse") as clickhouse:
        console.print(f"Kafka → ClickHouse: producing {records:,} records")
        fill(kafka.bootstrap_servers, records)
        session = open_session("bench", Spark(), expressions=False)
        seconds: dict[str, list[float]] = {"landonce": [], "plain": [], "kafka_engine": []}
        memory = 0.0
        for repetition in range(repetitions + 1):
            for which in seconds:
                table = f"{which}_{repetition}"
                with peak_memory({kafka.pid, clickhouse.pid}) as peak:
                    if which == "kafka_engine":
                        took = kafka_engine.land(clickhouse, kafka.bootstrap_servers, table, records, consumers=2)
                    else:
                        config = ours.config_for(clickhouse, kafka.bootstrap_servers, table, folder)
                        took = ours.land(session, config, records, exactly_once=which == "landonce")
                        clickhouse.ask(f"DROP TABLE {table} SYNC", timeout=60)
                if which == "landonce":
                    memory = max(memory, peak.megabytes)
                warm = "" if repetition else "   (warm-up)"
                console.print(f"{which:14} {records / took:10,.0f} rows/s{warm}")
                if repetition:
                    seconds[which].append(took)
        session.stop()
        file = folder / "bench.yaml"
        file.write_text(ours.pipeline_text(clickhouse, kafka.bootstrap_servers, "recovery"))
        recovery = seconds_to_recover(file, folder / "recovery.ledger", clickhouse.url)
        told = ours.config_for(clickhouse, kafka.bootstrap_servers, "recovery", folder).sink.clickhouse
    deadline = told.deadline if told is not None else 0.0
    return Figures(records, **seconds, peak_memory_mb=memory, recovery_seconds=recovery, deadline_seconds=deadline)


_BEFORE = """\
landonce against ClickHouse's own Kafka engine, in the same server, on the same topic, in the same run, warm, into a new table
each time.
"""
_AFTER = """\
The aim is a ratio of at least 1 and a cost of at most 5 %. Repetitions differ by more than exactly-once costs here, so a small
or negative cost means only that it could not be told from noise.

The Kafka engine runs with two consumers, one thread each, blocks of 200,000 rows, and a flush every half second. It is at
least once: after a crash it repeats. Recovery time is a new Python, a new JVM and the rest of the pending plan's deadline.
"""
