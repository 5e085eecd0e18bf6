"""The worker's part of Iceberg: the recipe of a pipeline and the task of one block (both picklable), and writing the block's files.

Files count only once the driver has committed them, so a task that Spark runs again writes other files, and no harm is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from landonce.errors import ConfigError, TableUnfit
from landonce.failpoints import reach
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.read.block import ReadBlock, Reader
from landonce.read.changes import Changes
from landonce.read.decoding import Decode, decode_by, decoder_of
from landonce.read.evolution import observed
from landonce.read.formats import Decoded, Reject
from landonce.read.kafka.records import KafkaMessage
from landonce.read.route import Routing
from landonce.read.rows import fit_to, records_of
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.iceberg.deletes import EqualityWriter, require_equality, require_whole_rows
from landonce.sinks.iceberg.files import SparkScratch, WrittenFile, write_files
from landonce.sinks.iceberg.partitions import Limit, beyond, limits_of
from landonce.sinks.iceberg.table import TableShape, creation, identity_of, layout, why_spark
from landonce.sinks.iceberg.types import not_in_spark, renamed, schema_for
from landonce.sinks.snapshot import StageTask, staged
from landonce.sinks.worker import BlockWorker, Recipe, Refuse, Wants


@dataclass(frozen=True)
class TableRecipe:
    """One table, as workers need it."""

    name: str
    schema: Schema
    """What a record is decoded to."""
    shape: TableShape | None
    scratch: SparkScratch | None
    """Workers write the table's own files, or files from which Spark then writes them."""
    identity: tuple[str, ...] = ()
    """The columns that identify one row, if records change rows."""
    limits: tuple[Limit, ...] = ()
    """Values that have no partition."""
    equality: EqualityWriter | None = None
    """Set if workers write changes themselves, instead of `shape`."""


@dataclass(frozen=True, kw_only=True)
class FileRecipe(Recipe[StageTask]):
    """What workers need to know to write a pipeline's files."""

    routing: Routing
    tables: tuple[TableRecipe, ...]
    declared: Schema | None = None
    """What a record is decoded to, if expressions follow."""
    selected: Schema | None = None
    """The columns that `select` makes of it, once Spark has said which."""
    changes: Changes | None = None
    meaning: str = ""
    """Other options of the file that decide how records are read: part of the fingerprint."""
    absent: tuple[tuple[str, str], ...] = ()
    """Tables that records name, and that neither exist nor can be created, each with the reason."""
    evolve: bool = False

    @property
    def marks(self) -> bool:
        """The snapshots say through which moment they are valid."""
        return True

    @property
    def describes_records(self) -> bool:
        return (
            len(self.tables) == 1
            and not (self.routing.many or self.routing.by_topic or self.routing.field)
            and not self.evolve
        )

    @property
    def source(self) -> Schema:
        """What a record is decoded to before expressions."""
        return self.declared or self.target

    @property
    def target(self) -> Schema:
        """The columns that expressions may produce: those of all tables, or of tables that may be created, and the routing field."""
        return Schema(self._columns())

    def _columns(self) -> tuple[Field, ...]:
        fields: dict[str, Field] = {}
        made = self.selected or self.declared
        schemas = [table.schema for table in self.tables] or ([made] if made else [])
        for each in (found for schema in schemas for found in schema.fields):
            fields.setdefault(each.name, each)
        if self.routing.field is not None:
            fields.setdefault(self.routing.field, Field(self.routing.field, pa.string()))
        return tuple(fields.values())

    def judgement(self) -> str:
        """Empty where nothing says what lands: no column is declared, and no table is there."""
        return super().judgement() if self._columns() else ""

    def by_name(self) -> Mapping[str, TableRecipe]:
        return {each.name: each for each in self.tables}

    def _decisive(self) -> tuple[object, ...]:
        """All that could route a record elsewhere, or turn it into another row. Schemas may evolve."""
        declared = self.declared.fingerprint() if self.declared else ""
        return self.routing.decisive(), declared, self.select, self.where, repr(self.changes), self.meaning

    def worker(self, task: StageTask) -> BlockWorker:
        return FileWorker(self, task)


def table_recipe(
    config: Iceberg, name: str, table: Table, declared: Schema | None = None, *, planned: bool = False
) -> TableRecipe:
    """The recipe of a table, for workers. `planned`: as much of it as is known before the table is created."""
    identity = identity_of(config, name, table) if config.changes is not None else ()
    if config.by_equality:
        require_equality(config, name, table)
    reason = "records change its rows" if config.changes is not None and not config.by_equality else why_spark(table)
    unknown = [*not_in_spark(table.schema().as_struct())] if reason else []
    if unknown:
        raise TableUnfit(
            f"{name}: Spark's own writer is needed for it, since {reason}, and Spark cannot open a table with these columns: "
            f"{', '.join(unknown)}.",
            safe="Nothing was written.",
            command="drop the columns, or give them types that Spark knows, such as string, timestamp or timestamptz",
        )
    staged, written = bool(reason), not reason and not planned
    schema = schema_for(table, coordinates=True, fold_case=config.case_insensitive, declared=declared)
    if config.by_equality:
        require_whole_rows(name, table, (each.name for each in schema.fields if each.is_filled))
    return TableRecipe(
        name=name,
        schema=schema,
        shape=TableShape.of(table, unpartitioned=config.unpartitioned) if written and not config.by_equality else None,
        scratch=SparkScratch.of(table) if staged else None,
        identity=identity,
        limits=limits_of(table.spec(), table.schema()) if staged or not config.unpartitioned else (),
        equality=EqualityWriter.of(config, identity, table) if written and config.by_equality else None,
    )


