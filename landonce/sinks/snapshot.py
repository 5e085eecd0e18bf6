"""Sinks whose tables commit atomically: workers stage files, and one commit adds them with the position (a mark).

    worker   `stage`: writes files that nobody sees yet
    driver   `MarkedTable.view`: the table and its marks. `commit`: judge, build, send, on one and the same metadata, until it is accepted

The position is in the table's own commits (`TableLedger`), or in a ledger outside; the table carries its mark in both cases. A sink with one
table is a `SnapshotSink`; one that routes records to several tables writes an `OpenSnapshot` of its own.
"""

from __future__ import annotations

import random
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic

import pyarrow as pa
from typing_extensions import TypeVar

from landonce.errors import ConfigError, TableReplaced, TableUnfit, TargetUnavailable
from landonce.failpoints import reach
from landonce.protocol.blocks import Kind
from landonce.protocol.ledger import Ledger, LedgerState, Note, check_change, key
from landonce.protocol.marks import Floors, Mark, TableView, Verdict, raised, verdict
from landonce.protocol.own_ledger import OwnView, own_state, own_verdict, refuse, rollback_notice, rollback_refused
from landonce.protocol.ranges import Partition
from landonce.protocol.receipt import BlockResult, Fate, FileHandle, Receipt, Want
from landonce.read.block import ReadBlock, Reader
from landonce.read.decoding import decode_by
from landonce.read.route import Routing, Rule
from landonce.read.rows import NOWHERE, fit_to
from landonce.sinks.contract import CreatedTable, Guarantee, Sink
from landonce.sinks.run import Columns, OpenSink, Run, SparkNeeds, refuse_unfit
from landonce.sinks.worker import BlockWorker, OneTable, Recipe, Refuse, Task

if TYPE_CHECKING:
    from landonce.sinks.checking import CheckRun, Sections
    from landonce.sinks.operations import Operations, Sessions
    from landonce.sinks.parts import Parts
    from landonce.sinks.pipeline_file import Pipeline
    from landonce.sinks.promise import Promise

FileT = TypeVar("FileT", default=object)
"""What a worker's part of a sink says of a file that it wrote, picklable. Its driver's part gets it back."""
VersionT = TypeVar("VersionT", default=object)
"""The version of a table, as its sink compares it."""
_CONFLICTS = 50
"""Attempts in a row that other writers may win before the driver hears of it. It waits, and tries again."""

Judge = Callable[[OwnView], Verdict]
"""Says whether an attempt may be made, or raises. It must see the very metadata that the attempt is made against."""


class MarkedTable(ABC, Generic[FileT]):
    """One table that carries the marks of one pipeline, as the driver sees it. Opening asks nothing."""

    name: str

    @abstractmethod
    def view(self) -> OwnView | None:
        """The table and its marks as they are now. None if there is no such table."""

    @abstractmethod
    def commit(
        self,
        judge: Judge,
        mark: Mark,
        files: tuple[FileT, ...],
        *,
        valid_through: int | None = None,
        note: Note | None = None,
    ) -> tuple[Verdict, OwnView]:
        """Adds these files and the mark in one atomic commit; without files, the mark alone.

        In a loop: load the table, `judge` its view, and only for `GO` send a commit that is accepted only if the table is still what was
        judged; when somebody else was faster, begin again. Returns the judgement, and a view of the table that includes the commit.
        A commit without an answer raises `TargetUnavailable`: asking again finds the mark (`DONE`), or does not.
        `note` goes to the journal in the same commit.
        """

    def journal(self) -> tuple[Note, ...]:
        """What operators decided, oldest first, where the table is the ledger."""
        return ()


def no_such_table(name: str, safe: str = "Nothing was written.") -> TableReplaced:
    """A table that was there is gone."""
    return TableReplaced(
        f"the table {name} does not exist.",
        safe=safe,
        command="restore the table; or start again with `landonce run {file}`: with `create: true`, "
        "landonce creates a new table and delivers everything that Kafka still holds",
    )


def table_view(name: str, own: OwnView | None) -> TableView:
    """The same table, as one of a fan-out."""
    if own is None:
        return TableView(name)
    return TableView(name, own.uuid, own.valid, own.last.batch if own.last else 0, own.uncertain)


