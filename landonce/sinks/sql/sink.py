"""A table in an SQL database, described: picklable, and quiet about its password."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL

from landonce.extras import require_driver
from landonce.ledger.block_ledgers import TargetLedger
from landonce.sinks.contract import Guarantee, Sink
from landonce.sinks.sql.config import Sql
from landonce.sinks.sql.databases import dialect_of, open_database, parsed

if TYPE_CHECKING:
    from landonce.sinks.operations import Operations, Sessions
    from landonce.sinks.parts import Parts
    from landonce.sinks.pipeline_file import Pipeline
    from landonce.sinks.promise import Promise


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
    create: bool = field(default=False, repr=False, compare=False)
    guarantee = Guarantee.TRANSACTIONAL

    @staticmethod
    def of(told: Sql, pipeline: str) -> SqlSink:
        sink = SqlSink(told.url.get_secret_value(), told.table, pipeline, told.key, create=told.create)
        require_driver(dialect_of(parsed(sink.url)), "sink.sql.url")
        return sink

    def __str__(self) -> str:
        place = self.address.set(username=None, password=None, query={}).render_as_string()
        return f"{place}, table {self.table}"

    def open_ledger(self, config: Pipeline) -> TargetLedger:
        return TargetLedger(open_database(self.address), config.pipeline)

    def promise(self, config: Pipeline) -> Promise:
        from landonce.sinks.sql.promise import promise

        return promise(config, keyed=bool(self.key))

    @property
    def changes_rows(self) -> bool:
        return bool(self.key)

    def open_query_ledger(self, where: str | Path | None, name: str) -> TargetLedger:
        del where
        return TargetLedger(open_database(self.address), name)

    def operations(self, parts: Parts, sessions: Sessions) -> Operations:
        from landonce.sinks.sql.operations import SqlOperations

        return SqlOperations(parts, sessions, self)

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
