"""The worker's part of a sink that deduplicates: it drives `protocol.settle` against the target until the block has a fate.

Nothing here decides: it asks, waits and reports. A task that Spark runs a second time sends nothing, for its first run may have sent
already. The driver hears that there is doubt, and knows what to do.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace

import pyarrow as pa

from landonce import errors
from landonce.config.secrets import redact
from landonce.failpoints import reach
from landonce.protocol import settle
from landonce.protocol.blocks import Kind
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.protocol.settle import Mode, Problem, Reply, Settling, Stage
from landonce.read.block import ReadBlock, Reader
from landonce.read.decoding import decode_by
from landonce.read.rows import fit_to
from landonce.read.schema.fields import Schema
from landonce.sinks.contract import BlockWriter, DeduplicatingSink, Insert, wait_out
from landonce.sinks.run import Columns, OpenSink, Run, SparkNeeds, refuse_unfit
from landonce.sinks.worker import BlockWorker, OneTable, Refuse, Task, halted

_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Between sends that the target refuses. After the last one the driver takes over, which knows when to give up."""


@dataclass(frozen=True, kw_only=True)
class InsertTask(Task):
    """One block to be inserted."""

    token: str
    deadline: int
    mode: Mode
    kind: Kind


@dataclass(frozen=True, kw_only=True)
class InsertRecipe(OneTable[InsertTask]):
    """Of a target that deduplicates."""

    sink: DeduplicatingSink
    wary: bool = False
    """Rows come through a shuffle from other executors. With one of those Spark loses a stage and runs all of its tasks again, and
    these do not say that they are run again: so an acknowledgement is checked by a probe."""

    def worker(self, task: InsertTask) -> InsertWorker:
        return InsertWorker(self, task)


def insert_recipe(run: Run, sink: DeduplicatingSink, table: Schema) -> InsertRecipe:
    """What a record is decoded to and what the table takes, and that the one can become the other."""
    run.refuse_misfits(table, sink.identity)
    wary = run.query is not None and not run.one_process
    return InsertRecipe(**run.basics, source=run.source(table), target=table, sink=sink, wary=wary)


@dataclass(frozen=True)
class InsertWorker(BlockWorker):
    """Sends and probes one block."""

    recipe: InsertRecipe
    task: InsertTask

    def reader(self) -> Reader:
        decode = decode_by(self.recipe.source, self.recipe.decoding)
        return Reader.of_one(self.task.block.table, decode, fit_to(self.recipe.target))

    def run_again(self) -> BlockResult:
        """Doubt. Where the first task may still run, this one returns only once nothing that was sent can take effect any more: if the
        first is done before, Spark ends this one."""
        if self.recipe.shuffled:
            wait_out(self.recipe.sink.target(), self.task.deadline)
        return BlockResult(self.task.index, Fate.DOUBTFUL, why="Spark ran the task again")

    def landed_before(self) -> int:
        """A block that was sent in this very cut lands whole where the table has no partitions: then one row proves all."""
        if self.task.mode is Mode.FIRST or self.task.kind is not Kind.DELIVER:
            return 0
        writer = self.recipe.sink.writer()
        return writer.count(self.task.labelled) if writer.atomic else 0

    def write(self, block: ReadBlock, receipt: Receipt, refuse: Refuse | None) -> BlockResult:
        del refuse
        rows = block.rows(self.task.block.table)
        settling, reply = land(self.recipe.sink.writer(), self.task, rows, wary=self.recipe.wary)
        if settling.fate is not Fate.LANDED:
            return verdict(self.task, settling, reply)
        return BlockResult(self.task.index, Fate.LANDED, replace(receipt, landed=rows.num_rows))


