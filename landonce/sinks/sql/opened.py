"""The writer of each dialect. Its driver is imported only where it is used."""

from __future__ import annotations

from landonce.ledger.plain_sql import BlockPlace
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.transactional import BlockTransaction


def open_writer(sink: SqlSink, place: BlockPlace) -> BlockTransaction:
    """One connection for one block."""
    if sink.dialect == "postgresql":
        from landonce.sinks.sql.postgres import PostgresWriter

        return PostgresWriter(sink, place)
    if sink.dialect == "sqlite":
        from landonce.sinks.sql.rows import SqliteWriter

        return SqliteWriter(sink, place)
    if sink.dialect == "yql":
        from landonce.sinks.sql.ydb import YdbWriter

        return YdbWriter(sink, place)
    from landonce.sinks.sql.mysql import MySqlWriter

    return MySqlWriter(sink, place)
