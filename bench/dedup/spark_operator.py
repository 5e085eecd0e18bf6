"""The peer: Spark's own `dropDuplicatesWithinWatermark`, with its state in RocksDB, into Parquet files."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from bench.dedup.ours import BATCH
from bench.topic import SCHEMA
from landonce.config.model import Spark
from landonce.engine.spark.session import open_session as open_landonce_session
from landonce.jars import SPARK_KAFKA

_STATE = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def open_session(cores: int) -> SparkSession:
    """One session for landonce's tasks and for this peer."""
    extra = {
        **_STATE,
        "spark.jars.packages": SPARK_KAFKA,
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": str(cores),
    }
    work = "landonce.engine.task,landonce.sinks.deduplicating,landonce.dedup.comparing,landonce.engine.exchange"
    return open_landonce_session("bench", Spark(), extra=extra, work=work)


def land(session: SparkSession, bootstrap_servers: str, topic: str, unique: int, folder: Path) -> float:
    """Seconds from asking for the query until it has taken all that was there."""
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    stream = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH)
        .option("kafka.max.poll.records", 50_000)
        .option("kafka.fetch.max.bytes", 64 * 2**20)
        .option("kafka.max.partition.fetch.bytes", 8 * 2**20)
        .load()
    )
    parsed = stream.select(
        sql.from_json(sql.col("value").cast("string"), SCHEMA.replace(" NOT NULL", "").replace("(3)", "")).alias("r"),
        sql.col("timestamp").alias("_timestamp"),
        sql.col("topic").alias("_topic"),
        sql.col("partition").alias("_kafka_partition"),
        sql.col("offset").alias("_offset"),
    ).select("r.*", "_timestamp", "_topic", "_kafka_partition", "_offset")
    query = (
        parsed.withWatermark("_timestamp", "60 days")
        .dropDuplicatesWithinWatermark(["id"])
        .writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seconds = time.monotonic() - began
    landed = session.read.parquet(str(folder / "rows")).count()
    shutil.rmtree(folder, ignore_errors=True)
    if landed != unique:
        raise RuntimeError(f"{landed} events landed, and {unique} are unique")
    return seconds
