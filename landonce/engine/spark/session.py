"""The Spark session: the one that is there (spark-submit), or a local one with settings that suit landonce."""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from landonce.config.model import Spark
from landonce.config.secrets import redact
from landonce.engine.spark import archive, daemon
from landonce.engine.spark.temp_dirs import temporary_folder
from landonce.errors import ConfigError
from landonce.jvm import forget_ended, has_ended, java, spark_errors

QUIET_LOG = Path(__file__).with_name("log4j2.properties")
_PINNED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.speculation": "false",
}
"""Part of what decides the rows, or of what the guarantee rests on: the same in every session."""
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "1g",
}
_REDACTION = "spark.redaction.regex"
_SECRETS = (
    "(?i)secret|password|passwd|token|credential|access[.]?key|account[.-]key|private[.-]?key|connection-string|[.]sas"
    "|^spark[.]sql[.]catalog[.].*(key|auth|sas|header)"
)
"""Settings whose values Spark hides in its pages, its event log and its own log. Its default leaves out `credential` and keys of storages."""
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_NOISE = "WARNING: Using incubator modules"
"""Java says so whenever Spark starts it."""
_LOUD = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j.clientserver", "py4j.java_gateway")
"""PySpark logs every error that it raises, with its Java stack; landonce reports errors itself."""


def open_session(
    pipeline: str, spark: Spark, *, expressions: bool = True, extra: Mapping[str, str] | None = None, work: str = ""
) -> SparkSession:
    """A session for this pipeline. Where no `expressions` are evaluated, the JVM only passes tasks on, and starts faster.
    `work`: the modules that workers will run, with commas between them. They are loaded once for all workers, where these are on this
    machine.

    `extra`: a catalog's settings, which may hold secrets. They are kept out of the list of processes, as are a user's own.
    """
    need_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not is_remote(spark):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for name in _LOUD:
        logging.getLogger(name).disabled = True
    logging.getLogger().addFilter(_not_of_py4j)
    forget_ended()
    folder = temporary_folder() if SparkContext._gateway is None and not _submitted() else None
    settings = _settings(pipeline, spark, expressions, {**_loading(spark, work), **(extra or {})}, folder)
    with spark_errors(), _settings_for_java(settings, folder) as builder, _own_handler_kept():
        _start_java()
        session = builder.getOrCreate()
        quiet_at_its_end(session.sparkContext._accumulatorServer)
        _refuse_speculation(session)
        for name, value in _PINNED.items():
            if name.startswith("spark.sql."):
                session.conf.set(name, value)
        session.sparkContext.setLogLevel("ERROR")
    return session


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """Py4J uses the root logger for a call that failed, with the whole trace."""
    return "py4j" not in Path(record.pathname).parts


def quiet_at_its_end(server: Any) -> None:
    """PySpark's server for accumulators prints a traceback when the JVM's connection ends. The caller raises `SparkLost`."""
    prints = server.handle_error

    def handle(request: Any, address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | OSError):
            prints(request, address)

    server.handle_error = handle


def active_session() -> SparkSession | None:
    """The session that is there already. One whose JVM has ended is none."""
    forget_ended()
    return SparkSession.getActiveSession()


def _start_java() -> None:
    """Starts the JVM, if there is none yet. Its standard error is passed on line by line through `sys.stderr`, so that lines do not run
    into a live view, and without Java's own warning about modules."""
    if SparkContext._gateway is not None or _submitted():
        return
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(reading,), name="landonce java", daemon=True).start()
    try:
        gateway = launch_gateway(popen_kwargs={"stderr": writing})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
    finally:
        os.close(writing)


