"""The worker's half: the rows of one block that a query made, into the target, and a receipt for them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from landonce import errors
from landonce.engine.conform import conform
from landonce.engine.land import land, rerun, verdict
from landonce.engine.recipe import Task
from landonce.protocol.blocks import Block
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.read.schema.fields import Schema
from landonce.sinks.contract import COORDINATES, DeduplicatingSink, wait_out
from landonce.sinks.sql.opened import open_writer
from landonce.sinks.sql.recipe import SqlTask
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import Place
from landonce.sinks.sql.work import fenced
from landonce.sinks.sql.writer import settle_block


@dataclass(frozen=True)
class InsertRecipe:
    """Where the rows go that ClickHouse deduplicates, and what its table takes."""

    sink: DeduplicatingSink
    target: Schema
    wary: bool = False
    """Rows come through a shuffle from other executors. With one of them Spark loses a stage and runs all of its tasks anew, and
    those do not say that they are run again: so an acknowledgement is looked behind."""


@dataclass(frozen=True)
class TransactRecipe:
    """Where the rows go that change in one transaction with the ledger, and what the table takes."""

    sink: SqlSink
    target: Schema


def fingerprint_of(recipe: InsertRecipe | TransactRecipe) -> str:
    """Changes with what decides how a row stands in the table."""
    told = [recipe.sink.identity, recipe.target.fingerprint()]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def insert(recipe: InsertRecipe, task: Task, rows: pa.Table) -> BlockResult:
    """A task that Spark runs again, or twice at once, sends nothing: the other one may have sent. It waits until nothing that
    was sent can take effect any more, and says that there is doubt; if the other one is done before, Spark ends this one."""
    if rerun():
        target = recipe.sink.target()
        wait_out(target, task.deadline)
        return BlockResult(task.index, Fate.DOUBTFUL, why="Spark ran the task again")
    fitting = fitted(recipe.target, task.block, rows)
    settling, said = land(recipe, task, fitting, wary=recipe.wary)
    if settling.fate is not Fate.LANDED:
        return verdict(task, settling, said)
    return BlockResult(task.index, Fate.LANDED, _receipt(fitting))


def transact(recipe: TransactRecipe, task: SqlTask, rows: pa.Table) -> BlockResult:
    """A task that Spark runs again does the same again: the block's row says whether another one landed it."""
    fitting = fitted(recipe.target, task.block, rows)
    receipt = _receipt(fitting)
    place = Place(recipe.sink.pipeline, task.batch, task.block.number)
    settled = settle_block(
        lambda: open_writer(recipe.sink, place), task.claim, receipt.to_json(), fitting, f"block {task.block}"
    )
    if settled.fate is not Fate.LANDED:
        return BlockResult(task.index, Fate.HALTED, error=fenced(recipe.sink.pipeline, task))
    if settled.settled is not None:
        receipt = Receipt.from_json(settled.settled)
    return BlockResult(task.index, Fate.LANDED, receipt)


def _receipt(rows: pa.Table) -> Receipt:
    """What the query filtered away it never showed: what it gave is what was read here."""
    return Receipt(read=rows.num_rows, landed=rows.num_rows, bytes_read=rows.nbytes)


def fitted(
    target: Schema, block: Block, rows: pa.Table, also: Callable[[pa.Table], Mapping[int, str]] | None = None
) -> pa.Table:
    """The rows in the table's types. `also`: what else the table does not take, by row."""
    fitting, misfits = conform(rows, target, COORDINATES)
    if also is not None and not misfits:
        misfits = sorted(also(fitting).items())
    if misfits:
        at, reason = misfits[0]
        raise errors.TargetRefused(
            f"{block}: the row of offset {rows.column('_offset')[at]} does not fit the table: {reason}.",
            safe="Nothing of this block was written, and the position did not move.",
            command="change the query so that it gives what the table takes, or filters such rows, and start it again",
        )
    return fitting
