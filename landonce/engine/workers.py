"""The workers: one Spark job per write, one task per block, receipts as task results. No control topic."""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic

from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from landonce.config.secrets import redact
from landonce.engine import exchange, transform
from landonce.engine.spark.finders import sparing
from landonce.engine.task import work
from landonce.errors import TransformFailed
from landonce.jvm import spark_errors
from landonce.protocol.receipt import BlockResult
from landonce.sinks.worker import ExchangingRecipe, Recipe, T

Enough = Callable[[Sequence[BlockResult]], bool]
"""Whether these results are enough, so that nobody waits for the others."""
_LOOK_AGAIN = 0.25
"""Seconds between two looks at what is done."""
_ENDING = 10.0
"""Seconds after which a job that was cancelled is left alone."""
_LAST_FAILURE = "most recent failure: "
_OF_JAVA = ("\tat ", "\t...", "Driver stacktrace:")


@dataclass
class SparkWorkers:
    """Runs tasks on a Spark session, which is opened when it is first needed. A job that Spark cannot finish leaves doubt, and
    what follows from that the protocol of the sink decides."""

    session: Callable[[], SparkSession]
    examine: Callable[[SparkSession], None] = lambda _: None
    """Raises what is wrong with the expressions. Asked once, before any plan is made."""
    incoming = None
    """Brokers are asked which ranges there are."""
    _started: bool = False
    _group: str = ""
    """Of the job in hand."""

    def start(self) -> int:
        """Opens the session, and gives how many tasks run at once. What is wrong with Spark or the expressions is raised here."""
        with spark_errors():
            session = self.session()
            if not self._started:
                self.examine(session)
                self._started = True
            return int(session.sparkContext.defaultParallelism)

    def write(self, recipe: Recipe[T], tasks: Sequence[T]) -> tuple[BlockResult, ...]:
        """One result per task, whatever happens."""
        self._group = f"landonce {uuid.uuid4().hex}"
        try:
            return self._run(recipe, tasks)
        finally:
            self._group = ""

    def write_until(self, recipe: Recipe[T], tasks: Sequence[T], enough: Enough) -> tuple[BlockResult, ...]:
        """As `write`, with a job for each block, until all are done or what is done is `enough`. The other jobs are cancelled. If Spark
        cannot stop a task, the files that it writes are never committed."""
        with spark_errors():
            session = self.session()
        self._group = f"landonce {uuid.uuid4().hex}"
        width, thread = 2 * int(session.sparkContext.defaultParallelism), partial(InheritableThread, session=session)
        jobs = Jobs(partial(self._run, recipe), tasks, width, thread)
        try:
            return jobs.results(enough)
        finally:
            jobs.end(partial(session.sparkContext.cancelJobGroup, self._group))
            self._group = ""

    def _run(self, recipe: Recipe[T], tasks: Sequence[T]) -> tuple[BlockResult, ...]:
        try:
            with spark_errors():
                return self._write(self.session(), recipe, tasks)
        except PySparkException as error:
            if recipe.transforms and error.getCondition():  # Spark names a value in a record, and no machine
                raise TransformFailed(
                    f"a transform expression failed on a record: {redact(str(error).strip().splitlines()[0])}",
                    safe="The position did not move; the plan is pending and will be settled at the next start.",
                    command="change the expression so that it returns NULL for such values (try_cast, try_divide, …), then "
                    "`landonce state accept-change {file}`",
                ) from None
            return transform.doubtful(tasks, said(str(error)))
        except Py4JError as error:
            return transform.doubtful(tasks, said(str(error)))

    def finished(self) -> int:
        """How many blocks of the current write are done. Spark counts them, so workers do nothing for it. Any thread may ask."""
        group = self._group
        if not group:
            return 0
        tracker = self.session().sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(each) for each in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(each) for job in jobs if job is not None for each in job.stageIds]
        return sum(each.numCompletedTasks for each in stages if each is not None)

    def _write(self, session: SparkSession, recipe: Recipe[T], tasks: Sequence[T]) -> tuple[BlockResult, ...]:
        context = session.sparkContext
        context.setJobGroup(self._group, f"landonce {recipe.pipeline}: batch {tasks[0].batch}, {len(tasks)} blocks")
        if recipe.transforms:
            return transform.write(session, recipe, tasks)
        if isinstance(recipe, ExchangingRecipe):
            return exchange.write(context, recipe, tasks)
        return tuple(context.parallelize(tasks, len(tasks)).map(partial(sparing, work, recipe)).collect())


class Jobs(Generic[T]):
    """A job for each task, some of them at once. `run` gives the results of a job; the first error that it raises is raised here."""

    def __init__(
        self,
        run: Callable[[Sequence[T]], tuple[BlockResult, ...]],
        tasks: Sequence[T],
        width: int,
        thread: Callable[..., threading.Thread] = threading.Thread,
    ) -> None:
        self._run, self._count = run, len(tasks)
        self._left: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[BlockResult, ...] | Exception] = queue.SimpleQueue()
        self._ended = threading.Event()
        for task in tasks:
            self._left.put(task)
        name = threading.current_thread().name
        self._threads = [thread(target=self._work, name=name, daemon=True) for _ in range(min(width, len(tasks)))]
        for each in self._threads:
            each.start()

    def results(self, enough: Enough) -> tuple[BlockResult, ...]:
        """What is done, once that is all or enough."""
        found: list[BlockResult] = []
        while len(found) < self._count and not enough(found):
            try:
                done = self._done.get(timeout=_LOOK_AGAIN)
            except queue.Empty:
                continue
            if isinstance(done, Exception):
                raise done
            found.extend(done)
        return tuple(found)

    def end(self, cancel: Callable[[], object], wait: float = _ENDING) -> None:
        """Cancels what still runs, repeatedly, because a job may begin meanwhile. Waits for a few seconds at most."""
        self._ended.set()
        until = time.monotonic() + wait
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < until:
            with suppress(Py4JError, OSError):
                cancel()
            for thread in self._threads:
                thread.join(_LOOK_AGAIN)

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                task = self._left.get_nowait()
            except queue.Empty:
                return
            try:
                self._done.put(self._run([task]))
            except Exception as error:
                self._done.put(error)


def said(text: str) -> str:
    """The part of Spark's message that says what happened to the task, without Java's stack."""
    failure = text.partition(_LAST_FAILURE)[2] or text
    lines = [line.strip() for line in failure.splitlines() if line.strip() and not line.startswith(_OF_JAVA)]
    return redact(" ".join(lines)[:1000])
