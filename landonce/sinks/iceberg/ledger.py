"""One branch of one table, as it carries marks: in the summaries of its snapshots, and a copy in its properties."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pyiceberg.table import Table

from landonce.protocol.ledger import Note
from landonce.protocol.marks import Mark, Verdict
from landonce.protocol.own_ledger import OwnView
from landonce.sinks.iceberg.commit import Attempt, Place
from landonce.sinks.iceberg.look import look_at
from landonce.sinks.iceberg.marker import journal_name, summary
from landonce.sinks.snapshot import Judge, MarkedTable

_KEPT_NOTES = 100

Build = Callable[[Table, Mapping[str, str], Mapping[str, str]], Attempt]
"""Makes an attempt of the table, a mark's summary and table properties."""


class IcebergTable(MarkedTable):
    """A place in a catalog, and how commits to it are made."""

    def __init__(self, place: Place, building: Callable[[tuple[Any, ...]], Build] | None = None) -> None:
        """`building`: how a commit of these files is made. Without it, by PyIceberg."""
        self.name = place.identifier
        self.place = place
        self._building = building or self._appending
        self.vouching = False
        """An operator says that the last commit counts, though the history that would show it is cut off."""
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
        build, told = self._building(files), summary(mark, valid_through)
        self.place.ensure_branch()
        judged, _, table = self.place.commit(
            lambda seen: judge(self._look(seen)), lambda seen: build(seen, told, self._noted(seen, note))
        )
        return judged, self._look(table)

    def journal(self) -> tuple[Note, ...]:
        table = self.place.find()
        return () if table is None else tuple(Note(*each) for each in self._notes(table))

    def _appending(self, files: tuple[Any, ...]) -> Build:
        return lambda table, told, properties: self.place.appending(table, files, told, properties)

    def _look(self, table: Table) -> OwnView:
        return look_at(table, self.place.pipeline, self.place.branch, vouching=self.vouching)

    def _noted(self, table: Table, note: Note | None) -> dict[str, str]:
        if note is None:
            return {}
        notes = [*self._notes(table), [note.at, note.action, note.detail]]
        return {self._journal: json.dumps(notes[-_KEPT_NOTES:], separators=(",", ":"))}

    def _notes(self, table: Table) -> list[Any]:
        found: list[Any] = json.loads(table.metadata.properties.get(self._journal, "[]"))
        return found

    @property
    def _journal(self) -> str:
        return journal_name(self.place.pipeline, self.place.branch)
