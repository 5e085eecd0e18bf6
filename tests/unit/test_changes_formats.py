"""Change records as Avro and Protobuf: the same changes as JSON gives; and what a writer's schema adds to a table that evolves."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import debezium_avro as dbz
import pyarrow as pa
import pytest
import yaml

from landonce.errors import ConfigError
from landonce.read.changes import ChangeDecoder, Changes
from landonce.read.evolution import observed
from landonce.read.formats import Decoded
from landonce.read.formats.avro.decode import Avro
from landonce.read.formats.json.decode import Json
from landonce.read.formats.protobuf.format import Protobuf
from landonce.read.formats.protobuf.source import Messages, ProtobufSource, compile_text, message_class
from landonce.read.formats.text.csv import Csv
from landonce.read.formats.text.plain import Framed, Plain
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.pipeline_file import parse

DEBEZIUM = Changes("debezium")


def rows(found: Decoded) -> list[dict[str, Any]]:
    plain = found.table.to_pylist()
    return [
        {**each, **{k: v.replace(tzinfo=None) for k, v in each.items() if k in ("seen", "joined") and v}}
        for each in plain
    ]


def reasons(found: Decoded) -> dict[int, str]:
    return {each.index: str(each.reason) for each in found.rejects}


def nothing_but(identity: int) -> dict[str, Any]:
    return {**dict.fromkeys(dbz.customer(0)), "id": identity}


def test_debeziums_envelopes_become_changes() -> None:
    schema = parse_schema(dbz.SCHEMA)
    avro = dbz.envelope()
    decoder = ChangeDecoder(schema, ("id",), DEBEZIUM, Avro((json.dumps(avro),)))
    new, other = dbz.customer(1), dbz.customer(1, name=None, credit=None, born=None, seen=None, joined=None, wakes=None)
    values = [
        dbz.written(dbz.change("r", None, new), avro),
        dbz.written(dbz.change("c", None, dbz.customer(2)), avro),
        dbz.written(dbz.change("u", new, other), avro),
        dbz.written(dbz.change("d", dbz.customer(2), None), avro),
        None,
        dbz.written(dbz.change("u", new, dbz.customer(3)), avro),
        dbz.written(dbz.change("t", None, None), avro),
        dbz.written(dbz.change("u", None, dbz.customer(4, name="__debezium_unavailable_value")), avro),
        b"\x02",
    ]
    found = decoder.decode(pa.array(values, pa.binary()), [None] * len(values))
    assert rows(found) == [
        {"_op": "I", **dbz.row_of(new)},
        {"_op": "I", **dbz.row_of(dbz.customer(2))},
        {"_op": "U", **dbz.row_of(other)},
        {"_op": "D", **nothing_but(2)},
    ]
    assert found.filtered.tolist() == [4]
    assert reasons(found) == {
        5: "field 'id' is part of the identity and changed in place",
        6: "no known operation in 'op'",
        7: "field 'name' was not sent by Debezium",
        8: "field 'before.id' is cut off: the record ends inside it",
    }


def test_the_same_changes_as_json_framed_or_not() -> None:
    schema = parse_schema("id BIGINT, name STRING, born DATE")
    envelopes = [
        {"op": "c", "after": {"id": 1, "name": "a", "born": 10}},
        {"payload": {"op": "u", "after": {"id": 1, "name": "b", "born": None}}},
        {"op": "d", "before": {"id": 1}},
    ]
    values = [json.dumps(each).encode() for each in envelopes]
    plain = ChangeDecoder(schema, ("id",), DEBEZIUM).decode(pa.array(values, pa.binary()), [None] * 3)
    framed = ChangeDecoder(schema, ("id",), DEBEZIUM, Framed(Json()))
    found = framed.decode(pa.array([b"\0\0\0\0\1" + each for each in values], pa.binary()), [None] * 3)
    assert found.table.equals(plain.table)
    assert len(plain.table) == 3


@pytest.mark.parametrize("bare", [False, True])
def test_tombstones_delete_the_row_that_an_avro_key_names(bare: bool) -> None:
    schema = parse_schema("id BIGINT, name STRING")
    record = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": "string"}],
    }
    key: Any = "long" if bare else dbz.KEY
    decoder = ChangeDecoder(schema, ("id",), Changes("upsert"), Avro((json.dumps(record),)), Avro((json.dumps(key),)))
    keys = [None, dbz.written(7 if bare else {"id": 7}, key), None, b"\xff"]
    values = [dbz.written({"id": 7, "name": "x"}, record), None, None, None]
    found = decoder.decode(pa.array(values, pa.binary()), keys)
    assert rows(found) == [{"_op": "U", "id": 7, "name": "x"}, {"_op": "D", "id": 7, "name": None}]
    assert reasons(found)[2] == "a tombstone without a key"
    assert reasons(found)[3].startswith("its key: field 'id' ")


def test_an_operation_is_a_field_of_the_record() -> None:
    schema = parse_schema("id BIGINT, name STRING NOT NULL")
    record = {
        "type": "record",
        "name": "Row",
        "fields": [
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["I", "D"]}},
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
        ],
    }
    decoder = ChangeDecoder(schema, ("id",), Changes("operation", "kind"), Avro((json.dumps(record),)))
    given = [("I", "a"), ("D", None), ("I", None)]
    values = [dbz.written({"kind": kind, "id": 1, "name": name}, record) for kind, name in given]
    found = decoder.decode(pa.array(values, pa.binary()), [None] * 3)
    assert [(each["_op"], each["name"]) for each in rows(found)] == [("I", "a"), ("D", None)]
    assert reasons(found) == {2: "missing required field 'name'"}


PROTO = """syntax = "proto3"; package shop;
message Row { int64 id = 1; optional string name = 2; }
message Key { int64 id = 1; }
message Envelope { Row before = 1; Row after = 2; string op = 3; }"""


def proto(name: str) -> tuple[Protobuf, Any]:
    data = compile_text(PROTO, {})
    return Protobuf(ProtobufSource(data, name)), message_class(Messages(data).find(name))


def test_protobuf_says_what_changed_too() -> None:
    schema = parse_schema("id BIGINT, name STRING")
    format_, envelope = proto("shop.Envelope")
    values = [
        envelope(op="c", after={"id": 1, "name": "a"}),
        envelope(op="u", before={"id": 1}, after={"id": 1}),
        envelope(op="d", before={"id": 1, "name": "a"}),
    ]
    decoder = ChangeDecoder(schema, ("id",), DEBEZIUM, format_)
    found = decoder.decode(pa.array([each.SerializeToString() for each in values], pa.binary()), [None] * 3)
    assert [tuple(each.values()) for each in rows(found)] == [("I", 1, "a"), ("U", 1, None), ("D", 1, None)]
    (of_rows, row), (of_keys, key) = proto("shop.Row"), proto("shop.Key")
    upserts = ChangeDecoder(schema, ("id",), Changes("upsert"), of_rows, of_keys)
    encoded = [row(id=3, name="x").SerializeToString(), None]
    found = upserts.decode(pa.array(encoded, pa.binary()), [None, key(id=3).SerializeToString()])
    assert [tuple(each.values()) for each in rows(found)] == [("U", 3, "x"), ("D", 3, None)]


def test_what_cannot_say_what_changed_is_refused() -> None:
    schema = parse_schema("id BIGINT, name STRING")
    avro = Avro((json.dumps(dbz.envelope()),))
    for how, values, keys, problem in (
        (Changes("dms"), avro, None, "AWS DMS writes its records as JSON"),
        (Changes("upsert"), Plain(), None, "cannot say what changed"),
        (Changes("upsert"), None, Plain(), "keys of the formats raw and string have no fields"),
        (DEBEZIUM, Csv(("op", "id")), None, "before"),
    ):
        with pytest.raises((ValueError, TypeError), match=problem):
            ChangeDecoder(schema, ("id",), how, values, keys)


# Evolution by the writer's schema


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Row", "fields": [{"name": name, "type": type_} for name, type_ in fields]}


def evolution(schema: str, *written: dict[str, Any], values: list[Any], identity: tuple[str, ...] = ()) -> Any:
    format_ = Avro(tuple(map(json.dumps, written)), framing="single-object")
    from landonce.read.formats.avro.schema import fingerprint

    bodies = [
        b"\xc3\x01" + fingerprint(json.dumps(each)) + dbz.written(value, each)
        for each, value in zip(written, values, strict=True)
    ]
    found = observed([pa.array([*bodies, None, b"x"], pa.binary())], parse_schema(schema), format_, identity=identity)
    if found is None:
        return None
    return (
        {".".join(path): shape.type() for path, shape in found.added},
        {".".join(path): type_ for path, type_ in found.widened},
        [".".join(path) for path in found.optional],
    )


def test_new_fields_have_the_types_of_the_writers_schema() -> None:
    money = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
    inner = {
        "type": "record",
        "name": "Inner",
        "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}],
    }
    written = record(
        ("id", "long"), ("count", "long"), ("price", money), ("at", dbz.COLUMNS[4]["type"]), ("inner", inner)
    )
    value = {"id": 1, "count": 2, "price": Decimal("1.50"), "at": None, "inner": {"a": 1, "b": "x"}}
    schema = "id BIGINT NOT NULL, count INT, price DECIMAL(10,2), inner STRUCT<a: INT>, gone STRING NOT NULL"
    added, widened, optional = evolution(schema, written, values=[value])
    assert added == {"at": pa.timestamp("us"), "inner.b": pa.string()}
    assert widened == {"count": pa.int64(), "price": pa.decimal128(12, 2)}
    assert optional == ["gone"]


def test_several_versions_are_joined_and_a_null_makes_a_column_optional() -> None:
    first, second = record(("id", "long"), ("x", "int")), record(("id", ["null", "long"]), ("x", "double"))
    found = evolution("id BIGINT NOT NULL", first, second, values=[{"id": 1, "x": 1}, {"id": 1, "x": 1.5}])
    assert found == ({"x": pa.float64()}, {}, ["id"])
    kept = evolution("id BIGINT NOT NULL", second, values=[{"id": 1, "x": 1.5}], identity=("id",))
    assert kept == ({"x": pa.float64()}, {}, [])
    assert evolution("id BIGINT, x DOUBLE", second, values=[{"id": 1, "x": 1.5}]) is None


def test_protobuf_adds_fields_and_keeps_required_columns() -> None:
    format_, row = proto("shop.Row")
    value = row(id=1, name="a").SerializeToString()
    found = observed([pa.array([value], pa.binary())], parse_schema("id BIGINT NOT NULL"), format_)
    assert found is not None
    assert ({path: shape.type() for path, shape in found.added}, found.optional) == ({("name",): pa.string()}, ())


AVRO = {"avro": {"registry": {"url": "http://localhost:1"}}}
LINE = {"csv": {"columns": ["id"]}}
UPSERT = {"url": "sqlite:///x.db", "table": "t", "mode": "upsert", "key": "id"}


@pytest.mark.parametrize(
    ("source", "sink", "problem"),
    [
        ({"format": AVRO}, {**UPSERT, "changes": {"mode": "dms"}}, "AWS DMS writes its records as JSON"),
        ({"format": "string"}, UPSERT, "no record can name the row it changes"),
        ({"key_format": "raw"}, UPSERT, "a tombstone names its row in its key"),
        ({"format": LINE}, {**UPSERT, "evolve": True}, "`evolve` of the sink is for JSON, Avro and Protobuf"),
        (
            {"format": LINE},
            {**UPSERT, "changes": {"mode": "debezium"}},
            "`changes` of the sink is for JSON, Avro and Protobuf",
        ),
    ],
)
def test_a_file_that_cannot_work_is_refused(source: Any, sink: Any, problem: str, tmp_path: Path) -> None:
    kafka = {"bootstrap_servers": "localhost:1", "topics": ["t"], **source}
    document = {"pipeline": "p", "source": {"kafka": kafka}, "sink": {"sql": sink}}
    with pytest.raises(ConfigError, match=problem):
        parse(yaml.safe_dump(document), tmp_path / "p.yaml")


def test_framed_json_shows_its_new_fields() -> None:
    values = pa.array([b'\0\0\0\0\1{"id": 1, "x": 1.5}', None], pa.binary())
    found = observed([values], parse_schema("id BIGINT"), Framed(Json()))
    assert found is not None
    assert {path: shape.type() for path, shape in found.added} == {("x",): pa.float64()}
