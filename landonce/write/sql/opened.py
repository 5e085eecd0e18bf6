"""The writer of each dialect. Its driver is imported only where it is used."""

from __future__ import annotations

from landonce.write.sql.sink import SqlSink
from landonce.write.sql.statements import Place
from landonce.write.sql.writer import BlockWriter


def open_writer(sink: SqlSink, place: Place) -> BlockWriter:
    """One connection for one block."""
    if sink.dialect == "postgresql":
        from landonce.write.sql.postgres import PostgresWriter

        return PostgresWriter(sink, place)
    if sink.dialect == "sqlite":
        from landonce.write.sql.rows import SqliteWriter

        return SqliteWriter(sink, place)
    if sink.dialect == "yql":
        from landonce.write.sql.ydb import YdbWriter

        return YdbWriter(sink, place)
    from landonce.write.sql.mysql import MySqlWriter

    return MySqlWriter(sink, place)
