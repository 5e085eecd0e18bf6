"""Breadth-first search through every world of a scenario, and a schedule that people can read when one is wrong."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from landonce import errors

from .values import Violation, World
from .world import Model

PATIENCE = 400
"""Steps that a run without faults may take before it counts as never ending."""
ROUNDS = 40
"""Steps of such a run that are worth reading."""


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


def search(model: Model, limit: int | None = None, *, shortest: bool = False) -> Searched:
    """Visits every world once; each must be right, and each must be able to end well.

    Worlds are taken from both ends of the queue in turn, so that a search that ends at its limit has seen long runs as
    well as all short ones; with `shortest`, the first violation that is found has the shortest schedule.
    """
    limit = limit or model.scenario.limit
    first = model.first()
    came: dict[World, tuple[World, str] | None] = {first: None}
    queue = deque([first])
    finished: dict[World, Found | None] = {}
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
                return result(Found(after.what, (*_way(came, world), label)))
            if after in came:
                continue
            came[after] = (world, label)
            wrong = model.wrong(after)
            if wrong:
                return result(Found(wrong, _way(came, after)))
            rest = model.finisher(after)
            if rest not in finished:
                finished[rest] = finish(model, rest)
            end = finished[rest]
            if end is not None:
                return result(Found(end.what, (*_way(came, after), "everybody dies", *end.schedule)))
            queue.append(after)
    return result(None)


def finish(model: Model, world: World) -> Found | None:
    """One driver, no faults: everything lands exactly once. An operator stands by for what is asked of one."""
    schedule: list[str] = []
    fingerprint, earliest = None, False
    for _ in range(PATIENCE):
        if not world.drivers:
            fingerprint = _pending_fingerprint(model, world) or fingerprint
            label, started = model.start(world, fingerprint, earliest=earliest)
        else:
            label, started = _fair(model, world)
        schedule.append(label)
        if label == _DONE:
            wrong = _unfinished(model, world)
            return Found(wrong, tuple(schedule)) if wrong else None
        if isinstance(started, Violation):
            return Found(started.what, tuple(schedule))
        if world.drivers and not started.drivers:
            filled = _operator(model, world, started)
            if filled is not None:
                schedule.append("an operator fills what is missing")
                started = filled
            elif model.scenario.latest and not earliest:
                schedule.append("an operator sets `start: earliest`, as the error says")
                earliest = True
            else:
                return Found("the driver left, and nobody can go on", tuple(schedule))
        wrong = model.wrong(started)
        if wrong:
            return Found(wrong, tuple(schedule))
        world = started
    return Found("a run without faults does not come to an end", (*schedule[:ROUNDS], "… and so on"))


_DONE = "idle"


def _fair(model: Model, world: World) -> tuple[str, World | Violation]:
    """The next step of whoever can take one; time passes only when nobody can."""
    for agent in world.drivers:
        for step in model.driver_steps(world, agent):
            return step
    for worker in world.workers:
        for step in model.worker_steps(world, worker):
            return step
    effect = model.effects.values[world.drivers[0].effect]
    if isinstance(effect, model.core.protocol.Idle):
        return _DONE, world
    return "the clock ticks", model.tick(world)


def _pending_fingerprint(model: Model, world: World) -> str | None:
    pending = model.ledgers.values[world.ledger].pending
    return pending.fingerprint if pending is not None else None


def _operator(model: Model, before: World, after: World) -> World | None:
    """A driver halted on a torn table partition, which only a restored ledger can bring about."""
    pending = model.ledgers.values[after.ledger].pending
    torn = any(
        isinstance(model.results.values[each].error, errors.PartialPresence)
        for agent in before.drivers
        for each in agent.results or ()
        if each
    )
    return model.fill(after) if torn and pending is not None and pending.kind.value != "fill" else None


def _unfinished(model: Model, world: World) -> str:
    due = model.due(world)
    rows = due & ~model.silent & ~model.rejected
    if rows & ~world.landed:
        return f"in the end {model.name(rows & ~world.landed)} is not in the target"
    if due & model.rejected & ~world.dead:
        return f"in the end {model.name(due & model.rejected & ~world.dead)} is not dead-lettered"
    ends = {at.number: end for at, end in model.ledgers.values[world.ledger].committed().items()}
    if tuple(ends[number] for number in sorted(ends)) != tuple(
        end for end in model.scenario.levels[world.level] if end >= 0
    ):
        return "in the end the committed position is not at the end of the topic"
    return ""


def _way(came: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    way = []
    step = came[world]
    while step is not None:
        way.append(step[1])
        step = came[step[0]]
    return tuple(reversed(way))
