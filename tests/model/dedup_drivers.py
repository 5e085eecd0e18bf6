"""What both kinds of drivers have in common: topics, the store, and the batch machine that says what comes next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from landonce import errors

from .core import Core
from .dedup_values import KINDS, Agent, Scenario, Store, World
from .values import Table, Violation

Step = tuple[str, World | Violation]
LAST = 90
"""Drivers with a higher number run when everybody else is gone and nothing goes wrong any more."""


class Drivers:
    """Every driver is the production machine, and `advance` is all that decides."""

    def __init__(self, core: Core, scenario: Scenario) -> None:
        self.core, self.scenario, self.rules = core, scenario, core.dedup
        self.kinds = {kind: at for at, kind in enumerate(KINDS)}
        self.lists, self.ledgers, self.machines, self.effects, self.views = Table(), Table(), Table(), Table(), Table()
        self._advanced: dict[Any, Any] = {}
        self.keys: dict[str, dict[str, Any]] = {}
        """Of each run, by its name: where each key was first."""
        self.topics = [self._topic(text) for text in scenario.topics]

    def _topic(self, text: str) -> list[list[Any]]:
        label = f"t{self.scenario.topics.index(text)}"
        return [
            [
                self.rules.Event(record[0], 1000 * int(record[1:] or 0), self.rules.RecordPlace(label, number, offset))
                for offset, record in enumerate(partition.split())
            ]
            for number, partition in enumerate(text.split("|"))
        ]

    def label(self, pipeline: int) -> str:
        return f"t{self.scenario.topics.index(self.scenario.topics[pipeline])}"

    def partition(self, pipeline: int, number: int) -> Any:
        return self.core.ranges.Partition(self.label(pipeline), number)

    def first(self) -> World:
        terms = self.rules.Terms("l", "r", self.scenario.shards, 0)
        lists = self.lists.of(self.rules.Lists(terms, (0,) * self.scenario.shards))
        removed = tuple((0,) * len(topic) for topic in self.topics)
        ledgers = tuple(
            self.ledgers.of(self.core.ledger.LedgerState(f"push {number}", "first"))
            for number in range(len(self.topics))
        )
        left = tuple(getattr(self.scenario.faults, kind) for kind in KINDS)
        store = Store(lists, frozenset(), removed)
        return World(
            0, store, None, ledgers, (), (), (), frozenset(), frozenset(), frozenset(), left, (0, 0), ""
        )  # fmt: skip

    # ── the machine ─────────────────────────────────────────────────────────────────────────────────────────────────

    def begun(self, policy: Any, pipeline: int, number: int) -> Agent:
        machine, effect = self.core.batch.begin(policy)
        return Agent(number, pipeline, 1, self.machines.of(machine), self.effects.of(effect), 0, None, (), 0, False)

    def owner(self, agent: Agent) -> str:
        return f"{agent.number}.{agent.takes}"

    def held(self, agent: Agent) -> Any:
        """The state of its ledger, as the driver holds it."""
        return self.machines.values[agent.machine].state

    def effect(self, agent: Agent) -> Any:
        return self.effects.values[agent.effect]

    def advanced(self, agent: Agent, key: Any, reply: Callable[[], Any]) -> Agent | Exception:
        """The production code takes the reply and says what is next."""
        known = self._advanced.get((agent.machine, agent.effect, key))
        if known is None:
            try:
                machine, effect = self.machines.values[agent.machine].advance(reply())
                known = (self.machines.of(machine), self.effects.of(effect))
            except Exception as error:  # named errors are part of the protocol; others are judged as defects
                known = error
            self._advanced[agent.machine, agent.effect, key] = known
        if isinstance(known, Exception):
            return known
        return agent._replace(machine=known[0], effect=known[1], done=())

    def stopped(self, agent: Agent, error: Exception, *, taken_over: bool) -> str | Violation:
        """A driver that was taken over may say anything; another one needs a reason, which people are asked about."""
        if isinstance(error, errors.LandonceError) and taken_over:
            return ""
        if self.scenario.faults.restore and isinstance(error, errors.TargetAhead | errors.PositionBeyondEnd):
            return type(error).__name__
        return Violation(f"driver {agent.number} stopped without a reason: {type(error).__name__}: {error}")

    def replaced(self, agents: tuple[Agent, ...], before: Agent | None, after: Agent | None) -> tuple[Agent, ...]:
        others = tuple(each for each in agents if each is not before)
        return tuple(sorted((*others, *([after] if after else ())), key=lambda each: each.number))

    # ── the store ───────────────────────────────────────────────────────────────────────────────────────────────────

    def listed(self, world: World) -> Any:
        return self.lists.values[world.store.lists]

    def list(self, world: World, lists: Any) -> World:
        return world._replace(store=world.store._replace(lists=self.lists.of(lists)))

    def mark(self, world: World, pipeline: int) -> tuple[int, Any]:
        """The number of the pipeline's commits, and its mark."""
        for name, number, mark in self.listed(world).marks:
            if name == str(pipeline):
                return number, mark
        return 0, None

    def accepted(self, world: World, pipeline: int) -> dict[Any, int]:
        """The accepted position."""
        _, mark = self.mark(world, pipeline)
        return mark.state.committed() if mark is not None else {}

    def in_target(self, world: World, pipeline: int) -> dict[Any, int]:
        """The offset after the last one that is in the target, by partition."""
        found: dict[Any, int] = {}
        for owner, _, (_, rows) in world.target:
            for event, _ in rows if owner == pipeline else ():
                partition = self.partition(pipeline, event.place.partition)
                found[partition] = max(event.place.offset + 1, found.get(partition, 0))
        return found

    # ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def left(self, world: World, kind: str) -> int:
        return world.left[self.kinds[kind]]

    def spend(self, world: World, kind: str) -> World:
        at = self.kinds[kind]
        return world._replace(left=(*world.left[:at], world.left[at] - 1, *world.left[at + 1 :]))

    def limits(self, number: int) -> Any:
        rows = self.scenario.batch_rows
        return self.core.packing.Limits(rows[min(number, len(rows)) - 1], self.scenario.block_rows)

    def surveyed(self, agent: Agent, extents: tuple[tuple[Any, int, int], ...]) -> Any:
        topic = self.label(agent.pipeline)
        extent = self.core.source.Extent
        view = self.core.source.SourceView(
            "c", ((topic, "id"),), tuple((partition, extent(start, end)) for partition, start, end in extents)
        )
        return self.core.steps.Surveyed(view, 0, self.limits(agent.number), 0)

    def name(self, event: Any) -> str:
        return f"{event.id} at {event.place.label}[{event.place.partition}] {event.place.offset}"
