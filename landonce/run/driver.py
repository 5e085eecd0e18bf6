"""The driver: performs, one after another, the effects that `protocol` asks for.

Nothing is decided here. An effect that fails because something is away is tried again until the stall budget is used
up; every other failure ends the run, and whatever was pending is settled by the next start.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from landonce.commit import dead_letters
from landonce.errors import Fenced, Halt, LandonceError, LedgerUnavailable, Stalled, Transient
from landonce.failpoints import reach
from landonce.plan.blocks import Plan, token
from landonce.plan.ranges import Partition
from landonce.read.broker import Broker
from landonce.read.source import Extent, SourceView, available
from landonce.record import ledger as states
from landonce.record.ledger import Ledger, LedgerState, Totals
from landonce.record.swap import key
from landonce.run import protocol
from landonce.run.observe import BatchReport, Observer
from landonce.run.pace import Pace
from landonce.run.protocol import Change, Commit, Effect, Look, Reply, Settings, Step, Surveyed, Write
from landonce.run.workers import SparkWorkers
from landonce.write.receipt import BlockResult, Fate
from landonce.write.recipe import Recipe, Task
from landonce.write.sink import Target, look_by_name, wait_out

T = TypeVar("T")
_GLANCE, _BRIEFLY = 0.5, 0.2
"""Seconds between two looks at an idle topic, at most and at least."""


@dataclass
class Driver:
    """One run of one pipeline."""

    settings: Settings
    topics: tuple[str, ...]
    recipe: Recipe
    broker: Broker
    ledger: Ledger
    target: Target
    workers: SparkWorkers
    pace: Pace
    stall: float
    observer: Observer
    stopping: threading.Event = field(default_factory=threading.Event)
    _ends: dict[Partition, int] | None = None
    _state: LedgerState | None = None
    _began: float = 0.0
    _troubled: float | None = None
    _lag: int = 0
    _source: SourceView | None = None
    _late: bool = False
    _letter_ends: dict[Partition, int] | None = None

    def run(self) -> Totals:
        """Until stopped, or until what was there at the start is done. Gives what this run did.

        What looks like a reason to halt may be the work of a newer driver: then it is `Fenced`, and nobody is called.
        """
        try:
            return self._run()
        except Halt:
            self._raise_if_fenced()
            raise

    def _run(self) -> Totals:
        before: Totals | None = None
        driver, effect = protocol.begin(self.settings)
        while not isinstance(effect, protocol.Stop):
            self.observer.step(effect)
            reach(f"{effect.step.value}.before")
            reply = self._patiently(lambda effect=effect: self._perform(effect))  # type: ignore[misc]
            reach(f"{effect.step.value}.after")
            if isinstance(reply, LedgerState):
                self._note(effect, reply)
                before = before or reply.totals
            driver, effect = protocol.advance(self._patient(driver), reply)
        return driver.state.totals.minus(before or Totals())

    def _raise_if_fenced(self) -> None:
        try:
            seen = self.ledger.load()
        except LandonceError:
            return
        if self._state is not None and (seen is None or key(seen) != key(self._state)):
            raise states.fenced(self._state, seen) from None

    def _perform(self, effect: Effect) -> Reply:
        if isinstance(effect, protocol.Acquire):
            return self._acquire()
        if isinstance(effect, protocol.Survey):
            return self._survey()
        if isinstance(effect, Change):
            return self.ledger.change(effect.old, effect.new)
        if isinstance(effect, protocol.Await):
            wait_out(self.target, effect.deadline)
            return None
        if isinstance(effect, protocol.Kill):
            self.target.kill()
            return self.target.now()
        if isinstance(effect, Look):
            return look_by_name(self.target, self._held, effect.floors)
        if isinstance(effect, Write):
            return self._write(effect)
        if isinstance(effect, Commit):
            names = [receipt.dead_letters for receipt in effect.receipts]
            again = any(names) and self._lettered_before(effect.plan)
            dead_letters.publish(self.recipe.dead_letters, self._stem(effect.plan), names, read_again=again)
            return None
        if isinstance(effect, protocol.Idle):
            return self._idle()
        raise TypeError(f"not an effect: {effect!r}")

    def _acquire(self) -> LedgerState:
        """Takes the pipeline. Of two that start at once the later one has it, and the other hears `Fenced` next."""
        state = self.ledger.load() or self.ledger.create(LedgerState(self.recipe.pipeline, lineage=uuid.uuid4().hex))
        while True:
            try:
                return self.ledger.change(state, states.taken(state, uuid.uuid4().hex))
            except Fenced:
                seen = self.ledger.load()
                if seen is None:
                    raise LedgerUnavailable("the ledger's entry disappeared while the pipeline was taken.") from None
                state = seen

    def _survey(self) -> Surveyed:
        source = self.broker.survey(self.topics)
        if self.settings.once:
            source = self._clipped(source)
        self._source = source
        self._measure_lag()
        return Surveyed(
            source=source,
            target_now=self.target.now(),
            limits=self.pace.limits(),
            patience=self.pace.patience(),
            due=time.monotonic() - self._began >= self.pace.batch.interval,
            stop=self.stopping.is_set(),
        )

    def _measure_lag(self) -> None:
        if self._state is not None and self._source is not None:
            self._lag = sum(each.span for each in available(self._state, self._source))
            self.observer.lag(self._lag)

    def _clipped(self, source: SourceView) -> SourceView:
        """`once` means what was there at the start, however fast the topic grows."""
        if self._ends is None:
            self._ends = {partition: extent.stable_end for partition, extent in source.extents}
        ends = self._ends
        extents = tuple(
            (partition, Extent(extent.start, min(extent.stable_end, max(ends[partition], extent.start))))
            for partition, extent in source.extents
            if partition in ends
        )
        return replace(source, extents=extents)

    @property
    def _held(self) -> LedgerState:
        """The ledger's state as this driver holds it."""
        if self._state is None:
            raise ValueError("nothing is asked or written before the pipeline is acquired")
        return self._state

    def _lettered_before(self, plan: Plan) -> bool:
        """Whether a ledger that was lost or restored may have dead-lettered some of this. Looked up once per run.

        The kind of the plan does not tell: records that cannot land may stand above all that the target holds.
        """
        if self._letter_ends is None:
            self._letter_ends = dead_letters.ends(self.recipe.dead_letters, self.recipe.pipeline)
        ends = self._letter_ends
        return any(
            each.first < ends.get(self._held.labelled(each.partition), 0)
            for block in plan.blocks
            for each in block.ranges
        )

    def _stem(self, plan: Plan) -> str:
        return dead_letters.stem(self.recipe.pipeline, plan.batch, self._held.lineage)

    def _write(self, effect: Write) -> tuple[BlockResult, ...]:
        state = self._held
        began = time.monotonic()
        tasks = [
            Task(
                index=index,
                batch=effect.plan.batch,
                plan=self._stem(effect.plan),
                block=effect.plan.blocks[index],
                token=token(state.identity, effect.plan.blocks[index]),
                deadline=effect.plan.deadline,
                mode=effect.mode,
                kind=effect.plan.kind,
                labels=state.labels,
            )
            for index in effect.indexes
        ]
        results = self.workers.write(tasks)
        receipts = [result.receipt for result in results if result.receipt is not None]
        read, size = sum(each.read for each in receipts), sum(each.bytes_read for each in receipts)
        answered = all(result.fate is not Fate.DOUBTFUL for result in results)
        self.pace.saw(read, size, time.monotonic() - began if answered else 0.0)
        self._late = any(result.fate is Fate.LATE for result in results)
        for result in results:
            if result.fate not in (Fate.LANDED, Fate.HALTED):
                self._trouble(f"block {effect.plan.blocks[result.index]} is {result.fate.value}. {result.why}".strip())
        return results

    def _patient(self, driver: protocol.Driver) -> protocol.Driver:
        """What came too late gets twice the time: with the same deadline again it might be late for ever."""
        if not self._late or driver.surveyed is None:
            return driver
        self._late = False
        return replace(driver, surveyed=replace(driver.surveyed, patience=2 * driver.surveyed.patience))

    def _idle(self) -> bool:
        """Until the interval is over; once it is, a few looks per second for whatever comes next."""
        self._troubled = None
        interval = self.pace.batch.interval
        left = self._began + interval - time.monotonic()
        self.stopping.wait(min(max(left, min(interval, _GLANCE), _BRIEFLY), _GLANCE))
        return not self.stopping.is_set()

    def _note(self, effect: Effect, state: LedgerState) -> None:
        """Keeps the state for labels and tokens, and tells the observer of a recorded batch."""
        if effect.step in (Step.ACQUIRE, Step.PREPARE):
            self._began = time.monotonic()
        if isinstance(effect, Change) and effect.step is Step.RECORD and effect.old.pending is not None:
            self._troubled = None
            plan = effect.old.pending
            self.observer.batch(
                BatchReport(
                    batch=plan.batch,
                    kind=plan.kind.value,
                    blocks=len(plan.blocks),
                    totals=state.totals.minus(effect.old.totals),
                    seconds=time.monotonic() - self._began,
                    lag=max(0, self._lag - sum(block.span for block in plan.blocks)),
                )
            )
        self._state = state
        if effect.step is Step.BIND:
            self._measure_lag()

    def _patiently(self, act: Callable[[], T]) -> T:
        """Tries again while something is away, and no longer than the stall budget."""
        pause = 0.2
        while True:
            try:
                return act()
            except Transient as error:
                self._trouble(error.what)
                if self.stopping.wait(pause):
                    raise _stopped(error) from None
                pause = min(pause * 2, 5.0)

    def _trouble(self, what: str) -> None:
        """Health is committed progress: trouble that lasts longer than the budget without any ends the run."""
        now = time.monotonic()
        self._troubled = self._troubled or now
        self.observer.trouble(what)
        if now - self._troubled > self.stall:
            raise Stalled(
                f"no batch was committed for {self.stall:.0f} s. Last trouble: {what}",
                safe="Nothing is lost and nothing is duplicated; a pending plan is settled at the next start.",
                command="mend the cause and start again: landonce run {file}",
            )


def _stopped(error: Transient) -> Stalled:
    return Stalled(
        f"stopped while something was away: {error.what}",
        safe="Nothing is lost and nothing is duplicated; a pending plan is settled at the next start.",
        command="landonce run {file}",
    )
