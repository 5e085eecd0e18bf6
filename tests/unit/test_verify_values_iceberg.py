"""Values of Iceberg tables as the audit reads them: by field id at every depth, and only as far as a file was written with them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from landonce.protocol.ranges import Partition
from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.iceberg.catalog import CatalogSpec
from landonce.sinks.iceberg.files import write_files
from landonce.sinks.iceberg.held import IcebergValues
from landonce.sinks.iceberg.held_files import PinnedTable
from landonce.sinks.iceberg.table import TableShape
from landonce.sinks.iceberg.types import iceberg_schema, schema_for
from landonce.sinks.snapshot import Origin
from landonce.verify.values import differing

WORD = UUID("61f0c404-5cb3-11e7-907b-a6006ad3dba0")
INNER = StructType(NestedField(30, "x", DoubleType()), NestedField(31, "u", StringType()))
FIELDS = [
    NestedField(1, "u", UUIDType()),
    NestedField(2, "t", TimeType()),
    NestedField(3, "b", FixedType(4)),
    NestedField(4, "f", FloatType()),
    NestedField(5, "m", MapType(20, StringType(), 21, INNER, value_required=False)),
    NestedField(6, "l", ListType(22, StructType(NestedField(33, "a", IntegerType())), element_required=False)),
    NestedField(7, "d", DecimalType(38, 10)),
    NestedField(8, "z", TimestamptzType()),
    NestedField(9, "y", BinaryType()),
    NestedField(10, "_topic", StringType()),
    NestedField(11, "_kafka_partition", IntegerType()),
    NestedField(12, "_offset", LongType()),
]
NAMES = ["u", "t", "b", "f", "m", "l", "d", "z", "y"]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = load_catalog("x", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    catalog.create_table("db.t", Schema(*FIELDS))
    return catalog


def land(catalog: Catalog, first: int, count: int, **more: object) -> pa.Table:
    table = catalog.load_table("db.t")
    schema = table.schema().as_arrow()
    row = {
        "u": WORD.bytes,
        "t": dt.time(1, 2, 3, 4),
        "b": b"abcd",
        "f": 0.5,
        "m": [("k", {"x": 0.1, "u": "v"}), ("n", None)],
        "l": [{"a": 1}, None],
        "d": Decimal("1.5"),
        "z": dt.datetime(9999, 12, 31, tzinfo=dt.timezone.utc),
        "y": b"\x00",
        **more,
    }
    coordinates = {"_topic": ["t"] * count, "_kafka_partition": [0] * count, "_offset": range(first, first + count)}
    some = {each.name: [row.get(each.name) if at % 3 else None for at in range(count)] for each in schema}
    for name in ("m", "l"):  # PyIceberg's own writer makes empty ones of those that are not there
        some[name] = [each or [] for each in some[name]]
    columns = [pa.array({**some, **coordinates}[each.name], each.type) for each in schema]
    rows = pa.Table.from_arrays(columns, schema=schema)
    table.append(rows)
    return rows


def opened(catalog: Catalog) -> IcebergValues:
    return IcebergValues(PinnedTable.load(CatalogSpec("x", {}), "db.t", "main", catalog))


def test_every_value_is_read_as_it_was_written(catalog: Catalog) -> None:
    rows = land(catalog, 0, 50)
    land(catalog, 50, 50)
    pieces = list(opened(catalog).read(Partition("t", 0), 10, 20, NAMES))
    assert [each.rows.column("_offset").to_pylist() for each in pieces] == [list(range(10, 20))]
    (piece,) = pieces
    assert not piece.absent
    for name in NAMES:
        expected = rows.column(name).combine_chunks().slice(10, 10)
        assert differing(expected, piece.rows.column(name).combine_chunks()).tolist() == [], name
        assert expected.null_count < 10, "there is something to compare"
    assert list(opened(catalog).read(Partition("t", 1), 0, 100, NAMES)) == []


def test_what_a_file_was_written_without_is_reported(catalog: Catalog) -> None:
    land(catalog, 0, 3)
    with catalog.load_table("db.t").update_schema() as update:
        update.add_column(("l", "element", "b"), StringType())
        update.add_column("new", LongType())
        update.update_column("f", field_type=DoubleType())
        update.rename_column(("m", "value", "x"), "renamed")
    land(catalog, 3, 3, f=0.1, new=5, l=[{"a": 1, "b": "x"}], m=[("k", {"renamed": 0.1, "u": None})])
    names = [*NAMES, "new"]
    pieces = sorted(
        opened(catalog).read(Partition("t", 0), 0, 9, names), key=lambda each: each.rows.column("_offset")[0].as_py()
    )
    assert [(each.absent, each.single) for each in pieces] == [({"l", "new"}, {"f"}), (set(), set())]
    assert pieces[0].rows.column("m").to_pylist()[1] == [("k", {"renamed": 0.1, "u": "v"}), ("n", None)]
    assert pieces[1].rows.column("l").to_pylist()[1] == [{"a": 1, "b": "x"}]
    assert pieces[1].rows.column("new").to_pylist() == [None, 5, 5]


def test_deleted_rows_are_not_read(catalog: Catalog) -> None:
    land(catalog, 0, 10)
    catalog.load_table("db.t").delete("_offset == 4")
    (piece,) = opened(catalog).read(Partition("t", 0), 0, 10, ["f"])
    assert piece.rows.column("_offset").to_pylist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]


CASES = {
    "BOOLEAN": ["true", "false", "null"],
    "BIGINT": ["9223372036854775807", "null"],
    "FLOAT": ["0.1", "16777216"],
    "DOUBLE": ["0.1", "9007199254740992"],
    "DECIMAL(38, 10)": ["1234567890123456789012345678.0123456789", "null"],
    "DATE": ['"0001-01-01"', '"9999-12-31"'],
    "TIMESTAMP": ['"0001-01-01T00:00:00.000001Z"', '"9999-12-31T23:59:59.999999Z"'],
    "TIMESTAMP_NTZ": ['"2020-01-01T00:00:00.000001"', "null"],
    "STRING": ['""', '"é🎈"', "null"],
    "BINARY": ['"AP8="', "null"],
    "ARRAY<STRUCT<x: DOUBLE, d: DATE>>": ['[{"x":0.5,"d":"1950-01-01"},null,{"x":null}]', "[]", "null"],
    "STRUCT<a: INT, b: STRUCT<c: ARRAY<STRING>>>": ['{"a":1,"b":{"c":["x",null]}}', '{"b":null}', "null"],
    "MAP<STRING, STRUCT<n: BIGINT>>": ['{"k":{"n":1},"l":null}', "{}", "null"],
}


def test_what_landonce_writes_is_what_records_decode_to(catalog: Catalog) -> None:
    """Decoded, written to Parquet files and read back: no false difference in any type."""
    declared = parse_schema(", ".join(f"c{n} {type_}" for n, type_ in enumerate(CASES)))
    table = catalog.create_table("db.all", iceberg_schema(declared, identity=()))
    fields = [[f'"c{n}":{each[at % len(each)]}' for n, each in enumerate(CASES.values())] for at in range(6)]
    records = [f"{{{','.join(each)}}}" for each in fields]
    decoded = JsonDecoder(schema_for(table, coordinates=True)).decode(pa.array(records).cast(pa.binary()))
    assert not decoded.rejects
    offsets = pa.array(range(6), pa.int64())
    rows = decoded.table.append_column("_topic", pa.array(["t"] * 6)).append_column("_offset", offsets)
    rows = rows.append_column("_kafka_partition", pa.array([0] * 6, pa.int32()))
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in write_files(TableShape.of(table), rows, Origin("p", 1, 1, 0)):
            append.append_data_file(file)
    held = IcebergValues(PinnedTable.load(CatalogSpec("x", {}), "db.all", "main", catalog))
    (piece,) = held.read(Partition("t", 0), 0, 6, decoded.table.column_names)
    assert not piece.absent
    for name in decoded.table.column_names:
        expected, found = decoded.table.column(name).combine_chunks(), piece.rows.column(name).combine_chunks()
        assert differing(expected, found).tolist() == [], name
