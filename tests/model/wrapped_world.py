"""The world around the protocol of wrapped sinks: a ledger with a row per block, a target that takes whatever comes, and time.

What decides is production code: the driver's steps, the worker's steps, who may change a block's row, and what becomes of the
rows when the ledger changes. What is here is only what the sink declares: a push arrives once or not at all, within so many
ticks of its claim as the sink says; where pushing again is harmless, a push may arrive at any time, and again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from landonce import errors

from .core import Core
from .search import Found
from .transaction_values import Job
from .transaction_world import LAST, Transactions
from .values import Violation
from .wrapped_values import ARRIVED, GONE, KINDS, NOBODY, SENT, UNSENT, Flight, Row, Scenario, Sky, Worker

Step = tuple[str, Sky | Violation]
QUIET = (0,) * len(KINDS)


class Pushes(Transactions):
    """Every step that a world of this scenario can take, and what must hold in each."""

    def __init__(self, core: Core, scenario: Scenario) -> None:
        super().__init__(core, scenario)  # type: ignore[arg-type]
        self.scenario: Scenario = scenario  # type: ignore[assignment]
        self.kinds = {kind: at for at, kind in enumerate(KINDS)}

    def first(self) -> Sky:
        left = tuple(getattr(self.scenario.faults, kind) for kind in KINDS)
        return Sky(0, 0, self._fresh(0), (), 0, (), (), (), 0, left, 0, (), "")

    def steps(self, world: Sky) -> Iterator[Step]:
        yield from super().steps(world)
        for flight in world.flights:
            yield from self._arrivals(world, flight)
        if world.clock < self.scenario.clock:
            yield from self._tick(world)

    def _policy(self, number: int, fingerprint: str) -> Any:
        return self.core.claimed.Claimed(
            target="sink",
            fingerprint=fingerprint,
            harmless=self.scenario.harmless,
            can_probe=self.scenario.probe and not self.scenario.harmless,
            wait=self._wait(number),
            once=True,
            tolerance=self._tolerance(number),
        )

    # ── a driver ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _own_steps(self, world: Sky, agent: Any, effect: Any, who: str) -> Iterator[Step]:
        if isinstance(effect, self.core.steps.LookAtClaims):
            yield who, self._go_on(world, agent, self._status(world, effect.plan.batch))
        elif isinstance(effect, self.core.steps.Await):
            if world.clock > effect.deadline or all(row.state != "CLAIMED" for row in world.rows):
                yield who, self._go_on(world, agent, None)
        elif isinstance(effect, self.core.steps.Write):
            yield from self._write(world, agent, effect, who)
        else:
            yield who, self._leave(world, agent)

    def _status(self, world: Sky, batch: int) -> Any:
        rows = tuple(self._push_row(row) for row in world.rows if row.batch == batch)
        return self.core.block_rows.PushRows(rows, world.clock)

    def _changed(self, world: Sky, old: Any, new: Any) -> Sky | None:
        """The ledger's transaction."""
        change = self.core.block_rows.block_change(old, new)
        self.core.block_rows.claims_may_change(old, new, tuple(self._push_row(row) for row in world.rows))
        rows = tuple(row for row in world.rows if row.batch != change.removed)
        if change.claim is not None:
            rows = tuple(row._replace(claim=self.claims.of(change.claim)) for row in rows)
        claim = self.claims.of(self.core.block_rows.Claim.of(new))
        batch = new.pending.batch if new.pending else 0
        rows += tuple(Row(batch, number, claim, "BEFORE", 0, 0, -1, 0) for number in change.added)
        return world._replace(ledger=self.ledgers.of(new), rows=rows, promised=world.promised or self._promise(new))

    def _write(self, world: Sky, agent: Any, effect: Any, who: str) -> Iterator[Step]:
        if agent.results is None:
            driver = self.drivers.values[agent.driver]
            if driver.policy.fingerprint != effect.plan.fingerprint:
                yield who, Violation("a plan is pushed with another transform than it was made with")
                return
            claim = self.core.block_rows.Claim.of(driver.state)
            rows = {row.number: row for row in world.rows if row.batch == effect.plan.batch}
            launched, results = world, []
            for index in effect.indexes:
                row = rows.get(effect.plan.blocks[index].number)
                job = self._job(effect.plan, index, claim)
                if row is not None and row.state == "AFTER" and row.receipt >= 0:
                    results.append(self._landed_result(index, row.receipt))
                else:
                    launched = self._launch(launched, agent.number, job)
                    results.append(0)
            yield f"{who}: workers start", self._with(launched, agent, agent._replace(results=tuple(results)))
        elif all(agent.results):
            results = tuple(self.results.values[each] for each in agent.results)
            fates = ", ".join(each.fate.value for each in results)
            yield f"{who}: hears {fates}", self._go_on(world, agent, results)

    def _landed_result(self, index: int, receipt: int) -> int:
        fate = self.core.receipt.Fate.LANDED
        return self.results.of(self.core.receipt.BlockResult(index, fate, self.receipts.values[receipt]))

    def _launch(self, world: Sky, heard: int, job: int) -> Sky:
        """A nonce is random; here it is one that nothing in the world holds."""
        used = {each.nonce for each in (*world.rows, *world.flights, *world.workers)}
        used |= {self.states.values[each.pushing].seen for each in world.workers}
        nonce = next(each for each in range(1, len(used) + 2) if each not in used)
        return self._employ(world, None, Worker(heard, job, self._begun(job), nonce, 0, UNSENT, self._wait(heard)))

    def _wait(self, number: int) -> int:
        """What the sink of this driver declares."""
        return self.scenario.waits[min(number, len(self.scenario.waits)) - 1]

    def _begun(self, job: int) -> int:
        empty = self.jobs.values[job].rows == 0
        harmless, probe = self.scenario.harmless, self.scenario.probe and not self.scenario.harmless
        return self.states.of(self.core.push.begin(harmless=harmless, can_probe=probe, empty=empty))

    # ── a worker ────────────────────────────────────────────────────────────────────────────────────────────────────

    def worker_steps(self, world: Sky, worker: Worker) -> Iterator[Step]:
        job, state = self.jobs.values[worker.job], self.states.values[worker.pushing]
        stage, stages, push = state.stage, self.core.push.PushStage, self.core.push
        heard = f"worker of {worker.heard}" if worker.heard else "unheard worker"
        who = f"{heard}, attempt {worker.nonce}, {job.title}: {stage.value}"
        if stage in (stages.CLAIM, stages.RECLAIM):
            yield who, self._claim(world, worker, job, state)
        elif stage is stages.ROW:
            row = self._row(world, job)
            seen = self._push_row(row) if row is not None else None
            done = seen is not None and self.core.block_rows.over(seen, world.clock, worker.wait)
            after = push.after_row(state, seen, self.claims.values[job.claim], over=done)
            yield who, self._settle(world, worker, worker, after)
        elif stage is stages.PROBE:
            there = job.rows & world.landed == job.rows
            yield f"{who} says {there}", self._settle(world, worker, worker, push.after_probe(state, there=there))
        elif stage is stages.PUSH:
            yield from self._push(world, worker, job, who)
        else:
            yield who, self._finish_row(world, worker, job, state)
        if worker.heard and self._left(world, "rerun"):
            unheard = self._employ(self._spend(world, "rerun"), worker, worker._replace(heard=NOBODY))
            yield f"{who}: Spark runs the task again", self._launch(unheard, worker.heard, worker.job)

    def _claim(self, world: Sky, worker: Worker, job: Job, state: Any) -> Sky:
        marks, claim = self.core.block_rows, self.claims.values[job.claim]
        if state.stage is self.core.push.PushStage.CLAIM:
            where = marks.claimable(claim, harmless=self.scenario.harmless)
        else:
            where = marks.reclaimable(claim, state.seen)
        row = self._row(world, job)
        won = row is not None and self._holds(row, where)
        if won and row is not None:
            world = self._put(
                world, row._replace(state="CLAIMED", nonce=worker.nonce, claimed_at=world.clock, wait=worker.wait)
            )  # fmt: skip
        after = self.core.push.after_claim(state, won=won)
        return self._settle(world, worker, worker._replace(began=world.clock), after)

    def _push(self, world: Sky, worker: Worker, job: Job, who: str) -> Iterator[Step]:
        outcomes, push = self.core.push.Outcome, self.core.push
        state = self.states.values[worker.pushing]

        def answered(of: Sky, outcome: Any) -> Sky:
            return self._settle(of, worker, worker, push.after_push(state, outcome))

        if worker.sent == UNSENT and world.clock > worker.began and not self.scenario.harmless:
            yield f"{who} is too late to begin", answered(world, outcomes.NOT_PUSHED)
        elif worker.sent == UNSENT:
            flight = Flight(worker.nonce, job.rows, worker.began + worker.wait)
            flying = world._replace(flights=tuple(sorted((*world.flights, flight))))
            yield f"{who} begins", self._employ(flying, worker, worker._replace(sent=SENT))
        elif worker.sent == ARRIVED:
            yield f"{who} returns", answered(world, outcomes.RETURNED)
            if self._left(world, "lost"):
                yield f"{who} arrived, unanswered", answered(self._spend(world, "lost"), outcomes.UNKNOWN)
        elif worker.sent == GONE:
            yield f"{who} fails", answered(world, outcomes.UNKNOWN)
        elif self._left(world, "refused"):
            spent = self._spend(self._without(world, worker.nonce), "refused")
            yield f"{who} certainly fails", answered(spent, outcomes.NOT_PUSHED)

    def _finish_row(self, world: Sky, worker: Worker, job: Job, state: Any) -> Sky:
        push, marks, stage = self.core.push, self.core.block_rows, state.stage
        claim, row = self.claims.values[job.claim], self._row(world, job)
        if stage is push.PushStage.FOUND:
            where, follows = marks.reclaimable(claim, state.seen), push.after_settle
        elif stage is push.PushStage.SETTLE:
            where, follows = marks.mine(worker.nonce), push.after_settle
        elif stage is push.PushStage.SKIP:
            where, follows = marks.claimable(claim, harmless=True), push.after_settle
        else:
            where, follows = marks.mine(worker.nonce), lambda of, **_: push.after_release(of)
        won = row is not None and self._holds(row, where)
        if won and row is not None:
            row = row._replace(nonce=0, claimed_at=0, wait=0)
            released = stage is push.PushStage.RELEASE
            world = self._put(
                world, row._replace(state="BEFORE") if released else row._replace(state="AFTER", receipt=job.receipt)
            )  # fmt: skip
        return self._settle(world, worker, worker, follows(state, won=won))

    def _settle(self, world: Sky, before: Worker, after: Worker, state: Any) -> Sky:
        if state.fate is None:
            return self._employ(world, before, after._replace(pushing=self.states.of(state)))
        world = self._employ(world, before, None)
        return self._report(world, before, (state.fate, state.settled)) if before.heard else world

    # ── the target, and time ────────────────────────────────────────────────────────────────────────────────────────

    def _arrivals(self, world: Sky, flight: Flight) -> Iterator[Step]:
        what = f"attempt {flight.nonce} arrives: {self.topics.name(flight.rows)}"
        arrived = self._with_reply(self._without(world, flight.nonce), flight.nonce, ARRIVED)
        yield what, self._landed(arrived, flight.rows)
        if self._left(world, "late") and self.scenario.harmless:
            again = self._spend(self._with_reply(world, flight.nonce, ARRIVED), "late")
            yield f"{what}, and will again", self._landed(again, flight.rows)
        if self._left(world, "vanish"):
            gone = self._with_reply(self._without(world, flight.nonce), flight.nonce, GONE)
            yield f"attempt {flight.nonce} comes to nothing", self._spend(gone, "vanish")

    def _landed(self, world: Sky, rows: int) -> Sky | Violation:
        if not self.scenario.harmless:
            if world.landed & rows:
                return Violation(f"{self.topics.name(world.landed & rows)} is in the target twice")
            before, now = dict(self.topics.tops(world.landed)), self._lowest(rows)
            late = [str(at) for at, first in now.items() if first < before.get(at, -1)]
            if late:
                return Violation(f"a block of {late[0]} arrives after a later one")
        return world._replace(landed=world.landed | rows)

    def _with_reply(self, world: Sky, nonce: int, sent: int) -> Sky:
        workers = (each._replace(sent=sent) if each.nonce == nonce else each for each in world.workers)
        return world._replace(workers=tuple(sorted(workers)))

    def _without(self, world: Sky, nonce: int) -> Sky:
        return world._replace(flights=tuple(each for each in world.flights if each.nonce != nonce))

    def _tick(self, world: Sky) -> Iterator[Step]:
        """What the sink declares: no push is under way for longer."""
        if self.scenario.harmless or all(world.clock < each.until for each in world.flights):
            yield "the clock ticks", world._replace(clock=world.clock + 1)

    # ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _holds(self, row: Row, where: Any) -> bool:
        claim = self.claims.values[row.claim]
        columns = {"epoch": claim.epoch, "owner": claim.owner, "state": row.state, "nonce": row.nonce}
        return all(columns[name] in allowed for name, allowed in where.items())

    def _push_row(self, row: Row) -> Any:
        marks = self.core.block_rows
        receipt = self.receipts.values[row.receipt].to_json() if row.receipt >= 0 else None
        mark = self.core.block_rows.BlockState(row.state)
        claim = self.claims.values[row.claim]
        return marks.PushRow(row.number, claim, mark, 1, row.nonce, row.claimed_at, receipt, row.wait)

    def _put(self, world: Sky, row: Row) -> Sky:
        rows = (row if (each.batch, each.number) == (row.batch, row.number) else each for each in world.rows)
        return world._replace(rows=tuple(rows))

    # ── faults, and the end ─────────────────────────────────────────────────────────────────────────────────────────

    def _fault_steps(self, world: Sky) -> Iterator[Step]:
        for agent in world.drivers:
            if self._left(world, "crash"):
                yield f"driver {agent.number} dies with its workers", self._die(self._spend(world, "crash"), agent)
            if self._left(world, "abandon") and agent.results is not None:
                workers = (
                    each._replace(heard=NOBODY) if each.heard == agent.number else each for each in world.workers
                )
                left = self._leave(self._spend(world, "abandon"), agent)._replace(workers=tuple(sorted(workers)))
                yield f"driver {agent.number} dies, its workers go on", left

    def rests(self, world: Sky) -> Iterator[tuple[str, Sky]]:
        """What is under way arrives, or it does not."""
        for how, flights in (("what is under way arrives", world.flights), ("what is under way is gone", ())):
            landed = world.landed
            for flight in flights:
                landed |= flight.rows
            rows = tuple(
                row._replace(nonce=row.number + 1 if row.nonce else 0, claimed_at=0, wait=0) for row in world.rows
            )
            quiet = world._replace(drivers=(), workers=(), flights=(), left=QUIET, starts=LAST, clock=0)
            rest = quiet._replace(rows=rows, landed=landed)
            yield f"everybody dies, and {how}", rest
        for agent in world.drivers:
            workers = tuple(each for each in world.workers if each.heard == agent.number)
            mine = {each.nonce for each in workers}
            flights = tuple(each for each in world.flights if each.nonce in mine)
            alone = world._replace(drivers=(agent,), workers=workers, flights=flights, left=QUIET, starts=LAST)
            yield f"only driver {agent.number} goes on", alone

    def finish(self, world: Sky, known: dict[Any, None]) -> Found | None:
        return super().finish(world, known)  # type: ignore[arg-type]

    def _next(self, world: Sky) -> Step | None:
        """A person stands by for blocks of which nobody knows."""
        if world.halted == "OutcomeUnknown" and not world.drivers:
            return "a person looks into the target, and says what is there", self._operate(world)
        if not world.drivers:
            return self.start(world, patient=True)
        for flight in world.flights:
            return next(self._arrivals(world, flight))
        for worker in world.workers:
            for step in self.worker_steps(world, worker):
                return step
        for step in self.driver_steps(world, world.drivers[0]):
            return step
        return "the clock ticks", world._replace(clock=world.clock + 1)

    def _operate(self, world: Sky) -> Sky:
        state = self.ledgers.values[world.ledger]
        new = self.core.ledger.taken(state, f"person {world.starts}")
        after = self._changed(world, state, new)
        assert after is not None
        for row in after.rows:
            if row.state == "CLAIMED":
                block = next(each for each in new.pending.blocks if each.number == row.number)
                there = self.topics.of(block.ranges) & self.topics.meant[0] & world.landed
                after = self._put(
                    after, row._replace(state="AFTER") if there else row._replace(state="BEFORE", nonce=0)
                )
        return after._replace(halted="", starts=LAST)

    def _raised(self, world: Sky, agent: Any, error: Exception) -> Sky | Violation:
        if isinstance(error, errors.OutcomeUnknown) and self.scenario.probe:
            return Violation("a driver halts though its sink has a probe")
        if isinstance(error, errors.OutcomeUnknown) and self._may_arrive(world):
            return Violation("a person is asked about a block that may still arrive")
        after: Any = super()._raised(world, agent, error)  # type: ignore[arg-type]
        halted = not isinstance(after, Violation) and after.halted == "OutcomeUnknown"
        return after._replace(starts=LAST) if halted else after

    def _has_reason(self, world: Sky, agent: Any, error: Exception) -> bool:  # type: ignore[override]
        """An attempt was claimed, and nobody settled it."""
        return isinstance(error, errors.OutcomeUnknown) and any(row.state == "CLAIMED" for row in world.rows)

    def _may_arrive(self, world: Sky) -> bool:
        """An attempt that is claimed is under way, or may still be begun."""
        claimed = {row.nonce for row in world.rows if row.state == "CLAIMED"}
        begins = {each.nonce for each in world.workers if each.sent == UNSENT and each.began == world.clock}
        return bool(claimed & (begins | {each.nonce for each in world.flights}))
