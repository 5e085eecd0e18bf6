"""A ledger in the target database, with a row for each block of the pending plan.

Every change of the ledger changes the blocks' rows in the same transaction. A takeover writes its claim to all of them.
So it waits for open transactions of earlier workers, and none of their later transactions finds its row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, and_, delete, insert, inspect, select, update

from landonce.ledger.sql import SqlLedger
from landonce.ledger.tables import block_metadata, block_table
from landonce.protocol.block_rows import BlockRow, Claim, Mark, block_change, may_change
from landonce.protocol.ledger import LedgerState, Note, TableMark


class TargetLedger(SqlLedger):
    """Keeps one pipeline's state beside its table."""

    table: tuple[str, str] | None = None
    """The name and identity of the target table. The ledger keeps it from the first plan on."""
    _complete = False

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

        return self._patiently(make, safe="Nothing was changed.")

    def change(self, old: LedgerState, new: LedgerState, note: Note | None = None) -> LedgerState:
        if not self._complete:
            self._patiently(self._complete_tables, safe="Nothing was changed.")
            self._complete = True
        return super().change(old, self._bound_to_table(old, new), note)

    def _bound_to_table(self, old: LedgerState, new: LedgerState) -> LedgerState:
        if self.table is None or new.pending is None or old.pending is not None:
            return new
        name, identity = self.table
        if not identity:
            return new
        return replace(new, tables=((name, TableMark(identity, new.batch)),))

    def _complete_tables(self) -> None:
        """A ledger that was created for another sink in the same database has no table for blocks yet."""
        if not self.database.may_exist():
            return
        with self.database.reading() as connection:
            if not self.database.has_tables(connection) or inspect(connection).has_table(block_table.name):
                return
        with self.database.creating() as connection:
            self._create_beside(connection)

    def blocks(self, batch: int) -> tuple[BlockRow, ...]:
        """The rows of a pending batch."""

        def read() -> tuple[BlockRow, ...]:
            with self.database.reading() as connection:
                return self._blocks(connection, batch)

        return self._patiently(read, safe="Nothing was changed.")

    def _blocks(self, connection: Connection, batch: int, *, waiting: bool = False) -> tuple[BlockRow, ...]:
        """`waiting`: wait for open transactions that have changed one of them, and see their result."""
        wanted = select(block_table).where(self._mine(), block_table.c.batch == batch)
        found = connection.execute(self.database.locking(wanted) if waiting else wanted)
        return tuple(sorted((block_row(each) for each in found), key=lambda each: each.number))

    def _create_beside(self, connection: Connection) -> None:
        block_metadata.create_all(connection)

    def _change_beside(self, connection: Connection, old: LedgerState, new: LedgerState) -> None:
        diff = block_change(old, new)
        if diff.claim is not None:
            self.database.end_writers(connection, self.pipeline)
            claim = {"epoch": diff.claim.epoch, "owner": diff.claim.owner}
            connection.execute(update(block_table).where(self._mine()).values(claim))
        if diff.removed is not None and old.epoch != new.epoch:
            self.database.end_writers(connection, self.pipeline)
        if old.pending is not None and old.pending != new.pending:
            may_change(old, new, self._blocks(connection, old.pending.batch, waiting=True))
        if diff.removed is not None:
            connection.execute(delete(block_table).where(and_(self._mine(), block_table.c.batch == diff.removed)))
        if diff.added and new.pending is not None:
            connection.execute(
                insert(block_table), [new_row(self.pipeline, new.pending.batch, each, new) for each in diff.added]
            )

    def _mine(self) -> Any:
        return block_table.c.pipeline == self.pipeline


def new_row(pipeline: str, batch: int, number: int, state: LedgerState) -> dict[str, Any]:
    """The row of a block that nobody has written yet."""
    return {
        "pipeline": pipeline,
        "batch": batch,
        "number": number,
        "epoch": state.epoch,
        "owner": state.owner,
        "state": Mark.BEFORE.value,
        "receipt": None,
    }


def block_row(row: Any) -> BlockRow:
    return BlockRow(row.number, Claim(row.epoch, row.owner), Mark(row.state), row.receipt)
