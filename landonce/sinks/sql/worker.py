"""The worker's part of an SQL database: one block lands in one transaction with its row in the ledger.

A task that Spark runs again does the same again: the block's row says whether the first run landed it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from landonce.protocol.block_rows import Claim
from landonce.protocol.reasons import Code, Reason, counted, merged
from landonce.protocol.receipt import BlockResult, Receipt, Want, unbalanced
from landonce.read.block import ReadBlock, Reader, Rejected, rejected_row
from landonce.read.changes import Changes
from landonce.read.decoding import decode_by
from landonce.read.evolution import Evolution, observed
from landonce.read.rows import ends_by_key, fit_to, records_of
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.types import documents_as_text
from landonce.sinks.transactional import (
    Altered,
    Blame,
    BlockTransaction,
    Opened,
    TransactionRecipe,
    TransactionTask,
    TransactionWorker,
    Trouble,
    as_error,
    settle_block,
    settle_rows,
)
from landonce.sinks.worker import BlockWorker, Refuse

MOST = 1_000
"""If a database refuses more rows of one block, the table is wrong, not the rows."""
_SAVE, _BACK = "SAVEPOINT landonce_half", "ROLLBACK TO SAVEPOINT landonce_half"
_DONE = "RELEASE SAVEPOINT landonce_half"


@dataclass(frozen=True, kw_only=True)
class SqlRecipe(TransactionRecipe):
    """The recipe of an SQL database."""

    sink: SqlSink
    changes: Changes | None = None
    evolve: bool = False
    declared: str = ""
    """The declared schema's fingerprint."""

    @property
    def describes_records(self) -> bool:
        return not self.evolve

    def _decisive(self) -> tuple[object, ...]:
        """What the pipeline file says about rows. The table's own columns may change: each block lands whole."""
        return self.sink.identity, self.sink.key, self.declared, self.select, self.where, repr(self.changes)

    def worker(self, task: TransactionTask) -> BlockWorker:
        return SqlWorker(self, task)


@dataclass(frozen=True)
class SqlWorker(TransactionWorker):
    """Lands one block in one transaction."""

    recipe: SqlRecipe

    def reader(self) -> Reader:
        recipe, evolves = self.recipe, self.recipe.evolve and not self.task.final
        decode = decode_by(recipe.source, recipe.decoding, recipe.sink.key, recipe.changes)
        return Reader.of_one(recipe.sink.table, decode, fit_to(recipe.target), payloads=evolves)

    def wants(self, block: ReadBlock) -> tuple[Want, ...]:
        """Fields without a column in the table, if one column can hold them."""
        recipe, payloads = self.recipe, block.payloads.get(self.recipe.sink.table, [])
        found = (
            observed(payloads, recipe.source, recipe.decoding.format, identity=recipe.sink.key) if payloads else None
        )
        added = tuple(
            (path, shape)
            for path, shape in (found.added if found is not None else ())
            if len(path) == 1 and not pa.types.is_nested(shape.type() or pa.list_(pa.null()))
        )
        return (Evolution(added),) if added else ()

    def write(self, block: ReadBlock, receipt: Receipt, refuse: Refuse | None) -> BlockResult:
        """Counts what lands from the rows, so that a lost row makes the receipt unbalanced. Without changes each record is one row; a
        change may be two."""
        rows = block.rows(self.recipe.sink.table)
        landing = rows.num_rows if self.recipe.changes is None else records_of(rows)
        receipt = replace(receipt, landed=landing)
        if not receipt.balanced:
            raise unbalanced(self.task.block, receipt)
        try:
            if refuse is not None:
                return self._write(rows, receipt, refuse)
            settled = settle_block(self.open, self.task.claim, receipt.to_json(), self._shaped(rows), self.where)
        except Altered:
            return self.waiting()
        return self.result(settled, receipt)

    def _write(self, rows: pa.Table, receipt: Receipt, refuse: Refuse) -> BlockResult:
        """Makes dead letters of the rows that the database refuses, and tries the others again. Then an earlier change of the same
        key may be the last one."""
        claim, refused = self.task.claim, tuple[Rejected, ...]()
        while True:
            account = replace(
                receipt,
                landed=receipt.landed - len(refused),
                dead_lettered=receipt.dead_lettered + len(refused),
                refused=refuse(refused),  # a file of their own
                reasons=merged((*receipt.reasons, *counted(each.reason for each in refused))),
            )
            changes = self.recipe.changes is not None and rows.num_rows
            last = ends_by_key(rows, self.recipe.sink.key)[1] if changes else None
            shaped = self._shaped(rows if last is None else rows.take(pa.array(last)))
            try:
                return self.result(settle_rows(self.open, claim, account.to_json(), shaped, self.where), account)
            except Trouble as trouble:
                found = refused_rows(self.open, claim, shaped, self.where)
                if found is not None:
                    bad = [(index if last is None else int(last[index]), why) for index, why in found]
                    refused += _judged(self.task, rows, bad, trouble)
                    rows = rows.filter(pa.array(~np.isin(np.arange(rows.num_rows), [index for index, _ in bad])))

    def _shaped(self, rows: pa.Table) -> pa.Table:
        """The columns as they are written."""
        if not rows.num_rows:
            return rows
        arrays = [name for name, form in self.recipe.sink.own_forms if form.startswith("array")]
        return documents_as_text(rows.set_column(0, "_topic", rows.column("_topic").cast(pa.string())), arrays)


