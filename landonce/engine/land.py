"""Landing one block: a worker drives `settle` against the sink until the block has a fate.

Nothing here decides: it asks, waits and reports. A task that Spark runs a second time sends nothing, for its first run
may have sent already; the driver is told that there is doubt, and it knows what to do.
"""

from __future__ import annotations

import time
import uuid
from typing import Protocol

import pyarrow as pa
from pyspark import TaskContext

from landonce import errors
from landonce.config.secrets import redact
from landonce.engine.recipe import AnyTask, Task
from landonce.failpoints import reach
from landonce.protocol import settle
from landonce.protocol.blocks import Kind
from landonce.protocol.receipt import BlockResult, Fate
from landonce.protocol.settle import Problem, Reply, Settling, Stage
from landonce.sinks.contract import BlockWriter, DeduplicatingSink, Insert

_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Between sends that the target refuses. After the last one the driver takes over, which knows when to give up."""


class Landing(Protocol):
    """A recipe of any kind: where its rows go."""

    @property
    def sink(self) -> DeduplicatingSink: ...


def rerun() -> bool:
    """Whether Spark runs this task again, or a second time beside the first."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def land(recipe: Landing, task: Task, rows: pa.Table, *, wary: bool = False) -> tuple[Settling, str]:
    """Sends and probes until the block's fate is known; gives it with what the target said last, where it refused."""
    writer = recipe.sink.writer()
    settling = settle.begin(task.mode, fill=task.kind is Kind.FILL or writer.resend_harmless, wary=wary)
    if rows.num_rows == 0:
        return settle.nothing_to_land(settling), ""
    ranges = task.labelled
    missing = rows
    refusals = 0
    while settling.fate is None:
        if settling.stage is Stage.SEND:
            reply = _send(writer, missing if settling.missing_only else rows, task)
            settling = settle.after_send(settling, reply)
            if reply is Reply.REFUSED:
                if refusals == len(_PAUSES):
                    raise errors.TargetUnavailable(f"the target refuses the insert again and again: {writer.said}")
                time.sleep(_PAUSES[refusals])
                refusals += 1
        else:
            reach("probe.before")
            probe = writer.probe(rows, ranges)
            reach("probe.after")
            missing = rows.filter(probe.missing)
            settling = settle.after_probe(settling, probe.presence)
    return settling, writer.why_gone() if settling.fate is Fate.BURNT else writer.said


def _send(writer: BlockWriter, rows: pa.Table, task: Task) -> Reply:
    reach("send.before")
    reply = writer.send(rows, Insert(task.token, task.deadline, uuid.uuid4().hex[:12]))
    reach("send.after")
    return reply


def verdict(task: Task, settling: Settling, said: str) -> BlockResult:
    """A fate that is not `LANDED`, as the driver gets it."""
    if settling.problem is Problem.DUPLICATE:
        return halted(task, _duplicate(task))
    if settling.problem is Problem.PARTIAL:
        return halted(task, _partial(task))
    return BlockResult(task.index, settling.fate or Fate.DOUBTFUL, why=redact(said))


def halted(task: AnyTask, error: errors.LandonceError) -> BlockResult:
    return BlockResult(task.index, Fate.HALTED, error=error)


def failed(task: AnyTask, error: Exception) -> BlockResult:
    """An exception as a fate: what may pass is doubt, what is named halts, and a defect halts too."""
    if isinstance(error, errors.Transient):
        return BlockResult(task.index, Fate.DOUBTFUL, why=redact(error.what))
    return halted(task, named(task, error))


def named(task: AnyTask, error: Exception) -> errors.LandonceError:
    """The error itself, or a defect as a `Halt`."""
    if isinstance(error, errors.LandonceError):
        return error
    return errors.Halt(
        redact(f"block {task.block}: {type(error).__name__}: {error}"),
        safe="The position did not move; the plan is pending and will be settled at the next start.",
    )


def _duplicate(task: Task) -> errors.DuplicatePresent:
    return errors.DuplicatePresent(
        f"block {task.block}: the target {task.block.table} holds some of its coordinates more than once.",
        safe="landonce wrote nothing more. Something else wrote these rows, or restored them beside the old ones.",
        command="landonce verify {file}   (names the coordinates; remove the copies, then run again)",
    )


def _partial(task: Task) -> errors.PartialPresence:
    return errors.PartialPresence(
        f"block {task.block}: one partition of the table {task.block.table} holds some of its rows and lacks others. "
        "A block lands whole there or not at all, so somebody deleted rows, a TTL ran, or rows merged away.",
        safe="landonce wrote nothing. What is missing was not guessed.",
        command="landonce state fill {file}   (writes what is missing)",
    )
