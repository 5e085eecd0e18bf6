"""Schemas that a person declares, and schemas that a sample shows."""

import pyarrow as pa
import pytest

from landonce.errors import ConfigError, NothingToInfer
from landonce.read.columns import check_supported
from landonce.read.ddl import parse_schema
from landonce.read.infer import of_sample
from landonce.read.schema import Field

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


def test_what_was_only_ever_null_or_empty_is_text():
    assert types_of(b'{"a": null, "b": {}, "c": 1}') == {"a": pa.string(), "b": pa.string(), "c": pa.int64()}


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
