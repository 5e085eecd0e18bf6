"""Workers in the test process: what Spark's workers do with a block, without a Spark session to start for each run.

A block still goes through pickle, as it does on its way to a worker. Expressions, and tables that Spark writes itself, are Spark's here, too.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from landonce.engine import workers as of_spark
from landonce.engine.exchange import write_here
from landonce.engine.workers import Enough, Jobs, SparkWorkers
from landonce.protocol.receipt import BlockResult
from landonce.sinks.worker import ExchangingRecipe

_AT_ONCE = 2
_BY_SPARK = SparkWorkers.start, SparkWorkers.write, SparkWorkers.write_until


class LateSession:
    """A Spark session that is opened by the first use of it."""

    def __init__(self, opens: Callable[[], SparkSession]) -> None:
        self._opens = opens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opens(), name)


def install(patch: pytest.MonkeyPatch) -> None:
    """Every driver of this process has these workers."""

    def start(workers: SparkWorkers) -> int:
        if not workers._started:
            workers.examine(LateSession(workers.session))  # type: ignore[arg-type]
            workers._started = True
        return _AT_ONCE

    def write(workers: SparkWorkers, recipe: Any, tasks: Sequence[Any]) -> tuple[BlockResult, ...]:
        if recipe.transforms:
            return _BY_SPARK[1](workers, recipe, tasks)
        if isinstance(recipe, ExchangingRecipe):
            return write_here(recipe, tasks, _called)
        return tuple(of_spark.work(*pickle.loads(cloudpickle.dumps((recipe, task)))) for task in tasks)

    def write_until(
        workers: SparkWorkers, recipe: Any, tasks: Sequence[Any], enough: Enough
    ) -> tuple[BlockResult, ...]:
        """One thread for each block. Those that are not waited for go on."""
        if recipe.transforms:
            return _BY_SPARK[2](workers, recipe, tasks, enough)
        jobs = Jobs(partial(write, workers, recipe), tasks, len(tasks))
        try:
            return jobs.results(enough)
        finally:
            jobs.end(lambda: None, wait=0)

    patch.setattr(SparkWorkers, "start", start)
    patch.setattr(SparkWorkers, "write", write)
    patch.setattr(SparkWorkers, "write_until", write_until)


def _called(function: Callable[[Any], Any], argument: Any) -> Any:
    function, argument = pickle.loads(cloudpickle.dumps((function, argument)))
    return pickle.loads(cloudpickle.dumps(function(argument)))


def restore(patch: pytest.MonkeyPatch) -> None:
    """Spark's workers again."""
    patch.setattr(SparkWorkers, "start", _BY_SPARK[0])
    patch.setattr(SparkWorkers, "write", _BY_SPARK[1])
    patch.setattr(SparkWorkers, "write_until", _BY_SPARK[2])
