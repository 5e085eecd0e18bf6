"""What a Spark task does with one block, the same for every sink:

    read ─► decode ─► route ─► fit ─► stage dead letters ─► the sink's part writes ─► receipt

Without a transform all of it runs in one Python worker (`work`). With one, `engine.transform` puts Spark's expressions between
`read_half` and `write_half`. The rows of a user's query come from Spark alone (`write_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import pyarrow as pa
from pyspark import TaskContext

from landonce import errors
from landonce.engine.dead_letters import DeadLetter, kept, stage, stage_refused
from landonce.failpoints import reach
from landonce.protocol.dedup import PushStep, next_push_step
from landonce.protocol.ranges import Partition, label_of
from landonce.protocol.reasons import Reason, counted
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.read.block import ReadAccount, ReadBlock, Reader, Rejected, find
from landonce.read.decoding import Decoding, decode_by
from landonce.read.kafka.records import BlockId, KafkaMessage, RecordSource, header_pairs, read_headers
from landonce.read.rows import chosen
from landonce.read.schema.fields import Schema
from landonce.sinks.worker import AnyRecipe, BlockWorker, Recipe, T, Task, failed, halted

DECODED = "decoded"
"""What the rows are called that expressions get."""


class Reading(Protocol):
    """What the reading half needs to know of a recipe."""

    @property
    def records(self) -> RecordSource: ...

    @property
    def source(self) -> Schema: ...

    @property
    def decoding(self) -> Decoding: ...

    @property
    def most_bytes(self) -> int: ...

    @property
    def marks(self) -> bool: ...


def work(recipe: Recipe[T], task: T) -> BlockResult:
    """Both halves, where there is no expression between them."""
    worker: BlockWorker = recipe.worker(task)

    def attempt() -> BlockResult:
        known = recipe.records.frozen(block_id(recipe, task))
        return _written(recipe, task, worker, known or _read(worker.reader(), recipe, task))

    return guarded(recipe, task, worker, attempt)


def read_half(recipe: Reading, task: Task) -> ReadBlock:
    """The rows that expressions are evaluated on."""
    decode = decode_by(recipe.source, recipe.decoding)
    return _read(Reader.of_one(DECODED, decode, marks=recipe.marks), recipe, task)


def write_half(recipe: Recipe[T], task: T, rows: pa.Table, account: ReadAccount | errors.LandonceError) -> BlockResult:
    """The rows of one block that expressions were evaluated on; or the error of the reading half."""
    worker: BlockWorker = recipe.worker(task)

    def attempt() -> BlockResult:
        if isinstance(account, errors.LandonceError):
            raise account
        left = chosen(rows)
        counts = replace(account, filtered=rows.num_rows - left.num_rows)
        return _written(recipe, task, worker, worker.reader().sort(left, counts, dict(task.labels)))

    return guarded(recipe, task, worker, attempt)


def write_rows(
    worker: BlockWorker, task: Task, rows: pa.Table, latest: tuple[tuple[Partition, int], ...] = ()
) -> BlockResult:
    """The rows of one block that a user's query made. There are no dead letters: every row must fit. Records that the query filtered are
    not known here: the rows that it gave count as read. `latest`: the latest timestamp of a record, where the rows say it."""
    if rerun() and (result := worker.run_again()) is not None:
        return result
    block = _sorted(worker.reader(), task, rows, latest)
    receipt = Receipt(block.read, landed=0, filtered=block.filtered, bytes_read=block.bytes_read)
    return worker.write(block, receipt, None)


def _sorted(reader: Reader, task: Task, rows: pa.Table, latest: tuple[tuple[Partition, int], ...] = ()) -> ReadBlock:
    """Rows of a query, fitted to their table."""
    block = reader.sort(rows, ReadAccount(rows.num_rows, rows.nbytes, latest=latest), dict(task.labels))
    if block.rejected:
        first = block.rejected[0]
        raise errors.TargetRefused(
            f"{task.block}: the row of offset {first.offset} does not fit the table: {first.reason}.",
            safe="Nothing of this block was written, and the position did not move.",
            command="change the query, or what makes the rows, so that they fit the table, or filter such rows; then start again",
        )
    return block


def _read(reader: Reader, recipe: AnyRecipe | Reading, task: Task) -> ReadBlock:
    """Reads and decodes the block, and makes sure that it is of the topics of the plan."""
    rows = recipe.records.rows(task.block.ranges, dict(task.labels))
    if rows is not None:
        return _sorted(reader, task, rows)
    block = reader.read(task.block.ranges, recipe.records, dict(task.labels), recipe.most_bytes)
    reach("read.after")
    recipe.records.require_same(task.topics)
    return block


def _written(recipe: AnyRecipe, task: Task, worker: BlockWorker, block: ReadBlock) -> BlockResult:
    """Stages dead letters, has the sink write the rows, and returns the receipt; or what the driver must do first."""
    known = recipe.records.frozen(block_id(recipe, task))
    if known is None and (wants := worker.wants(block)):
        return BlockResult(task.index, Fate.WAITING, wants=wants)
    step, block = next_push_step(known, block)
    if step is PushStep.FREEZE:
        if recipe.halts:  # a corrected file makes other rows of these records: what is not stored is read again
            refuse_bad(recipe, task, _dead(worker, block))
        block = recipe.records.freeze(block_id(recipe, task), block)
    reach("freeze.after")
    dead = _dead(worker, block)
    letters = stage_letters(recipe, task, dead, block.messages)
    reach("stage.after")
    receipt = Receipt(
        read=block.read,
        landed=len(block.rejected) - len(dead),
        filtered=block.filtered,
        dead_lettered=len(dead),
        dead_letters=letters,
        reasons=counted(each.reason for each in dead),
        bytes_read=block.bytes_read,
        without_column=tuple(sorted(block.without_column)),
    )
    return worker.write(block, receipt, partial(stage_refusals, recipe, task))


def _dead(worker: BlockWorker, block: ReadBlock) -> list[Rejected]:
    """The rejected records, except those whose rows are in the target already."""
    there = worker.landed_anyway(block.rejected) if block.rejected else frozenset()
    return [each for each in block.rejected if each not in there]


def block_id(recipe: AnyRecipe, task: Task) -> BlockId:
    return BlockId(recipe.pipeline, task.batch, task.block.number, task.block.ranges)


def rerun() -> bool:
    """Whether Spark runs this task again, or a second time beside the first."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def guarded(recipe: AnyRecipe, task: Task, worker: BlockWorker, attempt: Callable[[], BlockResult]) -> BlockResult:
    """Runs an attempt and turns every error into a fate: an exception would lose the receipts of other blocks, too."""
    if rerun() and (result := worker.run_again()) is not None:
        return result
    try:
        return attempt()
    except errors.RetentionOverrun as error:
        return _overrun(recipe, task, worker, error)
    except Exception as error:
        return failed(task, error)


