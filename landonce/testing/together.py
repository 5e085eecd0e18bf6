"""Work that several do at the same time, in threads or in processes."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

from landonce.testing.forking import FORK, started

_SECONDS = 120


def in_threads(number: int, work: Callable[[str], Any]) -> list[Any]:
    """All start at once; what each gives back. Fails with what the first of them failed with."""
    gate = threading.Barrier(number)
    results: dict[str, Any] = {}
    failed: list[str] = []

    def one(name: str) -> None:
        try:
            gate.wait(_SECONDS)
            results[name] = work(name)
        except BaseException:
            failed.append(traceback.format_exc())

    workers = [threading.Thread(target=one, args=(f"thread-{each}",), daemon=True) for each in range(number)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(_SECONDS)
    assert not failed, f"a worker failed: {failed[0]}"
    assert len(results) == number, "a worker did not come to its end"
    return list(results.values())


def in_processes(number: int, work: Callable[[str], Any]) -> list[Any]:
    """All start at once; what each gives back. Fails if one of them did."""
    gate = FORK.Barrier(number)
    pipes, workers = [], []

    def one(name: str, tell: Any) -> None:
        gate.wait(_SECONDS)
        tell.send(work(name))

    for each in range(number):
        told, tell = FORK.Pipe(duplex=False)
        worker = started(one, f"process-{each}", tell)
        tell.close()
        pipes.append(told)
        workers.append(worker)
    results = []
    for told in pipes:
        try:
            results += [told.recv()] if told.poll(_SECONDS) else []
        except EOFError:
            continue
    for worker in workers:
        worker.join(_SECONDS)
    codes = [worker.exitcode for worker in workers]
    assert codes == [0] * number, f"a worker failed, see its traceback: exit codes {codes}"
    return results
