"""What a sink is for landonce, and the port of sinks that deduplicate and can be looked into.

A sink declares how exactly-once comes about in it (`Guarantee`), and landonce refuses a pipeline that asks for more.
A `Sink` is a picklable description. A `DeduplicatingSink` is opened on the driver by `target()` and on a worker by `writer()`; neither
may be kept across processes.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from landonce.config import model
from landonce.errors import ConfigError, TableUnfit
from landonce.ledger.open import named_ledger, open_ledger
from landonce.protocol.ledger import Ledger, LedgerState
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Presence, Reply
from landonce.protocol.target import TargetView
from landonce.read.evolution import Evolution
from landonce.read.route import Routing, Rule
from landonce.read.rows import COORDINATES as COORDINATES
from landonce.read.schema.fields import Schema

if TYPE_CHECKING:
    from landonce.read.changes import Changes
    from landonce.sinks.audit import HeldTables
    from landonce.sinks.checking import CheckRun, Sections
    from landonce.sinks.deduplicating import OpenDeduplicating
    from landonce.sinks.operations import Operations, Sessions
    from landonce.sinks.parts import Parts
    from landonce.sinks.pipeline_file import Pipeline
    from landonce.sinks.promise import Promise
    from landonce.sinks.run import OpenSink, Run

_PAST = 50
"""Milliseconds past a deadline, so that two readings of one clock cannot disagree."""


class Guarantee(str, Enum):
    """How exactly-once comes about."""

    DEDUPLICATING = "deduplicating"
    """Token against races, deadline against zombies, probe as the proof; the ledger lives outside."""
    SNAPSHOT = "snapshot"
    """Rows and position are one atomic commit, which checks position and epoch inside every attempt."""
    TRANSACTIONAL = "transactional"
    """Rows and the block's row in the ledger change in one transaction, which checks whose block it is."""
    WRAPPED = "wrapped"
    """A user's function: sending again is harmless, or each attempt is claimed before it is sent."""


class Level(str, Enum):
    """How serious a finding of `check` is."""

    OK = "ok"
    WARNING = "warning"
    REFUSED = "refused"


@dataclass(frozen=True)
class Finding:
    """One line of `check`: what was looked at, what was found, and what to change."""

    level: Level
    what: str
    change: str = ""


@dataclass(frozen=True)
class Insert:
    """The name under which rows are sent, and the moment after which the target must refuse them."""

    token: str
    deadline: int
    attempt: str
    """Unique per request, so that a request differs from its repetition."""


class PlacedRows(ABC):
    """Rows that are found by their coordinates."""

    @abstractmethod
    def look(self, floors: Iterable[tuple[Partition, int]]) -> TargetView:
        """One past the highest offset that is there, for each partition that holds any at or above its floor."""

    @abstractmethod
    def count(self, ranges: Iterable[Range]) -> int:
        """How many rows are there in these ranges."""

    def no_removal(self) -> str:
        """Why `remove` cannot be used, in one sentence. Empty: it can."""
        return "the sink offers no way to remove rows by their coordinates."

    def remove(self, ranges: Iterable[Range]) -> None:
        """Removes the rows of these ranges, for an operator. Returns once they are gone, on every replica. Nothing writes meanwhile."""
        raise NotImplementedError(self.no_removal())


class CreatedTable(ABC):
    """A table that a start examines, and makes if it may. Opening asks nothing."""

    @abstractmethod
    def create(self, columns: Schema) -> None:
        """Makes the table, with the coordinate columns (`COORDINATES`). Harmless if it is there."""

    @abstractmethod
    def creation(self, columns: Schema) -> str:
        """What `create` makes, as statements or in words for people. Raises for columns that the table cannot have."""

    @abstractmethod
    def schema(self) -> Schema:
        """The columns that landonce fills, without the coordinates."""

    @abstractmethod
    def check(self) -> tuple[Finding, ...]:
        """Whether the table can hold the guarantee. Reads only."""