class TableLedger(Ledger, Generic[FileT]):
    """Keeps one pipeline's state in the commits of the table that it writes: position and epoch change with the rows, or not at all.

    A pending plan is never kept: nothing of it can land but in the commit that also moves the position, so a driver that starts may plan
    again.

    A commit is made to the table as its `old` state knows it: as the load found it that gave this state, or as the commit of this driver
    left it that made it. A look in between changes nothing of that, for it may show what others have done since.
    """

    def __init__(self, table: MarkedTable[FileT], pipeline: str, *, follow: bool = True) -> None:
        self.pipeline = pipeline
        self.table = table
        self._follow = follow
        self._view: OwnView | None = None
        """What the last look found."""
        self._loaded: LedgerState | None = None
        """What it said of the pipeline."""
        self._committed: OwnView | None = None
        """The table as the last commit of this driver left it."""
        self.noticed = ""
        """What the last look found that people should hear of."""
        self._set_back = ""
        """The same of a table that was restored under this driver: afterwards nothing in it shows that."""

    @property
    def letters(self) -> tuple[str, ...]:
        """The dead-letter files of the last batch. A driver that was killed after its commit did not get to publish them."""
        return self._mark.letters if self._mark else ()

    @property
    def letters_in(self) -> str:
        """Their folder."""
        return self._mark.letters_in if self._mark else ""

    @property
    def commit_id(self) -> str:
        """Of the last commit. Empty where the table's commits have none."""
        return self._mark.commit if self._mark else ""

    @property
    def last(self) -> Mark | None:
        """The last commit that was ever made to the table, as the last look found it: a rollback may have removed it."""
        return self._view.last if self._view else None

    @property
    def _mark(self) -> Mark | None:
        return self._view.valid if self._view else None

    def load(self) -> LedgerState | None:
        self.noticed, self._set_back, self._loaded = self._set_back, "", None
        view = self._view = self.table.view()
        if view is None:
            return None
        if view.rolled_back and (view.valid is not None or view.whole):
            if not self._follow:
                raise rollback_refused([self.table.name])
            self.noticed = rollback_notice(view)
        self._loaded = own_state(view)
        return self._loaded

    def load_while_idle(self) -> None:
        """`check_owner` says it, at every look at the table."""

    def create(self, state: LedgerState) -> LedgerState:
        """The first change makes the first commit; before that there is nothing to create."""
        return self.load() or state

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        check_change(self.pipeline, old, new)
        last = self._committed.last if self._committed is not None else None
        recorded = last is not None and key(last.state) == key(new)
        if new.pending is None and not recorded:
            self.commit(old, new, note=note)
        return new

    def set_position(self, old: LedgerState, new: LedgerState, tops: Floors, note: Note) -> None:
        """An operator's word on how far the table is, which the last rows in it show."""
        check_change(self.pipeline, old, new)
        self.commit(old, new, tops=tops, note=note)

    def check_owner(self, held: LedgerState) -> None:
        """Raises `Fenced` or `RolledBack` if somebody touched the pipeline's marks since this driver did."""
        seen = self.table.view()
        if seen is None:
            raise no_such_table(self.table.name)
        self._judge(self._known(held), seen, held, held)

    def commit(
        self,
        old: LedgerState,
        new: LedgerState,
        files: tuple[FileT, ...] = (),
        *,
        started: Floors | None = None,
        letters: tuple[str, ...] | None = None,
        letters_in: str = "",
        tops: Floors = (),
        valid_through: int | None = None,
        note: Note | None = None,
    ) -> None:
        """Swaps the state, and adds files in the same commit. Without a batch of its own, the last mark's batch is said again."""
        known = self._known(old)
        before = known.valid
        mark = Mark(
            state=replace(new, tables=()),
            started=started if started is not None else before.started if before else (),
            letters=letters if letters is not None else before.letters if before else (),
            letters_in=letters_in if letters is not None else before.letters_in if before else "",
            tops=raised(before, new, tops),
        )
        judge = partial(self._judge, known, old=old, new=new)
        _, seen = self.table.commit(judge, mark, files, valid_through=valid_through, note=note)
        judge(seen)  # others may have committed since: theirs must not be taken for ours
        self._view = self._committed = seen

    def journal(self) -> tuple[Note, ...]:
        return self.table.journal()

    def close(self) -> None:
        """There is nothing to give back."""

    def _judge(self, known: OwnView, seen: OwnView, old: LedgerState, new: LedgerState) -> Verdict:
        judged = own_verdict(known, seen, new)
        if judged is Verdict.MOVED and not seen.rolled_back:
            self._set_back = rollback_notice(seen)
        refuse(judged, old, seen)
        return judged

    def _known(self, state: LedgerState) -> OwnView:
        """The table as this state knows it."""
        known = self._view if self._committed is None or state == self._loaded else self._committed
        if known is None:
            raise TableReplaced(
                f"the table {self.table.name} did not exist when the driver took the pipeline.",
                safe="Nothing was written.",
                command="start again: landonce run {file}",
            )
        return known


