"""What an operator's decisions (`landonce state`) need of a sink. One that cannot do something says so in one sentence.

Nothing here asks a person: a decision is made (`Choice`), explained and confirmed by the command, and only then carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Protocol

import numpy as np

from landonce.errors import ConfigError, NothingToDo, PlanPending, TargetRefused
from landonce.failpoints import reach
from landonce.protocol.block_rows import AnyBlockRow, landed
from landonce.protocol.blocks import Kind, Plan
from landonce.protocol.ledger import Ledger, LedgerState
from landonce.protocol.marks import TableStatus, TableView
from landonce.protocol.operate import Ability, Decision, PastCommit, Return, Seeking, landed_too
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.seek_marker import interrupted
from landonce.protocol.source import Start
from landonce.protocol.target import TargetView
from landonce.sinks.audit import Held
from landonce.sinks.contract import DeduplicatingSink, Target, look_by_name, wait_out
from landonce.sinks.deduplicating import recipe_of, table_names, there
from landonce.sinks.run import run_of
from landonce.sinks.section import LedgerPlace
from landonce.sinks.snapshot import FileT, SnapshotSink, TableLedger, VersionT, table_view
from landonce.sinks.transactional import LedgerOfBlocks, TransactionalSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from landonce.sinks.parts import Parts

Sessions = Callable[[Mapping[str, str]], AbstractContextManager[Callable[[], "SparkSession"]]]
"""Gives a Spark session with these settings when one is needed, and stops it afterwards."""
UNCHANGED = "Nothing was changed."
_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Choice:
    """A decision, and how it is carried out."""

    state: LedgerState
    """What was decided about."""
    decision: Decision
    before: Callable[[], None] | None = None
    """What to do first, once it is confirmed."""
    change: Callable[[Decision], None] | None = None
    """What to do instead of changing the ledger's state alone. Gets the decision, with all that the command says of it."""


@dataclass(frozen=True)
class LedgerAddress:
    """Where a ledger is: for people, and for scripts."""

    words: str
    document: Mapping[str, Any]


@dataclass(frozen=True)
class Before:
    """Who wrote the table before, as an operator names it: one of the first three, or of the two that keep a position apart from it."""

    connector: str | None = None
    checkpoint: str | None = None
    nothing: bool = False
    control_topic: str | None = None
    group: str | None = None
    by_state: bool = False
    """The writer kept its state in a table of its own."""
    state_table: str | None = None
    """Which one; None: where it is by default."""
    offsets_of: str | None = None
    """A consumer group whose offsets say where the writer stopped."""
    missing: Start | None = None
    """Where a partition begins that the state says nothing of."""
    landed: bool | None = None
    """What a person says of a batch that cannot be settled."""

    def only(self, *names: str) -> bool:
        """Whether nothing is named but these."""
        return all(getattr(self, each.name) in (None, False) for each in fields(self) if each.name not in names)


class Import(Protocol):
    """A position that is taken over from another writer."""

    @property
    def decision(self) -> Decision: ...

    def adopt(self) -> None:
        """Writes the position, unless the writer did anything since it was looked at."""


@dataclass(frozen=True)
class Upkeep:
    """How tables are looked after. None: what the table's properties say, or else the default."""

    compact: bool = True
    target: int | None = None
    where: str = ""
    expire_older_than: timedelta | None = None
    keep_last: int | None = None
    retired: frozenset[str] = frozenset()
    orphans_older_than: timedelta = timedelta(days=3)
    dry: bool = False


class UpkeepReport(Protocol):
    """What was done to a table, or what would be."""

    @property
    def table(self) -> str: ...
    @property
    def exit_code(self) -> int: ...
    def to_dict(self) -> dict[str, Any]: ...
    def lines(self) -> list[str]: ...


class UpkeepWatch(Protocol):
    """Hears of progress."""

    def step(self, table: str, what: str) -> None: ...

    def done(self, report: UpkeepReport, number: int, of: int) -> None: ...


