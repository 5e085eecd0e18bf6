"""What a pipeline file says about the fields of records."""

from __future__ import annotations

from landonce.errors import ConfigError
from landonce.read.schema.ddl import parse_schema
from landonce.read.schema.fields import Schema
from landonce.sinks.pipeline_file import Pipeline


def declared_schema(config: Pipeline) -> Schema | None:
    """The fields of `source.kafka.schema`; None where the file declares none."""
    declared = config.source.kafka.schema_
    return parse_schema(declared) if declared is not None else None


def landing_schema(config: Pipeline) -> Schema | None:
    """What the file says of the rows that land: the declared fields, unless `select` makes others of them."""
    return None if config.transform.select else declared_schema(config)


def selected_from(config: Pipeline) -> Schema:
    """What expressions start from: neither a table nor a sample says what else a record may hold."""
    declared = declared_schema(config)
    if declared is None:
        raise ConfigError(
            "transform.select: the table's columns do not describe the records; declare `source.kafka.schema`."
        )
    return declared
