"""The worker's part of an SQL database: one block lands in one transaction with its row in the ledger.

A task that Spark runs again does the same again: the block's row says whether the first run landed it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from landonce import errors
from landonce.protocol.receipt import BlockResult, Fate, Receipt, counted, merged, unbalanced
from landonce.protocol.transact import Transacting
from landonce.read.block import ReadBlock, Reader, Rejected, rejected_row
from landonce.read.changes.decode import OPERATION
from landonce.read.decoders import decode_by
from landonce.read.fit import fit_to
from landonce.read.rows import records_of
from landonce.read.schema.evolution import Evolution, observed
from landonce.sinks.sql.documents import as_text
from landonce.sinks.sql.opened import open_writer
from landonce.sinks.sql.recipe import Again, SqlRecipe, SqlTask
from landonce.sinks.sql.refused import MOST, refused_rows
from landonce.sinks.sql.statements import Place
from landonce.sinks.sql.writer import Altered, Blame, BlockWriter, Trouble, named, settle_block, settle_rows
from landonce.sinks.worker import BlockWorker, Refuse


@dataclass(frozen=True)
class SqlWorker(BlockWorker):
    """Lands one block in one transaction."""

    recipe: SqlRecipe
    task: SqlTask

    @property
    def _evolves(self) -> bool:
        return self.recipe.evolve and not self.task.final

    def reader(self) -> Reader:
        recipe = self.recipe
        decode = decode_by(recipe.source, recipe.sink.key, recipe.changes, max_record_bytes=recipe.max_record_bytes)
        return Reader.of_one(recipe.sink.table, decode, fit_to(recipe.target), payloads=self._evolves)

    def wants(self, block: ReadBlock) -> Evolution | None:
        """Fields that the table has no column for, as far as one column can hold them."""
        recipe, payloads = self.recipe, block.payloads.get(self.recipe.sink.table, [])
        found = observed(payloads, recipe.source, identity=recipe.sink.key) if payloads else None
        added = tuple(
            (path, shape)
            for path, shape in (found.added if found is not None else ())
            if len(path) == 1 and not pa.types.is_nested(shape.type() or pa.list_(pa.null()))
        )
        return Evolution(added) if added else None

    def write(self, block: ReadBlock, receipt: Receipt, refuse: Refuse | None) -> BlockResult:
        """What lands is counted from the rows, so that one that got lost on the way leaves the account unbalanced. Without changes each
        record is a row; a change may be two."""
        rows = block.rows(self.recipe.sink.table)
        landing = rows.num_rows if self.recipe.changes is None else records_of(rows)
        receipt = replace(receipt, landed=landing)
        if not receipt.balanced:
            raise unbalanced(self.task.block, receipt)
        if refuse is None:
            settled = settle_block(self._open, self.task.claim, receipt.to_json(), _shaped(rows), self._where)
            return self._result(settled, receipt)
        try:
            return self._write(rows, receipt, refuse)
        except Altered:
            return BlockResult(self.task.index, Fate.WAITING, wants=Again.TABLE)

    def _write(self, rows: pa.Table, receipt: Receipt, refuse: Refuse) -> BlockResult:
        """Rows that the database refuses become dead letters, and the others are tried again: then an earlier change of the same key
        may count."""
        claim, refused = self.task.claim, tuple[Rejected, ...]()
        while True:
            account = _without(receipt, refused, refuse(refused))
            last = (
                last_changes(rows, self.recipe.sink.key) if self.recipe.changes is not None and rows.num_rows else None
            )
            shaped = _shaped(rows if last is None else rows.take(last))
            try:
                return self._result(settle_rows(self._open, claim, account.to_json(), shaped, self._where), account)
            except Trouble as trouble:
                found = refused_rows(self._open, claim, shaped, self._where)
                if found is not None:
                    bad = [(index if last is None else last[index].as_py(), why) for index, why in found]
                    refused += _judged(self.task, rows, bad, trouble)
                    rows = rows.filter(pa.array(~np.isin(np.arange(rows.num_rows), [index for index, _ in bad])))

    def _open(self) -> BlockWriter:
        return open_writer(self.recipe.sink, Place(self.recipe.pipeline, self.task.batch, self.task.block.number))

    @property
    def _where(self) -> str:
        return f"block {self.task.block}"

    def _result(self, settled: Transacting, receipt: Receipt) -> BlockResult:
        """An earlier run of the task may have landed the block: then its receipt counts."""
        if settled.fate is not Fate.LANDED:
            return BlockResult(self.task.index, Fate.HALTED, error=fenced(self.recipe.pipeline, self.task))
        known = Receipt.from_json(settled.settled) if settled.settled else receipt
        return BlockResult(self.task.index, Fate.LANDED, known)


def _without(receipt: Receipt, refused: tuple[Rejected, ...], letters: str) -> Receipt:
    """The receipt of a block without these records, which are dead letters in a file of their own."""
    return replace(
        receipt,
        landed=receipt.landed - len(refused),
        dead_lettered=receipt.dead_lettered + len(refused),
        refused=letters,
        reasons=merged((*receipt.reasons, *counted(each.reason for each in refused))),
    )


def _judged(task: SqlTask, rows: pa.Table, bad: list[tuple[int, Trouble]], trouble: Trouble) -> tuple[Rejected, ...]:
    """Rows that can never be there are dead letters. All else halts, and names the first record that it is about."""
    if not bad:
        raise named(trouble, f"block {task.block}")
    records = tuple(rejected_row(dict(task.labels), rows, at, why.said) for at, why in bad)
    first, last = records[0], records[-1]
    if bad[-1][1].blame is not Blame.ROW:
        raise named(bad[-1][1], f"{last.partition}: the record at offset {last.offset}")
    if len(bad) > MOST:
        raise named(
            bad[0][1], f"{first.partition}: the record at offset {first.offset}, and {MOST:,} others of its block"
        )
    return records


def _shaped(rows: pa.Table) -> pa.Table:
    """The columns that are written."""
    if not rows.num_rows:
        return rows
    return as_text(rows.set_column(0, "_topic", rows.column("_topic").cast(pa.string())))


def last_changes(rows: pa.Table, key: tuple[str, ...]) -> pa.Int64Array:
    """Of each key the last row, by its index, in the order in which they came."""
    keyed = pa.table([_stored(rows.column(name)) for name in key], names=list(key))
    keyed = keyed.append_column(OPERATION, pa.array(np.arange(rows.num_rows)))
    last = keyed.group_by(list(key)).aggregate([(OPERATION, "max")]).column(f"{OPERATION}_max")
    return pa.array(np.sort(np.asarray(last.to_numpy())))


def _stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Arrow groups by no type of an extension: a UUID is its sixteen bytes."""
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array([each.storage for each in column.chunks], column.type.storage_type)
    return column


def fenced(pipeline: str, task: SqlTask) -> errors.Fenced:
    """What a worker hears whose block is another driver's by now."""
    return errors.Fenced(
        f"pipeline {pipeline!r} was taken over: block {task.block} of batch {task.batch} is not claimed by epoch "
        f"{task.claim.epoch} any more.",
        safe="Its transaction was rolled back, and this driver stops. Nothing is lost: the newer driver goes on.",
    )
