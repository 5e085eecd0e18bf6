"""Infers a schema from a sample, to create a table when none is declared.

This happens once: afterwards the table itself defines its columns. Every field may be missing, because a sample proves
nothing about later records.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.types as pt

from landonce.errors import ConfigError, NothingToInfer
from landonce.read.schema.fields import Field, Schema


def of_sample(values: list[bytes]) -> Schema:
    """The fields of these records. Invalid records are left out."""
    found = agreed([value for value in values if readable(value)])
    if found is None:
        raise ConfigError("the records do not agree on the types of their fields.", safe="Nothing was created.")
    return found


def agreed(values: list[bytes]) -> Schema | None:
    """The fields of these records, all of them readable; None if they do not agree on their types."""
    if not values:
        raise NothingToInfer(
            "no schema is declared, the table is to be created, and the topic holds no JSON object to infer one from.",
            safe="Nothing was created.",
            command='declare `source.kafka.schema` in {file}, for example: schema: "id BIGINT NOT NULL, name STRING"',
        )
    table = _read(values)
    if table is None:
        return None
    fields = [(each.name, _landing(each.type)) for each in table.schema]
    known = tuple(Field(name, type_) for name, type_ in fields if type_ is not None)
    return Schema(known) if known else agreed([])


def readable(value: bytes) -> bool:
    """Whether a schema can be inferred from this record."""
    return _read([value]) is not None


def _read(values: list[bytes]) -> pa.Table | None:
    joined = b"\n".join(values)
    try:
        return pj.read_json(
            pa.BufferReader(joined), read_options=pj.ReadOptions(use_threads=False, block_size=len(joined) + 1)
        )
    except pa.ArrowInvalid:
        return None


def _landing(type_: pa.DataType) -> pa.DataType | None:
    """The column type for this inferred type. An object that was always empty gets no column."""
    if pt.is_list(type_):
        inner = _landing(type_.value_type)
        return pa.list_(inner) if inner is not None else None
    if pt.is_struct(type_):
        inside = [(child, _landing(child.type)) for child in type_]
        known = [child.with_type(inner) for child, inner in inside if inner is not None]
        return pa.struct(known) if known else None
    if pt.is_timestamp(type_):
        return pa.timestamp("us", tz="UTC")
    if pt.is_null(type_):
        return pa.string()
    return type_
