"""Ledgers with a row for each block of the pending plan.

Every change of the ledger changes the blocks' rows in the same transaction.

    TargetLedger   for transactional sinks, in the target database. A worker marks its block in the transaction that
                   writes the block's records. A takeover writes its claim to all rows: so it waits for open
                   transactions of earlier workers, and none of their later transactions finds its row
    PushLedger     for wrapped sinks, whose target has no transaction with the ledger. A worker's change of a row is one
                   compare-and-set statement. If it has no answer, it is sent again: the attempt's nonce in the row
                   says whether the first one succeeded
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from sqlalchemy import Connection, Table, and_, delete, insert, inspect, literal_column, select, update

from landonce.errors import NothingToDo
from landonce.ledger.claims import AttemptDecision, ClaimLedger, ClaimPlace
from landonce.ledger.database import SqliteDatabase
from landonce.ledger.open import database_of
from landonce.ledger.sql import SqlLedger
from landonce.ledger.tables import block_table, push_table
from landonce.protocol import block_rows
from landonce.protocol.block_rows import (
    BlockRow,
    BlockState,
    Claim,
    Condition,
    PushRow,
    PushRows,
    Spot,
    block_change,
    claimable,
    mine,
    reclaimable,
)
from landonce.protocol.ledger import LedgerState, Note, TableMark

RowT = TypeVar("RowT", BlockRow, PushRow)
SeenT = TypeVar("SeenT")

_CLOCKS: Mapping[str, str] = {
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)",
}
"""Milliseconds. SQLite uses the clock of its machine."""
_SAFE = "Nothing was changed."
_IN_DOUBT = "It is not known whether the block's row changed; the next attempt reads it."


class BlockLedger(SqlLedger, Generic[RowT]):
    """Keeps one pipeline's state, and the state of each block of its pending plan."""

    block_rows: ClassVar[Table]
    new_row: ClassVar[Mapping[str, Any]] = {"state": BlockState.BEFORE.value, "receipt": None}
    """The columns of a block that nobody has written yet, besides its key and its claim."""
    _complete = False

    @abstractmethod
    def _row_of(self, row: Any) -> RowT: ...

    @abstractmethod
    def _check_blocks(self, connection: Connection, old: LedgerState, new: LedgerState) -> None:
        """Raises if the change would forget a block, or record one that did not land."""

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        if not self._complete:
            self._patiently(self._complete_tables, safe=_SAFE)
            self._complete = True
        return super().change(old, new, note)

    def _complete_tables(self) -> None:
        """A ledger that was created for another kind of sink has no table for blocks yet."""
        if not self.database.may_exist():
            return
        with self.database.reading() as connection:
            if not self.database.has_tables(connection) or inspect(connection).has_table(self.block_rows.name):
                return
        with self.database.creating() as connection:
            self._create_beside(connection)

    def _create_beside(self, connection: Connection) -> None:
        self.block_rows.metadata.create_all(connection)

    def _change_beside(self, connection: Connection, old: LedgerState, new: LedgerState) -> None:
        table, diff = self.block_rows, block_change(old, new)
        if diff.claim is not None:
            claim = {"epoch": diff.claim.epoch, "owner": diff.claim.owner}
            connection.execute(update(table).where(self._mine()).values(claim))
        self._check_blocks(connection, old, new)
        if diff.removed is not None:
            connection.execute(delete(table).where(and_(self._mine(), table.c.batch == diff.removed)))
        if diff.added and new.pending is not None:
            key = {"pipeline": self.pipeline, "batch": new.pending.batch, "epoch": new.epoch, "owner": new.owner}
            connection.execute(insert(table), [{**key, "number": each, **self.new_row} for each in diff.added])

    def _rows(self, connection: Connection, batch: int, *, waiting: bool = False) -> tuple[RowT, ...]:
        """`waiting`: wait for open transactions that have changed one of the rows, see their result, and hold the rows
        until this transaction ends."""
        wanted = select(self.block_rows).where(self._mine(), self.block_rows.c.batch == batch)
        found = connection.execute(self.database.locking(wanted) if waiting else wanted)
        return tuple(sorted((self._row_of(each) for each in found), key=lambda each: each.number))

    def _mine(self) -> Any:
        return self.block_rows.c.pipeline == self.pipeline

    def _seen(self, look: Callable[[Connection], SeenT]) -> SeenT:
        """What one look shows."""

        def read() -> SeenT:
            with self.database.reading() as connection:
                return look(connection)

        return self._patiently(read, safe=_SAFE)


