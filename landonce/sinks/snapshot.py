"""The port of snapshot sinks: workers stage files, and one atomic commit of the driver adds them to the table, with the position.

One table, which is the pipeline's ledger: each of the pipeline's commits carries a `Mark` with the pipeline's state. Files that no commit
names are invisible, so a worker may fail and be repeated at any time, and a plan need not be durable.

    look      read the table: the mark in its present history, the last mark that was ever committed, and the table's version
    judge     may this state become that one, in this table? (`protocol.own_ledger`)
    attempt   one commit, which takes effect only if the table still has the version that was looked at
    again     somebody else committed in between: look, judge and try again

An author writes `look` and `attempt` (`SnapshotTable`), and how a worker stages rows (`SnapshotSink.stage`). `SnapshotLedger` does the rest,
for every table: an author never decides whether a commit may be made.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from landonce.errors import ConfigError, TableReplaced, TargetUnavailable
from landonce.failpoints import reach
from landonce.protocol.ledger import Ledger, LedgerState, Note
from landonce.protocol.marks import Floors, Mark, Verdict, raised
from landonce.protocol.own_ledger import OwnView, own_state, own_verdict, refuse, rollback_refused, rollback_told
from landonce.protocol.swap import check_change, key
from landonce.read.schema.fields import Schema
from landonce.sinks.contract import Finding, Guarantee, Sink

if TYPE_CHECKING:
    from landonce.sinks.pipeline_file import Pipeline
    from landonce.sinks.promise import Promise

_CONFLICTS = 50
"""Attempts in a row that other writers may win before the driver hears of it. It waits, and tries again."""


@dataclass(frozen=True)
class Seen:
    """What one look found, and the version of the table that it was found in."""

    view: OwnView
    version: Any
    """What `attempt` compares. landonce does not read it."""


@dataclass(frozen=True)
class Staging:
    """For whom a worker stages rows. Files that carry this in their names can be told apart: those of a dead driver from those of one at work."""

    pipeline: str
    epoch: int
    batch: int
    block: int


class SnapshotTable(ABC):
    """The table as the driver sees it, for one pipeline. Every method may raise `TargetUnavailable`: then nothing is known."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether the table is there."""

    @abstractmethod
    def create(self, declared: Schema) -> None:
        """Makes the table, with the coordinate columns `_topic`, `_partition` and `_offset`. Harmless if it is there."""

    @abstractmethod
    def schema(self) -> Schema:
        """The columns that landonce fills, by name, without the coordinates."""

    @abstractmethod
    def check(self) -> tuple[Finding, ...]:
        """Whether the table can hold the guarantee. Reads only."""

    @abstractmethod
    def look(self) -> Seen:
        """The table as it is now.

        `view.mark` is the newest mark in the history of what the table holds; a rollback removes marks from it. `view.copy` is the last mark
        that was ever committed, kept where no rollback and no expiry of the history removes it. `OwnView` says what the rest means.
        """

    @abstractmethod
    def attempt(self, seen: Seen, mark: Mark, files: Sequence[Any], note: Note | None) -> bool:
        """One atomic commit of the files, the mark, its copy, and the note for the journal. Without files, it changes the state alone.

        It takes effect only if the table still has the version that was seen. True: it has taken effect. False: certainly it has not, or a
        look will show that it has. An answer that does not come is `TargetUnavailable`. Never builds on another version than the one seen:
        a library that rebases a commit and tries again by itself must be told not to.
        """

    @abstractmethod
    def holds(self, labels: Iterable[str]) -> bool:
        """Whether the table holds a row of a topic with one of these labels (`_topic`)."""

    @abstractmethod
    def journal(self) -> tuple[Note, ...]:
        """The notes, oldest first. An old one may be dropped, if there are more than a hundred."""

    def close(self) -> None:  # noqa: B027  a table may have nothing open
        """Gives back what is open."""


