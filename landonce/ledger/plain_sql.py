"""A ledger in the target database itself, in plain SQL: for a database that SQLAlchemy need not know.

A subclass says how a transaction is made; everything else is here: the tables, the compare-and-set, and a row for each block of the
pending plan, which the block's own transaction flips (`flip_block`). Statements have `?` for parameters.

    landonce_pipelines   pipeline, state             one line of JSON, swapped as a whole
    landonce_journal     pipeline, seq, moment, action, detail
    landonce_blocks      pipeline, batch, number, epoch, owner, state, receipt
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from landonce.errors import Fenced
from landonce.ledger.as_text import state_from_text, state_to_text
from landonce.protocol.block_rows import BlockRow, BlockState, Claim, block_change, may_change
from landonce.protocol.ledger import (
    Ledger,
    LedgerState,
    Note,
    TableMark,
    check_change,
    check_order,
    fenced,
    key,
    settled_change,
)

Execute = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]
"""Runs one statement with its parameters, and returns the rows that it gives."""

TABLES = (
    "CREATE TABLE IF NOT EXISTS landonce_pipelines (pipeline VARCHAR NOT NULL PRIMARY KEY, state VARCHAR NOT NULL)",
    "CREATE TABLE IF NOT EXISTS landonce_journal (pipeline VARCHAR NOT NULL, seq BIGINT NOT NULL, moment VARCHAR NOT NULL, "
    "action VARCHAR NOT NULL, detail VARCHAR NOT NULL)",
    "CREATE TABLE IF NOT EXISTS landonce_blocks (pipeline VARCHAR NOT NULL, batch BIGINT NOT NULL, number BIGINT NOT NULL, "
    "epoch BIGINT NOT NULL, owner VARCHAR NOT NULL, state VARCHAR NOT NULL, receipt VARCHAR)",
)
_BLOCK = "FROM landonce_blocks WHERE pipeline = ? AND batch = ?"
_COLUMNS = "number, epoch, owner, state, receipt"


@dataclass(frozen=True)
class BlockKey:
    """Which row of a ledger is a block's."""

    pipeline: str
    batch: int
    number: int


def read_block(execute: Execute, block: BlockKey) -> BlockRow | None:
    """The block's row, in an open transaction."""
    found = execute(f"SELECT {_COLUMNS} {_BLOCK} AND number = ?", (block.pipeline, block.batch, block.number))
    return _block_row(found[0]) if found else None


def flip_block(execute: Execute, block: BlockKey, claim: Claim, receipt: str) -> bool:
    """Begins a block: its row says AFTER if the transaction holds. False if it is not claimed so, or was flipped before."""
    row = read_block(execute, block)
    if row is None or row.claim != claim or row.mark is not BlockState.BEFORE:
        return False
    values = (BlockState.AFTER.value, receipt, block.pipeline, block.batch, block.number)
    execute("UPDATE landonce_blocks SET state = ?, receipt = ? WHERE pipeline = ? AND batch = ? AND number = ?", values)
    return True


