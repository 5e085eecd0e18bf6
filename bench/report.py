"""The figures: a table for people, `build/bench.json` for machines, `docs/benchmarks.md` when asked."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Section:
    """One comparison, for people."""

    title: str
    before: str
    rows: tuple[tuple[str, str], ...]
    after: str

    def show(self, console: Console) -> None:
        table = Table(title=f"{self.title}: median (range)")
        table.add_column("what")
        table.add_column("measured")
        for what, measured in self.rows:
            table.add_row(what, measured)
        console.print(table)

    def page(self, command: str) -> str:
        lines = "\n".join(f"| {what} | {measured} |" for what, measured in self.rows)
        return (
            f"## {self.title}\n\n{self.before}\n| what | measured |\n|---|---|\n{lines}\n\n"
            f"{machine()}; {date.today()}; written by `{command}`.\n\n{self.after}"
        )


def speed(records: int, seconds: Sequence[float]) -> str:
    """The median, and the range of the repetitions."""
    slowest, fastest = records / max(seconds), records / min(seconds)
    return f"{records / median(seconds):,.0f} rows/s   ({slowest:,.0f} to {fastest:,.0f}, {len(seconds)} runs)"


def times(ratios: Sequence[float]) -> str:
    """The median of ratios, and their range."""
    return f"{median(ratios):.2f}   ({min(ratios):.2f} to {max(ratios):.2f})"


def save(name: str, figures: dict[str, Any], path: Path) -> None:
    """Beside what other comparisons measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else {}
    known[name] = figures | {"machine": machine(), "date": str(date.today())}
    path.write_text(json.dumps(known, indent=2) + "\n")


def machine() -> str:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, {platform.system()} {platform.release()}"


def document(section: Section, command: str, path: Path) -> None:
    """Replaces the section, and leaves the others as they are."""
    _, *others = path.read_text().split("\n## ") if path.exists() else [_HEAD]
    kept = {each.split("\n", 1)[0]: each.strip() for each in others}
    kept[section.title] = section.page(command).removeprefix("## ").strip()
    path.write_text(_HEAD + "".join(f"\n## {kept[title]}\n" for title in sorted(kept)))


_HEAD = """\
# Benchmarks

How fast landonce is, compared with other ways to land the same records. `make bench` runs all comparisons on your
machine, prints the tables and writes `build/bench.json`.

**How it is measured.** The records are JSON objects of about 125 bytes in 8 partitions. In each round every competitor
lands the whole topic once, in shuffled order; the first rounds only warm up. A ratio is the median of the rounds'
ratios, with their range. All competitors and servers share one machine, and timings are noisy: compare the ratios, not
the rows per second.
"""