class Target(PlacedRows):
    """The target as the driver sees it. `count` is asked while a pipeline runs: it waits for nobody, and gives 0 where nothing tells."""

    @abstractmethod
    def now(self) -> int:
        """The target's own clock in milliseconds: deadlines are made and waited for on this clock only."""

    @abstractmethod
    def kill(self) -> None:
        """Ends every insert of this pipeline that still runs, anywhere, and returns when they are gone."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether the table is there."""

    @abstractmethod
    def create(self, declared: Schema, *, order_by: str | None = None, partition_by: str | None = None) -> None:
        """Makes the table, with coordinate columns and all that the guarantee needs. Harmless if it is there."""

    def creatable(self) -> tuple[Finding, ...]:
        """What would keep `create` from making the table. Reads only."""
        return ()

    def take_back(self) -> None:
        """Removes the table that `create` just made, for a start that refuses it after all: only if it is empty, and only if
        that is one step. Where it is not, the table stays."""

    @abstractmethod
    def schema(self) -> Schema:
        """The columns that landonce fills, by name, without the coordinates."""

    @abstractmethod
    def check(self) -> tuple[Finding, ...]:
        """Whether the table can hold the guarantee. Reads only."""

    @abstractmethod
    def close(self) -> None: ...


def wait_out(target: Target, deadline: int) -> None:
    """Returns once the target's clock is past `deadline`: no insert that carries it can begin any more."""
    while (left := deadline + _PAST - target.now()) > 0:
        time.sleep(min(left / 1000, 1.0))


class Looking(Protocol):
    """A target that can be asked what it holds."""

    def look(self, floors: Sequence[tuple[Partition, int]]) -> TargetView: ...


def look_by_name(target: Looking, ledger: LedgerState, floors: Iterable[tuple[Partition, int]]) -> TargetView:
    """As `look`, asked and answered by the topics' own names: the target knows them by their labels."""
    asked = tuple(floors)
    names = {ledger.labelled(partition): partition for partition, _ in asked}
    seen = target.look([(ledger.labelled(partition), floor) for partition, floor in asked])
    return TargetView(tuple((names[partition], end) for partition, end in seen.ends))


_CHEAP, _RARELY = 0.02, 20
"""A count that takes up to so many seconds is made whenever it is asked for. What it takes beyond that is at most one part in so
many of the driver's time."""


@dataclass
class Counting:
    """Counts rows while a pipeline runs, so that another writer is noticed, and leaves it where that takes too long."""

    target: Target
    _after: float = 0.0

    def count(self, ledger: LedgerState, ranges: Iterable[Range]) -> int | None:
        began = time.monotonic()
        if began < self._after:
            return None
        rows = self.target.count([replace(each, partition=ledger.labelled(each.partition)) for each in ranges])
        took = time.monotonic() - began
        self._after = began + took + _RARELY * max(0.0, took - _CHEAP)
        return rows


@dataclass(frozen=True)
class Probe:
    """What is there of some rows, and which of them are missing (a mask in the order of the rows)."""

    presence: Presence
    missing: pa.BooleanArray


class BlockWriter(ABC):
    """The target as a worker sees it. `rows` always hold the coordinate columns and are in coordinate order."""

    said: str = ""
    """What the target answered to the last insert that it did not acknowledge, for people."""

    @abstractmethod
    def send(self, rows: pa.Table, insert: Insert) -> Reply:
        """One insert, one unit. Raises `Halt` for what waiting does not fix; every other failure is a `Reply`."""

    def why_gone(self) -> str:
        """What may remove rows as soon as they are acknowledged, and what to do about it, for people. Empty where nothing is known."""
        return ""

    def suspects(self, deadline: int) -> bool:
        """Whether the target died after the plan with this deadline was made, may remember tokens whose rows it lost, and would pass rows
        under such a token on to views behind the table."""
        del deadline
        return False

    @property
    @abstractmethod
    def atomic(self) -> bool:
        """Whether every block lands whole or not at all: true where the table has no partitions of its own."""

    @property
    @abstractmethod
    def resend_harmless(self) -> bool:
        """Whether the table's engine makes a row that was sent twice one row in the end."""

    @abstractmethod
    def count(self, ranges: Iterable[Range]) -> int:
        """How many rows the target holds in these ranges."""

    @abstractmethod
    def probe(self, rows: pa.Table, ranges: Iterable[Range]) -> Probe:
        """Which of these rows are there. Retries what may pass; `TargetUnavailable` when it does not."""


