"""`landonce run` in a process that is forked, with forked workers instead of Spark's: it starts within a moment.

All else is the real thing: the command, the driver, the protocol, the workers' own code, the servers, and SIGKILL of the whole tree of
processes. So kills can be tried at many places for little; that Spark's processes die the same way, one chain per sink shows with Spark.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked_workers import ForkedWorkers
from harness import Drivers

from landonce import failpoints
from landonce.cli import main

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "landonce.cli.run",
        "landonce.cli.progress",
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
}


class PlainProcess:
    """What `Drivers` needs of a process."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._process = _FORKS.Process(target=_landonce, args=(arguments, dict(environment), str(log)), daemon=True)
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


@dataclass
class PlainDrivers(Drivers):
    """Drivers without Spark."""

    def spawn(self, arguments: tuple[str, ...], environment: Mapping[str, str], log: Path) -> Any:
        log.touch()
        return PlainProcess(arguments, environment, log)


def _landonce(arguments: Sequence[str], environment: dict[str, str], log: str) -> None:
    """The command, as if it had been started with these words: in a session of its own that ends with the test."""
    os.setsid()
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    os.environ.update(environment)
    failpoints._PLACE = environment["LANDONCE_FAILPOINT"]
    failpoints._FILE = environment["LANDONCE_FAILPOINT_FILE"]
    failpoints._WAIT_FOR = environment["LANDONCE_FAILPOINT_WAIT_FOR"]
    failpoints._left = int(environment["LANDONCE_FAILPOINT_SKIP"])
    ForkedWorkers().install()
    sys.argv = ["landonce", *arguments]
    main()
