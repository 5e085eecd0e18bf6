"""The table as its own ledger: position and epoch are in its snapshots, and change with the rows or not at all.

A change is an empty snapshot, or the one that adds a batch's files. A pending plan is never kept: nothing of it can land except in
the commit that also moves the position, so a driver that starts again may make another plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pyiceberg.table import Table

from landonce.errors import Fenced, TableReplaced
from landonce.protocol.ledger import Ledger, LedgerState, Note, check_change, key
from landonce.protocol.marks import Floors, Mark, TableView, Verdict, raised, verdict
from landonce.protocol.own_ledger import OwnView, own_state, own_verdict, refuse, rollback_refused, rollback_told
from landonce.sinks.iceberg.commit import Attempt, Place, by_pyiceberg
from landonce.sinks.iceberg.marks import journal_name, look_at, table_view, to_summary
from landonce.sinks.iceberg.staging import staged_attempt

_KEPT_NOTES = 100
Build = Callable[[Table, Mapping[str, str], Mapping[str, str]], Attempt]
"""Makes an attempt of the table, a mark's summary and table properties."""


class TableLedger(Ledger):
    """Keeps one pipeline's state in one branch of the table that it writes."""

    def __init__(self, place: Place, *, follow: bool = True) -> None:
        self.pipeline = place.pipeline
        self._place = place
        self._follow = follow
        self._empty: Build = lambda table, summary, properties: self._place.appending(table, (), summary, properties)
        self._view: OwnView | None = None
        self.vouching = False
        """An operator accepts the last commit, though the history that would show it is cut off."""
        self.noticed = ""
        """What the last `load` found that people should know."""
        self._set_back = ""
        """The same for a table that was rolled back and restored under this driver: the table itself no longer shows it."""

    def build_with(self, empty: Build, place: Place) -> None:
        """Sets how an empty snapshot is made where PyIceberg cannot make one."""
        self._empty = empty
        self._place = place

    @property
    def letters(self) -> tuple[str, ...]:
        """The dead-letter files of the last batch. A driver that was killed after its commit did not get to publish them."""
        return self._mark.letters if self._mark else ()

    @property
    def letters_in(self) -> str:
        """Their folder."""
        return self._mark.letters_in if self._mark else ""

    @property
    def _mark(self) -> Mark | None:
        """The mark that counted at the last look."""
        return self._view.standing if self._view else None

    def load(self) -> LedgerState | None:
        self.noticed, self._set_back = self._set_back, ""
        table = self._place.find()
        if table is None:
            self._view = None
            return None
        view = self._view = self._look(table)
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
        """Sets the position that an operator read from the table's last rows."""
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
        """Swaps the state, with whatever else `build` puts into the same commit. A commit without a batch repeats what the last
        mark says of its batch."""
        before = self._mark
        begun = started if started is not None else before.started if before else ()
        mark = Mark(
            state=replace(new, tables=()),
            started=begun,
            letters=self.letters if letters is None else letters,
            letters_in=self.letters_in if letters is None else letters_in,
            tops=raised(before, new, tops),
        )
        summary = to_summary(mark, valid_through)

        def judge(table: Table) -> Verdict:
            return self._judge(self._look(table), old, new)

        def attempt(table: Table) -> Attempt:
            return build(table, summary, self._noted(table, note))

        self._place.ensure_branch()
        _, _, table = self._place.commit(judge, attempt)
        seen = self._look(table)  # others may have committed since: their marks must not be taken for ours
        self._judge(seen, old, new)
        self._view = seen

    def journal(self) -> tuple[Note, ...]:
        table = self._place.find()
        return tuple(Note(*each) for each in self._notes(table)) if table is not None else ()

    def close(self) -> None:
        """There is nothing to close."""

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
        notes = [*self._notes(table), [note.at, note.action, note.detail]]
        return {self._journal: json.dumps(notes[-_KEPT_NOTES:], separators=(",", ":"))}

    def _notes(self, table: Table) -> list[Any]:
        return list(json.loads(table.metadata.properties.get(self._journal, "[]")))

    @property
    def _journal(self) -> str:
        return journal_name(self.pipeline, self._place.branch)


def empty(place: Place) -> Build:
    """Makes empty snapshots by PyIceberg, or by Spark if PyIceberg does not write the table's format version."""

    def build(table: Table, summary: Mapping[str, str], properties: Mapping[str, str]) -> Attempt:
        if by_pyiceberg(table) or place.session is None:
            return place.appending(table, (), summary, properties)
        return staged_attempt(place, table, summary, properties)

    return build


def restate(place: Place, seen: TableView, mark: Mark) -> None:
    """Sets a table's position by an empty snapshot with a mark, unless the table has changed since it was `seen`. The
    mark ends any doubt about the position."""

    def judge(table: Table) -> Verdict:
        now = table_view(place.identifier, look_at(table, place.pipeline, place.branch))
        return verdict(seen, replace(now, uncertain=now.uncertain and not seen.uncertain), mark.state)

    build, summary = empty(place), to_summary(mark)
    place.ensure_branch()
    judged, _, _ = place.commit(judge, lambda table: build(table, summary, {}))
    if judged is Verdict.MOVED:
        raise Fenced(
            f"the table {place.identifier} changed while this was decided: a driver runs, or it was rolled back again.",
            safe="The ledger has the decision, and nothing was written to this table.",
            command="stop the driver, and give the same command again",
        )
