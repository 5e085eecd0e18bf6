"""What a worker needs to know to write files: the recipe of a pipeline, and the task for one block. Picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from landonce.engine.recipe import AnyRecipe, AnyTask
from landonce.protocol.blocks import Kind
from landonce.protocol.marks import Floors
from landonce.read.changes.decode import Changes
from landonce.read.route import Routing
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.iceberg.limits import Limit
from landonce.sinks.iceberg.scratch import Scratch
from landonce.sinks.iceberg.shape import TableShape


@dataclass(frozen=True)
class TableRecipe:
    """One table, as workers see it."""

    name: str
    schema: Schema
    """What a record is decoded to."""
    shape: TableShape | None
    scratch: Scratch | None
    """One of the two: workers write the table's own files, or files from which Spark then writes them."""
    identity: tuple[str, ...] = ()
    """The columns that name one row, where records change rows."""
    limits: tuple[Limit, ...] = ()
    """What its partitions cannot hold."""


@dataclass(frozen=True, kw_only=True)
class FileRecipe(AnyRecipe):
    """Of Iceberg tables."""

    routing: Routing
    tables: tuple[TableRecipe, ...]
    declared: Schema | None = None
    """What a record is decoded to where expressions follow."""
    selected: Schema | None = None
    """The columns that `select` makes of it, once Spark has said which."""
    changes: Changes | None = None
    meaning: str = ""
    """What else the file says of how records are read: it is part of the fingerprint."""
    absent: tuple[tuple[str, str], ...] = ()
    """Tables that records name, and that are neither there nor can be made, each with the reason."""
    evolve: bool = False

    @property
    def timestamps(self) -> bool:
        """The snapshots say through which moment they are valid."""
        return True

    @property
    def source(self) -> Schema:
        """What a record is decoded to before expressions."""
        return self.declared or self.target

    @property
    def target(self) -> Schema:
        """What expressions may make: the columns of all tables, or of those that may be made, and the one that routes."""
        fields: dict[str, Field] = {}
        made = self.selected or self.declared
        schemas = [table.schema for table in self.tables] or ([made] if made else [])
        for each in (found for schema in schemas for found in schema.fields):
            fields.setdefault(each.name, each)
        if self.routing.field is not None:
            fields.setdefault(self.routing.field, Field(self.routing.field, pa.string()))
        return Schema(tuple(fields.values()))

    def by_name(self) -> Mapping[str, TableRecipe]:
        return {each.name: each for each in self.tables}

    def _decisive(self) -> tuple[object, ...]:
        """All that could send a record elsewhere, or make another row of it. Schemas may evolve."""
        declared = self.declared.fingerprint() if self.declared else ""
        return repr(self.routing), declared, self.select, self.where, repr(self.changes), self.meaning


@dataclass(frozen=True, kw_only=True)
class FileTask(AnyTask):
    """One block to be written to files."""

    epoch: int
    kind: Kind
    floors: tuple[tuple[str, Floors | None], ...]
    """Where each table begins to take rows; None if it takes none."""
    final: bool = False
    """Tables were made and evolved already: what does not fit now is a dead letter."""


@dataclass(frozen=True)
class Wants:
    """What must be done to a table before a block can be written."""

    table: str
    sample: tuple[bytes, ...] = ()
    """Some records for a table that is not there."""
    evolution: Any = None
