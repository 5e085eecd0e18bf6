"""From the DataFrame of a micro-batch to blocks: one Spark task for each, with exactly its rows, in order of their offsets.

    the query's rows ─► which block? ─► shuffle: a block, a task ─► mapInArrow: sort, check, land, account

How Spark cut the batch into tasks makes no difference to a block, and rows never pass through the driver. A row that lies
outside of the batch's ranges shows that the query changed coordinates. It fails the job before the shuffle, so before anything is
written: the block that such a row is missing from would land without it.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from landonce.engine import exchange
from landonce.engine.spark.finders import forget_zips
from landonce.engine.task import write_rows
from landonce.protocol import query_refusals as refusals
from landonce.protocol.match_ranges import Incoming
from landonce.protocol.ranges import Partition, Range, label_of
from landonce.protocol.receipt import BlockResult
from landonce.query.examine import coordinates_of
from landonce.read.schema.ddl import quoted
from landonce.sinks.contract import COORDINATES
from landonce.sinks.worker import ExchangingRecipe, Recipe, T, failed

BLOCK, MARK = "__landonce_block", "__landonce_mark"


def with_coordinates(frame: DataFrame) -> DataFrame:
    """The rows under the names that landonce uses: the coordinates, then everything else."""
    names = coordinates_of(frame.columns)
    twice = sorted({name for name in frame.columns if frame.columns.count(name) > 1})
    if twice:
        raise refusals.query(f"column {', '.join(twice)} is in it twice")
    topic, number, offset = (_column(name) for name in names)
    carried = (topic.cast("string"), number.cast("int"), offset.cast("long"))
    others = [_column(name) for name in frame.columns if name not in names]
    return frame.select(*(each.alias(name) for each, name in zip(carried, COORDINATES, strict=True)), *others)


@dataclass
class QueryWorkers:
    """Has blocks written whose rows a query brings. `incoming`, `frame` and `timestamp` are those of the micro-batch in hand."""

    incoming: Incoming | None = None
    frame: DataFrame | None = None
    timestamp: str = ""
    """The column that is the timestamp of each row's record. Empty where the query does not keep it."""

    def write(self, recipe: Recipe[T], tasks: Sequence[T]) -> tuple[BlockResult, ...]:
        if self.incoming is None or self.frame is None:
            raise ValueError("there is no micro-batch in hand")
        results = write(self.frame, self.incoming.ranges, recipe, tasks, self.timestamp)
        if isinstance(recipe, ExchangingRecipe):
            return exchange.join(self.frame.sparkSession.sparkContext, recipe, tasks, results)
        return results


def write(
    frame: DataFrame, ranges: Sequence[Range], recipe: Recipe[T], tasks: Sequence[T], timestamp: str = ""
) -> tuple[BlockResult, ...]:
    """One Spark job. `ranges` are those of the whole batch; each task's block has one range, inside one of them."""
    listed = tuple(tasks)
    session = frame.sparkSession
    asked = frame.withColumn(BLOCK, block_of([each.block.ranges[0] for each in listed], ranges))
    asked = asked.where(sql.col(BLOCK) >= 0)
    marks = session.range(0, len(listed), 1, 1).select(
        sql.col("id").cast("int").alias(BLOCK), sql.lit(True).alias(MARK)
    )
    placed = asked.unionByName(marks, allowMissingColumns=True).repartition(
        len(listed), place(sql.col(BLOCK), len(listed))
    )
    landing = placed.mapInArrow(_landing(recipe, listed, timestamp), StructType().add("result", "binary"))
    try:
        rows = landing.collect()
    except Exception as error:
        if stray := re.search(re.escape(STRAY) + r"(\{[^}]*\})", str(error)):
            raise refusals.query(
                f"a row with the coordinates {stray[1]} lies outside of the ranges that this batch was read from: the query changes "
                "coordinates, or makes rows of its own"
            ) from None
        raise
    return tuple(pickle.loads(row.result) for row in rows)  # noqa: S301  made by our own workers in this job


