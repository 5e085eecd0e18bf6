"""A table in an SQL database, as a pipeline file or a program describes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, SecretStr, model_validator

from landonce.config.model import LedgerSection, Transform
from landonce.config.part import SecretUrl, secret_beside
from landonce.packages import require_driver
from landonce.sinks.section import KeyedSection, LedgerPlace, from_program

if TYPE_CHECKING:
    from landonce.sinks.sql.sink import SqlSink


class Sql(KeyedSection):
    """A table in PostgreSQL, SQLite, MySQL, MariaDB or YDB, which is also where the position is kept."""

    keeps_position: ClassVar[str] = "with `landonce.sql` the position is kept in the target database, beside the table"
    url: SecretUrl
    table: str = Field(min_length=1)
    """`events`, or `schema.events`."""
    create: bool = False

    @model_validator(mode="after")
    def _sound(self) -> Sql:
        if self.evolve and self.changes is not None and self.changes.mode in ("debezium", "dms"):
            raise ValueError(f"evolve: does not look inside the envelopes of {self.changes.mode}")
        return self

    @property
    def position_place(self) -> str:
        return self.url.get_secret_value()

    def ledger_place(self, *, named: bool) -> LedgerPlace:
        del named
        return LedgerPlace.BESIDE_ROWS

    def refuse(self, transform: Transform, ledger: LedgerSection | None) -> None:
        super().refuse(transform, ledger)
        if ledger is not None:
            raise ValueError("ledger: with `sink.sql` the position is kept in the target database, beside the table")

    def to_sink(self, pipeline: str) -> SqlSink:
        from landonce.sinks.sql.sink import SqlSink

        sink = SqlSink(self.url.get_secret_value(), self.table, pipeline, self.key, create=self.create)
        require_driver(sink.dialect, "sink.sql.url")
        return sink

    def beside(self, folder: Path) -> Sql:
        """A relative path of a SQLite file, or of a file of certificates, is taken from the folder."""
        scheme, mark, path = self.url.get_secret_value().partition(":///")
        if not (mark and scheme.startswith("sqlite") and path) or path.startswith(("/", ":")):
            return self.model_copy(update={"url": secret_beside(self.url, folder.absolute())})
        return self.model_copy(update={"url": SecretStr(f"{scheme}:///{folder.absolute() / path}")})


def sql(url: str, table: str, *, create: bool = False) -> Sql:
    """A table in PostgreSQL, SQLite, MySQL, MariaDB or YDB, for `exactly_once`. Rows are added to it.

    A relative path of a SQLite file is taken from the current folder.
    """
    made = from_program(Sql, "sql", url=url, table=table, create=create)
    made.to_sink("check")
    return made