# On the driver.


class OpenSnapshot(OpenSink, Generic[FileT]):
    """The tables of a pipeline, opened on the driver."""

    recipe: Recipe[StageTask]
    own: TableLedger[FileT] | None
    """The one table's own ledger, where it is one."""
    follow = True
    """A table that was rolled back gets the removed ranges again. Otherwise the run halts."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.own = run.ledger if isinstance(run.ledger, TableLedger) else None
        if run.query is not None and self.own is None:
            raise ConfigError("ledger: the position of a query is kept in the table itself, with its rows.")

    @property
    @abstractmethod
    def tables(self) -> tuple[str, ...]:
        """Those that workers write for."""

    @abstractmethod
    def table(self, name: str) -> MarkedTable[FileT]:
        """One of them, or one that the ledger knows."""

    def views(self, names: Iterable[str]) -> tuple[TableView, ...]:
        """The tables as they are now."""
        return tuple(table_view(name, self.table(name).view()) for name in sorted(names))

    def discover(self) -> tuple[TableView, ...]:
        """Tables that carry this pipeline's mark and that a new ledger does not know. Those in `tables` need not be among them."""
        return ()

    def refresh(self) -> None:
        """After a look at the one table that is the ledger: others may have changed its columns since the recipe was made."""

    def holds(self, labels: tuple[str, ...], *, fresh: bool) -> tuple[str, str]:
        """The first table that holds records of topics with these labels. With a ledger that is `fresh` also one that may hold some, for
        somebody else carried records into it: then with the one who did. Empty where none does."""
        del labels, fresh
        return "", ""

    def commit(
        self, expected: TableView, mark: Mark, files: tuple[FileT, ...], valid_through: int | None
    ) -> tuple[bool, TableView]:
        """A batch's files for one table, where the ledger is outside: False if its mark is not the expected one; and the table as it is."""
        name, view = expected.table, partial(table_view, expected.table)
        judge: Judge = lambda seen: verdict(expected, view(seen), mark.state)  # noqa: E731
        judged, seen = self.table(name).commit(judge, mark, files, valid_through=valid_through)
        return judged is not Verdict.MOVED, view(seen)

    def add(self, wants: Iterable[Want]) -> bool:
        """Makes the tables and adds the columns that blocks wait for (`BlockWorker.wants`). Says whether there are new tables, which may
        have to evolve, too."""
        del wants
        return False

    def forget_absent(self) -> None:
        """Tables that were not there may be there by now."""

    def tidy(self, epoch: int) -> None:
        """The pipeline is taken: removes what earlier drivers left."""

    def clear(self, files: Mapping[str, tuple[FileT, ...]]) -> None:
        """A batch is committed: removes what only waited for that."""


@dataclass(frozen=True)
class Seen(Generic[VersionT]):
    """What one look found, and the version of the table that it was found in."""

    view: OwnView
    version: VersionT
    """What `attempt` compares. landonce does not read it."""


class SnapshotTable(MarkedTable[FileT], CreatedTable, Generic[FileT, VersionT]):
    """The one table of a `SnapshotSink`. Every method may raise `TargetUnavailable`: then nothing is known.

    An author says how the table is read (`look`) and how one commit is tried (`attempt`), and never decides whether it may be made.
    """

    @abstractmethod
    def look(self) -> Seen[VersionT] | None:
        """The table as it is now, read again from where it is kept. None if there is none.

        `view.mark` is the newest mark in the history of what the table holds; a rollback removes marks from it. `view.copy` is the last mark
        that was ever committed, kept where no rollback and no expiry of the history removes it. `OwnView` says what the rest means.
        """

    @abstractmethod
    def attempt(self, seen: Seen[VersionT], mark: Mark, files: Sequence[FileT], note: Note | None) -> bool:
        """One atomic commit of the files, the mark, its copy, and the note for the journal. Without files, it changes the state alone.

        It takes effect only if the table still has the version that was seen. True: it has taken effect. False: certainly it has not, or a
        look will show that it has. An answer that does not come is `TargetUnavailable`. Never builds on another version than the one seen:
        a library that rebases a commit and tries again by itself must not do so here.
        """

    @abstractmethod
    def holds(self, labels: tuple[str, ...]) -> bool:
        """Whether the table has a row of a topic with one of these labels (`_topic`)."""

    @abstractmethod
    def journal(self) -> tuple[Note, ...]:
        """The notes, oldest first; none where there is no table. Of more than a hundred, the last ones are enough, if
        `kept_notes` chooses them: what operators skipped is not forgotten. They may go back with the table when it is rolled back: then
        what was skipped since is delivered like the rest."""

    def view(self) -> OwnView | None:
        seen = self.look()
        return seen.view if seen is not None else None

    def commit(
        self,
        judge: Judge,
        mark: Mark,
        files: tuple[FileT, ...],
        *,
        valid_through: int | None = None,
        note: Note | None = None,
    ) -> tuple[Verdict, OwnView]:
        """Every attempt is judged by what was read from the version that it builds on."""
        del valid_through
        for conflict in range(_CONFLICTS):
            seen = self._seen()
            judged = judge(seen.view)
            if judged is not Verdict.GO:
                return judged, seen.view
            reach("attempt.before")
            if self.attempt(seen, mark, files, note):
                reach("attempt.after")
                return judged, self._seen().view
            time.sleep(random.uniform(0.01, 0.05) * min(conflict + 1, 20))  # noqa: S311  not a secret
        raise TargetUnavailable(f"other writers of {self.name} were faster {_CONFLICTS} times in a row.")

    def _seen(self) -> Seen[VersionT]:
        seen = self.look()
        if seen is None:
            raise TableReplaced(
                f"the table {self.name} no longer exists.",
                safe="Nothing was written.",
                command="restore the table, or start again to deliver everything to a new one: landonce run {file}",
            )
        return seen