class TargetLedger(BlockLedger[BlockRow]):
    """Keeps one pipeline's state beside its table."""

    block_rows = block_table
    table: tuple[str, str] | None = None
    """The name and identity of the target table. The ledger keeps it from the first plan on."""

    def make_tables(self) -> bool:
        """Creates the ledger's tables. False if they exist.

        In SQLite this changes the schema version of the target's file, so do it before you read that version.
        """

        def make() -> bool:
            with self.database.reading() as connection:
                if self.database.has_tables(connection) and inspect(connection).has_table(block_table.name):
                    return False
            with self.database.creating() as connection:
                self._make_tables(connection)
            return True

        return self._patiently(make, safe=_SAFE)

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        name, identity = self.table or ("", "")
        if identity and new.pending is not None and old.pending is None:
            new = replace(new, tables=((name, TableMark(identity, new.batch)),))
        return super().change(old, new, note)

    def blocks(self, batch: int) -> tuple[BlockRow, ...]:
        """The rows of a pending batch."""
        return self._seen(lambda connection: self._rows(connection, batch))

    def _row_of(self, row: Any) -> BlockRow:
        return block_row(row)

    def _change_beside(self, connection: Connection, old: LedgerState, new: LedgerState) -> None:
        diff = block_change(old, new)
        if diff.claim is not None or (diff.removed is not None and old.epoch != new.epoch):
            self.database.end_writers(connection, self.pipeline)
        super()._change_beside(connection, old, new)

    def _check_blocks(self, connection: Connection, old: LedgerState, new: LedgerState) -> None:
        if old.pending is not None and old.pending != new.pending:
            block_rows.may_change(old, new, self._rows(connection, old.pending.batch, waiting=True))


def block_row(row: Any) -> BlockRow:
    return BlockRow(row.number, Claim(row.epoch, row.owner), BlockState(row.state), row.receipt)


@dataclass(frozen=True)
class PushPlace(ClaimPlace):
    """The address of a pipeline's rows, for workers: picklable, and its repr hides the password."""

    where: str | Path = field(repr=False)
    pipeline: str

    def open(self) -> PushLedger:
        """Does not connect yet."""
        database = database_of(self.where)
        ledger = PushLedger(database, self.pipeline)
        ledger.address = replace(self, where=database.path) if isinstance(database, SqliteDatabase) else self
        return ledger

    @property
    def file(self) -> Path | None:
        return self.where if isinstance(self.where, Path) else None


