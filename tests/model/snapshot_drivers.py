"""A driver of tables with snapshots: how it starts, goes on, sends a commit, and leaves. What decides is production code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from landonce import errors

from .core import Core
from .snapshot_tables import Tables
from .snapshot_topics import Topics
from .snapshot_values import KINDS, NONE, Agent, Attempt, Lake, Scenario
from .values import Table, Violation

Step = tuple[str, Lake | Violation]
LAST = 90
"""Drivers with a higher number run when everybody else is gone and nothing goes wrong any more."""


class Drivers:
    """What all effects have in common."""

    def __init__(self, core: Core, scenario: Scenario) -> None:
        self.core, self.scenario = core, scenario
        self.topics = Topics(core, scenario)
        self.tables = Tables(core, scenario, self.topics)
        self.ledgers, self.drivers, self.effects = Table(), Table(), Table()
        self._advanced: dict[Any, Any] = {}
        self._written: dict[Any, Any] = {}
        self.kinds = {kind: at for at, kind in enumerate(KINDS)}

    def start(self, world: Lake, *, patient: bool = False) -> Step:
        """`patient`: an operator has seen to everything that a driver may ask for."""
        number = world.starts + 1
        prints = self.scenario.fingerprints
        pending = self.ledgers.values[world.ledger].pending if patient else None
        policy = self.core.snapshot.Snapshot(
            target="tables",
            fingerprint=pending.fingerprint if pending else prints[min(number, len(prints)) - 1],
            start=self.core.source.Start.LATEST if self.scenario.latest else self.core.source.Start.EARLIEST,
            once=self.scenario.once,
            own_ledger=self.scenario.own,
            follow=self.scenario.follow or patient,
            in_parts=self.scenario.faults.slow > 0,
        )
        driver, effect = self.core.batch.begin(policy)
        agent = Agent(number, 1, self.drivers.of(driver), self.effects.of(effect), NONE, False, (), None, NONE)
        return f"driver {number} starts", world._replace(drivers=(*world.drivers, agent), starts=number)

    def owner(self, agent: Agent) -> str:
        return f"{agent.number}.{agent.takes}"

    def held(self, agent: Agent) -> Any:
        """The ledger's state as the driver holds it."""
        return self.drivers.values[agent.driver].state

    # ── going on ────────────────────────────────────────────────────────────────────────────────────────────────────

    def go_on(self, world: Lake, agent: Agent, key: Any, reply: Callable[[], Any]) -> Lake | Violation:
        """The production code takes the reply and says what is next; what touches nothing outside is done at once."""
        answer = self._advance(agent, key, reply)
        if isinstance(answer, Exception):
            return self.raised(world, agent, answer)
        after = agent._replace(driver=answer[0], effect=answer[1], done=(), attempt=None)
        return self._go_on_inside(self.put(world, agent, after), after)

    def _advance(self, agent: Agent, key: Any, reply: Callable[[], Any]) -> Any:
        known = self._advanced.get((agent.driver, agent.effect, key))
        if known is None:
            try:
                after, effect = self.drivers.values[agent.driver].advance(reply())
                known = (self.drivers.of(after), self.effects.of(effect))
            except Exception as error:  # named errors are part of the protocol; others are judged as defects
                known = error
            self._advanced[agent.driver, agent.effect, key] = known
        return known

    def _go_on_inside(self, world: Lake, agent: Agent) -> Lake | Violation:
        effect = self.effects.values[agent.effect]
        if isinstance(effect, self.core.steps.Stop):
            return self.stopped(world, agent)
        if isinstance(effect, self.core.steps.Survey) and self._nothing_to_see(world, agent):
            return self.survey(world, agent)
        slow = isinstance(effect, self.core.steps.Write) and effect.in_parts and self.left(world, "slow")
        if isinstance(effect, self.core.steps.Write) and not self.left(world, "doubt") and not slow:
            return self.write(world, agent, effect)
        if self.scenario.own and isinstance(effect, self.core.steps.Change) and self._kept(agent, effect):
            return self.go_on(world, agent, "kept", lambda: effect.new)
        return world

    def stopped(self, world: Lake, agent: Agent) -> Lake:
        """A driver that is done."""
        return self.leave(world, agent)

    def _kept(self, agent: Agent, effect: Any) -> bool:
        """Where the table is the ledger, a pending plan is not written, and what was committed is recorded already."""
        if effect.new.pending is not None:
            return True
        last = self.tables.owns.values[agent.expected].last
        return last is not None and self.core.ledger.key(last.state) == self.core.ledger.key(effect.new)

    def _nothing_to_see(self, world: Lake, agent: Agent) -> bool:
        return agent.level != NONE or world.level + 1 == len(self.topics.levels)

    def survey(self, world: Lake, agent: Agent) -> Lake | Violation:
        level = agent.level if agent.level != NONE else world.level
        rows = self.scenario.max_rows[min(agent.number, len(self.scenario.max_rows)) - 1]
        after = agent._replace(level=level if self.scenario.once else NONE, idle=False)
        key = ("surveyed", level, rows, agent.idle)
        world = self.put(world, agent, after)
        return self.go_on(world, after, key, lambda: self.topics.surveyed(level, rows, agent.idle))

    def write(self, world: Lake, agent: Agent, effect: Any, doubtful: int = NONE) -> Lake | Violation:
        """Files only: nobody sees them before a commit names them."""
        if self.drivers.values[agent.driver].policy.fingerprint != effect.plan.fingerprint:
            return Violation("a plan is written with another transform than it was made with")

        def results() -> tuple[Any, ...]:
            return tuple(self._result(effect, index, index == doubtful) for index in effect.indexes)

        return self.go_on(world, agent, ("written", doubtful), results)

    def parts(self, effect: Any) -> Iterator[tuple[int, ...]]:
        """Which blocks may go ahead, once some are slow: nobody goes ahead with less than the beginnings of partitions."""
        blocks, seen = effect.plan.blocks, set()
        before = [index for index in range(len(blocks)) if index not in effect.indexes]
        for count in range(len(effect.indexes)):
            for ready in combinations(effect.indexes, count):
                ahead = self.core.packing.ready_first(blocks, (*before, *ready))
                if ahead and len(ahead) < len(blocks) and ahead not in seen:
                    seen.add(ahead)
                    yield ahead

    def cut(self, world: Lake, agent: Agent, effect: Any, ahead: tuple[int, ...]) -> Lake | Violation:
        """The commit timeout is over, and these blocks are ready."""
        late = self.topics.of(
            each for at, block in enumerate(effect.plan.blocks) if at not in ahead for each in block.ranges
        )
        if late & agent.owed:
            return Violation(f"{self.topics.name(late & agent.owed)} is cut off again, and may never land")
        slow = self.core.receipt.Fate.SLOW

        def results() -> tuple[Any, ...]:
            return tuple(
                self._result(effect, index, doubtful=False)
                if index in ahead
                else self.core.receipt.BlockResult(index, slow)
                for index in effect.indexes
            )

        after = agent._replace(owed=agent.owed | late)
        return self.go_on(self.put(self.spend(world, "slow"), agent, after), after, ("cut", ahead), results)

    def _result(self, effect: Any, index: int, doubtful: bool) -> Any:
        receipt, fate = self.core.receipt, self.core.receipt.Fate
        if doubtful:
            return receipt.BlockResult(index, fate.DOUBTFUL)
        replay = effect.plan.kind is self.core.blocks.Kind.REPLAY
        bits = self.topics.of(effect.plan.blocks[index].ranges)
        files, wants = [], []
        for table, name in enumerate(self.scenario.tables):
            rows = bits & self.topics.meant[table] & self._allowed(effect.tables, name)
            if rows and any(each.view.table == name and not each.view.uuid for each in effect.tables):
                wants.append(table)
            if rows:
                files.append((name, (rows,)))
        if wants:
            return receipt.BlockResult(index, fate.WAITING, wants=tuple(wants))
        dead = bits & self.topics.dead
        account = receipt.Receipt(
            read=bits.bit_count(),
            landed=(bits & ~dead & ~self.topics.filtered).bit_count(),
            filtered=(bits & self.topics.filtered).bit_count(),
            dead_lettered=dead.bit_count(),
            dead_letters=str(dead) if dead and not replay else "",
            files=tuple(files),
        )
        return receipt.BlockResult(index, fate.LANDED, account)

    def _allowed(self, tables: Any, name: str) -> int:
        """Tables that take no part get no rows."""
        if self.scenario.own:
            return self.topics.above(())
        return next((self.topics.above(each.floors) for each in tables if each.view.table == name), 0)

    # ── sending a commit ────────────────────────────────────────────────────────────────────────────────────────────

    def send(
        self, world: Lake, agent: Agent, who: str, accepted: Callable[[Lake, Agent], Lake | Violation]
    ) -> Iterator[Step]:
        """One request to the catalog: accepted or refused, answered or not, at once or later."""
        attempt = agent.attempt
        assert attempt is not None
        name = self.scenario.tables[attempt.table]
        rows = self.topics.name(attempt.rows) or "nothing"
        again = self._from_the_start(agent)
        if not self.tables.fits(world.tables[attempt.table], attempt):
            yield f"{who}: table {name} refuses, its head moved", self.put(world, agent, agent._replace(attempt=None))
        else:
            after = self.arrive(world, attempt)
            label = f"{who}: table {name} takes {rows}"
            if isinstance(after, Violation):
                yield label, after
                return
            yield label, accepted(after, agent)
            if self.left(world, "lost"):
                yield f"{label}, unanswered", self.put(self.spend(after, "lost"), agent, again)
        if self.left(world, "late"):
            yield f"{who}: {rows} is on its way to table {name}", self.put(self.fly(world, attempt), agent, again)

    def _from_the_start(self, agent: Agent) -> Agent:
        """An effect without an answer is performed again, whole."""
        taking = isinstance(self.effects.values[agent.effect], self.core.steps.Acquire)
        return agent._replace(done=(), attempt=None, takes=agent.takes + taking)

    def arrive(self, world: Lake, attempt: Attempt) -> Lake | Violation:
        after = self.tables.landed(world.tables[attempt.table], attempt)
        return after if isinstance(after, Violation) else self.touch(world, attempt.table, after)

    def fly(self, world: Lake, attempt: Attempt) -> Lake:
        flights = tuple(sorted((*world.flights, attempt)))
        return self.spend(world, "late")._replace(flights=flights)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def raised(self, world: Lake, agent: Agent, error: Exception) -> Lake | Violation:
        """A driver that halts has left; whether it was right to halt is judged here."""
        if isinstance(error, errors.RolledBack) and agent.number < LAST and self._rolls:
            return self._again(world, agent)
        if not self._right(world, agent, error):
            return Violation(f"driver {agent.number} stopped without a reason: {type(error).__name__}: {error}")
        halted = type(error).__name__ if agent.number > LAST else world.halted
        return self.leave(world, agent)._replace(halted=halted)

    @property
    def _rolls(self) -> bool:
        return self.scenario.faults.rollback + self.scenario.faults.forward > 0

    def _again(self, world: Lake, agent: Agent) -> Lake:
        """From the beginning, because the table was rolled back."""
        before = self.drivers.values[agent.driver]
        driver, effect = self.core.batch.begin(before.policy)
        after = agent._replace(
            takes=agent.takes + 1, driver=self.drivers.of(driver), effect=self.effects.of(effect),
            done=(), attempt=None, expected=NONE, owed=0,
        )  # fmt: skip
        return self.put(world, agent, after)

    def _right(self, world: Lake, agent: Agent, error: Exception) -> bool:
        """A driver that was taken over sees a world that it cannot judge, so it asks the ledger before it says why.

        Other halts have a reason in the tables, and each scenario says which of them it may come to.
        """
        driver = self.drivers.values[agent.driver]
        if isinstance(error, errors.LandonceError) and (
            self._taken_over(world, agent) or self.refused(world, agent, error)
        ):
            return True
        if isinstance(error, errors.PlanChanged):
            return bool(driver.pending.fingerprint != driver.policy.fingerprint)
        tabs = [self.tables.tabs.values[each] for each in world.tables]
        moment = agent.number < LAST and self._unsteady  # since it looked
        reasons: dict[type[Exception], bool] = {
            errors.TableReplaced: any(self.tables.replaced(tab) for tab in tabs),
            errors.PositionUncertain: any(self.tables.cut(tab) for tab in tabs) or moment,
            errors.TargetAhead: any(self.tables.cut(tab) for tab in tabs) or moment,
            errors.RollbackRefused: not driver.policy.follow,
            errors.Fenced: moment,
            errors.LedgerSetBack: moment,
        }
        return type(error).__name__ in self.scenario.halts and reasons.get(type(error), False)

    def refused(self, world: Lake, agent: Agent, error: errors.LandonceError) -> bool:
        """Whether a driver may refuse the ranges that it was given."""
        del world, agent, error
        return False

    @property
    def _unsteady(self) -> bool:
        """What a driver saw in a table may be otherwise by the time it says so."""
        return bool(self.scenario.faults.forward or self.scenario.faults.late or self.scenario.careless)

    def _taken_over(self, world: Lake, agent: Agent) -> bool:
        held = self.drivers.values[agent.driver].ledger
        if held is None or agent.number > LAST:
            return False
        if not self.scenario.own:
            return bool(held.owner != self.ledgers.values[world.ledger].owner)
        last = self.tables.owns.values[self.tables.own(world.tables[0])].last
        return last is not None and last.state.owner != held.owner

    # ── parts of a world ────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, world: Lake, agent: Agent, after: Agent) -> Lake:
        return world._replace(drivers=tuple(after if each is agent else each for each in world.drivers))

    def leave(self, world: Lake, agent: Agent) -> Lake:
        return world._replace(drivers=tuple(each for each in world.drivers if each is not agent))

    def touch(self, world: Lake, table: int, after: int) -> Lake:
        return world._replace(tables=(*world.tables[:table], after, *world.tables[table + 1 :]))

    def left(self, world: Lake, kind: str) -> int:
        return world.left[self.kinds[kind]]

    def spend(self, world: Lake, kind: str) -> Lake:
        at = self.kinds[kind]
        return world._replace(left=(*world.left[:at], world.left[at] - 1, *world.left[at + 1 :]))
