"""Staging a block's dead letters: the rejected records themselves, with all that is needed to fix and resend them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from landonce import errors
from landonce.engine.dead_letters import DeadLetter, stage, stage_refused
from landonce.protocol.ranges import Partition, label_of
from landonce.read.block import Rejected, find
from landonce.read.kafka.records import Record
from landonce.sinks.worker import AnyRecipe, Task

Messages = Mapping[tuple[Partition, int], Record]
"""Records themselves."""


def stage_letters(
    recipe: AnyRecipe,
    task: Task,
    rejected: Sequence[Rejected],
    read: Messages,
) -> str:
    """Writes the block's file and returns its name. `read`: the records themselves, as far as they are at hand."""
    letters = _letters(recipe, task, rejected, read)
    return stage(recipe.dead_letters, task.plan, task.block.number, letters, task.labelled, inherited=task.inherited)


def stage_refusals(recipe: AnyRecipe, task: Task, refused: Sequence[Rejected]) -> str:
    """As `stage_letters`, of records that the target refused: the file is for the attempt that leaves out these."""
    letters = _letters(recipe, task, refused, {})
    return stage_refused(recipe.dead_letters, task.plan, task.block.number, letters)


def _letters(
    recipe: AnyRecipe,
    task: Task,
    rejected: Sequence[Rejected],
    read: Messages,
) -> list[DeadLetter]:
    lacking = [each for each in rejected if (each.partition, each.offset) not in read]
    messages = {**read, **_read_again(recipe, task, lacking)} if lacking else read
    labels = dict(task.labels)
    letters = []
    for each in rejected:
        message = messages.get((each.partition, each.offset))
        if message is None:
            raise errors.RetentionOverrun(
                f"{each.partition}: Kafka deleted the record at offset {each.offset} before it could become a dead "
                "letter.",
                safe="Nothing was skipped.",
                command="landonce state accept-gap {file}",
            )
        letters.append(
            DeadLetter(
                topic=label_of(labels, each.partition),
                partition=each.partition.number,
                offset=each.offset,
                timestamp=message.timestamp()[1],
                reason=each.reason,
                key=message.key(),
                value=message.value(),
                headers=_headers(message),
            )
        )
    return letters


def _read_again(recipe: AnyRecipe, task: Task, rejected: Sequence[Rejected]) -> Messages:
    """From the topics of the plan, and from no others that bear their names by now."""
    found = find(rejected, task.block.ranges, recipe.records)
    recipe.records.require_same(task.topics)
    return found


def _headers(record: Record) -> tuple[tuple[str, bytes | None], ...]:
    found = record.headers() or ()
    pairs = found.items() if isinstance(found, dict) else found
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)