@dataclass
class Operations:
    """A target that can be asked nothing."""

    parts: Parts
    sessions: Sessions
    fan_out = False
    """The plan of a batch is committed to several tables, one after the other."""
    instead = "landonce run {file}"
    """What to do instead of `state fill`."""

    @property
    def no_fill(self) -> str:
        """Why a partial block cannot be filled up. Empty where it can."""
        return "there is nothing to fill: every block lands whole or not at all."

    @property
    def observed(self) -> Ledger:
        """The ledger, for looking at it: nothing is followed or changed."""
        return self.parts.ledger

    def load(self, ledger: Ledger | None = None) -> LedgerState | None:
        """What the ledger says, without making anything that is not there."""
        return (ledger or self.parts.ledger).load()

    def noticed(self, ledger: Ledger) -> str:
        """What people should know of how the ledger came to say what it says."""
        del ledger
        return ""

    def required(self, *, bound: bool = True, seeking: bool = False) -> LedgerState:
        """The ledger's entry. `bound`: one that was never bound to a topic will not do. `seeking`: nor will, for other commands, one
        that is marked because rows are being removed."""
        found = self.load()
        if found is not None and found.pending is not None and found.pending.kind is Kind.SEEK and not seeking:
            raise interrupted(found.pending)
        if found is None or (bound and found.fresh):
            raise NothingToDo(
                f"pipeline {self.parts.config.pipeline!r} has no position yet: it never ran, or its ledger is somewhere else.",
                safe=UNCHANGED,
                command="landonce run {file}, or correct `ledger` in it",
            )
        return found

    def kept(self) -> LedgerAddress:
        """Where the ledger is."""
        config = self.parts.config
        place, named = config.ledger_place, config.outside_ledger
        if place is not LedgerPlace.OUTSIDE:
            return LedgerAddress(f"{place.value}, in {self.parts.sink}", {"target": str(self.parts.sink)})
        if named.plugin is not None:
            return LedgerAddress(f"the plug-in {named.plugin.name}", {"plugin": named.plugin.name})
        if named.sqlite is not None:
            return LedgerAddress(f"the file {named.sqlite}", {"sqlite": str(named.sqlite)})
        if (table := named.keeper_map) is not None:
            where = {"keeper_map": table.path, "table": table.table}
            return LedgerAddress(f"the KeeperMap table {table.table}, at {table.path}", where)
        if named.memory:
            return LedgerAddress("the memory of a process that has ended", {"memory": True})
        return LedgerAddress("PostgreSQL", {"postgres": True})

    def tables(self, state: LedgerState | None) -> tuple[TableView, ...]:
        """The tables that carry a position of their own beside the ledger's."""
        del state
        return ()

    def statuses(self, state: LedgerState) -> tuple[LedgerState, tuple[TableStatus, ...]]:
        """What the ledger says, or its tables do where it is new; and each table compared with that."""
        return state, ()

    def rows(self, state: LedgerState) -> Sequence[AnyBlockRow]:
        """What is known of the pending plan's blocks, where each has a row of its own."""
        del state
        return ()

    def claimed(self, state: LedgerState) -> tuple[str, ...]:
        """Keys of blocks that were sent, and of which nobody has said yet what became of them."""
        del state
        return ()

    def fingerprint(self) -> str:
        """Of all in the pipeline file that decides what rows are, as a plan made now would carry it."""
        raise NothingToDo(
            f"{self.parts.sink} cannot tell whether the pipeline file fits a plan that another version of it made.",
            safe=UNCHANGED,
            command="put the old pipeline file back, then: landonce run {file}",
        )

    def ahead(self, state: LedgerState, statuses: Iterable[TableStatus], partitions: Iterable[Partition]) -> TargetView:
        """How far the target holds each partition, by the topics' own names."""
        del statuses, partitions
        return landed_too(TargetView(()), state.pending, landed(self.rows(state)))

    def give_up(self, plan: Plan, held: TargetView, ask: Callable[[], TargetView]) -> None:
        """Returns once nothing of a plan that is forgotten can begin or run on. `held`: what was decided about."""

    def count(self, ranges: Sequence[Range]) -> int | None:
        """How many rows the target holds in these ranges. None where it cannot be asked."""
        del ranges
        return None

    def records(self, state: LedgerState, ranges: Sequence[Range]) -> int | None:
        """How many records of these ranges have rows, each once. None where it cannot be asked."""
        del state
        return self.count(ranges)

    def change(self, state: LedgerState, decision: Decision) -> None:
        """The ledger first, which fences; then whatever else says how far the pipeline is."""
        self.parts.ledger.change(state, decision.new, decision.note())

    def settle(self, block: str, owner: str, *, landed: bool) -> Choice:
        """A person has looked for a block with this key in the target, and found it or not."""
        del block, owner, landed
        raise nothing_to_settle()

    def able(self) -> Ability:
        """What can be done about rows that would be delivered again."""
        return Ability(no_removal=f"{self.parts.sink} cannot remove rows by their coordinates.", keyed=self._keyed)

    @property
    def _keyed(self) -> bool:
        return self.parts.sink.changes_rows

    def remove(self, ranges: Sequence[Range]) -> None:
        """Removes all rows of these ranges, by what `_topic` holds. Returns once they are gone, on every replica."""
        raise NotImplementedError(f"{self.parts.sink} removes no rows: {ranges}")

    def carry_out(
        self, state: LedgerState, seeking: Seeking, remove_letters: Callable[[Sequence[Range]], object]
    ) -> None:
        """Moves the position. Whatever is removed goes while the ledger is marked: a command that is killed is resumed by the next one."""
        if seeking.marked is None:
            reach("move.before")
            self.change(state, seeking.decision)
            reach("move.after")
            return
        ranges = [replace(each, partition=state.labelled(each.partition)) for each in seeking.removed]
        reach("mark.before")
        self.parts.ledger.change(state, seeking.marked)
        reach("mark.after")
        self.remove(ranges)
        reach("remove.after")
        remove_letters(ranges)
        reach("move.before")
        self.parts.ledger.change(seeking.marked, seeking.decision.new, seeking.decision.note())
        reach("move.after")

    def history(self) -> Sequence[PastCommit] | None:
        """The commits of the one table, newest first, where it goes back by returning to one of them. None where rows are removed."""
        return None

    def return_to(self, state: LedgerState, back: Return, decision: Decision) -> None:
        """Makes an earlier commit of the table current again, unless anything was committed to it since `back` was decided."""
        raise NotImplementedError(
            f"{self.parts.sink} has no earlier commits: {state.pipeline}, {back.base}, {decision.action}"
        )

    def stay(self, owner: str) -> Choice:
        """A table that was rolled back stays as it is."""
        del owner
        raise carries_no_position()

    def accept_position(self, table: str | None, owner: str, *, by_rows: bool) -> Choice:
        """A position that is uncertain is taken for true."""
        del table, owner, by_rows
        raise carries_no_position()

    def forget_table(self, table: str, owner: str, *, replay: bool) -> Choice:
        """A table is not the one that it was."""
        del table, owner, replay
        raise carries_no_position()

    def take_over(self, before: Before, owner: str) -> Import:
        """Goes on where another writer of the table stopped."""
        del before, owner
        raise ConfigError(
            f"sink: {self.parts.sink} cannot continue where another writer stopped: only tables in Iceberg and ClickHouse can. "
            "`start: {group: …}` begins where a consumer group stopped."
        )

    def maintain(self, upkeep: Upkeep, watch: UpkeepWatch, tables: tuple[str, ...]) -> Sequence[UpkeepReport]:
        """Looks after the tables that were named, or all that the pipeline writes."""
        del upkeep, watch, tables
        raise ConfigError(
            f"maintain is for Iceberg tables, and {self.parts.sink} is not one: it needs no maintenance by landonce."
        )


