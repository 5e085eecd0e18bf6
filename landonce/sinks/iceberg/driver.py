"""What the driver of a pipeline to Iceberg needs of the pipeline file: the recipe."""

from __future__ import annotations

from landonce.errors import ConfigError
from landonce.sinks.declared import declared_schema, selected_from
from landonce.sinks.iceberg.recipe import FileRecipe
from landonce.sinks.parts import Parts


def file_recipe(parts: Parts) -> FileRecipe:
    """What the file says of records, before any table is looked at."""
    config, sink = parts.config, parts.iceberg
    declared = selected_from(config) if config.transform.select else declared_schema(config)
    by = sink.routing.field
    if config.transform.select and by is not None and "." in by:
        raise ConfigError(f"sink.iceberg: with `select`, records are routed by a column of its result, not by {by!r}.")
    return FileRecipe(
        pipeline=config.pipeline,
        consumer=tuple(sorted(parts.consumer.items())),
        routing=sink.routing,
        tables=(),
        dead_letters=config.dead_letters.path,
        max_record_bytes=config.source.kafka.max_record_bytes,
        block_bytes=config.batch.block_bytes,
        declared=declared if not config.transform.empty else None,
        select=config.transform.select,
        where=config.transform.where,
        changes=sink.told.changes.decoding() if sink.told.changes is not None else None,
        meaning=repr((declared.fingerprint() if declared else "", sink.told.case_insensitive, sink.told.identity)),
        evolve=sink.told.evolve,
    )
