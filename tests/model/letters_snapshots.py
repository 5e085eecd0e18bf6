"""The world of `snapshot_world`, with drivers that replay dead letters. `Lake.letters` is the folder that holds them.

All that is replayed can land by now, in the first table. Where the table is its own ledger, a plan of letters is never pending: it is
committed, or it is nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from landonce import errors

from .core import Core
from .letters_folder import Folder
from .snapshot_drivers import Step
from .snapshot_tables import Tables
from .snapshot_topics import TOPIC
from .snapshot_values import Agent, Faults, Lake, Scenario, Tab
from .snapshot_world import Snapshots
from .values import Violation

SCENARIOS = (
    Scenario("own: letters land in a commit", ("!A!",), Faults(crash=1, lost=1), own=True, starts=3, alive=1),
    Scenario("own: letters land beside a driver", ("!A",), Faults(), own=True, starts=3, alive=2),
    Scenario("own: a commit of letters comes late", ("!A",), Faults(late=1, crash=1), own=True, starts=3, alive=1),
    Scenario("fan-out: letters land", ("!AB",), Faults(crash=1, lost=1), tables="AB", starts=3, alive=1),
    Scenario("fan-out: letters land beside a driver", ("!A",), Faults(), tables="AB", starts=3, alive=2),
)


class LetterTables(Tables):
    """Tables that may also hold what was a dead letter."""

    def _untrue(self, tab: Tab, table: int) -> str:
        landed = self.total(tab) & self.topics.dead if table == 0 else 0
        meant = self.topics.meant[table]
        self.topics.meant[table] = meant | landed
        try:
            return super()._untrue(tab, table)
        finally:
            self.topics.meant[table] = meant


class LetterSnapshots(Snapshots):
    """Every second driver that starts may be one that replays."""

    def __init__(self, core: Core, scenario: Scenario) -> None:
        super().__init__(core, scenario)
        self.tables = LetterTables(core, scenario, self.topics)
        self.folder = Folder(core, "letters", self.topics.bit, TOPIC, self.topics.dead)

    def _of_letters(self, plan: Any) -> bool:
        return plan is not None and plan.kind is self.core.blocks.Kind.LETTERS

    def _replays(self, agent: Agent) -> bool:
        return bool(self.drivers.values[agent.driver].policy.replay)

    def _known(self, world: Lake) -> Any:
        """The ledger as it is; None before the first commit of a table that is its own."""
        if not self.scenario.own:
            return self.ledgers.values[world.ledger]
        last = self.tables.owns.values[self.tables.own(world.tables[0])].last
        return last.state if last is not None else None

    def _landed(self, world: Lake) -> int:
        """The records that were dead letters, and are in the table."""
        return self.tables.total(self.tables.tabs.values[world.tables[0]]) & self.topics.dead

    # ── drivers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def starts(self, world: Lake) -> Iterator[Step]:
        yield self.start(world)
        state = self._known(world)
        if state is not None and not state.fresh and self.folder.letters(world):
            label, started = self.start(world)
            assert isinstance(started, Lake)
            agent = started.drivers[-1]
            policy = replace(self.drivers.values[agent.driver].policy, replay=True, once=True)
            driver, effect = self.core.batch.begin(policy)
            agent = agent._replace(driver=self.drivers.of(driver), effect=self.effects.of(effect))
            yield f"{label}, to replay", started._replace(drivers=(*started.drivers[:-1], agent))

    def survey(self, world: Lake, agent: Agent) -> Lake | Violation:
        held = self.drivers.values[agent.driver].ledger
        world = self.folder.settled(world, held, owner=False)
        if not self._replays(agent):
            return super().survey(world, agent)
        letters = self.folder.chosen(world, held) if held.pending is None else None

        def surveyed() -> Any:
            view = self.core.letters.topics_as_known(held)
            return replace(self.topics.surveyed(world.level, 8, False), source=view, letters=letters)

        return self.go_on(world, agent, ("letters", letters.digest if letters else ""), surveyed)

    def _go_on_inside(self, world: Lake, agent: Agent) -> Lake | Violation:
        effect = self.effects.values[agent.effect]
        if self.scenario.own and isinstance(effect, self.core.steps.Change) and self._of_letters(effect.new.pending):
            world = self.folder.storing(world, effect.new)
        return super()._go_on_inside(world, agent)

    def _change(self, world: Lake, agent: Agent, effect: Any) -> Lake | Violation:
        if effect.step is self.core.steps.Step.PREPARE and self._of_letters(effect.new.pending):
            world = self.folder.storing(world, effect.new)
        return super()._change(world, agent, effect)

    def _acquire(self, world: Lake, agent: Agent) -> Lake | Violation:
        taken = self.core.ledger.taken(self.ledgers.values[world.ledger], self.owner(agent))
        return super()._acquire(self.folder.settled(world, taken, owner=True), agent)

    def _result(self, effect: Any, index: int, doubtful: bool) -> Any:
        """The letters alone, which lie between records that landed long ago."""
        if doubtful or not self._of_letters(effect.plan):
            return super()._result(effect, index, doubtful)
        rows = self.topics.of(effect.plan.blocks[index].ranges) & self.folder.of_plan(effect.plan)
        table, count = self.scenario.tables[0], rows.bit_count()
        taken = rows & self._allowed(effect.tables, table)
        files = ((table, (taken,)),) if taken else ()
        receipt = self.core.receipt.Receipt(read=count, landed=count, files=files)
        return self.core.receipt.BlockResult(index, self.core.receipt.Fate.LANDED, receipt)

    def _committed(self, world: Lake, agent: Agent, effect: Any, done: dict[int, Any]) -> Lake | Violation:
        """As `Letters.publish`: a newer driver may have recorded the plan, and its letters may have landed since."""
        if self._letters(effect.receipts) and all(verdict != "moved" for verdict, _ in done.values()):
            try:
                self.core.ledger.require_owner(self.held(agent), self._known(world))
            except errors.Fenced as error:
                return self.raised(world, agent, error)
        return super()._committed(world, agent, effect, done)

    def _own_done(self, world: Lake, agent: Agent, effect: Any) -> Lake | Violation:
        """What a start may take away of replays is what it found before it took the pipeline: later ones may be a newer driver's."""
        if isinstance(effect, self.core.steps.Acquire):
            world = self.folder.settled(world, self._known(world), owner=True)
        return super()._own_done(world, agent, effect)

    def _own_replied(self, world: Lake, agent: Agent, effect: Any) -> Lake | Violation:
        """A start publishes what is staged still: what was published before is left alone, for it may have landed since."""
        view = self.tables.owns.values[agent.expected]
        named = sum(int(each) for each in view.valid.letters) if view.valid else 0
        if isinstance(effect, self.core.steps.Acquire):
            after = super()._own_replied(world, agent, effect)
            return after if isinstance(after, Violation) else self._without(after, named & self._landed(world))
        if not isinstance(effect, self.core.steps.Change) and named:
            try:
                self.core.ledger.require_owner(effect.after, self._known(world))
            except errors.Fenced as error:
                return self.raised(world, agent, error)
        return super()._own_replied(world, agent, effect)

    def _without(self, world: Lake, gone: int) -> Lake:
        return self.folder.holding(world, self.folder.letters(world) & ~gone, self.folder.files(world))

    def raised(self, world: Lake, agent: Agent, error: Exception) -> Lake | Violation:
        if self._replays(agent) and isinstance(error, errors.PlanPending):
            return self.leave(world, agent)
        return super().raised(world, agent, error)

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────────

    def wrong(self, world: Lake) -> str:
        """Beside what holds for all: nobody finds a record in the table and in the folder, or in neither, unless a replay is on its way, and
        the ledger's account is what is there."""
        wrong, state = super().wrong(world), self._known(world)
        if wrong or state is None or self.folder.moving(world, state):
            return wrong
        letters, landed = self.folder.letters(world), self._landed(world)
        if letters & landed:
            return f"{self.topics.name(letters & landed)} is in the table and in the dead letters"
        lost = self.topics.below(state.positions) & self.topics.dead & ~letters & ~landed
        if lost and not self.scenario.own:  # a table that is its own ledger has the batch before its letters count
            return f"the committed position covers {self.topics.name(lost)}, which is nowhere"
        return ""

    def _unfinished(self, world: Lake) -> str:
        """What a replay landed is a letter no more."""
        letters, landed = self.folder.letters(world), self._landed(world)
        unfinished = super()._unfinished(world._replace(letters=letters | landed))
        if unfinished or world.halted:
            return unfinished
        state, due = self._status(world), self.topics.due(world.level, world.promised)
        there = (due & ~self.topics.dead & ~self.topics.filtered | landed).bit_count(), letters.bit_count()
        if (state.totals.landed, state.totals.dead_lettered) != there:
            return f"blocks are left over, or the totals are not {there}"
        return ""
