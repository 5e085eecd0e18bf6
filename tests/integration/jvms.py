"""A JVM for Spark that has Iceberg's runtime, whatever other tests of this process did before."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark import SparkContext
from pyspark.sql import SparkSession

from landonce.config.model import Spark
from landonce.local.jars import spark_jars
from landonce.run.session import open_session


def iceberg_session(conf: Mapping[str, str]) -> SparkSession:
    """A new session in a JVM of its own: one that was started without the jars cannot load them afterwards."""
    _end_jvm()
    extra = {
        "spark.jars": ",".join(map(str, spark_jars())),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        **conf,
    }
    return open_session("test", Spark(master="local[2]"), extra=extra)


def _end_jvm() -> None:
    gateway = SparkContext._gateway
    if gateway is None:
        return
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    gateway.shutdown()
    gateway.proc.terminate()
    gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None
