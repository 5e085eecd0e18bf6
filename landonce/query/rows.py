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

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from landonce.engine.spark.finders import forget_zips
from landonce.engine.task import write_rows
from landonce.protocol import query_refusals as refusals
from landonce.protocol.match_ranges import Incoming
from landonce.protocol.ranges import Partition, Range, label_of
from landonce.protocol.receipt import BlockResult
from landonce.query.examine import coordinates_of
from landonce.query.row_to_block import STRAY, block_of, place
from landonce.sinks.contract import COORDINATES
from landonce.sinks.worker import Recipe, Task, failed

BLOCK, MARK = "__landonce_block", "__landonce_mark"


def with_coordinates(frame: DataFrame) -> DataFrame:
    """The rows under the names that landonce uses: the coordinates, then everything else."""
    names = coordinates_of(frame.columns)
    twice = sorted({name for name in frame.columns if frame.columns.count(name) > 1})
    if twice:
        raise refusals.query(f"column {', '.join(twice)} stands in it twice")
    topic, number, offset = (_column(name) for name in names)
    carried = (topic.cast("string"), number.cast("int"), offset.cast("long"))
    others = [_column(name) for name in frame.columns if name not in names]
    return frame.select(*(each.alias(name) for each, name in zip(carried, COORDINATES, strict=True)), *others)


@dataclass
class QueryWorkers:
    """Has blocks written whose rows a query brings. `incoming` and `frame` are those of the micro-batch in hand."""

    incoming: Incoming | None = None
    frame: DataFrame | None = None

    def write(self, recipe: Recipe, tasks: Sequence[Task]) -> tuple[BlockResult, ...]:
        if self.incoming is None or self.frame is None:
            raise ValueError("there is no micro-batch in hand")
        return write(self.frame, self.incoming.ranges, recipe, tasks)


def write(frame: DataFrame, ranges: Sequence[Range], recipe: Recipe, tasks: Sequence[Task]) -> tuple[BlockResult, ...]:
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
    landing = placed.mapInArrow(_landing(recipe, listed), StructType().add("result", "binary"))
    try:
        rows = landing.collect()
    except Exception as error:
        if stray := re.search(re.escape(STRAY) + r"(\{[^}]*\})", str(error)):
            raise _stray(stray[1]) from None
        raise
    return tuple(pickle.loads(row.result) for row in rows)  # noqa: S301  made by our own workers in this job


def _landing(recipe: Recipe, tasks: tuple[Task, ...]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = list(batches)
        if not given:
            return
        table = pa.Table.from_batches(given)
        for at in sorted(pc.unique(table.column(BLOCK)).to_pylist()):
            rows = table.filter(pc.equal(table.column(BLOCK), at))
            rows = rows.filter(pc.is_null(rows.column(MARK))).drop_columns([BLOCK, MARK])
            result = pickle.dumps(_landed(recipe, tasks[at], rows))
            yield pa.RecordBatch.from_pydict({"result": pa.array([result], pa.binary())})
        forget_zips()

    return work


def _landed(recipe: Recipe, task: Task, rows: pa.Table) -> BlockResult:
    """Whatever happens becomes a fate, so that other blocks' receipts are not lost with it."""
    try:
        return write_rows(recipe.worker(task), task, ordered(rows, dict(task.labels)))
    except Exception as error:
        return failed(task, error)


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


def _stray(coordinates: str) -> Exception:
    return refusals.query(
        f"a row with the coordinates {coordinates} lies outside of the ranges that this batch was read from: the query changes "
        "coordinates, or makes rows of its own"
    )


def _column(name: str) -> Column:
    return sql.col("`" + name.replace("`", "``") + "`")
