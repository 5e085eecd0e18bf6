"""What a Spark task does with one block: read, decode, and push it as the ledger allows.

A task that Spark runs again does the same again: the block's row says whether it may push.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
from confluent_kafka import Message

from landonce import errors
from landonce.failpoints import reach
from landonce.plan.keys import labelled
from landonce.plan.ranges import Partition
from landonce.record.pushes import Spot
from landonce.write.conform import chosen, conform, misfit
from landonce.write.land import failed
from landonce.write.letters import stage_letters
from landonce.write.receipt import BlockResult, Receipt
from landonce.write.sink import COORDINATES
from landonce.write.work import Reaped, gather
from landonce.write.wrapped.recipe import WrappedRecipe, WrappedTask
from landonce.write.wrapped.send import Sending, push_block


def work(recipe: WrappedRecipe, task: WrappedTask) -> BlockResult:
    """One block, from Kafka to the user's function."""
    try:
        crop = gather(recipe, task)
        return _deliver(recipe, task, crop.rows, Reaped.of(crop), 0, crop.messages)
    except Exception as error:
        return failed(task, error)


def sow(recipe: WrappedRecipe, task: WrappedTask, rows: pa.Table, told: Reaped | errors.LandonceError) -> BlockResult:
    """The rows of one block that expressions were evaluated on."""
    try:
        if isinstance(told, errors.LandonceError):
            raise told
        kept = chosen(rows)
        fitting, misfits = conform(kept, recipe.target, COORDINATES)
        rejected = (*told.rejected, *(misfit(dict(task.labels), kept, at, reason) for at, reason in misfits))
        account = replace(told, rejected=rejected)
        return _deliver(recipe, task, fitting, account, rows.num_rows - kept.num_rows, None)
    except Exception as error:
        return failed(task, error)


def _deliver(
    recipe: WrappedRecipe,
    task: WrappedTask,
    rows: pa.Table,
    reaped: Reaped,
    filtered: int,
    messages: Mapping[tuple[Partition, int], Message] | None,
) -> BlockResult:
    """Stages dead letters, and pushes the rows."""
    receipt = Receipt(
        read=reaped.read,
        landed=rows.num_rows,
        filtered=filtered,
        dead_lettered=len(reaped.rejected),
        dead_letters=stage_letters(recipe, task, reaped.rejected, messages),
        bytes_read=reaped.bytes_read,
    )
    reach("stage.after")
    first = task.block.ranges[0]
    sending = Sending(
        index=task.index,
        spot=Spot(task.batch, task.block.number),
        claim=task.claim,
        key=task.key,
        range=labelled(first, dict(task.labels).get(first.partition.topic, first.partition.topic)),
        rows=rows,
        receipt=receipt,
    )
    with closing(recipe.ledger.open()) as ledger:
        return push_block(recipe.sink, ledger, sending)
