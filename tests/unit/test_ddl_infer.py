"""Schemas that a person declares, and schemas that a sample shows."""

import json
import pickle

import pyarrow as pa
import pytest
import yaml

from landonce.errors import ConfigError, NothingToInfer
from landonce.protocol.ranges import Partition
from landonce.read.formats.json.columns import check_supported
from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.schema.ddl import parse_schema, spelled_schema
from landonce.read.schema.fields import Field
from landonce.read.schema.sample import Record, Sample, of_sample
from landonce.sinks.clickhouse.address import TableName
from landonce.sinks.clickhouse.table import create_statement

UTC = {"tz": "UTC"}


@pytest.mark.parametrize(
    ("written", "type_"),
    [
        ("TINYINT", pa.int8()),
        ("smallint", pa.int16()),
        ("Int", pa.int32()),
        ("INTEGER", pa.int32()),
        ("BIGINT", pa.int64()),
        ("long", pa.int64()),
        ("FLOAT", pa.float32()),
        ("double", pa.float64()),
        ("BOOLEAN", pa.bool_()),
        ("STRING", pa.string()),
        ("DATE", pa.date32()),
        ("DECIMAL", pa.decimal128(10, 0)),
        ("DECIMAL(7)", pa.decimal128(7, 0)),
        ("decimal(38, 18)", pa.decimal128(38, 18)),
        ("TIMESTAMP", pa.timestamp("us", tz="UTC")),
        ("ARRAY<STRING>", pa.list_(pa.string())),
        ("ARRAY<ARRAY<INT>>", pa.list_(pa.list_(pa.int32()))),
        ("STRUCT<a: INT, b STRING>", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("ARRAY<STRUCT<`odd name`: DOUBLE>>", pa.list_(pa.struct([("odd name", pa.float64())]))),
        ("TIMESTAMP_NTZ", pa.timestamp("us")),
        ("TIME", pa.time64("us")),
        ("BINARY", pa.binary()),
        ("FIXED(4)", pa.binary(4)),
        ("UUID", pa.uuid()),
        ("MAP<STRING, DATE>", pa.map_(pa.string(), pa.date32())),
        ("MAP<STRING, INT NOT NULL>", pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False))),
        ("ARRAY<INT NOT NULL>", pa.list_(pa.field("item", pa.int32(), nullable=False))),
        ("STRUCT<a: INT NOT NULL>", pa.struct([pa.field("a", pa.int32(), nullable=False)])),
    ],
)
def test_types(written, type_):
    (field,) = parse_schema(f"x {written}").fields
    assert field == Field("x", type_)
    check_supported(field)


@pytest.mark.parametrize(("digits", "unit"), [(0, "s"), (3, "ms"), (6, "us"), (9, "ns")])
def test_a_timestamp_with_digits_takes_ticks(digits, unit):
    (field,) = parse_schema(f"at TIMESTAMP({digits})").fields
    assert field == Field("at", pa.timestamp(unit, tz="UTC"), scale=digits)


def test_several_fields_and_not_null():
    schema = parse_schema("id BIGINT NOT NULL, `odd ``name` STRING not null,\n  tags ARRAY<STRING>")
    assert [(each.name, each.required) for each in schema.fields] == [
        ("id", True),
        ("odd `name", True),
        ("tags", False),
    ]


