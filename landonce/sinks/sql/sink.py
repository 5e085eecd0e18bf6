"""The description of a table in an SQL database. Picklable; its repr hides the password."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL

from landonce.ledger.block_ledgers import TargetLedger
from landonce.packages import require_driver
from landonce.sinks.contract import Guarantee, Sink
from landonce.sinks.sql.config import Sql
from landonce.sinks.sql.databases import dialect_of, open_database, parsed

if TYPE_CHECKING:
    from landonce.sinks.checking import CheckRun, Sections
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
    """The table's fingerprint when the driver examined it. Empty: workers do not compare it."""
    create: bool = field(default=False, repr=False, compare=False)
    guarantee = Guarantee.TRANSACTIONAL

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

    def promise(self, config: Pipeline) -> Promise:
        """Rows and the ledger change in one transaction."""
        from landonce.sinks.promise import READ_IN_TIME, Promise, transform_condition

        what = "change is applied to the table once" if self.key else "record is in the table once"
        conditions = [
            "the tables landonce_* are kept, backed up and restored together with the table",
            "nothing but this pipeline writes rows with these " + ("keys" if self.key else "coordinates"),
        ]
        if self.key:
            conditions.append("changes of one key come in one partition of a topic: their order is that of its offsets")
        return Promise(
            f"exactly once: every {what}, or in the dead letters once, or filtered",
            (
                "every batch is planned in the ledger before the first row is written, and is replayed literally after a crash",
                "a block's rows and its row in the ledger change in one transaction: neither is ever there without the other",
                "that transaction holds only while the block is claimed by its driver: whoever starts claims all blocks, waits for "
                "transactions that are open, and makes every later one of an earlier driver roll back",
                "a COMMIT without an answer is never guessed: the block's row says what became of it",
            ),
            (*conditions, *transform_condition(config), READ_IN_TIME),
        )

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