class PlainSqlLedger(Ledger):
    """Keeps one pipeline's state beside its table, and a row for each block of the pending plan."""

    table: tuple[str, str] | None = None
    """The name and identity of the target table. The ledger keeps it from the first plan on."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self._doubt: LedgerState | None = None
        """What a change without an answer may have written. It outlives the call, so the caller may call again."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[Execute]:
        """One transaction beside which no other one writes: it waits for them, those of workers included. It commits at the end, and
        rolls back on an error. Raises `LedgerUnavailable` for what may pass."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Execute | None]:
        """One moment of the database. None where there is no database yet, or none of the ledger's tables in it."""

    def make_tables(self) -> bool:
        """Makes the ledger's tables. False if they exist."""
        with self.reading() as execute:
            if execute is not None:
                return False
        with self.writing() as execute:
            _make(execute)
        return True

    def load(self) -> LedgerState | None:
        with self.reading() as execute:
            return None if execute is None else self._state(execute)

    def create(self, state: LedgerState) -> LedgerState:
        if state.pipeline != self.pipeline:
            raise ValueError(f"this ledger keeps {self.pipeline!r}, not {state.pipeline!r}")
        check_order(state)
        with self.writing() as execute:
            _make(execute)
            seen = self._state(execute)
            if seen is None:
                execute("INSERT INTO landonce_pipelines VALUES (?, ?)", (self.pipeline, state_to_text(state)))
        return seen or state

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        check_change(self.pipeline, old, new)
        name, identity = self.table or ("", "")
        if identity and new.pending is not None and old.pending is None:
            new = replace(new, tables=((name, TableMark(identity, new.batch)),))
        in_doubt, self._doubt = self._doubt == new, new
        try:
            with self.writing() as execute:
                _make(execute)
                seen = self._state(execute)
                if not (in_doubt and settled_change(old, new, seen)):
                    if seen is None or key(seen) != key(old):
                        raise fenced(old, seen)
                    self._swap(execute, old, new, note)
        except Fenced:
            self._doubt = None
            raise
        self._doubt = None
        return new

    def _swap(self, execute: Execute, old: LedgerState, new: LedgerState, note: Note | None) -> None:
        mine = self.pipeline
        execute("UPDATE landonce_pipelines SET state = ? WHERE pipeline = ?", (state_to_text(new), mine))
        diff = block_change(old, new)
        if old.pending is not None and old.pending != new.pending:
            may_change(old, new, self._blocks(execute, old.pending.batch))
        if diff.claim is not None:
            claimed = (diff.claim.epoch, diff.claim.owner, mine)
            execute("UPDATE landonce_blocks SET epoch = ?, owner = ? WHERE pipeline = ?", claimed)
        if diff.removed is not None:
            execute("DELETE FROM landonce_blocks WHERE pipeline = ? AND batch = ?", (mine, diff.removed))
        for number in diff.added if new.pending is not None else ():
            row = (mine, new.pending.batch, number, new.epoch, new.owner, BlockState.BEFORE.value, None)  # type: ignore[union-attr]
            execute("INSERT INTO landonce_blocks VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        if note is not None:
            ((last,),) = execute("SELECT coalesce(max(seq), 0) FROM landonce_journal WHERE pipeline = ?", (mine,))
            noted = (mine, last + 1, note.at, note.action, note.detail)
            execute("INSERT INTO landonce_journal VALUES (?, ?, ?, ?, ?)", noted)

    def journal(self) -> tuple[Note, ...]:
        with self.reading() as execute:
            if execute is None:
                return ()
            asked = "SELECT moment, action, detail FROM landonce_journal WHERE pipeline = ? ORDER BY seq"
            return tuple(Note(*each) for each in execute(asked, (self.pipeline,)))

    def blocks(self, batch: int) -> tuple[BlockRow, ...]:
        """The rows of a pending batch."""
        with self.reading() as execute:
            return () if execute is None else self._blocks(execute, batch)

    def close(self) -> None:
        """Nothing is open between two calls, unless a subclass keeps it so."""

    def _state(self, execute: Execute) -> LedgerState | None:
        found = execute("SELECT state FROM landonce_pipelines WHERE pipeline = ?", (self.pipeline,))
        return state_from_text(found[0][0]) if found else None

    def _blocks(self, execute: Execute, batch: int) -> tuple[BlockRow, ...]:
        found = execute(f"SELECT {_COLUMNS} {_BLOCK} ORDER BY number", (self.pipeline, batch))
        return tuple(map(_block_row, found))


def _make(execute: Execute) -> None:
    for each in TABLES:
        execute(each, ())


def _block_row(row: tuple[Any, ...]) -> BlockRow:
    number, epoch, owner, state, receipt = row
    return BlockRow(number, Claim(epoch, owner), BlockState(state), receipt)
