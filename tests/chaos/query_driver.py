"""A user's own streaming query with `exactly_once`, as a process of its own: sixteen records a batch, until all is done.

`unique`: with `dedup`, into ClickHouse. `iceberg`: `url` is the folder that holds the lake. `wrapped`, `slow`: `url` is the folder of the target, and `table` is where the
ledger is. `plain`: without landonce, for comparison.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession

import landonce
from landonce.engine.spark import daemon
from landonce.jars import SPARK_KAFKA
from landonce.sinks.wrapped.sink import find_sink


def main(
    bootstrap: str,
    topic: str,
    kind: str,
    url: str,
    table: str,
    folder: str,
    per_trigger: str,
    master: str,
    deadline: str,
) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).config("spark.jars.packages", SPARK_KAFKA)
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.python.daemon.module", daemon.__name__)
    builder = builder.config(f"spark.executorEnv.{daemon.LOADED}", "landonce.query.rows,landonce.sinks.deduplicating")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    sink: Any = None
    ledger: str | None = None
    if kind in ("clickhouse", "unique"):
        sink, ledger = landonce.clickhouse(url, table, deadline=float(deadline)), f"sqlite:///{folder}/ledger"
    elif kind in ("wrapped", "slow"):
        options = {"folder": url, "settles_within": float(deadline)}
        made = "wrapped_target:probing" if kind == "wrapped" else "wrapped_target:slow"
        sink, ledger = find_sink(made, options, Path(__file__).parent), table
    elif kind == "iceberg":
        sink = landonce.iceberg(table, {"uri": f"sqlite:///{url}/lake/catalog.db", "warehouse": f"file://{url}/lake"})
    elif kind == "sql":
        sink, ledger = landonce.sql(url, table), None
    stream = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", int(per_trigger))
        .load()
    )
    fields = "from_json(CAST(value AS STRING), 'id BIGINT, word STRING, amount DOUBLE') r"
    rows = stream.selectExpr("topic", "partition", "offset", fields)
    rows = rows.selectExpr("topic", "partition", "offset", "r.id", "r.word", "r.amount")
    dedup = {"key": ["id"], "store": {"sqlite": f"{folder}/store"}} if kind == "unique" else None
    once = (
        plain(url) if kind == "plain" else landonce.exactly_once(sink, ledger, name="killed", block_rows=5, dedup=dedup)
    )
    writer = rows.writeStream.foreachBatch(once).option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    session.stop()


def plain(folder: str) -> Callable[[DataFrame, int], None]:
    """What one writes without landonce: every task appends its rows. A first attempt then stands still for good."""

    def append(rows: Iterator[Row]) -> None:
        lines = [f"{row.topic} {row.partition} {row.offset} {row.id} {row.word}\n" for row in rows]
        with Path(folder, "appended").open("a") as file:
            file.write("".join(lines))
        context = TaskContext.get()
        while context is not None and context.attemptNumber() == 0:
            time.sleep(1)

    def deliver(batch: DataFrame, _number: int) -> None:
        batch.foreachPartition(append)

    return deliver


if __name__ == "__main__":
    main(*sys.argv[1:])
