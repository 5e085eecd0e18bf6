"""A driver that accepts: the snapshot policy over the store as its own ledger, and workers that compare shard by shard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .core import Core
from .dedup_drivers import Drivers, Step
from .dedup_values import Agent, Scenario, World
from .values import Violation

GONE = -1
"""The version of a shard that is not there."""


class Accepting(Drivers):
    """Every step of such a driver."""

    def __init__(self, core: Core, scenario: Scenario) -> None:
        super().__init__(core, scenario)
        self._judged: dict[Any, Any] = {}

    def accepts(self, world: World, before: Agent | None, after: Agent | None) -> World:
        return world._replace(accepting=self.replaced(world.accepting, before, after))

    def start_accepting(self, world: World, pipeline: int, number: int) -> Step:
        policy = self.core.snapshot.Snapshot("store", "f", once=True, own_ledger=True)
        agent = self.begun(policy, pipeline, number)._replace(terms=self.listed(world).terms)
        started = world._replace(starts=(number, world.starts[1]))
        return f"driver {number} starts", self.accepts(started, None, agent)

    def accept_steps(self, world: World, agent: Agent) -> Iterator[Step]:
        effect, steps = self.effect(agent), self.core.steps
        who = f"driver {agent.number}: {effect.step.value}"
        if isinstance(effect, steps.LookAtTables):
            yield who, self._look(world, agent)
        elif isinstance(effect, steps.Write):
            yield from self._compare_steps(world, agent, effect, who)
        elif isinstance(effect, steps.CommitTables) and not agent.done:
            yield f"{who}: looks", self._judge_mark(world, agent, effect)
        elif isinstance(effect, steps.CommitTables):
            yield from self._commit_steps(world, agent, effect, who)
        else:
            yield from self._swap_steps(world, agent, effect, who)

    # ── the store's mark is the ledger ──────────────────────────────────────────────────────────────────────────────

    def _view(self, world: World, pipeline: int) -> int:
        number, mark = self.mark(world, pipeline)
        seen = replace(mark, snapshot=number) if mark is not None else None
        return self.views.of(self.core.own_ledger.OwnView("l", seen, seen))

    def _swap_steps(self, world: World, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        """The mark alone changes: what may happen between a look and such a commit is in the model of tables."""
        if isinstance(effect, self.core.steps.Acquire):
            before, agent = agent, self._loaded(world, agent)
            world = self.accepts(world, before, agent)
        judged = self._judge_mark(world, agent, effect)
        still = (
            next((each for each in judged.accepting if each.number == agent.number), None)
            if isinstance(judged, World)
            else None
        )
        if still is None or still.done[:1] != ("judged",):
            yield who, judged
            return
        yield from self._commit_steps(judged, still, effect, who)

    def _loaded(self, world: World, agent: Agent) -> Agent:
        view = self._view(world, agent.pipeline)
        state = self.core.own_ledger.own_state(self.views.values[view])
        state = state or self.core.ledger.LedgerState(str(agent.pipeline), f"lineage {self.owner(agent)}")
        taken = self.core.ledger.taken(state, self.owner(agent))
        return agent._replace(done=(self.ledgers.of(state), self.ledgers.of(taken)), expected=view)

    def _look(self, world: World, agent: Agent) -> World | Violation:
        """Whether this driver is still the owner, and then the terms of now."""
        held = self.held(agent)
        if not held.fresh:
            try:
                self._verdict(agent, self._view(world, agent.pipeline), held, held)
            except Exception as error:  # judged there
                return self._raised(world, agent, error)
            agent, before = agent._replace(terms=self.listed(world).terms), agent
            world = self.accepts(world, before, agent)
        return self._go_on(world, agent, "looked", self.core.steps.Looked(()))

    def _verdict(self, agent: Agent, seen: int, old: Any, new: Any) -> Any:
        view = self.views.values[seen]
        verdict = self.core.own_ledger.own_verdict(self.views.values[agent.expected], view, new)
        self.core.own_ledger.refuse(verdict, old, view)
        return verdict

    def _swap(self, agent: Agent, effect: Any) -> tuple[Any, Any]:
        """What the state was, and what it becomes."""
        if isinstance(effect, self.core.steps.Acquire):
            old, new = agent.done[-2:]
            return self.ledgers.values[old], self.ledgers.values[new]
        if isinstance(effect, self.core.steps.Change):
            return effect.old, effect.new
        return self.held(agent), effect.after

    def _judge_mark(self, world: World, agent: Agent, effect: Any) -> World | Violation:
        """The mark is looked at. The commit is made only if its number is the same by then."""
        old, new = self._swap(agent, effect)
        try:
            verdict = self._verdict(agent, self._view(world, agent.pipeline), old, new)
        except Exception as error:  # judged there
            return self._raised(world, agent, error)
        if verdict is self.core.marks.Verdict.DONE:
            return self._answered(world, agent, effect)
        number, _ = self.mark(world, agent.pipeline)
        return self.accepts(world, agent, agent._replace(done=("judged", number, *agent.done)))

    def _commit_steps(self, world: World, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        """One transaction: made or refused, answered or not."""
        after = self._committed(world, agent, effect)
        again = agent._replace(done=(), takes=agent.takes + isinstance(effect, self.core.steps.Acquire))
        if after is False:
            yield f"{who}: the mark moved", self.accepts(world, agent, again)
        elif after is True:
            yield f"{who}: to be compared again", self._go_on(world, agent, "moved", self.core.steps.Moved())
        elif isinstance(after, Violation):
            yield who, after
        else:
            yield who, self._answered(after, agent, effect)
            if self.left(world, "lost"):
                yield f"{who}, unanswered", self.accepts(self.spend(after, "lost"), agent, again)
            if self.left(world, "unsure"):
                yield f"{who}, in vain and unanswered", self.accepts(self.spend(world, "unsure"), agent, again)

    def _committed(self, world: World, agent: Agent, effect: Any) -> World | Violation | bool:
        """The transaction of `Store.commit`."""
        _, new = self._swap(agent, effect)
        mark = self.core.marks.Mark(replace(new, tables=()))
        commits = isinstance(effect, self.core.steps.CommitTables)
        added, late = self._added(agent, effect) if commits else (None, ())
        lists = self.rules.committed(self.listed(world), str(agent.pipeline), agent.done[1], mark, added)
        if isinstance(lists, bool):
            return lists
        if commits and not self._may_list(world, agent):
            return True
        wrong = self._lost_bytes(agent, added) if commits else ""
        missed = next((each for each in late if each.timestamp >= 1000 * (world.clock - self.scenario.ttl)), None)
        if missed is not None:
            wrong = f"{self.name(missed)} is in the window, and is refused as late"
        if wrong:
            return Violation(wrong)
        return self.list(world, lists)._replace(late=world.late | {each.place for each in late})

    def _may_list(self, world: World, agent: Agent) -> bool:
        tick = self.scenario.tick
        return bool(self.rules.may_list(agent.written_at * tick, world.clock * tick))

    def _lost_bytes(self, agent: Agent, added: Any) -> str:
        for _, _, rows in sorted(added.chunks) if agent.swept else ():
            return f"{self.name(rows[0][0])} is accepted, and its bytes were removed"
        return ""

    def _answered(self, world: World, agent: Agent, effect: Any) -> World | Violation:
        """The state is the new one, and the driver knows it."""
        steps, after = self.core.steps, agent._replace(expected=self._view(world, agent.pipeline))
        if isinstance(effect, steps.CommitTables):
            return self._go_on(self.accepts(world, agent, after), after, "committed", steps.Committed())
        _, new = self._swap(agent, effect)
        if isinstance(effect, steps.Acquire):
            if self._behind(world, agent.pipeline):
                return self.accepts(world, agent, None)._replace(halted="StoreBehind")
            world = world._replace(compared=world.compared | {agent.pipeline})
        return self._go_on(self.accepts(world, agent, after), after, "changed", new)

    def _behind(self, world: World, pipeline: int) -> bool:
        """The comparison of the store with the target and its ledger."""
        accepted = self.accepted(world, pipeline)
        known = self.ledgers.values[world.ledgers[pipeline]]
        held = self.in_target(world, pipeline) if self.scenario.compares else {}
        return bool(self.rules.behind(accepted, {**self.rules.beyond(known, accepted), **held}))

    def _go_on(self, world: World, agent: Agent, key: Any, reply: Any) -> World | Violation:
        """What touches nothing outside is done at once: a survey, a plan that is kept nowhere, what the commit has recorded already."""
        steps = self.core.steps
        key = (key, reply) if key == "changed" else key
        after = self.advanced(agent, key, lambda: reply)
        if isinstance(after, Exception):
            return self._raised(world, agent, after)
        effect = self.effect(after)
        if isinstance(effect, steps.Stop):
            return self.accepts(world, agent, None)
        if isinstance(effect, steps.Write):
            after = after._replace(written_at=world.clock, swept=False)
        else:
            after = after._replace(written_at=0, swept=False) if not isinstance(effect, steps.CommitTables) else after
        world = self.accepts(world, agent, after)
        if isinstance(effect, steps.Survey):
            extents = self._extents(world, after)
            return self._go_on(world, after, ("surveyed", extents), self.surveyed(after, extents))
        if isinstance(effect, steps.Change) and self._kept(after, effect):
            return self._go_on(world, after, "changed", effect.new)
        if isinstance(effect, steps.LookAtTables) and self.held(after).fresh:
            return self._look(world, after)
        return world

    def _kept(self, agent: Agent, effect: Any) -> bool:
        if effect.new.pending is not None:
            return True
        last = self.views.values[agent.expected].last
        return last is not None and self.core.ledger.key(last.state) == self.core.ledger.key(effect.new)

    def _extents(self, world: World, agent: Agent) -> tuple[tuple[Any, int, int], ...]:
        return tuple(
            (self.partition(agent.pipeline, number), 0, sum(each.timestamp <= 1000 * world.clock for each in records))
            for number, records in enumerate(self.topics[agent.pipeline])
        )

    def _raised(self, world: World, agent: Agent, error: Exception) -> World | Violation:
        _, mark = self.mark(world, agent.pipeline)
        taken_over = mark is not None and mark.state.owner != self.owner(agent)
        ended = self.stopped(agent, error, taken_over=taken_over)
        return ended if isinstance(ended, Violation) else self.accepts(world, agent, None)._replace(halted=ended)

    # ── workers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _shard(self, key: str, shards: int) -> int:
        """Ranges of keys, of `a` to `d`."""
        return "abcd".index(key) * shards // 4

    def _read(self, agent: Agent, effect: Any) -> tuple[tuple[tuple[Any, ...], ...], tuple[Any, ...]]:
        """The records of each block, without the late ones; and those."""
        topic = self.topics[agent.pipeline]
        blocks, late = [], []
        for block in effect.plan.blocks:
            events = [event for each in block.ranges for event in topic[each.partition.number][each.first : each.end]]
            gone = [each for each in events if self.rules.is_late(each.timestamp, agent.terms.horizon_ms)]
            late += gone
            blocks.append(tuple(each for each in events if each not in gone))
        return tuple(blocks), tuple(late)

    def _parts(self, agent: Agent, blocks: Any) -> dict[int, tuple[tuple[Any, ...], ...]]:
        """By shard: the events of each block that belong to it."""
        shards = agent.terms.shards
        return {
            shard: tuple(tuple(each for each in block if self._shard(each.id, shards) == shard) for block in blocks)
            for shard in sorted({self._shard(each.id, shards) for block in blocks for each in block})
        }

    def _compare_steps(self, world: World, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        """One shard after the other is searched, as it is at that moment."""
        blocks, _ = self._read(agent, effect)
        parts = self._parts(agent, blocks)
        if not parts:
            yield who, self._wrote(world, agent, effect, blocks)
            return
        lists = self.listed(world)
        shard = sorted(parts)[len(agent.done)]
        there = shard < len(lists.versions)
        runs = [run for run in lists.runs if run.shard == shard]
        known = {key: place for run in runs for key, place in self.keys[run.run].items()}
        judged = self._judge(parts[shard], known)
        wrong = self._misjudged(parts[shard], known, judged)
        if wrong:
            yield who, Violation(wrong)
            return
        merges: list[frozenset[Any]] = [frozenset()]
        buckets = {run.bucket for run in runs if sum(other.bucket == run.bucket for other in runs) > 1}
        if buckets and self.left(world, "merge"):
            merges.append(frozenset(run for run in runs if run.bucket == min(buckets)))
        for merged in merges:
            after = self.spend(world, "merge") if merged else world
            seen = (shard, lists.versions[shard] if there else GONE, world.clock, judged, merged)
            compared = agent._replace(done=(*agent.done, seen))
            after = self.accepts(after, agent, compared)
            whole = len(compared.done) == len(parts)
            label = f"{who} shard {shard}" + (", and merges" if merged else "")
            yield label, self._wrote(after, compared, effect, blocks) if whole else after

    def _judge(self, blocks: Any, known: dict[str, Any]) -> Any:
        asked = (blocks, tuple(sorted(known.items())))
        if asked not in self._judged:
            self._judged[asked] = self.rules.judge(blocks, known)
        return self._judged[asked]

    def _misjudged(self, blocks: Any, known: dict[str, Any], judged: Any) -> str:
        for events, verdicts in zip(blocks, judged, strict=True):
            for event, verdict in zip(events, verdicts, strict=True):
                if verdict is self.rules.Judgement.COPY and known.get(event.id) == event.place:
                    return f"{self.name(event)} is counted as a copy of itself"
        return ""

    def _wrote(self, world: World, agent: Agent, effect: Any, blocks: Any) -> World | Violation:
        """The receipts of all blocks, which carry what the shards found."""
        seen = agent.done
        numbers = self._counts(agent, blocks, seen)
        results = []
        for index, block in enumerate(effect.plan.blocks):
            new, dropped = numbers[index]
            read = sum(each.span for each in block.ranges)
            receipt = self.core.receipt.Receipt(
                read=read,
                landed=new,
                filtered=dropped,
                dead_lettered=read - len(blocks[index]),
                files=(("events", (seen,)),) if index == 0 else (),
            )
            results.append(self.core.receipt.BlockResult(index, self.core.receipt.Fate.LANDED, receipt))
        return self._go_on(world, agent, ("wrote", tuple(results)), tuple(results))

    def _counts(self, agent: Agent, blocks: Any, seen: Any) -> list[tuple[int, int]]:
        """By block: how many events are new, and how many are not."""
        numbers = [[0, 0] for _ in blocks]
        for _, _, _, judged, _ in seen:
            for index, verdicts in enumerate(judged):
                for verdict in verdicts:
                    numbers[index][verdict is not self.rules.Judgement.NEW] += 1
        return [(new, dropped) for new, dropped in numbers]

    def _added(self, agent: Agent, effect: Any) -> tuple[Any, tuple[Any, ...]]:
        """What the commit adds, and the late ones."""
        blocks, late = self._read(agent, effect)
        parts = self._parts(agent, blocks)
        found = next((files for each in effect.receipts for _, (files,) in each.files), ())
        runs: set[Any] = set()
        merged: set[Any] = set()
        kept: dict[tuple[int, int], list[Any]] = {}
        for shard, _, at, judged, merging in found:
            new = {}
            for block, (events, verdicts) in enumerate(zip(parts[shard], judged, strict=True)):
                for event, verdict in zip(events, verdicts, strict=True):
                    if verdict is self.rules.Judgement.NEW:
                        new[event.id] = event.place
                        kept.setdefault((block, event.place.partition), []).append((event, at))
            if new:
                runs.add(self.run(shard, 0, self.rules.bucket_of(at, self.rules.bucket_seconds(1)), new))
            if merging:
                merged |= merging
                together = {key: place for run in merging for key, place in self.keys[run.run].items()}
                level = self.rules.merged_level(sorted(merging, key=lambda each: each.run))
                runs.add(self.run(shard, level, min(run.bucket for run in merging), together))
        chunks = frozenset((agent.pipeline, number, tuple(sorted(rows))) for (_, number), rows in kept.items())
        seen = tuple((shard, version) for shard, version, *_ in found)
        added = self.rules.Added(agent.terms, seen, frozenset(runs), frozenset(merged), chunks)
        return added, late

    def run(self, shard: int, level: int, bucket: int, keys: dict[str, Any]) -> Any:
        """A run of these keys. What is in it is its name."""
        held = " ".join(f"{key}{place[1]}.{place[2]}{place[0]}" for key, place in sorted(keys.items()))
        name = f"{shard}.{level}.{bucket}:{held}"
        self.keys[name] = keys
        return self.rules.ListedRun(name, shard, level, bucket, len(keys), 1, "")
