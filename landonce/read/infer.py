"""A schema from a sample, for a table that is to be created when none was declared.

Only used once: afterwards the table itself says what its columns are. Every field may be missing, since a sample proves
nothing about the records that come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.types as pt

from landonce.errors import ConfigError, NothingToInfer
from landonce.plan.ranges import Range
from landonce.read.records import read
from landonce.read.schema import Field, Schema
from landonce.read.source import SourceView, everything

_SAMPLE = 1_000
"""Records per partition."""


def infer(view: SourceView, options: Mapping[str, Any]) -> Schema:
    """The fields of the first records of each partition."""
    ranges = tuple(Range(each.partition, each.first, min(each.end, each.first + _SAMPLE)) for each in everything(view))
    values = [value for records in read(ranges, options) for value in records.values.to_pylist()] if ranges else []
    return of_sample([value for value in values if value and value.lstrip()[:1] == b"{"])


def of_sample(values: list[bytes]) -> Schema:
    """As `infer`, of these values. Broken ones are left out."""
    good = [value for value in values if _readable([value])]
    if not good:
        raise NothingToInfer(
            "no schema is declared, the table is to be created, and the topic holds no JSON object to take one from.",
            safe="Nothing was created.",
            command='declare `source.kafka.schema` in {file}, for example: schema: "id BIGINT NOT NULL, name STRING"',
        )
    table = _read(good)
    if table is None:
        raise ConfigError(
            "no schema is declared, and the first records of the topic do not agree on the types of their fields.",
            command="declare `source.kafka.schema` in {file}",
        )
    return Schema(tuple(Field(each.name, _landing(each.type)) for each in table.schema))


def _readable(values: list[bytes]) -> bool:
    return _read(values) is not None


def _read(values: list[bytes]) -> pa.Table | None:
    joined = b"\n".join(values)
    try:
        return pj.read_json(
            pa.BufferReader(joined), read_options=pj.ReadOptions(use_threads=False, block_size=len(joined) + 1)
        )
    except pa.ArrowInvalid:
        return None


def _landing(type_: pa.DataType) -> pa.DataType:
    """What a column of this inferred type is created as."""
    if pt.is_list(type_):
        return pa.list_(_landing(type_.value_type))
    if pt.is_struct(type_) and type_.num_fields:
        return pa.struct([child.with_type(_landing(child.type)) for child in type_])
    if pt.is_timestamp(type_):
        return pa.timestamp("us", tz="UTC")
    if pt.is_null(type_) or pt.is_struct(type_):
        return pa.string()
    return type_
