"""What one writes without landonce: Structured Streaming from Kafka to an Iceberg table, twenty records a batch.

It ends when everything is done, or with a batch that fails: planned, and not in the table.
"""

from __future__ import annotations

import os
import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from landonce.jars import SPARK_KAFKA, spark_jars
from landonce.sinks.iceberg.catalog import CatalogSpec


def main(bootstrap: str, topic: str, catalog: str, table: str, checkpoint: str, fails_from: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[1]").config("spark.jars", ",".join(map(str, spark_jars())))
    builder = builder.config("spark.jars.packages", SPARK_KAFKA).config("spark.ui.enabled", "false")
    for name, value in CatalogSpec("rest", {"type": "rest", "uri": catalog}).spark_conf().items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    source = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 20)
        .load()
    )
    parsed = source.selectExpr("from_json(CAST(value AS STRING), 'id bigint, name string') r").select("r.*")
    checked = parsed.selectExpr(f"IF(id >= {fails_from}, raise_error('stop here'), id) AS id", "name")
    query = checked.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    try:
        query.toTable(f"rest.{table}").awaitTermination()
    except StreamingQueryException as error:
        if "stop here" not in str(error):
            raise
    session.stop()
