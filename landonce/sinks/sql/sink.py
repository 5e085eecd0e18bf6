"""A table in an SQL database, described: picklable, and quiet about its password."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from sqlalchemy import URL

from landonce.extras import require_driver
from landonce.ledger.in_target import TargetLedger
from landonce.sinks.contract import Guarantee, Sink
from landonce.sinks.pipeline_file import Pipeline
from landonce.sinks.sql.config import Sql
from landonce.sinks.sql.databases import dialect_of, open_database, parsed


@dataclass(frozen=True)
class SqlSink(Sink):
    """Where rows go, and how they get there."""

    url: str = field(repr=False)
    table: str
    pipeline: str
    key: tuple[str, ...] = ()
    """The columns by which rows are changed; empty where rows are only added."""
    jsonb: tuple[str, ...] = ()
    """Columns that hold documents in PostgreSQL's binary form."""
    examined: str = ""
    """What the table was like when it was examined (`likeness`). Empty: nobody asks."""
    guarantee = Guarantee.TRANSACTIONAL

    @staticmethod
    def of(told: Sql, pipeline: str) -> SqlSink:
        sink = SqlSink(told.url.get_secret_value(), told.table, pipeline, told.key)
        require_driver(dialect_of(parsed(sink.url)), "sink.sql.url")
        return sink

    def __str__(self) -> str:
        place = self.address.set(username=None, password=None, query={}).render_as_string()
        return f"{place}, table {self.table}"

    def open_ledger(self, config: Pipeline) -> TargetLedger:
        return TargetLedger(open_database(self.address), config.pipeline)

    @property
    def identity(self) -> str:
        """Which table it is. A pending plan is not written to another one."""
        address = self.address
        return f"{self.dialect}://{address.host or ''}:{address.port or ''}/{address.database}#{self.table}"

    @cached_property
    def address(self) -> URL:
        return parsed(self.url)

    @property
    def dialect(self) -> str:
        return dialect_of(self.address)

    @property
    def name(self) -> str:
        return self.table.rpartition(".")[2]

    @property
    def schema(self) -> str | None:
        return self.table.rpartition(".")[0] or None
