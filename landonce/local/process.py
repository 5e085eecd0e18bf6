"""Starts, recognises and ends the processes of local servers.

It never signals a process that it did not start: it identifies a process by its id *and* its start time, so a recycled
id is left alone.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
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
    def of(cls, pid: int) -> "ProcessRef":
        """The process that has this id now; if there is none, the birth matches no process."""
        return cls(pid, _birth(pid) or "gone")

    def alive(self) -> bool:
        return _birth(self.pid) == self.birth

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the process and its children; does nothing if it has ended."""
        if not self.alive():
            return
        with contextlib.suppress(ProcessLookupError):
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
) -> "subprocess.Popen[bytes]":
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
