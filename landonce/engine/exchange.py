"""A write whose blocks depend on each other: one Spark job with a shuffle by shard.

    block ─► read, decode, stage ─┐             ┌─► shard: join ─┐
    block ─► read, decode, stage ─┼─ by shard ──┼─► shard: join ─┼─► results of the blocks
    block ─► read, decode, stage ─┘             └─► shard: join ─┘

Nothing that workers write here counts before the driver commits it, so a task that Spark runs again does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from pyspark import SparkContext

from landonce import errors
from landonce.engine.spark.finders import sparing
from landonce.engine.task import work
from landonce.protocol.receipt import BlockResult, Fate
from landonce.sinks.worker import ExchangingRecipe, T, failed

Pair: TypeAlias = tuple[int, object]
_RESULT = -1
"""The key of what a block itself says. All other keys are shards."""


class JoinFailed(Exception):
    """Shards could not be joined, and why."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error

    def __reduce__(self) -> tuple[object, ...]:
        return (JoinFailed, (self.error,))


def write(context: SparkContext, recipe: ExchangingRecipe[T], tasks: Sequence[T]) -> tuple[BlockResult, ...]:
    """One result per task."""
    width = max(1, min(recipe.shards, int(context.defaultParallelism)))
    pairs = context.parallelize(tasks, len(tasks)).flatMap(partial(sparing, _read, recipe))
    spread = pairs.partitionBy(width, partial(_place, recipe.shards, width))
    return whole(recipe, tasks, spread.mapPartitions(partial(_join, recipe)).collect())


def join(
    context: SparkContext, recipe: ExchangingRecipe[T], tasks: Sequence[T], results: Sequence[BlockResult]
) -> tuple[BlockResult, ...]:
    """The second half alone, of blocks that were written by another job. Their parts pass through the driver."""
    split = [recipe.split(each) for each in results]
    parts: dict[int, list[Pair]] = {}
    width = max(1, min(recipe.shards, int(context.defaultParallelism)))
    for shard, each in (pair for _, shared in split for pair in shared):
        parts.setdefault(_place(recipe.shards, width, shard), []).append((shard, each))
    joined = context.parallelize(list(parts.values()), max(1, len(parts))).flatMap(partial(_listed, recipe)).collect()
    return whole(recipe, tasks, [*(result for result, _ in split), *joined])


def write_here(
    recipe: ExchangingRecipe[T], tasks: Sequence[T], run: Callable[[Callable[..., object], object], object]
) -> tuple[BlockResult, ...]:
    """The same without Spark: `run` calls a function with an argument, in whatever process."""
    pairs: list[Pair] = [pair for task in tasks for pair in run(partial(_read, recipe), task)]  # type: ignore[attr-defined]
    return whole(recipe, tasks, run(partial(_listed, recipe), pairs))  # type: ignore[arg-type]


def whole(recipe: ExchangingRecipe[T], tasks: Sequence[T], found: Iterable[object]) -> tuple[BlockResult, ...]:
    """On the driver: what all of it means for each block."""
    answers = list(found)
    results = sorted((each for each in answers if isinstance(each, BlockResult)), key=lambda each: each.index)
    if any(
        each.fate is not Fate.LANDED for each in results
    ):  # without all blocks, nobody knows what the records of one are
        why = "another block of the batch could not be read"
        return tuple(
            BlockResult(each.index, Fate.DOUBTFUL, why=why) if each.fate is Fate.LANDED else each for each in results
        )
    for each in answers:
        if isinstance(each, JoinFailed):
            return tuple(failed(task, each.error) for task in tasks)
    return recipe.whole(results, [each for each in answers if not isinstance(each, BlockResult)])


def _read(recipe: ExchangingRecipe[T], task: T) -> list[Pair]:
    result, parts = recipe.split(work(recipe, task))
    return [(_RESULT, result), *parts]


def _place(shards: int, width: int, key: int) -> int:
    """Neighbouring shards go to one task."""
    return 0 if key == _RESULT else key * width // shards


def _join(recipe: ExchangingRecipe[T], pairs: Iterable[Pair]) -> Iterator[object]:
    parts: dict[int, list[object]] = {}
    for key, each in pairs:
        if key == _RESULT:
            yield each
        else:
            parts.setdefault(key, []).append(each)
    if parts:
        try:
            yield recipe.join(parts)
        except Exception as error:
            named = (
                error if isinstance(error, errors.LandonceError) else RuntimeError(f"{type(error).__name__}: {error}")
            )
            yield JoinFailed(named)


def _listed(recipe: ExchangingRecipe[T], pairs: Iterable[Pair]) -> list[object]:
    return list(_join(recipe, pairs))
