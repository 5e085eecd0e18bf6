"""The figures: a table for people, `build/bench.json` for machines, `docs/benchmarks.md` when asked."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table


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

    def rows_per_second(self, which: str) -> float:
        return self.records / median(getattr(self, which))

    @property
    def ratio(self) -> float:
        """landonce against the Kafka engine: above 1 landonce is faster."""
        return self.rows_per_second("landonce") / self.rows_per_second("kafka_engine")

    @property
    def tax(self) -> float:
        """What exactly-once costs against the same pipeline without it, as a share of the time."""
        return median(self.landonce) / median(self.plain) - 1


def rows(figures: Figures) -> list[tuple[str, str]]:
    def speed(which: str) -> str:
        each = ", ".join(f"{figures.records / seconds:,.0f}" for seconds in getattr(figures, which))
        return f"{figures.rows_per_second(which):,.0f} rows/s   ({each})"

    return [
        ("landonce, exactly once", speed("landonce")),
        ("ClickHouse's Kafka engine, at least once", speed("kafka_engine")),
        ("ratio", f"{figures.ratio:.2f}"),
        ("landonce without ledger, token, deadline and probe", speed("plain")),
        ("what exactly-once costs", f"{figures.tax:+.1%}"),
        ("peak memory of driver, JVM and workers", f"{figures.peak_memory_mb:,.0f} MB"),
        (
            f"kill -9 to the first new commit (deadline {figures.deadline_seconds:.0f} s)",
            f"{figures.recovery_seconds:.1f} s",
        ),
    ]


def show(figures: Figures, console: Console) -> None:
    table = Table(title=f"{figures.records:,} records, {len(figures.landonce)} repetitions, median (each)")
    table.add_column("what")
    table.add_column("measured")
    for what, measured in rows(figures):
        table.add_row(what, measured)
    console.print(table)


def save(figures: Figures, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    told = asdict(figures) | {
        "ratio": figures.ratio,
        "tax": figures.tax,
        "machine": machine(),
        "date": str(date.today()),
    }
    path.write_text(json.dumps(told, indent=2) + "\n")


def machine() -> str:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, {platform.system()} {platform.release()}"


def document(figures: Figures, path: Path) -> None:
    lines = "\n".join(f"| {what} | {measured} |" for what, measured in rows(figures))
    path.write_text(_PAGE.format(lines=lines, records=figures.records, machine=machine(), date=date.today()))


_PAGE = """\
# Benchmarks

Kafka → ClickHouse: landonce against ClickHouse's own Kafka engine, in the same server, on the same topic, in the same run,
warm, into a new table each time. The records are JSON objects of about 125 bytes in 8 partitions. Everything, servers
included, shares the machine. Timings are noisy; the ratios are of things measured side by side.

| what | measured |
|---|---|
{lines}

{records:,} records; {machine}; {date}; written by `.venv/bin/python -m bench --records {records} --docs`. `make bench` takes 3
million records, prints the table and writes `build/bench.json`.

The aim is a ratio of at least 1 and a cost of at most 5 %. Repetitions differ by more than exactly-once costs here, so a small
or negative cost means only that it could not be told from noise.

The Kafka engine runs with two consumers, one thread each, blocks of 200,000 rows, and a flush every half second. It is at
least once: after a crash it repeats. Recovery time is a new Python, a new JVM and the rest of the pending plan's deadline.
"""