def carries_no_position() -> NothingToDo:
    return NothingToDo("this pipeline does not write to Iceberg, and other targets hold no position.", safe=UNCHANGED)


def nothing_to_settle() -> NothingToDo:
    return NothingToDo(
        "there is nothing to settle: no plan of a wrapped sink is pending.",
        safe=UNCHANGED,
        command="landonce run {file}",
    )


_COMPARED = "landonce state seek {file} … --keep-rows   (what is there is recognised, and what is missing is written)"


def _pieces(ranges: Iterable[Range]) -> Iterator[tuple[Partition, int, int]]:
    """As much as is held in memory at once."""
    for each in ranges:
        for first in range(each.first, each.end, _AT_ONCE):
            yield each.partition, first, min(first + _AT_ONCE, each.end)


def _gone(rows: int, sink: object) -> None:
    if rows:
        raise TargetRefused(
            f"{sink} still holds {rows} rows that were to be removed.",
            safe="The position did not move, and no driver starts before this is finished.",
            command="landonce state seek {file} --resume",
        )


@dataclass
class LookingOperations(Operations):
    """A target that can be looked into, and that takes inserts with deadlines."""

    sink: DeduplicatingSink

    @property
    def no_fill(self) -> str:
        if not self.sink.ordered:
            return ""
        return (
            f"rows of {self.sink} take earlier rows away, so a block cannot be filled up: what is there of it would count twice. "
            "Put the rows back that were removed."
        )

    def fingerprint(self) -> str:
        return recipe_of(run_of(self.parts), self.sink).fingerprint()

    def ahead(self, state: LedgerState, statuses: Iterable[TableStatus], partitions: Iterable[Partition]) -> TargetView:
        del statuses
        with closing(self.sink.target()) as target:
            return (
                look_by_name(target, state, [(each, 0) for each in partitions]) if target.exists() else TargetView(())
            )

    def give_up(self, plan: Plan, held: TargetView, ask: Callable[[], TargetView]) -> None:
        """No insert may begin or run on: nobody would ever look for its rows again. What was decided holds for the rows that were
        there."""
        with closing(self.sink.target()) as target:
            wait_out(target, plan.deadline)
            target.kill()
        if held != ask():
            raise PlanPending(
                "rows of the pending plan landed during this command.",
                safe="Nothing was changed. No more of them can come.",
                command="run the same landonce state rebase {file} again: it sees them now",
            )

    def count(self, ranges: Sequence[Range]) -> int | None:
        names = [name for name in table_names(self.sink) if there(self.sink, name)]
        return sum(self.sink.one(name).writer().count(ranges) for name in names)

    def records(self, state: LedgerState, ranges: Sequence[Range]) -> int | None:
        names = [name for name in table_names(self.sink) if there(self.sink, name)]
        if len(names) < 2:
            return self.count(ranges)
        with closing(self.sink.held(self.parts, state)) as tables:
            held = [each for name in names if isinstance(each := tables.open(name), Held)]
            return sum(
                len(np.unique(np.concatenate([each.counted(*piece).offsets for each in held])))
                for piece in _pieces(ranges)
            )

    def able(self) -> Ability:
        no_removal = next((why for target in self._own_tables() if (why := target.no_removal())), "")
        versioned = self.sink.versioned
        return Ability(compares=True, no_removal=no_removal, instead=_COMPARED, keyed=self._keyed, versioned=versioned)

    def remove(self, ranges: Sequence[Range]) -> None:
        """No insert may run on: a marker is pending, and no plan."""
        with closing(self.sink.target()) as target:
            target.kill()
        for target in self._own_tables():
            target.remove(ranges)
            _gone(target.count(ranges), self.parts.sink)
            reach("remove.table")

    def _own_tables(self) -> Iterator[Target]:
        """Those that the file names, and those that the ledger knows. Others may fit a name with a field, and be somebody else's."""
        state, routing = self.parts.ledger.load(), self.sink.routing
        listed = filter(routing.could_make, (name for name, _ in state.tables) if state is not None else ())
        for name in dict.fromkeys((*routing.static, *listed)):
            with closing(self.sink.one(name).target()) as target:
                if target.exists():
                    yield target


