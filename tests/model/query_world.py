"""The world of `world`, with drivers that Spark hands micro-batches to: a user's own query into ClickHouse.

A start brings any range of the topic, as a checkpoint that is kept, restored or lost may bring it; the batches that follow it in
the same run go on where it ended. What decides is `protocol.batch`, with Spark's ranges as its source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from landonce import errors

from .finish import LAST
from .values import TOPIC, Agent, Violation, World
from .world import Model, Step

BLOCK_ROWS = 8


class Queries(Model):
    """Every step that a world of this scenario can take."""

    def _starts(self, world: World) -> Iterator[Step]:
        for first, end in self._cuts(world, 0):
            yield self._started(world, first, end)

    def _cuts(self, world: World, first: int) -> Iterator[tuple[int, int]]:
        """Every range of the one partition that begins there or later."""
        last = self.scenario.levels[world.level][0]
        yield from ((begin, end) for begin in range(first, last) for end in range(begin + 1, last + 1))

    def start(self, world: World, fingerprint: str | None = None, *, earliest: bool = False) -> Step:
        """A run that begins where the ledger stands, with all that there is."""
        del earliest
        state = self.ledgers.values[world.ledger]
        first = state.committed().get(self.partitions[0], 0)
        return self._started(world, first, self.scenario.levels[world.level][0], fingerprint=fingerprint)

    def _started(self, world: World, *came: Any, fingerprint: str | None = None) -> Step:
        number = world.starts + 1
        prints = self.scenario.fingerprints
        policy = self.core.deduplicating.Deduplicating(
            "table", fingerprint or prints[min(number, len(prints)) - 1], once=True, block_rows=BLOCK_ROWS
        )
        driver, effect = self.core.batch.begin(policy)
        agent = Agent(number, self.drivers.of(driver), self.effects.of(effect), None, 0, came)
        started = world._replace(drivers=(*world.drivers, agent), starts=number)
        return f"query {number} starts with {came}", started

    def _incoming(self, first: int, end: int) -> Any:
        """The query itself began at the first offset: a ledger that knows nothing of it was lost."""
        at = self.partitions[0]
        ranges = (self.core.ranges.Range(at, first, end),) if first < end else ()
        begun = (self.core.match_ranges.Begun(at, 0, first),)
        return self.core.match_ranges.Incoming(ranges, "cluster", ((TOPIC, "id"),), begun)

    def _go_on(self, world: World, agent: Agent, reply: Any) -> World | Violation:
        """Spark has brought the ranges already, so a survey touches nothing but the clock, and is made at once."""
        after = super()._go_on(world, agent, reply)
        if isinstance(after, Violation):
            return after
        for each in after.drivers:
            if each.number == agent.number and isinstance(self.effects.values[each.effect], self.core.steps.Survey):
                return self._go_on(after, each, self._brought(after, each))
        return after

    def _brought(self, world: World, agent: Agent) -> Any:
        assert agent.came is not None
        return replace(self._surveyed(world.level, world.clock), source=self._incoming(*agent.came))

    def _own_steps(self, world: World, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        if isinstance(effect, self.core.steps.Resolve):
            yield who, self._go_on(world, agent, self._resolved(world, effect))
        else:
            yield from self._next_batch(world, agent, who)

    def _resolved(self, world: World, effect: Any) -> Any:
        return self.core.steps.Resolved(tuple(self._found(world, effect, index) for index in effect.indexes))

    def _found(self, world: World, effect: Any, index: int) -> Any:
        """As `engine.perform` asks: a block of a table without partitions is whole where any row of it is there."""
        rows = self._count(world.landed, effect.plan.blocks[index].ranges)
        whole = rows > 0 and self.scenario.table_partitions == 1 and effect.plan.kind.value == "deliver"
        return self.core.steps.FoundBlock(
            index, whole, self.core.ledger.Totals(landed=rows) if whole else self.core.ledger.Totals()
        )

    def _next_batch(self, world: World, agent: Agent, who: str) -> Iterator[Step]:
        """The micro-batch is done. The next one of the same run goes on where it ended; or the run is over."""
        assert agent.came is not None
        (first, ended), last = agent.came, self.scenario.levels[world.level][0]
        for end in range(ended + 1, last + 1) if first < ended and agent.number < LAST else ():
            label = f"query {agent.number}: the next batch, [{ended}, {end})"
            yield label, self._begun(world, agent, ended, end)
        yield who, self._leave(world, agent)

    def _begun(self, world: World, agent: Agent, *came: Any) -> World | Violation:
        driver = self.drivers.values[agent.driver]
        after, effect = self.core.batch.begin(driver.policy, driver)
        begun = Agent(agent.number, self.drivers.of(after), self.effects.of(effect), None, 0, came)
        return self._go_on(self._with(world, agent, begun), begun, self._brought(world, begun))

    def _refused(self, world: World, agent: Agent, error: errors.LandonceError) -> bool:
        """A batch that begins above the position skips something."""
        at = self.ledgers.values[world.ledger].committed().get(self.partitions[0], 0)
        return isinstance(error, errors.GapRefused) and agent.came is not None and agent.came[0] > at


class SeveralPartitions(Queries):
    """A query that reads several partitions. What a micro-batch brings is a range of each, and most bring records of one alone."""

    def _starts(self, world: World) -> Iterator[Step]:
        """From its checkpoint, or again from the beginning."""
        for begins in {self._committed(world), (0,) * len(self.partitions)}:
            yield from (self._started(world, *came) for came in self._batches(world, begins))

    def _batches(self, world: World, begins: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], ...]]:
        """The micro-batches that begin there: a part of one partition, or all that there is."""
        whole = tuple(zip(begins, self.scenario.levels[world.level], strict=True))
        for at, (begin, last) in enumerate(whole):
            for end in range(begin + 1, last + 1):
                yield tuple((begin, end) if at == each else (first, first) for each, first in enumerate(begins))
        if sum(begin < end for begin, end in whole) > 1:
            yield whole

    def _committed(self, world: World) -> tuple[int, ...]:
        known = self.ledgers.values[world.ledger].committed()
        return tuple(known.get(each, 0) for each in self.partitions)

    def start(self, world: World, fingerprint: str | None = None, *, earliest: bool = False) -> Step:
        del earliest
        whole = zip(self._committed(world), self.scenario.levels[world.level], strict=True)
        return self._started(world, *whole, fingerprint=fingerprint)

    def _incoming(self, *came: Any) -> Any:
        ranges = [
            self.core.ranges.Range(at, *each)
            for at, each in zip(self.partitions, came, strict=True)
            if each[0] < each[1]
        ]
        begun = (
            self.core.match_ranges.Begun(at, 0, first) for at, (first, _) in zip(self.partitions, came, strict=True)
        )
        return self.core.match_ranges.Incoming(tuple(ranges), "cluster", ((TOPIC, "id"),), tuple(begun))

    def _next_batch(self, world: World, agent: Agent, who: str) -> Iterator[Step]:
        came: Any = agent.came
        ends = tuple(end for _, end in came)
        if agent.number < LAST:
            for batch in self._batches(world, ends):
                yield f"query {agent.number}: the next batch, {batch}", self._begun(world, agent, *batch)
        yield who, self._leave(world, agent)

    def _refused(self, world: World, agent: Agent, error: errors.LandonceError) -> bool:
        came: Any = agent.came
        committed = self._committed(world)
        return isinstance(error, errors.GapRefused) and any(
            first > at for (first, _), at in zip(came, committed, strict=True)
        )