def test_a_mapping_says_the_same():
    written = {"id": "BIGINT NOT NULL", "odd, name": "STRING", "at": "TIMESTAMP(3)"}
    assert parse_schema(written) == parse_schema("id BIGINT NOT NULL, `odd, name` STRING, at TIMESTAMP(3)")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "ends too early"),
        ("x", "ends too early"),
        ("x INT,", "ends too early"),
        ("x INT y INT", "cannot be read"),
        ("x INT NOT", "wants 'null'"),
        ("x TIMESTAMP(4)", "0, 3, 6 or 9"),
        ("x DECIMAL(39)", "not possible"),
        ("x DECIMAL(5, 6)", "not possible"),
        ("x DECIMAL(a)", "wants a number"),
        ("x ARRAY<INT", "wants '>'"),
        ("x ARRAY", "wants '<'"),
        ("x MAP<STRING INT>", "wants ','"),
        ("x MAP<INT, INT>", "STRING keys"),
        ("x FIXED(0)", "holds nothing"),
        ("x VARIANT", "'variant' is not a type"),
        ("x STRUCT<a: INT NOT>", "wants 'null'"),
        ("x INT, x STRING", "occur twice"),
        ("x INT; DROP", "cannot be read"),
    ],
)
def test_what_cannot_be_declared_says_where(written, said):
    with pytest.raises(ConfigError, match=said) as refused:
        parse_schema(written)
    assert refused.value.what.startswith("source.kafka.schema")


def types_of(*values: bytes):
    return {each.name: each.type for each in of_sample(list(values)).fields}


def test_a_sample_shows_names_and_types():
    found = types_of(b'{"a": 1, "b": "x", "c": 1.5, "d": true, "e": [1], "f": {"g": "y"}}')
    assert found == {
        "a": pa.int64(),
        "b": pa.string(),
        "c": pa.float64(),
        "d": pa.bool_(),
        "e": pa.list_(pa.int64()),
        "f": pa.struct([("g", pa.string())]),
    }


def test_fields_that_come_later_are_found_and_none_is_required():
    schema = of_sample([b'{"a": 1}', b'{"a": null, "b": "x"}'])
    assert [each.name for each in schema.fields] == ["a", "b"]
    assert not any(each.required for each in schema.fields)


def test_integers_among_fractions_are_fractions():
    assert types_of(b'{"a": 1}', b'{"a": 1.5}') == {"a": pa.float64()}


def test_what_was_only_ever_null_is_text():
    assert types_of(b'{"a": null, "c": 1}') == {"a": pa.string(), "c": pa.int64()}


def test_an_object_that_was_only_ever_empty_makes_no_column():
    values = [b'{"a": {}, "b": {"c": {}, "d": 1}, "e": [{}], "f": 1}']
    found = of_sample(values)
    assert found == parse_schema("b STRUCT<d: BIGINT>, f BIGINT")
    decoded = JsonDecoder(found).decode(pa.array(values, pa.binary()))
    assert not decoded.rejects, "a column of text would make a dead letter of every such record"


def test_timestamps_have_microseconds():
    assert types_of(b'{"at": "2026-11-15 10:00:00"}') == {"at": pa.timestamp("us", tz="UTC")}


def test_broken_records_are_left_out():
    assert types_of(b'{"a": 1}', b"{broken", b'{"a": 2}') == {"a": pa.int64()}


def test_nothing_to_infer_from():
    with pytest.raises(NothingToInfer, match="no JSON object") as refused:
        of_sample([])
    assert "schema" in refused.value.command
    with pytest.raises(NothingToInfer):
        of_sample([b"{broken"])


def test_records_that_do_not_agree():
    with pytest.raises(ConfigError, match="do not agree"):
        of_sample([b'{"a": 1}', b'{"a": "x"}'])


@pytest.mark.parametrize(
    "written",
    [
        "id BIGINT NOT NULL, `odd ``name` STRING, tags ARRAY<STRING NOT NULL>",
        "at TIMESTAMP(3), since TIMESTAMP, local TIMESTAMP_NTZ(9), day DATE, t TIME",
        "a STRUCT<b: STRUCT<c: INT NOT NULL> NOT NULL, `d e`: MAP<STRING, DOUBLE NOT NULL>> NOT NULL",
        "u UUID, f FIXED(4), b BINARY, d DECIMAL(38, 18), x FLOAT, y SMALLINT, z TINYINT, o BOOLEAN",
    ],
)
def test_a_schema_is_spelled_as_it_is_read(written):
    schema = parse_schema(written)
    assert spelled_schema(schema) == written
    assert parse_schema(spelled_schema(schema)) == schema