def _overrun(recipe: AnyRecipe, task: Task, worker: BlockWorker, error: errors.RetentionOverrun) -> BlockResult:
    """Kafka has deleted records of a pending block. The rows in the target may prove that all of it landed."""
    try:
        found = worker.landed_before()
        name, letters = kept(recipe.dead_letters, task.plan, task.block.number) if found else ("", 0)
    except Exception as problem:
        return failed(task, problem)
    if not found:
        return halted(task, error)
    receipt = Receipt(read=found + letters, landed=found, dead_lettered=letters, dead_letters=name)
    return BlockResult(task.index, Fate.LANDED, receipt)


# Dead letters of a block: the rejected records themselves, with all that is needed to fix and resend them.

Messages = Mapping[tuple[Partition, int], KafkaMessage]
"""Records themselves."""


def stage_letters(recipe: AnyRecipe, task: Task, rejected: Sequence[Rejected], read: Messages) -> str:
    """Writes the block's file and returns its name. `read`: the records themselves, as far as they are in memory."""
    letters = _letters(recipe, task, rejected, read)
    return stage(recipe.dead_letters, task.plan, task.block.number, letters, task.labelled, inherited=task.inherited)


def stage_refusals(recipe: AnyRecipe, task: Task, refused: Sequence[Rejected]) -> str:
    """As `stage_letters`, of records that the target refused: the file is for the attempt that leaves out these."""
    letters = _letters(recipe, task, refused, {})
    return stage_refused(recipe.dead_letters, task.plan, task.block.number, letters)


def refuse_bad(recipe: AnyRecipe, task: Task, rejected: Sequence[Rejected]) -> None:
    """Where the first bad record ends the run. The driver knows what comes next."""
    if recipe.halts and rejected:
        first, reason = rejected[0], Reason.of(rejected[0].reason)
        where = f"{label_of(dict(task.labels), first.partition)}[{first.partition.number}], offset {first.offset}"
        raise errors.BadRecord(f"{where}: the record cannot land ({reason.code.value}): {reason}.")


def _letters(recipe: AnyRecipe, task: Task, rejected: Sequence[Rejected], messages: Messages) -> list[DeadLetter]:
    refuse_bad(recipe, task, rejected)
    lacking = [each for each in rejected if (each.partition, each.offset) not in messages]
    if lacking:
        messages = {**messages, **find(lacking, task.block.ranges, recipe.records)}
        recipe.records.require_same(task.topics)  # and no others that have their names by now
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
