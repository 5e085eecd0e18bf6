"""Whether the rows of a query fit the table, as far as names and types tell, before anything is written."""

from __future__ import annotations

import hashlib
import json

import pyarrow as pa

from landonce.protocol import query_refusals as refusals
from landonce.read.formats.json.columns import can_fit
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.contract import COORDINATES


def declared(yields: pa.Schema) -> Schema:
    """What the query gives beside the coordinates, as columns of a table that is made for it."""
    fields = [
        Field(each.name, each.type, required=not each.nullable) for each in yields if each.name not in COORDINATES
    ]
    if not fields:
        raise refusals.query("its rows hold nothing but coordinates")
    return Schema(tuple(fields))


def fingerprint_of(identity: str, target: Schema) -> str:
    """Changes with what decides how a row stands in the table."""
    return hashlib.sha256(json.dumps([identity, target.fingerprint()]).encode()).hexdigest()


def pushed_fingerprint(identity: str) -> str:
    """Another pyarrow may make other bytes of the same rows."""
    return f"{identity} {pa.__version__}"


def refuse_misfits(yields: pa.Schema, target: Schema, table: str) -> None:
    """A value may turn out not to fit, which stops the query; a type that never fits is a mistake in it."""
    known = target.by_name()
    given = [name for name in yields.names if name not in COORDINATES]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise refusals.query(
            f"{table} has no column {', '.join(map(repr, unknown))}; it has {', '.join(known)}",
            "select what the table takes, under the names of its columns, beside topic, partition and offset",
        )
    missing = [name for name, each in known.items() if each.required and name not in given]
    if missing:
        raise refusals.query(f"its rows lack {', '.join(missing)}, which {table} requires")
    for name in given:
        if not can_fit(yields.field(name).type, known[name]):
            raise refusals.query(
                f"column {name!r} is of type {yields.field(name).type}, which that of {table} ({known[name].type}) cannot take"
            )
