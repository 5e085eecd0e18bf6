"""Partition values of every type, through many commits that merge manifests: they are read and written again and again, and stay.

What a manifest holds is read by PyIceberg's decoder in plain Python, which is not the one that merges.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform, TruncateTransform, YearTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from landonce.sinks.iceberg.catalog import CatalogSpec
from landonce.sinks.iceberg.commit import TableBranch
from landonce.sinks.iceberg.files import write_files
from landonce.sinks.iceberg.table import TableShape
from landonce.sinks.snapshot import Origin

NAME = "db.t"
UTC = timezone.utc
VALUES: list[tuple[IcebergType, pa.DataType, list[Any]]] = [
    (DoubleType(), pa.float64(), [0.1, 19.99, 1e308, 5e-324, -1e-300, 2.0**53 + 2, float("inf"), float("nan"), None]),
    (FloatType(), pa.float32(), [0.1, 3.4e38, 1e-45, -0.5, float("-inf"), float("nan"), None]),
    (BooleanType(), pa.bool_(), [True, False, None]),
    (IntegerType(), pa.int32(), [-(2**31), 2**31 - 1, 0, None]),
    (LongType(), pa.int64(), [-(2**63), 2**63 - 1, 2**53 + 1, None]),
    (DecimalType(4, 2), pa.decimal128(4, 2), [Decimal("-99.99"), Decimal("99.99"), Decimal("0.01"), None]),
    (DecimalType(38, 10), pa.decimal128(38, 10), [Decimal(f"{sign}{'9' * 28}.{'9' * 10}") for sign in ("", "-")]),
    (DateType(), pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None]),
    (TimeType(), pa.time64("us"), [time(0), time(23, 59, 59, 999_999), None]),
    (TimestampType(), pa.timestamp("us"), [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999), None]),
    (TimestamptzType(), pa.timestamp("us", "UTC"), [datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC), None]),
    (StringType(), pa.string(), ["", "añ€😀", "a/b=c%", "x" * 300, None]),
    (UUIDType(), pa.binary(16), [uuid.UUID(int=1).bytes, uuid.UUID(int=2**128 - 1).bytes, None]),
    (FixedType(3), pa.binary(3), [b"\x00\xff\x00", b"abc", None]),
    (BinaryType(), pa.binary(), [b"", b"\x00\xff" * 50, None]),
]


@pytest.fixture
def place(tmp_path: Path) -> TableBranch:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    spec = CatalogSpec("c", properties)
    catalog: Catalog = spec.open()
    catalog.create_namespace("db")
    return TableBranch(spec, lambda: catalog, NAME, "main", "p")


def _make(place: TableBranch, kind: IcebergType, transform: Transform[Any, Any]) -> None:
    schema = Schema(NestedField(1, "v", kind, required=False), NestedField(2, "n", LongType(), required=False))
    spec = PartitionSpec(PartitionField(1, 1000, transform, "v_part"))
    properties = {"commit.manifest.min-count-to-merge": "2"}
    place.open().create_table(NAME, schema, partition_spec=spec, properties=properties)


def _commit(place: TableBranch, rows: pa.Table) -> tuple[DataFile, ...]:
    table = place.load()
    files = write_files(TableShape.of(table), rows, Origin("p", 1, 1, 0))
    summary = {"landonce.pipeline": "other"}
    place.send(table, place.appending(table, summary, {}, files))
    return files


def _bits(value: Any) -> Any:
    """Equal only for the same value, bit by bit; any NaN equals any other."""
    if isinstance(value, float):
        return "NaN" if value != value else struct.pack("<d", value)
    return value.bytes if isinstance(value, uuid.UUID) else value


def _held(table: Table) -> Iterator[tuple[str, Any]]:
    """Every file of the table, with its partition's value."""
    with mock.patch("pyiceberg.avro.file.new_decoder", StreamingBinaryDecoder):
        for manifest in table.current_snapshot().manifests(table.io):  # type: ignore[union-attr]
            for entry in manifest.fetch_manifest_entry(table.io):
                yield entry.data_file.file_path, _bits(entry.data_file.partition[0])