def land(writer: BlockWriter, task: InsertTask, rows: pa.Table, *, wary: bool = False) -> tuple[Settling, str]:
    """Sends and probes until the block's fate is known; returns it with what the target replied last, where it refused."""
    settling = settle.begin(task.mode, fill=task.kind is Kind.FILL or writer.resend_harmless, wary=wary)
    if rows.num_rows == 0:
        return settle.nothing_to_land(settling), ""
    missing = rows
    refusals = 0
    while settling.fate is None:
        if settling.stage is Stage.SEND:
            reply = _send(writer, missing if settling.missing_only else rows, task)
            settling = settle.after_send(settling, reply)
            if reply is Reply.REFUSED:
                if refusals == len(_PAUSES):
                    raise errors.TargetUnavailable(f"the target keeps refusing the insert: {writer.said}")
                time.sleep(_PAUSES[refusals])
                refusals += 1
        else:
            reach("probe.before")
            probe = writer.probe(rows, task.labelled)
            reach("probe.after")
            missing = rows.filter(probe.missing)
            settling = settle.after_probe(settling, probe.presence)
    return settling, writer.why_gone() if settling.fate is Fate.TOKEN_USED_UP else writer.said


def _send(writer: BlockWriter, rows: pa.Table, task: InsertTask) -> Reply:
    reach("send.before")
    reply = writer.send(rows, Insert(task.token, task.deadline, uuid.uuid4().hex[:12]))
    reach("send.after")
    return reply


def verdict(task: InsertTask, settling: Settling, reply: str) -> BlockResult:
    """A fate that is not `LANDED`, as the driver gets it."""
    if settling.problem is Problem.DUPLICATE:
        return halted(task, _duplicate(task))
    if settling.problem is Problem.PARTIAL:
        return halted(task, _partial(task))
    return BlockResult(task.index, settling.fate or Fate.DOUBTFUL, why=redact(reply))


def _duplicate(task: InsertTask) -> errors.DuplicatePresent:
    return errors.DuplicatePresent(
        f"block {task.block}: the target {task.block.table} holds some of its coordinates more than once.",
        safe="landonce wrote nothing more. Something else wrote these rows, or restored them beside the old ones.",
        command="landonce verify {file}   (lists the coordinates; remove the copies, then run again)",
    )


def _partial(task: InsertTask) -> errors.PartialPresence:
    return errors.PartialPresence(
        f"block {task.block}: one partition of the table {task.block.table} holds some of its rows and lacks others. "
        "A block lands whole there or not at all, so somebody deleted rows, a TTL ran, or rows merged away.",
        safe="landonce wrote nothing.",
        command="landonce state fill {file}   (writes what is missing)",
    )


class OpenDeduplicating(OpenSink):
    """A target that deduplicates, opened on the driver."""

    recipe: InsertRecipe

    def __init__(self, sink: DeduplicatingSink, run: Run) -> None:
        super().__init__(run)
        self.sink = sink
        self.target = sink.target()

    def columns_to_make(self) -> Columns | None:
        if not self.sink.create or self.target.exists():
            return None
        return self.run.columns(self.sink.creation)

    def spark(self) -> SparkNeeds:
        return SparkNeeds(("landonce.sinks.deduplicating",))

    def make_ready(self, columns: Columns | None) -> None:
        self.recipe = self._fit() if columns is None else self._made(columns())

    def _fit(self) -> InsertRecipe:
        refuse_unfit(self.target.check())
        return insert_recipe(self.run, self.sink, self.target.schema())

    def _made(self, columns: Schema) -> InsertRecipe:
        """Makes the table. One that turns out not to be fit is not left behind."""
        self.sink.creation(columns)
        self._examined(columns)
        self.sink.make(self.target, columns)
        try:
            self._fit()
            return self._examined(self.target.schema())
        except (errors.Halt, errors.ConfigError):
            self.target.take_back()
            raise

    def _examined(self, table: Schema) -> InsertRecipe:
        recipe = insert_recipe(self.run, self.sink, table)
        if recipe.transforms:
            self.run.examine(recipe)
        return recipe

    def close(self) -> None:
        self.target.close()
