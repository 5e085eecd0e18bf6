"""The world of `transaction_world`, with drivers that Spark hands micro-batches to: a user's own query into a database.

A start brings any range of the topic, as a checkpoint that is kept, restored or lost may bring it; the batches that follow it in
the same run go on where it ended. What decides is `protocol.query_batches` and `protocol.match_ranges`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from landonce import errors

from .core import Core
from .snapshot_topics import TOPIC
from .transaction_values import Agent, Base, Scenario
from .transaction_world import LAST, Step, Transactions
from .values import Violation


class DatabaseQueries(Transactions):
    """Every step that a world of this scenario can take."""

    def __init__(self, core: Core, scenario: Scenario) -> None:
        super().__init__(replace(core, transactions=core.queries), scenario)

    def _starts(self, world: Base) -> Iterator[Step]:
        last = self.topics.levels[world.level][0]
        for first in range(last):
            for end in range(first + 1, last + 1):
                yield self._started(world, first, end)

    def start(self, world: Base, *, patient: bool = False) -> Step:
        """A run that begins where the ledger stands, with all that there is."""
        pending = self.ledgers.values[world.ledger].pending if patient else None
        fingerprint = pending.fingerprint if pending is not None else None
        return self._started(world, self._position(world), self.topics.levels[world.level][0], fingerprint)

    def _position(self, world: Base) -> int:
        return self.ledgers.values[world.ledger].committed().get(self.topics.partitions[0], 0)

    def _started(self, world: Base, first: int, end: int, fingerprint: str | None = None) -> Step:
        number = world.starts + 1
        prints = self.scenario.fingerprints
        settings = self.core.queries.Settings(
            "table", fingerprint or prints[min(number, len(prints)) - 1], self.scenario.block_rows, deadlines=False
        )
        driver, effect = self.core.queries.begin(settings, self._incoming(first, end))
        agent = Agent(number, self.drivers.of(driver), self.effects.of(effect), None, False)
        started = world._replace(drivers=(*world.drivers, agent), starts=number)
        return f"query {number} starts with [{first}, {end})", started

    def _incoming(self, first: int, end: int) -> Any:
        """The query itself began at the first offset: a ledger that knows nothing of it was lost."""
        at = self.topics.partitions[0]
        ranges = (self.core.ranges.Range(at, first, end),) if first < end else ()
        begun = (self.core.judging.Begun(at, 0, first),)
        return self.core.judging.Incoming(ranges, "cluster", ((TOPIC, "id"),), begun)

    def _own_steps(self, world: Base, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        if isinstance(effect, self.core.steps.Resolve):
            found = tuple(self._found(world, effect.plan, index) for index in effect.indexes)
            yield who, self._go_on(world, agent, self.core.steps.Resolved(found))
        elif isinstance(effect, self.core.steps.Stop):
            yield from self._next_batch(world, agent, who)
        else:
            yield from super()._own_steps(world, agent, effect, who)

    def _found(self, world: Base, plan: Any, index: int) -> Any:
        """As `query.performers` asks: the block's row says whether it landed."""
        number = plan.blocks[index].number
        row = next((row for row in world.rows if (row.batch, row.number) == (plan.batch, number) and row.after), None)
        totals = self.receipts.values[row.receipt].totals if row is not None else self.core.ledger.Totals()
        return self.core.steps.Found(index, row is not None, totals)

    def _next_batch(self, world: Base, agent: Agent, who: str) -> Iterator[Step]:
        """The micro-batch is done. The next one of the same run goes on where it ended; or the run is over."""
        ends = [each.end for each in self.drivers.values[agent.driver].incoming.ranges]
        last = self.topics.levels[world.level][0] if world.starts < LAST else 0
        for end in range(ends[0] + 1 if ends else last + 1, last + 1):
            yield (
                f"query {agent.number}: the next batch, [{ends[0]}, {end})",
                self._begun(world, agent, ends[0], end),
            )
        yield who, self._leave(world, agent)

    def _begun(self, world: Base, agent: Agent, first: int, end: int) -> Base | Violation:
        before = self.drivers.values[agent.driver]
        try:
            driver, effect = self.core.queries.begin(before.settings, self._incoming(first, end), before)
        except errors.LandonceError as error:
            return self._raised(world, agent, error)
        after = Agent(agent.number, self.drivers.of(driver), self.effects.of(effect), None, False)
        return self._with(world, agent, after)

    def _refused(self, world: Base, driver: Any, error: Exception) -> bool:
        """A batch that begins above the position skips something."""
        at = self.topics.partitions[0]
        return isinstance(error, errors.GapRefused) and driver.incoming.starts[at] > self._position(world)
