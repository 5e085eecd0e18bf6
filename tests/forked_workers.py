"""Workers that are plain forked processes instead of Spark's: a driver with them starts within a moment, and needs no JVM.

As with Spark on one core, one process works on one block after the other, counts for itself how often it passes a failpoint, and can be
killed alone. When it ends before its block is done, nothing is known of any block of that write, and the next write gets a new process.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from pyspark import cloudpickle

from landonce.engine.task import work
from landonce.engine.transform import doubtful
from landonce.engine.workers import SparkWorkers
from landonce.protocol.receipt import BlockResult


class ForkedWorkers:
    """`start` and `write` do what those of `SparkWorkers` do. Make it before the driver has threads: a process that is forked then
    forks the workers later."""

    def __init__(self) -> None:
        self._forker, theirs = socket.socketpair()
        if os.fork() == 0:
            self._forker.close()
            _fork_workers(theirs)
        theirs.close()
        self._worker: Connection | None = None

    def install(self) -> None:
        """Every driver of this process has these workers."""
        SparkWorkers.start = lambda _: 2  # type: ignore[method-assign]
        SparkWorkers.write = lambda _, recipe, tasks: self.write(recipe, tasks)  # type: ignore[method-assign]

    def write(self, recipe: Any, tasks: Sequence[Any]) -> tuple[BlockResult, ...]:
        """One result per task, whatever happens."""
        assert not recipe.transforms, "expressions need Spark"
        try:
            return tuple(self._ask(cloudpickle.dumps((recipe, task))) for task in tasks)
        except (EOFError, OSError):
            self._worker = None
            return doubtful(tasks, "the worker process ended")

    def _ask(self, task: bytes) -> BlockResult:
        if self._worker is None:
            self._worker = self._start_worker()
        self._worker.send_bytes(task)
        answer: BlockResult = pickle.loads(self._worker.recv_bytes())
        return answer

    def _start_worker(self) -> Connection:
        ours, theirs = socket.socketpair()
        socket.send_fds(self._forker, [b"fork"], [theirs.fileno()])
        theirs.close()
        return Connection(ours.detach())


def _fork_workers(requests: socket.socket) -> None:
    """One worker per request, until the driver has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        word, [*handles], _, _ = socket.recv_fds(requests, 16, 1)
        if not word:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            _work(Connection(handles[0]))
        os.close(handles[0])


def _work(tasks: Connection) -> None:
    """One block after the other, until the driver has ended. A defect ends the process, with its trace in the driver's log."""
    with suppress(EOFError):
        while True:
            recipe, task = pickle.loads(tasks.recv_bytes())
            tasks.send_bytes(cloudpickle.dumps(work(recipe, task)))
    os._exit(0)
