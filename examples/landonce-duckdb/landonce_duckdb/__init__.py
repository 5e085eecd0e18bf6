"""A landonce plug-in: records land in a table of a DuckDB file, each block in one transaction with its row in the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from landonce.plugin import LedgerPlace, TableSection

if TYPE_CHECKING:
    from landonce_duckdb.sink import DuckDbSink


class DuckDb(TableSection):
    """For a pipeline file: `sink: {duckdb: {path: events.duckdb, table: events, create: true}}`."""

    keeps_position: ClassVar[str] = "with DuckDB the position is kept in the file, beside the table"
    path: Path
    """On a local disk: the workers write to it, so they run on the driver's machine."""
    table: str
    create: bool = False

    @property
    def position_place(self) -> str:
        return str(self.path)

    def beside(self, folder: Path) -> DuckDb:
        return self.model_copy(update={"path": folder.absolute() / self.path})

    def ledger_place(self, *, named: bool) -> LedgerPlace:
        del named
        return LedgerPlace.BESIDE_ROWS

    def refuse(self, transform: object, ledger: object | None) -> None:
        del transform
        if ledger is not None:
            raise ValueError("ledger: with `sink.duckdb` the position is kept in the file, beside the table")

    def to_sink(self, pipeline: str) -> DuckDbSink:
        from landonce_duckdb.sink import DuckDbSink

        del pipeline
        return DuckDbSink(self.path, self.table, self.create)
