"""The world around the protocol of transactions: one database, its row locks, drivers, workers, and all that can happen.

What decides is production code: the driver's steps, the worker's steps, the claim that a block's row must hold, and what
becomes of blocks' rows when the ledger changes. What is here is only how a database behaves: a transaction is seen whole or
not at all, and a row that one has changed makes every other change of it wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from landonce import errors

from .core import Core
from .search import Found
from .snapshot_topics import Topics
from .transaction_values import KINDS, NOBODY, Agent, Base, Job, Row, Scenario, Stored, Worker
from .values import Table, Violation

Step = tuple[str, Base | Violation]
LAST = 90
"""Drivers with a higher number run when everybody else is gone and nothing goes wrong any more."""
PATIENCE = 400
QUIET = (0,) * len(KINDS)


class Transactions:
    """Every step that a world of this scenario can take, and what must hold in each."""

    def __init__(self, core: Core, scenario: Scenario) -> None:
        self.core, self.scenario = core, scenario
        self.topics = Topics(core, scenario)
        self.ledgers, self.drivers, self.effects = Table(), Table(), Table()
        self.jobs, self.claims, self.receipts, self.states, self.results = Table(), Table(), Table(), Table(), Table()
        self.results.of(None)
        self._advanced: dict[Any, Any] = {}
        self.kinds = {kind: at for at, kind in enumerate(KINDS)}

    def first(self) -> Base:
        left = tuple(getattr(self.scenario.faults, kind) for kind in KINDS)
        return Base(0, self._fresh(0), (), 0, None, (), (), 0, left, 0, (), "")

    def _fresh(self, life: int) -> int:
        return self.ledgers.of(self.core.ledger.LedgerState("p", f"lineage {life}"))

    # ── all steps ───────────────────────────────────────────────────────────────────────────────────────────────────

    def steps(self, world: Base) -> Iterator[Step]:
        for agent in world.drivers:
            yield from self.driver_steps(world, agent)
        for worker in world.workers:
            yield from self.worker_steps(world, worker)
        if world.starts < self.scenario.starts and len(world.drivers) < self.scenario.alive:
            yield from self._starts(world)
        if world.level + 1 < len(self.topics.levels):
            yield "records arrive", world._replace(level=world.level + 1)
        yield from self._fault_steps(world)

    def _starts(self, world: Base) -> Iterator[Step]:
        yield self.start(world)

    def start(self, world: Base, *, patient: bool = False) -> Step:
        number = world.starts + 1
        prints = self.scenario.fingerprints
        pending = self.ledgers.values[world.ledger].pending if patient else None
        fingerprint = pending.fingerprint if pending else prints[min(number, len(prints)) - 1]
        driver, effect = self.core.batch.begin(self._policy(number, fingerprint))
        agent = Agent(number, self.drivers.of(driver), self.effects.of(effect), None, False)
        return f"driver {number} starts", world._replace(drivers=(*world.drivers, agent), starts=number)

    def _tolerance(self, number: int) -> Any:
        limits = self.scenario.limits
        limit = limits[min(number, len(limits)) - 1] if number <= LAST else 1.0
        return self.core.tolerance.Tolerance(limit, self.scenario.floor)

    def _policy(self, number: int, fingerprint: str) -> Any:
        return self.core.transactional.Transactional(
            target="table",
            fingerprint=fingerprint,
            start=self.core.source.Start.LATEST if self.scenario.latest else self.core.source.Start.EARLIEST,
            once=True,
            ordered=self.scenario.keyed,
            tolerance=self._tolerance(number),
        )

    # ── a driver ────────────────────────────────────────────────────────────────────────────────────────────────────

    def driver_steps(self, world: Base, agent: Agent) -> Iterator[Step]:
        effect = self.effects.values[agent.effect]
        who = f"driver {agent.number}: {effect.step.value}"
        steps = self.core.steps
        if isinstance(effect, steps.Acquire):
            yield from self._acquire(world, agent, who)
        elif isinstance(effect, steps.Survey):
            rows = self.scenario.max_rows[min(agent.number, len(self.scenario.max_rows)) - 1]
            yield who, self._go_on(world, agent, self.topics.surveyed(world.level, rows, False))
        elif isinstance(effect, steps.Change):
            yield from self._change(world, agent, effect, who)
        elif isinstance(effect, steps.Commit):
            bits = sum(self.topics.of(block.ranges) for block in effect.plan.blocks)
            yield who, self._go_on(world._replace(letters=world.letters | bits & self.topics.dead), agent, None)
        else:
            yield from self._own_steps(world, agent, effect, who)

    def _own_steps(self, world: Base, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        """What this protocol alone has done, and the end."""
        if isinstance(effect, self.core.steps.Look):
            yield who, self._go_on(world, agent, self._look(world.landed, effect.floors))
        elif isinstance(effect, self.core.steps.Write):
            yield from self._write(world, agent, effect, who)
        elif isinstance(effect, self.core.steps.Open):
            yield who, self._go_on(world, agent, False)
        else:
            yield who, self._leave(world, agent)

    def _go_on(self, world: Base, agent: Agent, reply: Any) -> Base | Violation:
        """The production code takes the reply and says what is next."""
        answer = self._advanced.get((agent.driver, reply))
        if answer is None:
            try:
                driver, effect = self.drivers.values[agent.driver].advance(reply)
                answer = (self.drivers.of(driver), self.effects.of(effect))
            except Exception as error:  # named errors are part of the protocol; others are judged as defects
                answer = error
            self._advanced[agent.driver, reply] = answer
        if isinstance(answer, Exception):
            return self._raised(world, agent, answer)
        return self._with(world, agent, agent._replace(driver=answer[0], effect=answer[1], results=None, unsure=False))

    def _raised(self, world: Base, agent: Agent, error: Exception) -> Base | Violation:
        """A driver that was taken over sees a world that it cannot judge, so it asks the ledger before it says why."""
        driver = self.drivers.values[agent.driver]
        taken = driver.ledger is not None and driver.ledger.owner != self.ledgers.values[world.ledger].owner
        changed = isinstance(error, errors.PlanChanged) and driver.pending.fingerprint != driver.policy.fingerprint
        named = type(error).__name__ in self.scenario.halts and self._has_reason(world, agent, error)
        if not (
            changed
            or named
            or self._refused(world, agent, error)
            or (taken and isinstance(error, errors.LandonceError))
        ):
            return Violation(f"driver {agent.number} stopped without a reason: {type(error).__name__}: {error}")
        halted = type(error).__name__ if agent.number > LAST else world.halted
        return self._leave(world, agent)._replace(halted=halted)

    def _refused(self, world: Base, agent: Agent, error: Exception) -> bool:
        """Whether a driver may refuse the ranges that it was given."""
        del world, agent, error
        return False

    def _has_reason(self, world: Base, agent: Agent, error: Exception) -> bool:
        """What a named error says must be so: in the table, in the ledger, or in the blocks' rows."""
        held, now = self.drivers.values[agent.driver].ledger, self.ledgers.values[world.ledger]
        pending = sum(self.topics.of(block.ranges) for block in now.pending.blocks) if now.pending else 0
        restored = bool(self.scenario.faults.restore) and not self._left(world, "restore")
        reasons: dict[type[Exception], bool] = {
            errors.TargetAhead: bool(world.landed & ~self.topics.below(now.positions) & ~pending),
            errors.Fenced: restored or (held is not None and self.core.ledger.key(held) != self.core.ledger.key(now)),
            errors.LedgerSetBack: restored,
            errors.TooManyDeadLetters: self._tolerance(agent.number).limit < 1,
            errors.Unbalanced: not all(row.after for row in world.rows) or not world.rows,
        }
        return reasons.get(type(error), False)

    def _acquire(self, world: Base, agent: Agent, who: str) -> Iterator[Step]:
        state = self.ledgers.values[world.ledger]
        taken = self.core.ledger.taken(state, f"owner {agent.number}")
        after = self._changed(world, state, taken)
        if after is not None:
            yield who, self._go_on(after, agent, taken)

    def _change(self, world: Base, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        current = self.ledgers.values[world.ledger]
        if agent.unsure:
            yield f"{who}: reads back", self._read_back(world, agent, effect, current)
            return
        if self.core.ledger.key(current) != self.core.ledger.key(effect.old):
            yield f"{who} is fenced", self._raised(world, agent, self.core.ledger.fenced(effect.old, current))
            return
        try:
            after = self._changed(world, effect.old, effect.new)
        except errors.LandonceError as error:
            yield who, self._raised(world, agent, error)
            return
        if after is None:
            return
        if effect.step is self.core.steps.Step.RECORD:
            beyond = self._beyond(world, agent, effect)
            if wrong := self._too_many(agent, effect, beyond):
                yield who, Violation(wrong)
                return
            after = after._replace(beyond=beyond)
        yield who, self._go_on(after, agent, effect.new)
        if self._left(world, "unsure"):
            unsure = agent._replace(unsure=True)
            yield f"{who} is applied, unanswered", self._with(self._spend(after, "unsure"), agent, unsure)
            yield f"{who} is not applied, unanswered", self._with(self._spend(world, "unsure"), agent, unsure)

    def _beyond(self, world: Base, agent: Agent, effect: Any) -> int:
        batch = sum(self.topics.of(block.ranges) for block in effect.old.pending.blocks)
        if not batch:
            return world.beyond
        share = (batch & self.topics.dead).bit_count() / batch.bit_count()
        return world.beyond | batch if share > self._tolerance(agent.number).limit else 0

    def _too_many(self, agent: Agent, effect: Any, beyond: int) -> str:
        """What must not be recorded, counted in the topic and not in receipts: a batch beyond the limit, which is large, or not the first,
        whoever recorded those before it."""
        allowed = self._tolerance(agent.number)
        for bits in (beyond, self.topics.below(effect.new.positions)) if beyond else ():
            dead = (bits & self.topics.dead).bit_count()
            if dead >= allowed.floor and dead > allowed.limit * bits.bit_count():
                return "a batch with too many dead letters is recorded"
        return ""

    def _changed(self, world: Base, old: Any, new: Any) -> Base | None:
        """The ledger's transaction; None while it waits for a row that an open transaction has changed."""
        change = self.core.block_rows.block_change(old, new)
        self.core.block_rows.may_change(old, new, tuple(self._block_row(row) for row in world.rows))
        touched = [row for row in world.rows if change.claim is not None or row.batch == change.removed]
        if any(self._locked(world, row.batch, row.number) for row in touched):
            return None
        rows = tuple(row for row in world.rows if row.batch != change.removed)
        if change.claim is not None:
            rows = tuple(row._replace(claim=self.claims.of(change.claim)) for row in rows)
        claim = self.claims.of(self.core.block_rows.Claim.of(new))
        batch = new.pending.batch if new.pending else 0
        rows += tuple(Row(batch, number, claim, False, 0) for number in change.added)
        return world._replace(ledger=self.ledgers.of(new), rows=rows, promised=world.promised or self._promise(new))

    def _promise(self, state: Any) -> tuple[int, ...]:
        return tuple(position.first for _, position in state.positions)

    def _read_back(self, world: Base, agent: Agent, effect: Any, current: Any) -> Base | Violation:
        try:
            applied = self.core.ledger.settled_change(effect.old, effect.new, current)
        except errors.Fenced as error:
            return self._raised(world, agent, error)
        return (
            self._go_on(world, agent, effect.new) if applied else self._with(world, agent, agent._replace(unsure=False))
        )

    def _look(self, landed: int, floors: Any) -> Any:
        ends = []
        for partition, floor in floors:
            there = [
                offset for (number, offset), bit in self.topics.bit.items()
                if number == partition.number and offset >= floor and bit & landed
            ]  # fmt: skip
            if there:
                ends.append((partition, max(there) + 1))
        return self.core.target.TargetView(tuple(ends))

    def _write(self, world: Base, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        if agent.results is None:
            driver = self.drivers.values[agent.driver]
            if driver.policy.fingerprint != effect.plan.fingerprint:
                yield who, Violation("a plan is written with another transform than it was made with")
                return
            claim = self.core.block_rows.Claim.of(driver.state)
            begun = self.states.of(self.core.transact.begin())
            jobs = [self._job(effect.plan, index, claim) for index in effect.indexes]
            workers = tuple(Worker(agent.number, job, begun, False, 0, False) for job in jobs)
            launched = world._replace(workers=tuple(sorted(world.workers + workers)))
            yield (
                f"{who}: {len(jobs)} worker(s) start",
                self._with(launched, agent, agent._replace(results=(0,) * len(jobs))),
            )
        elif all(agent.results):
            results = tuple(self.results.values[each] for each in agent.results)
            fates = ", ".join(each.fate.value for each in results)
            yield f"{who}: hears {fates}", self._go_on(world, agent, results)

    def _job(self, plan: Any, index: int, claim: Any) -> int:
        block = plan.blocks[index]
        bits = self.topics.of(block.ranges)
        receipt = self.core.receipt.Receipt(
            read=bits.bit_count(),
            landed=(bits & self.topics.meant[0]).bit_count(),
            filtered=(bits & self.topics.filtered).bit_count(),
            dead_lettered=(bits & self.topics.dead).bit_count(),
        )
        title = f"block {self.topics.name(bits)} of batch {plan.batch}, claim {claim.owner}"
        rows = bits & self.topics.meant[0]
        return self.jobs.of(
            Job(index, plan.batch, block.number, self.claims.of(claim), rows, self.receipts.of(receipt), title)
        )

    # ── a worker ────────────────────────────────────────────────────────────────────────────────────────────────────

    def worker_steps(self, world: Base, worker: Worker) -> Iterator[Step]:
        job = self.jobs.values[worker.job]
        stage, stages = self.states.values[worker.transacting].stage, self.core.transact.TransactStage
        heard = f"worker of {worker.heard}" if worker.heard else "unheard worker"
        who = f"{heard}, {job.title}: {stage.value}"
        if stage is stages.FLIP:
            yield from self._flip(world, worker, job, who)
        elif stage is stages.READ:
            yield who, self._read(world, worker, job)
        elif stage is stages.ROWS:
            yield who, self._rows(world, worker, job)
        else:
            yield from self._commit(world, worker, who)
        if worker.heard and self._left(world, "rerun"):
            again = worker._replace(transacting=self.states.of(self.core.transact.begin()), open=False, wrote=0)
            unheard = self._employ(self._spend(world, "rerun"), worker, worker._replace(heard=NOBODY))
            yield f"{who}: Spark runs the task again", self._employ(unheard, None, again)

    def _flip(self, world: Base, worker: Worker, job: Job, who: str) -> Iterator[Step]:
        if self._left(world, "wants") and worker.heard and not self._final(world, worker):
            fate = self.core.receipt.Fate.WAITING
            asked = self._report(self._spend(world, "wants"), worker, (fate, "column"))
            yield f"{who}: asks for a column", self._employ(asked, worker, None)
        if self._locked(world, job.batch, job.number):
            return
        row = self._row(world, job)
        claim = self.claims.values[job.claim]
        flipped = row is not None and all(
            self._columns(row)[name] == value for name, value in self.core.block_rows.flippable(claim).items()
        )
        after = self.core.transact.after_flip(self.states.values[worker.transacting], flipped=flipped)
        moved = worker._replace(transacting=self.states.of(after), open=flipped)
        yield f"{who}{'s' if flipped else ' finds another row'}", self._employ(world, worker, moved)

    def _final(self, world: Base, worker: Worker) -> bool:
        return any(
            agent.number == worker.heard and self.effects.values[agent.effect].final
            for agent in world.drivers
            if agent.results is not None
        )

    def _read(self, world: Base, worker: Worker, job: Job) -> Base:
        row = self._row(world, job)
        seen = self._block_row(row) if row is not None else None
        after = self.core.transact.after_read(
            self.states.values[worker.transacting], seen, self.claims.values[job.claim]
        )
        return self._settle(world, worker, worker._replace(open=False), after)

    def _rows(self, world: Base, worker: Worker, job: Job) -> Base | Violation:
        after = self.core.transact.after_rows(self.states.values[worker.transacting])
        moved = worker._replace(transacting=self.states.of(after))
        if worker.open:
            return self._employ(world, worker, moved._replace(wrote=job.rows))
        landed = self._landed(world, job.rows)
        return landed if isinstance(landed, Violation) else self._settle(landed, worker, moved, after)

    def _commit(self, world: Base, worker: Worker, who: str) -> Iterator[Step]:
        state = self.states.values[worker.transacting]
        closed = worker._replace(open=False, wrote=0)
        held = self._held(world, worker)
        if worker.orphan:
            yield f"{who} holds, late", held if isinstance(held, Violation) else self._employ(held, worker, None)
            yield f"{who} comes to nothing, late", self._employ(world, worker, None)
            return
        answered = self.core.transact.after_commit(state, answered=True)
        yield f"{who}s", held if isinstance(held, Violation) else self._settle(held, worker, closed, answered)
        if self._left(world, "lost") and worker.open and not isinstance(held, Violation):
            spent, unanswered = self._spend(world, "lost"), self.core.transact.after_commit(state, answered=False)
            yield f"{who} holds, unanswered", self._settle(self._spend(held, "lost"), worker, closed, unanswered)
            yield f"{who} comes to nothing, unanswered", self._settle(spent, worker, closed, unanswered)
            orphaned = self._employ(spent, None, worker._replace(heard=NOBODY, orphan=True))
            yield f"{who} is under way, unanswered", self._settle(orphaned, worker, closed, unanswered)

    def _held(self, world: Base, worker: Worker) -> Base | Violation:
        """The transaction holds: the row's mark and the rows are there together."""
        if not worker.open:
            return world
        job = self.jobs.values[worker.job]
        rows = tuple(
            row._replace(after=True, receipt=job.receipt) if (row.batch, row.number) == (job.batch, job.number) else row
            for row in world.rows
        )
        return self._landed(world._replace(rows=rows), worker.wrote)

    def _landed(self, world: Base, rows: int) -> Base | Violation:
        if world.landed & rows:
            return Violation(f"{self.topics.name(world.landed & rows)} is in the table twice")
        if self.scenario.keyed:
            before, now = dict(self.topics.tops(world.landed)), self._lowest(rows)
            late = [str(at) for at, first in now.items() if first < before.get(at, -1)]
            if late:
                return Violation(f"an older change of {late[0]} is made after a newer one")
        return world._replace(landed=world.landed | rows)

    def _lowest(self, rows: int) -> dict[Any, int]:
        found: dict[Any, int] = {}
        for (number, offset), bit in self.topics.bit.items():
            if bit & rows:
                found.setdefault(self.topics.partitions[number], offset)
        return found

    def _settle(self, world: Base, before: Worker, after: Worker, state: Any) -> Base:
        if state.fate is None:
            return self._employ(world, before, after._replace(transacting=self.states.of(state)))
        world = self._employ(world, before, None)
        return self._report(world, before, (state.fate, state.settled)) if before.heard else world

    def _report(self, world: Base, worker: Worker, reply: tuple[Any, Any]) -> Base:
        fates, job = self.core.receipt.Fate, self.jobs.values[worker.job]
        fate, more = reply
        receipt, error, wants = None, None, ()
        if fate is fates.LANDED:
            known = self.receipts.values[job.receipt]
            receipt = known if more is None else self.core.receipt.Receipt.from_json(more)
        elif fate is fates.HALTED:
            error = self.__dict__.setdefault("_fenced", errors.Fenced("the block is another's"))
        elif fate is fates.WAITING:
            wants = (more,)
        result = self.results.of(self.core.receipt.BlockResult(job.index, fate, receipt, error, wants=wants))
        for agent in world.drivers:
            if agent.number == worker.heard and agent.results is not None:
                indexes = self.effects.values[agent.effect].indexes
                results = tuple(
                    result if at == job.index else old for at, old in zip(indexes, agent.results, strict=True)
                )
                return self._with(world, agent, agent._replace(results=results))
        return world

    # ── the database ────────────────────────────────────────────────────────────────────────────────────────────────

    def _row(self, world: Base, job: Job) -> Row | None:
        return next((row for row in world.rows if (row.batch, row.number) == (job.batch, job.number)), None)

    def _columns(self, row: Row) -> dict[str, object]:
        claim = self.claims.values[row.claim]
        return {"epoch": claim.epoch, "owner": claim.owner, "state": "AFTER" if row.after else "BEFORE"}

    def _block_row(self, row: Row) -> Any:
        mark = self.core.block_rows.BlockState("AFTER" if row.after else "BEFORE")
        receipt = self.receipts.values[row.receipt].to_json() if row.after else None
        return self.core.block_rows.BlockRow(row.number, self.claims.values[row.claim], mark, receipt)

    def _locked(self, world: Base, batch: int, number: int) -> bool:
        return any(
            worker.open and (self.jobs.values[worker.job].batch, self.jobs.values[worker.job].number) == (batch, number)
            for worker in world.workers
        )

    # ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _fault_steps(self, world: Base) -> Iterator[Step]:
        for agent in world.drivers:
            if self._left(world, "crash"):
                yield f"driver {agent.number} dies with its workers", self._die(self._spend(world, "crash"), agent)
            if self._left(world, "abandon") and agent.results is not None:
                alone = tuple(
                    sorted(
                        each._replace(heard=NOBODY) if each.heard == agent.number else each for each in world.workers
                    )
                )
                left = self._leave(self._spend(world, "abandon"), agent)._replace(workers=alone)
                yield f"driver {agent.number} dies, its workers go on", left
        if self._left(world, "server") and any(each.open for each in world.workers):
            yield "the database is restarted", self._rolled_back(self._spend(world, "server"))
        if self._left(world, "lose") and world.landed and not world.drivers and not world.workers:
            yield "the ledger's tables are removed", self._spend(world, "lose")._replace(ledger=self._fresh(1), rows=())
        yield from self._restores(world)

    def _restores(self, world: Base) -> Iterator[Step]:
        if not self._left(world, "restore"):
            return
        now = Stored(world.ledger, world.rows, world.landed)
        if world.backup is None:
            yield "the database is backed up", world._replace(backup=now)
        elif world.backup != now:
            ledger, rows, landed = world.backup
            spent = self._rolled_back(self._spend(world, "restore"))
            yield "the database is restored", spent._replace(ledger=ledger, rows=rows, landed=landed)

    def _rolled_back(self, world: Base) -> Base:
        """Open transactions come to nothing, and their workers report doubt."""
        for worker in [each for each in world.workers if each.open]:
            world = self._employ(world, worker, None)
            if worker.heard:
                world = self._report(world, worker, (self.core.receipt.Fate.DOUBTFUL, None))
        return world

    def _die(self, world: Base, agent: Agent) -> Base:
        workers = tuple(each for each in world.workers if each.heard != agent.number)
        return self._leave(world, agent)._replace(workers=workers)

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────────

    def wrong(self, world: Base) -> str:
        """Committed positions never cover a record that is nowhere."""
        state = self.ledgers.values[world.ledger]
        covered = self.topics.below(state.positions) & ~self.topics.filtered
        lost = covered & ~world.landed & ~world.letters
        return f"the committed position covers {self.topics.name(lost)}, which is nowhere" if lost else ""

    def rests(self, world: Base) -> Iterator[tuple[str, Base]]:
        """All die, or all but one driver with its workers, which must finish, or leave for a reason. Nothing else goes wrong."""
        rest = world._replace(backup=None, drivers=(), workers=(), left=QUIET, starts=LAST)
        yield "everybody dies", rest
        for agent in world.drivers:
            workers = tuple(each for each in world.workers if each.heard == agent.number)
            yield f"only driver {agent.number} goes on", rest._replace(drivers=(agent,), workers=workers)

    def finish(self, world: Base, known: dict[Base, None]) -> Found | None:
        """One more driver, and nothing goes wrong: every record is exactly where it should be."""
        schedule: list[str] = []
        way: list[Base] = []
        for _ in range(PATIENCE):
            if world in known or (not world.drivers and world.starts > LAST):
                wrong = "" if world in known else self._unfinished(world)
                if wrong:
                    return Found(wrong, tuple(schedule))
                known.update(dict.fromkeys(way))
                return None
            way.append(world)
            found = self._next(world)
            if found is None:
                return Found("a run without faults stands still", tuple(schedule))
            label, after = found
            schedule.append(label)
            wrong = after.what if isinstance(after, Violation) else self.wrong(after)
            if isinstance(after, Violation) or wrong:
                return Found(wrong, tuple(schedule))
            world = after
        return Found("a run without faults does not come to an end", (*schedule[:40], "… and so on"))

    def _next(self, world: Base) -> Step | None:
        if not world.drivers:
            return self.start(world, patient=True)
        for worker in world.workers:
            for step in self.worker_steps(world, worker):
                return step
        return next(self.driver_steps(world, world.drivers[0]), None)

    def _unfinished(self, world: Base) -> str:
        if world.halted:
            return ""
        due = self.topics.due(world.level, world.promised)
        missing = due & self.topics.meant[0] & ~world.landed
        if missing:
            return f"in the end {self.topics.name(missing)} is not in the table"
        if due & self.topics.dead & ~world.letters:
            return f"in the end {self.topics.name(due & self.topics.dead & ~world.letters)} is not dead-lettered"
        state = self.ledgers.values[world.ledger]
        ends = tuple(end for end in self.topics.levels[world.level] if end >= 0)
        if tuple(each.committed for _, each in state.positions) != ends:
            return "in the end the committed position is not at the end of the topic"
        if world.rows or state.totals.landed != (due & world.landed).bit_count():
            return "in the end blocks are left over, or the totals are not what is in the table"
        return ""

    # ── parts of a world ────────────────────────────────────────────────────────────────────────────────────────────

    def _with(self, world: Base, agent: Agent, after: Agent) -> Base:
        return world._replace(drivers=tuple(after if each is agent else each for each in world.drivers))

    def _leave(self, world: Base, agent: Agent) -> Base:
        """Its workers, if there are any left, go on unheard."""
        return world._replace(drivers=tuple(each for each in world.drivers if each is not agent))

    def _employ(self, world: Base, before: Worker | None, after: Worker | None) -> Base:
        workers = list(world.workers)
        if before is not None:
            workers.remove(before)
        if after is not None:
            workers.append(after)
        return world._replace(workers=tuple(sorted(workers)))

    def _left(self, world: Base, kind: str) -> int:
        return world.left[self.kinds[kind]]

    def _spend(self, world: Base, kind: str) -> Base:
        at = self.kinds[kind]
        return world._replace(left=(*world.left[:at], world.left[at] - 1, *world.left[at + 1 :]))
