"""Starts, recognises and ends processes: local servers, and drivers with their JVM and Spark's Python workers.

It never signals a server that it did not start: it identifies a process by its id *and* its start time, so a recycled
id is left alone. The processes of one driver share a session; signalling only the first one would leave the others
writing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_EXEC_WITH_PARENT = Path(__file__).with_name("exec_with_parent.py")
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class ProcessRef:
    """One process: `birth` is the boot it belongs to and its start time in clock ticks since that boot."""

    pid: int
    birth: str

    @classmethod
    def of(cls, pid: int) -> ProcessRef:
        """The process that has this id now; if there is none, the birth matches no process."""
        return cls(pid, _birth(pid) or "gone")

    def alive(self) -> bool:
        return _birth(self.pid) == self.birth

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the process and its children; does nothing if it has ended."""
        if not self.alive():
            return
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def wait_gone(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True


def start(
    command: Sequence[str], *, cwd: Path, log: Path, env: Mapping[str, str], die_with_parent: bool
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, with its output appended to `log`."""
    if die_with_parent:
        command = [sys.executable, "-I", "-S", str(_EXEC_WITH_PARENT), str(os.getpid()), *command]
    with log.open("ab") as output:
        return subprocess.Popen(
            list(command),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(process: ProcessRef, *, timeout: float) -> None:
    """SIGTERM, then SIGKILL if the process is still there after `timeout` seconds."""
    process.signal_group(signal.SIGTERM)
    if not process.wait_gone(timeout):
        process.signal_group(signal.SIGKILL)
        process.wait_gone(10)


def _birth(pid: int) -> str | None:
    """None if there is no such process, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name in parentheses may hold anything, so count the fields from its end.
    fields = stat.rpartition(")")[2].split()
    state, threads, start_ticks = fields[0], int(fields[17]), fields[19]
    # A killed process is a zombie at once, but holds its ports until its last thread is gone.
    return None if state in "ZX" and threads <= 1 else f"{boot}:{start_ticks}"


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
