"""What a pipeline file says about the fields of records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from landonce.errors import ConfigError
from landonce.protocol.source import SourceView
from landonce.read.decoding import Decoding, decoder_of
from landonce.read.record_columns import RECORD_COLUMNS, record_fields
from landonce.read.sample import Inferred, first_records, sample_of, usable_columns
from landonce.read.schema.ddl import parse_schema, spelled_schema
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.pipeline_file import Pipeline

if TYPE_CHECKING:
    from landonce.sinks.parts import Parts


def declared_schema(config: Pipeline) -> Schema | None:
    """The fields of `source.kafka.schema`; None where the file declares none."""
    declared = config.source.kafka.schema_
    if declared is None:
        return None
    expressions = (*config.transform.select, config.transform.where or "")
    used = [name for name in RECORD_COLUMNS if any(re.search(rf"\b{name}\b", each) for each in expressions)]
    return with_record_columns(parse_schema(declared), [*config.source.kafka.record_columns, *used])


def with_record_columns(schema: Schema, names: Iterable[str]) -> Schema:
    """The schema, and those of `_key`, `_headers`, `_timestamp` and `_value` that it lacks."""
    lacking = [name for name in dict.fromkeys(names) if name not in schema.by_name()]
    return replace(schema, fields=(*schema.fields, *record_fields(lacking)))


def sampled_schema(
    parts: Parts,
    view: SourceView,
    usable: Callable[[Schema], object],
    tidy: Callable[[Schema], Schema] = lambda inferred: inferred,
) -> Inferred:
    """The fields of some records in the topics, with the record columns that the file names, as `tidy` leaves them. They must be
    `usable`."""
    kafka, format_ = parts.config.source.kafka, parts.decoding.format

    def whole(found: Schema) -> Schema:
        return tidy(with_record_columns(found, kafka.record_columns))

    records = first_records(view, parts.consumer)
    known = format_.fields([each.value for each in records])
    if known is not None:
        return _known_columns(_row_in(known, parts.config.sink.change_mode), parts.decoding, usable, whole)
    bodies = format_.bodies(pa.array([each.value for each in records], pa.binary())).to_pylist()
    unframed = (replace(each, value=body) for each, body in zip(records, bodies, strict=True))
    return sample_of(unframed).columns(usable, whole)


def _row_in(known: Schema, change_mode: str) -> Schema:
    """The fields of the row: in Debezium's envelopes, those of `after`."""
    row = known.by_name().get("after") if change_mode == "debezium" else None
    if row is None or not pa.types.is_struct(row.type):
        return known
    return Schema(tuple(Field(each.name, each.type, required=not each.nullable) for each in row.type))


def _known_columns(
    known: Schema, decoding: Decoding, usable: Callable[[Schema], object], tidy: Callable[[Schema], Schema]
) -> Inferred:
    """Fields that the format knows. What the table cannot hold is kept as text, if the format can write it."""
    made, kept = usable_columns(known, usable, tidy)
    if not kept:
        return Inferred(made)
    try:
        decoder_of(made, decoding)
    except (TypeError, ValueError):
        usable(tidy(known))
        raise
    pasted = json.dumps(spelled_schema(made), ensure_ascii=False)
    listed = "\n".join(f"  {path}: {why}" for path, why in kept.items())
    return Inferred(
        made, f"{listed}\nTo choose others, declare under `source: kafka:`, for example:\n  schema: {pasted}"
    )


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
