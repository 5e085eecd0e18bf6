"""Which block Spark says a row belongs to, compared with plain Python: few partitions and very many."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from deliveries import spark_session
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from landonce.protocol.ranges import Partition, Range
from landonce.query.rows import STRAY, block_of, numbers, place

pytestmark = pytest.mark.integration
COORDINATES = "_topic STRING, _partition INT, _offset BIGINT"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from spark_session("test-query-placing")


def a_batch(topics: int, partitions: int, blocks: int) -> tuple[list[Range], list[Range]]:
    """The ranges of a batch, of which some partitions have none, and blocks that leave out the beginning and the end of each."""
    chance = random.Random(topics * partitions)
    names = [f"topic-{number}.x" for number in range(topics)]
    ranges = []
    for partition in (Partition(name, number) for name in names for number in range(partitions)):
        if chance.random() < 0.9:
            first = chance.randrange(2**40)
            ranges.append(Range(partition, first, first + 10 * (blocks + 2)))
    pieces = [
        Range(each.partition, first, first + 10)
        for each in ranges
        for first in range(each.first + 10, each.end - 10, 10)
    ]
    chance.shuffle(pieces)
    return ranges, pieces


def by_hand(row: tuple[str, int, int], pieces: dict[Partition, list[tuple[Range, int]]]) -> int:
    here = [at for each, at in pieces.get(Partition(row[0], row[1]), ()) if each.first <= row[2] < each.end]
    return here[0] if here else -1


@pytest.mark.parametrize(
    ("topics", "partitions", "blocks"), [(1, 1, 1), (1, 3, 7), (3, 5, 2), (2, 1500, 1), (500, 1, 1)]
)
def test_every_row_is_in_the_block_of_its_offset(
    spark: SparkSession, topics: int, partitions: int, blocks: int
) -> None:
    ranges, pieces = a_batch(topics, partitions, blocks)
    rows = [
        (each.partition.topic, each.partition.number, at)
        for each in ranges
        for at in (each.first, each.first + 9, each.first + 10, each.end - 11, each.end - 10, each.end - 1)
    ]
    found = spark.createDataFrame(rows, COORDINATES).withColumn("block", block_of(pieces, ranges)).collect()
    known: dict[Partition, list[tuple[Range, int]]] = {}
    for at, piece in enumerate(pieces):
        known.setdefault(piece.partition, []).append((piece, at))
    assert [row.block for row in found] == [by_hand(row, known) for row in rows]
    assert min(row.block for row in found) == -1
    assert max(row.block for row in found) >= 0


@pytest.mark.parametrize(
    "row",
    [("a", 0, 4), ("a", 0, 20), ("a", 1, 10), ("a", 3, 10), ("a", -1, 10), ("A", 0, 10), ("b", 0, 10), (None, 0, 10), ("a", None, 10),
     ("a", 0, None)],
)  # fmt: skip
def test_a_row_outside_of_the_batch_fails_the_job(spark: SparkSession, row: tuple[str, int, int]) -> None:
    ranges = [Range(Partition("a", 0), 5, 20), Range(Partition("a", 2), 0, 20)]
    frame = spark.createDataFrame([("a", 0, 10), row], COORDINATES)
    with pytest.raises(Exception, match=STRAY):
        frame.withColumn("block", block_of(ranges, ranges)).where(sql.col("block") >= 0).collect()


@pytest.mark.parametrize("count", [2, 5, 13])
def test_every_block_has_a_task_of_its_own(spark: SparkSession, count: int) -> None:
    """Spark's shuffle sends each of these numbers elsewhere."""
    assert len(set(numbers(count))) == count
    blocks = spark.range(count).select(sql.col("id").cast("int").alias("block"))
    placed = blocks.repartition(count, place(sql.col("block"), count))
    tasks = placed.select(sql.spark_partition_id().alias("task")).collect()
    assert sorted(row.task for row in tasks) == list(range(count))