class SnapshotSink(Sink, Generic[FileT, VersionT]):
    """One table that commits atomically. Its section's `ledger_place` is `IN_COMMIT` where the file names no ledger."""

    guarantee = Guarantee.SNAPSHOT
    table: str
    pipeline: str
    follow = True
    """A table that was rolled back gets the removed ranges again. Otherwise the run halts."""

    @abstractmethod
    def open_table(self) -> SnapshotTable[FileT, VersionT]:
        """On the driver."""

    @abstractmethod
    def stage(self, rows: pa.Table, origin: Origin) -> tuple[tuple[FileT, ...], int]:
        """On a worker: writes files that nobody sees yet. Returns what `commit` needs to add them (picklable), and how many rows they
        hold by what the files themselves say."""

    def open(self, run: Run) -> OpenSnapshot[FileT]:
        return _OneTable(self, run)

    def open_ledger(self, config: Pipeline) -> Ledger:
        if not config.own_ledger:
            return super().open_ledger(config)
        return TableLedger(self.open_table(), config.pipeline, follow=self.follow)

    def open_query_ledger(self, where: str | Path | None, name: str) -> Ledger:
        if where is not None:
            return super().open_query_ledger(where, name)
        return TableLedger(self.open_table(), name, follow=self.follow)

    def promise(self, config: Pipeline) -> Promise:
        from landonce.sinks.promise import of_snapshot

        return of_snapshot(config)

    def checks(self, run: CheckRun) -> Sections:
        from landonce.sinks import checking

        return checking.of_snapshot(run, self)

    def operations(self, parts: Parts, sessions: Sessions) -> Operations:
        from landonce.sinks.operations import SnapshotOperations

        return SnapshotOperations(parts, sessions, self)


class _OneTable(OpenSnapshot[FileT], Generic[FileT, VersionT]):
    """The one table of a `SnapshotSink`."""

    recipe: StageRecipe[FileT, VersionT]

    def __init__(self, sink: SnapshotSink[FileT, VersionT], run: Run) -> None:
        super().__init__(run)
        self.sink, self.follow = sink, sink.follow
        self._table = sink.open_table()

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.sink.table,)

    def table(self, name: str) -> MarkedTable[FileT]:
        if name != self.sink.table:
            raise TableReplaced(
                f"the ledger knows a table {name}, and the pipeline file names {self.sink.table}.",
                safe="Nothing was written.",
                command="put the old table's name back in {file}, or give the pipeline another name",
            )
        return self._table

    def columns_to_make(self) -> Columns | None:
        if self._table.view() is not None:
            return None
        if not self.sink.create:
            raise TableUnfit(
                f"there is no table {self.sink.table}.",
                safe="Nothing was read or written.",
                command=f"create it, or {self.run.let_create}",
            )
        return self.run.columns(self._table.creation)

    def spark(self) -> SparkNeeds:
        return SparkNeeds((type(self.sink).__module__, "landonce.sinks.snapshot"))

    def make_ready(self, columns: Columns | None) -> None:
        if columns is not None:
            made = columns()
            self._table.creation(made)
            self._table.create(made)
        self.refresh()

    def refresh(self) -> None:
        refuse_unfit(self._table.check())
        taken = self._table.schema()
        self.run.refuse_misfits(taken, self.sink.table)
        self.recipe = StageRecipe(**self.run.basics, source=self.run.source(taken), target=taken, sink=self.sink)

    def holds(self, labels: tuple[str, ...], *, fresh: bool) -> tuple[str, str]:
        del fresh
        return (self.sink.table, "") if self._table.holds(labels) else ("", "")


