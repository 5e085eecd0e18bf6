"""What the driver of a pipeline to an SQL database makes of the pipeline file and the table: the recipe, the statements that create a table, and
what an operator may decide."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa

from landonce.errors import ConfigError, NothingToDo, TableUnfit
from landonce.ledger.block_ledgers import TargetLedger
from landonce.protocol import operate
from landonce.protocol.marks import TableView
from landonce.protocol.receipt import Want
from landonce.read.decoding import decoder_of
from landonce.read.evolution import Evolution, merge
from landonce.read.schema.ddl import UnfitFields
from landonce.read.schema.fields import JSON, Field, Schema
from landonce.sinks.declared import declared_schema, selected_from
from landonce.sinks.operations import UNCHANGED, Choice, LedgerAddress, TransactionalOperations
from landonce.sinks.parts import Parts
from landonce.sinks.pipeline_file import Pipeline
from landonce.sinks.run import Columns, Run, SourceAndTarget, SparkNeeds, refuse_unfit, run_of
from landonce.sinks.sql.config import Sql
from landonce.sinks.sql.fingerprint import refuse_recreation, refuse_replaced
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.table import SqlTable
from landonce.sinks.sql.worker import SqlRecipe
from landonce.sinks.transactional import OpenTransactional

NOTHING = "Nothing was read or written."
_ALTERED = (
    "The table was altered since the start. The block's transaction was rolled back, and the position did not move."
)


def sql_of(parts: Parts) -> Sql:
    """The file's section on the database."""
    if not isinstance(parts.config.sink, Sql):
        raise TypeError(f"{parts.config.sink!r} is not an SQL database")
    return parts.config.sink


def file_reachable(config: Pipeline, *, remote: bool) -> None:
    """Workers write to the file, so they must be on its machine. `remote`: they may run on others."""
    section = config.sink
    if isinstance(section, Sql) and remote and section.url.get_secret_value().startswith("sqlite"):
        raise ConfigError(
            "sink.sql.url: an SQLite file is on this machine, and the workers, which write to it, run on other "
            "machines.",
            safe="Nothing was created or written.",
            command="use another database, or a local Spark master, in {file}",
        )


def sql_creation(parts: Parts, table: SqlTable, columns: Schema) -> str:
    """The statements that make the table."""
    nested = [each.name for each in columns.fields if pa.types.is_nested(each.type)]
    if declared_schema(parts.config) is None and nested:
        why = "a sample does not say what else a document may hold"
        raise UnfitFields([(name, why) for name in nested], columns)
    made = table.creation(columns)
    _refuse_key(selected_from(parts.config) if parts.config.transform.select else columns, sql_of(parts), parts)
    return made


def sql_recipe(parts: Parts, table: SqlTable) -> SqlRecipe:
    """What a record is decoded to, and what the table takes. Raises if the one cannot become the other."""
    config, section = parts.config, sql_of(parts)
    declared = declared_schema(config)
    selecting = bool(config.transform.select)
    target = table.schema(None if selecting else declared, selected=selecting)
    source = selected_from(config) if selecting else _source(declared, target, evolve=section.evolve)
    recipe = SqlRecipe(
        **run_of(parts).basics,
        source=source,
        target=target,
        sink=replace(table.sink, own_forms=table.own_forms()),
        changes=section.meaning.decoding() if section.meaning is not None else None,
        evolve=section.evolve,
        declared=declared.fingerprint() if declared is not None else "",
    )
    _refuse_key(source, section, parts)
    return recipe


def _refuse_key(source: Schema, section: Sql, parts: Parts) -> None:
    """Raises for a key by which no change can be decoded, before any record is read."""
    try:
        decoder_of(
            source, parts.decoding, section.key, section.meaning.decoding() if section.meaning is not None else None
        )
    except ValueError as reason:
        raise ConfigError(
            f"sink.sql.key: {reason}.", command="correct `key` or `source.kafka.schema` in {file}"
        ) from None


def _source(declared: Schema | None, table: Schema, *, evolve: bool) -> Schema:
    """What a record is decoded to: the table says the types, a declared schema says which fields there are and which are required. If the
    table may evolve, columns that were added since are filled too."""
    if declared is None:
        return table
    columns, named = table.by_name(), declared.by_name()
    unknown = [name for name in named if name not in columns]
    if unknown:
        raise ConfigError(
            f"source.kafka.schema: the table has no column {', '.join(map(repr, unknown))} that landonce writes.",
            safe=NOTHING,
            command="add the column to the table, or take the field out of `source.kafka.schema` in {file}",
        )
    missing = [name for name, each in columns.items() if each.required and name not in named]
    if missing:
        raise ConfigError(
            f"source.kafka.schema: lacks {', '.join(map(repr, missing))}, which the table requires.",
            safe=NOTHING,
            command="declare the field in {file}, or let the column be NULL or have a default",
        )
    fields = [_asked(each, columns[each.name]) for each in declared.fields]
    return Schema((*fields, *(each for name, each in columns.items() if evolve and name not in named)))