def sample(*values: object, partition: int = 0) -> tuple[Record, ...]:
    return tuple(
        Record(Partition("t", partition), 100 + at, json.dumps(each).encode()) for at, each in enumerate(values)
    )


def in_clickhouse(columns):
    return create_statement(TableName("d", "t"), columns)


def pasted(error: ConfigError):
    """The schema that the error tells to paste."""
    (line,) = [each for each in error.command.splitlines() if each.startswith("  schema: ")]
    return parse_schema(yaml.safe_load(line)["schema"])


def test_one_refusal_names_every_nested_object_and_a_schema_that_works():
    address = {"city": "Bern", "geo": {"lat": 1.5}}
    records = sample(
        {"id": 1, "customer": {"name": "x", "address": address}, "items": [{"sku": "a", "tags": []}]},
        {"id": 2, "customer": {"name": "y"}, "items": []},
        {"id": 3, "customer": {"name": "z", "address": address}, "items": [{"sku": "b", "tags": [{"k": "v"}]}]},
    )
    with pytest.raises(ConfigError) as refused:
        Sample(records).columns(in_clickhouse)
    said = refused.value.what.splitlines()
    named = [line.partition(":")[0].strip() for line in said if line.startswith("  ") and not line.startswith("   ")]
    assert named == ["customer", "customer.address", "customer.address.geo", "items[]", "items[].tags[]"]
    absent = "an object in 2 (first t[0] at offset 100); absent or null in 1 (first t[0] at offset 101)"
    assert f"  customer.address: {absent}" in said
    schema = pasted(refused.value)
    assert schema == parse_schema(
        "id BIGINT, customer STRUCT<name: STRING, address: STRUCT<city: STRING, geo: STRUCT<lat: DOUBLE> NOT NULL> "
        "NOT NULL> NOT NULL, items ARRAY<STRUCT<sku: STRING, tags: ARRAY<STRUCT<k: STRING> NOT NULL>> NOT NULL>"
    )
    assert "`customer` Tuple(" in in_clickhouse(schema), "what it says to paste is what works"


def test_records_that_do_not_agree_are_named_with_what_was_seen_where():
    records = (
        *sample({"a": 1, "b": {"c": "x"}}, {"a": "one", "b": {"c": "y"}}, {"a": 2, "b": {"c": 3}}),
        *sample({"a": 3.5, "b": {"c": "z"}, "d": True}, partition=1),
    )
    with pytest.raises(ConfigError) as refused:
        Sample(records).columns(lambda _: None)
    said = refused.value.what
    assert "none can be taken from the first 4 records" in said
    assert "  a: an integer in 2 (first t[0] at offset 100); a string in 1 (first t[0] at offset 101); " in said
    assert "a number with a fraction in 1 (first t[1] at offset 100)" in said
    assert "  b.c: a string in 3 (first t[0] at offset 100); an integer in 1 (first t[0] at offset 102)" in said
    assert "\n  b:" not in said, "what agrees is not named"
    assert pasted(refused.value) == parse_schema("a DOUBLE, b STRUCT<c: STRING>, d BOOLEAN")


def test_a_sample_that_agrees_and_fits_is_the_schema():
    assert Sample(sample({"a": 1}, {"a": 2.5, "b": "x"})).columns(in_clickhouse) == parse_schema("a DOUBLE, b STRING")


def test_a_declared_schema_is_refused_with_all_of_its_faults():
    declared = parse_schema("id BIGINT, a STRUCT<b: STRUCT<c: INT>> NOT NULL, m MAP<STRING, INT>, u UUID")
    with pytest.raises(ConfigError) as refused:
        in_clickhouse(declared)
    assert [path for path, _ in refused.value.faults] == ["a.b", "m", "u"]
    assert pasted(refused.value) == parse_schema("id BIGINT, a STRUCT<b: STRUCT<c: INT> NOT NULL> NOT NULL, u STRING")
    again = pickle.loads(pickle.dumps(refused.value))
    assert (again.what, again.command) == (refused.value.what, refused.value.command)
