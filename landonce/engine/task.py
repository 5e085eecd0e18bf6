"""What a Spark task does with one block: read, decode, write, account.

Without a transform all of it runs in one Python worker (`work`). With one, `engine.transform` puts Spark's expressions
between the reading half (`read_half`) and the writing half (`write_half`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from landonce import errors
from landonce.engine.conform import chosen, conform, misfit
from landonce.engine.dead_letters import kept
from landonce.engine.land import failed, halted, land, rerun, verdict
from landonce.engine.letters import Messages, stage_letters
from landonce.engine.recipe import AnyTask, Recipe, Task
from landonce.failpoints import reach
from landonce.protocol.blocks import Kind
from landonce.protocol.ranges import Partition
from landonce.protocol.reasons import counted
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.protocol.settle import Mode
from landonce.read.block import ReadBlock, Reader, Rejected
from landonce.read.decoders import decoder_of
from landonce.read.kafka.identity import require_same
from landonce.read.schema.fields import Schema
from landonce.sinks.contract import COORDINATES


@dataclass(frozen=True)
class ReadAccount:
    """The account of the reading half."""

    read: int
    bytes_read: int
    rejected: tuple[Rejected, ...]
    latest: tuple[tuple[Partition, int], ...] = ()
    filtered: int = 0

    @staticmethod
    def of(block: ReadBlock) -> ReadAccount:
        return ReadAccount(
            block.read, block.bytes_read, tuple(block.rejected), tuple(sorted(block.latest.items())), block.filtered
        )

    def receipt(self, landed: int, letters: str) -> Receipt:
        """With what the writing half adds to it. `letters`: the staged file of those that were rejected."""
        return Receipt(
            read=self.read,
            landed=landed,
            filtered=self.filtered,
            dead_lettered=len(self.rejected),
            dead_letters=letters,
            reasons=counted(each.reason for each in self.rejected),
            bytes_read=self.bytes_read,
        )


DECODED = "decoded"
"""What the rows are called that one table, or expressions, take all of."""


class Reading(Protocol):
    """What the reading half needs to know."""

    @property
    def consumer(self) -> tuple[tuple[str, object], ...]: ...

    @property
    def source(self) -> Schema: ...

    @property
    def max_record_bytes(self) -> int: ...

    @property
    def most_bytes(self) -> int: ...

    @property
    def timestamps(self) -> bool: ...


def work(recipe: Recipe, task: Task) -> BlockResult:
    """Both halves, where no expression stands between them."""

    def attempt() -> BlockResult:
        block = read_half(recipe, task)
        return deliver(recipe, task, block.rows(DECODED), ReadAccount.of(block), block.messages)

    return guarded(recipe, task, attempt)


def write_half(recipe: Recipe, task: Task, rows: pa.Table, told: ReadAccount | errors.LandonceError) -> BlockResult:
    """The writing half: the rows of one block that expressions were evaluated on."""

    def attempt() -> BlockResult:
        fitting, account = fitted(recipe.target, task, rows, told)
        return deliver(recipe, task, fitting, account)

    return guarded(recipe, task, attempt)


def read_half(recipe: Reading, task: AnyTask) -> ReadBlock:
    """Reads and decodes the block, and makes sure that it is of the topics of the plan."""
    decode = decoder_of(recipe.source, max_record_bytes=recipe.max_record_bytes)
    return read_block(Reader.of_one(DECODED, decode, timestamps=recipe.timestamps), recipe, task)


def read_block(reader: Reader, recipe: Reading, task: AnyTask) -> ReadBlock:
    options = dict(recipe.consumer)
    block = reader.read(task.block.ranges, options, dict(task.labels), recipe.most_bytes)
    reach("read.after")
    require_same(task.topics, options)
    return block


def fitted(
    target: Schema, task: AnyTask, rows: pa.Table, told: ReadAccount | errors.LandonceError
) -> tuple[pa.Table, ReadAccount]:
    """The rows that expressions kept and that fit the target, and the account with those that do not."""
    if isinstance(told, errors.LandonceError):
        raise told
    kept = chosen(rows)
    fitting, misfits = conform(kept, target, COORDINATES)
    rejected = (*told.rejected, *(misfit(dict(task.labels), kept, at, reason) for at, reason in misfits))
    return fitting, replace(told, rejected=rejected, filtered=rows.num_rows - kept.num_rows)


def deliver(
    recipe: Recipe, task: Task, rows: pa.Table, account: ReadAccount, messages: Messages | None = None
) -> BlockResult:
    """Stages dead letters, lands the rows, and writes the receipt."""
    letters = stage_letters(recipe, task, account.rejected, messages or {})
    reach("stage.after")
    settling, said = land(recipe, task, rows)
    if settling.fate is not Fate.LANDED:
        return verdict(task, settling, said)
    return BlockResult(task.index, Fate.LANDED, account.receipt(rows.num_rows, letters))


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
        found = writer.count(task.labelled) if writer.atomic else 0
        name, letters = kept(recipe.dead_letters, task.plan, task.block.number) if found else ("", 0)
    except Exception as problem:
        return failed(task, problem)
    if found:
        receipt = Receipt(read=found + letters, landed=found, dead_lettered=letters, dead_letters=name)
        return BlockResult(task.index, Fate.LANDED, receipt)
    return halted(task, error)
