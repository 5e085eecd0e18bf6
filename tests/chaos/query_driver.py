"""A user's own streaming query with `exactly_once`, as a process of its own: sixteen records a batch, until all is done."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

import landonce

PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"


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
    builder = SparkSession.builder.master(master).config("spark.jars.packages", PACKAGE)
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if kind == "clickhouse":
        sink, ledger = landonce.clickhouse(url, table, deadline=float(deadline)), f"sqlite:///{folder}/ledger"
    else:
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
    once = landonce.exactly_once(sink, ledger, name="killed", block_rows=5)
    writer = rows.writeStream.foreachBatch(once).option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
