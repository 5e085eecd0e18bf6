"""The world around the protocol: Kafka, the target, the ledger and the clock as values, and every step they can take.

What decides is the production code (`Core`). What is here is only what surrounds it, at the grain of single effects: a
driver performs one effect at a time, a worker one send or probe at a time, an insert is delivered, begins, lands in one
table partition after the other, and is answered, and between any two of these everything else may happen.

The target, as measured on ClickHouse: an insert lands atomically per table partition; a (token, table partition) that
it remembers is acknowledged again and not written; an insert that begins after its deadline is refused; a kill ends
what runs; it may forget a token, keep one without the rows, or die in the middle of an insert.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from landonce import errors

from .core import Core
from .finish import LAST, finish
from .search import Found
from .values import FRESH, KINDS, NOBODY, TOPIC, Agent, Insert, Job, Scenario, Table, Violation, Worker, World

Step = tuple[str, World | Violation]
AT = {kind: number for number, kind in enumerate(KINDS)}
QUIET = (0,) * len(KINDS)


class Model:
    """Every step that a world of this scenario can take."""

    def __init__(self, core: Core, scenario: Scenario) -> None:
        self.core = core
        self.scenario = scenario
        self.ledgers, self.drivers, self.effects = Table(), Table(), Table()
        self.settlings, self.jobs, self.tokens, self.results = Table(), Table(), Table(), Table()
        self.results.of(None)
        self._advanced: dict[tuple[int, Any], Any] = {}
        self._launched: dict[tuple[int, int], tuple[int, ...]] = {}
        self._probed: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._covered: dict[int, int] = {}
        self._promises: dict[tuple[int, ...], int] = {}
        self._surveys: dict[tuple[int, int], Any] = {}
        self.partitions = [core.ranges.Partition(TOPIC, number) for number in range(len(scenario.levels[-1]))]
        self._bits()

    # ── the topics ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _bits(self) -> None:
        """Each coordinate that ever exists is a bit."""
        last = self.scenario.levels[-1]
        coordinates = [(number, offset) for number, end in enumerate(last) for offset in range(end)]
        existing = [each for each in coordinates if each not in self.scenario.gone]
        self.bit = {each: 1 << index for index, each in enumerate(existing)}
        self.part = {each: each[1] % self.scenario.table_partitions for each in existing}
        self.table = {each: each[1] % self.scenario.tables for each in existing}
        self.silent = sum(self.bit[each] for each in self.scenario.filtered)
        self.rejected = sum(self.bit[each] for each in self.scenario.dead)

    def name(self, bits: int) -> str:
        return " ".join(f"{TOPIC}[{number}]@{offset}" for (number, offset), bit in self.bit.items() if bit & bits)

    def _within(self, number: int, first: int, end: int) -> int:
        return sum(bit for (at, offset), bit in self.bit.items() if at == number and first <= offset < end)

    def due(self, world: World) -> int:
        """The coordinates that have to be somewhere in the end."""
        ends = self.scenario.levels[world.level]
        return sum(self._within(number, 0, end) for number, end in enumerate(ends)) & self._owed(world.promised)

    def _owed(self, promised: tuple[int, ...]) -> int:
        known = self._promises.get(promised)
        if known is None:
            known = sum(self.bit.values()) & ~sum(self._within(at, 0, first) for at, first in enumerate(promised))
            self._promises[promised] = known
        return known

    def _surveyed(self, level: int, clock: int) -> Any:
        known = self._surveys.get((level, clock))
        if known is None:
            extents = tuple(
                (partition, self.core.source.Extent(0, end))
                for partition, end in zip(self.partitions, self.scenario.levels[level], strict=True)
                if end >= 0
            )
            known = self.core.steps.Surveyed(
                self.core.source.SourceView("cluster", ((TOPIC, "id"),), extents),
                clock,
                self.core.packing.Limits(self.scenario.max_rows, self.scenario.block_rows, self.scenario.parallelism),
                self.scenario.patience,
            )
            self._surveys[level, clock] = known
        return known

    # ── the beginning ───────────────────────────────────────────────────────────────────────────────────────────────

    def first(self) -> World:
        left = tuple(getattr(self.scenario.faults, kind) for kind in KINDS)
        return World(0, 0, self._fresh(0), FRESH, (), (), (), 0, frozenset(), 0, left, 0, 0, ())

    def _fresh(self, life: int) -> int:
        return self.ledgers.of(self.core.ledger.LedgerState("p", f"lineage {life}"))

    def rests(self, world: World) -> Iterator[tuple[str, World]]:
        """The same target and ledger with nothing more that goes wrong: everybody has died, or all but one driver with its workers,
        which must finish, or leave for a reason."""
        rest = world._replace(backup=FRESH, drivers=(), workers=(), inserts=(), left=QUIET, starts=LAST)
        yield "everybody dies", rest
        for agent in world.drivers:
            workers = tuple(each for each in world.workers if each.heard == agent.number)
            yield f"only driver {agent.number} goes on", rest._replace(drivers=(agent,), workers=workers)

    def finish(self, world: World, known: dict[World, None]) -> Found | None:
        return finish(self, world, known)

    def taken_over(self, world: World, agent: Agent) -> bool:
        """Another driver has acquired the pipeline since this one did."""
        held = self.drivers.values[agent.driver].ledger
        return held is not None and held.owner != self.ledgers.values[world.ledger].owner

    # ── all steps ───────────────────────────────────────────────────────────────────────────────────────────────────

    def steps(self, world: World) -> Iterator[Step]:
        """Every step that can be taken next."""
        for agent in world.drivers:
            yield from self.driver_steps(world, agent)
        for worker in world.workers:
            yield from self.worker_steps(world, worker)
        for insert in set(world.inserts):
            yield from self._insert_steps(world, insert)
        if world.starts < self.scenario.starts and len(world.drivers) < self.scenario.alive:
            yield from self._starts(world)
        if world.level + 1 < len(self.scenario.levels):
            yield "records arrive", world._replace(level=world.level + 1)
        if world.clock < self.scenario.clock and self._somebody_waits(world):
            yield "the clock ticks", self.tick(world)
        yield from self._fault_steps(world)

    def _starts(self, world: World) -> Iterator[Step]:
        yield self.start(world)

    def start(self, world: World, fingerprint: str | None = None, *, earliest: bool = False) -> Step:
        number = world.starts + 1
        prints = self.scenario.fingerprints
        start = (
            self.core.source.Start.LATEST if self.scenario.latest and not earliest else self.core.source.Start.EARLIEST
        )
        print_ = fingerprint or prints[min(number, len(prints)) - 1]
        policy = self.core.deduplicating.Deduplicating("table", print_, start, tolerance=self._tolerance(number))
        driver, effect = self.core.batch.begin(policy)
        agent = Agent(number, self.drivers.of(driver), self.effects.of(effect), None, 0)
        return f"driver {number} starts", world._replace(drivers=(*world.drivers, agent), starts=number)

    def _tolerance(self, number: int) -> Any:
        limits = self.scenario.limits
        limit = limits[min(number, len(limits)) - 1] if number <= LAST else 1.0
        return self.core.tolerance.Tolerance(limit, floor=1)

    def tick(self, world: World) -> World:
        clock = world.clock + 1
        inserts = tuple(each for each in world.inserts if each.running or self._in_time(each.block, clock))
        workers = tuple(
            each
            for each in world.workers
            if each.heard or (each.insert and each.insert[0]) or self._in_time(each.block, clock)
        )
        return world._replace(clock=clock, inserts=inserts, workers=workers)

    def _in_time(self, block: int, clock: int) -> bool:
        """What can only be refused any more, and is heard by nobody, is not kept."""
        return self.jobs.values[block].deadline >= clock

    def _somebody_waits(self, world: World) -> bool:
        return any(deadline >= world.clock for deadline in self._deadlines(world))

    def _deadlines(self, world: World) -> Iterator[int]:
        pending = self.ledgers.values[world.ledger].pending
        if pending is not None:
            yield pending.deadline
        for agent in world.drivers:
            held = self.drivers.values[agent.driver]
            if held.ledger is not None and held.ledger.pending is not None:
                yield held.ledger.pending.deadline
        for worker in world.workers:
            yield self.jobs.values[worker.block].deadline
        for insert in world.inserts:
            yield self.jobs.values[insert.block].deadline

    # ── a driver ────────────────────────────────────────────────────────────────────────────────────────────────────

    def driver_steps(self, world: World, agent: Agent) -> Iterator[Step]:
        effect = self.effects.values[agent.effect]
        step = effect.step.value
        who = f"driver {agent.number}: {step}"
        steps = self.core.steps
        if isinstance(effect, steps.Acquire):
            yield who, self._acquire(world, agent)
        elif isinstance(effect, steps.Survey):
            yield who, self._go_on(world, agent, self._surveyed(world.level, world.clock))
            if world.level and self._left(world, "stale"):
                past = self._surveyed(world.level - 1, world.clock)
                yield f"{who} sees the past", self._go_on(self._spend(world, "stale"), agent, past)
        elif isinstance(effect, steps.Change):
            yield from self._change(world, agent, effect, who)
        elif isinstance(effect, steps.Await):
            if world.clock > effect.deadline:
                yield f"{who} is over", self._go_on(world, agent, None)
        elif isinstance(effect, steps.Kill):
            yield who, self._go_on(self._kill(world), agent, world.clock)
            if self._left(world, "leak") and self._runs(world):
                missed = self._go_on(self._spend(world, "leak"), agent, world.clock)
                yield f"{who}, but it misses what runs", missed
        elif isinstance(effect, steps.Look):
            yield who, self._go_on(world, agent, self._look(world.landed, effect.floors))
        elif isinstance(effect, steps.Count):
            yield f"{who}, and counts", self._go_on(world, agent, self._count(world.landed, effect.ranges))
        elif isinstance(effect, steps.Write):
            yield from self._write(world, agent, effect, who)
        elif isinstance(effect, steps.Commit):
            yield who, self._commit(world, agent, effect)
        elif isinstance(effect, steps.Idle):
            seen = self.drivers.values[agent.driver].world.source
            if seen != self._surveyed(world.level, 0).source:
                yield who, self._go_on(world, agent, True)
        else:
            yield from self._own_steps(world, agent, effect, who)

    def _own_steps(self, world: World, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        """What other drivers do beside, and the end."""
        del effect
        yield who, self._leave(world, agent)

    def _go_on(self, world: World, agent: Agent, reply: Any) -> World | Violation:
        """The production code takes the reply and says what is next."""
        key = (agent.driver, reply)
        answer = self._advanced.get(key)
        if answer is None:
            try:
                driver, effect = self.drivers.values[agent.driver].advance(reply)
                answer = (self.drivers.of(driver), self.effects.of(effect))
            except Exception as error:  # named errors are part of the protocol; others are judged as defects
                answer = error
            self._advanced[key] = answer
        if isinstance(answer, Exception):
            return self._raised(world, agent, answer)
        return self._with(world, agent, agent._replace(driver=answer[0], effect=answer[1], results=None, unsure=0))

    def _raised(self, world: World, agent: Agent, error: Exception) -> World | Violation:
        """A driver that halts has left; whether it was right to halt is judged here.

        One that was taken over sees a world that it cannot judge, so it has to ask the ledger before it says why.
        """
        driver = self.drivers.values[agent.driver]
        if isinstance(error, errors.LandonceError) and (
            self.taken_over(world, agent) or self._refused(world, agent, error)
        ):
            right = True
        elif isinstance(error, errors.Fenced):
            right = bool(world.restored)
        elif isinstance(error, errors.PlanChanged):
            right = driver.pending.fingerprint != driver.policy.fingerprint
        elif isinstance(error, errors.PartialPresence):
            right = bool(world.restored)
        elif isinstance(error, errors.TooManyDeadLetters):
            right = driver.policy.tolerance.limit < 1
        elif isinstance(error, errors.PositionBeyondEnd | errors.PartitionVanished | errors.TargetAhead):
            lost = self.scenario.latest and world.restored and isinstance(error, errors.TargetAhead)
            right = lost or self._left(world, "stale") < self.scenario.faults.stale
        else:
            right = False
        if not right:
            return Violation(f"driver {agent.number} stopped without a reason: {type(error).__name__}: {error}")
        return self._leave(world, agent)

    def _refused(self, world: World, agent: Agent, error: errors.LandonceError) -> bool:
        """Whether a driver may refuse the ranges that it was given."""
        del world, agent, error
        return False

    def _with(self, world: World, agent: Agent, after: Agent) -> World:
        return world._replace(drivers=tuple(after if each is agent else each for each in world.drivers))

    def _leave(self, world: World, agent: Agent) -> World:
        return world._replace(drivers=tuple(each for each in world.drivers if each is not agent))

    def _acquire(self, world: World, agent: Agent) -> World | Violation:
        taken = self.core.ledger.taken(self.ledgers.values[world.ledger], f"owner {agent.number}")
        return self._go_on(world._replace(ledger=self.ledgers.of(taken)), agent, taken)

    def _change(self, world: World, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        current = self.ledgers.values[world.ledger]
        if agent.unsure:
            yield f"{who}: reads back", self._read_back(world, agent, effect, current)
            return
        if self.core.ledger.key(current) != self.core.ledger.key(effect.old):
            yield f"{who} is fenced", self._raised(world, agent, self.core.ledger.fenced(effect.old, current))
            return
        new = effect.new
        backwards = [at for at, position in effect.old.committed().items() if new.committed().get(at, -1) < position]
        if backwards:
            yield who, Violation(f"the committed position of {backwards[0]} moved backwards")
            return
        applied = world._replace(ledger=self.ledgers.of(new), promised=world.promised or self._promise(new))
        yield who, self._go_on(applied, agent, new)
        if self._left(world, "unsure"):
            unsure = agent._replace(unsure=1)
            yield f"{who} is applied, unanswered", self._with(self._spend(applied, "unsure"), agent, unsure)
            yield f"{who} is not applied, unanswered", self._with(self._spend(world, "unsure"), agent, unsure)

    def _promise(self, state: Any) -> tuple[int, ...]:
        first = {at.number: position.first for at, position in state.positions}
        return tuple(first.get(at.number, 0) for at in self.partitions) if first else ()

    def _read_back(self, world: World, agent: Agent, effect: Any, current: Any) -> World | Violation:
        try:
            applied = self.core.ledger.settled_change(effect.old, effect.new, current)
        except errors.Fenced as error:
            return self._raised(world, agent, error)
        if applied:
            return self._go_on(world, agent, effect.new)
        return self._with(world, agent, agent._replace(unsure=0))

    def _commit(self, world: World, agent: Agent, effect: Any) -> World | Violation:
        bits = sum(
            self._within(each.partition.number, each.first, each.end)
            for block in effect.plan.blocks
            for each in block.ranges
        )
        return self._go_on(world._replace(dead=world.dead | bits & self.rejected), agent, None)

    def _write(self, world: World, agent: Agent, effect: Any, who: str) -> Iterator[Step]:
        if agent.results is None:
            driver = self.drivers.values[agent.driver]
            if driver.policy.fingerprint != effect.plan.fingerprint:
                yield who, Violation("a plan is written with another transform than it was made with")
                return
            jobs = self._launch(agent)
            begun = self.settlings.of(
                self.core.settle.begin(effect.mode, fill=effect.plan.kind.value in ("fill", "letters"))
            )
            workers = tuple(Worker(agent.number, job, begun, 0, ()) for job in jobs)
            launched = world._replace(workers=tuple(sorted(world.workers + workers)))
            mode = effect.mode.value
            yield (
                f"{who} {mode}: {len(jobs)} worker(s) start",
                self._with(launched, agent, agent._replace(results=(0,) * len(jobs))),
            )
        elif all(agent.results):
            results = tuple(self.results.values[each] for each in agent.results)
            fates = ", ".join(each.fate.value for each in results)
            yield f"{who}: hears {fates}", self._go_on(world, agent, results)

    def _launch(self, agent: Agent) -> tuple[int, ...]:
        """The jobs of a write, with the token that production code gives each block."""
        key = (agent.driver, agent.effect)
        jobs = self._launched.get(key)
        if jobs is None:
            effect = self.effects.values[agent.effect]
            identity = self.drivers.values[agent.driver].state.identity
            jobs = tuple(self.jobs.of(self._job(identity, effect.plan, index)) for index in effect.indexes)
            self._launched[key] = jobs
        return jobs

    def _job(self, identity: Any, plan: Any, index: int) -> Job:
        block = plan.blocks[index]
        within = [
            (each, bit)
            for each, bit in self.bit.items()
            if any(range_.partition.number == each[0] and range_.holds(each[1]) for range_ in block.ranges)
        ]
        bits = sum(bit for _, bit in within)
        rows = bits & ~self.silent & ~self.rejected
        receipt = self.core.receipt.Receipt(
            read=bits.bit_count(),
            landed=rows.bit_count(),
            filtered=(bits & self.silent).bit_count(),
            dead_lettered=(bits & self.rejected).bit_count(),
        )
        result = self.results.of(self.core.receipt.BlockResult(index, self.core.receipt.Fate.LANDED, receipt))
        title = ", ".join(f"{TOPIC}[{each.partition.number}] [{each.first},{each.end})" for each in block.ranges)
        named = sorted({self.table[each] for each, bit in within if bit & rows}) or [0]
        then = -1
        for place in reversed(range(len(named))):
            mine = [(each, bit) for each, bit in within if self.table[each] == named[place] and bit & rows]
            parts = tuple(
                sum(bit for each, bit in mine if self.part[each] == part)
                for part in range(self.scenario.table_partitions)
            )
            token = self.core.blocks.token(identity, block)
            if self.scenario.tables > 1:
                token = self.core.blocks.table_token(token, block, f"table {named[place]}")
                title = f"{title} of table {named[place]}"
            job = Job(
                index, self.tokens.of(token), plan.deadline, parts, sum(bit for _, bit in mine), result,
                plan.kind.value == "fill", f"block {title} generation {block.generation} deadline {plan.deadline}",
                place, len(named), then,
            )  # fmt: skip
            then = self.jobs.of(job)
        return job

    # ── a worker ────────────────────────────────────────────────────────────────────────────────────────────────────

    def worker_steps(self, world: World, worker: Worker) -> Iterator[Step]:
        job = self.jobs.values[worker.block]
        settling = self.settlings.values[worker.settling]
        stage = self.core.settle.InsertStage
        heard = f"worker of {worker.heard}" if worker.heard else "unheard worker"
        who = f"{heard}, {job.title}"
        if worker.insert:
            yield from self._own_insert_steps(world, worker, job, who)
        elif not job.rows:
            done = self.core.settle.nothing_to_land(settling)
            yield f"{who}: nothing to land", self._settle(world, worker, done)
        elif settling.stage is stage.SEND:
            rows = worker.missing if settling.missing_only else job.rows
            insert = (0, tuple(part & rows for part in job.parts))
            yield f"{who}: sends", self._employ(world, worker, worker._replace(insert=insert))
        else:
            after, missing = self._probe(worker, world.landed & job.rows)
            yield (
                f"{who}: probes, {missing.bit_count()} missing",
                self._settle(world, worker._replace(missing=missing), self.settlings.values[after], worker),
            )
        if worker.heard and self._left(world, "rerun"):
            yield f"{who}: Spark runs the task again", self._rerun(world, worker, job)

    def _probe(self, worker: Worker, present: int) -> tuple[int, int]:
        key = (worker.block, worker.settling, present)
        known = self._probed.get(key)
        if known is None:
            job = self.jobs.values[worker.block]
            missing = job.rows & ~present
            torn = any(part & present and part & missing for part in job.parts)
            presence = self.core.settle.Presence(job.rows.bit_count(), missing.bit_count(), torn)
            settling = self.core.settle.after_probe(self.settlings.values[worker.settling], presence)
            known = self._probed[key] = (self.settlings.of(settling), missing)
        return known

    def _own_insert_steps(self, world: World, worker: Worker, job: Job, who: str) -> Iterator[Step]:
        """An insert that its worker still waits for."""
        running, parts = worker.insert
        reply = self.core.settle.Reply
        if not running:
            if world.clock > job.deadline:
                yield f"{who}: insert refused as late", self._answered(world, worker, reply.LATE)
            else:
                yield f"{who}: insert begins", self._employ(world, worker, worker._replace(insert=(1, parts)))
        else:
            for label, after, rest in self._landings(world, job, parts):
                if isinstance(after, Violation):
                    yield f"{who}: {label}", after
                else:
                    yield f"{who}: {label}", self._employ(after, worker, worker._replace(insert=(1, rest)))
            if not any(parts):
                yield f"{who}: insert acknowledged", self._answered(world, worker, reply.ACKNOWLEDGED)
            if self._left(world, "refused"):
                yield (
                    f"{who}: insert ends in an error",
                    self._answered(self._spend(world, "refused"), worker, reply.REFUSED),
                )
            yield from self._burn_steps(world, job, parts, who)
        if self._left(world, "lost"):
            orphaned = self._spend(self._orphan(world, worker), "lost")
            yield f"{who}: no answer", self._answered(orphaned, worker, reply.LOST)

    def _landings(self, world: World, job: Job, parts: tuple[int, ...]) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
        """One table partition after the other, in any order, each whole or, if its token is known, not at all."""
        for at, rows in enumerate(parts):
            if not rows:
                continue
            rest = tuple(0 if each == at else left for each, left in enumerate(parts))
            identity = job.token * 2 + at
            if identity in world.tokens:
                yield f"table partition {at} is deduplicated", world, rest
            elif world.landed & rows:
                yield (
                    f"table partition {at} lands",
                    Violation(f"{self.name(world.landed & rows)} is in the target twice"),
                    rest,
                )
            else:
                landed = world._replace(landed=world.landed | rows, tokens=world.tokens | {identity})
                yield f"table partition {at} lands", landed, rest

    def _answered(self, world: World, worker: Worker, reply: Any) -> World:
        settling = self.core.settle.after_send(self.settlings.values[worker.settling], reply)
        return self._settle(world, worker._replace(insert=()), settling, worker)

    def _settle(self, world: World, worker: Worker, settling: Any, before: Worker | None = None) -> World:
        """A worker whose block has a fate reports it to the driver that hears it, and is gone."""
        if settling.fate is None:
            return self._employ(world, before or worker, worker._replace(settling=self.settlings.of(settling)))
        if (another := self._next_table(worker, settling)) is not None:
            return self._employ(world, before or worker, another)
        world = self._employ(world, before or worker, None)
        return self._report(world, worker, self._result(worker, settling)) if worker.heard else world

    def _next_table(self, worker: Worker, settling: Any) -> Worker | None:
        """The same worker at the next table of its block, unless production code knows the block's fate by now."""
        job, landed = self.jobs.values[worker.block], self.core.receipt.Fate.LANDED
        before = [replace(settling, fate=landed)] * job.place
        if self.core.settle.block_fate([*before, settling], job.tables) is not None:
            return None
        begun = self.core.settle.begin(settling.mode, fill=settling.fill, wary=settling.wary)
        return Worker(worker.heard, job.then, self.settlings.of(begun), 0, ())

    def _result(self, worker: Worker, settling: Any) -> int:
        fates = self.core.receipt.Fate
        job = self.jobs.values[worker.block]
        if settling.fate is fates.LANDED:
            return job.result
        error = None
        if settling.fate is fates.HALTED:
            kind = (
                errors.DuplicatePresent
                if settling.problem is self.core.settle.Problem.DUPLICATE
                else errors.PartialPresence
            )
            error = self._error(kind)
        return self.results.of(self.core.receipt.BlockResult(job.index, settling.fate, error=error))

    def _error(self, kind: type[errors.Halt]) -> errors.Halt:
        """One value for each kind, so that results compare equal."""
        return self.__dict__.setdefault(f"_{kind.__name__}", kind("as the probe saw"))

    def _report(self, world: World, worker: Worker, result: int) -> World:
        index = self.jobs.values[worker.block].index
        for agent in world.drivers:
            if agent.number == worker.heard and agent.results is not None:
                indexes = self.effects.values[agent.effect].indexes
                results = tuple(result if at == index else old for at, old in zip(indexes, agent.results, strict=True))
                return self._with(world, agent, agent._replace(results=results))
        return world

    def _rerun(self, world: World, worker: Worker, job: Job) -> World:
        doubt = self.results.of(self.core.receipt.BlockResult(job.index, self.core.receipt.Fate.DOUBTFUL))
        world = self._report(self._spend(world, "rerun"), worker, doubt)
        return self._employ(world, worker, worker._replace(heard=NOBODY))

    def _employ(self, world: World, before: Worker, after: Worker | None) -> World:
        workers = list(world.workers)
        workers.remove(before)
        if after is not None:
            workers.append(after)
            workers.sort()
        return world._replace(workers=tuple(workers))

    # ── inserts without a worker ────────────────────────────────────────────────────────────────────────────────────

    def _insert_steps(self, world: World, insert: Insert) -> Iterator[Step]:
        job = self.jobs.values[insert.block]
        who = f"late insert, {job.title}"
        if not insert.running:
            yield f"{who}: begins", self._swap_insert(world, insert, insert._replace(running=1))
            return
        for label, after, rest in self._landings(world, job, insert.parts):
            if isinstance(after, Violation):
                yield f"{who}: {label}", after
            else:
                yield f"{who}: {label}", self._swap_insert(after, insert, insert._replace(parts=rest))
        yield from self._burn_steps(world, job, insert.parts, who)

    def _swap_insert(self, world: World, before: Insert, after: Insert | None) -> World:
        inserts = list(world.inserts)
        inserts.remove(before)
        if after is not None and any(after.parts):
            inserts.append(after)
            inserts.sort()
        return world._replace(inserts=tuple(inserts))

    def _orphan(self, world: World, worker: Worker) -> World:
        """The insert of a worker goes on without it; one that can only be refused is not kept."""
        running, parts = worker.insert
        if not any(parts) or not (running or self._in_time(worker.block, world.clock)):
            return world
        return world._replace(inserts=tuple(sorted((*world.inserts, Insert(worker.block, running, parts)))))

    def _runs(self, world: World) -> bool:
        return any(each.running for each in world.inserts) or any(
            each.insert and each.insert[0] for each in world.workers
        )

    def _kill(self, world: World, reply: str = "REFUSED") -> World:
        """Ends what runs; what has landed of it stays."""
        world = world._replace(inserts=tuple(each for each in world.inserts if not each.running))
        for worker in world.workers:
            if worker.insert and worker.insert[0]:
                world = self._answered(world, worker, getattr(self.core.settle.Reply, reply))
        return world

    # ── what the driver asks ────────────────────────────────────────────────────────────────────────────────────────

    def _look(self, landed: int, floors: Any) -> Any:
        ends = []
        for partition, floor in floors:
            there = [
                offset for (number, offset), bit in self.bit.items()
                if number == partition.number and offset >= floor and bit & landed
            ]  # fmt: skip
            if there:
                ends.append((partition, max(there) + 1))
        return self.core.target.TargetView(tuple(ends))

    def _count(self, landed: int, ranges: Any) -> int:
        within = sum(self._within(each.partition.number, each.first, each.end) for each in ranges)
        return (within & landed).bit_count()

    # ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _left(self, world: World, kind: str) -> int:
        return world.left[AT[kind]]

    def _spend(self, world: World, kind: str) -> World:
        at = AT[kind]
        return world._replace(left=(*world.left[:at], world.left[at] - 1, *world.left[at + 1 :]))

    def _burn_steps(self, world: World, job: Job, parts: tuple[int, ...], who: str) -> Iterator[Step]:
        if not self._left(world, "burn"):
            return
        for at, rows in enumerate(parts):
            identity = job.token * 2 + at
            if rows and identity not in world.tokens:
                used_up = self._spend(world, "burn")._replace(tokens=world.tokens | {identity})
                yield f"{who}: the server dies between token and part {at}", self._kill(used_up, "LOST")

    def _fault_steps(self, world: World) -> Iterator[Step]:
        for agent in world.drivers:
            if self._left(world, "crash"):
                yield f"driver {agent.number} dies with its workers", self._die(self._spend(world, "crash"), agent)
            if self._left(world, "abandon") and agent.results is not None:
                yield f"driver {agent.number} dies, its workers go on", self._abandon(world, agent)
        if self._left(world, "server") and self._runs(world):
            yield "the server dies", self._kill(self._spend(world, "server"), "LOST")
        if self._left(world, "forget"):
            for token in sorted({each // 2 for each in world.tokens}):
                kept = frozenset(each for each in world.tokens if each // 2 != token)
                yield f"the target forgets token {token}", self._spend(world, "forget")._replace(tokens=kept)
        if self._left(world, "restore") or self._left(world, "lose"):
            yield from self._ledger_faults(world)

    def _die(self, world: World, agent: Agent) -> World:
        for worker in world.workers:
            if worker.heard == agent.number:
                if worker.insert:
                    world = self._orphan(world, worker)
                world = self._employ(world, worker, None)
        return self._leave(world, agent)

    def _abandon(self, world: World, agent: Agent) -> World:
        for worker in world.workers:
            if worker.heard == agent.number:
                world = self._employ(world, worker, worker._replace(heard=NOBODY))
        return self._leave(self._spend(world, "abandon"), agent)

    def _ledger_faults(self, world: World) -> Iterator[Step]:
        if world.backup == FRESH and self._left(world, "restore"):
            yield "the ledger is backed up", world._replace(backup=world.ledger)
        if (
            self._left(world, "restore")
            and world.backup not in (FRESH, world.ledger)
            and self._at_rest(world, world.backup)
        ):
            restored = self._spend(world, "restore")._replace(ledger=world.backup, restored=1)
            yield "the ledger is restored", restored
        if self._left(world, "lose") and (world.landed or not self.scenario.latest):  # else it is a first start
            fresh = self._fresh(1)
            if fresh != world.ledger and self._at_rest(world, fresh):
                yield "the ledger is lost", self._spend(world, "lose")._replace(ledger=fresh, restored=1)

    def _at_rest(self, world: World, ledger: int) -> bool:
        """The documented condition of a restore: drivers stopped, and one deadline waited out."""
        if self.scenario.careless:
            return True
        if world.drivers and not self.scenario.zombie_restore:
            return False
        owner = self.ledgers.values[ledger].owner
        if any(owner == f"owner {agent.number}" for agent in world.drivers):
            return False
        return not self._somebody_waits(world)

    # ── what must hold in every world ───────────────────────────────────────────────────────────────────────────────

    def wrong(self, world: World) -> str:
        """Committed positions never cover a record that is nowhere."""
        covered = self._covered.get(world.ledger)
        if covered is None:
            committed = self.ledgers.values[world.ledger].committed()
            covered = sum(self._within(at.number, 0, end) for at, end in committed.items()) & ~self.silent
            self._covered[world.ledger] = covered
        lost = covered & self._owed(world.promised) & ~world.landed & ~world.dead
        return f"the committed position covers {self.name(lost)}, which is nowhere" if lost else ""

    def replayed(self, world: World) -> int:
        """Records that could not land, and did when their dead letters were replayed."""
        del world
        return 0

    def fill(self, world: World) -> World:
        """An operator's word: what a torn table partition lacks shall be written."""
        state = self.ledgers.values[world.ledger]
        plan = replace(state.pending, kind=self.core.blocks.Kind.FILL)
        return world._replace(ledger=self.ledgers.of(self.core.ledger.amended(state, plan)))