class SnapshotLedger(Ledger):
    """Keeps one pipeline's state in the table that it writes. It is never sure of anything but what the last look found."""

    def __init__(self, table: SnapshotTable, pipeline: str, *, name: str, follow: bool = True) -> None:
        self.pipeline = pipeline
        self.table = table
        self._name = name
        self._follow = follow
        self._view: OwnView | None = None
        self.noticed = ""
        """What the last look found that people should hear of."""
        self._set_back = ""

    @property
    def letters(self) -> tuple[str, ...]:
        """The dead-letter files of the last batch. A driver that was killed after its commit did not publish them."""
        mark = self._view.standing if self._view else None
        return mark.letters if mark else ()

    @property
    def letters_in(self) -> str:
        """Their folder."""
        mark = self._view.standing if self._view else None
        return mark.letters_in if mark else ""

    def load(self) -> LedgerState | None:
        self.noticed, self._set_back = self._set_back, ""
        if not self.table.exists():
            self._view = None
            return None
        self._view = view = self.table.look().view
        if view.rolled_back and (view.standing is not None or view.whole):
            if not self._follow:
                raise rollback_refused([self._name])
            self.noticed = rollback_told(view)
        return own_state(view)

    def glimpse(self) -> None:
        """`glance` tells a driver that waits: what `load` sees, the next commit would take for what the driver has seen before."""

    def create(self, state: LedgerState) -> LedgerState:
        """The first change makes the first mark. Before that there is nothing to create."""
        return self.load() or state

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        """A plan is not kept: nothing of it can land without the position."""
        check_change(self.pipeline, old, new)
        last = self._view.last if self._view else None
        recorded = last is not None and key(last.state) == key(new)
        if new.pending is None and not recorded:
            self.commit(old, new, note=note)
        return new

    def glance(self, held: LedgerState) -> None:
        """Raises `Fenced` or `RolledBack` if somebody touched the pipeline's marks since this driver did."""
        self._judge(self.table.look().view, held, held)

    def commit(
        self,
        old: LedgerState,
        new: LedgerState,
        files: Sequence[Any] = (),
        *,
        started: Floors | None = None,
        letters: tuple[str, ...] | None = None,
        letters_in: str = "",
        tops: Floors = (),
        note: Note | None = None,
    ) -> None:
        """Swaps the state, with the files in the same commit. Without a batch of its own, the mark repeats what the last one says of its batch."""
        before = self._view.standing if self._view else None
        mark = Mark(
            state=replace(new, tables=()),
            started=started if started is not None else before.started if before else (),
            letters=self.letters if letters is None else letters,
            letters_in=self.letters_in if letters is None else letters_in,
            tops=raised(before, new, tops),
        )
        self._commit(old, new, mark, files, note)
        view = self.table.look().view  # others may have committed after this commit: their marks must not pass for ours
        self._judge(view, old, new)
        self._view = view

    def _commit(self, old: LedgerState, new: LedgerState, mark: Mark, files: Sequence[Any], note: Note | None) -> None:
        """Every attempt is judged by what was read from the version that it builds on."""
        for conflict in range(_CONFLICTS):
            seen = self.table.look()
            if self._judge(seen.view, old, new) is Verdict.DONE:
                return
            reach("attempt.before")
            if self.table.attempt(seen, mark, files, note):
                reach("attempt.after")
                return
            time.sleep(random.uniform(0.01, 0.05) * min(conflict + 1, 20))  # noqa: S311  not a secret
        raise TargetUnavailable(f"other writers of {self._name} were faster {_CONFLICTS} times in a row.")

    def journal(self) -> tuple[Note, ...]:
        return self.table.journal() if self.table.exists() else ()

    def close(self) -> None:
        self.table.close()

    def _judge(self, seen: OwnView, old: LedgerState, new: LedgerState) -> Verdict:
        if self._view is None:
            raise TableReplaced(
                f"the table {self._name} was not there when the pipeline was taken.",
                safe="Nothing was written.",
                command="start again: landonce run {file}",
            )
        verdict = own_verdict(self._view, seen, new)
        if verdict is Verdict.MOVED and not seen.rolled_back:
            self._set_back = rollback_told(seen)
        refuse(verdict, old, seen)
        return verdict


class SnapshotSink(Sink):
    """A table that is changed by atomic commits. Picklable; workers get a copy."""

    guarantee: ClassVar[Guarantee] = Guarantee.SNAPSHOT  # type: ignore[misc]
    table: str
    """What plans and messages call the table."""
    follow_rollback: bool = True
    """A table that was rolled back gets the removed ranges again. Otherwise the run halts."""

    @abstractmethod
    def open_table(self, pipeline: str) -> SnapshotTable:
        """Opens it on the driver."""

    @abstractmethod
    def stage(self, rows: pa.Table, staging: Staging) -> tuple[Any, ...]:
        """On a worker: writes the rows to files of names never used before, which are durable but not part of the table yet. Returns what
        `attempt` needs to know of them, picklable."""

    def own_ledger(self, pipeline: str) -> SnapshotLedger:
        """The table as its pipeline's ledger."""
        return SnapshotLedger(self.open_table(pipeline), pipeline, name=self.table, follow=self.follow_rollback)

    def open_ledger(self, config: Pipeline) -> SnapshotLedger:
        return self.own_ledger(config.pipeline)

    def open_query_ledger(self, where: str | Path | None, name: str) -> SnapshotLedger:
        if where is not None:
            raise ConfigError(f"ledger: {self.table} keeps the position itself; name no ledger.")
        return self.own_ledger(name)

    def promise(self, config: Pipeline) -> Promise:
        from landonce.sinks.promise import of_snapshots

        return of_snapshots(config)