class Sink(ABC):
    """A picklable description of where a pipeline's records land. Its repr never shows a secret. Making one connects to nothing."""

    guarantee: Guarantee
    create: bool = False
    """What is not there and can be made is made at the start."""
    deadline: float = 0.0
    """Seconds; the least time that a plan is given."""
    interval: float = 1.0
    """Seconds between two batches, unless the pipeline file says how many."""
    short_interval: float = 0.0
    """Seconds. Batches that follow each other faster cost readers more than they bring; `check` warns of them."""
    short_interval_costs: str = ""
    """What they cost, in a few words."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Which table it is. A pending plan is not written to another one."""

    def open_ledger(self, config: Pipeline) -> Ledger:
        """The ledger of a pipeline with this sink: the one that its file names, unless the sink keeps the position itself."""
        return self.open_named_ledger(config.outside_ledger, config.pipeline)

    def open_named_ledger(self, named: model.LedgerSection, name: str) -> Ledger:
        """The ledger of this name outside of the target, as a pipeline file or a program says where it is. Connects to nothing yet."""
        return named_ledger(named, name)

    @abstractmethod
    def open(self, run: Run) -> OpenSink:
        """Opens it on the driver, for one run."""

    @abstractmethod
    def promise(self, config: Pipeline) -> Promise:
        """What holds for a pipeline with this sink once it starts."""

    @property
    def changes_rows(self) -> bool:
        """Records change rows that are there, by a key: they are not only added."""
        return False

    @property
    def versioned(self) -> bool:
        """Where records change rows by a key: a row keeps the position of its change, so an older change that lands late never wins."""
        return False

    @property
    def keeps_position(self) -> bool:
        """The position of a user's own query is in the target, with its rows: nobody names a ledger."""
        return self.guarantee in (Guarantee.SNAPSHOT, Guarantee.TRANSACTIONAL)

    @property
    def commits_batches(self) -> bool:
        """A batch is one commit, with the position in it. Each block of the others lands by itself."""
        return self.guarantee is Guarantee.SNAPSHOT

    @property
    def large_blocks(self) -> bool:
        """Each block is an insert of its own, so few large ones cost least. In a commit, the size of blocks does not matter; and a function
        says itself how long a block takes it."""
        return self.guarantee in (Guarantee.DEDUPLICATING, Guarantee.TRANSACTIONAL)

    @property
    def finds_rows(self) -> bool:
        """The target tells which records it holds, so it can be compared with a ledger that is new, and a pending plan can be given up."""
        return self.guarantee is Guarantee.DEDUPLICATING

    @property
    def applies_changes(self) -> bool:
        """Rows go to a function, which may do with them whatever it likes: change rows, too."""
        return self.guarantee is Guarantee.WRAPPED

    @property
    def no_query(self) -> str:
        """Why a user's own query cannot be delivered to it, in one sentence. Empty: it can."""
        return f"{self} changes rows by a key, and a query only adds rows." if self.changes_rows else ""

    @property
    def no_replay(self) -> str:
        """Why a dead letter cannot land after newer records, in one sentence. Empty: it can."""
        return (
            f"{self} changes rows by a key, and a dead letter is older than what came after it: it could overwrite a newer change of its row."
            if self.changes_rows and not self.versioned
            else ""
        )

    @property
    def unreadable(self) -> str:
        """Why an audit cannot compare what the target holds with the topics, where it cannot."""
        return f"{self} offers no audit: landonce can write to its target and cannot read what it holds."

    def held(self, parts: Parts, state: LedgerState | None) -> HeldTables:
        """What the tables of a pipeline with this sink hold, for `landonce verify`. `state`: what the ledger says. Reads only."""
        del parts, state
        raise TableUnfit(
            self.unreadable,
            safe="An audit changes nothing.",
            command="compare the coordinates in the target with the topic yourself: every row has _topic, _partition and _offset",
        )

    def open_query_ledger(self, where: str | Path | None, name: str) -> Ledger:
        """The same for a user's own query of this name. `where`: the place that the user names; None where the sink keeps the position."""
        if where is None:
            raise ConfigError("ledger: say where the position is kept.")
        return open_ledger(where, name)

    def operations(self, parts: Parts, sessions: Sessions) -> Operations:
        """What an operator may decide about a pipeline with this sink."""
        from landonce.sinks.operations import Operations

        return Operations(parts, sessions)

    def checks(self, run: CheckRun) -> Sections:
        """What `landonce check` says of a pipeline with this sink, in the order in which a start would meet it. Reads only."""
        from landonce.sinks import checking

        return checking.ledger_and_position(run)


