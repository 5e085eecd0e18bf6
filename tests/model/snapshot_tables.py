"""The tables: snapshots, marks, what a driver sees of them, and what becomes of them.

As measured on Iceberg: a commit is accepted if the table is still the same one and its branch's head is the one that was
loaded. Properties are written by the same commit, and stay when the branch goes back. A snapshot that expired cannot be
read or gone back to, and what it added is still there in the snapshots that followed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .core import Core
from .snapshot_topics import Topics
from .snapshot_values import NONE, Attempt, Scenario, Snap, Tab
from .values import Table, Violation

GONE = Snap(NONE, NONE, 0, 0, False, False)


class Tables:
    """All that can be seen in tables, and done to them."""

    def __init__(self, core: Core, scenario: Scenario, topics: Topics) -> None:
        self.core, self.scenario, self.topics = core, scenario, topics
        self.tabs, self.marks, self.views, self.owns = Table(), Table(), Table(), Table()
        self._viewed: dict[tuple[int, int], int] = {}
        self._owned: dict[int, int] = {}
        self._wrong: dict[tuple[int, int], str] = {}
        self._pruned: dict[int, int] = {}

    def first(self) -> tuple[int, ...]:
        """Each with a snapshot of somebody else's, so that there is something to go back to."""
        there = Tab(1, True, 0, (Snap(NONE, NONE, 0, 0, True, False),), NONE)
        absent = Tab(0, False, NONE, (), NONE)
        return tuple(self.tabs.of(absent if name in self.scenario.absent else there) for name in self.scenario.tables)

    # ── what is seen ────────────────────────────────────────────────────────────────────────────────────────────────

    def kept(self, tab: Tab) -> list[int]:
        """The branch, newest first, as far back as it is kept."""
        chain, at = [], tab.head
        while at != NONE and tab.snaps[at].kept:
            chain.append(at)
            at = tab.snaps[at].parent
        return chain

    def lineage(self, tab: Tab) -> list[int]:
        """The branch, newest first, expired or not."""
        chain, at = [], tab.head
        while at != NONE:
            chain.append(at)
            at = tab.snaps[at].parent
        return chain

    def total(self, tab: Tab) -> int:
        return tab.snaps[tab.head].total if tab.head != NONE else 0

    def cut(self, tab: Tab) -> bool:
        """History is cut off, and no mark is left of it."""
        chain = self.kept(tab)
        return bool(chain) and tab.snaps[chain[-1]].parent != NONE and not any(tab.snaps[at].mark >= 0 for at in chain)

    def replaced(self, tab: Tab) -> bool:
        return tab.uuid > 1 or (tab.uuid == 1 and not tab.there)

    def _mark(self, number: int) -> Any:
        return self.marks.values[number] if number != NONE else None

    def _newest(self, tab: Tab) -> Any:
        return next((self._mark(tab.snaps[at].mark) for at in self.kept(tab) if tab.snaps[at].mark != NONE), None)

    def view(self, number: int, table: int) -> int:
        """One table of a fan-out."""
        known = self._viewed.get((number, table))
        if known is None:
            name = self.scenario.tables[table]
            view = self.core.marks.TableView(name)
            if self.tabs.values[number].there:
                own = self.owns.values[self.own(number)]
                latest = own.last.batch if own.last else 0
                view = self.core.marks.TableView(name, own.uuid, own.valid, latest, own.uncertain)
            known = self._viewed[number, table] = self.views.of(view)
        return known

    def own(self, number: int) -> int:
        """What a table says of the pipeline."""
        known = self._owned.get(number)
        if known is None:
            tab = self.tabs.values[number]
            chain, copy = self.kept(tab), self._mark(tab.copy)
            parent = tab.snaps[chain[-1]].parent if chain else NONE
            view = self.core.own_ledger.OwnView(
                uuid=f"uuid {tab.uuid}",
                mark=self._newest(tab),
                copy=copy,
                whole=parent == NONE,
                vouched=copy is not None and parent != NONE and self._shows(tab, copy, parent),
            )
            known = self._owned[number] = self.owns.of(view)
        return known

    def _id(self, tab: Tab, at: int) -> int:
        """Snapshots of two tables by one name never have the same id."""
        return tab.uuid * 100 + at

    def _shows(self, tab: Tab, copy: Any, parent: int) -> bool:
        """The copy's commit is right below the cut, one of its files is there, or the table's rows end where it says."""
        if self._id(tab, parent) == copy.snapshot:
            return True
        for at in self.lineage(tab):
            snap = tab.snaps[at]
            if snap.rewrites:
                break
            if snap.rows and self._mark(snap.mark).batch == copy.batch:
                return True
        if self.total(tab) & ~self.topics.below(copy.state.positions):
            return False
        return bool(copy.tops) and all(
            self.topics.within(at.number, top, top + 1) & self.total(tab) for at, top in copy.tops
        )

    # ── what is done ────────────────────────────────────────────────────────────────────────────────────────────────

    def fits(self, number: int, attempt: Attempt) -> bool:
        """The catalog's compare-and-set."""
        tab = self.tabs.values[number]
        return tab.there and tab.uuid == attempt.uuid and tab.head == attempt.head

    def landed(self, number: int, attempt: Attempt) -> int | Violation:
        tab = self.tabs.values[number]
        before = self.total(tab)
        if before & attempt.rows:
            name = self.scenario.tables[attempt.table]
            return Violation(f"{self.topics.name(before & attempt.rows)} is in table {name} twice")
        mark = self.marks.of(replace(self._mark(attempt.mark), snapshot=self._id(tab, len(tab.snaps))))
        snap = Snap(tab.head, mark, attempt.rows, before | attempt.rows, True, False)
        return self.tabs.of(tab._replace(head=len(tab.snaps), snaps=(*tab.snaps, snap), copy=mark))

    def made(self, number: int) -> int:
        """Made by a driver, unless somebody else was faster."""
        tab = self.tabs.values[number]
        return number if tab.there else self.tabs.of(Tab(tab.uuid + 1, True, NONE, (), NONE))

    def rolled_back(self, number: int) -> Iterator[tuple[str, int]]:
        tab = self.tabs.values[number]
        for at in self.kept(tab)[1:]:
            yield f"is rolled back to snapshot {at}", self.tabs.of(tab._replace(head=at))

    def rolled_forward(self, number: int) -> Iterator[tuple[str, int]]:
        tab = self.tabs.values[number]
        chain = self.kept(tab)
        for at, snap in enumerate(tab.snaps):
            if snap.kept and at not in chain:
                yield f"is set to snapshot {at}", self.tabs.of(tab._replace(head=at))

    def written_by_others(self, number: int) -> Iterator[tuple[str, int]]:
        tab = self.tabs.values[number]
        if tab.there:
            yield "is written by somebody else", self._foreign(tab, rewrites=False)

    def compacted(self, number: int) -> Iterator[tuple[str, int]]:
        tab = self.tabs.values[number]
        if tab.there and self.total(tab):
            yield "is compacted", self._foreign(tab, rewrites=True)

    def _foreign(self, tab: Tab, *, rewrites: bool) -> int:
        snap = Snap(tab.head, NONE, 0, self.total(tab), True, rewrites)
        return self.tabs.of(tab._replace(head=len(tab.snaps), snaps=(*tab.snaps, snap)))

    def expired(self, number: int) -> Iterator[tuple[str, int]]:
        tab = self.tabs.values[number]
        chain = self.kept(tab)
        for count in range(1, len(chain)):
            left = chain[:count]
            snaps = tuple(snap._replace(kept=at in left) for at, snap in enumerate(tab.snaps))
            yield f"keeps its last {count} snapshot(s)", self.tabs.of(tab._replace(snaps=snaps))

    def made_again(self, number: int) -> Iterator[tuple[str, int]]:
        tab = self.tabs.values[number]
        if tab.there:
            yield "is dropped and made again", self.tabs.of(Tab(tab.uuid + 1, True, NONE, (), NONE))

    def dropped(self, number: int) -> Iterator[tuple[str, int]]:
        tab = self.tabs.values[number]
        if tab.there:
            yield "is dropped", self.tabs.of(Tab(tab.uuid, False, NONE, (), NONE))

    def pruned(self, number: int) -> int:
        """As it is for drivers that nobody can take anywhere else: without snapshots that are not in the branch."""
        known = self._pruned.get(number)
        if known is None:
            tab = self.tabs.values[number]
            branch = self.lineage(tab)
            snaps = tuple(snap if at in branch else GONE for at, snap in enumerate(tab.snaps))
            known = self._pruned[number] = self.tabs.of(tab._replace(snaps=snaps))
        return known

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────────

    def wrong(self, number: int, table: int) -> str:
        """A mark is the truth: what it covers is in the table, and what it does not cover is not."""
        known = self._wrong.get((number, table))
        if known is None:
            known = self._wrong[number, table] = self._untrue(self.tabs.values[number], table)
        return known

    def _untrue(self, tab: Tab, table: int) -> str:
        mark = next((tab.snaps[at].mark for at in self.lineage(tab) if tab.snaps[at].mark != NONE), NONE)
        if mark == NONE:
            return ""
        name, total = self.scenario.tables[table], self.total(tab)
        covered = self.topics.below(self.marks.values[mark].state.positions) & self.topics.meant[table]
        if covered & ~total:
            return f"the mark of table {name} covers {self.topics.name(covered & ~total)}, which is not there"
        if total & ~covered:
            return f"table {name} holds {self.topics.name(total & ~covered)}, which its mark does not cover"
        return ""
