"""What the driver of a pipeline to an SQL database needs of the pipeline file and the table: the recipe, and the statements that make a table."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from landonce.errors import ConfigError
from landonce.read.decoders import decoder_of
from landonce.read.schema.ddl import UnfitFields
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.declared import declared_schema, selected_from
from landonce.sinks.parts import Parts
from landonce.sinks.pipeline_file import Pipeline
from landonce.sinks.sql.config import Sql
from landonce.sinks.sql.recipe import SqlRecipe
from landonce.sinks.sql.table import SqlTable

NOTHING = "Nothing was read or written."


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
            "sink.sql.url: an SQLite file is one of this machine, and the workers, which write to it, run on others.",
            safe="Nothing was made or written.",
            command="name another database, or a local Spark master, in {file}",
        )


def sql_creation(parts: Parts, table: SqlTable, columns: Schema) -> str:
    """The statements that make the table."""
    if declared_schema(parts.config) is None:
        _refuse_nested_sample(columns)
    made = table.creation(columns)
    _refuse_key(selected_from(parts.config) if parts.config.transform.select else columns, sql_of(parts), parts)
    return made


def _refuse_nested_sample(sampled: Schema) -> None:
    """A sample does not tell what else a document may hold, so those are declared."""
    nested = [each.name for each in sampled.fields if pa.types.is_nested(each.type)]
    if nested:
        why = "a nested value becomes a column of JSON, and a sample does not tell what else it may hold"
        raise UnfitFields([(name, why) for name in nested], sampled)


def sql_recipe(parts: Parts, table: SqlTable) -> SqlRecipe:
    """What a record is decoded to and what the table takes, and that the one can become the other."""
    config, told = parts.config, sql_of(parts)
    declared = declared_schema(config)
    selecting = bool(config.transform.select)
    target = table.schema(None if selecting else declared, selected=selecting)
    source = selected_from(config) if selecting else _source(declared, target, evolve=told.evolve)
    recipe = SqlRecipe(
        pipeline=config.pipeline,
        consumer=tuple(sorted(parts.consumer.items())),
        source=source,
        target=target,
        sink=replace(parts.sql, jsonb=table.jsonb()),
        dead_letters=config.dead_letters.path,
        max_record_bytes=config.source.kafka.max_record_bytes,
        block_bytes=config.batch.block_bytes,
        select=config.transform.select,
        where=config.transform.where,
        changes=told.meaning.decoding() if told.meaning is not None else None,
        evolve=told.evolve,
        declared=declared.fingerprint() if declared is not None else "",
    )
    _refuse_key(source, told, parts)
    return recipe


def _refuse_key(source: Schema, told: Sql, parts: Parts) -> None:
    """What no change of a record can be decoded by, before any is read."""
    try:
        decoder_of(
            source,
            parts.sql.key,
            told.meaning.decoding() if told.meaning is not None else None,
            max_record_bytes=parts.config.source.kafka.max_record_bytes,
        )
    except ValueError as reason:
        raise ConfigError(
            f"sink.sql.key: {reason}.", command="correct `key` or `source.kafka.schema` in {file}"
        ) from None


def _source(declared: Schema | None, table: Schema, *, evolve: bool) -> Schema:
    """The table decides the types, and a declaration which fields there are and must be; columns that were added since
    are filled too, where the table may evolve."""
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
    fields = [_declared(each, columns[each.name]) for each in declared.fields]
    return Schema((*fields, *(each for name, each in columns.items() if evolve and name not in named)))


def _declared(declared: Field, column: Field) -> Field:
    return replace(column, required=declared.required or column.required, scale=declared.scale)
