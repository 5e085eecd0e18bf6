"""Where the cases of a snapshot sink run, and how they drive it: as landonce's own driver does, through `TableLedger`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa

from landonce.protocol.blocks import Block, Plan
from landonce.protocol.ledger import LedgerState, Totals, bound, prepared, recorded, taken
from landonce.protocol.ranges import Partition, Range
from landonce.sinks.snapshot import Origin, SnapshotSink, TableLedger
from landonce.testing.case import overrides
from landonce.testing.crashing import SOME_MOMENTS
from landonce.testing.sink_sites import PIPELINE, SCHEMA, TOPIC, Row, as_rows, rows

BATCH_ROWS = 4
FIRST = Partition(TOPIC, 0)


class SnapshotSite(ABC):
    """A table of its own for one case, which does not exist yet, and what is declared of it.

    A method that the site does not implement (`write_aside`, `roll_back`, `expire`, `replace`) excuses the cases that need it, and pytest says so.
    """

    secret = ""
    """A part of the sink's description that must not appear in a log: a password."""
    moments = SOME_MOMENTS
    """At how many lines, at most, a crash is tried."""
    forks = True
    """The sink's libraries survive a fork. If they do not (threads of Rust or Java), each case runs in a process of its own."""

    @abstractmethod
    def sink(self, pipeline: str) -> SnapshotSink[Any, Any]:
        """The sink, as a pipeline of this name opens it. Always of the same table."""

    @abstractmethod
    def held(self) -> list[Row]:
        """All that a reader of the table sees, in any order, read without the sink."""

    def write_aside(self, table: pa.Table) -> None:
        """Another program adds rows, in a commit of its own."""
        raise NotImplementedError

    def roll_back(self, commits: int) -> None:
        """An operator sets the table back by so many commits."""
        raise NotImplementedError

    def expire(self) -> None:
        """The table's upkeep removes all of the history that it ever may. What the table holds stays."""
        raise NotImplementedError

    def replace(self) -> None:
        """Drops the table. Another one of the same name and columns is made."""
        raise NotImplementedError


OTHERS = overrides(SnapshotSite, "write_aside", "the site has no other writer")
ROLLS = overrides(SnapshotSite, "roll_back", "the site has no way to roll the table back")
EXPIRES = overrides(SnapshotSite, "expire", "the site has no way to let the history expire")
REPLACES = overrides(SnapshotSite, "replace", "the site has no way to replace the table")


def opened(site: SnapshotSite) -> SnapshotSink[Any, Any]:
    return site.sink(PIPELINE)


def made(site: SnapshotSite) -> SnapshotSink[Any, Any]:
    """The sink, with its table."""
    sink = opened(site)
    sink.open_table().create(SCHEMA)
    return sink


def ledger_of(sink: SnapshotSink[Any, Any], pipeline: str = PIPELINE) -> TableLedger:
    return TableLedger(sink.open_table(), pipeline)


def state_of(site: SnapshotSite, pipeline: str = PIPELINE) -> LedgerState | None:
    """What a driver that starts now finds."""
    return ledger_of(site.sink(pipeline), pipeline).load()


def taken_by(sink: SnapshotSink[Any, Any], owner: str, pipeline: str = PIPELINE) -> tuple[TableLedger, LedgerState]:
    """A driver starts: it takes the table, and binds the pipeline to a topic if nobody did before."""
    ledger = ledger_of(sink, pipeline)
    state = ledger.create(LedgerState(pipeline, f"lineage of {pipeline}"))
    state = ledger.change(state, taken(state, owner))
    if state.fresh:
        state = ledger.change(state, bound(state, "cluster", {TOPIC: "id"}, {FIRST: 0}))
    return ledger, state


def position(state: LedgerState | None) -> int:
    return state.committed().get(FIRST, 0) if state is not None else 0


def batch_of(state: LedgerState) -> pa.Table:
    """The rows of the next batch."""
    return rows(*range(position(state), position(state) + BATCH_ROWS))


def stage(sink: SnapshotSink[Any, Any], state: LedgerState, table: pa.Table, block: int = 0) -> tuple[Any, ...]:
    """As a worker does."""
    files, count = sink.stage(table, Origin(state.pipeline, state.epoch, state.batch + 1, block))
    assert count == table.num_rows, f"of {table.num_rows} rows {count} were staged"
    return files


def plan(ledger: TableLedger, state: LedgerState) -> tuple[LedgerState, LedgerState]:
    """The states before and after the next batch."""
    at = position(state)
    block = Block((Range(FIRST, at, at + BATCH_ROWS),), "events")
    before = ledger.change(state, prepared(state, Plan(state.batch + 1, (block,), "fingerprint", 0)))
    return before, recorded(before, Totals(landed=BATCH_ROWS))


def land(sink: SnapshotSink[Any, Any], ledger: TableLedger, state: LedgerState) -> LedgerState:
    """The next batch, from its files to its commit."""
    files = stage(sink, state, batch_of(state))
    before, after = plan(ledger, state)
    ledger.commit(before, after, files, tops=((FIRST, position(after) - 1),))
    return after


def begun(
    site: SnapshotSite, batches: int = 0, owner: str = "first"
) -> tuple[SnapshotSink[Any, Any], TableLedger, LedgerState]:
    """The table exists, and a driver has taken it and landed so many batches."""
    sink = made(site)
    ledger, state = taken_by(sink, owner)
    for _ in range(batches):
        state = land(sink, ledger, state)
    return sink, ledger, state


def below(offset: int) -> list[Row]:
    """What the table holds if the position is at this offset."""
    return as_rows(rows(*range(offset)))
