"""Measuring side by side: every competitor once per round, in an order that is shuffled anew for every round.

The first rounds warm up all competitors alike, and do not count. Competitors are compared round by round, so that a machine that is
slower for a minute is slower for both.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from rich.console import Console

Land = Callable[[str], float]
"""Lands the whole topic in a new table that is named after its argument; gives the seconds."""


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
    """Where the median lies with this probability, by drawing the values again and again."""
    draw = random.Random(20261101)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(5000))
    outside = int(len(medians) * (1 - share) / 2)
    return medians[outside], medians[-1 - outside]
