"""A Spark session with Iceberg's runtime."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from landonce.config.model import Spark
from landonce.engine.spark.session import open_session
from landonce.jars import spark_jars


def iceberg_session(conf: Mapping[str, str]) -> SparkSession:
    """A new session. The JVM is the module's own, see `own_jvm` in conftest.py."""
    extra = {
        "spark.jars": ",".join(map(str, spark_jars())),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        **conf,
    }
    return open_session("test", Spark(master="local[2]"), extra=extra)
