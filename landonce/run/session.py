"""The Spark session: the one that is there (spark-submit), or a local one with settings that suit landonce."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from landonce.config.model import Spark
from landonce.errors import ConfigError

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
_LOUD = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark logs every error that it raises, with its Java stack; landonce reports errors itself."""


def open_session(pipeline: str, spark: Spark) -> SparkSession:
    """A session for this pipeline. Secrets never go into its configuration, which Spark shows to everybody."""
    need_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if _local(spark):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for name in _LOUD:
        logging.getLogger(name).disabled = True
    builder = SparkSession.builder.appName(f"landonce {pipeline}")
    if not _submitted():
        builder = builder.master(spark.master or "local[*]")
        for name, value in _DEFAULTS.items():
            builder = builder.config(name, value)
        builder = builder.config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_quiet_log()}")
    for name, told in spark.conf.items():
        builder = builder.config(name, str(told))
    for name, value in _PINNED.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    _refuse_speculation(session)
    for name, value in _PINNED.items():
        if name.startswith("spark.sql."):
            session.conf.set(name, value)
    session.sparkContext.setLogLevel("ERROR")
    return session


def _refuse_speculation(session: SparkSession) -> None:
    """Where the session was there before, its context keeps its settings."""
    if session.sparkContext.getConf().get("spark.speculation", "false") == "true":
        raise ConfigError(
            "spark.speculation is on: Spark would run blocks twice and take the word of the one that may not write.",
            command="start Spark with spark.speculation=false",
        )


def is_remote(spark: Spark) -> bool:
    """Whether workers may run on other machines."""
    return not _local(spark)


def need_java() -> None:
    """One clear sentence instead of a Java stack trace."""
    found = _java_version()
    if found is None:
        raise ConfigError("landonce needs Java 17 for Spark, and there is none.", command=_INSTALL)
    if found not in (17, 21):
        raise ConfigError(f"landonce needs Java 17 or 21 for Spark, and `java` is version {found}.", command=_INSTALL)


_INSTALL = "apt-get install openjdk-17-jre-headless   (or set JAVA_HOME)"


def _java_version() -> int | None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return None
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = told.split('"')[1] if '"' in told else ""
    major = version.split(".")[0]
    return int(major) if major.isdigit() else None


def _submitted() -> bool:
    return "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


def _local(spark: Spark) -> bool:
    return _master(spark).startswith("local")


def _master(spark: Spark) -> str:
    """Under spark-submit its own word counts, and not the file's."""
    if not _submitted():
        return spark.master or "local[*]"
    SparkContext._ensure_initialized()
    return SparkConf().get("spark.master") or "local[*]"


def _quiet_log() -> Path:
    return Path(__file__).with_name("log4j2.properties")
