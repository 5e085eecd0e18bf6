"""Staging a block's dead letters: the rejected records themselves, with all that is needed to fix and resend them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from landonce import errors
from landonce.engine.dead_letters import DeadLetter, stage, stage_refused
from landonce.protocol.ranges import Partition, label_of
from landonce.protocol.reasons import Reason
from landonce.read.block import Rejected, find
from landonce.read.kafka.records import KafkaMessage, header_pairs, read_headers
from landonce.sinks.worker import AnyRecipe, Task

Messages = Mapping[tuple[Partition, int], KafkaMessage]
"""Records themselves."""


def stage_letters(
    recipe: AnyRecipe,
    task: Task,
    rejected: Sequence[Rejected],
    read: Messages,
) -> str:
    """Writes the block's file and returns its name. `read`: the records themselves, as far as they are at hand."""
    refuse_bad(recipe, task, rejected)
    letters = _letters(recipe, task, rejected, read)
    return stage(recipe.dead_letters, task.plan, task.block.number, letters, task.labelled, inherited=task.inherited)


def stage_refusals(recipe: AnyRecipe, task: Task, refused: Sequence[Rejected]) -> str:
    """As `stage_letters`, of records that the target refused: the file is for the attempt that leaves out these."""
    refuse_bad(recipe, task, refused)
    letters = _letters(recipe, task, refused, {})
    return stage_refused(recipe.dead_letters, task.plan, task.block.number, letters)


def refuse_bad(recipe: AnyRecipe, task: Task, rejected: Sequence[Rejected]) -> None:
    """Where the first bad record ends the run. The driver knows what comes next."""
    if recipe.halts and rejected:
        first, reason = rejected[0], Reason.of(rejected[0].reason)
        where = f"{label_of(dict(task.labels), first.partition)}[{first.partition.number}], offset {first.offset}"
        raise errors.BadRecord(f"{where}: the record cannot land ({reason.code.value}): {reason}.")


def _letters(
    recipe: AnyRecipe,
    task: Task,
    rejected: Sequence[Rejected],
    read: Messages,
) -> list[DeadLetter]:
    lacking = [each for each in rejected if (each.partition, each.offset) not in read]
    messages = {**read, **find(lacking, task.block.ranges, recipe.records)} if lacking else read
    if lacking:  # of the topics of the plan, and of no others that have their names by now
        recipe.records.require_same(task.topics)
    labels, judgement = dict(task.labels), recipe.judgement() if rejected else ""
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
                reason=Reason.of(each.reason),
                key=message.key(),
                value=message.value(),
                headers=tuple(header_pairs(read_headers(message))),
                fingerprint=judgement,
            )
        )
    return letters
