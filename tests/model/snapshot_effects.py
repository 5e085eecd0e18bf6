"""What a driver does outside, at the grain of single requests: both where the one table is the ledger, and for a fan-out.

A commit is two steps, and between them everything else may happen: the table is loaded and the production code judges it;
then the catalog takes the commit, if the head is still the one that was loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from landonce import errors

from .snapshot_drivers import LAST, Drivers, Step
from .snapshot_values import NONE, Agent, Attempt, Lake
from .values import Violation


class Effects(Drivers):
    """Every next step of a driver."""

    def driver_steps(self, world: Lake, agent: Agent) -> Iterator[Step]:
        effect = self.effects.values[agent.effect]
        steps = self.core.steps
        who = f"driver {agent.number}: {effect.step.value}"
        if isinstance(effect, steps.Survey):
            yield who, self.survey(world, agent)
        elif isinstance(effect, steps.Idle):
            after = agent._replace(idle=True)
            yield who, self.go_on(self.put(world, agent, after), after, "idle", lambda: True)
        elif isinstance(effect, steps.Write):
            yield who, self.write(world, agent, effect)
            for ahead in self.parts(effect) if effect.in_parts and self.left(world, "slow") else ():
                yield f"{who}: blocks {ahead} go ahead", self.cut(world, agent, effect, ahead)
            for index in effect.indexes if self.left(world, "doubt") else ():
                doubted = self.write(self.spend(world, "doubt"), agent, effect, index)
                yield f"{who}: nothing is heard of block {index}", doubted
        elif isinstance(effect, steps.Open):
            yield who, self._open(world, agent, effect)
        elif self.scenario.own:
            yield from self._own_steps(world, agent, effect, who)
        elif isinstance(effect, steps.Acquire):
            yield who, self._acquire(world, agent)
        elif isinstance(effect, steps.Change):
            yield f"{who}{self._planned(effect)}", self._change(world, agent, effect)
        elif isinstance(effect, steps.LookAtTables):
            at = f" at table {self.scenario.tables[len(agent.done) - 1]}" if agent.done else ", is it still the owner"
            yield f"{who}{at}", self._look(world, agent)
        elif isinstance(effect, steps.CommitTables):
            yield from self._commit_steps(world, agent, effect, who)

    # ── a fan-out: the ledger is outside ────────────────────────────────────────────────────────────────────────────

    def _acquire(self, world: Lake, agent: Agent) -> Lake | Violation:
        taken = self.core.ledger.taken(self.ledgers.values[world.ledger], self.owner(agent))
        number = self.ledgers.of(taken)
        return self.go_on(world._replace(ledger=number), agent, ("taken", number), lambda: taken)

    def _planned(self, effect: Any) -> str:
        if effect.step is not self.core.steps.Step.PREPARE:
            return ""
        plan = effect.new.pending
        ranges = ", ".join(str(each) for block in plan.blocks for each in block.ranges)
        return f" batch {plan.batch}, {plan.kind.value} {ranges}"

    def _change(self, world: Lake, agent: Agent, effect: Any) -> Lake | Violation:
        current = self.ledgers.values[world.ledger]
        if self.core.ledger.key(current) != self.core.ledger.key(effect.old):
            return self.raised(world, agent, self.core.ledger.fenced(effect.old, current))
        self.core.ledger.check_change(effect.old.pipeline, effect.old, effect.new)
        if (cut := self._cut_too_late(world, effect)) != "":
            return Violation(cut)
        promised = world.promised or self._promise(effect.new)
        changed = world._replace(ledger=self.ledgers.of(effect.new), promised=promised)
        return self.go_on(changed, agent, "changed", lambda: effect.new)

    def _cut_too_late(self, world: Lake, effect: Any) -> str:
        """A plan is cut while no table holds any of it, and no commit of it is on its way."""
        plan = effect.new.pending
        if plan is None or effect.old.pending is None or plan.blocks == effect.old.pending.blocks:
            return ""
        sent = {(each.table, each.mark) for each in world.flights}
        tabs = [self.tables.tabs.values[each] for each in world.tables]
        sent |= {(table, snap.mark) for table, tab in enumerate(tabs) for snap in tab.snaps if snap.mark != NONE}
        for table, mark in sorted(sent):
            if self.tables.marks.values[mark].batch == plan.batch:
                return f"a plan is cut, and table {self.scenario.tables[table]} holds some of it"
        return ""

    def _promise(self, state: Any) -> tuple[int, ...]:
        first = {at.number: position.first for at, position in state.positions}
        return tuple(first.get(at.number, 0) for at in self.topics.partitions) if first else ()

    def _look(self, world: Lake, agent: Agent) -> Lake | Violation:
        """First whether this driver is still the owner, then one table after the other."""
        if not agent.done:
            current = self.ledgers.values[world.ledger]
            if self.core.ledger.key(current) != self.core.ledger.key(self.held(agent)):
                return self.raised(world, agent, self.core.ledger.fenced(self.held(agent), current))
            return self.put(world, agent, agent._replace(done=("owner",)))
        table = len(agent.done) - 1
        seen = (*agent.done, self.tables.view(world.tables[table], table))
        if table + 1 < len(world.tables):
            return self.put(world, agent, agent._replace(done=seen))
        return self._looked(world, agent, seen[1:])

    def _looked(self, world: Lake, agent: Agent, seen: tuple[int, ...]) -> Lake | Violation:
        views = tuple(self.tables.views.values[each] for each in seen)
        held = "" if any(each.mark for each in views) else self._held_unmarked(world)
        return self.go_on(world, agent, ("looked", seen, held), lambda: self.core.steps.Looked(views, held))

    def _held_unmarked(self, world: Lake) -> str:
        tabs = [self.tables.tabs.values[each] for each in world.tables]
        held = [name for name, tab in zip(self.scenario.tables, tabs, strict=True) if self.tables.total(tab)]
        return held[0] if held else ""

    def _open(self, world: Lake, agent: Agent, effect: Any) -> Lake | Violation:
        for table in set(effect.wants):
            world = self.touch(world, table, self.tables.made(world.tables[table]))
        return self.go_on(world, agent, "opened", lambda: False)

    def _commit_steps(self, world: Lake, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        """Tables are committed to in any order, and all of them, whatever one of them says."""
        jobs = self._jobs(agent, effect)
        if agent.attempt is not None:
            table = agent.attempt.table
            yield from self.send(world, agent, who, lambda after, me: self._done(after, me, table, "done"))
            return
        done = {table: rest for table, *rest in agent.done}
        for table, job in jobs.items():
            if table not in done:
                yield f"{who}: loads table {self.scenario.tables[table]}", self._judge(world, agent, effect, table, job)
        if len(done) == len(jobs):
            yield f"{who} is done", self._committed(world, agent, effect, done)

    def _jobs(self, agent: Agent, effect: Any) -> dict[int, tuple[Any, int, int]]:
        """For every table with files, and every table that is filled up: how it stood, the mark, and the rows."""
        known = self._written.get((agent.driver, agent.effect))
        if known is None:
            known = {}
            started = tuple(sorted(self.held(agent).committed().items()))
            files = [each for receipt in effect.receipts for each in receipt.files]
            for each in effect.tables:
                rows = sum(bits for name, written in files if name == each.view.table for bits in written)
                if rows or effect.plan.kind is self.core.blocks.Kind.REPLAY:
                    table = self.scenario.tables.index(each.view.table)
                    tops = self.topics.tops(rows)
                    mark = self.core.marks.mark_for(effect.plan, effect.after, each, started, tops)
                    known[table] = (each, self.tables.marks.of(mark), rows)
            self._written[agent.driver, agent.effect] = known
        return known

    def _judge(self, world: Lake, agent: Agent, effect: Any, table: int, job: Any) -> Lake | Violation:
        each, mark, rows = job
        tab = self.tables.tabs.values[world.tables[table]]
        if not tab.there:
            return self.raised(world, agent, errors.TableReplaced("the table is not there."))
        seen = self.tables.views.values[self.tables.view(world.tables[table], table)]
        verdict = self.core.marks.verdict(each.view, seen, effect.after)
        if verdict is not self.core.marks.Verdict.GO:
            return self._done(world, agent, table, verdict.value)
        current = self.ledgers.values[world.ledger]
        if self.core.ledger.key(current) == self.core.ledger.key(self.held(agent)) and current.pending != effect.plan:
            return Violation("what is committed is not the plan that the ledger holds")
        forbidden = self._forbidden(agent, effect, each.view.table, seen.uuid)
        if forbidden:
            return Violation(forbidden)
        return self.put(world, agent, agent._replace(attempt=Attempt(table, tab.uuid, tab.head, mark, rows)))

    def _forbidden(self, agent: Agent, effect: Any, table: str, uuid: str) -> str:
        """What only a person may decide."""
        known = dict(self.held(agent).tables).get(table)
        if known is not None and known.uuid != uuid:
            return f"table {table} was made again, and is written as if it were the old one"
        follow = self.drivers.values[agent.driver].policy.follow
        if effect.plan.kind is self.core.blocks.Kind.REPLAY and not follow:
            return "a rollback is followed, though the file says that it is not"
        return ""

    def _done(self, world: Lake, agent: Agent, table: int, verdict: str) -> Lake:
        view = self.tables.view(world.tables[table], table)
        done = tuple(sorted((*agent.done, (table, verdict, view))))
        return self.put(world, agent, agent._replace(done=done, attempt=None))

    def _committed(self, world: Lake, agent: Agent, effect: Any, done: dict[int, Any]) -> Lake | Violation:
        if any(verdict == "moved" for verdict, _ in done.values()):
            if agent.number > LAST or (world.starts == 1 and not self._touched):
                return Violation(f"driver {agent.number} is alone, and writes a batch twice")
            return self.go_on(world, agent, "moved", self.core.steps.Moved)
        world = world._replace(letters=world.letters | self._letters(effect.receipts))
        numbers = tuple(view for _, view in done.values())
        views = tuple(self.tables.views.values[each] for each in numbers)
        return self.go_on(world, agent, ("committed", numbers), lambda: self.core.steps.Committed(views))

    @property
    def _touched(self) -> bool:
        """Somebody else may move the tables."""
        faults = self.scenario.faults
        return any((faults.rollback, faults.forward, faults.replace, faults.drop))

    def _letters(self, receipts: Any) -> int:
        return sum(int(each.dead_letters or 0) for each in receipts)

    # ── the table is the ledger ─────────────────────────────────────────────────────────────────────────────────────

    def _own_steps(self, world: Lake, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        if isinstance(effect, self.core.steps.Acquire) and not agent.done:
            yield f"{who}: loads", self._load(world, agent)
        elif isinstance(effect, self.core.steps.LookAtTables):
            yield who, self._check_owner(world, agent)
        elif agent.attempt is not None:
            yield from self.send(world, agent, who, lambda after, me: self._own_done(after, me, effect))
        elif agent.done == ("committed",):
            yield f"{who}: dead letters are published", self._own_replied(world, agent, effect)
        else:
            yield f"{who}: loads and judges", self._own_judge(world, agent, effect)

    def _load(self, world: Lake, agent: Agent) -> Lake | Violation:
        number = self.tables.own(world.tables[0])
        view = self.tables.owns.values[number]
        follow = self.drivers.values[agent.driver].policy.follow
        try:
            if view.rolled_back and (view.valid is not None or view.whole) and not follow:
                raise self.core.own_ledger.rollback_refused(["A"])
            state = self.core.own_ledger.own_state(view)
        except Exception as error:  # judged below
            return self.raised(world, agent, error)
        state = state or self.core.ledger.LedgerState("p", f"lineage {self.owner(agent)}")
        taken = self.core.ledger.taken(state, self.owner(agent))
        done = (self.ledgers.of(state), self.ledgers.of(taken))
        return self.put(world, agent, agent._replace(done=done, expected=number))

    def _check_owner(self, world: Lake, agent: Agent) -> Lake | Violation:
        held, number = self.held(agent), self.tables.own(world.tables[0])
        try:
            if not held.fresh:
                self._verdict(agent, number, held, held)
        except Exception as error:  # judged below
            return self.raised(world, agent, error)
        return self.go_on(world, agent, "looked", lambda: self.core.steps.Looked(()))

    def _swap(self, agent: Agent, effect: Any) -> tuple[Any, Any, int, Any]:
        """What the state was, what it becomes, the rows that come with it, and the batch's dead letters."""
        if isinstance(effect, self.core.steps.Acquire):
            return self.ledgers.values[agent.done[0]], self.ledgers.values[agent.done[1]], 0, None
        if isinstance(effect, self.core.steps.Change):
            return effect.old, effect.new, 0, None
        rows = sum(bits for each in effect.receipts for _, written in each.files for bits in written)
        letters = tuple(sorted(each.dead_letters for each in effect.receipts if each.dead_letters))
        return self.held(agent), effect.after, rows, letters

    def _own_judge(self, world: Lake, agent: Agent, effect: Any) -> Lake | Violation:
        tab, number = self.tables.tabs.values[world.tables[0]], self.tables.own(world.tables[0])
        old, new, rows, letters = self._swap(agent, effect)
        acquiring = isinstance(effect, self.core.steps.Acquire)
        try:
            verdict = self._verdict(agent, number, old, new)
        except errors.Fenced as error:
            if acquiring:
                return self.put(world, agent, self._from_the_start(agent))
            return self.raised(world, agent, error)
        except Exception as error:  # judged below
            return self.raised(world, agent, error)
        if verdict is self.core.marks.Verdict.DONE:
            return self._own_done(world, agent, effect)
        before = self.tables.owns.values[agent.expected].valid
        mark = self.core.marks.Mark(
            state=replace(new, tables=()),
            started=tuple(sorted(old.committed().items())) if letters is not None else before.started if before else (),
            letters=letters if letters is not None else before.letters if before else (),
            tops=self.core.marks.raised(before, new, self.topics.tops(rows)),
        )
        attempt = Attempt(0, tab.uuid, tab.head, self.tables.marks.of(mark), rows)
        return self.put(world, agent, agent._replace(attempt=attempt))

    def _verdict(self, agent: Agent, seen: int, old: Any, new: Any) -> Any:
        view = self.tables.owns.values[seen]
        verdict = self.core.own_ledger.own_verdict(self.tables.owns.values[agent.expected], view, new)
        self.core.own_ledger.refuse(verdict, old, view)
        return verdict

    def _own_done(self, world: Lake, agent: Agent, effect: Any) -> Lake | Violation:
        after = agent._replace(expected=self.tables.own(world.tables[0]), attempt=None)
        world = self.put(world, agent, after)
        if not self.topics.dead or isinstance(effect, self.core.steps.Change):
            return self._own_replied(world, after, effect)
        committed = after._replace(done=("committed",))
        return self.put(world, after, committed)

    def _own_replied(self, world: Lake, agent: Agent, effect: Any) -> Lake | Violation:
        view = self.tables.owns.values[agent.expected]
        if isinstance(effect, self.core.steps.Change):
            return self.go_on(world, agent, "changed", lambda: effect.new)
        letters = view.valid.letters if view.valid else ()
        world = world._replace(letters=world.letters | sum(int(each) for each in letters))
        if isinstance(effect, self.core.steps.Acquire):
            taken = view.last.state
            return self.go_on(world, agent, ("taken", self.ledgers.of(taken)), lambda: taken)
        return self.go_on(world, agent, "committed", self.core.steps.Committed)
