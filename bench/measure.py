"""Measures side by side: every competitor once per round, in an order that is shuffled for every round; and peak memory.

The first rounds warm up all competitors alike, and do not count. Competitors are compared round by round, so a machine that
is slow for a minute is slow for both.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import psutil
from rich.console import Console

Land = Callable[[str], float]
"""Lands the whole topic in a new table named after its argument, and returns the seconds."""


def measure_rounds(
    competitors: Mapping[str, Land], repetitions: int, warm_ups: int, records: int, console: Console
) -> dict[str, list[float]]:
    """The seconds of every competitor, round by round."""
    shuffle = random.Random(20261101)
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    for number in range(warm_ups + repetitions):
        for name in shuffle.sample(list(competitors), len(competitors)):
            took = competitors[name](f"{name}_{number}")
            warm = "   (warm-up)" if number < warm_ups else ""
            console.print(f"{name:16} {records / took:10,.0f} rows/s{warm}")
            if number >= warm_ups:
                seconds[name].append(took)
    return seconds


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """How many times faster ours was, in every round."""
    return [peer / own for own, peer in zip(ours, theirs, strict=True)]


def interval(values: Sequence[float], share: float = 0.95) -> tuple[float, float]:
    """The interval that holds the median with this probability, by bootstrap."""
    draw = random.Random(20261101)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(5000))
    outside = int(len(medians) * (1 - share) / 2)
    return medians[outside], medians[-1 - outside]


_EVERY = 0.2


class Peak:
    """Megabytes, as proportional set size: memory that forked workers share counts once."""

    def __init__(self) -> None:
        self.megabytes = 0.0
        self.mapped = 0.0
        """Of files of the wanted kind, each counted once, whether its pages are in memory or not."""


@contextmanager
def peak_memory(leave_out: set[int], mapped: str = "") -> Iterator[Peak]:
    """The most memory that this process and its children held at one time while the block runs, servers left out. `mapped`: how the
    names of mapped files end that are counted beside."""
    peak, done = Peak(), threading.Event()

    def watch() -> None:
        while not done.wait(_EVERY):
            peak.megabytes = max(peak.megabytes, _now(leave_out))
            if mapped:
                peak.mapped = max(peak.mapped, _mapped(mapped))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def cpu_seconds(leave_out: set[int]) -> float:
    """What this process and its children have used so far, those that have ended included, and servers left out."""
    total = 0.0
    for process in _ours(psutil.Process(), leave_out):
        with suppress(psutil.Error):
            used = process.cpu_times()
            total += used.user + used.system + used.children_user + used.children_system
    return total


def _ours(process: psutil.Process, leave_out: set[int]) -> Iterator[psutil.Process]:
    if process.pid in leave_out:
        return
    yield process
    with suppress(psutil.Error):
        for child in process.children():
            yield from _ours(child, leave_out)


def _now(leave_out: set[int]) -> float:
    total = 0
    for process in _ours(psutil.Process(), leave_out):
        with suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total / 1e6


def _mapped(suffix: str) -> float:
    sizes: dict[str, int] = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                if line.endswith(suffix):
                    first, last = line.split(" ", 1)[0].split("-")
                    sizes[line.split()[-1]] = int(last, 16) - int(first, 16)
    return sum(sizes.values()) / 1e6