def _pass_on(reading: int) -> None:
    with open(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.startswith(_NOISE):
                sys.stderr.write(redact(line))
                sys.stderr.flush()


@contextmanager
def _own_handler_kept() -> Iterator[None]:
    """PySpark takes SIGINT for itself when it starts. A handler that was set before is kept."""
    before = signal.getsignal(signal.SIGINT)
    yield
    in_main_thread = threading.current_thread() is threading.main_thread()
    if callable(before) and before is not signal.default_int_handler and in_main_thread:
        signal.signal(signal.SIGINT, before)


@contextmanager
def session_if_needed(opens: Callable[[], SparkSession]) -> Iterator[Callable[[], SparkSession]]:
    """Gives a session when it is first asked for. It is stopped afterwards, unless it was there before."""
    opened: list[SparkSession] = []
    borrowed = active_session() is not None

    def session() -> SparkSession:
        if not opened:
            opened.append(opens())
        return opened[0]

    with spark_errors():
        try:
            yield session
        finally:
            if opened and not borrowed and not has_ended():
                opened[0].stop()


def _settings(
    pipeline: str, spark: Spark, expressions: bool, extra: Mapping[str, str], folder: Path | None
) -> dict[str, str]:
    """`folder`: for the temporary files of a JVM that is to be started, unless `SPARK_SUBMIT_OPTS` names one."""
    own: dict[str, str] = {}
    if not _submitted():
        options = f"-Dlog4j2.configurationFile={QUIET_LOG}{archive.java_options()}"
        options += "" if expressions else f" {_QUICK_START}"
        chosen = "java.io.tmpdir" in os.environ.get("SPARK_SUBMIT_OPTS", "")
        options += f" -Djava.io.tmpdir={folder}" if folder is not None and not chosen and " " not in str(folder) else ""
        own = {**_DEFAULTS, "spark.master": spark.master or "local[*]", "spark.driver.extraJavaOptions": options}
    if not _submitted() or not SparkConf().contains(_REDACTION):
        own[_REDACTION] = _SECRETS
    given = {name: str(value) for name, value in spark.conf.items()}
    return {"spark.app.name": f"landonce {pipeline}", **own, **extra, **given, **_PINNED}


def _loading(spark: Spark, work: str) -> dict[str, str]:
    if not work or _submitted() or is_remote(spark):
        return {}
    return {"spark.python.daemon.module": daemon.__name__, f"spark.executorEnv.{daemon.LOADED}": work}


@contextmanager
def _settings_for_java(settings: Mapping[str, str], folder: Path | None) -> Iterator[SparkSession.Builder]:
    """Settings for a JVM that is to be started go through a file that only this user may read, and that is deleted afterwards: PySpark
    would put them on the command line, where everybody on the machine can read them. The next start deletes the file of a process
    that was killed meanwhile, with its `folder`. None: there is a JVM already."""
    builder = SparkSession.builder
    if folder is None:
        for name, value in settings.items():
            builder = builder.config(name, value)
        yield builder
        return
    handle, path = tempfile.mkstemp(suffix=".conf", dir=folder)
    before = os.environ.get("PYSPARK_SUBMIT_ARGS")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            for name, value in settings.items():
                escaped = value.replace("\\", "\\\\").replace("\n", "\\n")  # as Java's properties files want it
                file.write(f"{name}={escaped}\n")
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {shlex.quote(path)} pyspark-shell"
        yield builder
    finally:
        Path(path).unlink(missing_ok=True)
        if before is None:
            os.environ.pop("PYSPARK_SUBMIT_ARGS", None)
        else:
            os.environ["PYSPARK_SUBMIT_ARGS"] = before


def _refuse_speculation(session: SparkSession) -> None:
    """Where the session was there before, its context keeps its settings."""
    if session.sparkContext.getConf().get("spark.speculation", "false") == "true":
        raise ConfigError(
            "spark.speculation is on. Spark would run a second task for a block and might use the result of the wrong "
            "one.",
            command="start Spark with spark.speculation=false",
        )


def need_java() -> None:
    """One clear sentence instead of a Java stack trace."""
    path, found = java(), None
    if path is not None:
        reply = subprocess.run([path, "-version"], capture_output=True, text=True, check=False).stderr
        version = re.search(r'version "(\d+)', reply)
        found = int(version[1]) if version is not None else None
    if found is None:
        home = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME={home} has no bin/java that runs" if home else "there is none"
        raise ConfigError(f"landonce needs Java 17 for Spark, and {where}.", command=_INSTALL)
    if found not in (17, 21):
        raise ConfigError(f"landonce needs Java 17 or 21 for Spark, and `java` is version {found}.", command=_INSTALL)


_INSTALL = "apt-get install openjdk-17-jre-headless   (or set JAVA_HOME)"


def _submitted() -> bool:
    return "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


def is_remote(spark: Spark) -> bool:
    """Whether workers may run on other machines. Under spark-submit its own master counts, and not the file's."""
    master = spark.master
    if _submitted():
        SparkContext._ensure_initialized()
        master = SparkConf().get("spark.master")
    return not (master or "local[*]").startswith("local")
