"""Breadth-first search through every world of a scenario, and a schedule that people can read when one is wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from .values import Violation


@dataclass(frozen=True)
class Found:
    """A violation and the steps that lead to it, from the first one."""

    what: str
    schedule: tuple[str, ...]

    def __str__(self) -> str:
        steps = "\n".join(f"  {number:2}. {step}" for number, step in enumerate(self.schedule, 1))
        return f"{self.what}\n{steps}"


@dataclass(frozen=True)
class Searched:
    """How far a search went. `whole`: there is no world that it did not see."""

    name: str
    worlds: int
    steps: int
    whole: bool
    finishes: int
    found: Found | None

    def __str__(self) -> str:
        extent = "all of them" if self.whole else "up to the limit"
        return f"{self.name}: {self.worlds} worlds ({extent}), {self.steps} steps, {self.finishes} finishing runs"


class Model(Protocol):
    """What can be searched. A world is any value that can be compared and kept."""

    scenario: Any

    def first(self) -> Any:
        """Where everything begins."""

    def steps(self, world: Any) -> Iterator[tuple[str, Any]]:
        """Every step that can be taken next: what it is called, and the world after it, or a `Violation`."""

    def wrong(self, world: Any) -> str:
        """What must not be in this world; empty if all is well."""

    def rests(self, world: Any) -> Iterator[tuple[str, Any]]:
        """The worlds that this one becomes when faults end: each must be able to end well."""

    def finish(self, world: Any, known: dict[Any, None]) -> Found | None:
        """How such a world ends, if not well. `known` are worlds that end well, and more are added to it."""


def search(
    model: Model, limit: int, *, shortest: bool = False, wanted: Callable[[str], bool] = lambda _: True
) -> Searched:
    """Visits every world once; each must be right, and each must be able to end well.

    `wanted`: which violations count. The search goes on past the others, and not from the worlds that have them.

    Worlds are taken from both ends of the queue in turn, so that a search that ends at its limit has seen long runs as
    well as all short ones; with `shortest`, the first violation that is found has the shortest schedule.
    """
    first = model.first()
    came: dict[Any, tuple[Any, str] | None] = {first: None}
    queue = deque([first])
    finished: dict[Any, None] = {}
    steps = 0

    def result(found: Found | None) -> Searched:
        whole = found is None and not queue
        return Searched(model.scenario.name, len(came), steps, whole, len(finished), found)

    while queue and len(came) < limit:
        deep = not shortest and len(came) & 1
        world = queue.pop() if deep else queue.popleft()
        for label, after in model.steps(world):
            steps += 1
            if isinstance(after, Violation):
                if wanted(after.what):
                    return result(Found(after.what, (*_way(came, world), label)))
                continue
            step = (world, label)
            if came.setdefault(after, step) is not step:
                continue
            wrong = model.wrong(after)
            if wrong:
                if wanted(wrong):
                    return result(Found(wrong, _way(came, after)))
                continue
            for how, rest in model.rests(after):
                if rest not in finished:
                    end = model.finish(rest, finished)
                    if end is not None and wanted(end.what):
                        return result(Found(end.what, (*_way(came, after), how, *end.schedule)))
            queue.append(after)
    return result(None)


def _way(came: dict[Any, tuple[Any, str] | None], world: Any) -> tuple[str, ...]:
    way = []
    step = came[world]
    while step is not None:
        way.append(step[1])
        step = came[step[0]]
    return tuple(reversed(way))
