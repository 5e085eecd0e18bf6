"""Every Iceberg type from JSON to a table and back, with values at its edges, read by PyIceberg's own scan."""

from __future__ import annotations

import base64
import json
import re
import uuid
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg import types as iceberg_types
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema as TableSchema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    GeometryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from landonce.errors import ConfigError, TableUnfit
from landonce.read.decoding import Decoding, decoder_of
from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.rows import COORDINATES, fit_to
from landonce.read.schema.ddl import parse_schema
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.contract import Level
from landonce.sinks.iceberg.catalog import CatalogSpec, catalog_errors
from landonce.sinks.iceberg.check import table_findings
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.iceberg.files import write_files
from landonce.sinks.iceberg.table import Creation, TableShape, layout
from landonce.sinks.iceberg.types import (
    _PLAIN,
    COLUMNS,
    COORDINATE_TYPES,
    coordinate_faults,
    iceberg_schema,
    not_in_spark,
    schema_of,
)
from landonce.sinks.iceberg.worker import table_recipe
from landonce.sinks.snapshot import Origin

UTC = timezone.utc
EDGES: list[tuple[IcebergType, list[tuple[str, Any]]]] = [
    (BooleanType(), [("true", True), ("false", False)]),
    (IntegerType(), [("-2147483648", -(2**31)), ("2147483647", 2**31 - 1), ("0", 0)]),
    (LongType(), [("-9223372036854775808", -(2**63)), ("9223372036854775807", 2**63 - 1)]),
    (FloatType(), [("3.4028234e38", float(np.float32(3.4028234e38))), ("-1e-45", float(np.float32(-1e-45))), ("0.5", 0.5)]),
    (DoubleType(), [("1.7976931348623157e308", 1.7976931348623157e308), ("5e-324", 5e-324), ("-0.0", -0.0)]),
    (DecimalType(9, 2), [("9999999.99", Decimal("9999999.99")), ('"-0.01"', Decimal("-0.01")), ("7", Decimal("7.00"))]),
    (DecimalType(38, 10), [('"9999999999999999999999999999.9999999999"', Decimal("9999999999999999999999999999.9999999999"))]),
    (DecimalType(38, 38), [('"0.99999999999999999999999999999999999999"', Decimal("0.99999999999999999999999999999999999999"))]),
    (DateType(), [('"0001-01-01"', date(1, 1, 1)), ('"1969-12-31"', date(1969, 12, 31)), ('"9999-12-31"', date(9999, 12, 31))]),
    (TimeType(), [('"00:00:00"', time()), ('"23:59:59.999999"', time(23, 59, 59, 999999)), ('"12:34"', time(12, 34))]),
    (TimestampType(), [('"0001-01-01T00:00:00"', datetime(1, 1, 1)), ('"9999-12-31T23:59:59.999999"', datetime(9999, 12, 31, 23, 59, 59, 999999)), ('"2026-01-01T02:00:00+02:00"', datetime(2026, 1, 1))]),
    (TimestamptzType(), [('"1969-12-31T23:59:59.999999Z"', datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)), ('"2026-01-01 00:00"', datetime(2026, 1, 1, tzinfo=UTC))]),
    (StringType(), [('""', ""), (r'"\u0000\ud83d\ude00é\n"', "\0😀é\n")]),
    (UUIDType(), [('"00000000-0000-0000-0000-000000000000"', uuid.UUID(int=0)), ('"FFFFFFFF-ffff-ffff-ffff-ffffffffffff"', uuid.UUID(int=2**128 - 1))]),
    (FixedType(3), [('"AAAA"', b"\0\0\0"), ('"////"', b"\xff\xff\xff")]),
    (FixedType(16), [(json.dumps(base64.b64encode(bytes(range(16))).decode()), bytes(range(16)))]),
    (BinaryType(), [('""', b""), ('"/w=="', b"\xff"), ('"AP8Q"', b"\0\xff\x10")]),
]  # fmt: skip
REJECTED: list[tuple[IcebergType, list[str]]] = [
    (BooleanType(), ["1", '"true"']),
    (IntegerType(), ["2147483648", "-2147483649", "1.0", '"1"']),
    (LongType(), ["9223372036854775808", "1e3"]),
    (FloatType(), ["3.5e38", '"1"']),
    (DecimalType(9, 2), ["10000000", "0.001", '"x"', "true"]),
    (DateType(), ['"2026-02-30"', '"2026-01-01T00:00:00"', "1"]),
    (TimeType(), ['"24:00:00"', '"00:00:00.0000001"', "0"]),
    (TimestampType(), ['"2026-01-01T00:00:00.0000001"', '"now"', "0"]),
    (TimestamptzType(), ['"2026-01-01T25:00:00Z"', "1767225600000"]),
    (StringType(), ["1", "{}"]),
    (UUIDType(), ['"00000000000000000000000000000000"', "0"]),
    (FixedType(3), ['"AAA="', '"AAAAAAAA"', "[0,0,0]"]),
    (BinaryType(), ['"AAA"', '"-_=="', "[0]"]),
]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    folder = tmp_path_factory.mktemp("lake")
    made = load_catalog("types", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    made.create_namespace("db")
    return made


def landed(catalog: Catalog, schema: TableSchema, records: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """What a scan shows of these records as workers write them, and why the others are not there."""
    table = catalog.create_table(f"db.t{uuid.uuid4().hex[:8]}", schema)
    decoder = JsonDecoder(schema_of(table.schema(), coordinates=False))
    decoded = decoder.decode(pa.array([each.encode() for each in records], pa.binary()))
    decoded.table.validate(full=True)
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        for file in write_files(TableShape.of(table), decoded.table, Origin("types", 1, 1, 0)):
            append.append_data_file(file)
    return table.scan().to_arrow().to_pylist(), [each.reason for each in decoded.rejects]


def nested(type_: IcebergType, required: bool, number: int = 0) -> list[NestedField]:
    """The type as a column, and in each of the places where a type can be."""
    ids = iter(range(1 + 10 * number, 11 + 10 * number))
    kinds = {
        "a": type_,
        "s": StructType(NestedField(next(ids), "x", type_, required=required)),
        "l": ListType(next(ids), type_, element_required=required),
        "m": MapType(next(ids), StringType(), next(ids), type_, value_required=required),
    }
    return [NestedField(next(ids), f"{name}{number}", kind, required=required) for name, kind in kinds.items()]


@pytest.mark.parametrize("required", [True, False], ids=["required", "optional"])
def test_every_type_comes_back_from_everywhere(catalog: Catalog, required: bool) -> None:
    schema = TableSchema(*(each for at, (type_, _) in enumerate(EDGES) for each in nested(type_, required, at)))
    records, wanted = [], []
    for turn in range(4):
        texts, row = [], {}
        for at, (_, edges) in enumerate(EDGES):
            cases = [*edges, *([] if required else [("null", None)])]
            text, value = cases[turn % len(cases)]
            texts.append(f'"a{at}":{text},"s{at}":{{"x":{text}}},"l{at}":[{text},{text}],"m{at}":{{"k":{text}}}')
            row |= {f"a{at}": value, f"s{at}": {"x": value}, f"l{at}": [value] * 2, f"m{at}": [("k", value)]}
        records.append(f"{{{','.join(texts)}}}")
        wanted.append(row)
    rows, reasons = landed(catalog, schema, records)
    assert reasons == []
    for row, want in zip(rows, wanted, strict=True):
        for name in want:
            assert row[name] == want[name], name


def test_nothing_and_empty_are_different(catalog: Catalog) -> None:
    records = ["{}", '{"a0":null,"s0":null,"l0":null,"m0":null}', '{"s0":{},"l0":[],"m0":{}}']
    rows, reasons = landed(catalog, TableSchema(*nested(StringType(), False)), records)
    nothing = {"a0": None, "s0": None, "l0": None, "m0": None}
    assert rows == [nothing, nothing, {"a0": None, "s0": {"x": None}, "l0": [], "m0": []}]
    assert reasons == []


def test_what_is_required_is_required_at_every_level(catalog: Catalog) -> None:
    good = {"a0": 1, "s0": {"x": 1}, "l0": [1], "m0": {"k": 1}}
    spoilt = ({"a0": None}, {"s0": None}, {"s0": {}}, {"l0": [None]}, {"m0": {"k": None}})
    records = [json.dumps({**good, **each}) for each in (*spoilt, {})]
    rows, reasons = landed(catalog, TableSchema(*nested(LongType(), True)), records)
    assert reasons == [
        "missing required field 'a0'",
        "missing required field 's0'",
        "field 's0' holds a null",
        "field 'l0' holds a null",
        "field 'm0' holds a null",
    ]
    assert len(rows) == 1


@pytest.mark.parametrize(("type_", "texts"), REJECTED, ids=[str(type_) for type_, _ in REJECTED])
def test_what_does_not_fit_is_rejected_alone(type_: IcebergType, texts: list[str]) -> None:
    good = f'{{"a0":{dict(EDGES)[type_][0][0]}}}'
    places = ('{"a0":%s}', '{"s0":{"x":%s}}', '{"l0":[%s]}', '{"m0":{"k":%s}}')
    records = [good, *(place % text for text in texts for place in places), good]
    decoder = JsonDecoder(schema_of(TableSchema(*nested(type_, False)), coordinates=False))
    decoded = decoder.decode(pa.array([each.encode() for each in records], pa.binary()))
    assert decoded.kept.tolist() == [0, len(records) - 1]
    assert len(decoded.rejects) == len(records) - 2


def test_nanoseconds() -> None:
    schema = schema_of(TableSchema(NestedField(1, "a", TimestampNanoType()), NestedField(2, "b", TimestamptzNanoType())), coordinates=False)  # fmt: skip
    decoded = JsonDecoder(schema).decode(
        pa.array([b'{"a":"2262-04-11T23:47:16.854775807","b":"1677-09-21T00:12:44Z"}'], pa.binary())
    )
    assert decoded.table.column("a").cast(pa.int64()).to_pylist() == [2**63 - 1]
    assert decoded.table.schema.types == [pa.timestamp("ns"), pa.timestamp("ns", "UTC")]


def unfillable(*, required: bool) -> TableSchema:
    inside = StructType(NestedField(11, "by_share", MapType(12, GeometryType(), 13, LongType())))
    return TableSchema(
        NestedField(1, "fine", LongType()),
        NestedField(2, "shape", GeometryType(), required=required),
        NestedField(3, "later", ListType(10, UnknownType()), required=required),
        NestedField(4, "counts", inside, required=required),
    )


def test_all_required_columns_that_cannot_be_filled_are_named_at_once() -> None:
    with pytest.raises(TableUnfit) as refused:
        schema_of(unfillable(required=True), coordinates=False)
    message = refused.value.what
    assert "shape: geometry cannot be decoded exactly; take string or binary" in message
    assert "later.element: unknown cannot be decoded exactly" in message
    assert (
        "counts.by_share: keys in JSON are strings, and geometry is not written as one; take map<string, …>" in message
    )
    assert "fine" not in message
    assert refused.value.command


def test_optional_columns_that_cannot_be_filled_are_left_out_of_rows() -> None:
    """Beside a record without the field, one with a value for it is a dead letter: it would be lost. The control is a null."""
    schema = schema_of(unfillable(required=False), coordinates=False)
    decode = decoder_of(schema, Decoding())
    records = ['{"fine":1}', '{"fine":2,"shape":"POINT (1 1)"}', '{"fine":3,"later":[]}', '{"fine":4,"counts":null}']
    decoded = decode(pa.array([each.encode() for each in records], pa.binary()), [])
    assert decoded.table.to_pylist() == [{"fine": 1}, {"fine": 4}]
    assert [(each.index, each.reason) for each in decoded.rejects] == [
        (1, "field 'shape' has a value, and its column is geometry, which no record can fill exactly"),
        (2, "field 'later' has a value, and its column is list<unknown>, which no record can fill exactly"),
    ]
    fitted = fit_to(schema)(
        pa.table({"_topic": ["t"] * 2, "_partition": [0, 0], "_offset": [0, 1], "fine": [1, 2], "shape": [None, "x"]})
    )
    assert (fitted.table.column_names, fitted.kept.tolist()) == ([*COORDINATES, "fine"], [0])
    with pytest.raises(TableUnfit, match="no column that a record could fill"):
        schema_of(TableSchema(NestedField(1, "a", UnknownType())), coordinates=False)


KEYS: list[tuple[IcebergType, dict[str, Any], list[str]]] = [
    (StringType(), {"": "", "é\n": "é\n"}, []),
    (BooleanType(), {"true": True, "false": False}, ["1", "True", ""]),
    (IntegerType(), {"-2147483648": -(2**31), "2147483647": 2**31 - 1}, ["2147483648", "1.0", "01"]),
    (LongType(), {"-9223372036854775808": -(2**63), "0": 0}, ["9223372036854775808", "-0", "x"]),
    (DecimalType(9, 2), {"-9999999.99": Decimal("-9999999.99"), "7": Decimal("7.00")}, ["0.001", "10000000", "1e2", "NaN"]),
    (DateType(), {"0001-01-01": date(1, 1, 1)}, ["2026-02-30"]),
    (TimeType(), {"23:59:59.999999": time(23, 59, 59, 999999)}, ["24:00"]),
    (TimestampType(), {"1969-12-31T23:59:59": datetime(1969, 12, 31, 23, 59, 59)}, ["now"]),
    (TimestamptzType(), {"2026-01-01T00:00:00Z": datetime(2026, 1, 1, tzinfo=UTC)}, ["now"]),
    (UUIDType(), {"00000000-0000-0000-0000-000000000000": uuid.UUID(int=0)}, ["0"]),
    (FixedType(3), {"AAAA": b"\0\0\0"}, ["AAA="]),
    (BinaryType(), {"/w==": b"\xff"}, ["AAA"]),
]  # fmt: skip


def test_maps_have_keys_of_many_types(catalog: Catalog) -> None:
    schema = TableSchema(
        *(
            NestedField(at + 1, f"m{at}", MapType(100 + at, key, 200 + at, LongType()))
            for at, (key, _, _) in enumerate(KEYS)
        )
    )
    good = {f"m{at}": dict.fromkeys(keys, 1) for at, (_, keys, _) in enumerate(KEYS)}
    bad = [{f"m{at}": {each: 1}} for at, (_, _, wrong) in enumerate(KEYS) for each in wrong]
    twice = [{"m4": {"7": 1, "7.00": 2}}, {"m11": {"/w==": 1}, "m4": {"07": 1, "7": 2}}]
    rows, reasons = landed(catalog, schema, [json.dumps(each) for each in (good, *bad, *twice)])
    assert rows == [{f"m{at}": [(key, 1) for key in keys.values()] for at, (_, keys, _) in enumerate(KEYS)}]
    assert len(reasons) == len(bad) + len(twice)
    assert reasons[-2:] == ["field 'm4' holds a key twice"] * 2


# ------------------------------------------------------------------------------------------------- the two writers

NO_SPARK = TableSchema(
    NestedField(1, "a", LongType()),
    NestedField(2, "clock", TimeType()),
    *(NestedField(at, name, kind) for at, (name, kind) in enumerate(COORDINATE_TYPES.items(), 3)),
)


def test_a_table_that_spark_cannot_open_is_refused_where_spark_must_write_it(catalog: Catalog) -> None:
    """Arrow writes times. Spark has no type for them, and would fail at the first batch."""
    table = catalog.create_table("db.clocks", NO_SPARK)
    config = Iceberg(table="db.clocks")
    assert table_recipe(config, "db.clocks", table).shape is not None
    orc = catalog.create_table("db.orc_clocks", NO_SPARK, properties={"write.format.default": "orc"})
    with pytest.raises(TableUnfit, match=r"since its files are orc .*clock time\.") as refused:
        table_recipe(config, "db.orc_clocks", orc)
    assert "types that Spark knows" in refused.value.command
    assert [each.what for each in table_findings(config, "db.orc_clocks", orc) if each.level is Level.REFUSED] == [
        refused.value.what
    ]
    with pytest.raises(ConfigError, match=r"clock: Spark's own writer .* has no type for time"):
        iceberg_layout("a BIGINT, clock TIME", {"format-version": "3"})
    assert iceberg_layout("a BIGINT, clock TIME", {"format-version": "2"})


@pytest.mark.parametrize("type_", [TimestampNanoType(), TimestamptzNanoType()], ids=str)
def test_nanoseconds_need_version_3_whose_writer_does_not_know_them(catalog: Catalog, type_: IcebergType) -> None:
    """Neither a table that is there nor one that is to be created lands anything, and both say what to do."""
    coarse = TimestampType() if type_ == TimestampNanoType() else TimestamptzType()
    name = f"db.fine_{type_}"
    table = catalog.create_table(name, TableSchema(NestedField(2, "at", coarse), *NO_SPARK.fields[2:]))
    path = Path(table.metadata_location.removeprefix("file://"))  # PyIceberg reads version 3, and does not write it
    text = path.read_text().replace(f'"{coarse}"', f'"{type_}"').replace('"format-version":2', '"format-version":3')
    path.write_text(text.replace('"table-uuid"', '"next-row-id":0,"table-uuid"'))
    table = catalog.load_table(name)
    with pytest.raises(TableUnfit, match=rf"Spark cannot open a table with these columns: at {type_}\.") as refused:
        table_recipe(Iceberg(table=name), name, table)
    assert "timestamp or timestamptz" in refused.value.command
    declared = "at TIMESTAMP_NTZ(9)" if type_ == TimestampNanoType() else "at TIMESTAMP(9)"
    for version in ("2", "3"):
        with pytest.raises(ConfigError, match="times with nanoseconds") as declined:
            iceberg_layout(declared, {"format-version": version})
        assert "TIMESTAMP(6) is possible" in declined.value.what
        assert "at STRING" in declined.value.command


def iceberg_layout(declared: str, properties: dict[str, str]) -> object:
    return layout(parse_schema(declared), Creation(properties=properties))


def test_a_column_that_stays_null_is_a_warning(catalog: Catalog) -> None:
    schema = TableSchema(*NO_SPARK.fields, NestedField(9, "m", MapType(10, ListType(12, LongType()), 11, LongType())))
    table = catalog.create_table("db.warned", schema)
    found = [
        each.what
        for each in table_findings(Iceberg(table="db.warned"), "db.warned", table)
        if each.level is Level.WARNING
    ]
    assert found == [
        "column m stays NULL: no record becomes map<list<long>, long> exactly, and one with a value for it is a dead letter"
    ]


def test_a_table_that_pyiceberg_cannot_read_is_refused_in_words(tmp_path: Path) -> None:
    spec = CatalogSpec("c", {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"})
    opened = spec.open()
    opened.create_namespace("db")
    table = opened.create_table("db.t", TableSchema(NestedField(1, "a", StringType())))
    path = Path(table.metadata_location.removeprefix("file://"))
    path.write_text(path.read_text().replace('"string"', '"variant"'))
    with pytest.raises(TableUnfit, match="a column has the type variant, which it does not know"), catalog_errors(spec):
        opened.load_table("db.t")


def test_a_required_column_with_a_default_is_not_asked_of_records() -> None:
    with_default = NestedField(1, "a", LongType(), required=True, initial_default=7, write_default=7)
    (field,) = schema_of(TableSchema(with_default), coordinates=False).fields
    assert not field.required
    (control,) = schema_of(TableSchema(NestedField(1, "a", LongType(), required=True)), coordinates=False).fields
    assert control.required


# ------------------------------------------------------------------------------------------------- the page

PAGE = Path(__file__).parents[2] / "docs" / "iceberg.md"


def test_the_page_names_every_type_that_pyiceberg_knows() -> None:
    rows = PAGE.read_text().split("## Iceberg types")[1].split("\n## ")[0].splitlines()
    table = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows if row.startswith("| `")]
    named = {name: cells for cells in table for name in re.findall(r"`([a-z_]+)", cells[0])}
    abstract = {"IcebergType", "PrimitiveType", "NestedField"}
    known = {
        each.__name__.removesuffix("Type").lower()
        for each in vars(iceberg_types).values()
        if isinstance(each, type) and issubclass(each, IcebergType) and each.__name__ not in abstract
    }
    of_class = {"integer": "int", "timestampnano": "timestamp_ns", "timestamptznano": "timestamptz_ns"}
    assert set(named) == {of_class.get(each, each) for each in known} | {"variant"}
    for type_ in [*_PLAIN, UnknownType(), GeometryType()]:
        (field,) = (
            *schema_of(
                TableSchema(NestedField(1, "a", type_), NestedField(2, "b", LongType())), coordinates=False
            ).fields,
        )[:1]
        cells = named[re.match(r"[a-z_]+", str(type_))[0]]  # type: ignore[index]
        assert field.is_filled is ("nothing" not in cells[1]), type_
        in_spark = not [*not_in_spark(type_, "a")]
        assert ("Spark" in cells[3]) is in_spark, type_


# ------------------------------------------------------------------------------------------------- coordinates


def with_coordinates(**kinds: IcebergType) -> TableSchema:
    usual = {"_topic": StringType(), "_kafka_partition": IntegerType(), "_offset": LongType(), **kinds}
    return TableSchema(
        NestedField(1, "a", LongType()),
        *(NestedField(number, name, kind) for number, (name, kind) in enumerate(usual.items(), 2)),
    )


def test_coordinates_are_not_the_decoders() -> None:
    assert [each.name for each in schema_of(with_coordinates(), coordinates=True).fields] == ["a"]
    assert [each.name for each in schema_of(with_coordinates(), coordinates=False).fields] == ["a", *COLUMNS]


def test_a_table_that_cannot_hold_coordinates_is_refused() -> None:
    assert coordinate_faults(with_coordinates(_kafka_partition=LongType())) == ()
    assert coordinate_faults(with_coordinates(_offset=IntegerType())) == ("_offset is int, not long",)
    with pytest.raises(
        TableUnfit, match="_topic is missing; _kafka_partition is missing; _offset is missing"
    ) as refused:
        schema_of(TableSchema(NestedField(1, "a", LongType())), coordinates=True)
    assert "_offset bigint" in refused.value.command
    with pytest.raises(TableUnfit, match="no column that a record could fill"):
        schema_of(TableSchema(*with_coordinates().fields[1:]), coordinates=True)


# ------------------------------------------------------------------------------------------------- creation

DECLARED = """b BOOLEAN, t TINYINT, i INT NOT NULL, l BIGINT, f FLOAT, d DOUBLE, n DECIMAL(10, 3), day DATE, clock TIME,
    bare TIMESTAMP_NTZ, at TIMESTAMP, ms TIMESTAMP(3), text STRING, u UUID, raw BINARY, four FIXED(4),
    tags ARRAY<STRING NOT NULL>, m MAP<STRING, DOUBLE>, s STRUCT<x: INT NOT NULL, y: STRUCT<z: DATE>>"""


def test_a_declared_schema_becomes_a_tables_and_that_the_declared_one() -> None:
    made = iceberg_schema(parse_schema(DECLARED), identity=())
    types = {each.name: str(each.field_type) for each in made.fields}
    assert types["t"] == "int"
    assert types["ms"] == types["at"] == "timestamptz"
    assert types["bare"] == "timestamp"
    assert types["n"] == "decimal(10, 3)"
    assert types["four"] == "fixed[4]"
    assert [(each.name, str(each.field_type), each.required) for each in made.fields[-3:]] == [
        ("_topic", "string", False),
        ("_kafka_partition", "int", False),
        ("_offset", "long", False),
    ]
    assert len({*made.field_ids}) == len(made.column_names)
    back = schema_of(made, coordinates=True).by_name()
    for each in parse_schema(DECLARED).fields:
        if each.name not in ("t", "ms"):
            assert back[each.name].type == each.type, each.name
            assert back[each.name].required == each.required


@pytest.mark.parametrize(
    ("type_", "made"),
    [
        (pa.uint8(), "int"),
        (pa.int16(), "int"),
        (pa.uint32(), "long"),
        (pa.uint64(), "decimal(20, 0)"),
        (pa.timestamp("s"), "timestamp"),
        (pa.time32("ms"), "time"),
    ],
)
def test_what_iceberg_lacks_gets_the_next_wider_type(type_: pa.DataType, made: str) -> None:
    schema = iceberg_schema(Schema((Field("a", type_),)), identity=())
    assert str(schema.find_field("a").field_type) == made


def test_identity_fields_are_required_along_their_path() -> None:
    declared = parse_schema("id BIGINT, who STRUCT<name: STRING, age: INT>, v STRING")
    made = iceberg_schema(declared, identity=("id", "who.name"))
    assert made.identifier_field_names() == {"id", "who.name"}
    needed = {name: made.find_field(name).required for name in ("id", "who", "who.name", "who.age", "v")}
    assert needed == {"id": True, "who": True, "who.name": True, "who.age": False, "v": False}


@pytest.mark.parametrize(
    ("declared", "identity", "said"),
    [
        ("id BIGINT", ("key",), "there is no column 'key'; there are id"),
        ("id DOUBLE", ("id",), "'id' is of type double"),
        ("id ARRAY<INT>", ("id",), "cannot identify a row"),
        ("id ARRAY<INT>", ("id.element",), "is inside a list"),
        ("_offset BIGINT", (), "cannot be called"),
    ],
)
def test_what_cannot_be_created_says_why(declared: str, identity: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        iceberg_schema(parse_schema(declared), identity=identity)
    with pytest.raises(ConfigError, match="more digits than the 38"):
        iceberg_schema(Schema((Field("a", pa.decimal256(40, 2)),)), identity=())


def test_a_dot_in_a_name_is_no_path(catalog: Catalog) -> None:
    rows, reasons = landed(catalog, TableSchema(NestedField(1, "a.b", LongType())), ['{"a.b":1,"a":{"b":2}}'])
    assert rows == [{"a.b": 1}]
    assert reasons == []
    inside = TableSchema(NestedField(1, "a", StructType(NestedField(2, "b.c", LongType()))))
    decoded = JsonDecoder(schema_of(inside, coordinates=False)).decode(pa.array([b'{"a":{"b.c":1}}'], pa.binary()))
    assert decoded.table.to_pylist() == [{"a": {"b.c": 1}}]
