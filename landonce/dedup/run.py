"""A run with `dedup`: two drivers of the same engine, one that accepts events and one that pushes them to the target.

    open the target ─► open the store ─► compare the two ─► accept and push, side by side, until stopped

Each is a pipeline of its own: its position, its epoch and its recovery are those of every pipeline. If one ends, so does the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from landonce.config.dedup import Dedup
from landonce.dedup.accept import OpenAccept, for_a_while
from landonce.dedup.chunks import StoredTopics, opened
from landonce.dedup.pipelines import accepting_parts, pushing_parts, refuse_target
from landonce.dedup.rule import accepted_schema, known_types
from landonce.dedup.store import Store, StorePlace
from landonce.engine import pipeline
from landonce.engine.driver import Driver
from landonce.engine.observe import AcceptReport, BatchReport, DedupObserver, Observer, Silent
from landonce.engine.pipeline import RunSession, driver_for, opened_sink, require_topics, session_of
from landonce.engine.spark.session import is_remote
from landonce.engine.waiting import Waiting
from landonce.errors import (
    Fenced,
    LandonceError,
    LedgerSetBack,
    StoreBehind,
    TargetUnavailable,
    TooManyDeadLetters,
)
from landonce.jvm import spark_errors
from landonce.protocol.dedup import behind, beyond
from landonce.protocol.ledger import LedgerState, Totals
from landonce.protocol.ranges import Partition
from landonce.protocol.reasons import Code, Reasons, merged
from landonce.protocol.steps import Effect
from landonce.sinks.contract import Sink
from landonce.sinks.parts import Parts, open_parts
from landonce.sinks.pipeline_file import Pipeline

_POLL = 0.1
_CLEAN_EVERY = 30.0


def run_pipeline(
    config: Pipeline,
    *,
    sink: Sink | None = None,
    once: bool = False,
    observer: Observer | None = None,
    ready: Callable[[Driver], None] | None = None,
    stopping: threading.Event | None = None,
) -> Totals:
    """Runs a pipeline until it is stopped, or (`once`) until what is there has landed; gives what became of the records.

    `ready` gets the driver before it starts; `driver.stopping.set()` from a signal handler or another thread finishes the
    batch in hand. `stopping`, once it is set, ends a start that waits for something that is unreachable. `sink` is one made by
    `landonce.wrap`, for a pipeline that says `sink: {wrapped: {}}`. Every way out but a return is an error of `landonce.errors`,
    and after each of them starting again is safe. With `dedup`, it gives a `DedupTotals`, in which copies of events
    count as filtered.
    """
    if config.dedup is None:
        return pipeline.run_pipeline(config, sink=sink, once=once, observer=observer, ready=ready, stopping=stopping)
    watching = observer or Silent()
    waiting = Waiting(config.stall, watching.trouble, stopping or threading.Event())
    parts = open_parts(config, sink)
    with spark_errors(), closing(parts.ledger), session_of(config) as session:
        require_topics(parts, watching)
        with both_drivers(parts, config.dedup, session, watching, waiting, once=once) as both:
            if ready is not None:
                ready(both.accept)
            return both.run()


@dataclass(frozen=True)
class DedupTotals(Totals):
    """What became of the records of a run, in two steps. As plain totals: events that were accepted count as landed, unless they are known to
    be filtered or dead letters, and copies as filtered."""

    accept: Totals = field(default_factory=Totals)
    """`landed` are the events that were accepted."""
    push: Totals = field(default_factory=Totals)
    """Of events that were accepted, in this run or before."""
    copies: int = 0
    seen_again: int = 0
    reasons: Reasons = ()
    """Why records became dead letters, in either step."""

    @staticmethod
    def of(accept: Totals, push: Totals, copies: int, seen_again: int, reasons: Reasons) -> DedupTotals:
        dead, filtered = push.dead_lettered, push.filtered
        return DedupTotals(
            accept.landed - dead - filtered,
            accept.dead_lettered + dead,
            accept.filtered + filtered,
            accept,
            push,
            copies,
            seen_again,
            reasons,
        )

    def sentence(self) -> str:
        """For people. What is left of the filtered records came too late, and was dropped."""
        late = sum(each.records for each in self.reasons if each.code is Code.LATE)
        dropped = self.accept.filtered - self.copies - self.seen_again
        dead = f"{self.accept.dead_lettered} dead-lettered" + (f" ({late} late)" if late else "")
        first = [f"{self.accept.landed} new", f"{self.copies} copies", dead]
        first += _present((self.seen_again, "seen again"), (dropped, "dropped (late)"))
        then = _present((self.push.dead_lettered, "dead-lettered"), (self.push.filtered, "filtered"))
        return f"{self.accept.read} read = {' + '.join(first)}; {', '.join([f'{self.push.landed} landed', *then])}"


def _present(*counts: tuple[int, str]) -> list[str]:
    return [f"{count} {word}" for count, word in counts if count]


@contextmanager
def both_drivers(
    parts: Parts, dedup: Dedup, session: RunSession, observer: Observer, waiting: Waiting, *, once: bool
) -> Iterator[Both]:
    """The two drivers, ready to run."""
    config = parts.config
    refuse_target(parts)
    place = StorePlace.of(config)
    store = opened(place)
    store.require_shared(remote=is_remote(config.spark))
    pushing = pushing_parts(parts)
    pushed = PushObserver(observer, store, config.pipeline, dedup.keep_sent, config.stall)
    with ExitStack() as stack:
        target = stack.enter_context(opened_sink(pushing, session, observer, waiting))
        topics = StoredTopics(place, config.pipeline)
        push = driver_for(pushing, target, session, pushed, once=False, topics=topics)
        push.pace.paced = not parts.sink.commits_batches
        pushed.stopping = push.stopping
        types = waiting.until(lambda: known_types(parts))
        accepting = accepting_parts(parts, dedup, accepted_schema(target.recipe, dedup, types), types)
        accepted = stack.enter_context(opened_sink(accepting, session, observer, waiting))
        if not isinstance(accepted, OpenAccept):
            raise TypeError("the store opens itself as `OpenAccept`")
        accept = driver_for(accepting, accepted, session, AcceptObserver(observer, accepted), once=once)
        accept.while_idle, push.while_idle = accepted.clean_while_idle, lambda _: pushed.clean()
        both = Both(accept, push, accepted, parts, store, waiting)
        accepted.taken = both.compare
        accepted.sent_up_to = both.sent_up_to
        yield both


@dataclass
class Both:
    """One run of both drivers."""

    accept: Driver
    push: Driver
    opened: OpenAccept
    parts: Parts
    store: Store
    waiting: Waiting
    _failed: list[BaseException] = field(default_factory=list)
    _pushed: Totals | None = None
    _known: LedgerState = field(default_factory=lambda: LedgerState("", lineage=""))
    _compared: threading.Event = field(default_factory=threading.Event)
    """The store is not behind the target: what it holds may be sent."""

    def run(self) -> DedupTotals:
        """Until one of them ends, or (`once`) until all that was there at the start is in the target."""
        # An InheritableThread has the properties of the caller's Spark jobs.
        kind = InheritableThread if SparkSession.getActiveSession() is not None else threading.Thread
        pushing = kind(target=self._push, name="landonce push")
        pushing.start()
        try:
            accepted = self.accept.run()
            while self.accept.performer.once and pushing.is_alive() and not self.accept.stopping.is_set():
                if self._caught_up():
                    break
                time.sleep(_POLL)
        finally:
            self.push.stopping.set()
            pushing.join()
        if self._failed:
            raise self._failed[0]
        reasons = merged((*self.accept.reasons, *self.push.reasons))
        counted = self.opened.copies, self.opened.seen_again
        return DedupTotals.of(accepted, self._pushed or Totals(), *counted, reasons)

    def _push(self) -> None:
        patient = Waiting(self.push.stall, self.push.observer.trouble, self.push.stopping)
        try:
            while not patient.until(self._anything):
                if self.push.stopping.wait(_POLL):
                    return
            while self._pushed is None:
                try:
                    self._pushed = self.push.run()
                except Fenced as error:
                    if isinstance(error, LedgerSetBack) or not patient.until(self._has_store):
                        raise
        except BaseException as error:
            self._failed.append(error)
            if isinstance(error, TooManyDeadLetters):
                self._forget_given_up()
            self.accept.stopping.set()

    def _forget_given_up(self) -> None:
        """What was stored of a batch that is pending nowhere, for its records cannot land: a corrected file makes other rows of them. If this
        fails, the next start halts once more, and tries again."""
        with suppress(LandonceError):
            known, mine = self.push.ledger.load(), self.accept.state
            if known is not None and known.pending is None and mine is not None:
                self.store.forget_given_up(self.parts.config.pipeline, known.batch, mine.owner)

    def _has_store(self) -> bool:
        """Whether this run still has the store. Who has the store takes the target's ledger back from a driver that lost the store, and took
        the ledger before it heard of that: otherwise, of two that start at once, each could fence the other."""
        mine, mark = self.accept.state, self.store.mark(self.parts.config.pipeline)
        if mine is None or mark is None:
            return False
        return (mark.state.epoch, mark.state.owner) == (mine.epoch, mine.owner)

    def _anything(self) -> bool:
        """Whether the accepting driver has compared the store with the target, and knows its topics by now."""
        if not self._compared.is_set():
            return False
        mark = self.store.mark(self.parts.config.pipeline)
        return mark is not None and not mark.state.fresh

    def _caught_up(self) -> bool:
        """Whether all that was accepted is sent."""
        try:
            mark = self.store.mark(self.parts.config.pipeline)
        except TargetUnavailable:  # the other driver waits for the store, too, and gives up after `stall`
            return False
        known = self.push.state or self._known
        sent, positions = known.committed(), mark.state.positions if mark is not None else ()
        # Dead letters that are about to land are below all positions.
        return mark is None or (
            known.pending is None and all(sent.get(each, at.first) >= at.committed for each, at in positions)
        )

    def sent_up_to(self) -> dict[Partition, int]:
        """How far the target is: at the start, as its ledger said when it was compared."""
        return (self.push.state or self._known).committed()

    def compare(self) -> None:
        """Before anything is accepted: the target must not hold events that the store does not know.

        A store that was restored has forgotten keys, and would accept copies of what is in the target.
        """
        view = self.waiting.until(self.parts.source)
        self._known = compare(self.store, self.push, self.waiting, {partition: 0 for partition, _ in view.extents})
        self._compared.set()


def compare(store: Store, push: Driver, waiting: Waiting, begins: Mapping[Partition, int]) -> LedgerState:
    """Raises if the target holds events that the store does not know; gives what its ledger says. `begins`: where partitions begin that are
    new to the store."""
    mark = store.mark(push.pipeline)
    committed = mark.state.committed() if mark is not None else {}
    floors = tuple((partition, committed.get(partition, first)) for partition, first in begins.items())
    known = push.state or push.ledger.load() or LedgerState(push.pipeline, lineage="")
    held = waiting.until(lambda: push.performer.ahead(known, floors))
    refuse_behind(store, known, committed, dict(floors), held)
    return known


def refuse_behind(
    store: Store,
    known: LedgerState,
    committed: Mapping[Partition, int],
    floors: Mapping[Partition, int],
    held: Mapping[Partition, int],
) -> None:
    """Raises if the target, or its ledger, knows events that the store does not. `floors`: up to where the store knows partitions. `held`: up
    to where the target holds them."""
    ahead = {**beyond(known, committed), **held}
    if lost := behind(floors, ahead):
        first = min(lost)
        raise StoreBehind(
            f"the target holds events up to offset {ahead[first] - 1} of {first}, and the store of scope {store.scope!r} has "
            f"accepted events up to {committed.get(first, 0)}.",
            safe="Nothing was accepted or sent. The store was lost or restored, or `dedup` is new in this file: it lacks the keys of events that "
            "are in the target.",
            command="restore the newest store, or `landonce dedup rebuild {file}`, which takes the keys from the target",
        )


@dataclass
class PushObserver:
    """Keeps the store in step with what was sent."""

    observer: Observer
    store: Store
    pipeline: str
    keep: float
    stall: float
    """Seconds to wait for the store."""
    stopping: threading.Event = field(default_factory=threading.Event)
    _clean_after: float = 0.0

    def step(self, effect: Effect) -> None:
        if isinstance(self.observer, DedupObserver):
            self.observer.pushing(effect)
        else:
            self.observer.step(effect)

    def batch(self, report: BatchReport) -> None:
        waiting = Waiting(self.stall, self.trouble, self.stopping, committing=True)
        waiting.until(lambda: self.store.sent(self.pipeline, report.batch, report.committed))
        waiting.until(self.clean)
        self.observer.batch(report)

    def clean(self) -> None:
        """Now and then, stored blocks that were sent long ago are removed, a little at a time."""
        if time.monotonic() >= self._clean_after:
            before = int(time.time() - self.keep)
            done = for_a_while(lambda: self.store.forget_sent(self.pipeline, before))
            self.store.reclaim_beside()
            self._clean_after = time.monotonic() + _CLEAN_EVERY if done else 0.0

    def trouble(self, what: str) -> None:
        self.observer.trouble(f"push: {what}")

    def lag(self, records: int) -> None:
        """What people watch is how far accepting is behind the topics."""


@dataclass
class AcceptObserver:
    """What people see of the accepting driver: its steps, its lag, and its troubles. Batches are counted where they land."""

    observer: Observer
    opened: OpenAccept
    _reported: tuple[int, int] = (0, 0)

    def step(self, effect: Effect) -> None:
        self.observer.step(effect)

    def batch(self, report: BatchReport) -> None:
        copies, seen_again = self._reported
        self._reported = self.opened.copies, self.opened.seen_again
        if isinstance(self.observer, DedupObserver):
            self.observer.accepted(AcceptReport(report, self._reported[0] - copies, self._reported[1] - seen_again))

    def trouble(self, what: str) -> None:
        self.observer.trouble(f"accept: {what}")

    def lag(self, records: int) -> None:
        self.observer.lag(records)
