"""The driver: performs, one after another, the effects that the sink's protocol asks for.

It decides nothing. An effect that fails because something is unreachable is tried again until the stall budget is used up.
Every other failure ends the run, and the next start settles whatever was pending.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

from landonce.config.model import TopicMatch
from landonce.engine.observe import BatchReport, Observer, Unplaced
from landonce.engine.perform import Performer
from landonce.engine.replay import Replay
from landonce.engine.waiting import Waiting
from landonce.errors import (
    Fenced,
    Halt,
    LandonceError,
    LedgerSetBack,
    LedgerUnavailable,
    RolledBack,
    SourceUnavailable,
    TargetAhead,
    TopicMissing,
)
from landonce.failpoints import reach
from landonce.protocol import ledger as states
from landonce.protocol.batch import Machine
from landonce.protocol.blocks import Block, Kind, Plan
from landonce.protocol.ledger import Ledger, LedgerState, Totals
from landonce.protocol.packing import Pace
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.reasons import Reasons, merged
from landonce.protocol.receipt import BlockResult, Fate
from landonce.protocol.source import Extent, SourceView, available, everything
from landonce.protocol.steps import (
    Acquire,
    Change,
    Effect,
    Idle,
    Reply,
    Step,
    Stop,
    Survey,
    Surveyed,
    Write,
)
from landonce.read.kafka.broker import refuse_vanished
from landonce.read.kafka.mirror import Mirror

T = TypeVar("T")
_AT_MOST, _AT_LEAST = 0.5, 0.2
"""Seconds between two looks at an idle topic once the interval is over, at most and at least."""
_STILL_MINE = 5.0
"""Seconds after which a driver that waits for records asks whether the pipeline is still its own."""
_NAMED = 20
"""Ranges that are named in one message."""
_UNKNOWN_FOR = 10.0
"""Seconds after which a topic that brokers do not know is gone, and not just unknown to a broker that was just started."""


class Topics(Protocol):
    """Says which ranges exist: Kafka's brokers, or a store of accepted records."""

    def survey(self, topics: tuple[str, ...] | TopicMatch) -> SourceView: ...
    def record_bytes(self, ranges: tuple[Range, ...]) -> float | None: ...


