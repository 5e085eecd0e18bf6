"""What one writes without landonce: Structured Streaming, a checkpoint, and an insert in `foreachBatch`.

Run by the negative control as a process of its own. It has the same failpoints around its insert as landonce's worker.
"""

from __future__ import annotations

import json
import os
import sys

import oracle
from pyspark.sql import DataFrame, SparkSession

from landonce.failpoints import reach
from landonce.jars import SPARK_KAFKA


def main(bootstrap: str, topic: str, url: str, table: str, checkpoint: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars.packages", SPARK_KAFKA)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )

    def insert(batch: DataFrame, _number: int) -> None:
        rows = [
            {"_topic": row.topic, "_partition": row.partition, "_offset": row.offset, **json.loads(row.value)}
            for row in batch.selectExpr("topic", "partition", "offset", "CAST(value AS STRING) value").collect()
        ]
        reach("send.before")
        oracle.ask(url, f"INSERT INTO {table} FORMAT JSONEachRow\n" + "\n".join(map(json.dumps, rows)))
        reach("send.after")

    stream = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 16)
        .load()
    )
    query = stream.writeStream.foreachBatch(insert).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start().awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