def _asked(declared: Field, column: Field) -> Field:
    """The column's field, with what the declaration says beyond the column: a column of bytes does not say how many they are."""
    sized = pa.types.is_fixed_size_binary(declared.type) and pa.types.is_binary(column.type)
    type_, scale = (declared.type if sized else column.type), declared.scale
    timed = pa.types.is_timestamp(type_) or pa.types.is_date32(type_)
    return replace(column, type=type_, required=declared.required or column.required, scale=scale if timed else None)


@dataclass
class SqlOperations(TransactionalOperations):
    """Also knows which table it is, where the database says so."""

    sink: SqlSink

    def kept(self) -> LedgerAddress:
        return LedgerAddress(f"the tables landonce_* beside the table, in {self.sink}", {"target": str(self.sink)})

    def fingerprint(self) -> str:
        with closing(SqlTable(self.sink)) as table:
            return sql_recipe(self.parts, table).fingerprint()

    def forget_table(self, table: str, owner: str, *, replay: bool) -> Choice:
        """The next plan binds the pipeline to the table that exists then."""
        if replay:
            raise NothingToDo(
                "a pipeline cannot fill its own SQL table again.",
                safe=UNCHANGED,
                command="give the pipeline another `pipeline` name and an empty table in {file}, then: landonce run {file}",
            )
        known = self.required()
        with closing(SqlTable(replace(self.sink, table=table))) as there:
            view = TableView(table, there.identity())
        return Choice(known, operate.forget_table(known, view, owner))


class OpenSql(OpenTransactional):
    """A table of an SQL database, opened on the driver. Blocks compare the table with what was examined here."""

    recipe: SqlRecipe
    table: SqlTable

    def __init__(self, sink: SqlSink, run: Run) -> None:
        if run.parts is not None:
            file_reachable(run.parts.config, remote=run.remote)
        elif run.remote and sink.dialect == "sqlite":
            raise ConfigError("sink: an SQLite file is on this machine, and the query's workers run on other machines.")
        super().__init__(sink, run)
        if not isinstance(run.ledger, TargetLedger):
            raise TypeError("the ledger of a database is in it")
        self._sql, self._ledger, self.table = sink, run.ledger, SqlTable(sink)

    def columns_to_make(self) -> Columns | None:
        if not self._sql.create or self.table.exists():
            return None
        refuse_recreation(self._sql, self._ledger.load())
        return self.run.columns(self._creation)

    def _creation(self, columns: Schema) -> str:
        """The statements that make the table."""
        if self.run.parts is None:
            return self.table.creation(columns)
        return sql_creation(self.run.parts, self.table, columns)

    def spark(self) -> SparkNeeds:
        return SparkNeeds(("landonce.sinks.sql.worker",))

    def make(self, columns: Schema) -> None:
        self._creation(columns)
        basics = self.run.basics
        if basics["select"] or basics["where"] is not None:
            source = self.run.declared or columns
            # A column of documents takes text from an expression: `to_json(…)`.
            fields = [
                replace(each, type=pa.string()) if basics["select"] and pa.types.is_nested(each.type) else each
                for each in columns.fields
            ]
            taken = Schema(tuple(fields))
            self.run.examine(SourceAndTarget(source, taken, basics["select"], basics["where"]))
        self.table.create(columns)

    def examined(self, safe: str = NOTHING) -> SqlRecipe:
        seen = self.table.fingerprint()
        self._ledger.table = self._sql.table, refuse_replaced(self.table, self._ledger, safe)
        landing = self.run.declared if self.run.query is None else self.run.landing
        refuse_unfit(self.table.check(landing, selected=self.run.selects), safe)
        if self.run.parts is not None:
            recipe = sql_recipe(self.run.parts, self.table)
        else:
            taken = self.table.schema(self.run.landing)
            self.run.refuse_misfits(taken, self._sql.table)
            sink = replace(self._sql, own_forms=self.table.own_forms())
            recipe = SqlRecipe(**self.run.basics, source=taken, target=taken, sink=sink)
        return replace(recipe, sink=replace(recipe.sink, examined=seen))

    def examine_again(self) -> None:
        """What the file and the table disagree on now is the table's doing: the file was right at the start."""
        try:
            recipe = self.examined(_ALTERED)
            self.run.examine(recipe)
            self.recipe = recipe
        except ConfigError as error:
            repair = "or what makes the rows as the message says; then start again"
            if self.run.query is None:
                repair = f"or {error.command or 'change {file} as the message says'}; then: landonce run {{file}}"
            raise TableUnfit(
                f"{self._sql.table} was altered and no longer fits the pipeline: {error.what}",
                safe=_ALTERED,
                command=f"change the table back, {repair}",
            ) from None

    def add(self, wants: Iterable[Want]) -> None:
        wanted = merge(each for each in wants if isinstance(each, Evolution))
        types = {path[0]: shape.type() for path, shape in wanted.added}
        known = {name: type_ for name, type_ in types.items() if type_ is not None}
        self.table.add({name: JSON if pa.types.is_nested(type_) else type_ for name, type_ in known.items()})
        self.examine_again()
