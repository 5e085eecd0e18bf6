"""Processes that begin as a copy of the test's own."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable
from typing import Any

FORK = multiprocessing.get_context("fork")


def started(work: Callable[..., Any], *arguments: Any) -> Any:
    """A process that does this. It leaves alone what it inherits: were a client of Kafka or of a database collected as garbage there,
    it would end threads and connections that only the parent has, and the process with them."""

    def run() -> None:
        gc.freeze()
        work(*arguments)

    process = FORK.Process(target=run)
    process.start()
    return process
