"""The world of `transaction_world`, with drivers that replay dead letters. `Base.letters` is the folder that holds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from landonce import errors

from .core import Core
from .letters_folder import Folder
from .snapshot_topics import TOPIC
from .transaction_values import Agent, Base, Faults, Job, Scenario
from .transaction_world import Step, Transactions
from .values import Violation

SCENARIOS = (
    Scenario("letters land in transactions", ("!A!",), Faults(crash=1, lost=1), starts=3, alive=1),
    Scenario("letters land beside a driver", ("!A",), Faults(crash=1), starts=3, alive=2),
    Scenario("workers outlive their replay", ("!A!",), Faults(abandon=1, rerun=1), starts=3, alive=1),
    Scenario("a replay, and the database does not answer", ("!A",), Faults(unsure=2, server=1), starts=3, alive=1),
)


class LetterTransactions(Transactions):
    """Every second driver that starts may be one that replays. All that it replays can land by now."""

    def __init__(self, core: Core, scenario: Scenario) -> None:
        super().__init__(core, scenario)
        self.folder = Folder(core, "letters", self.topics.bit, TOPIC, self.topics.dead)

    def _of_letters(self, plan: Any) -> bool:
        return plan is not None and plan.kind is self.core.blocks.Kind.LETTERS

    def _replays(self, agent: Agent) -> bool:
        return bool(self.drivers.values[agent.driver].policy.replay)

    def _starts(self, world: Base) -> Iterator[Step]:
        yield self.start(world)
        if not self.ledgers.values[world.ledger].fresh and self.folder.letters(world):
            label, started = self.start(world)
            assert isinstance(started, Base)
            agent = started.drivers[-1]
            policy = replace(self.drivers.values[agent.driver].policy, replay=True)
            driver, effect = self.core.batch.begin(policy)
            agent = agent._replace(driver=self.drivers.of(driver), effect=self.effects.of(effect))
            yield f"{label}, to replay", started._replace(drivers=(*started.drivers[:-1], agent))

    def _acquire(self, world: Base, agent: Agent, who: str) -> Iterator[Step]:
        taken = self.core.ledger.taken(self.ledgers.values[world.ledger], f"owner {agent.number}")
        yield from super()._acquire(self.folder.settled(world, taken, owner=True), agent, who)

    def driver_steps(self, world: Base, agent: Agent) -> Iterator[Step]:
        effect, held = self.effects.values[agent.effect], self.drivers.values[agent.driver].ledger
        if isinstance(effect, self.core.steps.Survey) and held is not None:
            world = self.folder.settled(world, held, owner=False)
            if self._replays(agent):
                yield f"driver {agent.number}: survey of letters", self._go_on(world, agent, self._chosen(world, held))
                return
        if isinstance(effect, self.core.steps.Commit):
            yield f"driver {agent.number}: {effect.step.value}", self._publish(world, agent, effect)
            return
        yield from super().driver_steps(world, agent)

    def _chosen(self, world: Base, held: Any) -> Any:
        letters = self.folder.chosen(world, held) if held.pending is None else None
        view = self.core.letters.topics_as_known(held)
        return replace(self.topics.surveyed(world.level, 8, False), source=view, letters=letters)

    def _publish(self, world: Base, agent: Agent, effect: Any) -> Base | Violation:
        """As `Letters.publish`: what the receipts name counts from now on, unless a newer driver has the pipeline."""
        dead = self.topics.of(at for block in effect.plan.blocks for at in block.ranges) & self.topics.dead
        if dead and not self._of_letters(effect.plan):
            held = self.drivers.values[agent.driver].ledger
            try:
                self.core.ledger.require_owner(held, self.ledgers.values[world.ledger])
            except errors.Fenced as error:
                return self._raised(world, agent, error)
            world = world._replace(letters=world.letters | dead)
        return self._go_on(world, agent, None)

    def _change(self, world: Base, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        if effect.step is self.core.steps.Step.PREPARE and self._of_letters(effect.new.pending):
            world = self.folder.storing(world, effect.new)
        yield from super()._change(world, agent, effect, who)

    def _beyond(self, world: Base, agent: Agent, effect: Any) -> int:
        return world.beyond if self._of_letters(effect.old.pending) else super()._beyond(world, agent, effect)

    def _too_many(self, agent: Agent, effect: Any, beyond: int) -> str:
        """Nothing that was a letter before is a new one."""
        return "" if self._of_letters(effect.old.pending) else super()._too_many(agent, effect, beyond)

    def _raised(self, world: Base, agent: Agent, error: Exception) -> Base | Violation:
        if self._replays(agent) and isinstance(error, errors.PlanPending):
            return self._leave(world, agent)
        return super()._raised(world, agent, error)

    def _job(self, plan: Any, index: int, claim: Any) -> int:
        """The letters alone, which lie between records that landed long ago."""
        number = super()._job(plan, index, claim)
        if not self._of_letters(plan):
            return number
        job: Job = self.jobs.values[number]
        rows = self.topics.of(plan.blocks[index].ranges) & self.folder.of_plan(plan)
        receipt = self.core.receipt.Receipt(read=rows.bit_count(), landed=rows.bit_count())
        return self.jobs.of(job._replace(rows=rows, receipt=self.receipts.of(receipt)))

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────────

    def wrong(self, world: Base) -> str:
        """Beside what holds for all: nobody finds a record in the table and in the folder, unless a replay is on its way, and the ledger's
        account is what is there."""
        letters, state = self.folder.letters(world), self.ledgers.values[world.ledger]
        lost = super().wrong(world._replace(letters=letters))
        if lost or self.folder.moving(world, state):
            return lost
        if letters & world.landed:
            return f"{self.topics.name(letters & world.landed)} is in the table and in the dead letters"
        covered = self.topics.below(state.positions)
        there = (covered & world.landed).bit_count(), (covered & letters).bit_count()
        if state.pending is None and (state.totals.landed, state.totals.dead_lettered) != there:
            return f"blocks are left over, or the totals are not {there}"
        return ""

    def _unfinished(self, world: Base) -> str:
        """What a replay landed is a letter no more."""
        known = self.folder.letters(world) | (world.landed & self.topics.dead)
        return super()._unfinished(world._replace(letters=known))
