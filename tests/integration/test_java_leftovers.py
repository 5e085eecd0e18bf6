"""A driver that is killed leaves what its JVM put aside, in a folder of its own; the next one that starts removes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]
SPARK_WORKERS = True

SCRIPT = """
import sys
from landonce.config.model import Spark
from landonce.engine.spark.session import open_session
session = open_session("leftovers", Spark(master="local[1]"))
session.sparkContext.parallelize([1], 1).map(str).collect()
session.sparkContext._jvm.java.lang.System.err.println("JVM-SAYS so")
print("ready", flush=True)
sys.stdin.read()
session.stop()
"""


def start(folder: Path) -> subprocess.Popen[str]:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("SPARK_SUBMIT_OPTS", "SPARK_LOCAL_DIRS")
    }
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env={**environment, "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_what_a_killed_driver_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    killed = start(tmp_path)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    [left] = tmp_path.glob("landonce-java-*")
    assert list(left.glob("blockmgr-*")), "Spark's blocks are here, and nobody could clear them"
    assert not list(tmp_path.glob("blockmgr-*")) + list(tmp_path.glob("spark-*"))
    after = start(tmp_path)
    [own] = tmp_path.glob("landonce-java-*")
    assert own != left
    _, said = after.communicate()
    assert after.returncode == 0, said
    assert "Exception" not in said
    assert "incubator" not in said, "Java's own warning is passed on, into the first line of a live view"
    assert "JVM-SAYS" in said, "what else Java says is not"
