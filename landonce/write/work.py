"""What a Spark task does with one block: read, decode, write, account.

Without a transform all of it runs in one Python worker (`work`). With one, `run.transform` puts Spark's expressions
between the reading half (`gather`) and the writing half (`deliver`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import Message

from landonce import errors
from landonce.commit.dead_letters import DeadLetter, kept, stage
from landonce.failpoints import reach
from landonce.plan.blocks import Kind
from landonce.read.harvest import Harvest, Rejected, find, harvest
from landonce.write.land import failed, halted, labelled, land, rerun, verdict
from landonce.write.receipt import BlockResult, Fate, Receipt
from landonce.write.recipe import Recipe, Task
from landonce.write.settle import Mode


@dataclass(frozen=True)
class Reaped:
    """The account of the reading half."""

    read: int
    bytes_read: int
    rejected: tuple[Rejected, ...]


def work(recipe: Recipe, task: Task) -> BlockResult:
    """Both halves, where no expression stands between them."""

    def attempt() -> BlockResult:
        crop = gather(recipe, task)
        reaped = Reaped(crop.read, crop.bytes_read, tuple(crop.rejected))
        return deliver(recipe, task, crop.rows, reaped, 0, crop)

    return guarded(recipe, task, attempt)


def gather(recipe: Recipe, task: Task) -> Harvest:
    """Reads and decodes the block."""
    crop = harvest(
        task.block.ranges,
        dict(recipe.consumer),
        recipe.source,
        dict(task.labels),
        max_record_bytes=recipe.max_record_bytes,
        most_bytes=recipe.most_bytes,
    )
    reach("read.after")
    return crop


def deliver(
    recipe: Recipe, task: Task, rows: pa.Table, reaped: Reaped, filtered: int, crop: Harvest | None = None
) -> BlockResult:
    """Stages dead letters, lands the rows, and writes the receipt."""
    name = _stage(recipe, task, reaped.rejected, crop)
    reach("stage.after")
    settling, said = land(recipe, task, rows)
    if settling.fate is not Fate.LANDED:
        return verdict(task, settling, said)
    receipt = Receipt(
        read=reaped.read,
        landed=rows.num_rows,
        filtered=filtered,
        dead_lettered=len(reaped.rejected),
        dead_letters=name,
        bytes_read=reaped.bytes_read,
    )
    return BlockResult(task.index, Fate.LANDED, receipt)


def guarded(recipe: Recipe, task: Task, attempt: Callable[[], BlockResult]) -> BlockResult:
    """Runs an attempt; whatever happens becomes a fate, so that other blocks' receipts are not lost with it."""
    if rerun():
        return BlockResult(task.index, Fate.DOUBTFUL, why="Spark ran the task again")
    try:
        return attempt()
    except errors.RetentionOverrun as error:
        return _overrun(recipe, task, error)
    except Exception as error:
        return failed(task, error)


def _overrun(recipe: Recipe, task: Task, error: errors.RetentionOverrun) -> BlockResult:
    """Records of a pending block are gone. Rows that are there prove that all of it landed, if it lands as one.

    That is true of a block that was sent in this very cut, and of no other kind of plan.
    """
    if task.mode is Mode.FIRST or task.kind is not Kind.DELIVER:
        return halted(task, error)
    try:
        writer = recipe.sink.writer()
        found = writer.count(labelled(task))
    except Exception as problem:
        return failed(task, problem)
    if found and writer.atomic:
        name, letters = kept(recipe.dead_letters, task.plan, task.block.number)
        receipt = Receipt(read=found + letters, landed=found, dead_lettered=letters, dead_letters=name)
        return BlockResult(task.index, Fate.LANDED, receipt)
    return halted(task, error)


def _stage(recipe: Recipe, task: Task, rejected: tuple[Rejected, ...], crop: Harvest | None) -> str:
    if not rejected:
        return stage(recipe.dead_letters, task.plan, task.block.number, ())
    messages = crop.messages if crop else find(rejected, task.block.ranges, dict(recipe.consumer))
    labels = dict(task.labels)
    letters = []
    for each in rejected:
        message = messages.get((each.partition, each.offset))
        if message is None:
            raise errors.RetentionOverrun(
                f"{each.partition}: the record at offset {each.offset} is gone before it could be dead-lettered.",
                safe="Nothing was skipped.",
                command="landonce state accept-gap {file}",
            )
        topic = each.partition.topic
        letters.append(
            DeadLetter(
                topic=labels.get(topic, topic),
                partition=each.partition.number,
                offset=each.offset,
                timestamp=message.timestamp()[1],
                reason=each.reason,
                key=message.key(),
                value=message.value(),
                headers=_headers(message),
            )
        )
    return stage(recipe.dead_letters, task.plan, task.block.number, letters)


def _headers(message: Message) -> tuple[tuple[str, bytes | None], ...]:
    told = message.headers() or ()
    pairs = told.items() if isinstance(told, dict) else told
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)
