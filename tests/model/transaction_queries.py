"""The worlds of `transaction_world` and `wrapped_world`, with drivers that Spark hands micro-batches to: a user's own query.

A start brings any range of the topic, as a checkpoint that is kept, restored or lost may bring it; the batches that follow it in
the same run go on where it ended. What decides is `protocol.batch`, with Spark's ranges as its source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from landonce import errors

from .snapshot_topics import TOPIC
from .transaction_values import Agent
from .transaction_world import LAST, Transactions
from .values import Violation
from .wrapped_world import Pushes


class Brought(Transactions):
    """What queries have in common, whatever their sink is."""

    def _starts(self, world: Any) -> Iterator[Any]:
        last = self.topics.levels[world.level][0]
        for first in range(last):
            for end in range(first + 1, last + 1):
                yield self._started(world, first, end)

    def start(self, world: Any, *, patient: bool = False) -> Any:
        """A run that begins where the ledger stands, with all that there is."""
        pending = self.ledgers.values[world.ledger].pending if patient else None
        fingerprint = pending.fingerprint if pending is not None else None
        return self._started(world, self._position(world), self.topics.levels[world.level][0], fingerprint)

    def _position(self, world: Any) -> int:
        return int(self.ledgers.values[world.ledger].committed().get(self.topics.partitions[0], 0))

    def _started(self, world: Any, first: int, end: int, fingerprint: str | None = None) -> Any:
        number = world.starts + 1
        prints = self.scenario.fingerprints
        policy = self._policy(number, fingerprint or prints[min(number, len(prints)) - 1])
        driver, effect = self.core.batch.begin(replace(policy, block_rows=self.scenario.block_rows))
        agent = Agent(number, self.drivers.of(driver), self.effects.of(effect), None, False, (first, end))
        started = world._replace(drivers=(*world.drivers, agent), starts=number)
        return f"query {number} starts with [{first}, {end})", started

    def _go_on(self, world: Any, agent: Agent, reply: Any) -> Any:
        """Spark has brought the ranges already, so a survey touches nothing, and is made at once."""
        after = super()._go_on(world, agent, reply)
        if isinstance(after, Violation):
            return after
        for each in after.drivers:
            if each.number == agent.number and isinstance(self.effects.values[each.effect], self.core.steps.Survey):
                return self._go_on(after, each, self._brought(after, each))
        return after

    def _brought(self, world: Any, agent: Agent) -> Any:
        assert agent.came is not None
        surveyed = self.topics.surveyed(world.level, self.scenario.max_rows[0], False)
        return replace(surveyed, source=self._incoming(*agent.came))

    def _incoming(self, first: int, end: int) -> Any:
        """The query itself began at the first offset: a ledger that knows nothing of it was lost."""
        at = self.topics.partitions[0]
        ranges = (self.core.ranges.Range(at, first, end),) if first < end else ()
        begun = (self.core.match_ranges.Begun(at, 0, first),)
        return self.core.match_ranges.Incoming(ranges, "cluster", ((TOPIC, "id"),), begun)

    def _own_steps(self, world: Any, agent: Agent, effect: Any, who: str) -> Iterator[Any]:
        if isinstance(effect, self.core.steps.Stop):
            yield from self._next_batch(world, agent, who)
        else:
            yield from super()._own_steps(world, agent, effect, who)

    def _next_batch(self, world: Any, agent: Agent, who: str) -> Iterator[Any]:
        """The micro-batch is done. The next one of the same run goes on where it ended; or the run is over."""
        assert agent.came is not None
        first, ended = agent.came
        last = self.topics.levels[world.level][0] if world.starts < LAST else 0
        for end in range(ended + 1, last + 1) if first < ended else ():
            label = f"query {agent.number}: the next batch, [{ended}, {end})"
            yield label, self._follows(world, agent, ended, end)
        yield who, self._leave(world, agent)

    def _follows(self, world: Any, agent: Agent, first: int, end: int) -> Any:
        before = self.drivers.values[agent.driver]
        driver, effect = self.core.batch.begin(before.policy, before)
        begun = Agent(agent.number, self.drivers.of(driver), self.effects.of(effect), None, False, (first, end))
        return self._go_on(self._with(world, agent, begun), begun, self._brought(world, begun))

    def _refused(self, world: Any, agent: Agent, error: Exception) -> bool:
        """A batch that begins above the position skips something."""
        return isinstance(error, errors.GapRefused) and agent.came is not None and agent.came[0] > self._position(world)


class DatabaseQueries(Brought):
    """A query into a database."""

    def _own_steps(self, world: Any, agent: Agent, effect: Any, who: str) -> Iterator[Any]:
        if isinstance(effect, self.core.steps.Resolve):
            found = tuple(self._found(world, effect.plan, index) for index in effect.indexes)
            yield who, self._go_on(world, agent, self.core.steps.Resolved(found))
        else:
            yield from super()._own_steps(world, agent, effect, who)

    def _found(self, world: Any, plan: Any, index: int) -> Any:
        """As `engine.perform` asks: the block's row says whether it landed."""
        number = plan.blocks[index].number
        row = next((row for row in world.rows if (row.batch, row.number) == (plan.batch, number) and row.after), None)
        totals = self.receipts.values[row.receipt].totals if row is not None else self.core.ledger.Totals()
        return self.core.steps.FoundBlock(index, row is not None, totals)


class WrappedQueries(Brought, Pushes):
    """A query into a wrapped sink."""

    def _raised(self, world: Any, agent: Any, error: Exception) -> Any:
        """A probe cannot be asked about rows that do not come again. Where pushing again is harmless, a push may arrive at any time."""
        if not isinstance(error, errors.OutcomeUnknown) or self._comes_again(agent):
            return super()._raised(world, agent, error)
        if self._may_arrive(world) and not self.scenario.harmless:
            return Violation("a person is asked about a block that may still arrive")
        if not self._has_reason(world, agent, error):
            return Violation(f"driver {agent.number} stopped without a reason: {type(error).__name__}: {error}")
        return self._leave(world, agent)

    def _comes_again(self, agent: Agent) -> bool:
        assert agent.came is not None
        driver, (first, end) = self.drivers.values[agent.driver], agent.came
        (came,) = (each for block in driver.pending.blocks for each in block.ranges)
        return bool(driver.pending.fingerprint == driver.policy.fingerprint and first <= came.first and came.end <= end)
