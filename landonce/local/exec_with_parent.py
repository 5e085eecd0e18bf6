"""Replaces itself with a command that the kernel kills as soon as the parent ends, even by SIGKILL.

Run as a script: `exec_with_parent.py PARENT_PID COMMAND…`. It imports nothing of landonce, keeps its process id
through exec, and never runs the command if the parent has already ended.

Hazard: Linux counts the *thread* that started the command as its parent. Start servers from a thread that lives as
long as they should, usually the main one.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the parent is gone")
    os.execvp(command[0], command)  # noqa: S606  (a list, no shell)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
