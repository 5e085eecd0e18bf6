"""What a Spark task does with one block: read, decode, and land it in one transaction with its row in the ledger.

A task that Spark runs again does the same again: the block's row says whether the first run landed it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from landonce import errors
from landonce.engine.conform import misfit
from landonce.engine.land import failed
from landonce.engine.letters import Messages, stage_letters, stage_refusals
from landonce.engine.task import ReadAccount, fitted, read_block
from landonce.failpoints import reach
from landonce.protocol.reasons import counted, merged
from landonce.protocol.receipt import BlockResult, Fate, Receipt, unbalanced
from landonce.read.block import ReadBlock, Reader, Rejected
from landonce.read.changes.decode import OPERATION
from landonce.read.decoders import decoder_of
from landonce.read.rows import records_of
from landonce.read.schema.evolution import Evolution, observed
from landonce.sinks.sql.documents import as_text
from landonce.sinks.sql.opened import open_writer
from landonce.sinks.sql.recipe import Anew, SqlRecipe, SqlTask
from landonce.sinks.sql.refused import MOST, refused_rows
from landonce.sinks.sql.statements import Place
from landonce.sinks.sql.writer import Altered, Blame, BlockWriter, Trouble, named, settle_rows


def work(recipe: SqlRecipe, task: SqlTask) -> BlockResult:
    """One block, from Kafka to the table."""
    try:
        block = read_block(_reader(recipe, task), recipe, task)
        wants = _wants(recipe, block) if recipe.evolve and not task.final else None
        if wants is not None:
            return BlockResult(task.index, Fate.WAITING, wants=wants)
        rows = block.rows(recipe.sink.table)
        return _deliver(recipe, task, rows, ReadAccount.of(block), _landing(recipe, rows), block.messages)
    except Altered:
        return _altered(task)
    except Exception as error:
        return failed(task, error)


def write_half(
    recipe: SqlRecipe, task: SqlTask, rows: pa.Table, told: ReadAccount | errors.LandonceError
) -> BlockResult:
    """The rows of one block that expressions were evaluated on."""
    try:
        fitting, account = fitted(recipe.target, task, rows, told)
        return _deliver(recipe, task, fitting, account, fitting.num_rows)
    except Altered:
        return _altered(task)
    except Exception as error:
        return failed(task, error)


def _altered(task: SqlTask) -> BlockResult:
    """The driver examines the table anew, and the block is read and written again."""
    return BlockResult(task.index, Fate.WAITING, wants=Anew.TABLE)


def _landing(recipe: SqlRecipe, rows: pa.Table) -> int:
    """How many records land, told from the rows, so that one that got lost on the way leaves the account unbalanced. Without
    changes each record is a row; a change may be two."""
    return rows.num_rows if recipe.changes is None else records_of(rows)


def _deliver(
    recipe: SqlRecipe,
    task: SqlTask,
    rows: pa.Table,
    account: ReadAccount,
    landing: int,
    messages: Messages | None = None,
) -> BlockResult:
    """Stages dead letters, and lands the rows with the receipt in the block's row. Rows that the database refuses become dead
    letters too, and the others are tried again: then an earlier change of the same key may count."""
    receipt = account.receipt(landing, stage_letters(recipe, task, account.rejected, messages or {}))
    if not receipt.balanced:
        raise unbalanced(task.block, receipt)
    reach("stage.after")
    place = Place(recipe.pipeline, task.batch, task.block.number)

    def opened() -> BlockWriter:
        return open_writer(recipe.sink, place)

    left = rows
    refused: tuple[Rejected, ...] = ()
    while True:
        told = _told(recipe, task, receipt, refused)
        at = last_changes(left, recipe.sink.key) if recipe.changes is not None and left.num_rows else None
        shaped = _shaped(left if at is None else left.take(at))
        try:
            settled = settle_rows(opened, task.claim, told.to_json(), shaped, f"block {task.block}")
        except Trouble as trouble:
            found = refused_rows(opened, task.claim, shaped, f"block {task.block}")
            if found is not None:
                bad = [(index if at is None else at[index].as_py(), said) for index, said in found]
                refused += _judged(task, left, bad, trouble)
                left = left.filter(pa.array(~np.isin(np.arange(left.num_rows), [index for index, _ in bad])))
            continue
        if settled.fate is not Fate.LANDED:
            return BlockResult(task.index, Fate.HALTED, error=fenced(recipe.pipeline, task))
        return BlockResult(task.index, Fate.LANDED, Receipt.from_json(settled.settled) if settled.settled else told)


def _told(recipe: SqlRecipe, task: SqlTask, receipt: Receipt, refused: tuple[Rejected, ...]) -> Receipt:
    """The receipt of a block without these records."""
    return replace(
        receipt,
        landed=receipt.landed - len(refused),
        dead_lettered=receipt.dead_lettered + len(refused),
        refused=stage_refusals(recipe, task, refused),
        reasons=merged((*receipt.reasons, *counted(each.reason for each in refused))),
    )


def _judged(task: SqlTask, rows: pa.Table, bad: list[tuple[int, Trouble]], trouble: Trouble) -> tuple[Rejected, ...]:
    """Rows that can never be there are dead letters. All else halts, and names the first record that it is about."""
    if not bad:
        raise named(trouble, f"block {task.block}")
    records = tuple(misfit(dict(task.labels), rows, at, said.said) for at, said in bad)
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


def _reader(recipe: SqlRecipe, task: SqlTask) -> Reader:
    decode = decoder_of(recipe.source, recipe.sink.key, recipe.changes, max_record_bytes=recipe.max_record_bytes)
    return Reader.of_one(recipe.sink.table, decode, payloads=recipe.evolve and not task.final)


def _wants(recipe: SqlRecipe, block: ReadBlock) -> Evolution | None:
    """Fields that the table has no column for, as far as one column can hold them."""
    payloads = block.payloads.get(recipe.sink.table, [])
    found = observed(payloads, recipe.source, identity=recipe.sink.key) if payloads else None
    added = tuple(
        (path, shape)
        for path, shape in (found.added if found is not None else ())
        if len(path) == 1 and not pa.types.is_nested(shape.type() or pa.list_(pa.null()))
    )
    return Evolution(added) if added else None


def fenced(pipeline: str, task: SqlTask) -> errors.Fenced:
    """What a worker hears whose block is another driver's by now."""
    return errors.Fenced(
        f"pipeline {pipeline!r} was taken over: block {task.block} of batch {task.batch} is not claimed by epoch "
        f"{task.claim.epoch} any more.",
        safe="Its transaction was rolled back, and this driver stops. Nothing is lost: the newer driver goes on.",
    )