# On a worker.

_NAME = re.compile(r"landonce-(?P<pipeline>.+)-e(?P<epoch>\d+)-b(?P<batch>\d+)-(?P<block>\d+)-[0-9a-f]{16}\.[a-z]+$")


@dataclass(frozen=True)
class Origin:
    """Who wrote a file, and for what: its name says it, so that orphans differ from files in flight."""

    pipeline: str
    epoch: int
    batch: int
    block: int

    def file_name(self, extension: str = "parquet") -> str:
        """A new name, never used before: a task that Spark runs again writes other files."""
        return f"landonce-{self.pipeline}-e{self.epoch}-b{self.batch}-{self.block}-{uuid.uuid4().hex[:16]}.{extension}"


def origin_of(path: str) -> Origin | None:
    """What a file's name says; None for files of others."""
    found = _NAME.search(path.rpartition("/")[2])
    if found is None:
        return None
    return Origin(found["pipeline"], int(found["epoch"]), int(found["batch"]), int(found["block"]))


@dataclass(frozen=True, kw_only=True)
class StageTask(Task):
    """One block to be written to files."""

    epoch: int
    kind: Kind
    floors: tuple[tuple[str, Floors | None], ...]
    """Where each table begins to take rows; None if it takes none."""
    final: bool = False
    """Tables were made and evolved already: what does not fit now is a dead letter."""

    def origin(self, pipeline: str) -> Origin:
        return Origin(pipeline, self.epoch, self.batch, self.block.number)

    @property
    def left_out(self) -> frozenset[str]:
        """Tables that have nothing to do with the block."""
        if self.kind is not Kind.REPLAY:
            return frozenset()
        return frozenset(name for name, floors in self.floors if floors is None)

    def begins(self) -> dict[str, dict[Partition, int]]:
        """Where each table begins to take rows of each partition."""
        nowhere = {each.partition: NOWHERE for each in self.block.ranges}
        return {name: nowhere if floors is None else dict(floors) for name, floors in self.floors}


@dataclass(frozen=True, kw_only=True)
class StageRecipe(OneTable[StageTask], Generic[FileT, VersionT]):
    """Of the one table of a `SnapshotSink`."""

    sink: SnapshotSink[FileT, VersionT]

    @property
    def marks(self) -> bool:
        return True

    def worker(self, task: StageTask) -> BlockWorker:
        return StageWorker(self, task)


@dataclass(frozen=True)
class StageWorker(BlockWorker, Generic[FileT, VersionT]):
    """Writes the files of one block. They count once the driver has committed them, so a task that Spark runs again writes others."""

    recipe: StageRecipe[FileT, VersionT]
    task: StageTask

    def reader(self) -> Reader:
        recipe, name = self.recipe, self.recipe.sink.table
        return Reader(
            routing=Routing(None, (Rule(name),)),
            decoders={name: decode_by(recipe.source, recipe.decoding)},
            fits={name: fit_to(recipe.target)},
            floors=self.task.begins(),
            others=self.task.left_out,
            marks=True,
        )

    def write(self, block: ReadBlock, receipt: Receipt, refuse: Refuse | None) -> BlockResult:
        """What landed is what the files say that they hold, so that a row which got lost on the way leaves the account unbalanced."""
        del refuse
        name = self.recipe.sink.table
        rows = block.rows(name)
        files, count = (
            self.recipe.sink.stage(rows, self.task.origin(self.recipe.pipeline)) if rows.num_rows else ((), 0)
        )
        reach("files.after")
        return BlockResult(
            self.task.index, Fate.LANDED, staged(block, receipt, ((name, files),), block.held - block.shared + count)
        )


def staged(
    block: ReadBlock, receipt: Receipt, files: tuple[tuple[str, tuple[FileT, ...]], ...], landed: int
) -> Receipt:
    """The receipt of a block whose files are written, and not committed yet."""
    written = tuple((name, tuple(FileHandle(each) for each in some)) for name, some in files)
    tops = tuple((name, tuple(sorted(each.items()))) for name, each in sorted(block.tops.items()))
    latest = tuple(sorted(block.latest.items()))
    return replace(receipt, landed=landed, files=written, tops=tops, latest=latest)
