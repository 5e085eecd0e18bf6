"""`python -m bench`: see the package's docstring."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from bench import clickhouse, dedup, formats, iceberg, sql
from bench.iceberg import changes
from bench.report import document, save

ROOT = Path(__file__).parents[1]
Figures = changes.Figures | clickhouse.Figures | dedup.Figures | formats.Figures | iceberg.Figures | sql.Figures
_ALL: dict[str, Callable[..., Figures]] = {
    "changes": changes.measure,
    "clickhouse": clickhouse.measure,
    "dedup": dedup.measure,
    "formats": formats.measure,
    "iceberg": iceberg.measure,
    "sql": sql.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Kafka to a sink, measured side by side.")
    parser.add_argument("sink", nargs="?", choices=[*_ALL], help="measure only this one")
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--repetitions", type=int, default=10, help="rounds that count")
    parser.add_argument("--warm-ups", type=int, default=2, help="rounds before those, which do not count")
    parser.add_argument("--flat", type=int, default=20_000_000, help="records of the one long run into Iceberg")
    parser.add_argument(
        "--keys", type=int, nargs="+", default=[1_000_000, 20_000_000], help="keys in the store of dedup"
    )
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the Iceberg table that changes")
    parser.add_argument("--long", type=int, default=10_000_000, help="records of the long runs of dedup, in 40 batches")
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks.md too")
    options = parser.parse_args()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    console = Console()

    def keep(name: str, figures: Figures) -> None:
        save(name, figures.as_json(), ROOT / "build" / "bench.json")

    for name in [options.sink] if options.sink else _ALL:
        with tempfile.TemporaryDirectory(prefix="landonce-bench-") as folder:
            more = {
                "changes": {"rows": options.rows},
                "dedup": {"keys": options.keys, "long": options.long, "save": partial(keep, "dedup")},
                "iceberg": {"flat": options.flat},
            }.get(name, {})
            figures = _ALL[name](Path(folder), options.records, options.repetitions, options.warm_ups, console, **more)
        figures.section().show(console)
        save(name, figures.as_json(), ROOT / "build" / "bench.json")
        if options.docs:
            command = " ".join([".venv/bin/python -m bench", *sys.argv[1:]])
            document(figures.section(), command, ROOT / "docs" / "benchmarks.md")


if __name__ == "__main__":
    main()
