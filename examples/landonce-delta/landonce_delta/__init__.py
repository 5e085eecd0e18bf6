"""A landonce plug-in: records land in a Delta table. The commit that adds a batch's files also holds the position."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from landonce.plugin import LedgerPlace, TableSection, remember_secret

if TYPE_CHECKING:
    from landonce_delta.sink import DeltaSink


class Delta(TableSection):
    """For a pipeline file: `sink: {delta: {table: /data/clicks, create: true}}`."""

    keeps_position: ClassVar[str] = "with Delta the position is kept in the table"
    table: str
    """A path, or an address such as s3://bucket/clicks."""
    create: bool = False
    storage_options: dict[str, str] = Field(default_factory=dict, repr=False)
    """What delta-rs needs to reach the storage: keys, a region, an endpoint."""
    rollback: Literal["follow", "refuse"] = "follow"
    """Whether a table that was restored to an older version gets the removed records again, or the run halts."""

    @property
    def position_place(self) -> str:
        return self.table

    def beside(self, folder: Path) -> Delta:
        return self if "://" in self.table else self.model_copy(update={"table": str(folder.absolute() / self.table)})

    def ledger_place(self, *, named: bool) -> LedgerPlace:
        del named
        return LedgerPlace.IN_COMMIT

    def refuse(self, transform: object, ledger: object | None) -> None:
        del transform
        if ledger is not None:
            raise ValueError("ledger: with `sink.delta` the position is kept in the table")

    def to_sink(self, pipeline: str) -> DeltaSink:
        from landonce_delta.sink import DeltaSink

        for each in self.storage_options.values():
            remember_secret(each)
        options = tuple(sorted(self.storage_options.items()))
        return DeltaSink(self.table, pipeline, options, self.create, self.rollback == "follow")