class PushLedger(BlockLedger[PushRow], ClaimLedger):
    """Keeps one pipeline's state outside its target. The driver and its workers use it."""

    address: PushPlace
    """Where workers open the same ledger, whatever folder they run in."""
    block_rows = push_table
    new_row: ClassVar[Mapping[str, Any]] = {
        **BlockLedger.new_row,
        "attempt": 0,
        "nonce": "",
        "claimed_at": 0,
        "wait": 0,
    }
    _decision: AttemptDecision | None = None

    # For the driver.

    def status(self, batch: int) -> PushRows:
        return self._seen(lambda connection: PushRows(self._rows(connection, batch), _now(connection)))

    def decide(self, old: LedgerState, new: LedgerState, note: Note, decision: AttemptDecision) -> LedgerState:
        self._decision = decision
        try:
            return self.change(old, new, note)
        finally:
            self._decision = None

    def _row_of(self, row: Any) -> PushRow:
        claim = Claim(row.epoch, row.owner)
        return PushRow(
            row.number, claim, BlockState(row.state), row.attempt, row.nonce, row.claimed_at, row.receipt, row.wait
        )

    def _check_blocks(self, connection: Connection, old: LedgerState, new: LedgerState) -> None:
        if old.pending is not None:
            block_rows.claims_may_change(old, new, self._rows(connection, old.pending.batch, waiting=True))

    def _change_beside(self, connection: Connection, old: LedgerState, new: LedgerState) -> None:
        super()._change_beside(connection, old, new)
        if (decision := self._decision) is None:
            return
        values = _landed(None) if decision.landed else _NOT_LANDED
        if not self._set(connection, decision.spot, mine(decision.nonce), values):
            raise NothingToDo(
                "the outcome of the block is known: the attempt was settled in the meantime.",
                safe=_SAFE,
                command="landonce run {file}",
            )

    # For workers.

    def row(self, spot: Spot) -> PushRows:
        def look(connection: Connection) -> PushRows:
            found = self._row(connection, spot)
            return PushRows(() if found is None else (found,), _now(connection))

        return self._seen(look)

    def claim(self, spot: Spot, claim: Claim, nonce: str, *, harmless: bool, wait: int = 0) -> PushRow | None:
        return self._claimed(spot, claimable(claim, harmless=harmless), nonce, wait)

    def reclaim(self, spot: Spot, claim: Claim, nonce: str, seen: str, *, wait: int = 0) -> PushRow | None:
        return self._claimed(spot, reclaimable(claim, seen), nonce, wait)

    def settle(self, spot: Spot, nonce: str, receipt: str) -> bool:
        def held(row: PushRow | None) -> bool:
            return row is not None and row.mark is BlockState.AFTER and row.nonce == nonce

        return self._changed(spot, mine(nonce), _landed(receipt), held)

    def found(self, spot: Spot, claim: Claim, seen: str, receipt: str) -> bool:
        return self._changed(spot, reclaimable(claim, seen), _landed(receipt))

    def skip(self, spot: Spot, claim: Claim, receipt: str) -> bool:
        return self._changed(spot, claimable(claim, harmless=True), _landed(receipt))

    def release(self, spot: Spot, nonce: str) -> bool:
        return self._changed(spot, mine(nonce), _NOT_LANDED)

    def _claimed(self, spot: Spot, where: Condition, nonce: str, wait: int) -> PushRow | None:
        values = {"state": BlockState.CLAIMED.value, "nonce": nonce, "attempt": push_table.c.attempt + 1, "wait": wait}

        def swap() -> PushRow | None:
            with self.database.writing() as connection:
                self._set(connection, spot, where, {**values, "claimed_at": _clock(connection)})
                row = self._row(connection, spot)
            return row if row is not None and row.mark is BlockState.CLAIMED and row.nonce == nonce else None

        return self._patiently(swap, safe=_IN_DOUBT)

    def _changed(
        self,
        spot: Spot,
        where: Condition,
        values: Mapping[str, Any],
        held: Callable[[PushRow | None], bool] = lambda _: False,
    ) -> bool:
        """`held`: the row as it is if an earlier try of the same change succeeded without an answer."""

        def swap() -> bool:
            with self.database.writing() as connection:
                return self._set(connection, spot, where, values) or held(self._row(connection, spot))

        return self._patiently(swap, safe=_IN_DOUBT)

    def _set(self, connection: Connection, spot: Spot, where: Condition, values: Mapping[str, Any]) -> bool:
        wanted = [push_table.c[name].in_(allowed) for name, allowed in where.items()]
        return connection.execute(update(push_table).where(self._at(spot), *wanted).values(values)).rowcount == 1

    def _row(self, connection: Connection, spot: Spot) -> PushRow | None:
        found = connection.execute(select(push_table).where(self._at(spot))).one_or_none()
        return None if found is None else self._row_of(found)

    def _at(self, spot: Spot) -> Any:
        return and_(self._mine(), push_table.c.batch == spot.batch, push_table.c.number == spot.number)


_NOT_LANDED: Mapping[str, Any] = {"state": BlockState.BEFORE.value, "nonce": ""}


def _landed(receipt: str | None) -> dict[str, Any]:
    return {"state": BlockState.AFTER.value, "receipt": receipt}


def _clock(connection: Connection) -> Any:
    return literal_column(_CLOCKS[connection.dialect.name])


def _now(connection: Connection) -> int:
    return int(connection.execute(select(_clock(connection))).scalar_one())
