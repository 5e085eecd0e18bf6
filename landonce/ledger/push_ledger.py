"""A ledger with a row for each block of a wrapped sink, for the driver and its workers.

Every change of the ledger changes the blocks' rows in the same transaction. A worker's change is one compare-and-set
statement. If it has no answer, it is sent again: the attempt's nonce in the row says whether the first one succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, and_, delete, insert, literal_column, select, update

from landonce.errors import NothingToDo
from landonce.ledger.open import database_of
from landonce.ledger.sql import SqlLedger
from landonce.ledger.tables import push_metadata, push_table
from landonce.protocol.block_rows import (
    Claim,
    Condition,
    Mark,
    PushRow,
    PushRows,
    Spot,
    block_change,
    claimable,
    claims_may_change,
    mine,
    reclaimable,
)
from landonce.protocol.ledger import LedgerState, Note

_CLOCKS: Mapping[str, str] = {
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)",
}
"""Milliseconds. SQLite uses the clock of its machine."""
_SAFE = "Nothing was changed."
_IN_DOUBT = "It is not known whether the block's row changed; the next attempt reads it."


@dataclass(frozen=True)
class PushPlace:
    """The address of a pipeline's rows, for workers: picklable, and its repr hides the password."""

    where: str | Path = field(repr=False)
    pipeline: str

    def open(self) -> PushLedger:
        """Does not connect yet."""
        return PushLedger(database_of(self.where), self.pipeline)


@dataclass(frozen=True)
class Verdict:
    """What a person found out about an attempt."""

    spot: Spot
    nonce: str
    landed: bool


