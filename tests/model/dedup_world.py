"""The world around deduplication: topics, drivers that accept, a store, drivers that push, a target, and time.

What decides is production code. Both kinds of drivers are the batch machine, with the policy and the marks that they have in production;
`protocol.dedup` says who is a copy, whether a commit is made and what it changes, what expires, what is late, what is sent for a block, what
may be removed, and whether a store was restored. What is here is only what surrounds it.

The oracle knows the events of the topics. In the target, no record and no key is there twice (within the window); in the store, no key is
there twice; and once nothing goes wrong any more, every key that was produced is in the target.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .dedup_drivers import LAST, Step
from .dedup_push import Pushing
from .dedup_values import KINDS, Agent, World
from .search import Found
from .values import Violation

QUIET = (0,) * len(KINDS)
PATIENCE = 300
EXPIRE, RESHARD = "expire", "reshard"


class Deduplication(Pushing):
    """Every step that a world of this scenario can take, and what must hold in each."""

    def steps(self, world: World) -> Iterator[Step]:
        if world.halted:
            return
        for agent in world.accepting:
            yield from self.accept_steps(world, agent)
            if self.left(world, "crash"):
                yield f"driver {agent.number} dies", self.accepts(self.spend(world, "crash"), agent, None)
        for agent in world.pushing:
            yield from self.push_steps(world, agent)
            if self.left(world, "crash"):
                yield f"push driver {agent.number} dies", self.pushes(self.spend(world, "crash"), agent, None)
        accepting, pushing = (number % len(self.topics) for number in world.starts)
        if len(world.accepting) < self.scenario.alive and world.starts[0] < self.scenario.accepting:
            yield self.start_accepting(world, accepting, world.starts[0] + 1)
        may_push = len(world.pushing) < self.scenario.alive and world.starts[1] < self.scenario.pushing
        if may_push and pushing in world.compared:
            yield self.start_pushing(world, pushing, world.starts[1] + 1)
        if world.starts[0]:
            yield from self._surroundings(world)

    # ── time, cleaning, and the store ───────────────────────────────────────────────────────────────────────────────

    def _surroundings(self, world: World) -> Iterator[Step]:
        if world.clock < self.scenario.clock:
            yield "the clock ticks", world._replace(clock=world.clock + 1)
        for job in world.jobs:
            yield f"{job[0]} {job[1]}", self._finish_job(world, job)
        if self.left(world, EXPIRE):
            yield from self._look_for_expired(world)
        if self.left(world, RESHARD):
            yield self._begin_resharding(world)
        if self.scenario.tick > 1:
            yield from self._sweep(world)
        if self.scenario.cleans:
            yield from self._clean(world)
        if self.left(world, "restore"):
            yield from self._restore(world)

    def _look_for_expired(self, world: World) -> Iterator[Step]:
        lists = self.listed(world)
        buckets, horizon = self.rules.expired(
            {run.bucket for run in lists.runs},
            now_s=world.clock,
            ttl_s=self.scenario.ttl,
            bucket_s=self.rules.bucket_seconds(1),
            horizon_ms=lists.terms.horizon_ms,
        )
        if buckets:
            yield f"buckets {buckets} are found to expire", self._job(world, EXPIRE, buckets, horizon)

    def _begin_resharding(self, world: World) -> Step:
        lists = self.listed(world)
        shards = 2 if lists.terms.shards == 1 else 1
        runs = []
        for run in lists.runs:
            for shard in range(shards):
                keys = {key: place for key, place in self.keys[run.run].items() if self._shard(key, shards) == shard}
                if keys:
                    runs.append(self.run(shard, run.level, run.bucket, keys))
        seen = tuple(enumerate(lists.versions))
        return f"runs are made for {shards} shards", self._job(world, RESHARD, shards, seen, frozenset(runs))

    def _job(self, world: World, kind: str, *what: Any) -> World:
        jobs = tuple(sorted((*world.jobs, (kind, *what)), key=repr))
        return self.spend(world, kind)._replace(jobs=jobs)

    def _finish_job(self, world: World, job: Any) -> World:
        left, lists = list(world.jobs), self.listed(world)
        left.remove(job)
        kind, what, *rest = job
        if kind == EXPIRE:
            after = self.rules.forgotten(lists, what, *rest)
        else:
            seen, runs = rest
            after = self.rules.resharded(lists, dict(seen), what, runs) or lists
        return self.list(world, after)._replace(jobs=tuple(left))

    def _sweep(self, world: World) -> Iterator[Step]:
        """Bytes that no list names, and that are old enough, are taken for left over."""
        old = world.clock * self.scenario.tick - self.rules.ORPHANED
        steps = (self.core.steps.Write, self.core.steps.CommitTables)
        for agent in world.accepting:
            staged = isinstance(self.effect(agent), steps) and not agent.swept
            if staged and agent.written_at * self.scenario.tick < old:
                yield (
                    f"bytes of driver {agent.number} are removed",
                    self.accepts(world, agent, agent._replace(swept=True)),
                )

    def _clean(self, world: World) -> Iterator[Step]:
        lists = self.listed(world)
        gone = []
        removed = [list(each) for each in world.store.removed]
        for chunk in lists.chunks:
            pipeline, number, rows = chunk
            sent = self.ledgers.values[world.ledgers[pipeline]].committed().get(self.partition(pipeline, number), 0)
            last = rows[-1][0].place.offset
            if self.rules.may_remove(last, -1, sent_up_to=sent, before=0):
                gone.append(chunk)
                removed[pipeline][number] = max(removed[pipeline][number], last + 1)
        if gone:
            after = self.list(world, replace(lists, chunks=lists.chunks - frozenset(gone)))
            yield "chunks are removed", after._replace(store=after.store._replace(removed=tuple(map(tuple, removed))))
        if any(block[5] for block in world.store.blocks):
            kept = frozenset(block for block in world.store.blocks if not block[5])
            yield "blocks are removed", world._replace(store=world.store._replace(blocks=kept))

    def _restore(self, world: World) -> Iterator[Step]:
        kept = (world.store, world.ledgers if self.scenario.ledger_inside else None)
        if world.backup is None:
            yield "the store is backed up", world._replace(backup=kept)
        elif not world.accepting and not world.pushing and not world.jobs and world.backup != kept:
            store, ledgers = world.backup
            restored = self.spend(world, "restore")._replace(store=store, backup=None, compared=frozenset())
            yield "the store is restored", restored._replace(ledgers=ledgers or world.ledgers)

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────────

    def wrong(self, world: World) -> str:
        lists = self.listed(world)
        keys = [key for run in lists.runs for key in self.keys[run.run]]
        twice = sorted(key for key in set(keys) if keys.count(key) > 1)
        if twice:
            return f"the key {twice[0]} is in the store twice"
        for name, _, mark in lists.marks:
            totals, read = mark.state.totals, sum(mark.state.committed().values())
            if totals.read != read:
                return f"pipeline {name} has read {read} records, and counts {totals.read}"
            accepted = sum(len(rows) for pipeline, _, rows in lists.chunks if str(pipeline) == name)
            if accepted != totals.landed and not self.scenario.cleans:
                return f"pipeline {name} has accepted {accepted} events, and counts {totals.landed}"
        return ""

    def rests(self, world: World) -> Iterator[tuple[str, World]]:
        """From every world all ends well, if nothing more goes wrong."""
        if not world.halted:
            quiet = world._replace(accepting=(), pushing=(), jobs=(), backup=None, left=QUIET, starts=(LAST, LAST))
            yield "everybody dies", quiet

    def finish(self, world: World, known: dict[World, None]) -> Found | None:
        """One driver of each kind for each pipeline, one after the other: every event is in the target, and everything is recorded."""
        way: list[World] = []
        schedule: list[str] = []
        for pipeline in range(len(self.topics)):
            for accepts in (True, False):
                start = self.start_accepting if accepts else self.start_pushing
                label, started = start(world, pipeline, LAST + 1 + pipeline)
                schedule.append(label)
                for _ in range(PATIENCE):
                    if isinstance(started, Violation):
                        return Found(started.what, tuple(schedule))
                    world = started
                    if world in known:
                        known.update(dict.fromkeys(way))
                        return None
                    way.append(world)
                    if wrong := self.wrong(world):
                        return Found(wrong, tuple(schedule))
                    agents = world.accepting if accepts else world.pushing
                    if world.halted or not agents:
                        break
                    label, started = self._next_step(world, agents[0], accepts=accepts)
                    schedule.append(label)
                else:
                    return Found("a run without faults does not come to an end", (*schedule[:40], "… and so on"))
                if world.halted:
                    known.update(dict.fromkeys(way))
                    return None
        wrong = self._unfinished(world)
        if wrong:
            return Found(wrong, tuple(schedule))
        known.update(dict.fromkeys(way))
        return None

    def _next_step(self, world: World, agent: Agent, *, accepts: bool) -> Step:
        steps = self.accept_steps(world, agent) if accepts else self.push_steps(world, agent)
        return next(steps, ("nobody can go on", Violation("a run stands still")))

    def _unfinished(self, world: World) -> str:
        rows = [event for _, _, (_, rows) in world.target for event, _ in rows]
        landed, places = {event.id for event in rows}, {event.place for event in rows}
        for _, _, accepted in self.listed(world).chunks:
            for event, _ in accepted:
                if event.place not in places:
                    return f"in the end {self.name(event)} is accepted, and is not in the target"
        for topic in self.topics:
            for records in topic:
                for event in records:
                    due = event.timestamp <= 1000 * world.clock and event.place not in world.late
                    if due and event.id not in landed:
                        return f"in the end {self.name(event)} is not in the target"
        if any(self.ledgers.values[each].pending is not None for each in world.ledgers):
            return "in the end blocks are left over"
        return ""