@dataclass
class TransactionalOperations(Operations):
    """Rows and ledger are in one database: the blocks' rows say which of them landed."""

    sink: TransactionalSink
    no_fill = (
        "there is nothing to fill: a block's rows are in the table if its row in the ledger says so, and else none is."
    )

    def fingerprint(self) -> str:
        with closing(self.sink.open(run_of(self.parts))) as opened:
            return opened.examined().fingerprint()

    def rows(self, state: LedgerState) -> Sequence[AnyBlockRow]:
        ledger = self.parts.ledger
        return ledger.blocks(state.pending.batch) if state.pending and isinstance(ledger, LedgerOfBlocks) else ()

    def ahead(self, state: LedgerState, statuses: Iterable[TableStatus], partitions: Iterable[Partition]) -> TargetView:
        del statuses
        floors = [(each, 0) for each in partitions]
        with closing(self.sink.open_table()) as table:
            seen = look_by_name(table, state, floors) if table.exists() else TargetView(())
        return landed_too(seen, state.pending, landed(self.rows(state)))

    def count(self, ranges: Sequence[Range]) -> int | None:
        with closing(self.sink.open_table()) as table:
            return table.count(ranges) if table.exists() else None

    def able(self) -> Ability:
        with closing(self.sink.open_table()) as table:
            return Ability(no_removal=table.no_removal(), keyed=self._keyed)

    def remove(self, ranges: Sequence[Range]) -> None:
        with closing(self.sink.open_table()) as table:
            table.remove(ranges)
            _gone(table.count(ranges), self.parts.sink)


@dataclass
class SnapshotOperations(Operations, Generic[FileT, VersionT]):
    """One table that commits atomically: it is its own ledger, or carries a mark beside an outside one."""

    sink: SnapshotSink[FileT, VersionT]
    no_fill = "there is nothing to fill: a commit to the table lands whole, with its position, or not at all."

    def noticed(self, ledger: Ledger) -> str:
        return ledger.noticed if isinstance(ledger, TableLedger) else ""

    def fingerprint(self) -> str:
        opened = self.sink.open(run_of(self.parts))
        opened.refresh()
        return opened.recipe.fingerprint()

    def tables(self, state: LedgerState | None) -> tuple[TableView, ...]:
        del state
        if isinstance(self.parts.ledger, TableLedger):
            return ()
        return (table_view(self.sink.table, self.sink.open_table().view()),)
