"""Kills a ClickHouse server between a token and its part."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from landonce.local import LocalClickHouse


@contextmanager
def killed_at_rename(server: LocalClickHouse, log: Path) -> Iterator[None]:
    """The server gets SIGKILL when it next renames anything, which is a new part on its way into place."""
    strace = shutil.which("strace")
    assert strace is not None, "scripts/test-setup installs strace"
    command = [strace, "-f", "-p", str(server.pid), "-e", "trace=rename", "-e", "inject=rename:signal=SIGKILL:when=1"]
    with log.open("w") as out:
        tracer = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while "attached" not in log.read_text():
            assert tracer.poll() is None, log.read_text()
            assert time.monotonic() < until, "strace is not attached"
            time.sleep(0.02)
        yield
        assert "rename(" in log.read_text(), "it was not a rename that killed the server"
    finally:
        tracer.kill()
        tracer.wait(10)
