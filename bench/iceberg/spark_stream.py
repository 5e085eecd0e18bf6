"""The first peer: Structured Streaming into Iceberg, as its documentation has it, with the Kafka source tuned."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from bench.iceberg.tables import Lake
from bench.topic import SCHEMA, TOPIC
from landonce.config.model import Spark
from landonce.engine.spark.session import open_session as open_landonce_session
from landonce.jars import SPARK_KAFKA, spark_jars


def open_session(lake: Lake) -> SparkSession:
    """One session for landonce's tasks and for this peer."""
    extra = {
        **lake.spec.spark_conf(),
        "spark.jars": ",".join(map(str, spark_jars())),
        "spark.jars.packages": SPARK_KAFKA,
        "spark.driver.memory": "3g",
    }
    return open_landonce_session("bench", Spark(), extra=extra, work="landonce.sinks.iceberg.work")


def land(session: SparkSession, lake: Lake, bootstrap_servers: str, table: str, records: int, folder: Path) -> float:
    """Seconds from asking for the query until it has taken all that was there. The table is there already."""
    began = time.monotonic()
    stream = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1_000_000)
        .option("kafka.max.poll.records", 50_000)
        .option("kafka.fetch.max.bytes", 64 * 2**20)
        .option("kafka.max.partition.fetch.bytes", 8 * 2**20)
        .load()
    )
    parsed = stream.select(
        sql.from_json(sql.col("value").cast("string"), SCHEMA.replace(" NOT NULL", "").replace("(3)", "")).alias("r"),
        sql.col("topic").alias("_topic"),
        sql.col("partition").alias("_kafka_partition"),
        sql.col("offset").alias("_offset"),
    ).select("r.*", "_topic", "_kafka_partition", "_offset")
    query = (
        parsed.writeStream.format("iceberg")
        .option("checkpointLocation", str(folder / f"checkpoint-{table}"))
        .option("fanout-enabled", "true")
        .trigger(availableNow=True)
        .toTable(f"landonce.{table}")
    )
    query.awaitTermination()
    seconds = time.monotonic() - began
    if lake.rows(table) != records:
        raise RuntimeError(f"{lake.rows(table)} of {records} records landed")
    return seconds
