"""The world of `world.py`, with drivers that replay dead letters. `World.dead` is the folder that holds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from landonce import errors

from .core import Core
from .letters_folder import Folder
from .values import TOPIC, Agent, Faults, Job, Scenario, Violation, Worker, World
from .world import Model, Step

TOGETHER = ((3,),)
"""The first and the last record are dead letters, so that their block covers the same offsets as the one that was delivered."""
BOTH = frozenset({(0, 0), (0, 2)})

SCENARIOS = (
    Scenario("letters are replayed", TOGETHER, Faults(crash=1), dead=BOTH, table_partitions=1, starts=3, alive=1),
    Scenario(
        "a replay beside a driver",
        TOGETHER,
        Faults(crash=1),
        dead=BOTH,
        table_partitions=1,
        starts=3,
        clock=3,
    ),
    Scenario("a replay that gets no answer", TOGETHER, Faults(lost=1, forget=1), dead=BOTH, starts=3, alive=1),
    Scenario("a replay whose token is used up", TOGETHER, Faults(burn=1, crash=1), dead=BOTH, starts=3, alive=1),
    Scenario(
        "a replay, and the ledger does not answer",
        TOGETHER,
        Faults(unsure=2),
        dead=BOTH,
        table_partitions=1,
        starts=3,
        alive=1,
    ),
    Scenario(
        "a replay after the ledger was restored",
        ((1,), (3,)),
        Faults(restore=1, crash=1),
        dead=frozenset({(0, 2)}),
        table_partitions=1,
        starts=4,
        alive=1,
    ),
    Scenario(
        "a replay of letters that a restored ledger does not know",
        ((1,), (2,)),
        Faults(restore=1, crash=1),
        dead=frozenset({(0, 1)}),
        table_partitions=1,
        starts=4,
        alive=1,
    ),
    Scenario(
        "letters land when a restored ledger has them delivered again",
        ((1,), (2,), (3,)),
        Faults(restore=1, crash=1),
        dead=frozenset({(0, 1)}),
        corrected=True,
        table_partitions=1,
        starts=3,
        alive=1,
    ),
)


class LetterModel(Model):
    """Every second driver that starts may be one that replays."""

    def __init__(self, core: Core, scenario: Scenario) -> None:
        super().__init__(core, scenario)
        self.folder = Folder(core, "dead", self.bit, TOPIC, self.rejected)
        self._corrected = False
        """Of the write that is about to be launched."""
        self._launched_corrected: dict[tuple[int, int], tuple[int, ...]] = {}

    def replayed(self, world: World) -> int:
        return world.landed & self.rejected

    # ── drivers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _starts(self, world: World) -> Iterator[Step]:
        yield self.start(world)
        state = self.ledgers.values[world.ledger]
        if not state.fresh and self.folder.letters(world):
            label, started = self.start(world)
            assert isinstance(started, World)
            agent = started.drivers[-1]
            policy = replace(self.drivers.values[agent.driver].policy, replay=True, once=True)
            driver, effect = self.core.batch.begin(policy)
            agent = agent._replace(driver=self.drivers.of(driver), effect=self.effects.of(effect))
            yield f"{label}, to replay", started._replace(drivers=(*started.drivers[:-1], agent))

    def _replays(self, agent: Agent) -> bool:
        return bool(self.drivers.values[agent.driver].policy.replay)

    def _acquire(self, world: World, agent: Agent) -> World | Violation:
        taken = self.core.ledger.taken(self.ledgers.values[world.ledger], f"owner {agent.number}")
        return super()._acquire(self.folder.settled(world, taken, owner=True), agent)

    def driver_steps(self, world: World, agent: Agent) -> Iterator[Step]:
        effect = self.effects.values[agent.effect]
        held = self.drivers.values[agent.driver].ledger
        if isinstance(effect, self.core.steps.Survey) and held is not None:
            world = self.folder.settled(world, held, owner=False)
            if self._replays(agent):
                yield f"driver {agent.number}: survey of letters", self._go_on(world, agent, self._chosen(world, held))
                return
        yield from super().driver_steps(world, agent)

    def _chosen(self, world: World, held: Any) -> Any:
        letters = self.folder.chosen(world, held) if held.pending is None else None
        view = self.core.letters.topics_as_known(held)
        return replace(self._surveyed(world.level, world.clock), source=view, letters=letters)

    def _write(self, world: World, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        self._corrected = self.scenario.corrected and bool(world.restored)
        yield from super()._write(world, agent, effect, who)

    def _launch(self, agent: Agent) -> tuple[int, ...]:
        if not self._corrected:
            return super()._launch(agent)
        self._launched, others = self._launched_corrected, self._launched
        try:
            return super()._launch(agent)
        finally:
            self._launched = others

    def _change(self, world: World, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        if effect.step is self.core.steps.Step.PREPARE and effect.new.pending.kind is self.core.blocks.Kind.LETTERS:
            world = self.folder.storing(world, effect.new)
        yield from super()._change(world, agent, effect, who)

    def _raised(self, world: World, agent: Agent, error: Exception) -> World | Violation:
        pending = isinstance(error, errors.PlanPending)
        if self._replays(agent) and (pending or (isinstance(error, errors.ReplayRefused) and world.restored)):
            return self._leave(world, agent)
        return super()._raised(world, agent, error)

    def _commit(self, world: World, agent: Agent, effect: Any) -> World | Violation:
        """What the receipts name becomes dead letters, unless a newer driver has the pipeline (`Letters.publish`). All that are replayed
        can land by now, so none of those is written again."""
        held, dead = self.drivers.values[agent.driver].ledger, 0
        try:
            if any(each.dead_letters for each in effect.receipts):
                self.core.ledger.require_owner(held, self.ledgers.values[world.ledger])
        except errors.Fenced as error:
            return self._raised(world, agent, error)
        for each in effect.receipts:
            dead |= int(each.dead_letters or 0)
        if effect.plan.kind is not self.core.blocks.Kind.LETTERS:
            ranges = [each for block in effect.plan.blocks for each in block.ranges]
            delivered = sum(self._within(each.partition.number, each.first, each.end) for each in ranges)
            world = self.folder.landing(world, held, delivered & ~dead)
        return self._go_on(world._replace(dead=world.dead | dead), agent, None)

    def _job(self, identity: Any, plan: Any, index: int) -> Job:
        """The letters alone, which lie between records that landed long ago."""
        job = super()._job(identity, plan, index)
        if plan.kind is not self.core.blocks.Kind.LETTERS:
            rejected = self.rejected & sum(
                self._within(each.partition.number, each.first, each.end) for each in plan.blocks[index].ranges
            )
            if self._corrected:
                return self._landing(job, plan.blocks[index], rejected)
            return replace(job, result=self._with_letters(job.result, rejected))
        block = plan.blocks[index]
        letters = self.folder.of_plan(plan)
        rows = [
            (each, bit)
            for each, bit in self.bit.items()
            if bit & letters and any(at.partition.number == each[0] and at.holds(each[1]) for at in block.ranges)
        ]
        parts = tuple(
            sum(bit for each, bit in rows if self.part[each] == part) for part in range(self.scenario.table_partitions)
        )
        receipt = self.core.receipt.Receipt(read=len(rows), landed=len(rows))
        result = self.results.of(self.core.receipt.BlockResult(index, self.core.receipt.Fate.LANDED, receipt))
        return replace(job, parts=parts, rows=sum(bit for _, bit in rows), result=result, fill=True)

    def _landing(self, job: Job, block: Any, rejected: int) -> Job:
        """The file is corrected: these are rows like the others."""
        rows = job.rows | rejected
        parts = tuple(
            sum(bit for each, bit in self.bit.items() if bit & rows and self.part[each] == part)
            for part in range(self.scenario.table_partitions)
        )
        return replace(job, parts=parts, rows=rows, result=self._with_letters(job.result, 0))

    def _with_letters(self, result: int, dead: int) -> int:
        """The same result, with these records as the block's dead letters. Those that were dead letters before and are none now landed."""
        known = self.results.values[result]
        receipt, count = known.receipt, dead.bit_count()
        landed = receipt.landed + receipt.dead_lettered - count
        receipt = replace(receipt, landed=landed, dead_lettered=count, dead_letters=str(dead) if dead else "")
        return self.results.of(replace(known, receipt=receipt))

    def _report(self, world: World, worker: Worker, result: int) -> World:
        """As `InsertWorker.landed_anyway`: production code says when a worker looks for the records that it cannot decode."""
        receipt = self.results.values[result].receipt
        mode = self.settlings.values[worker.settling].mode
        if receipt is not None and receipt.dead_letters and self.core.settle.looks_for_rejected(mode):
            result = self._with_letters(result, int(receipt.dead_letters) & ~world.landed)
        return super()._report(world, worker, result)

    def _ledger_faults(self, world: World) -> Iterator[Step]:
        """A ledger that was backed up while a replay was pending is out of step with the folder, and a person is asked."""
        pending = self.ledgers.values[world.ledger].pending
        if pending is None or pending.kind is not self.core.blocks.Kind.LETTERS:
            yield from super()._ledger_faults(world)

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────────

    def wrong(self, world: World) -> str:
        """Beside what holds for all: nobody finds a record in the target and in the folder, unless a replay is on its way, and the
        ledger's account is what is there."""
        letters, state = self.folder.letters(world), self.ledgers.values[world.ledger]
        lost, moving = super().wrong(world._replace(dead=letters)), self.folder.moving(world, state)
        if self.scenario.corrected and state.pending is not None:  # its rows land, and then it says which letters go
            moving |= letters & sum(
                self._within(each.partition.number, each.first, each.end)
                for block in state.pending.blocks
                for each in block.ranges
            )
        if lost or moving:
            return lost
        if letters & world.landed:
            return f"{self.name(letters & world.landed)} is in the target and in the dead letters"
        covered = sum(self._within(at.number, 0, end) for at, end in state.committed().items())
        if world.restored:  # a backup from before a replay counts letters that have landed, and no record twice
            more = state.totals.read > covered.bit_count()
            return "blocks are left over, or the totals are not possible" if more else ""
        there = (covered & world.landed).bit_count(), (covered & letters).bit_count()
        if state.pending is None and (state.totals.landed, state.totals.dead_lettered) != there:
            return f"blocks are left over, or the totals are not {there}"
        return ""
