"""The two sides of an audit of Iceberg tables: what they hold, and what they should hold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from landonce.protocol.ledger import LedgerState
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.declared import declared_schema, landing_schema
from landonce.sinks.iceberg.catalog import catalog_errors
from landonce.sinks.iceberg.driver import file_recipe
from landonce.sinks.iceberg.marks import copy_name
from landonce.sinks.iceberg.sink import IcebergSink
from landonce.sinks.iceberg.worker import FileRecipe, TableRecipe, table_recipe
from landonce.sinks.parts import Parts
from landonce.verify.compare import ValueAudit
from landonce.verify.expect import Decoder, PlainDecoder
from landonce.verify.held.iceberg import IcebergRows
from landonce.verify.held.iceberg_keys import IcebergKeys
from landonce.verify.held.iceberg_values import IcebergValues
from landonce.verify.held.scan import PinnedTable
from landonce.verify.keyed import KeyedAudit
from landonce.verify.sorting import ByField, Changing
from landonce.verify.table import RowsAudit, TableAudit

_ANY = Schema((Field("__landonce_any", pa.string()),))
"""Any record."""


@dataclass(frozen=True)
class IcebergTables:
    """The tables of a pipeline: those that the file names, those that the ledger knows, and those that records name."""

    parts: Parts
    state: LedgerState | None
    values: bool = False
    """Whether values are compared too."""
    _loaded: dict[str, Table | None] = field(default_factory=dict)

    @property
    def sink(self) -> IcebergSink:
        return self.parts.iceberg

    @property
    def sorting(self) -> ByField:
        return ByField(self.sink.routing)

    def known(self) -> tuple[str, ...]:
        """Of the tables whose names match the template, those that the pipeline has committed to."""
        with catalog_errors(self.sink.spec):
            found = [name for name in self.sink.dynamic() if self._ours(name)]
        listed = [name for name, _ in self.state.tables] if self.state is not None else []
        return tuple(dict.fromkeys((*self.sink.static, *found, *listed)))

    def open(self, table: str) -> TableAudit:
        """A missing table holds nothing, with or without keys."""
        spec, config, catalog = self.sink.spec, self.sink.config, self.sink.catalog
        if config.changes is not None and self._load(table) is not None:
            keys = IcebergKeys(spec, table, config.identity, config.branch, catalog)
            return KeyedAudit(keys, config.identity, self._values(keys.table))
        rows = IcebergRows(spec, table, config.branch, catalog)
        return RowsAudit(rows, self._values(rows.table))

    def _values(self, table: PinnedTable) -> ValueAudit | None:
        return ValueAudit(IcebergValues(table)) if self.values else None

    @cached_property
    def recipe(self) -> FileRecipe:
        """The file's settings for records, and the columns of the existing tables."""
        tables = (self._recipe(name) for name in self.known())
        return replace(file_recipe(self.parts), tables=tuple(each for each in tables if each is not None))

    def schema_of(self, table: str) -> Schema | None:
        """The schema that records are decoded to; None if the table does not exist."""
        recipe = self._recipe(table)
        return recipe.schema if recipe is not None else None

    def decoder_of(self, table: str) -> Decoder | None:
        """None if records for the table are dead letters. A missing table that should exist accepts anything."""
        schema, recipe = self.schema_of(table), self.recipe
        if schema is None:
            lost = self.sink.config.create or table in self.sink.static
            declared = declared_schema(self.parts.config) or _ANY
            return PlainDecoder(declared, recipe.max_record_bytes) if lost else None
        if recipe.changes is not None:
            return Changing(schema, self.sink.config.identity, recipe.changes, recipe.max_record_bytes)
        return PlainDecoder(schema, recipe.max_record_bytes)

    def _ours(self, table: str) -> bool:
        there = self._load(table)
        if there is None:
            return False
        summaries = (each.summary.additional_properties for each in there.snapshots() if each.summary is not None)
        marked = any(each.get("landonce.pipeline") == self.sink.pipeline for each in summaries)
        return marked or copy_name(self.sink.pipeline, self.sink.config.branch) in there.properties

    def _recipe(self, table: str) -> TableRecipe | None:
        there = self._load(table)
        landing = landing_schema(self.parts.config)
        return table_recipe(self.sink.config, table, there, landing) if there is not None else None

    def _load(self, table: str) -> Table | None:
        if table not in self._loaded:
            with catalog_errors(self.sink.spec):
                try:
                    self._loaded[table] = self.sink.catalog.load_table(table)
                except NoSuchTableError:
                    self._loaded[table] = None
        return self._loaded[table]
