"""Documents in SQL columns: what every value inside is written as, and the dates and times that have no text."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from sqlalchemy import CHAR, Date, DateTime
from sqlalchemy.dialects import postgresql

from landonce.config.source import Convert
from landonce.read.convert.decode import fitted
from landonce.read.decoding import conversions_of
from landonce.read.formats.avro.decode import Avro
from landonce.read.formats.json.decode import Json
from landonce.read.schema.ddl import parse_schema
from landonce.read.schema.fields import Schema
from landonce.sinks.sql.held import as_array, comparable
from landonce.sinks.sql.types import document_of, documents_as_text, field_of

LARGE, SMALLEST = 10**18, -(2**63)


def document(declared: str) -> Schema:
    """A JSONB column for what is declared."""
    type_ = parse_schema(f"x {declared}").fields[0].type
    field = document_of("x", postgresql.JSONB(), type_, "postgresql", required=False)
    assert field is not None
    return Schema((field,))


def logical(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "logicalType": name}


@pytest.mark.parametrize(
    ("declared", "type_", "values", "lands", "why"),
    [
        (
            "STRUCT<a: TIMESTAMP, d: DATE>",
            {
                "type": "record",
                "name": "I",
                "fields": [
                    {"name": "a", "type": logical("long", "timestamp-micros")},
                    {"name": "d", "type": logical("int", "date")},
                ],
            },
            [[LARGE, 0], [0, 10**7], [0, -(10**7)], [0, 0]],
            ['{"a":"1970-01-01T00:00:00+00:00","d":"1970-01-01"}'],
            ["x.a", "x.d", "x.d"],
        ),
        (
            "ARRAY<TIMESTAMP(9)>",
            {"type": "array", "items": logical("long", "timestamp-nanos")},
            [[1, SMALLEST, 0], [1, 5, 0]],
            ['["1970-01-01T00:00:00.000000005+00:00"]'],
            ["x[]"],
        ),
    ],
)
def test_a_time_that_has_no_text_is_a_dead_letter(
    declared: str, type_: Any, values: list[list[int]], lands: list[str], why: list[str]
) -> None:
    """And neither ends the worker, nor lands as something else."""
    bodies = []
    for longs in values:
        out = io.BytesIO()
        for each in longs:
            fastavro.schemaless_writer(out, "long", each)
        bodies.append(out.getvalue())
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": type_}]})
    found = Avro((schema,)).decoder(document(declared), max_record_bytes=2**20).decode(pa.array(bodies, pa.binary()))
    assert documents_as_text(found.table).column("x").to_pylist() == lands
    outside = "is outside the range of the target"
    assert [str(each.reason) for each in found.rejects] == [f"field {place!r} {outside}" for place in why]


def test_numbers_that_are_times_by_a_rule() -> None:
    rules = conversions_of(Convert.model_validate({"fields": {"x.a": {"epoch": "s"}}}))
    decoder = fitted(Json(), rules).decoder(document("STRUCT<a: TIMESTAMP>"), max_record_bytes=2**20)
    found = decoder.decode(pa.array([b'{"x":{"a":1000000000000}}', b'{"x":{"a":5}}', b"{}"], pa.binary()))
    assert documents_as_text(found.table).column("x").to_pylist() == ['{"a":"1970-01-01T00:00:05+00:00"}', None]
    assert [each.index for each in found.rejects] == [0]


def test_keys_of_maps_are_written_as_json_has_them() -> None:
    rows = pa.array([[(True, 1), (False, 2)]], pa.map_(pa.bool_(), pa.int32()))
    texts = documents_as_text(pa.table({"x": rows})).column("x").to_pylist()
    assert texts == ['{"true":1,"false":2}']
    assert comparable(rows, postgresql.JSONB(), "postgresql").to_pylist() == ['{"false": 2, "true": 1}']


def test_a_domain_is_padded_as_its_base_type_is() -> None:
    kind = postgresql.DOMAIN("code", CHAR(3))
    found = as_array(["a  ", None], pa.string(), kind, "postgresql")
    assert found == comparable(pa.array(["a", None]), kind, "postgresql")


@pytest.mark.parametrize("dialect", ["sqlite", "yql"])
@pytest.mark.parametrize(
    ("kind", "written", "large"),
    [(DateTime(), logical("long", "timestamp-micros"), LARGE), (Date(), logical("int", "date"), 10**7)],
)
def test_drivers_that_take_pythons_times_get_no_others(dialect: str, kind: Any, written: Any, large: int) -> None:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": written}]})
    bodies = []
    for each in (0, large, -large):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, "long", each)
        bodies.append(out.getvalue())
    columns = Schema((field_of("x", kind, dialect, required=False),))
    found = Avro((schema,)).decoder(columns, max_record_bytes=2**20).decode(pa.array(bodies, pa.binary()))
    assert len(found.table.column("x").to_pylist()) == 1
    assert [each.index for each in found.rejects] == [1, 2]
