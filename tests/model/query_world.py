"""The world of `world`, with drivers that Spark hands micro-batches to: a user's own query into ClickHouse.

A start brings any range of the topic, as a checkpoint that is kept, restored or lost may bring it; the batches that follow it in
the same run go on where it ended. What decides is `protocol.query_batches` and `protocol.match_ranges`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from landonce import errors

from .core import Core
from .finish import LAST
from .values import TOPIC, Agent, Scenario, World
from .world import Model, Step

BLOCK_ROWS = 8


class Queries(Model):
    """Every step that a world of this scenario can take."""

    def __init__(self, core: Core, scenario: Scenario) -> None:
        super().__init__(core, scenario)
        self.machine = core.queries

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
        return self._started(world, first, self.scenario.levels[world.level][0], fingerprint)

    def _started(self, world: World, first: int, end: int, fingerprint: str | None = None) -> Step:
        number = world.starts + 1
        prints = self.scenario.fingerprints
        settings = self.machine.Settings("table", fingerprint or prints[min(number, len(prints)) - 1], BLOCK_ROWS)
        driver, effect = self.machine.begin(settings, self._incoming(first, end))
        agent = Agent(number, self.drivers.of(driver), self.effects.of(effect), None, 0)
        started = world._replace(drivers=(*world.drivers, agent), starts=number)
        return f"query {number} starts with [{first}, {end})", started

    def _incoming(self, first: int, end: int) -> Any:
        """The query itself began at the first offset: a ledger that knows nothing of it was lost."""
        at = self.partitions[0]
        ranges = (self.core.ranges.Range(at, first, end),) if first < end else ()
        begun = (self.core.judging.Begun(at, 0, first),)
        return self.core.judging.Incoming(ranges, "cluster", ((TOPIC, "id"),), begun)

    def _killed(self, world: World) -> int:
        return world.clock + self.scenario.patience

    def _own_steps(self, world: World, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        if isinstance(effect, self.core.steps.Clock):
            yield who, self._go_on(world, agent, self._killed(world))
        elif isinstance(effect, self.core.steps.Resolve):
            yield who, self._go_on(world, agent, self._resolved(world, effect))
        else:
            yield from self._next_batch(world, agent, who)

    def _resolved(self, world: World, effect: Any) -> Any:
        return self.core.steps.Resolved(tuple(self._found(world, effect, index) for index in effect.indexes))

    def _found(self, world: World, effect: Any, index: int) -> Any:
        """As `query.performers` asks: a block of a table without partitions is whole where any row of it is there."""
        rows = self._count(world.landed, effect.plan.blocks[index].ranges)
        whole = rows > 0 and self.scenario.table_partitions == 1 and effect.plan.kind.value == "deliver"
        return self.core.steps.Found(
            index, whole, self.core.ledger.Totals(landed=rows) if whole else self.core.ledger.Totals()
        )

    def _next_batch(self, world: World, agent: Agent, who: str) -> Iterator[Step]:
        """The micro-batch is done. The next one of the same run goes on where it ended; or the run is over."""
        driver = self.drivers.values[agent.driver]
        ends = [each.end for each in driver.incoming.ranges]
        if ends and agent.number < LAST:
            for first, end in self._cuts(world, ends[0]):
                if first == ends[0]:
                    yield (
                        f"query {agent.number}: the next batch, [{first}, {end})",
                        self._begun(world, agent, first, end),
                    )
        yield who, self._leave(world, agent)

    def _begun(self, world: World, agent: Agent, first: int, end: int) -> Any:
        driver = self.drivers.values[agent.driver]
        try:
            after, effect = self.machine.begin(driver.settings, self._incoming(first, end), driver)
        except errors.LandonceError as error:
            return self._raised(world, agent, error)
        return self._with(world, agent, Agent(agent.number, self.drivers.of(after), self.effects.of(effect), None, 0))

    def _refused(self, world: World, driver: Any, error: errors.LandonceError) -> bool:
        """A batch that begins above the position skips something."""
        at = self.ledgers.values[world.ledger].committed().get(self.partitions[0], 0)
        return isinstance(error, errors.GapRefused) and driver.incoming.starts[self.partitions[0]] > at
