"""A driver and all its processes: Python, the JVM, Spark's Python workers. They share one session.

Signalling only the first process would leave the others writing.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def members(session: int) -> list[int]:
    """The ids of all processes of this session that are alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] not in "ZX":
                    found.append(int(entry.name))
    return found


def signal_tree(session: int, number: signal.Signals) -> int:
    """Signals every process of the session; returns how many there were."""
    pids = members(session)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(pids)


def kill_tree(session: int, *, timeout: float = 10.0) -> int:
    """SIGKILL for every process of the session. It stops them first, so that none can start another meanwhile."""
    count = signal_tree(session, signal.SIGSTOP)
    deadline = time.monotonic() + timeout
    while members(session) and time.monotonic() < deadline:
        signal_tree(session, signal.SIGKILL)
        time.sleep(0.02)
    return count
