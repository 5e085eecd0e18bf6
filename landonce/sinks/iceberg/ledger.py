"""The table as its own ledger: position and epoch are in its snapshots, and change with the rows or not at all.

A change is an empty snapshot, or the one that adds a batch's files. A pending plan is never kept: nothing of it can land
but in the commit that also moves the position, so a driver that starts anew may plan anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

from pyiceberg.table import Table

from landonce.errors import TableReplaced
from landonce.protocol.ledger import Ledger, LedgerState, Note, check_change, key
from landonce.protocol.marks import Floors, Mark, Verdict, raised
from landonce.protocol.own_ledger import OwnView, own_state, own_verdict, refuse, rollback_refused, rollback_told
from landonce.sinks.iceberg.commit import Attempt, Place
from landonce.sinks.iceberg.look import look_at
from landonce.sinks.iceberg.marker import journal_name, summary

_KEPT_NOTES = 100

Build = Callable[[Table, Mapping[str, str], Mapping[str, str]], Attempt]
"""Makes an attempt of the table, a mark's summary and table properties."""


class TableLedger(Ledger):
    """Keeps one pipeline's state in one branch of the table that it writes."""

    def __init__(self, place: Place, *, follow: bool = True) -> None:
        self.pipeline = place.pipeline
        self._place = place
        self._follow = follow
        self._empty: Build = lambda table, told, properties: self._place.appending(table, (), told, properties)
        self._view: OwnView | None = None
        self.vouching = False
        """An operator says that the last commit counts, though the history that would show it is cut off."""
        self.noticed = ""
        """What the last look found that people should hear of."""
        self._set_back = ""
        """The same of a table that was restored under this driver: afterwards nothing in it shows that."""

    def build_with(self, empty: Build, place: Place) -> None:
        """How an empty snapshot is made where PyIceberg cannot make one."""
        self._empty = empty
        self._place = place

    @property
    def letters(self) -> tuple[str, ...]:
        """The dead-letter files of the last batch. A driver that was killed after its commit did not get to publish them."""
        standing = self._view.standing if self._view else None
        return standing.letters if standing else ()

    @property
    def letters_in(self) -> str:
        """Their folder."""
        standing = self._view.standing if self._view else None
        return standing.letters_in if standing else ""

    def load(self) -> LedgerState | None:
        self.noticed, self._set_back = self._set_back, ""
        if not self._place.exists():
            self._view = None
            return None
        view = self._look(self._place.load())
        self._view = view
        if view.rolled_back and (view.standing is not None or view.whole):
            if not self._follow:
                raise rollback_refused([self._place.identifier])
            self.noticed = rollback_told(view)
        return own_state(view)

    def glimpse(self) -> None:
        """`glance` says it: what `load` sees, the next commit would take for what this driver had seen before."""

    def create(self, state: LedgerState) -> LedgerState:
        """The first change makes the first snapshot; before that there is nothing to create."""
        return self.load() or state

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        check_change(self.pipeline, old, new)
        last = self._view.last if self._view else None
        recorded = last is not None and key(last.state) == key(new)
        if new.pending is None and not recorded:
            self.commit(old, new, self._empty, note=note)
        return new

    def set_position(self, old: LedgerState, new: LedgerState, tops: Floors, note: Note) -> None:
        """An operator's word on how far the table is, which the last rows in it show."""
        check_change(self.pipeline, old, new)
        self.commit(old, new, self._empty, tops=tops, note=note)

    def glance(self, held: LedgerState) -> Table:
        """The table as it is. Raises `Fenced` or `RolledBack` if somebody touched the pipeline's marks since this driver did."""
        table = self._place.load()
        seen = self._look(table)
        self._judge(seen, held, held)
        return table

    def commit(
        self,
        old: LedgerState,
        new: LedgerState,
        build: Build,
        *,
        started: Floors | None = None,
        letters: tuple[str, ...] | None = None,
        letters_in: str = "",
        tops: Floors = (),
        valid_through: int | None = None,
        note: Note | None = None,
    ) -> None:
        """Swaps the state, with whatever else `build` puts into the same commit. Without a batch of its own, what the last mark
        says of its batch is said again."""
        before = self._view.standing if self._view else None
        begun = started if started is not None else before.started if before else ()
        mark = Mark(
            state=replace(new, tables=()),
            started=begun,
            letters=self.letters if letters is None else letters,
            letters_in=self.letters_in if letters is None else letters_in,
            tops=raised(before, new, tops),
        )
        told = summary(mark, valid_through)

        def judge(table: Table) -> Verdict:
            return self._judge(self._look(table), old, new)

        def attempt(table: Table) -> Attempt:
            return build(table, told, self._noted(table, note))

        self._place.ensure_branch()
        _, _, table = self._place.commit(judge, attempt)
        seen = self._look(table)  # after the commit, others may have committed, too: theirs must not be taken for ours
        self._judge(seen, old, new)
        self._view = seen

    def journal(self) -> tuple[Note, ...]:
        if not self._place.exists():
            return ()
        told = self._place.load().metadata.properties.get(journal_name(self.pipeline, self._place.branch), "[]")
        return tuple(Note(*each) for each in json.loads(told))

    def close(self) -> None:
        """There is nothing to give back."""

    def _judge(self, seen: OwnView, old: LedgerState, new: LedgerState) -> Verdict:
        verdict = own_verdict(self._known(), seen, new)
        if verdict is Verdict.MOVED and not seen.rolled_back:
            self._set_back = rollback_told(seen)
        refuse(verdict, old, seen)
        return verdict

    def _known(self) -> OwnView:
        if self._view is None:
            raise TableReplaced(
                f"the table {self._place.identifier} was not there when the pipeline was taken.",
                safe="Nothing was written.",
                command="start again: landonce run {file}",
            )
        return self._view

    def _look(self, table: Table) -> OwnView:
        return look_at(table, self.pipeline, self._place.branch, vouching=self.vouching)

    def _noted(self, table: Table, note: Note | None) -> dict[str, str]:
        if note is None:
            return {}
        name = journal_name(self.pipeline, self._place.branch)
        notes = [*json.loads(table.metadata.properties.get(name, "[]")), [note.at, note.action, note.detail]]
        return {name: json.dumps(notes[-_KEPT_NOTES:], separators=(",", ":"))}
