"""A driver that pushes: the batch machine over the store as its source, and workers that freeze a block before they send it.

Targets and their protocols have models of their own. This one is simple: it lands a block once, by its token, and refuses one whose plan is
recorded (by a deadline, or by the row of the block).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .dedup_accept import Accepting
from .dedup_drivers import Step
from .dedup_values import Agent, World
from .values import Violation

TABLE = "table"


class Pushing(Accepting):
    """Every step of such a driver."""

    def pushes(self, world: World, before: Agent | None, after: Agent | None) -> World:
        return world._replace(pushing=self.replaced(world.pushing, before, after))

    def start_pushing(self, world: World, pipeline: int, number: int) -> Step:
        """The fingerprint of its plans is the target: code that changed is no reason to refuse a plan."""
        policy = self.core.transactional.Transactional(TABLE, "target", once=True)
        started = world._replace(starts=(world.starts[0], number))
        return f"push driver {number} starts", self.pushes(started, None, self.begun(policy, pipeline, number))

    def push_steps(self, world: World, agent: Agent) -> Iterator[Step]:
        effect, steps = self.effect(agent), self.core.steps
        who = f"push driver {agent.number}: {effect.step.value}"
        if isinstance(effect, steps.Acquire):
            yield who, self._take(world, agent)
        elif isinstance(effect, steps.Survey):
            yield from self._survey(world, agent, who)
        elif isinstance(effect, steps.Look):
            yield who, self._ask(world, agent, effect)
        elif isinstance(effect, steps.Change):
            yield who, self._change(world, agent, effect)
        elif isinstance(effect, steps.Write):
            yield from self._write_steps(world, agent, effect, who)

    def _take(self, world: World, agent: Agent) -> World | Violation:
        taken = self.core.ledger.taken(self._ledger(world, agent), f"push {self.owner(agent)}")
        return self._next(self._put_ledger(world, agent, taken), agent, ("taken", taken), taken)

    def _ledger(self, world: World, agent: Agent) -> Any:
        return self.ledgers.values[world.ledgers[agent.pipeline]]

    def _put_ledger(self, world: World, agent: Agent, state: Any) -> World:
        ledgers = list(world.ledgers)
        ledgers[agent.pipeline] = self.ledgers.of(state)
        return world._replace(ledgers=tuple(ledgers))

    def _survey(self, world: World, agent: Agent, who: str) -> Iterator[Step]:
        """The store looks like the topics, up to what is accepted. Nobody surveys it before it knows them."""
        accepted = self.accepted(world, agent.pipeline)
        if accepted:
            removed = world.store.removed[agent.pipeline]
            extents = tuple((each, removed[each.number], end) for each, end in sorted(accepted.items()))
            yield who, self._next(world, agent, ("surveyed", extents), self.surveyed(agent, extents))

    def _ask(self, world: World, agent: Agent, effect: Any) -> World | Violation:
        """What the target holds above the position."""
        held = self.in_target(world, agent.pipeline) if self.scenario.compares else {}
        ends = tuple(
            (partition, held[partition]) for partition, floor in effect.floors if held.get(partition, 0) > floor
        )
        return self._next(world, agent, ("asked", ends), self.core.target.TargetView(ends))

    def _change(self, world: World, agent: Agent, effect: Any) -> World | Violation:
        seen = self._ledger(world, agent)
        if self.core.ledger.key(seen) != self.core.ledger.key(effect.old):
            return self._ended(world, agent, self.core.ledger.fenced(effect.old, seen))
        changed = self._put_ledger(world, agent, effect.new)
        if effect.step is self.core.steps.Step.RECORD:
            changed = self._sent(changed, agent.pipeline, effect.new.batch)
        return self._next(changed, agent, ("changed", effect.new), effect.new)

    def _sent(self, world: World, pipeline: int, batch: int) -> World:
        blocks = frozenset(
            (*block[:5], True) if block[0] == pipeline and block[1] <= batch else block for block in world.store.blocks
        )
        return world._replace(store=world.store._replace(blocks=blocks))

    def _next(self, world: World, agent: Agent, key: Any, reply: Any) -> World | Violation:
        steps = self.core.steps
        after = self.advanced(agent, key, lambda: reply)
        if isinstance(after, Exception):
            return self._ended(world, agent, after)
        effect = self.effect(after)
        if isinstance(effect, steps.Stop):
            return self.pushes(world, agent, None)
        world = self.pushes(world, agent, after)
        return self._next(world, after, "committed", None) if isinstance(effect, steps.Commit) else world

    def _ended(self, world: World, agent: Agent, error: Exception) -> World | Violation:
        taken_over = self._ledger(world, agent).owner != f"push {self.owner(agent)}"
        ended = self.stopped(agent, error, taken_over=taken_over)
        return ended if isinstance(ended, Violation) else self.pushes(world, agent, None)._replace(halted=ended)

    # ── workers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _write_steps(self, world: World, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        """One block after the other is read and decoded, unless it is stored; stored; and sent as it is stored."""
        index = effect.indexes[len(agent.done)]
        block = effect.plan.blocks[index]
        name = (agent.pipeline, effect.plan.batch, block.number)
        stored = self._stored(world, name, block.ranges)
        if stored is None and not self._readable(world, agent, block.ranges):
            if self._ledger(world, agent).owner != f"push {self.owner(agent)}":
                yield f"{who}: block {index} is not there any more", self.pushes(world, agent, None)
            return
        step, content = self.rules.next_push_step(stored, self._made(world, agent, block.ranges))
        if step is self.rules.PushStep.FREEZE:
            yield f"{who}: block {index} is stored", self._freeze(world, name, block.ranges, content)
            return
        if self._ledger(world, agent).pending != effect.plan:
            yield f"{who}: block {index} is refused", self.pushes(world, agent, None)
            return
        sent = self._send(world, agent, block, content)
        label = f"{who}: block {index} is sent"
        if isinstance(sent, Violation):
            yield label, sent
            return
        yield label, self._landed(sent, agent, effect, index, content)
        if self.left(world, "lost"):
            yield f"{label}, unanswered", self.spend(sent, "lost")
        if self.left(world, "unsure"):
            yield f"{label}, in vain", self.spend(world, "unsure")

    def _stored(self, world: World, name: Any, ranges: Any) -> Any:
        """What the store holds as the block of this name, if its ranges are these."""
        for block in world.store.blocks:
            if block[:3] == name and self.rules.keeps_stored(block[3], ranges):
                return block[4]
        return None

    def _readable(self, world: World, agent: Agent, ranges: Any) -> bool:
        accepted, removed = self.accepted(world, agent.pipeline), world.store.removed[agent.pipeline]
        return all(
            self.rules.all_accepted(each.end, accepted.get(each.partition, 0))
            and self.rules.none_removed(each.first, removed[each.partition.number])
            for each in ranges
        )

    def _made(self, world: World, agent: Agent, ranges: Any) -> Any:
        """What this driver's code makes of the accepted events."""
        bounds = {each.partition.number: each for each in ranges}
        rows = [
            row
            for pipeline, number, chunk in self.listed(world).chunks
            if pipeline == agent.pipeline and number in bounds
            for row in chunk
            if bounds[number].holds(row[0].place.offset)
        ]
        code = self.scenario.codes[min(agent.number, len(self.scenario.codes)) - 1]
        return code, tuple(sorted(rows))

    def _freeze(self, world: World, name: Any, ranges: Any, content: Any) -> World:
        """In place of a block of this name that has other ranges: a plan that a restored ledger forgot."""
        others = {block for block in world.store.blocks if block[:3] != name}
        blocks = frozenset({*others, (*name, ranges, content, False)})
        return world._replace(store=world.store._replace(blocks=blocks))

    def _send(self, world: World, agent: Agent, block: Any, content: Any) -> World | Violation:
        token = self.core.blocks.token(self.held(agent).identity, block)
        known = content if self.scenario.by_content else token
        landed = {(pipeline, which): each for pipeline, which, each in world.target}
        before = landed.get((agent.pipeline, known))
        if before is not None:
            return world if before == content else Violation(f"other bytes are sent for block {block} than before")
        rows = [row for _, each in landed.values() for row in each]
        for event, at in content[1]:
            for other, then in rows:
                if other.place == event.place:
                    return Violation(f"{self.name(event)} is in the target twice")
                if other.id == event.id and abs(at - then) <= self.scenario.ttl:
                    return Violation(f"{event.id} is in the target twice: {self.name(other)}, {self.name(event)}")
            rows.append((event, at))
        return world._replace(target=world.target | {(agent.pipeline, known, content)})

    def _landed(self, world: World, agent: Agent, effect: Any, index: int, content: Any) -> World | Violation:
        rows, receipt = len(content[1]), self.core.receipt
        result = receipt.BlockResult(index, receipt.Fate.LANDED, receipt.Receipt(read=rows, landed=rows))
        after = agent._replace(done=(*agent.done, result))
        world = self.pushes(world, agent, after)
        if len(after.done) < len(effect.indexes):
            return world
        return self._next(world, after, ("wrote", after.done), after.done)
