"""Fields that no column takes are noticed in a few records, and each is named once in a run."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from landonce.engine.observe import Unplaced
from landonce.read.changes import Changes
from landonce.read.decoding import Decoding, decode_by
from landonce.read.formats import Format
from landonce.read.formats.avro.decode import Avro
from landonce.read.formats.json.decode import Json
from landonce.read.formats.text.csv import Csv
from landonce.read.formats.text.plain import Framed, Plain
from landonce.read.schema.ddl import parse_schema

SCHEMA = "id BIGINT, customer STRUCT<name: STRING>, tags MAP<STRING, INT>, doc JSON"
AVRO = {"type": "record", "name": "R", "fields": [{"name": name, "type": "long"} for name in ("id", "gift")]}


class Keyed:
    """A record with a key."""

    def key(self) -> bytes:
        return b'{"id": 1}'


def noticed(
    values: Sequence[bytes | None], schema: str = SCHEMA, changes: Changes | None = None, format_: Format | None = None
) -> tuple[str, ...]:
    decoding = Decoding(format_ or Json(), notices=True)
    decode = decode_by(parse_schema(schema), decoding, ("id",) if changes else (), changes)
    return decode(pa.array(values, pa.binary()), [Keyed() for _ in values]).without_column  # type: ignore[list-item]


def lines(*rows: dict[str, Any]) -> list[bytes]:
    return [json.dumps(each).encode() for each in rows]


def test_fields_and_fields_inside() -> None:
    found = noticed(lines({"id": 1, "customer": {"name": "x", "tier": 1}}, {"id": 2, "gift": [1], "also": {"a": 1}}))
    assert found == ("also", "customer.tier", "gift")


def test_what_a_column_takes_whole_and_what_is_null_is_no_news() -> None:
    assert noticed(lines({"id": 1, "tags": {"any": 1}, "doc": {"any": 1}, "gift": None}, {"id": 2})) == ()
    assert noticed([None, b"no JSON", b"[1]", b""]) == ()


def test_formats() -> None:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), {"id": 1, "gift": 2})
    assert noticed([out.getvalue()], "id BIGINT", format_=Avro((json.dumps(AVRO),))) == ("gift",)
    assert noticed([b"1,2"], "id BIGINT", format_=Csv(("id", "gift"))) == ("gift",)
    assert noticed([b'\0\0\0\0\1{"gift": 1}'], format_=Framed(Json())) == ("gift",)
    assert noticed([b'{"gift": 1}'], "_value STRING", format_=Plain(text=True)) == ()


@pytest.mark.parametrize(
    ("mode", "record", "found"),
    [
        ("upsert", {"id": 1, "gift": 1}, ("gift",)),
        ("operation", {"id": 1, "op": "u", "gift": 1}, ("gift",)),
        ("debezium", {"op": "c", "before": None, "after": {"id": 1, "gift": 1}}, ()),
    ],
)
def test_changes(mode: Any, record: dict[str, Any], found: tuple[str, ...]) -> None:
    assert noticed(lines(record), "id BIGINT", Changes(mode)) == found


def test_only_a_few_records_are_looked_at() -> None:
    """The newest is always among them. So a block of any size costs the same, and a rare field may be missed."""
    many = lines(*({"id": each} for each in range(20_000)))
    assert noticed([*many, *lines({"id": 1, "gift": 1})]) == ("gift",)
    assert noticed([*lines({"id": 1, "gift": 1}), *many]) == ()


def test_one_of_many_calls_is_looked_at() -> None:
    decode = decode_by(parse_schema("id BIGINT"), Decoding(notices=True))
    many, late = (pa.array(lines(*rows), pa.binary()) for rows in ([{"id": 1}] * 30_000, [{"id": 1, "gift": 1}]))
    assert [decode(each, []).without_column for each in (many, late, many, late, late)] == [(), (), (), (), ()]
    fresh = decode_by(parse_schema("id BIGINT"), Decoding(notices=True))
    assert [fresh(each, []).without_column for each in (late, many, late, many)] == [("gift",), (), (), ()]
    mixed = pa.concat_arrays([many, late])
    assert [fresh(each, []).without_column for each in (mixed, mixed)] == [(), ("gift",)]


def test_a_declared_schema_is_no_news() -> None:
    decode = decode_by(parse_schema("id BIGINT"), Decoding())
    assert decode(pa.array(lines({"id": 1, "gift": 1}), pa.binary()), []).without_column == ()


def test_a_run_names_each_field_once_and_not_too_many() -> None:
    unplaced = Unplaced()
    assert unplaced.news(["b", "a", "a"]).startswith("fields that no column takes: a, b. ")
    assert unplaced.news(["a"]) == ""
    assert unplaced.news(["a", "c"]).startswith("fields that no column takes: c. ")
    said = unplaced.news(f"key {each:03}" for each in range(1000))
    assert "key 096, and others (no more are named in this run)" in said
    assert "key 097" not in said
    assert unplaced.news(["z"]) == ""
    assert "others" not in Unplaced().news(f"key {each:03}" for each in range(100)), "there are no others"
