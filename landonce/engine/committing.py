"""The performer for tables that commit atomically: workers write files, the driver commits them with the position."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

from landonce.engine.perform import Performer, Workers
from landonce.engine.publish import Letters
from landonce.engine.workers import Enough
from landonce.errors import ConfigError, TableReshaped
from landonce.protocol.batch import Machine, Next
from landonce.protocol.blocks import Kind, Plan
from landonce.protocol.ledger import Ledger, LedgerState, fenced, key
from landonce.protocol.marks import Floors, TableView, mark_for
from landonce.protocol.match_ranges import pieces_each
from landonce.protocol.operate import skipped_ranges
from landonce.protocol.own_ledger import own_state
from landonce.protocol.packing import ready_first
from landonce.protocol.ranges import Partition, Range, without
from landonce.protocol.receipt import BlockResult, Fate, FileHandle, Receipt
from landonce.protocol.snapshot import Snapshot
from landonce.protocol.steps import (
    Asked,
    CommitTables,
    Committed,
    LookAtTables,
    Looked,
    Moved,
    Open,
    Reply,
    Write,
)
from landonce.read.kafka.records import WithoutRanges
from landonce.sinks.snapshot import OpenSnapshot, StageTask
from landonce.sinks.worker import Recipe

_LOOK_EVERY = 5.0
"""Seconds after which the tables are looked at again, though there is nothing to write."""
_RARELY = 50
"""Looking at the tables takes at most one part in so many of the time."""
_AT_ONCE = 8
"""Tables that are committed to at the same time."""
_PAUSE = 1.0
_MOMENTS = range(253_402_300_800_000)
"""Milliseconds up to the year 9999. A producer that stamps its records in another unit says nothing about time."""


class PatientWorkers(Protocol):
    """Workers that need not finish a write."""

    def write_until(
        self, recipe: Recipe[StageTask], tasks: Sequence[StageTask], enough: Enough
    ) -> tuple[BlockResult, ...]:
        """As `Workers.write`, until what is done is `enough`. The results of other tasks are dropped."""


@dataclass(frozen=True)
class CommitTimeout:
    """After so many seconds, the blocks of a batch that are ready are committed, and the others follow in the next batch."""

    seconds: float
    workers: PatientWorkers


@dataclass
class CommitPerformer(Performer):
    """Performs the effects of a batch machine with the policy `snapshot`."""

    settings: Snapshot
    opened: OpenSnapshot[FileHandle]
    workers: Workers
    letters: Letters
    ledger: Ledger
    timeout: CommitTimeout | None = None
    _timed: tuple[Plan, float] | None = None
    """The plan in hand, and when its commit timeout is over. A block that is written again has no time of its own."""
    _look_after: float = 0.0
    _news: tuple[str, ...] = ()
    _reported: set[str] = field(default_factory=set)
    _skipped: tuple[Range, ...] = ()
    """What operators skipped. A table that was rolled back to before that does not get it."""

    def reads_again(self, ranges: Sequence[Range]) -> bool:
        most = self.settings.block_rows * pieces_each(ranges)
        return any(each.span > most for each in ranges)

    def begin(self) -> Next:
        self._timed = None
        return super().begin()

    def advance(self, machine: Machine, reply: Reply) -> Next:
        after, effect = super().advance(machine, reply)
        self._news = ()
        if isinstance(reply, Looked):
            older = (each.view for each in after.tables or () if each.behind)
            now = {
                f"the table {view.table} was rolled back to batch {view.mark.batch if view.mark else 0}"
                for view in older
                if view.mark is None or not view.mark.behind
            }
            self._news, self._reported = tuple(now - self._reported), now
        return after, effect

    def news(self) -> tuple[str, ...]:
        return tuple(
            f"{each}; the removed ranges are delivered again, to this table alone." for each in sorted(self._news)
        )

    def ahead(self, known: LedgerState, floors: Floors) -> dict[Partition, int]:
        """The table's own position says it; with a ledger outside, each table has one."""
        del known
        if self.opened.own is None:
            return {}
        view = self.opened.own.table.view()
        state = own_state(view) if view is not None else None
        committed = state.committed() if state is not None else {}
        return {each: committed[each] for each, floor in floors if committed.get(each, 0) > floor}

    def look_due(self) -> bool:
        due = self.incoming is None and time.monotonic() > self._look_after
        if due:
            self.opened.forget_absent()
        return due

    def require_owner(self, held: LedgerState) -> None:
        """A table that is its own ledger is only checked, and its state is not loaded: the next commit would take that for what this
        driver had seen."""
        if self.opened.own is not None:
            self.opened.own.check_owner(held)
        else:
            super().require_owner(held)

    def acquired(self, state: LedgerState) -> str:
        """What a driver that was killed left behind is put in order: staging branches go, and dead letters of a batch that it
        had just committed are published."""
        self.opened.tidy(state.epoch)
        self._skipped = skipped_ranges(self.ledger.journal())
        if self.opened.own is None:
            return super().acquired(state)
        self.letters.settle_left(state, owner=True)
        self.letters.publish_left(self.opened.own.letters, self.opened.own.letters_in, state)
        return self.opened.own.noticed

    def perform(self, effect: Asked, held: LedgerState) -> Reply:
        if isinstance(effect, LookAtTables):
            return self._look(held)
        if isinstance(effect, Open):
            return self.opened.add(effect.wants)
        if isinstance(effect, CommitTables):
            try:
                return self._commit(effect, held)
            except TableReshaped:
                return Moved()
        raise TypeError(f"not an effect: {effect!r}")

    def _look(self, held: LedgerState) -> Looked:
        """Check ownership first: a fenced driver must not act on what it reads. What is new to the ledger may not be in a table already."""
        began = time.monotonic()
        if self.opened.own is not None:
            if not held.fresh or self.incoming is not None:
                self.opened.own.check_owner(held)
                self.opened.refresh()
            views: tuple[TableView, ...] = ()
        else:
            seen = self.ledger.load()
            if seen is None or key(seen) != key(held):
                raise fenced(held, seen)
            found = self.opened.discover() if held.fresh else ()
            known = {*(table for table, _ in held.tables), *self.opened.tables} - {view.table for view in found}
            views = (*found, *self.opened.views(known))
        _different(views)
        self._look_after = time.monotonic() + max(_LOOK_EVERY, _RARELY * (time.monotonic() - began))
        topics: Iterable[str] = ()
        if self.incoming is not None:
            topics = [topic for topic, _ in self.incoming.topic_ids if topic not in dict(held.topic_ids)]
        elif held.fresh and all(view.mark is None for view in views):
            topics = self.opened.run.topics()
        labels = tuple(held.label(topic) for topic in topics)
        return Looked(views, *(self.opened.holds(labels, fresh=held.fresh) if labels else ()))

    def write(self, effect: Write, held: LedgerState) -> tuple[BlockResult, ...]:
        # Where each table begins to take rows. One that is its own ledger takes all that is planned.
        taking: dict[str, Floors | None] = {each.view.table: each.floors for each in effect.tables}
        if self.opened.own is not None:
            taking = dict.fromkeys(self.opened.tables, ())
        floors = tuple((table, taking.get(table)) for table in self.opened.tables)
        tasks = [
            StageTask(
                **self.task(effect, index, held),
                epoch=held.epoch,
                kind=effect.plan.kind,
                floors=floors,
                final=effect.final,
            )
            for index in effect.indexes
        ]
        recipe = self.letters.for_workers(self.opened.recipe, effect.plan, held)
        gone = skipped_in(effect.plan, self._skipped)
        if gone:
            recipe = replace(recipe, records=WithoutRanges(recipe.records, gone))
        if effect.in_parts and self.timeout is not None:
            results = self._write_in_parts(self.timeout, recipe, tasks, effect)
        else:
            results = self.workers.write(recipe, tasks)
        if any(result.fate is Fate.DOUBTFUL for result in results):
            time.sleep(_PAUSE)
        return results

    def _write_in_parts(
        self, timeout: CommitTimeout, recipe: Recipe[StageTask], tasks: Sequence[StageTask], effect: Write
    ) -> tuple[BlockResult, ...]:
        """All results; or, once the timeout is over, those of the blocks that can go ahead. If a block halts the run, all others are
        waited for."""
        plan, asked = effect.plan, set(effect.indexes)
        if self._timed is None or self._timed[0] != plan:
            self._timed = (plan, time.monotonic() + timeout.seconds)
        over = self._timed[1]

        def ready(done: Iterable[BlockResult]) -> tuple[int, ...]:
            landed = {each.index for each in done if each.fate is Fate.LANDED}
            return ready_first(plan.blocks, [at for at in range(len(plan.blocks)) if at not in asked or at in landed])

        def enough(done: Sequence[BlockResult]) -> bool:
            halted = any(each.fate is Fate.HALTED for each in done)
            return time.monotonic() >= over and not halted and bool(ready(done))

        results = timeout.workers.write_until(recipe, tasks, enough)
        if len(results) == len(tasks):
            return results
        ahead, done = ready(results), {each.index: each for each in results}
        return tuple(done[at] if at in ahead else BlockResult(at, Fate.SLOW) for at in effect.indexes)

    def _commit(self, effect: CommitTables, held: LedgerState) -> Committed | Moved:
        started = tuple(sorted(held.committed().items()))
        files = files_of(effect.receipts)
        names = tuple(sorted(each.dead_letters for each in effect.receipts if each.dead_letters))
        letters = effect.plan.kind is Kind.LETTERS
        through = valid_through(effect.receipts, held) if not letters else None
        folder = self.letters.folder_of(effect.plan, held)
        self.letters.require(effect.plan, held, names)
        records = WithoutRanges(self.opened.recipe.records, skipped_in(effect.plan, self._skipped))
        self.landing(effect.plan, held, effect.receipts, records)
        if self.opened.own is not None:
            table = self.opened.tables[0]
            tops = highest(effect.receipts).get(table, ())
            self.opened.own.commit(
                held,
                effect.after,
                files.get(table, ()),
                started=started,
                letters=(() if letters else names) if self.incoming is None else None,
                letters_in=str(folder) if names else "",
                tops=tops if not letters else (),
                valid_through=through,
            )
            reply: Committed | Moved = Committed()
            ids = {table: self.opened.own.commit_id}
        else:
            reply = self._commit_all(effect, files, started, through)
            marks = ((view.table, view.mark) for view in reply.views) if isinstance(reply, Committed) else ()
            ids = {name: mark.commit for name, mark in marks if mark is not None}
        if isinstance(reply, Committed):
            self.commits = tuple((name, each) for name, each in sorted(ids.items()) if each)
            self.letters.publish(effect.plan, held, names)
            self.opened.clear(files)
        return reply

    def _commit_all(
        self,
        effect: CommitTables,
        files: dict[str, tuple[FileHandle, ...]],
        started: Floors,
        through: int | None,
    ) -> Committed | Moved:
        """Every table that takes part and has rows; when ranges are delivered again, also those that have none in them, for
        their position moves too. Tables do not depend on each other: each says itself what it holds."""
        statuses = {each.view.table: each for each in effect.tables}
        tops = highest(effect.receipts) if effect.plan.kind is not Kind.LETTERS else {}
        tables = sorted({*files, *(statuses if effect.plan.kind is Kind.REPLAY else ())})

        def commit(table: str) -> tuple[bool, TableView]:
            mark = mark_for(effect.plan, effect.after, statuses[table], started, tops.get(table, ()))
            return self.opened.commit(statuses[table].view, mark, files.get(table, ()), through)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            done = list(pool.map(commit, tables))
        return Committed(tuple(view for _, view in done)) if all(landed for landed, _ in done) else Moved()