@dataclass
class Driver:
    """One run of one pipeline."""

    pipeline: str
    topics: tuple[str, ...] | TopicMatch
    broker: Topics | None
    """None where Spark says which ranges there are."""
    ledger: Ledger
    performer: Performer
    pace: Pace
    stall: float
    observer: Observer
    stopping: threading.Event = field(default_factory=threading.Event)
    reasons: Reasons = ()
    """Why records became dead letters in this run."""
    begins: Callable[[SourceView], SourceView] = lambda view: view
    """Adds the offsets at which a pipeline without a position begins."""
    mirror: Mirror | None = None
    """Shows the position to Kafka's own tools. Nothing depends on it."""
    finished: Callable[[], int] = lambda: 0
    """How many blocks of the current write are done, for a progress bar."""
    start_workers: Callable[[], int] | None = None
    """Gives how many blocks are written at once."""
    start_late: bool = False
    """Start the workers when there is something to write, and not before the pipeline is taken."""
    replay: Replay | None = None
    """Dead letters that are to land, and nothing else."""
    while_idle: Callable[[LedgerState], None] = lambda _: None
    """Called repeatedly while there is nothing to read, with the ledger's state as this driver holds it. It must return quickly."""
    _ends: dict[Partition, int] | None = None
    _state: LedgerState | None = None
    _began: float = 0.0
    _due: float = 0.0
    """When the next batch is made of whatever is there. The first one does not wait."""
    _lag: int = 0
    _sampled: bool = False
    _source: SourceView | None = None
    _missed: float | None = None
    _asked: float = 0.0
    _unplaced: Unplaced = field(default_factory=Unplaced)

    def __post_init__(self) -> None:
        self._waiting = Waiting(self.stall, self.observer.trouble, self.stopping, committing=True)

    def run(self) -> Totals:
        """Runs until it is stopped, or (`once`) until everything that existed at the start is done. Returns what this run did.

        The reason for a halt may be the work of a newer driver: then the error is `Fenced`, and no person has to act. A worker that is
        fenced cannot tell a newer driver from a restored database; the ledger can.
        """
        try:
            totals = self._run()
            self._close_mirror()
            return totals
        except Halt:
            self._raise_if_fenced(self.ledger.load)
            raise
        except Fenced as error:
            self._raise_if_fenced(self.ledger.load, gone=True)
            raise self._judged(error) from None
        finally:
            self._close_mirror(0)

    def _judged(self, error: LandonceError) -> LandonceError:
        """A supervisor must not restart a driver that would deliver a second time what its restored ledger has forgotten."""
        if self.performer.comparable or not isinstance(error, LedgerSetBack):
            return error
        return TargetAhead(
            error.what,
            safe="This driver pushes nothing more. What was pushed since the backup is in the target, but the ledger "
            "no longer knows it.",
            command="restore the latest ledger; or `landonce run {file}`, which pushes again what the ledger has lost",
        )

    def _run(self) -> Totals:
        self._waiting.progress()
        self._ends = None
        if not self.start_late:
            self._start()
        before: Totals | None = None
        machine, effect = self.performer.begin()
        while not isinstance(effect, Stop):
            self.observer.step(effect)
            reach(f"{effect.step.value}.before")
            try:
                reply = self._waiting.until(partial(self._perform, effect))
            except RolledBack:  # taking the pipeline again says what happened
                machine, effect = self.performer.begin()
                continue
            reach(f"{effect.step.value}.after")
            if isinstance(reply, LedgerState):
                self._note(effect, reply, machine)
                before = before or reply.totals
            if machine.halting is not None and isinstance(effect, Change) and effect.old.pending is not None:
                self.performer.letters.discard(effect.old.pending, effect.old)
            machine, effect = self.performer.advance(machine, reply)
            for news in (*self.performer.news(), *(self.mirror.news() if self.mirror is not None else ())):
                self.observer.trouble(news)
        return self._held.totals.minus(before or Totals())

    def _raise_if_fenced(self, look: Callable[[], LedgerState | None], gone: bool = False) -> None:
        """`gone`: raises also if the ledger has no entry, was set back to an earlier state of this driver, or lacks the rows of its
        blocks."""
        try:
            seen = look()
        except LandonceError:
            return
        mine = self._state
        if mine is None or (seen is None and not gone):
            return
        others = seen is None or (seen.epoch, seen.owner) != (mine.epoch, mine.owner)
        if others or (
            gone and (states.set_back(mine, seen) or (self.performer.block_rows and states.same(mine, seen)))
        ):
            raise self._judged(states.fenced(mine, seen)) from None

    def _perform(self, effect: Effect) -> Reply:
        if isinstance(effect, Acquire):
            return self._acquire()
        if isinstance(effect, Survey):
            return self._survey()
        if effect.step in (Step.PREPARE, Step.WRITE):  # a plan that nobody can write is not made durable
            self._start()
        if isinstance(effect, Change):
            if self.replay is not None and effect.step is Step.PREPARE and effect.new.pending is not None:
                self.replay.stage(self.performer.letters.stem(effect.new.pending, effect.new))
            if effect.step is Step.REARM and effect.new.pending is not None and effect.new.pending.late:
                self._delivered(effect.new.pending)
            return self.ledger.change(effect.old, effect.new)
        if isinstance(effect, Idle):
            return self._idle()
        if isinstance(effect, Write):
            return self._write(effect)
        if isinstance(effect, Stop):
            return None
        return self.performer.perform(effect, self._held)

    def _start(self) -> None:
        if self.start_workers is not None:
            self.pace.parallelism = self.start_workers()
            self.start_workers = None

    def _acquire(self) -> LedgerState:
        """Takes the pipeline. If two drivers start at once, the later one gets it, and the next change of the other raises `Fenced`."""
        state = self.ledger.load() or self.ledger.create(LedgerState(self.pipeline, lineage=uuid.uuid4().hex))
        while True:
            try:
                taken = self.ledger.change(state, states.taken(state, uuid.uuid4().hex))
                if news := self.performer.acquired(taken):
                    self.observer.trouble(news)
                return taken
            except Fenced:
                seen = self.ledger.load()
                if seen is None:
                    raise LedgerUnavailable(
                        "the ledger's entry disappeared while this driver took over the pipeline."
                    ) from None
                state = seen

    def _survey(self) -> Surveyed:
        return Surveyed(
            source=self.performer.incoming or self._brokers_view(),
            target_now=self.performer.now(),
            limits=self.pace.limits(),
            patience=self.pace.patience(),
            due=time.monotonic() >= self._due,
            stop=self.stopping.is_set(),
            look=self.performer.look_due(),
            letters=self.replay.next(self._held) if self.replay is not None and self._held.pending is None else None,
        )

    def _brokers_view(self) -> SourceView:
        source = self._view()
        if self.performer.once:
            source = self._clipped(source)
        first, self._source = self._source is None, source
        if first:
            self._mirror_position(self._held)
        self._measure_lag()
        self._sample_sizes(source)
        return source

    def ask(self, brokers: Callable[[], T]) -> T:
        """For a micro-batch of a query: what the brokers say of its topics. These exist, because Spark has read them."""
        self._missed = None
        self._waiting.progress()
        return self._waiting.until(lambda: self._seen(brokers, known=True))

    @property
    def _brokers(self) -> Topics:
        if self.broker is None:
            raise ValueError("the ranges of this run come from Spark")
        return self.broker

    def _view(self) -> SourceView:
        before = dict(self._held.topic_ids).keys()
        known = bool(before) if isinstance(self.topics, TopicMatch) else set(self.topics) <= before

        def survey() -> SourceView:
            view = self._brokers.survey(self.topics)
            refuse_vanished(self.topics, before, view)
            return view

        view = self._seen(survey, known=known)
        return self.begins(view) if self._held.fresh else view

    def _seen(self, brokers: Callable[[], T], *, known: bool) -> T:
        """What the brokers say. A broker that was just started may not know a topic yet, so a topic that is `known` counts as missing only
        after a while."""
        missed, self._missed = self._missed, None
        try:
            return brokers()
        except TopicMissing as error:
            now = time.monotonic()
            self._missed = missed or now
            if not known or now - self._missed > _UNKNOWN_FOR:
                raise
            raise SourceUnavailable(error.what) from None

    def _sample_sizes(self, source: SourceView) -> None:
        """Before the first plan of this run: how large the records are. A plan that is pending has its size already."""
        if not self.pace.guessing or self._held.pending is not None or self._sampled:
            return
        coming = available(self._held, source) if not self._held.fresh else everything(source)
        if coming:
            self._sampled = True
            if (size := self._brokers.record_bytes(coming)) is not None:
                self.pace.sampled(size)

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
    def state(self) -> LedgerState | None:
        """The ledger's state as this driver holds it, once it has the pipeline. Any thread may ask."""
        return self._state

    @property
    def _held(self) -> LedgerState:
        """The ledger's state as this driver holds it."""
        if self._state is None:
            raise ValueError("nothing is asked or written before the pipeline is acquired")
        return self._state

    def _write(self, effect: Write) -> tuple[BlockResult, ...]:
        began = time.monotonic()
        results = self.performer.write(effect, self._held)
        if all(result.fate is Fate.LANDED for result in results):
            self._delivered(effect.plan)
        receipts = [result.receipt for result in results if result.receipt is not None]
        read, size = sum(each.read for each in receipts), sum(each.bytes_read for each in receipts)
        if said := self._unplaced.news(name for each in receipts for name in each.without_column):
            self.observer.trouble(said)
        answered = all(result.fate is not Fate.DOUBTFUL for result in results)
        self.pace.saw(read, size, time.monotonic() - began if answered else 0.0)
        if late := [effect.plan.blocks[result.index] for result in results if result.fate is Fate.SLOW]:
            self.observer.trouble(slow_words(effect.plan.batch, late))
        for result in results:
            if result.fate not in (Fate.LANDED, Fate.WAITING, Fate.HALTED, Fate.SLOW):
                self._waiting.trouble(
                    f"block {effect.plan.blocks[result.index]} is {result.fate.value}. {result.why}".strip()
                )
        return results

    def _delivered(self, plan: Plan) -> None:
        """All of the plan is written, and it is about to be committed."""
        mine = partial(self.performer.require_owner, self._held)
        self.performer.letters.delivered_again(plan, self._held, mine, rows_stay=self.performer.settings.compares)

    def _idle(self) -> bool:
        """Waits until the interval is over; after that, a moment before the next look for records."""
        if time.monotonic() - self._asked > _STILL_MINE:
            self._asked = time.monotonic()
            self._raise_if_fenced(self.ledger.load_while_idle)
        if self._state is not None and not self._lag:
            self.while_idle(self._state)
        self._waiting.progress()
        interval = self.pace.batch.interval
        left = self._due - time.monotonic()
        self.stopping.wait(min(left if left > 0 else max(interval, _AT_LEAST), _AT_MOST))
        return not self.stopping.is_set()

    def _note(self, effect: Effect, state: LedgerState, machine: Machine) -> None:
        """Tells the observer of a recorded batch, and then keeps the state: who reads it finds no batch that the observer has not heard of."""
        if effect.step in (Step.ACQUIRE, Step.PREPARE):
            self._began = time.monotonic()
        if effect.step is Step.PREPARE:
            self._due = self._began + self.pace.batch.interval
        if isinstance(effect, Change) and effect.step is Step.RECORD and effect.old.pending is not None:
            self._waiting.progress()
            plan = effect.old.pending
            self.performer.letters.changed(plan, state)
            totals = state.totals.minus(effect.old.totals)
            receipts = machine.receipts if totals.dead_lettered or plan.kind is Kind.LETTERS else ()
            reasons = merged(each for _, receipt in receipts for each in receipt.reasons)
            self.reasons = merged((*self.reasons, *reasons))
            self.observer.batch(
                BatchReport(
                    batch=plan.batch,
                    kind=plan.kind.value,
                    blocks=len(plan.blocks),
                    totals=totals,
                    seconds=time.monotonic() - self._began,
                    lag=max(0, self._lag - sum(block.span for block in plan.blocks)),
                    reasons=reasons,
                    commits=self.performer.commits,
                    committed=state.committed(),
                )
            )
        self._state = state
        if effect.step is Step.BIND:
            self._measure_lag()
        if effect.step in (Step.BIND, Step.RECORD):
            self._mirror_position(state)

    def _mirror_position(self, state: LedgerState) -> None:
        """Of the partitions that the brokers have now."""
        if self.mirror is not None and self._source is not None:
            there = dict(self._source.extents)
            self.mirror.moved({each: at for each, at in state.committed().items() if each in there})

    def _close_mirror(self, seconds: float | None = None) -> None:
        """A run that succeeds waits a moment for the last copy. One that fails does not: the next driver copies its own position."""
        if self.mirror is not None:
            self.mirror.close(seconds)
            for news in self.mirror.news():
                self.observer.trouble(news)


def slow_words(batch: int, late: Sequence[Block]) -> str:
    """Which ranges a batch leaves to the next one, once the commit timeout is over. Neighbouring ranges of a partition are named as one."""
    ranges: list[Range] = []
    for each in sorted(each for block in late for each in block.ranges):
        if ranges and (ranges[-1].partition, ranges[-1].end) == (each.partition, each.first):
            ranges[-1] = replace(ranges[-1], end=each.end)
        else:
            ranges.append(each)
    more = f" and {len(ranges) - _NAMED} more" if len(ranges) > _NAMED else ""
    named = ", ".join(map(str, ranges[:_NAMED])) + more
    return f"the commit timeout is over: batch {batch} goes ahead without {named}. The next batch begins with that, and is waited for."
