"""The world of `snapshot_world`, with drivers that Spark hands micro-batches to: a user's own query into one Iceberg table, its own ledger.

A start brings any range of the topic, as a checkpoint that is kept, restored or lost may bring it; the batches that follow it in
the same run go on where it ended. What decides is `protocol.batch`, with Spark's ranges as its source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from landonce import errors

from .snapshot_drivers import LAST, Step
from .snapshot_topics import TOPIC
from .snapshot_values import NONE, Agent, Lake
from .snapshot_world import Snapshots
from .values import Violation


class LakeQueries(Snapshots):
    """Every step that a world of this scenario can take."""

    def starts(self, world: Lake) -> Iterator[Step]:
        for first, end in self._cuts(world):
            yield self._started(world, first, end)

    def _cuts(self, world: Lake) -> Iterator[tuple[int, int]]:
        """Every range of the one partition."""
        last = self.topics.levels[world.level][0]
        yield from ((first, end) for first in range(last) for end in range(first + 1, last + 1))

    def start(self, world: Lake, *, patient: bool = False) -> Step:
        """A run that begins where the table stands, with all that there is."""
        del patient
        return self._started(world, self._position(world), self.topics.levels[world.level][0])

    def _position(self, world: Lake) -> int:
        try:
            state = self.core.own_ledger.own_state(self.tables.owns.values[self.tables.own(world.tables[0])])
        except errors.PositionUncertain:
            return 0
        return state.committed().get(self.topics.partitions[0], 0) if state is not None else 0

    def _started(self, world: Lake, first: int, end: int) -> Step:
        number = world.starts + 1
        policy = self.core.snapshot.Snapshot(
            target="tables",
            fingerprint="f",
            once=True,
            own_ledger=True,
            follow=self.scenario.follow,
            block_rows=self.scenario.block_rows,
        )
        driver, effect = self.core.batch.begin(policy)
        begun = (self.drivers.of(driver), self.effects.of(effect))
        agent = Agent(number, 1, *begun, NONE, False, (), None, NONE, (first, end))
        started = world._replace(drivers=(*world.drivers, agent), starts=number)
        return f"query {number} starts with [{first}, {end})", started

    def _incoming(self, first: int, end: int) -> Any:
        """The query itself began at the first offset: a table that knows nothing of it lost its position."""
        at = self.topics.partitions[0]
        ranges = (self.core.ranges.Range(at, first, end),) if first < end else ()
        begun = (self.core.match_ranges.Begun(at, 0, first),)
        return self.core.match_ranges.Incoming(ranges, "cluster", ((TOPIC, "id"),), begun)

    def _nothing_to_see(self, world: Lake, agent: Agent) -> bool:
        """Spark has brought the ranges already."""
        return True

    def survey(self, world: Lake, agent: Agent) -> Lake | Violation:
        assert agent.came is not None
        first, end = agent.came
        surveyed = self.topics.surveyed(world.level, self.scenario.max_rows[0], False)
        return self.go_on(
            world, agent, ("brought", first, end), lambda: replace(surveyed, source=self._incoming(first, end))
        )

    def stopped(self, world: Lake, agent: Agent) -> Lake:
        """The micro-batch is done, and the run goes on."""
        return self.leave(world, agent) if agent.number > LAST else world

    def driver_steps(self, world: Lake, agent: Agent) -> Iterator[Step]:
        if not isinstance(self.effects.values[agent.effect], self.core.steps.Stop):
            yield from super().driver_steps(world, agent)
            return
        assert agent.came is not None
        (_, ended), last = agent.came, self.topics.levels[world.level][0] if world.starts < LAST else 0
        for end in range(ended + 1, last + 1):
            label = f"query {agent.number}: the next batch, [{ended}, {end})"
            yield label, self._begun(world, agent, ended, end)
        yield f"query {agent.number} is over", self.leave(world, agent)

    def _begun(self, world: Lake, agent: Agent, first: int, end: int) -> Lake | Violation:
        before = self.drivers.values[agent.driver]
        driver, effect = self.core.batch.begin(before.policy, before)
        begun = agent._replace(driver=self.drivers.of(driver), effect=self.effects.of(effect), done=(), attempt=None)
        begun = begun._replace(came=(first, end))
        return self.survey(self.put(world, agent, begun), begun)

    def refused(self, world: Lake, agent: Agent, error: errors.LandonceError) -> bool:
        """A batch that begins above the position skips something. The position is the table's, as it is or as the driver took it."""
        assert agent.came is not None
        driver = self.drivers.values[agent.driver]
        held = driver.ledger.committed().get(self.topics.partitions[0], 0) if driver.ledger is not None else 0
        return isinstance(error, errors.GapRefused) and agent.came[0] > min(held, self._position(world))
