"""One branch of one table, as it carries marks: in the summaries of its snapshots, and a copy in its properties.

Where the table is its own ledger, `sinks.snapshot.TableLedger` keeps the position here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pyiceberg.table import Table

from landonce.errors import Fenced
from landonce.protocol.ledger import Note
from landonce.protocol.marks import Mark, TableView, Verdict, verdict
from landonce.protocol.own_ledger import OwnView
from landonce.sinks.iceberg.commit import Attempt, TableBranch, by_pyiceberg
from landonce.sinks.iceberg.marks import journal_name, look_at, to_summary
from landonce.sinks.iceberg.staging import staged_attempt
from landonce.sinks.snapshot import Judge, MarkedTable

_KEPT_NOTES = 100
Build = Callable[[Table, Mapping[str, str], Mapping[str, str]], Attempt]
"""Makes an attempt of the table, a mark's summary and table properties."""


class IcebergTable(MarkedTable):
    """A place in a catalog, and how commits to it are made."""

    def __init__(
        self, place: TableBranch, building: Callable[[tuple[Any, ...]], Build] | None = None, *, vouching: bool = False
    ) -> None:
        """`building`: how a commit of these files is made. Without it, by PyIceberg. `vouching`: an operator accepts the last commit,
        though the history that would show it is cut off."""
        self.name = place.identifier
        self.place = place
        self._building = building or self._appending
        self._vouching = vouching
        self.loaded: Table | None = None
        """The table as `view` saw it last."""

    def view(self) -> OwnView | None:
        self.loaded = self.place.find()
        return None if self.loaded is None else self._look(self.loaded)

    def commit(
        self,
        judge: Judge,
        mark: Mark,
        files: tuple[Any, ...],
        *,
        valid_through: int | None = None,
        note: Note | None = None,
    ) -> tuple[Verdict, OwnView]:
        build, summary = self._building(files), to_summary(mark, valid_through)
        self.place.ensure_branch()
        judged, _, table = self.place.commit(
            lambda seen: judge(self._look(seen)), lambda seen: build(seen, summary, self._noted(seen, note))
        )
        return judged, self._look(table)

    def journal(self) -> tuple[Note, ...]:
        table = self.place.find()
        return () if table is None else tuple(Note(*each) for each in self._notes(table))

    def _appending(self, files: tuple[Any, ...]) -> Build:
        return lambda table, summary, properties: self.place.appending(table, files, summary, properties)

    def _look(self, table: Table) -> OwnView:
        return look_at(table, self.place.pipeline, self.place.branch, vouching=self._vouching)

    def _noted(self, table: Table, note: Note | None) -> dict[str, str]:
        if note is None:
            return {}
        notes = [*self._notes(table), [note.at, note.action, note.detail]]
        return {self._journal: json.dumps(notes[-_KEPT_NOTES:], separators=(",", ":"))}

    def _notes(self, table: Table) -> list[Any]:
        return list(json.loads(table.metadata.properties.get(self._journal, "[]")))

    @property
    def _journal(self) -> str:
        return journal_name(self.place.pipeline, self.place.branch)


def empty(place: TableBranch) -> Build:
    """Makes empty snapshots by PyIceberg, or by Spark if PyIceberg does not write the table's format version."""

    def build(table: Table, summary: Mapping[str, str], properties: Mapping[str, str]) -> Attempt:
        if by_pyiceberg(table) or place.session is None:
            return place.appending(table, (), summary, properties)
        return staged_attempt(place, table, summary, properties)

    return build


def restate(place: TableBranch, seen: TableView, mark: Mark) -> None:
    """Sets a table's position by an empty snapshot with a mark, unless the table has changed since it was `seen`. The
    mark ends any doubt about the position."""

    def judge(table: Table) -> Verdict:
        now = place.view(table)
        return verdict(seen, replace(now, uncertain=now.uncertain and not seen.uncertain), mark.state)

    build, summary = empty(place), to_summary(mark)
    place.ensure_branch()
    judged, _, _ = place.commit(judge, lambda table: build(table, summary, {}))
    if judged is Verdict.MOVED:
        raise Fenced(
            f"the table {place.identifier} changed during this command: a driver runs, or the table was rolled back "
            "again.",
            safe="The ledger has the decision, and nothing was written to this table.",
            command="stop the driver, then run the same command again",
        )
