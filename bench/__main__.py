"""`python -m bench`: see the package's docstring."""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path

from rich.console import Console

from bench import ours, peer
from bench.memory import peak_memory
from bench.recovery import seconds_to_recover
from bench.report import Figures, document, save, show
from bench.topic import fill
from landonce.config.model import Spark
from landonce.local import LocalClickHouse, LocalKafka
from landonce.run.session import open_session

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Kafka to ClickHouse, measured side by side.")
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks.md too")
    told = parser.parse_args()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="landonce-bench-") as name:
        figures = measure(Path(name), told.records, told.repetitions, console)
    show(figures, console)
    save(figures, ROOT / "build" / "bench.json")
    if told.docs:
        document(figures, ROOT / "docs" / "benchmarks.md")


def measure(folder: Path, records: int, repetitions: int, console: Console) -> Figures:
    """One warm-up of each, then all three in turn, as often as asked."""
    with LocalKafka(folder / "kafka") as kafka, LocalClickHouse(folder / "clickhouse") as clickhouse:
        console.print(f"producing {records:,} records")
        fill(kafka.bootstrap_servers, records)
        session = open_session("bench", Spark(), expressions=False)
        seconds: dict[str, list[float]] = {"landonce": [], "plain": [], "kafka_engine": []}
        memory = 0.0
        for repetition in range(repetitions + 1):
            for which in seconds:
                table = f"{which}_{repetition}"
                with peak_memory({kafka.pid, clickhouse.pid}) as peak:
                    if which == "kafka_engine":
                        took = peer.land(clickhouse, kafka.bootstrap_servers, table, records, consumers=2)
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
        deadline = ours.config_for(clickhouse, kafka.bootstrap_servers, "recovery", folder).sink.clickhouse.deadline
    return Figures(records, **seconds, peak_memory_mb=memory, recovery_seconds=recovery, deadline_seconds=deadline)


if __name__ == "__main__":
    main()
