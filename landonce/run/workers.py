"""The workers: one Spark job per write, one task per block, receipts as task results. No control topic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from landonce.config.secrets import redact
from landonce.errors import TransformFailed
from landonce.run import transform
from landonce.write.receipt import BlockResult
from landonce.write.recipe import Recipe, Task
from landonce.write.work import work


class SparkWorkers:
    """Runs tasks on a Spark session. A job that Spark cannot finish leaves doubt, and doubt is settled by looking."""

    def __init__(self, session: SparkSession, recipe: Recipe) -> None:
        self._session = session
        self._recipe = recipe

    @property
    def parallelism(self) -> int:
        return int(self._session.sparkContext.defaultParallelism)

    def write(self, tasks: Sequence[Task]) -> tuple[BlockResult, ...]:
        """One result per task, whatever happens."""
        context = self._session.sparkContext
        context.setJobDescription(f"landonce {self._recipe.pipeline}: batch {tasks[0].batch}, {len(tasks)} blocks")
        try:
            if self._recipe.transforms:
                return transform.write(self._session, self._recipe, tasks)
            return tuple(context.parallelize(tasks, len(tasks)).map(partial(work, self._recipe)).collect())
        except PySparkException as error:
            if self._recipe.transforms and transform.is_expression_error(error):
                raise _expression_failed(error) from None
            return transform.doubtful(tasks, redact(str(error)[:2000]))
        except Py4JError as error:
            return transform.doubtful(tasks, redact(str(error)[:2000]))


def _expression_failed(error: PySparkException) -> TransformFailed:
    return TransformFailed(
        f"a transform expression failed on a record: {redact(str(error).strip().splitlines()[0])}",
        safe="The position did not move; the plan is pending and will be settled at the next start.",
        command="write the expression so that it yields NULL for such values (try_cast, try_divide, …), "
        "then `landonce state accept-change {file}`",
    )
