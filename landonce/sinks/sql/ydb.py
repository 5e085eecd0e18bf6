"""A block's transaction in YDB, through its SQLAlchemy dialect.

YDB does not count the rows that an UPDATE found, so the block's row is read first. Transactions are serializable: if another driver flips or
claims the row in between, the COMMIT fails and nothing is written. Rows are always written by UPSERT: if rows are only added,
their coordinates are the table's primary key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from sqlalchemy import Executable, Select, Update, bindparam, column, delete, select, table, update
from sqlalchemy.exc import DBAPIError

from landonce.ledger.block_ledgers import block_row
from landonce.ledger.plain_sql import BlockKey
from landonce.ledger.tables import block_table
from landonce.ledger.ydb import YdbDatabase
from landonce.protocol.block_rows import BlockRow, BlockState, Claim, flippable
from landonce.read.envelopes import DELETE, OPERATION
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.transactional import BlockTransaction, Trouble

_REFUSED = ("IntegrityError", "ProgrammingError", "DataError", "NotSupportedError")
_AT_ONCE = 1_000
"""Rows of one statement."""


def found_statement(place: BlockKey) -> Select[Any]:
    row = block_table.c
    return select(block_table).where(
        row.pipeline == place.pipeline, row.batch == place.batch, row.number == place.number
    )


def flipping_statement(place: BlockKey, receipt: str) -> Update:
    row = block_table.c
    return (
        update(block_table)
        .where(row.pipeline == place.pipeline, row.batch == place.batch, row.number == place.number)
        .values(state=BlockState.AFTER.value, receipt=receipt)
    )


def upsert_rows(name: str, columns: list[str]) -> Executable:
    from ydb_sqlalchemy import upsert

    statement: Executable = upsert(table(name, *map(column, columns)))
    return statement


def delete_rows(name: str, key: tuple[str, ...]) -> Executable:
    return delete(table(name, *map(column, key))).where(*(column(each) == bindparam(f"key_{each}") for each in key))


class YdbWriter(BlockTransaction):
    """One connection of one block."""

    def __init__(self, sink: SqlSink, place: BlockKey) -> None:
        self._sink, self._place = sink, place
        self._database = YdbDatabase(sink.address)
        try:
            with self._errors():
                engine = self._database.engine
                self._connection = engine.connect().execution_options(isolation_level="SERIALIZABLE")
        except Trouble:
            self._database.close()
            raise

    def flip(self, claim: Claim, receipt: str) -> bool:
        seen = self.read()
        if seen is None:
            return False
        held = {"epoch": seen.claim.epoch, "owner": seen.claim.owner, "state": seen.mark.value}
        if held != flippable(claim):
            return False
        self._do(flipping_statement(self._place, receipt))
        return True

    def read(self) -> BlockRow | None:
        with self._errors():
            row = self._connection.execute(found_statement(self._place)).first()
        return block_row(row) if row is not None else None

    def write(self, rows: pa.Table) -> None:
        if self._sink.key:
            gone = pc.equal(rows.column(OPERATION), DELETE)
            deleted = rows.filter(gone).select(list(self._sink.key))
            rows = rows.filter(pc.invert(gone)).drop_columns([OPERATION])
            self._many(delete_rows(self._sink.table, self._sink.key), deleted, "key_")
        self._many(upsert_rows(self._sink.table, rows.column_names), rows)

    def commit(self) -> None:
        with self._errors():
            self._connection.commit()

    def close(self) -> None:
        self._connection.close()
        self._database.close()

    def _many(self, statement: Executable, rows: pa.Table, before: str = "") -> None:
        plain = pa.table({before + name: _plain(rows.column(name)) for name in rows.column_names})
        for batch in plain.to_batches(max_chunksize=_AT_ONCE):
            self._do(statement, batch.to_pylist())

    def _do(self, statement: Executable, values: list[dict[str, Any]] | None = None) -> None:
        with self._errors():
            self._connection.execute(statement, values)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            refused = type(error).__name__ in _REFUSED
            raise Trouble(self._database.reason(error), passing=not refused, answered=refused) from None


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if pt.is_timestamp(values.type) and values.type.tz is not None:
        return values.cast(pa.timestamp("us"))
    return values
