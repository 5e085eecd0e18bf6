"""What a Spark task does with one block: read, decode, and push it as the ledger allows.

A task that Spark runs again does the same again: the block's row says whether it may push.
"""

from __future__ import annotations

from contextlib import closing

import pyarrow as pa

from landonce import errors
from landonce.engine.land import failed
from landonce.engine.letters import Messages, stage_letters
from landonce.engine.task import DECODED, ReadAccount, fitted, read_half
from landonce.failpoints import reach
from landonce.ledger.push_ledger import PushPlace
from landonce.protocol.claims import Spot
from landonce.protocol.receipt import BlockResult, Receipt
from landonce.sinks.wrapped.recipe import WrappedRecipe, WrappedTask
from landonce.sinks.wrapped.send import Sending, push_block
from landonce.sinks.wrapped.sink import WrappedSink


def work(recipe: WrappedRecipe, task: WrappedTask) -> BlockResult:
    """One block, from Kafka to the user's function."""
    try:
        block = read_half(recipe, task)
        return _deliver(recipe, task, block.rows(DECODED), ReadAccount.of(block), block.messages)
    except Exception as error:
        return failed(task, error)


def write_half(
    recipe: WrappedRecipe, task: WrappedTask, rows: pa.Table, told: ReadAccount | errors.LandonceError
) -> BlockResult:
    """The rows of one block that expressions were evaluated on."""
    try:
        fitting, account = fitted(recipe.target, task, rows, told)
        return _deliver(recipe, task, fitting, account)
    except Exception as error:
        return failed(task, error)


def _deliver(
    recipe: WrappedRecipe, task: WrappedTask, rows: pa.Table, account: ReadAccount, messages: Messages | None = None
) -> BlockResult:
    """Stages dead letters, and pushes the rows."""
    letters = stage_letters(recipe, task, account.rejected, messages or {})
    reach("stage.after")
    return push(recipe.sink, recipe.ledger, sending_of(task, rows, account.receipt(rows.num_rows, letters)))


def sending_of(task: WrappedTask, rows: pa.Table, receipt: Receipt) -> Sending:
    """An attempt with one block."""
    return Sending(
        index=task.index,
        spot=Spot(task.batch, task.block.number),
        claim=task.claim,
        key=task.key,
        range=task.labelled[0],
        rows=rows,
        receipt=receipt,
    )


def push(sink: WrappedSink, place: PushPlace, sending: Sending) -> BlockResult:
    """One block and its row in the ledger, which is opened for it."""
    with closing(place.open()) as ledger:
        return push_block(sink, ledger, sending)
