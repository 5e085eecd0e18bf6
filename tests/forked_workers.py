"""Workers that are plain forked processes instead of Spark's: a driver with them starts within a moment, and needs no JVM.

As with Spark on one core, one process works on one block after the other, counts for itself how often it passes a failpoint, and can be
killed alone. When it ends before its block is done, nothing is known of any block of that write, and the next write gets a new process.
Where two drivers run in threads of one process, each has a worker, whose thread has the name of the driver's.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from pyspark import cloudpickle
from slow_files import anybody_waits

from landonce.engine.exchange import write_here
from landonce.engine.task import work
from landonce.engine.transform import doubtful
from landonce.engine.workers import Enough, Jobs, SparkWorkers
from landonce.protocol.receipt import BlockResult
from landonce.sinks.worker import ExchangingRecipe


class ForkedWorkers:
    """`start` and `write` do what those of `SparkWorkers` do. Make it before the driver has threads: a process that is forked then
    forks the workers later."""

    def __init__(self) -> None:
        self._forker, theirs = socket.socketpair()
        if os.fork() == 0:
            self._forker.close()
            _fork_workers(theirs)
        theirs.close()
        self._worker = threading.local()

    def install(self) -> None:
        """Every driver of this process has these workers."""
        SparkWorkers.start = lambda _: 2  # type: ignore[method-assign]
        SparkWorkers.write = lambda _, recipe, tasks: self.write(recipe, tasks)  # type: ignore[method-assign]
        SparkWorkers.write_until = lambda _, *asked: self.write_until(*asked)  # type: ignore[method-assign]

    def write(self, recipe: Any, tasks: Sequence[Any]) -> tuple[BlockResult, ...]:
        """One result per task, whatever happens."""
        assert not recipe.transforms, "expressions need Spark"
        try:
            if isinstance(recipe, ExchangingRecipe):
                return write_here(recipe, tasks, self._call)
            return tuple(self._call(partial(work, recipe), task) for task in tasks)
        except (EOFError, OSError):
            del self._worker.connection
            return doubtful(tasks, "the worker process ended")

    def write_until(self, recipe: Any, tasks: Sequence[Any], enough: Enough) -> tuple[BlockResult, ...]:
        """One worker for each block. Nobody ends those that are not waited for: they go on as zombies. The timeout is over once one is held
        (`slow_files`) and all others are done, so that what is ready does not depend on the machine."""

        def over(done: Sequence[BlockResult]) -> bool:
            return len(done) == len(tasks) - 1 and anybody_waits(recipe) and enough(done)

        jobs = Jobs(partial(self.write, recipe), tasks, len(tasks))
        try:
            return jobs.results(over)
        finally:
            jobs.end(lambda: None, wait=0)

    def _call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        if not hasattr(self._worker, "connection"):
            self._worker.connection = self._start_worker()
        self._worker.connection.send_bytes(cloudpickle.dumps((function, argument)))
        return pickle.loads(self._worker.connection.recv_bytes())

    def _start_worker(self) -> Connection:
        ours, theirs = socket.socketpair()
        socket.send_fds(self._forker, [threading.current_thread().name.encode()], [theirs.fileno()])
        theirs.close()
        return Connection(ours.detach())


def _fork_workers(requests: socket.socket) -> None:
    """One worker per request, until the driver has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        name, [*handles], _, _ = socket.recv_fds(requests, 256, 1)
        if not name:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            threading.current_thread().name = name.decode()
            _work(Connection(handles[0]))
        os.close(handles[0])


def _work(tasks: Connection) -> None:
    """One call after the other, until the driver has ended. A defect ends the process, with its trace in the driver's log."""
    with suppress(EOFError, ConnectionError):
        while True:
            function, argument = pickle.loads(tasks.recv_bytes())
            tasks.send_bytes(cloudpickle.dumps(function(argument)))
    os._exit(0)
