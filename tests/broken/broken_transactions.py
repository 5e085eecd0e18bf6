"""A broken writer or ledger for every case of a transaction: SQLite's own with one promise less. For tests of the kit only."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from sqlalchemy import Connection, delete

from landonce.ledger.block_ledgers import TargetLedger
from landonce.ledger.plain_sql import BlockKey
from landonce.ledger.tables import block_table
from landonce.protocol.block_rows import BlockRow, Claim
from landonce.protocol.ledger import LedgerState
from landonce.protocol.ranges import Range
from landonce.sinks.sql.sink import SqlSink, open_database
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.sql.writer import open_writer
from landonce.sinks.transactional import BlockTransaction
from landonce.testing.cases_transactions import BATCH, PIPELINE, TransactionSite
from landonce.testing.sink_sites import SCHEMA, Row


class Delegating(BlockTransaction):
    """Does what SQLite's own writer does."""

    def __init__(self, inner: BlockTransaction, path: Path, number: int) -> None:
        self.inner = inner
        self.path = path
        self.number = number

    def flip(self, claim: Claim, receipt: str) -> bool:
        return self.inner.flip(claim, receipt)

    def read(self) -> BlockRow | None:
        return self.inner.read()

    def write(self, rows: pa.Table) -> None:
        self.inner.write(rows)

    def commit(self) -> None:
        self.inner.commit()

    def close(self) -> None:
        self.inner.close()

    def aside(self, statement: str, *values: object) -> None:
        """Over a connection of its own."""
        with closing(sqlite3.connect(self.path, timeout=60)) as connection, connection:
            connection.execute(statement, values)


class SqliteTransactions(TransactionSite):
    """A file of its own, read by plain SQL."""

    def __init__(
        self,
        folder: Path,
        writes: type[Delegating] = Delegating,
        keeps: type[TargetLedger] = TargetLedger,
        opens: type[SqlTable] = SqlTable,
    ) -> None:
        self._opens = opens
        self.path = folder / "target.db"
        self._sink = SqlSink(f"sqlite:///{self.path}", "events", PIPELINE)
        self._writes, self._keeps = writes, keeps
        table = SqlTable(self._sink)
        table.create(SCHEMA)
        table.close()
        if writes is not Delegating:
            with closing(sqlite3.connect(self.path)) as connection:  # which would name every copy by itself
                connection.execute("DROP INDEX events_coordinates")

    def ledger(self) -> TargetLedger:
        return self._keeps(open_database(self._sink.address), PIPELINE, attempts=3, backoff=0.05)

    def writer(self, number: int) -> BlockTransaction:
        return self._writes(open_writer(self._sink, BlockKey(PIPELINE, BATCH, number)), self.path, number)

    def table(self) -> SqlTable:
        return self._opens(self._sink)

    def held(self) -> list[Row]:
        with closing(sqlite3.connect(self.path, timeout=60)) as connection:
            return [Row(*row) for row in connection.execute("SELECT _topic, _partition, _offset, id, word FROM events")]


class Dropping(Delegating):
    def write(self, rows: pa.Table) -> None:
        self.inner.write(rows.slice(1))


class Tireless(Delegating):
    """Does not look whether the block is there."""

    def flip(self, claim: Claim, receipt: str) -> bool:
        self.aside("UPDATE landonce_block SET state = 'BEFORE'")
        return super().flip(claim, receipt)


class Receiptless(Delegating):
    def flip(self, claim: Claim, receipt: str) -> bool:
        del receipt
        return super().flip(claim, "{}")


class Idle(Delegating):
    """Commits only where there were rows."""

    wrote = False

    def write(self, rows: pa.Table) -> None:
        self.wrote = True
        super().write(rows)

    def commit(self) -> None:
        if self.wrote:
            super().commit()


class Ownerless(Delegating):
    """Does not look whose block it is."""

    def flip(self, claim: Claim, receipt: str) -> bool:
        self.aside("UPDATE landonce_block SET epoch = ?, owner = ?", claim.epoch, claim.owner)
        return super().flip(claim, receipt)


class Eager(Delegating):
    """Commits with the rows, and has nothing left to commit."""

    def write(self, rows: pa.Table) -> None:
        super().write(rows)
        super().commit()

    def commit(self) -> None:
        """Done."""


class Sweeping(Delegating):
    """Takes the whole batch for done with its own block."""

    def flip(self, claim: Claim, receipt: str) -> bool:
        self.aside("UPDATE landonce_block SET state = 'AFTER' WHERE number <> ?", self.number)
        return super().flip(claim, receipt)


class RowsFirst(Delegating):
    """Writes the rows in a transaction of their own, and flips the block's row in the next one."""

    wanted: tuple[Claim, str] | None = None

    def flip(self, claim: Claim, receipt: str) -> bool:
        row = super().read()
        self.wanted = (claim, receipt)
        return row is not None and row.claim == claim and row.mark == "BEFORE"

    def write(self, rows: pa.Table) -> None:
        with closing(sqlite3.connect(self.path, timeout=60)) as connection, connection:
            connection.executemany(
                "INSERT INTO events (_topic, _partition, _offset, id, word) VALUES (?, ?, ?, ?, ?)",
                list(zip(*rows.to_pydict().values(), strict=True)),
            )

    def commit(self) -> None:
        assert self.wanted is not None
        if super().flip(*self.wanted):
            super().commit()


class Unasked(TargetLedger):
    """Does not look at the blocks' rows before it drops them."""

    def _change_beside(self, connection: Connection, old: LedgerState, new: LedgerState) -> None:
        if old.pending is not None and new.pending is None:
            connection.execute(delete(block_table))
        else:
            super()._change_beside(connection, old, new)


class FirstRange(SqlTable):
    """Removes what is in the first range, and nothing else."""

    def remove(self, ranges: Iterable[Range]) -> None:
        super().remove([*ranges][:1])


def _writer(kind: type[Delegating]) -> Callable[[Path], TransactionSite]:
    return lambda folder: SqliteTransactions(folder, kind)


def _ledger(kind: type[TargetLedger]) -> Callable[[Path], TransactionSite]:
    return lambda folder: SqliteTransactions(folder, keeps=kind)


BROKEN_TRANSACTIONS: dict[str, Callable[[Path], TransactionSite]] = {
    "a_block_lands_with_its_row": _writer(Dropping),
    "a_block_that_is_there_is_not_written_again": _writer(Tireless),
    "the_receipt_of_the_first_attempt_counts": _writer(Receiptless),
    "a_block_without_rows_is_done_too": _writer(Idle),
    "a_zombie_writes_nothing": _writer(Ownerless),
    "what_is_not_committed_leaves_nothing": _writer(Eager),
    "blocks_of_one_plan_land_side_by_side": _writer(Sweeping),
    "two_runs_of_one_task_at_once_are_one": _writer(Tireless),
    "a_batch_is_not_recorded_without_all_of_its_blocks": _ledger(Unasked),
    "exactly_the_rows_of_the_ranges_are_removed": lambda folder: SqliteTransactions(folder, opens=FirstRange),
    "a_plan_is_not_forgotten_with_blocks_that_are_there": _ledger(Unasked),
    "after_a_crash_at_any_line_a_block_lands_once": _writer(RowsFirst),
}
