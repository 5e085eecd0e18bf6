"""Workers are forked from a process that has loaded what they run. One that cannot load it is no worse than none. How many
blocks of a write are done is known while it lasts."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from landonce.config.model import Spark
from landonce.engine import workers as workers_module
from landonce.engine.spark.session import open_session
from landonce.engine.workers import SparkWorkers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
SPARK_WORKERS = True
WORK = "landonce.engine.task"


def loaded(context: SparkContext) -> list[bool]:
    def ask(_: object) -> Iterator[bool]:
        yield "landonce.engine.task" in sys.modules

    return context.parallelize(range(2), 2).mapPartitions(ask).collect()


@pytest.mark.parametrize(("work", "found"), [("", False), ("landonce.no_such_module", False), (WORK, True)])
def test_what_workers_begin_with(work: str, found: bool) -> None:
    session = open_session("loaded", Spark(master="local[2]"), expressions=False, work=work)
    try:
        assert loaded(session.sparkContext) == [found, found]
    finally:
        session.stop()


def test_how_many_blocks_are_done_is_known_while_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(_: object, task: SimpleNamespace) -> int:
        while task.number >= 3 and not task.gate.exists():
            time.sleep(0.05)
        return int(task.number)

    session = open_session("finished", Spark(master="local[2]"), expressions=False)
    gate = tmp_path / "open"
    monkeypatch.setattr(workers_module, "work", work)
    workers = SparkWorkers(lambda: session)
    tasks = [SimpleNamespace(number=number, batch=1, gate=gate) for number in range(5)]
    written: list[object] = []
    recipe = SimpleNamespace(pipeline="p", transforms=False)
    writing = threading.Thread(target=lambda: written.append(workers.write(recipe, tasks)))  # type: ignore[arg-type]
    try:
        assert workers.finished() == 0
        writing.start()
        until = time.monotonic() + 60
        while workers.finished() < 3 and time.monotonic() < until:
            time.sleep(0.1)
        assert workers.finished() == 3
        gate.touch()
        writing.join(60)
        assert written == [(0, 1, 2, 3, 4)]
        assert workers.finished() == 0
    finally:
        gate.touch()
        session.stop()
