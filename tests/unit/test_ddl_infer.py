"""Schemas that a person declares, and schemas that a sample shows."""

import json
import pickle
import sys

import pyarrow as pa
import pytest
import yaml

from landonce.errors import ConfigError, NothingToInfer
from landonce.protocol.ranges import Partition
from landonce.protocol.source import Extent, SourceView
from landonce.read import sample as sample_module
from landonce.read.formats.json.columns import check_supported
from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.kafka.records import Records
from landonce.read.sample import Sample, SampledRecord, first_records, of_sample
from landonce.read.schema.ddl import UnfitFields, parse_schema, spelled_schema
from landonce.read.schema.fields import JSON, Field, Schema, with_text
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
        ("x DECIMAL(77)", "not possible"),
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


def test_what_was_never_seen_is_kept_as_json_text():
    values = [b'{"a": null, "b": {"c": {}, "d": 1}, "e": [{}], "f": [], "g": {}}']
    found = of_sample(values)
    assert found == parse_schema("a JSON, b STRUCT<c: JSON, d: BIGINT>, e ARRAY<JSON>, f ARRAY<JSON>, g JSON")
    assert not JsonDecoder(found).decode(pa.array(values, pa.binary())).rejects


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (["2026-11-15 10:00:00"], "TIMESTAMP"),
        (["2026-11-15T10:00:00+02:00", "2026-11-15T10:00:00.123456Z", "2026-11-15T10:00"], "TIMESTAMP"),
        (["2026-11-15", "1999-01-01"], "DATE"),
        (["2026-11-15", "2026-11-15T10:00:00Z"], "STRING"),
        (["2026-11-31"], "STRING"),
        (["0001-01-01T00:00:00Z"], "STRING"),
        (["2026-11-15T10:00:00.123456789Z"], "STRING"),
        (["2026-11-15", "soon"], "STRING"),
        ([1, -5, 2**63 - 1], "BIGINT"),
        ([1, 2**63], "JSON"),
        ([10**5000], "JSON"),
        ([1, 2.5], "DOUBLE"),
        ([2**53 + 1, 2.5], "JSON"),
        ([True, 1], "JSON"),
        (["a", 1], "JSON"),
        (["a", None], "STRING"),
        ([{"a": 1}, [1]], "JSON"),
        ([{"a": 1}, "a"], "JSON"),
        ([[1, "a"], []], "ARRAY<JSON>"),
        ([[{"a": 1}, {"b": "x"}, None]], "ARRAY<STRUCT<a: BIGINT, b: STRING>>"),
        ([{"a": 1, "A": 2}], "JSON"),
        ([{"": 1}], "JSON"),
        ([{"2026-11-15": 1}, {"2026-11-16": 2}], "MAP<STRING, BIGINT>"),
        ([{"7": {"n": 1}, "8": {"m": None}}], "MAP<STRING, STRUCT<n: BIGINT, m: JSON>>"),
        ([{f"k{at}": "x"} for at in range(40)], "MAP<STRING, STRING>"),
        ([{f"k{at}": at, f"l{at}": "x"} for at in range(40)], "JSON"),
        ([{"a": "x"}, {"b": "x"}, {"c": "x"}, {"d": "x"}], "STRUCT<a: STRING, b: STRING, c: STRING, d: STRING>"),
    ],
)
def test_the_type_that_holds_all_values(values, type_):
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    records = [json.dumps({"v": each}).encode() for each in values]
    sys.set_int_max_str_digits(limit)
    found = of_sample(records)
    assert found == parse_schema(f"v {type_}")
    decoded = JsonDecoder(found).decode(pa.array(records, pa.binary()))
    assert not decoded.rejects, "every record of the sample lands"


def test_what_is_nested_very_deeply():
    deep = {"v": 1}
    for _ in range(100):
        deep = {"v": deep}
    found = of_sample([json.dumps(deep).encode()])
    assert str(found.fields[0].type).count("struct<") == 31
    assert not JsonDecoder(found).decode(pa.array([json.dumps(deep).encode()], pa.binary())).rejects


def test_broken_records_are_left_out():
    assert types_of(b'{"a": 1}', b"{broken", b'{"a": 2}') == {"a": pa.int64()}


def test_nothing_to_infer_from():
    with pytest.raises(NothingToInfer, match="no JSON object") as refused:
        of_sample([])
    assert "schema" in refused.value.command
    with pytest.raises(NothingToInfer):
        of_sample([b"{broken"])


@pytest.mark.parametrize(
    "written",
    [
        "id BIGINT NOT NULL, `odd ``name` STRING, tags ARRAY<STRING NOT NULL>",
        "at TIMESTAMP(3), since TIMESTAMP, local TIMESTAMP_NTZ(9), day DATE, t TIME",
        "a STRUCT<b: STRUCT<c: INT NOT NULL> NOT NULL, `d e`: MAP<STRING, DOUBLE NOT NULL>> NOT NULL",
        "u UUID, f FIXED(4), b BINARY, d DECIMAL(38, 18), x FLOAT, y SMALLINT, z TINYINT, o BOOLEAN",
        "w DECIMAL(76, 38), l ARRAY<TIMESTAMP(9)>",
    ],
)
def test_a_schema_is_spelled_as_it_is_read(written):
    schema = parse_schema(written)
    assert spelled_schema(schema) == written
    assert parse_schema(spelled_schema(schema)) == schema


def sample(*values: object, partition: int = 0) -> tuple[SampledRecord, ...]:
    return tuple(
        SampledRecord(Partition("t", partition), 100 + at, json.dumps(each).encode()) for at, each in enumerate(values)
    )


