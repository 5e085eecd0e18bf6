"""The description of a table in an SQL database. Picklable; its repr hides the password."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL

from landonce.ledger.block_ledgers import TargetLedger
from landonce.ledger.plain_sql import BlockKey
from landonce.packages import require_driver
from landonce.sinks.sql.config import Sql
from landonce.sinks.sql.databases import dialect_of, open_database, parsed
from landonce.sinks.transactional import BlockTransaction, TransactionalSink

if TYPE_CHECKING:
    from landonce.protocol.ledger import LedgerState
    from landonce.sinks.audit import HeldTables
    from landonce.sinks.checking import CheckRun, Sections
    from landonce.sinks.operations import Operations, Sessions
    from landonce.sinks.parts import Parts
    from landonce.sinks.pipeline_file import Pipeline
    from landonce.sinks.run import Run
    from landonce.sinks.sql.driver import OpenSql
    from landonce.sinks.sql.table import SqlTable


@dataclass(frozen=True)
class SqlSink(TransactionalSink):
    """Where rows go, and how they get there."""

    url: str = field(repr=False)
    table: str
    pipeline: str
    key: tuple[str, ...] = ()
    """The columns by which rows are changed; empty where rows are only added."""
    jsonb: tuple[str, ...] = ()
    """Columns that hold documents in PostgreSQL's binary form."""
    examined: str = ""
    """The table's fingerprint when the driver examined it. Empty: workers do not compare it."""
    create: bool = field(default=False, repr=False, compare=False)

    @staticmethod
    def of(config: Sql, pipeline: str) -> SqlSink:
        sink = SqlSink(config.url.get_secret_value(), config.table, pipeline, config.key, create=config.create)
        require_driver(dialect_of(parsed(sink.url)), "sink.sql.url")
        return sink

    def __str__(self) -> str:
        place = self.address.set(username=None, password=None, query={}).render_as_string()
        return f"{place}, table {self.table}"

    def open_ledger(self, config: Pipeline) -> TargetLedger:
        return TargetLedger(open_database(self.address), config.pipeline)

    def open(self, run: Run) -> OpenSql:
        from landonce.sinks.sql.driver import OpenSql

        return OpenSql(self, run)

    def open_table(self) -> SqlTable:
        from landonce.sinks.sql.table import SqlTable

        return SqlTable(self)

    def open_block(self, block: BlockKey) -> BlockTransaction:
        from landonce.sinks.sql.writer import open_writer

        return open_writer(self, block)

    @property
    def changes_rows(self) -> bool:
        return bool(self.key)

    def open_query_ledger(self, where: str | Path | None, name: str) -> TargetLedger:
        del where
        return TargetLedger(open_database(self.address), name)

    def checks(self, run: CheckRun) -> Sections:
        from landonce.sinks.sql.check import sections

        return sections(run, self)

    def operations(self, parts: Parts, sessions: Sessions) -> Operations:
        from landonce.sinks.sql.driver import SqlOperations

        return SqlOperations(parts, sessions, self)

    def held(self, parts: Parts, state: LedgerState | None) -> HeldTables:
        from landonce.sinks.sql.held import held

        del state
        return held(parts, self)

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
