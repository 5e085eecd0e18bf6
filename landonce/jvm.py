"""Spark's JVM: where Java is, whether the JVM still runs, and the error if it does not.

The JVM is a process of its own. If it ends early (the kernel's OOM killer takes it first, because it is the largest),
calls into it fail in many ways: Py4J's errors, PySpark's, `EOFError`, a refused connection, even a truncated result. So
landonce does not judge by the error: `spark_errors` checks the process itself.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from landonce.errors import LandonceError, SparkLost

_SETTLES = 2.0
"""Seconds. A killed process closes its connections some time before it is gone."""
_ENDED_EARLY = "JAVA_GATEWAY_EXITED"


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raises `SparkLost` for any error of the block if the JVM has ended or did not start. landonce's own errors pass.

    Put it around code that uses Spark, and inside code that converts Spark's errors to others.
    """
    try:
        yield
    except LandonceError:
        raise
    except Exception as error:
        if is_lost(error):
            raise spark_lost() from None
        raise


def is_lost(error: Exception) -> bool:
    """Whether the error comes from the end of the JVM. An error that the JVM itself reports does not."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors.exceptions.captured import CapturedException

    reported = isinstance(error, Py4JJavaError | CapturedException)
    if not reported and _ENDED_EARLY in str(getattr(error, "getCondition", lambda: "")()):
        return True
    deadline = time.monotonic() + (0.0 if reported else _SETTLES)
    while not has_ended():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def has_ended() -> bool:
    """Whether this process had a JVM that is gone."""
    gateway = _gateway()
    if gateway is None:
        return False
    process = _process()
    return process.poll() is not None if process is not None else not _listens(gateway)


def forget_ended() -> None:
    """PySpark never replaces its first JVM by itself. After this call, the next session starts another one."""
    if not has_ended():
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def spark_lost() -> SparkLost:
    process = _process()
    code = process.poll() if process is not None else None
    how = "" if code is None else f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"
    return SparkLost(
        "Spark's JVM ended" + (" unexpectedly" if _gateway() is not None else " before it had started") + how + ".",
        safe="Nothing is lost and nothing is duplicated; whatever was pending is settled at the next start.",
        command="start again; a supervisor may do that. If it happens again: look for the OOM killer in the kernel's "
        "log (`dmesg`), and set `spark.conf: {spark.driver.memory: …}` in {file} to what the machine has",
    )


def _gateway() -> Any:
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return getattr(context, "_gateway", None)


def _process() -> Any:
    """The JVM if this process started it. Uses `vars`, because a gateway's `getattr` calls the JVM."""
    return vars(_gateway()).get("proc") if _gateway() is not None else None


def _listens(gateway: Any) -> bool:
    """Under spark-submit the JVM is not a child of this process. Its port closes with it."""
    gate = gateway.gateway_parameters
    try:
        with socket.create_connection((gate.address, gate.port), timeout=_SETTLES):
            return True
    except ConnectionRefusedError:
        return False
    except OSError:
        return True


def java() -> str | None:
    """The path of the Java that Spark uses too."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
