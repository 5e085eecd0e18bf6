"""The worlds of users' own queries, with programs that push: each run pushes what it likes, as often as it likes.

A source delivers at least once, so a run begins where the ledger stands or before it, as does every push after that: the same again, an older one,
a part, or more. It may also begin too far ahead, which must be refused. Nothing says where the source itself began.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import transaction_values
from .finish import LAST
from .query_world import Queries
from .snapshot_drivers import Step as LakeStep
from .snapshot_queries import LakeQueries
from .snapshot_values import Agent as LakeAgent
from .snapshot_values import Lake
from .transaction_queries import Brought, DatabaseQueries, WrappedQueries
from .values import TOPIC, Agent, World
from .world import Step


class Pushes(Queries):
    """Into ClickHouse: every step that a world of this scenario can take."""

    def _starts(self, world: World) -> Iterator[Step]:
        """A ledger that knows nothing of the partition tells a program so, which begins at the beginning."""
        known = self.partitions[0] in self.ledgers.values[world.ledger].committed()
        for first, end in self._cuts(world, 0):
            if known or first == 0:
                yield self._started(world, first, end)

    def _incoming(self, first: int, end: int) -> Any:
        ranges = (self.core.ranges.Range(self.partitions[0], first, end),) if first < end else ()
        return self.core.match_ranges.Incoming(ranges, "cluster", ((TOPIC, "id"),))

    def _next_batch(self, world: World, agent: Agent, who: str) -> Iterator[Step]:
        """Another push of the same run, wherever it begins; or the program is done."""
        assert agent.came is not None
        yield who, self._leave(world, agent)
        first, ended = agent.came
        if first < ended and agent.number < LAST and world.clock < self.scenario.clock:
            for begin, end in self._cuts(world, 0):
                if (begin, end) != (first, ended) and (begin <= ended or end == begin + 1):
                    label = f"query {agent.number}: the next push, [{begin}, {end})"
                    yield label, self._begun(world, agent, begin, end)


class _Pushed(Brought):
    """What pushes have in common where the ledger has a row for each block."""

    def _cuts(self, world: Any) -> Iterator[tuple[int, int]]:
        last = self.topics.levels[world.level][0]
        yield from ((begin, end) for begin in range(last) for end in range(begin + 1, last + 1))

    def _starts(self, world: Any) -> Iterator[Any]:
        known = self.topics.partitions[0] in self.ledgers.values[world.ledger].committed()
        yield from (self._started(world, *cut) for cut in self._cuts(world) if known or cut[0] == 0)

    def _incoming(self, first: int, end: int) -> Any:
        ranges = (self.core.ranges.Range(self.topics.partitions[0], first, end),) if first < end else ()
        return self.core.match_ranges.Incoming(ranges, "cluster", ((TOPIC, "id"),))

    def _next_batch(self, world: Any, agent: transaction_values.Agent, who: str) -> Iterator[Any]:
        assert agent.came is not None
        yield who, self._leave(world, agent)
        first, ended = agent.came
        for begin, end in self._cuts(world) if first < ended and world.starts < LAST else ():
            if (begin, end) != (first, ended) and (begin <= ended or end == begin + 1):
                label = f"query {agent.number}: the next push, [{begin}, {end})"
                yield label, self._follows(world, agent, begin, end)


class DatabasePushes(_Pushed, DatabaseQueries):
    """Into a database."""


class WrappedPushes(_Pushed, WrappedQueries):
    """Into a wrapped sink."""


class LakePushes(LakeQueries):
    """Into an Iceberg table, its own ledger."""

    def starts(self, world: Lake) -> Iterator[LakeStep]:
        at = self._position(world)
        yield from (self._started(world, *cut) for cut in self._cuts(world) if at or cut[0] == 0)

    def _incoming(self, first: int, end: int) -> Any:
        ranges = (self.core.ranges.Range(self.topics.partitions[0], first, end),) if first < end else ()
        return self.core.match_ranges.Incoming(ranges, "cluster", ((TOPIC, "id"),))

    def driver_steps(self, world: Lake, agent: LakeAgent) -> Iterator[LakeStep]:
        if not isinstance(self.effects.values[agent.effect], self.core.steps.Stop):
            yield from super().driver_steps(world, agent)
            return
        yield f"program {agent.number} is done", self.leave(world, agent)
        for cut in self._cuts(world) if world.starts < LAST else ():
            if cut != agent.came:
                yield f"program {agent.number}: the next push, [{cut[0]}, {cut[1]})", self._begun(world, agent, *cut)