def require_decodable(recipe: FileRecipe, table: TableRecipe) -> None:
    """Raises if no record can become a row of the table, before any is read. With expressions, records become the declared fields first."""
    try:
        if not recipe.transforms:
            decoder_of(table.schema, recipe.decoding, table.identity, recipe.changes)
    except (TypeError, ValueError) as reason:
        raise ConfigError(
            f"sink.iceberg: records cannot become rows of {table.name}: {reason}.",
            command="correct `identity`, `changes` or `source.kafka` in {file}, or the columns of the table",
        ) from None


def planned_recipe(config: Iceberg, name: str, columns: Schema) -> TableRecipe:
    """The recipe of a table that is to be created with these columns, made in memory only. Raises what creating it would."""
    schema, spec, properties = layout(columns, creation(config))
    metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, f"file:///{name}", properties)
    table = Table(tuple(name.split(".")), metadata, "", load_file_io(), NoopCatalog("planned"))
    return table_recipe(config, name, table, columns, planned=True)


def table_fingerprint(table: Table) -> tuple[object, ...]:
    """Changes with everything in a table's recipe: its columns and files, and how its storage is opened."""
    metadata = table.metadata
    writing = ((key, value) for key, value in table.properties.items() if not key.startswith("landonce."))
    opening = ((key, str(value)) for key, value in table.io.properties.items())
    return (
        metadata.table_uuid,
        metadata.format_version,
        metadata.current_schema_id,
        metadata.default_spec_id,
        tuple(sorted(table.specs())),
        metadata.default_sort_order_id,
        metadata.location,
        frozenset(writing),
        frozenset(opening),
    )


@dataclass(frozen=True)
class FileWorker(BlockWorker):
    """Writes the files of one block."""

    recipe: FileRecipe
    task: StageTask

    def reader(self) -> Reader:
        """Without the tables that a replay leaves out: a record that they could not take is no dead letter then."""
        recipe, task, others = self.recipe, self.task, self.task.left_out
        tables = [each for each in recipe.tables if each.name not in others]
        return Reader(
            routing=recipe.routing,
            format=recipe.decoding.format,
            decoders={each.name: self._decoder(each) for each in tables},
            fits={each.name: fit_to(each.schema, partial(beyond, each.limits)) for each in tables},
            floors=task.begins(),
            asking=not task.final,
            others=others,
            absent=dict(recipe.absent),
            payloads=recipe.evolve and not task.final,
            marks=True,
        )

    def wants(self, block: ReadBlock) -> tuple[Wants, ...]:
        """Missing tables that records name, and columns that tables lack."""
        if self.task.final:
            return ()
        wants = [Wants(table, tuple(sample)) for table, sample in sorted(block.missing.items())]
        tables = self.recipe.by_name()
        for name, payloads in sorted(block.payloads.items()):
            evolution = observed(
                payloads, tables[name].schema, self.recipe.decoding.format, identity=tables[name].identity
            )
            if evolution:
                wants.append(Wants(name, evolution=evolution))
        return tuple(wants)

    def write(self, block: ReadBlock, receipt: Receipt, refuse: Refuse | None) -> BlockResult:
        """The count of landed rows comes from the files themselves, so a row that got lost on the way leaves the account unbalanced."""
        del refuse
        recipe, task, tables = self.recipe, self.task, self.recipe.by_name()
        origin = task.origin(recipe.pipeline)
        files, landed = [], block.held - block.shared
        for name in sorted(block.tables):
            rows, table = block.rows(name), tables[name]
            named = renamed(rows)
            written: tuple[WrittenFile, ...]
            if table.scratch is not None:
                staged_file = table.scratch.write(named, origin)
                written, count = (staged_file,), staged_file.rows
            elif table.equality is not None:
                written, count = table.equality.write(named, origin)
            else:
                assert table.shape is not None
                data = write_files(table.shape, named, origin)
                written, count = data, sum(each.record_count for each in data)
            files.append((name, written))
            landed += count - (rows.num_rows - records_of(rows) if recipe.changes is not None else 0)
        reach("files.after")
        return BlockResult(task.index, Fate.LANDED, staged(block, receipt, tuple(files), landed))

    def _decoder(self, table: TableRecipe) -> Decode:
        """Rejects a record whose row has no partition, like one that does not fit its columns."""
        recipe = self.recipe
        decode = decode_by(table.schema, recipe.decoding, table.identity, recipe.changes)

        def decode_within(values: pa.BinaryArray, messages: Sequence[KafkaMessage]) -> Decoded:
            rows = decode(values, messages)
            found = beyond(table.limits, rows.table)
            rejects = (*rows.rejects, *(Reject(int(rows.kept[at]), reason) for at, reason in found.items()))
            return replace(rows, rejects=rejects)

        return decode_within if table.limits else decode
