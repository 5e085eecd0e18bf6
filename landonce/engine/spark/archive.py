"""Spark's classes as Java's archive of them (class data sharing): with it, the JVM of a driver needs half the time to start.

It is made once, by `python -m landonce.engine.spark.archive`, and lives in the virtualenv whose PySpark it is of. Without it, or with
another Java, everything works as before: the JVM looks whether the archive fits, and otherwise does without.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyspark

from landonce.jvm import java

_USE = "-XX:SharedArchiveFile={path} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
_MAKE = "-XX:ArchiveClassesAtExit={path} -Xlog:cds=off -Xlog:cds+dynamic=off"
_MAKING = "LANDONCE_MAKES_ARCHIVE"
_PATIENCE = 300


def java_options() -> str:
    """Options for the JVM of a driver; none if there is no archive."""
    making = os.environ.get(_MAKING)
    if making is not None:
        return f" {_MAKE.format(path=making)}"
    path = _path()
    return f" {_USE.format(path=path)}" if path is not None and path.exists() else ""


def make() -> Path | None:
    """Makes the archive, unless it is there: a session of its own does a little of what drivers do, and says which classes
    that took. Gives none where Java, or the folder, does not lend itself to it."""
    path = _path()
    if path is None or path.exists() or " " in str(path):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")
    if not _rehearsed({**os.environ, _MAKING: str(new)}) or not new.exists():
        new.unlink(missing_ok=True)
        return None
    new.replace(path)
    if not _rehearsed(dict(os.environ)):  # a disk that was full, say: no archive is better than a broken one
        path.unlink()
        return None
    return path


def _rehearsed(environment: dict[str, str]) -> bool:
    command = [sys.executable, "-c", "from landonce.engine.spark.archive import rehearse; rehearse()"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:  # a machine that is busy: without an archive, everything works
        return False
    return done.returncode == 0


def rehearse() -> None:
    """What a driver does with Spark, in small."""
    from pyspark import SparkContext

    from landonce.config.model import Spark
    from landonce.engine.spark.session import open_session

    session = open_session("archive", Spark(master="local[2]"))
    session.sparkContext.parallelize(range(2), 2).map(str).collect()
    session.range(2).selectExpr("id + 1 AS next", "upper('a') AS letter").where("next > 1").toArrow()
    session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_PATIENCE)


def _path() -> Path | None:
    found = java()
    if found is None or not os.access(sys.prefix, os.W_OK):
        return None
    real = Path(found).resolve()
    of = f"{real} {real.stat().st_mtime_ns} {pyspark.__version__} {pyspark.__file__}"
    return Path(sys.prefix) / "landonce" / f"spark-{hashlib.sha256(of.encode()).hexdigest()[:16]}.jsa"


if __name__ == "__main__":
    make()