def in_clickhouse(columns):
    return create_statement(TableName("d", "t"), columns)


def pasted(text: str):
    """The schema that the text says to paste."""
    (line,) = [each for each in text.splitlines() if each.startswith("  schema: ")]
    return parse_schema(yaml.safe_load(line)["schema"])


def test_nested_records_become_tuples_in_clickhouse_and_nothing_is_refused():
    address = {"city": "Bern", "geo": {"lat": 1.5}}
    records = sample(
        {"id": 1, "customer": {"name": "x", "address": address}, "items": [{"sku": "a", "tags": []}]},
        {"id": 2, "customer": {"name": "y"}, "items": []},
        {"id": 3, "customer": {"name": "z", "address": address}, "items": [{"sku": "b", "tags": [{"k": "v"}]}]},
    )
    inferred = Sample(records).columns(in_clickhouse)
    assert inferred.schema == parse_schema(
        "id BIGINT, customer STRUCT<name: STRING, address: STRUCT<city: STRING, geo: STRUCT<lat: DOUBLE>>>, "
        "items ARRAY<STRUCT<sku: STRING, tags: ARRAY<STRUCT<k: STRING>>>>"
    )
    made = in_clickhouse(inferred.schema)
    assert "`customer` Tuple(`name` Nullable(String), `address` Tuple(`city` Nullable(String), `geo` Tuple(" in made
    assert "DEFAULT tuple(NULL, tuple(NULL, tuple(NULL)))" in made


def test_the_words_name_each_field_what_was_seen_and_a_schema_to_paste():
    records = (
        *sample({"a": 1, "b": {"c": "x"}}, {"a": "one", "b": {"c": "y"}}, {"a": 2, "b": {"c": 3}}),
        *sample({"a": 3.5, "b": {"c": "z"}, "d": True}, partition=1),
    )
    inferred = Sample(records).columns(lambda _: None)
    said = inferred.words.splitlines()
    assert said[0] == "the columns are those of the first 4 records:"
    assert said[1] == (
        "  a JSON: an integer 2× (first t[0] at offset 100), a string 1× (first t[0] at offset 101), "
        "a number with a fraction 1× (first t[1] at offset 100); kept as JSON text: values of different kinds"
    )
    assert said[2] == "  b STRUCT: an object 4×"
    assert said[3].startswith("  b.c JSON: a string 3× (first t[0] at offset 100), an integer 1× ")
    assert said[4] == "  d BOOLEAN: a boolean 1×, absent or null 3×"
    assert pasted(inferred.words) == inferred.schema == parse_schema("a JSON, b STRUCT<c: JSON>, d BOOLEAN")


def test_what_a_target_has_no_column_for_is_kept_as_json_text():
    """The places that it names, and no more."""

    def usable(columns):
        refused = [("s.u", "no"), ("l[]", "no"), ("odd.name[]", "no")]
        known = str(columns.arrow)
        if "double" in known:
            raise UnfitFields(refused, None)

    records = sample({"s": {"u": 1.5, "v": 1}, "l": [1.5], "odd.name": [1.5], "n": 1})
    inferred = Sample(records).columns(usable)
    assert inferred.schema == parse_schema(
        "s STRUCT<u: JSON, v: BIGINT>, l ARRAY<JSON>, `odd.name` ARRAY<JSON>, n BIGINT"
    )
    assert "  s.u JSON: a number with a fraction 1× (first t[0] at offset 100); kept as text: no" in inferred.words
    with pytest.raises(UnfitFields):
        Sample(records).columns(lambda _: usable(parse_schema("x DOUBLE")))


def test_text_for_a_column_that_goes_by_another_name_leaves_the_others():
    schema = Schema((Field("id", pa.int64()), Field("id_of", pa.struct([("x", pa.int64())]))))
    kept = with_text(schema, {"id_of.renamed"})
    assert [each.type for each in kept.fields] == [pa.int64(), JSON]


def test_a_sample_ends_when_it_is_large(monkeypatch):
    parts = [Partition("t", number) for number in range(5)]
    values = pa.array([b"{}" * 50] * 10, pa.binary())
    found = [Records(each, pa.array(range(10)), values, ()) for each in parts]
    monkeypatch.setattr(sample_module, "read", lambda *_: iter(found))
    monkeypatch.setattr(sample_module, "_MOST_BYTES", 2_000)
    view = SourceView("c", (("t", "id"),), tuple((each, Extent(0, 10)) for each in parts))
    assert {each.partition for each in first_records(view, {})} == set(parts[:2])


def test_a_sample_that_agrees_and_fits_is_the_schema():
    assert Sample(sample({"a": 1}, {"a": 2.5, "b": "x"})).columns(in_clickhouse).schema == parse_schema(
        "a DOUBLE, b STRING"
    )


def test_a_declared_schema_is_refused_with_all_of_its_faults():
    declared = parse_schema(
        "id BIGINT, a STRUCT<b: STRUCT<c: INT NOT NULL>> NOT NULL, m MAP<STRING, INT>, u DECIMAL(76, 2)"
    )
    with pytest.raises(ConfigError) as refused:
        in_clickhouse(declared)
    assert [path for path, _ in refused.value.faults] == ["a.b"]
    assert pasted(refused.value.command) == parse_schema(
        "id BIGINT, a STRUCT<b: STRUCT<c: INT NOT NULL> NOT NULL> NOT NULL, m MAP<STRING, INT>, u DECIMAL(76, 2)"
    )
    again = pickle.loads(pickle.dumps(refused.value))
    assert (again.what, again.command) == (refused.value.what, refused.value.command)
