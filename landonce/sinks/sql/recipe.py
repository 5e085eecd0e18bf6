"""What a worker needs to know to land a block in an SQL database: the recipe of a pipeline, and the task. Picklable."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from landonce.engine.recipe import AnyRecipe, AnyTask
from landonce.protocol.block_rows import Claim
from landonce.read.changes.decode import Changes
from landonce.read.schema.fields import Schema
from landonce.sinks.sql.sink import SqlSink


class Anew(str, Enum):
    """What a block waits for, beside columns."""

    TABLE = "the table was altered, and has to be examined anew"


@dataclass(frozen=True, kw_only=True)
class SqlRecipe(AnyRecipe):
    """Of an SQL database."""

    source: Schema
    """What a record is decoded to."""
    target: Schema
    """What the table takes."""
    sink: SqlSink
    changes: Changes | None = None
    evolve: bool = False
    declared: str = ""
    """The declared schema's fingerprint."""

    def _decisive(self) -> tuple[object, ...]:
        """All that the file says of rows. The table's own columns may change: each block lands whole."""
        told = self.sink
        rows = told.identity, told.key, self.declared
        return *rows, self.select, self.where, repr(self.changes)


@dataclass(frozen=True, kw_only=True)
class SqlTask(AnyTask):
    """One block to be landed in a transaction."""

    claim: Claim
    final: bool = False
    """Columns were added already: what the table does not know now is left out."""
