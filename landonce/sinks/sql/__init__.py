"""SQL databases as targets: rows and ledger change in one transaction."""

from landonce.sinks.sql.sink import SqlSink

__all__ = ["SqlSink"]
