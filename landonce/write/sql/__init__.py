"""SQL databases as targets: rows and ledger change in one transaction."""

from landonce.write.sql.sink import SqlSink

__all__ = ["SqlSink"]