def _landing(
    recipe: Recipe[T], tasks: tuple[T, ...], timestamp: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = list(batches)
        if not given:
            return
        table = pa.Table.from_batches(given)
        for at in sorted(pc.unique(table.column(BLOCK)).to_pylist()):
            rows = table.filter(pc.equal(table.column(BLOCK), at))
            rows = rows.filter(pc.is_null(rows.column(MARK))).drop_columns([BLOCK, MARK])
            result = pickle.dumps(_landed(recipe, tasks[at], rows, timestamp))
            yield pa.RecordBatch.from_pydict({"result": pa.array([result], pa.binary())})
        forget_zips()

    return work


def _landed(recipe: Recipe[T], task: T, rows: pa.Table, timestamp: str) -> BlockResult:
    """Whatever happens becomes a fate, so that other blocks' receipts are not lost with it."""
    try:
        latest = latest_of(rows, timestamp, task.block.ranges[0].partition)
        return write_rows(recipe.worker(task), task, ordered(rows, dict(task.labels)), latest)
    except Exception as error:
        return failed(task, error)


def latest_of(rows: pa.Table, timestamp: str, partition: Partition) -> tuple[tuple[Partition, int], ...]:
    """The latest timestamp of these rows of one partition, in milliseconds, where the query keeps it."""
    moment = pc.max(rows.column(timestamp).cast(pa.int64())).as_py() if timestamp else None
    return ((partition, moment // 1000),) if moment is not None else ()


def ordered(rows: pa.Table, labels: dict[str, str]) -> pa.Table:
    """The rows of one partition in order of their offsets, under the label of their topic. No offset comes twice."""
    rows = rows.sort_by("_offset").combine_chunks()
    offsets = rows.column("_offset")
    again = pc.equal(offsets.slice(1), offsets.slice(0, max(len(offsets) - 1, 0)))
    if pc.any(again).as_py():
        at = pc.index(again, True).as_py()
        where = f"{rows.column('_topic')[at]}[{rows.column('_partition')[at]}], offset {offsets[at]}"
        raise refusals.query(
            f"it makes several rows of one record: {where} comes more than once",
            safe="Nothing of that block was written, and the position did not move.",
        )
    first = rows.slice(0, 1).select(["_topic", "_partition"]).to_pylist()
    label = label_of(labels, Partition(first[0]["_topic"], first[0]["_partition"])) if first else ""
    return rows.set_column(0, "_topic", pa.array([label] * rows.num_rows, pa.string()))


def _column(name: str) -> Column:
    return sql.col(quoted(name))


# Which block a row belongs to, and which task a block: expressions that Spark evaluates for every row. They look up in arrays, by the number
# of the partition, so a row costs the same however many partitions there are, and the code that Spark makes of them does not grow.

STRAY = "landonce found a row outside of its batch: "
"""What the job fails with for a row that belongs to no block; its coordinates follow."""
_NOT_NOW = -1
_SEED, _WORD = 42, 0xFFFFFFFF


def block_of(blocks: Sequence[Range], ranges: Sequence[Range]) -> Column:
    """The index of a row's block; below zero for a row that was delivered before, or is delivered later. `ranges`: those of the whole batch,
    one for each partition. A row that lies in none of them fails the job."""
    slots = _Slots(ranges)
    layers = _layers(blocks)
    inside = [slots.when(layer) for layer in layers]
    return sql.coalesce(*inside, slots.when([(each, _NOT_NOW) for each in ranges]), _refused())


def place(block: Column, count: int) -> Column:
    """A number for each block that Spark's shuffle sends to a task of its own. Two in one task would be slower, not wrong."""
    return sql.get(_array(numbers(count), "int"), block)


class _Slots:
    """A number for each partition of some topics, and arrays by it."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        widths: dict[str, int] = {}
        for partition in (each.partition for each in ranges):
            widths[partition.topic] = max(widths.get(partition.topic, 0), partition.number + 1)
        self._begins: dict[str, int] = {}
        self._count = 0
        for topic, width in widths.items():
            self._begins[topic] = self._count
            self._count += width
        at = sql.array_position(_array(list(widths), "string"), sql.col("_topic")).cast("int") - 1
        number = sql.col("_partition")
        known = (number >= 0) & (number < sql.get(_array(list(widths.values()), "int"), at))
        self._slot = sql.when(known, sql.get(_array(list(self._begins.values()), "int"), at) + number)

    def when(self, ranges: Sequence[tuple[Range, int]]) -> Column:
        """The number of the range that a row lies in; null if it lies in none. A partition has one at most."""
        firsts, ends, values = [0] * self._count, [0] * self._count, [_NOT_NOW] * self._count
        for each, value in ranges:
            at = self._begins[each.partition.topic] + each.partition.number
            firsts[at], ends[at], values[at] = each.first, each.end, value
        offset = sql.col("_offset")
        inside = (offset >= self._of(firsts)) & (offset < self._of(ends))
        return sql.when(inside, sql.get(_array(values, "int"), self._slot))

    def _of(self, values: Sequence[int]) -> Column:
        return sql.get(_array(values, "bigint"), self._slot)


def _layers(blocks: Sequence[Range]) -> list[list[tuple[Range, int]]]:
    """The blocks with their indexes: the first of each partition, the second of each, and so on."""
    layers: list[list[tuple[Range, int]]] = []
    seen: dict[Partition, int] = {}
    for index, block in enumerate(blocks):
        depth = seen[block.partition] = seen.get(block.partition, -1) + 1
        if depth == len(layers):
            layers.append([])
        layers[depth].append((block, index))
    return layers


def _array(values: Sequence[object], kind: str) -> Column:
    """A constant: Spark evaluates it once. As one text, for a call of Spark's for every value would take longer than the batch."""
    return sql.split(sql.lit(",".join(map(str, values))), ",").cast(f"array<{kind}>")


def _refused() -> Column:
    coordinates = sql.to_json(sql.struct(*COORDINATES), {"ignoreNullFields": "false"})
    return sql.raise_error(sql.concat(sql.lit(STRAY), coordinates)).cast("int")


@lru_cache(maxsize=64)
def numbers(count: int) -> tuple[int, ...]:
    """Of each of so many tasks, a number that Spark's shuffle by hash sends there."""
    found: dict[int, int] = {}
    for number in range(100 * count):
        found.setdefault(_hashed(number) % count, number)
        if len(found) == count:
            break
    return tuple(found.get(at, at) for at in range(count))


def _hashed(number: int) -> int:
    """Spark's Murmur3 of an INT, with the seed of its shuffles."""
    key = _turned(number * 0xCC9E2D51, 15) * 0x1B873593 & _WORD
    value = (_turned(_SEED ^ key, 13) * 5 + 0xE6546B64 & _WORD) ^ 4
    value = (value ^ value >> 16) * 0x85EBCA6B & _WORD
    value = (value ^ value >> 13) * 0xC2B2AE35 & _WORD
    value ^= value >> 16
    return value - (value >> 31 << 32)


def _turned(value: int, by: int) -> int:
    value &= _WORD
    return (value << by | value >> 32 - by) & _WORD