class PushLedger(SqlLedger):
    """Keeps one pipeline's state, and the state of each block of its pending plan."""

    _verdict: Verdict | None = None
    _made = False

    # For the driver.

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        """Like every ledger. A ledger that was created for another kind of sink first gets the table of blocks."""
        if not self._made:
            self._patiently(self._make_rows, safe=_SAFE)
        return super().change(old, new, note)

    def _make_rows(self) -> None:
        if self.database.may_exist():
            with self.database.creating() as connection:
                if self.database.has_tables(connection):
                    push_metadata.create_all(connection)
        self._made = True

    def standing(self, batch: int) -> PushRows:
        """The rows of a pending batch, and the ledger's clock."""

        def read() -> PushRows:
            with self.database.reading() as connection:
                return PushRows(self._rows(connection, batch), _now(connection))

        return self._patiently(read, safe=_SAFE)

    def decide(self, old: LedgerState, new: LedgerState, note: Note, verdict: Verdict) -> LedgerState:
        """Like `change`, and records a person's decision on one attempt."""
        self._verdict = verdict
        try:
            return self.change(old, new, note)
        finally:
            self._verdict = None

    def _create_beside(self, connection: Connection) -> None:
        push_metadata.create_all(connection)

    def _change_beside(self, connection: Connection, old: LedgerState, new: LedgerState) -> None:
        if old.pending is not None:
            claims_may_change(old, new, self._rows(connection, old.pending.batch, waiting=True))
        diff = block_change(old, new)
        if diff.claim is not None:
            claim = {"epoch": diff.claim.epoch, "owner": diff.claim.owner}
            connection.execute(update(push_table).where(self._mine()).values(claim))
        if diff.removed is not None:
            connection.execute(delete(push_table).where(and_(self._mine(), push_table.c.batch == diff.removed)))
        if diff.added and new.pending is not None:
            rows = [_new_row(self.pipeline, Spot(new.pending.batch, each), new) for each in diff.added]
            connection.execute(insert(push_table), rows)
        if self._verdict is not None:
            self._pronounce(connection, self._verdict)

    def _pronounce(self, connection: Connection, verdict: Verdict) -> None:
        values = _after(None) if verdict.landed else _before()
        if not self._set(connection, verdict.spot, mine(verdict.nonce), values):
            raise NothingToDo(
                "the outcome of the block is known: the attempt was settled in the meantime.",
                safe=_SAFE,
                command="landonce run {file}",
            )

    # For workers.

    def row(self, spot: Spot) -> PushRows:
        """The block's row, if there is one, and the ledger's clock."""

        def read() -> PushRows:
            with self.database.reading() as connection:
                found = self._row(connection, spot)
                return PushRows(() if found is None else (found,), _now(connection))

        return self._patiently(read, safe=_SAFE)

    def claim(self, spot: Spot, claim: Claim, nonce: str, *, harmless: bool, wait: int = 0) -> PushRow | None:
        """The row with the claimed attempt, or None if the claim is refused. `wait`: how long it can take effect."""
        return self._claimed(spot, claimable(claim, harmless=harmless), nonce, wait)

    def reclaim(self, spot: Spot, claim: Claim, nonce: str, seen: str, *, wait: int = 0) -> PushRow | None:
        """Like `claim`, in place of an attempt that can no longer take effect and did not arrive."""
        return self._claimed(spot, reclaimable(claim, seen), nonce, wait)

    def settle(self, spot: Spot, nonce: str, receipt: str) -> bool:
        """The attempt's block landed. False if this is no longer the last attempt."""

        def held(row: PushRow | None) -> bool:
            return row is not None and row.mark is Mark.AFTER and row.nonce == nonce

        return self._changed(spot, mine(nonce), _after(receipt), held)

    def found(self, spot: Spot, claim: Claim, seen: str, receipt: str) -> bool:
        """The target has the block of an attempt that can no longer take effect."""
        return self._changed(spot, reclaimable(claim, seen), _after(receipt))

    def skip(self, spot: Spot, claim: Claim, receipt: str) -> bool:
        """A block without rows is done."""
        return self._changed(spot, claimable(claim, harmless=True), _after(receipt))

    def release(self, spot: Spot, nonce: str) -> bool:
        """Certainly nothing of the attempt arrived: the block can be claimed again."""
        return self._changed(spot, mine(nonce), _before())

    def _claimed(self, spot: Spot, where: Condition, nonce: str, wait: int) -> PushRow | None:
        values = {"state": Mark.CLAIMED.value, "nonce": nonce, "attempt": push_table.c.attempt + 1, "wait": wait}

        def swap() -> PushRow | None:
            with self.database.writing() as connection:
                self._set(connection, spot, where, {**values, "claimed_at": _clock(connection)})
                row = self._row(connection, spot)
            return row if row is not None and row.mark is Mark.CLAIMED and row.nonce == nonce else None

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

    # Rows.

    def _set(self, connection: Connection, spot: Spot, where: Condition, values: Mapping[str, Any]) -> bool:
        wanted = [push_table.c[name].in_(allowed) for name, allowed in where.items()]
        return connection.execute(update(push_table).where(self._at(spot), *wanted).values(values)).rowcount == 1

    def _row(self, connection: Connection, spot: Spot) -> PushRow | None:
        found = connection.execute(select(push_table).where(self._at(spot))).one_or_none()
        return None if found is None else _push_row(found)

    def _rows(self, connection: Connection, batch: int, *, waiting: bool = False) -> tuple[PushRow, ...]:
        """`waiting`: wait for claims under way, to see them; no claim succeeds until this transaction ends."""
        wanted = select(push_table).where(self._mine(), push_table.c.batch == batch)
        found = connection.execute(self.database.locking(wanted) if waiting else wanted)
        return tuple(sorted((_push_row(each) for each in found), key=lambda each: each.number))

    def _at(self, spot: Spot) -> Any:
        return and_(self._mine(), push_table.c.batch == spot.batch, push_table.c.number == spot.number)

    def _mine(self) -> Any:
        return push_table.c.pipeline == self.pipeline


def _clock(connection: Connection) -> Any:
    return literal_column(_CLOCKS[connection.dialect.name])


def _now(connection: Connection) -> int:
    return int(connection.execute(select(_clock(connection))).scalar_one())


def _after(receipt: str | None) -> dict[str, Any]:
    return {"state": Mark.AFTER.value, "receipt": receipt}


def _before() -> dict[str, Any]:
    return {"state": Mark.BEFORE.value, "nonce": ""}


def _new_row(pipeline: str, spot: Spot, state: LedgerState) -> dict[str, Any]:
    """The row of a block that nobody has pushed yet."""
    return {
        "pipeline": pipeline,
        "batch": spot.batch,
        "number": spot.number,
        "epoch": state.epoch,
        "owner": state.owner,
        "state": Mark.BEFORE.value,
        "attempt": 0,
        "nonce": "",
        "claimed_at": 0,
        "wait": 0,
        "receipt": None,
    }


def _push_row(row: Any) -> PushRow:
    claim = Claim(row.epoch, row.owner)
    return PushRow(row.number, claim, Mark(row.state), row.attempt, row.nonce, row.claimed_at, row.receipt, row.wait)
