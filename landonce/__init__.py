"""landonce: Kafka records land exactly once.

    from pathlib import Path
    import landonce

    totals = landonce.run_pipeline(landonce.load(Path("clicks.yaml")), once=True)

Names are loaded when they are used, so that a worker or `landonce --help` does not pay for Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from landonce import errors
    from landonce.dedup.run import run_pipeline
    from landonce.errors import NotPushed
    from landonce.protocol.ledger import Totals
    from landonce.push.sink import ExactlyOnceSink, PushResult
    from landonce.query.once import exactly_once
    from landonce.sinks.clickhouse.config import clickhouse
    from landonce.sinks.iceberg.config import iceberg
    from landonce.sinks.pipeline_file import Pipeline, load
    from landonce.sinks.sql.config import sql
    from landonce.sinks.wrapped.block import PushedBlock
    from landonce.sinks.wrapped.sink import WrappedSink, wrap

__all__ = [
    "ExactlyOnceSink",
    "NotPushed",
    "Pipeline",
    "PushResult",
    "PushedBlock",
    "Totals",
    "WrappedSink",
    "clickhouse",
    "errors",
    "exactly_once",
    "iceberg",
    "load",
    "run_pipeline",
    "sql",
    "wrap",
]

_HOMES = {
    "ExactlyOnceSink": "landonce.push.sink",
    "NotPushed": "landonce.errors",
    "Pipeline": "landonce.sinks.pipeline_file",
    "PushResult": "landonce.push.sink",
    "PushedBlock": "landonce.sinks.wrapped.block",
    "Totals": "landonce.protocol.ledger",
    "WrappedSink": "landonce.sinks.wrapped.sink",
    "clickhouse": "landonce.sinks.clickhouse.config",
    "exactly_once": "landonce.query.once",
    "iceberg": "landonce.sinks.iceberg.config",
    "load": "landonce.sinks.pipeline_file",
    "run_pipeline": "landonce.dedup.run",
    "sql": "landonce.sinks.sql.config",
    "wrap": "landonce.sinks.wrapped.sink",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "errors":
        return import_module("landonce.errors")
    raise AttributeError(f"module 'landonce' has no attribute {name!r}")