class DeduplicatingSink(Sink):
    """A target that takes blocks under tokens, refuses late ones, and can be looked into. Its ledger is outside."""

    def checks(self, run: CheckRun) -> Sections:
        from landonce.sinks import checking

        return checking.of_deduplicating(run, self)

    def operations(self, parts: Parts, sessions: Sessions) -> Operations:
        from landonce.sinks.operations import LookingOperations

        return LookingOperations(parts, sessions, self)

    def promise(self, config: Pipeline) -> Promise:
        from landonce.sinks.promise import of_deduplicating

        return of_deduplicating(config, keyed=self.changes_rows, ordered=self.ordered)

    table: str
    """What plans and tokens call the table; or all of them, where there are several."""
    deadline: float = 15.0
    evolve: bool = False
    """Tables get the columns that records need."""

    key: tuple[str, ...] = ()
    """The columns by which records change rows; empty where rows are only added."""
    changes: Changes | None = None
    """How records change rows. A worker gets them with the operation in the column `_op`."""
    ordered: bool = False
    """Whether rows take earlier ones away. Then the blocks of a partition land one after the other, and each lands whole: one that is there in
    part is never filled up."""

    @property
    def changes_rows(self) -> bool:
        return bool(self.key)

    @property
    def routing(self) -> Routing:
        """Which tables a record goes to."""
        return Routing(None, (Rule(self.table),))

    def one(self, table: str) -> DeduplicatingSink:
        """The sink of one of its tables."""
        del table
        return self

    def existing(self) -> tuple[str, ...]:
        """The tables that are there, of those that records may name and the file does not."""
        return ()

    def taking(self, columns: Schema, records: Schema | None) -> Schema:
        """The columns of a table, as records with these fields fill them. None: what the fields are, only records say."""
        del records
        return columns

    def can_change(self, columns: Schema, wanted: Evolution) -> Evolution:
        """As much of this as a table with these columns can be changed for. Decided alike wherever it is asked."""
        del columns, wanted
        return Evolution()

    def change(self, table: str, wanted: Evolution) -> None:
        """Changes the columns of one of its tables, in one step: adds, and widens. Never narrows, renames or drops. Harmless if it is done."""
        raise NotImplementedError(f"{self} does not change {table} for {wanted}")

    def open(self, run: Run) -> OpenDeduplicating:
        from landonce.sinks.deduplicating import OpenDeduplicating, OpenTables, several

        return OpenTables(self, run) if several(self) else OpenDeduplicating(self, run)

    def creation(self, columns: Schema) -> str:
        """The statement that makes the table, for people. Raises for columns that it cannot have."""
        return f"{self.table}: {', '.join(each.name for each in columns.fields)}"

    def make(self, target: Target, columns: Schema) -> None:
        """Makes the table."""
        target.create(columns)

    @abstractmethod
    def target(self) -> Target:
        """Opens it on the driver."""

    @abstractmethod
    def writer(self) -> BlockWriter:
        """Opens it on a worker."""