def _judged(
    task: TransactionTask, rows: pa.Table, bad: list[tuple[int, Trouble]], trouble: Trouble
) -> tuple[Rejected, ...]:
    """The dead letters of rows that the database can never take. Raises for everything else, and names the record."""
    if not bad:
        raise as_error(trouble, f"block {task.block}")
    records = tuple(
        rejected_row(dict(task.labels), rows, at, Reason(why.said, Code.REFUSED_BY_TARGET)) for at, why in bad
    )
    first, last = records[0], records[-1]
    if bad[-1][1].blame is not Blame.ROW:
        raise as_error(bad[-1][1], f"{last.partition}: the record at offset {last.offset}")
    if len(bad) > MOST:
        raise as_error(
            bad[0][1], f"{first.partition}: the record at offset {first.offset}, and {MOST:,} others of its block"
        )
    return records


Found = tuple[tuple[int, Trouble], ...]


def refused_rows(opened: Opened, claim: Claim, rows: pa.Table, where: str) -> Found | None:
    """Which rows the database refuses, by index, and why. None if the block has another claim.

    Searches half by half, in a transaction that is rolled back. Halves that are taken stay while the rest is tried, as in the block's own
    transaction. The search ends early at a row that is refused because of other rows in the table, which no dead letter can fix, and
    after `MOST` rows.
    """
    try:
        writer = opened()
        try:
            if not writer.flip(claim, ""):
                return None
            if not writer.unaltered():
                raise Altered
            return _search(writer, rows)
        finally:
            writer.close()
    except Trouble as trouble:
        raise as_error(trouble, where) from None


def _search(writer: BlockTransaction, rows: pa.Table) -> Found:
    found: list[tuple[int, Trouble]] = []
    left = [(0, rows.num_rows)]
    while left and len(found) <= MOST:
        first, end = left.pop()
        writer.savepoint(_SAVE)
        try:
            writer.write(rows.slice(first, end - first))
        except Trouble as trouble:
            if trouble.blame is Blame.ELSE:
                raise
            writer.savepoint(_BACK)
            if end - first > 1:
                middle = (first + end) // 2
                left += [(middle, end), (first, middle)]
            else:
                found.append((first, trouble))
                if trouble.blame is not Blame.ROW:
                    left = []
        writer.savepoint(_DONE)
    return tuple(found)