def skipped_in(plan: Plan, skipped: Iterable[Range]) -> tuple[Range, ...]:
    """What a plan has of ranges that operators skipped. Letters land in place, wherever they are."""
    ranges = [each for block in plan.blocks for each in block.ranges] if plan.kind is not Kind.LETTERS else []
    return tuple(each for each in skipped if any(without(mine, (each,)) != (mine,) for mine in ranges))


def _different(views: Iterable[TableView]) -> None:
    """Two names for one table: what is committed under the one would count as delivered under the other."""
    names: dict[str, str] = {}
    for view in views:
        if view.uuid and names.setdefault(view.uuid, view.table) != view.table:
            raise ConfigError(
                f"sink: {names[view.uuid]} and {view.table} are one table in this catalog, which ignores upper and "
                "lower case."
            )


def files_of(receipts: Iterable[Receipt]) -> dict[str, tuple[FileHandle, ...]]:
    """All files of a batch, by table."""
    files: dict[str, tuple[FileHandle, ...]] = {}
    for receipt in receipts:
        for table, written in receipt.files:
            files[table] = files.get(table, ()) + written
    return {table: written for table, written in files.items() if written}


def highest(receipts: Iterable[Receipt]) -> dict[str, Floors]:
    """The last row of each table in each partition."""
    found: dict[str, dict[Partition, int]] = {}
    for receipt in receipts:
        for table, tops in receipt.tops:
            here = found.setdefault(table, {})
            here.update({partition: max(top, here.get(partition, top)) for partition, top in tops})
    return {table: tuple(sorted(tops.items())) for table, tops in found.items()}


def valid_through(receipts: Iterable[Receipt], held: LedgerState) -> int | None:
    """The least, over all partitions, of the latest timestamp in the batch; None where a partition had no record in it."""
    latest: dict[Partition, int] = {}
    for receipt in receipts:
        for partition, moment in receipt.latest:
            latest[partition] = max(moment, latest.get(partition, moment))
    partitions = [partition for partition, _ in held.positions]
    if not partitions or any(latest.get(each, -1) not in _MOMENTS for each in partitions):
        return None
    return min(latest.values())