@pytest.mark.parametrize(("kind", "arrow", "values"), VALUES, ids=[str(kind) for kind, _, _ in VALUES])
def test_a_value_stays_what_it_is(place: TableBranch, kind: IcebergType, arrow: pa.DataType, values: list[Any]) -> None:
    _make(place, kind, IdentityTransform())
    rows = pa.table({"v": pa.array(values, arrow), "n": pa.array(range(len(values)), pa.int64())})
    expected: dict[str, Any] = {}
    for _ in range(4):
        expected.update({each.file_path: _bits(each.partition[0]) for each in _commit(place, rows)})
    table = place.load()
    assert len(table.current_snapshot().manifests(table.io)) == 1, "the scene: manifests are merged"  # type: ignore[union-attr]
    assert dict(_held(table)) == expected
    assert len(set(expected.values())) == len(values)
    _check_bounds(table, kind, rows["v"].to_pylist())


def _check_bounds(table: Table, kind: IcebergType, values: list[Any]) -> None:
    """What the list of manifests says of them, by which readers leave manifests out."""
    (manifest,) = table.current_snapshot().manifests(table.io)  # type: ignore[union-attr]
    (found,) = manifest.partitions or []
    there = [each for each in values if each is not None and each == each]
    assert isinstance(kind, PrimitiveType)
    assert (found.lower_bound, found.upper_bound) == (_bound(kind, min(there)), _bound(kind, max(there)))
    assert found.contains_null is (None in values)
    assert bool(found.contains_nan) is any(each != each for each in values if each is not None)


def _bound(kind: PrimitiveType, value: Any) -> bytes:
    return to_bytes(kind, uuid.UUID(bytes=value) if isinstance(kind, UUIDType) and isinstance(value, bytes) else value)


@pytest.mark.parametrize(
    ("narrow", "wide", "arrow", "values"),
    [
        (IntegerType(), LongType(), (pa.int32(), pa.int64()), [-(2**31), 7]),
        (FloatType(), DoubleType(), (pa.float32(), pa.float64()), [0.5, 2.0**100]),
        (DecimalType(4, 2), DecimalType(30, 2), (pa.decimal128(4, 2), pa.decimal128(30, 2)), [Decimal("-99.99")]),
    ],
    ids=["int", "float", "decimal"],
)
def test_a_value_of_a_column_that_was_widened_stays(
    place: TableBranch, narrow: Any, wide: Any, arrow: tuple[pa.DataType, ...], values: list[Any]
) -> None:
    _make(place, narrow, IdentityTransform())
    expected: dict[str, Any] = {}
    for each in arrow:
        rows = pa.table({"v": pa.array(values, each), "n": pa.array(range(len(values)), pa.int64())})
        for _ in range(3):
            expected.update({each.file_path: _bits(each.partition[0]) for each in _commit(place, rows)})
        with place.load().update_schema() as update:
            update.update_column("v", field_type=wide)
    assert dict(_held(place.load())) == expected


@pytest.mark.parametrize(
    ("transform", "kind", "arrow", "values"),
    [
        (BucketTransform(2**31 - 1), StringType(), pa.string(), ["a", "b", None]),
        (TruncateTransform(3), StringType(), pa.string(), ["añ€😀", "b", None]),
        (TruncateTransform(50), DecimalType(9, 2), pa.decimal128(9, 2), [Decimal("-1.01"), Decimal("0.49"), None]),
        (YearTransform(), TimestampType(), pa.timestamp("us"), [datetime(1, 1, 1), datetime(9999, 1, 1), None]),
    ],
    ids=["bucket", "truncate text", "truncate decimal", "year"],
)
def test_what_a_transform_gives_stays(
    place: TableBranch, transform: Transform[Any, Any], kind: IcebergType, arrow: pa.DataType, values: list[Any]
) -> None:
    _make(place, kind, transform)
    rows = pa.table({"v": pa.array(values, arrow), "n": pa.array(range(len(values)), pa.int64())})
    expected: dict[str, Any] = {}
    for _ in range(4):
        expected.update({each.file_path: _bits(each.partition[0]) for each in _commit(place, rows)})
    assert dict(_held(place.load())) == expected
    assert len(set(expected.values())) == len(values)
