"""How a world ends once nothing goes wrong any more: one driver, and everything lands exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from landonce import errors

from .search import Found
from .values import Violation, World

if TYPE_CHECKING:
    from .world import Model

PATIENCE = 400
"""Steps that a run without faults may take before it counts as never ending."""
ROUNDS = 40
"""Steps of such a run that are worth reading."""
LAST = 90
"""Drivers with a higher number run when everybody else is gone and nothing goes wrong any more."""


def finish(model: Model, world: World, known: dict[World, None]) -> Found | None:
    """Whoever is left, then one more driver, no faults: everything lands exactly once. An operator stands by for what is asked of one.

    `known` are worlds that end well; all worlds on the way to such an end are added to it.
    """
    schedule: list[str] = []
    way: list[World] = []
    fingerprint, earliest = None, False
    for _ in range(PATIENCE):
        if world in known and not earliest:
            known.update(dict.fromkeys(way))
            return None
        if not earliest:
            way.append(world)
        if not world.drivers:
            fingerprint = _pending_fingerprint(model, world) or fingerprint
            label, started = model.start(world, fingerprint, earliest=earliest)
        else:
            label, started = _fair(model, world)
        schedule.append(label)
        if label == _DONE:
            wrong = _unfinished(model, world)
            if wrong:
                return Found(wrong, tuple(schedule))
            known.update(dict.fromkeys(way))
            return None
        if isinstance(started, Violation):
            return Found(started.what, tuple(schedule))
        if world.drivers and not started.drivers and world.drivers[0].number > LAST:
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
        if agent.number > LAST and isinstance(model.effects.values[agent.effect], model.core.steps.Stop):
            return _DONE, world
        for step in model.driver_steps(world, agent):
            return step
    for worker in world.workers:
        for step in model.worker_steps(world, worker):
            return step
    agent = world.drivers[0]
    if isinstance(model.effects.values[agent.effect], model.core.steps.Idle):
        if model.taken_over(world, agent):
            return f"driver {agent.number} asks, and hears that it was taken over", world._replace(drivers=())
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
    lettered = world.dead | model.replayed(world)
    if due & model.rejected & ~lettered:
        return f"in the end {model.name(due & model.rejected & ~lettered)} is not dead-lettered"
    ends = {at.number: end for at, end in model.ledgers.values[world.ledger].committed().items()}
    if tuple(ends[number] for number in sorted(ends)) != tuple(
        end for end in model.scenario.levels[world.level] if end >= 0
    ):
        return "in the end the committed position is not at the end of the topic"
    return ""
