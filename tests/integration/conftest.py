"""One JVM for all modules that open Spark sessions in the test process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from near_workers import install, restore
from pyspark import SparkContext
from pyspark.sql import SparkSession
from query_site import Open, open_session, opener

from landonce import jvm
from landonce.engine.spark.session import QUIET_LOG
from landonce.jars import SPARK_KAFKA, spark_jars
from landonce.jvm import forget_ended
from landonce.local import LocalKafka

_OPENERS = ("SparkSession", "open_session", "iceberg_session", "streaming_query")
_shared: list[Any] = []
"""The gateway to that JVM."""


@pytest.fixture(scope="module", autouse=True)
def own_jvm(request: pytest.FixtureRequest, leftovers: None) -> Iterator[None]:
    """Sessions and their settings end with their module, the JVM does not. It knows every jar from its start, since it cannot load one
    later. A module with `OWN_JVM = True` gets one that landonce starts, as does one that names none of `_OPENERS` and comes first."""
    if getattr(request.module, "OWN_JVM", False):
        SparkContext._gateway = SparkContext._jvm = None
    elif _shared and _shared[0].proc.poll() is None:
        SparkContext._ensure_initialized(gateway=_shared[0])
    elif any(name in vars(request.module) for name in _OPENERS):
        _start_jvm()
    yield
    forget_ended()
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    if SparkContext._gateway is not None and SparkContext._gateway not in _shared:
        _end_jvm(SparkContext._gateway)


@pytest.fixture(scope="module")
def spark(own_jvm: None) -> SparkSession:
    """For users' own queries."""
    if SparkContext._gateway is None:
        _start_jvm()
    return open_session()


@pytest.fixture
def open_site(
    spark: SparkSession,
    kafka: LocalKafka,
    tmp_path: Path,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    request: pytest.FixtureRequest,
) -> Open:
    return opener(spark, kafka, tmp_path, new_topic, new_table, request)


@pytest.fixture(scope="module", autouse=True)
def near_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drivers of this process have workers in this process, unless the module says `SPARK_WORKERS = True` (what it tests is Spark's), or
    `--spark-workers` is given, as `make test-long` does."""
    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "SPARK_WORKERS", False) and not request.config.getoption("--spark-workers"):
            install(patch)
        yield


@pytest.fixture
def spark_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers of this test have Spark's workers, in a module whose others do without."""
    restore(monkeypatch)


@pytest.fixture(scope="module", autouse=True)
def jvm_is_there(request: pytest.FixtureRequest) -> Iterator[None]:
    """After an error, landonce does not wait to see whether the JVM is about to end, unless the module ends one (`ENDS_JVM = True`): most
    drivers here end by an exception that stands for a crash, and each would wait for seconds."""
    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "ENDS_JVM", False):
            patch.setattr(jvm, "_SETTLES", 0.05)
        yield


def _start_jvm() -> None:
    jars = ",".join(map(str, spark_jars()))
    quiet = f"{os.environ['SPARK_SUBMIT_OPTS']} -Dlog4j2.configurationFile={QUIET_LOG}"
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with _environment(
        PYSPARK_SUBMIT_ARGS=f"--packages {SPARK_KAFKA} --jars {jars} pyspark-shell", SPARK_SUBMIT_OPTS=quiet
    ):
        SparkContext._ensure_initialized()
    _shared[:] = [SparkContext._gateway]


def _end_jvm(gateway: Any) -> None:
    gateway.shutdown()
    gateway.proc.terminate()
    gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
