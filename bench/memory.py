"""The most memory that a process and all below it held at one time, servers left out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

_EVERY = 0.2


class Peak:
    """Megabytes, as proportional set size: memory that forked workers share counts once."""

    def __init__(self) -> None:
        self.megabytes = 0.0


@contextmanager
def peak_memory(leave_out: set[int]) -> Iterator[Peak]:
    """Measures while the block runs."""
    peak, done = Peak(), threading.Event()

    def watch() -> None:
        while not done.wait(_EVERY):
            peak.megabytes = max(peak.megabytes, _now(leave_out))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _now(leave_out: set[int]) -> float:
    me = psutil.Process()
    total = 0
    for process in [me, *me.children(recursive=True)]:
        with suppress(psutil.Error):
            if process.pid not in leave_out:
                total += process.memory_full_info().pss
    return total / 1e6
