"""Commands in processes that are forked, with forked workers instead of Spark's: they start within a moment.

All else is the real thing: the command, the driver, the protocol, the workers' own code, the servers, and SIGKILL of the whole tree of
processes.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from forked_workers import ForkedWorkers

from landonce import failpoints
from landonce.cli import main
from landonce.local.server import kill_tree
from landonce.read.kafka import mirror

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "landonce.cli.run",
        "landonce.cli.progress",
        "landonce.consumer",
        "landonce.dedup.comparing",
        "landonce.dedup.run",
        "landonce.engine.pipeline",
        "landonce.engine.task",
        "landonce.ledger.database",
        "landonce.sinks.deduplicating",
        "landonce.sinks.iceberg.worker",
        "landonce.sinks.sql.worker",
        "landonce.sinks.wrapped.worker",
        "psycopg",
        "pyarrow.parquet",
        "pyiceberg.catalog.rest",
        "pyiceberg.catalog.sql",
    ]
)
"""Not this module: Python before 3.13 does not look for it where the tests are."""
_DIE_WITH_PARENT = 1
UNDISTURBED = {
    "LANDONCE_FAILPOINT": "",
    "LANDONCE_FAILPOINT_SKIP": "0",
    "LANDONCE_FAILPOINT_FILE": "",
    "LANDONCE_FAILPOINT_WAIT_FOR": "",
    "LANDONCE_FAILPOINT_THREAD": "",
}


class PlainProcess:
    """`landonce` with these arguments, or a script; it has what `Drivers` needs of a process."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        folder: Path | None = None,
        script: str = "",
    ) -> None:
        log.touch()
        given = (tuple(arguments), dict(environment), str(log), str(folder or ""), script)
        self._process = _FORKS.Process(target=_run, args=given, daemon=True)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("landonce run", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """And its workers: one that stands at a failpoint would never end. It has no session of its own yet if it has just begun."""
        kill_tree(self.pid)
        self._process.kill()


def _run(arguments: Sequence[str], environment: dict[str, str], log: str, folder: str, script: str) -> None:
    """As if it had been started with these words: in a session of its own that ends with the test."""
    os.setsid()
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    os.environ.update(environment)
    if folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
    failpoints._PLACE = environment["LANDONCE_FAILPOINT"]
    failpoints._FILE = environment["LANDONCE_FAILPOINT_FILE"]
    failpoints._WAIT_FOR = environment["LANDONCE_FAILPOINT_WAIT_FOR"]
    failpoints._THREAD = environment.get("LANDONCE_FAILPOINT_THREAD", "")
    failpoints._left = int(environment["LANDONCE_FAILPOINT_SKIP"])
    if "LAST_COPY" in environment:  # a test looks for it, on a busy machine
        mirror.AT_THE_END = 60.0
    ForkedWorkers().install()
    sys.argv = [script or "landonce", *arguments]
    if script:
        runpy.run_path(script, run_name="__main__")
    else:
        main()
