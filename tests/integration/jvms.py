"""What Spark sessions of tests have in common, and one with Iceberg's runtime."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from landonce.config.model import Spark
from landonce.engine.spark.session import open_session
from landonce.jars import spark_jars

LOADED = ",".join(
    f"landonce.{module}"
    for module in (
        "dedup.comparing",
        "engine.exchange",
        "engine.task",
        "query.rows",
        "sinks.clickhouse.worker",
        "sinks.deduplicating",
        "sinks.iceberg.worker",
        "sinks.sql.worker",
        "sinks.wrapped.worker",
    )
)
"""What Spark's Python workers begin with, whatever a module has them do: a worker that loads it takes seconds. Workers of users' queries do
load it; those of the page on queries, too."""


def iceberg_session(conf: Mapping[str, str]) -> SparkSession:
    """A new session. The JVM is the module's own, see `own_jvm` in conftest.py."""
    extra = {
        "spark.jars": ",".join(map(str, spark_jars())),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        **conf,
    }
    return open_session("test", Spark(master="local[2]"), extra=extra, work=LOADED)
