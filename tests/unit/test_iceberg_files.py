"""Data files that workers write: what a reader of the table finds in them, read without the code that wrote them."""

from __future__ import annotations

import gc
import json
import math
import pickle
import random
import time
import uuid
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from datetime import time as clock
from decimal import Decimal
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import mmh3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode, PyArrowFileIO, StatisticsCollector
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.update import SetDefaultSpecUpdate
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
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
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from landonce.errors import TableUnfit, TargetUnavailable
from landonce.sinks.iceberg.files import measured, write_files
from landonce.sinks.iceberg.partitions import partition_values
from landonce.sinks.iceberg.table import TableShape, ensure_unpartitioned_spec, why_spark
from landonce.sinks.snapshot import Origin, origin_of

ORIGIN = Origin("orders", 3, 7, 2)
EPOCH = datetime(1970, 1, 1)


def _optional(number: int, name: str, kind: IcebergType) -> NestedField:
    return NestedField(number, name, kind, required=False)


EVENTS = Schema(
    NestedField(1, "id", LongType(), required=True),
    _optional(2, "user", StringType()),
    _optional(3, "at", TimestampType()),
    _optional(4, "amount", DoubleType()),
    NestedField(5, "_topic", StringType(), required=True),
    NestedField(6, "_offset", LongType(), required=True),
)

EVERYTHING = Schema(
    NestedField(1, "id", LongType(), required=True),
    _optional(2, "yes", BooleanType()),
    _optional(3, "whole", IntegerType()),
    _optional(4, "float", FloatType()),
    _optional(5, "double", DoubleType()),
    _optional(6, "day", DateType()),
    _optional(7, "clock", TimeType()),
    _optional(8, "bare", TimestampType()),
    _optional(9, "zoned", TimestamptzType()),
    _optional(10, "text", StringType()),
    _optional(11, "uuid", UUIDType()),
    _optional(12, "fixed", FixedType(4)),
    _optional(13, "bytes", BinaryType()),
    _optional(14, "small", DecimalType(9, 2)),
    _optional(15, "middle", DecimalType(18, 3)),
    _optional(16, "large", DecimalType(38, 10)),
    _optional(17, "place", StructType(_optional(21, "city", StringType()), _optional(22, "height", DoubleType()))),
    _optional(18, "tags", ListType(23, StringType(), element_required=False)),
    _optional(19, "counts", MapType(24, StringType(), 25, IntegerType(), value_required=False)),
    _optional(20, "a.b/c", StringType()),
)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    made = load_catalog(
        "local", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse"
    )
    made.create_namespace("db")
    return made


def _table(catalog: Catalog, schema: Schema, spec: PartitionSpec | None = None, **properties: str) -> Table:
    named = {name.replace("__", "-").replace("_", "."): value for name, value in properties.items()}
    name = f"db.t{uuid.uuid4().hex[:8]}"
    made = catalog.create_table(name, schema, partition_spec=spec or UNPARTITIONED_PARTITION_SPEC, properties=named)
    assert made.schema() == schema
    return made


def _spec(*fields: tuple[int, Transform[Any, Any]]) -> PartitionSpec:
    return PartitionSpec(
        *[PartitionField(source, 1000 + at, transform, f"p{at}") for at, (source, transform) in enumerate(fields)]
    )


def _append(table: Table, files: tuple[DataFile, ...]) -> Table:
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for each in files:
            append.append_data_file(each)
    return table.refresh()


def _local(path: str) -> str:
    return urlparse(path).path if path.startswith("file:") else path


def _events(count: int, seed: int = 1) -> pa.Table:
    dice = random.Random(seed)
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "user": pa.array([f"user-{dice.randrange(50)}" if dice.random() > 0.1 else None for _ in range(count)]),
            "at": pa.array(
                [dice.randrange(10**12, 2 * 10**12) if dice.random() > 0.1 else None for _ in range(count)]
            ).cast(pa.timestamp("ms")),
            "amount": pa.array([dice.choice([1.5, float("nan"), None, -2.25]) for _ in range(count)]),
            "_topic": pa.array(["orders"] * count).dictionary_encode(),
            "_offset": pa.array(range(100, 100 + count), pa.int64()),
        }
    )


def _everything(count: int, seed: int = 2) -> pa.Table:
    dice = random.Random(seed)

    def column(make: Any, kind: pa.DataType) -> pa.Array:
        return pa.array([make() if dice.random() > 0.15 else None for _ in range(count)], kind)

    def decimal(digits: int, scale: int) -> Decimal:
        return Decimal(dice.randrange(-(10**digits) + 1, 10**digits)).scaleb(-scale)

    text = ["", "a", "añ€😀z", "x" * 40, "😀" * 20, "\U0010ffff" * 20, "\ud7ff" * 20, "zebra"]
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "yes": column(lambda: dice.random() > 0.5, pa.bool_()),
            "whole": column(lambda: dice.randrange(-(2**31), 2**31), pa.int32()),
            "float": column(lambda: dice.choice([0.0, -0.0, 1.5, float("nan"), float("-inf")]), pa.float32()),
            "double": column(lambda: dice.uniform(-1e9, 1e9), pa.float64()),
            "day": column(lambda: date(1970, 1, 1) + timedelta(dice.randrange(-20000, 20000)), pa.date32()),
            "clock": column(lambda: clock(dice.randrange(24), dice.randrange(60), 1, 5), pa.time64("us")),
            "bare": column(
                lambda: EPOCH + timedelta(microseconds=dice.randrange(-(10**15), 10**15)), pa.timestamp("us")
            ),
            "zoned": column(
                lambda: datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=dice.randrange(10**7)),
                pa.timestamp("us", "UTC"),
            ),
            "text": column(lambda: dice.choice(text), pa.string()),
            "uuid": column(lambda: uuid.UUID(int=dice.getrandbits(128)).bytes, pa.binary(16)),
            "fixed": column(lambda: dice.randbytes(4), pa.binary(4)),
            "bytes": column(lambda: dice.choice([b"", b"\xff" * 20, dice.randbytes(30)]), pa.binary()),
            "small": column(lambda: decimal(9, 2), pa.decimal128(9, 2)),
            "middle": column(lambda: decimal(18, 3), pa.decimal128(18, 3)),
            "large": column(lambda: decimal(20, 10), pa.decimal128(38, 10)),
            "place": column(
                lambda: {"city": dice.choice(["Graz", None, "Łódź"]), "height": dice.choice([1.0, math.nan, None])},
                pa.struct([("city", pa.string()), ("height", pa.float64())]),
            ),
            "tags": column(lambda: [dice.choice(["x", None]) for _ in range(dice.randrange(3))], pa.list_(pa.string())),
            "counts": column(lambda: [("k", dice.randrange(5)), ("l", None)], pa.map_(pa.string(), pa.int32())),
            "a.b/c": column(lambda: "dotted", pa.string()),
        }
    )


def _plain(value: Any) -> Any:
    """A value that can be counted, in which NaN equals itself."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dict):
        return tuple(sorted((key, _plain(each)) for key, each in value.items()))
    if isinstance(value, list | tuple):
        return tuple(_plain(each) for each in value)
    return value.bytes if isinstance(value, uuid.UUID) else value


def _multiset(rows: pa.Table, names: list[str]) -> Counter[Any]:
    return Counter(tuple(_plain(row[name]) for name in names) for row in rows.select(names).to_pylist())


# Whole tables: what was written is what is read.


def test_rows_come_back_as_they_were(catalog: Catalog) -> None:
    table = _table(catalog, EVERYTHING)
    rows = _everything(3_000)
    table = _append(table, write_files(TableShape.of(table), rows, ORIGIN))
    assert _multiset(table.scan().to_arrow(), rows.column_names) == _multiset(rows, rows.column_names)


@pytest.mark.parametrize("version", ["1", "2"])
def test_rows_of_a_partitioned_table_come_back(catalog: Catalog, version: str) -> None:
    spec = _spec((3, YearTransform()), (1, BucketTransform(3)), (2, TruncateTransform(6)))
    name = f"db.v{version}"
    table = catalog.create_table(name, EVENTS, partition_spec=spec, properties={"format-version": version})
    rows = _events(300)
    table = _append(table, write_files(TableShape.of(table), rows, ORIGIN))
    assert table.metadata.format_version == int(version)
    assert _multiset(table.scan().to_arrow(), rows.column_names) == _multiset(rows, rows.column_names)


def test_no_rows_make_no_file(catalog: Catalog) -> None:
    table = _table(catalog, EVENTS)
    assert write_files(TableShape.of(table), _events(0), ORIGIN) == ()


def test_a_column_that_is_not_there_is_null(catalog: Catalog) -> None:
    table = _table(catalog, EVERYTHING)
    table = _append(table, write_files(TableShape.of(table), pa.table({"id": pa.array([1, 2])}), ORIGIN))
    (first, _) = table.scan().to_arrow().to_pylist()
    assert first.pop("id") in (1, 2)
    assert set(first.values()) == {None}


def test_chunks_and_large_types_and_other_units_do_not_matter(catalog: Catalog) -> None:
    table = _table(catalog, EVENTS)
    rows = _events(300)
    large = rows.set_column(1, "user", rows["user"].cast(pa.large_string()))
    chunked = pa.concat_tables([large.slice(0, 100), large.slice(100, 1), large.slice(101)])
    files = write_files(TableShape.of(table), chunked, ORIGIN)
    assert len(files) == 1
    assert _multiset(_append(table, files).scan().to_arrow(), rows.column_names) == _multiset(rows, rows.column_names)


# What the files look like to other readers.


def test_the_parquet_schema_has_field_ids_and_annotations(catalog: Catalog) -> None:
    table = _table(catalog, EVERYTHING)
    (data_file,) = write_files(TableShape.of(table), _everything(50), ORIGIN)
    footer = pq.read_metadata(_local(data_file.file_path))
    shown = str(footer.schema)
    assert "fixed_len_byte_array(16) field_id=11 uuid (UUID)" in shown
    assert "field_id=9 zoned (Timestamp(isAdjustedToUTC=true, timeUnit=microseconds" in shown
    assert "field_id=8 bare (Timestamp(isAdjustedToUTC=false, timeUnit=microseconds" in shown
    assert "field_id=7 clock (Time(isAdjustedToUTC=false, timeUnit=microseconds))" in shown
    assert "required int64 field_id=1 id" in shown
    assert "optional int32 field_id=14 small (Decimal(precision=9, scale=2))" in shown
    for number in range(1, 26):
        assert f"field_id={number} " in shown
    assert footer.row_group(0).column(0).compression == "ZSTD"
    encodings = {each for at in range(footer.num_columns) for each in footer.row_group(0).column(at).encodings}
    assert encodings <= {"PLAIN", "RLE", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}


def test_only_columns_that_repeat_get_a_dictionary(catalog: Catalog) -> None:
    table = _table(catalog, EVENTS)
    (data_file,) = write_files(TableShape.of(table), _events(20_000), ORIGIN)
    group = pq.read_metadata(_local(data_file.file_path)).row_group(0)
    having = {group.column(at).path_in_schema for at in range(6) if group.column(at).has_dictionary_page}
    assert having == {"user", "amount", "_topic"}


def test_table_properties_are_honoured(catalog: Catalog) -> None:
    table = _table(
        catalog,
        EVENTS,
        write_parquet_compression__codec="gzip",
        write_parquet_compression__level="3",
        write_parquet_row__group__limit="1000",
        write_metadata_metrics_default="counts",
        write_metadata_metrics_column_id="full",
        write_metadata_metrics_column_user="none",
    )
    (data_file,) = write_files(TableShape.of(table), _events(4_500), ORIGIN)
    footer = pq.read_metadata(_local(data_file.file_path))
    assert footer.row_group(0).column(0).compression == "GZIP"
    assert [footer.row_group(at).num_rows for at in range(footer.num_row_groups)] == [1000] * 4 + [500]
    assert len(data_file.split_offsets or ()) == 5
    assert set(data_file.lower_bounds) == {1}
    assert set(data_file.value_counts) == {1, 3, 4, 5, 6}
    assert set(data_file.nan_value_counts) == {4}
    assert set(data_file.column_sizes) == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "zstd", "lz4", "brotli"])
def test_codecs(catalog: Catalog, codec: str) -> None:
    table = _table(catalog, EVENTS, write_parquet_compression__codec=codec, write_parquet_compression__level="2")
    rows = _events(100)
    table = _append(table, write_files(TableShape.of(table), rows, ORIGIN))
    assert _multiset(table.scan().to_arrow(), rows.column_names) == _multiset(rows, rows.column_names)


def test_files_keep_to_the_target_size(catalog: Catalog) -> None:
    target = 200_000
    table = _table(catalog, EVENTS, write_target__file__size__bytes=str(target))
    dice = random.Random(5)
    rows = _events(40_000).set_column(1, "user", pa.array([dice.randbytes(12).hex() for _ in range(40_000)]))
    files = write_files(TableShape.of(table), rows, ORIGIN)
    sizes = [each.file_size_in_bytes for each in files]
    assert len(files) >= 4
    assert max(sizes) < 1.15 * target
    assert min(sizes[:-1]) > 0.7 * target
    assert sizes == [Path(_local(each.file_path)).stat().st_size for each in files]
    scanned = _append(table, files).scan().to_arrow()
    assert _multiset(scanned, ["_offset"]) == _multiset(rows, ["_offset"])


def test_a_tiny_target_size_still_ends(catalog: Catalog) -> None:
    table = _table(catalog, EVENTS, write_target__file__size__bytes="1")
    assert len(write_files(TableShape.of(table), _events(20), ORIGIN)) == 20


def test_a_storage_of_fsspec(tmp_path: Path) -> None:
    """Its files are Python's, where the default ones are Arrow's."""
    made = load_catalog(
        "local",
        type="sql",
        uri=f"sqlite:///{tmp_path}/catalog.db",
        warehouse=f"file://{tmp_path}/warehouse",
        **{"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"},
    )
    made.create_namespace("db")
    table = _table(made, EVENTS)
    rows = _events(500)
    (data_file,) = write_files(TableShape.of(table), rows, ORIGIN)
    assert data_file.file_size_in_bytes == Path(_local(data_file.file_path)).stat().st_size
    scanned = _append(table, (data_file,)).scan().to_arrow()
    assert _multiset(scanned, rows.column_names) == _multiset(rows, rows.column_names)


# Where files go.


def test_no_name_is_used_twice(catalog: Catalog) -> None:
    table = _table(catalog, EVENTS, _spec((1, BucketTransform(8))))
    shape = TableShape.of(table)
    rows = _events(200)
    files = [each for _ in range(20) for each in write_files(shape, rows, ORIGIN)]
    paths = {each.file_path for each in files}
    on_disk = [path.name for path in Path(_local(table.location())).rglob("*.parquet")]
    assert len(files) == len(paths) == len(on_disk) == 160
    assert {origin_of(path) for path in paths} == {ORIGIN}


def test_locations_follow_the_table(catalog: Catalog, tmp_path: Path) -> None:
    elsewhere = f"file://{tmp_path}/elsewhere"
    spec = _spec((2, IdentityTransform()))
    rows = _events(300)

    def paths(**properties: str) -> list[str]:
        table = _table(catalog, EVENTS, spec, write_data_path=elsewhere, **properties)
        files = write_files(TableShape.of(table), rows, ORIGIN)
        assert {path.exists() for path in map(Path, map(_local, (each.file_path for each in files)))} == {True}
        return [each.file_path.removeprefix(elsewhere) for each in files]

    assert {path.split("/")[1] for path in paths()} > {"p0=user-1", "p0=null"}
    hashed = paths(write_object__storage_enabled="true")
    assert all(path.split("/")[5].startswith("p0=") for path in hashed)
    bare = paths(write_object__storage_enabled="true", write_object__storage_partitioned__paths="false")
    assert not [path for path in bare if "p0=" in path]


# Statistics: right against the data, in every file.


def _check_statistics(data_file: DataFile, schema: Schema) -> None:
    path = _local(data_file.file_path)
    rows = pq.read_table(path)
    assert data_file.record_count == rows.num_rows
    assert data_file.file_size_in_bytes == Path(path).stat().st_size
    for at, field in enumerate(schema.fields):
        if not field.field_type.is_primitive:
            continue
        values = [each.bytes if isinstance(each, uuid.UUID) else each for each in rows.column(at).to_pylist()]
        there = [value for value in values if value is not None]
        finite = [value for value in there if value == value]
        assert data_file.value_counts[field.field_id] == len(values)
        assert data_file.null_value_counts[field.field_id] == len(values) - len(there)
        if isinstance(field.field_type, FloatType | DoubleType):
            assert data_file.nan_value_counts[field.field_id] == len(there) - len(finite)
        _check_bounds(data_file, field, finite)


def _check_bounds(data_file: DataFile, field: NestedField, values: list[Any]) -> None:
    lower, upper = (each.get(field.field_id) for each in (data_file.lower_bounds, data_file.upper_bounds))
    if "." in field.name or not values:
        assert lower is None
        assert upper is None
    elif isinstance(field.field_type, StringType | BinaryType):
        assert lower is not None
        raw = [value.encode() if isinstance(value, str) else value for value in values]
        assert min(raw).startswith(lower)
        assert len(lower.decode() if isinstance(field.field_type, StringType) else lower) <= 16
        assert upper is None or max(raw) <= upper
    else:
        assert lower is not None
        assert upper is not None
        assert _comparable(field.field_type, lower) == _comparable_value(min(values))
        assert _comparable(field.field_type, upper) == _comparable_value(max(values))


def _comparable(kind: IcebergType, bound: bytes) -> Any:
    read = from_bytes(kind, bound)  # type: ignore[type-var]
    return read.bytes if isinstance(read, uuid.UUID) else read


def _comparable_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value.replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    if isinstance(value, clock):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    return value


def test_statistics_say_what_is_in_the_file(catalog: Catalog) -> None:
    table = _table(catalog, EVERYTHING, write_parquet_row__group__limit="400")
    (data_file,) = write_files(TableShape.of(table), _everything(1_500), ORIGIN)
    _check_statistics(data_file, EVERYTHING)
    rows = pq.read_table(_local(data_file.file_path))
    heights = [row["height"] for row in rows["place"].to_pylist() if row]
    assert data_file.nan_value_counts[22] == len([each for each in heights if each is not None and each != each])


def test_statistics_of_partitions_and_of_nothing_but_nulls(catalog: Catalog) -> None:
    table = _table(catalog, EVERYTHING, _spec((2, IdentityTransform())))
    files = write_files(TableShape.of(table), _everything(500), ORIGIN)
    files += write_files(TableShape.of(table), pa.table({"id": pa.array([1, 2])}), ORIGIN)
    for each in files:
        _check_statistics(each, EVERYTHING)


def test_a_row_group_without_bounds_takes_those_of_the_others_away(catalog: Catalog) -> None:
    """Parquet writes no bounds for long strings; those of the other row groups alone would hide these rows."""
    table = _table(catalog, EVENTS, write_parquet_row__group__limit="10")
    users = ["m"] * 10 + ["a" * 5000] * 5 + ["z" * 5000] * 5
    rows = _events(20).set_column(1, "user", pa.array(users))
    (data_file,) = write_files(TableShape.of(table), rows, ORIGIN)
    assert 2 not in data_file.lower_bounds
    assert 2 not in data_file.upper_bounds
    table = _append(table, (data_file,))
    assert table.scan(f"user = '{'z' * 5000}'").to_arrow().num_rows == 5


def test_times_that_python_does_not_reach(catalog: Catalog) -> None:
    table = _table(catalog, EVENTS, _spec((3, YearTransform())))
    far = [-(2**62), 2**62, 0]
    rows = _events(3).set_column(2, "at", pa.array(far, pa.timestamp("us")))
    files = write_files(TableShape.of(table), rows, ORIGIN)
    years = {each.partition[0] for each in files}
    assert years == {-146138 - 1, 146138, 0}
    assert {int.from_bytes(each.lower_bounds[3], "little", signed=True) for each in files} == set(far)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.text(max_size=40), min_size=1, max_size=8), st.integers(1, 20))
@example(["\U0010ffff" * 30], 16)
@example(["a" * 15 + "\ud7ff" + "b"], 16)
def test_bounds_of_text_hold_every_text(texts: list[str], length: int) -> None:
    column = StatisticsCollector(1, StringType(), MetricsMode(MetricModeTypes.TRUNCATE, length), "text")
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, pa.schema([("text", pa.string())])) as writer:
        writer.write_table(pa.table({"text": texts}))
    said = measured(writer.writer.metadata, (column,), {})
    raw = [text.encode() for text in texts]
    lower, upper = said["lower_bounds"][1], said["upper_bounds"].get(1)
    assert lower <= min(raw)
    assert len(lower.decode()) <= length
    if upper is None:
        assert max(texts, key=str.encode)[:length] == "\U0010ffff" * length
    else:
        assert max(raw) <= upper
        assert len(upper.decode()) <= length


# Partitions: every transform against a computation of its own.


def _murmur(value: Any) -> int:
    """Iceberg's hash: of eight bytes for numbers and times, of the bytes for the rest."""
    if isinstance(value, Decimal):
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
        width = next(n for n in range(1, 17) if -(1 << (8 * n - 1)) <= unscaled < 1 << (8 * n - 1))
        return mmh3.hash(unscaled.to_bytes(width, "big", signed=True))
    value = _comparable_value(value)
    if isinstance(value, int):
        return mmh3.hash(value.to_bytes(8, "little", signed=True))
    return mmh3.hash(value if isinstance(value, bytes) else value.encode())


def _expected(transform: Transform[Any, Any], value: Any) -> Any:
    if value is None or isinstance(transform, VoidTransform):
        return None
    if isinstance(transform, BucketTransform):
        return (_murmur(value) & 0x7FFFFFFF) % transform.num_buckets
    if isinstance(transform, TruncateTransform):
        if isinstance(value, str | bytes):
            return value[: transform.width]
        if isinstance(value, Decimal):
            unscaled = int(value.scaleb(2))
            return Decimal(unscaled // transform.width * transform.width).scaleb(-2)
        return value // transform.width * transform.width
    if isinstance(transform, IdentityTransform):
        return _comparable_value(value)
    if isinstance(transform, YearTransform):
        return value.year - 1970
    if isinstance(transform, MonthTransform):
        return (value.year - 1970) * 12 + value.month - 1
    if isinstance(transform, DayTransform):
        return (date(value.year, value.month, value.day) - date(1970, 1, 1)).days
    return (value.replace(tzinfo=None) - EPOCH) // timedelta(hours=1)


_IDENTITIES = [(number, IdentityTransform()) for number in (2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 21)]
_BUCKETS = [(number, BucketTransform(5)) for number in (1, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 21)]
_TRUNCATES = [(number, TruncateTransform(3)) for number in (1, 3, 10, 13, 14, 21)]
_TIMES = [(6, YearTransform()), (6, MonthTransform()), (6, DayTransform())] + [
    (number, transform) for number in (8, 9) for transform in (YearTransform(), MonthTransform(), DayTransform(), HourTransform())
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "transform"),
    [*_IDENTITIES, *_BUCKETS, *_TRUNCATES, *_TIMES, (10, VoidTransform())],
    ids=lambda each: str(each),
)
def test_every_row_is_in_its_partition(catalog: Catalog, source: int, transform: Transform[Any, Any]) -> None:
    table = _table(catalog, EVERYTHING, _spec((source, transform)))
    rows = _everything(30)
    name = EVERYTHING.find_column_name(source)
    assert name is not None
    whose = {row["id"]: _of_row(row, name) for row in rows.to_pylist()}
    files = write_files(TableShape.of(table), rows, ORIGIN)
    seen: list[int] = []
    for each in files:
        ids = pq.read_table(_local(each.file_path), columns=["id"])["id"].to_pylist()
        assert {_expected(transform, whose[number]) for number in ids} == {each.partition[0]}
        assert each.spec_id == table.spec().spec_id
        seen += ids
    assert sorted(seen) == list(range(30))
    assert len({repr(each.partition) for each in files}) == len(files)
    assert _append(table, files).scan().to_arrow().num_rows == 30


def _of_row(row: dict[str, Any], name: str) -> Any:
    for part in name.split("."):
        row = row[part] if row is not None else None  # type: ignore[assignment]
    return row


def test_hashes_of_the_specification() -> None:
    """The values that Iceberg's specification gives for its bucket hash."""
    assert _murmur(34) == 2017239379
    assert _murmur(Decimal("14.20")) == -500754589
    assert _murmur(date(2017, 11, 16)) == -653330422
    assert _murmur(clock(22, 31, 8)) == -662762989
    assert _murmur(datetime(2017, 11, 16, 22, 31, 8)) == -2047944441
    assert _murmur("iceberg") == 1210000089
    assert _murmur(uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes) == 1488055340
    assert _murmur(bytes([0, 1, 2, 3])) == -188683207


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(st.none(), st.datetimes()), min_size=1))
def test_times_before_and_after_the_epoch(times: list[datetime | None]) -> None:
    schema = Schema(_optional(1, "at", TimestampType()))
    rows = pa.table({"at": pa.array(times, pa.timestamp("us"))})
    for transform in (YearTransform(), MonthTransform(), DayTransform(), HourTransform()):
        values = partition_values(PartitionField(1, 1000, transform, "p"), schema, rows).to_pylist()
        assert values == [_expected(transform, each) for each in times]


def test_several_fields_also_of_one_source(catalog: Catalog) -> None:
    fields = (
        (2, IdentityTransform()),
        (2, VoidTransform()),
        (1, BucketTransform(4)),
        (1, TruncateTransform(100)),
        (3, MonthTransform()),
    )
    table = _table(catalog, EVENTS, _spec(*fields))
    rows = _events(200)
    whose = {row["id"]: row for row in rows.to_pylist()}
    names = {1: "id", 2: "user", 3: "at"}
    files = write_files(TableShape.of(table), rows, ORIGIN)
    for each in files:
        for number in pq.read_table(_local(each.file_path), columns=["id"])["id"].to_pylist():
            expected = [_expected(transform, whose[number][names[source]]) for source, transform in fields]
            assert each.partition._data == expected
    assert sum(each.record_count for each in files) == 200
    assert len({repr(each.partition) for each in files}) == len(files)


def test_order_within_a_partition_stays(catalog: Catalog) -> None:
    table = _table(catalog, EVENTS, _spec((2, IdentityTransform())))
    for each in write_files(TableShape.of(table), _events(500), ORIGIN):
        offsets = pq.read_table(_local(each.file_path))["_offset"].to_pylist()
        assert offsets == sorted(offsets)


def test_filters_skip_files(catalog: Catalog) -> None:
    table = _table(catalog, EVENTS, _spec((2, IdentityTransform())))
    rows = _events(1_000)
    table = _append(table, write_files(TableShape.of(table), rows, ORIGIN))
    assert len(list(table.scan().plan_files())) == 51
    for condition, wanted in (("user = 'user-7'", "user-7"), ("user is null", None)):
        planned = list(table.scan(condition).plan_files())
        assert [task.file.partition[0] for task in planned] == [wanted]
        expected = [row for row in rows.to_pylist() if row["user"] == wanted]
        assert table.scan(condition).to_arrow().num_rows == len(expected)


def test_bounds_skip_files(catalog: Catalog) -> None:
    table = _table(catalog, EVENTS)
    shape = TableShape.of(table)
    rows = _events(1_000)
    for start in (0, 250, 500, 750):
        table = _append(table, write_files(shape, rows.slice(start, 250), ORIGIN))
    (only,) = table.scan("_offset = 400").plan_files()
    assert pq.read_table(_local(only.file.file_path))["_offset"].to_pylist() == list(range(350, 600))


def test_many_partitions_take_one_pass(catalog: Catalog) -> None:
    """About 0.7 s here; filtering all rows once for every partition takes several times as long."""
    table = _table(catalog, EVENTS, _spec((1, BucketTransform(500))))
    count = 200_000
    rows = pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "_topic": pa.array(["orders"] * count).dictionary_encode(),
            "_offset": pa.array(range(count), pa.int64()),
        }
    )
    shape = TableShape.of(table)
    start = time.process_time()
    files = write_files(shape, rows, ORIGIN)
    spent = time.process_time() - start
    assert len(files) == 500
    assert sum(each.record_count for each in files) == count
    assert spent < 8


def test_credentials_that_change_leave_no_connections_behind(catalog: Catalog) -> None:
    """A catalog may hand out others with every load of a table. Each storage that is kept has connections of its own."""
    table = _table(catalog, EVENTS)
    shape, rows = TableShape.of(table), _events(1)
    for number in range(100):
        write_files(replace(shape, io=(*shape.io, ("s3.session-token", str(number)))), rows, ORIGIN)
    gc.collect()
    assert sum(isinstance(each, PyArrowFileIO) for each in gc.get_objects()) < 50


# Files without partition values in a partitioned table.


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_partitioned_table_takes_files_without_partitions(catalog: Catalog, version: str) -> None:
    spec = _spec((2, IdentityTransform()))
    table = catalog.create_table("db.t", EVENTS, partition_spec=spec, properties={"format-version": version})
    rows = _events(400)
    with pytest.raises(TableUnfit, match="needs a partition spec without fields"):
        TableShape.of(table, unpartitioned=True)
    updates = ensure_unpartitioned_spec(table)
    catalog.commit_table(table, (), updates)
    table = catalog.load_table("db.t")
    assert table.spec().fields[0].transform == IdentityTransform()
    assert ensure_unpartitioned_spec(table) == ()
    (data_file,) = write_files(TableShape.of(table, unpartitioned=True), rows, ORIGIN)
    assert data_file.spec_id == 1
    assert "p0=" not in data_file.file_path
    table = _append_with_spec(catalog, table, (data_file,), 1)
    table = _append(table, write_files(TableShape.of(table), rows, ORIGIN))
    assert _multiset(table.scan().to_arrow(), rows.column_names) == _multiset(
        pa.concat_tables([rows, rows]), rows.column_names
    )
    expected = 2 * len([row for row in rows.to_pylist() if row["user"] == "user-7"])
    assert table.scan("user = 'user-7'").to_arrow().num_rows == expected


def _append_with_spec(catalog: Catalog, table: Table, files: tuple[DataFile, ...], spec_id: int) -> Table:
    """PyIceberg's own append knows the default spec only."""
    before = table.spec().spec_id
    catalog.commit_table(table, (), (SetDefaultSpecUpdate(spec_id=spec_id),))
    _append(table.refresh(), files)
    catalog.commit_table(table, (), (SetDefaultSpecUpdate(spec_id=before),))
    return table.refresh()


def test_an_unpartitioned_table_needs_nothing(catalog: Catalog) -> None:
    table = _table(catalog, EVENTS)
    assert ensure_unpartitioned_spec(table) == ()
    assert TableShape.of(table, unpartitioned=True) == TableShape.of(table)


# Travelling between processes.


def test_another_process_writes_and_this_one_commits(catalog: Catalog) -> None:
    table = _table(catalog, EVERYTHING, _spec((11, IdentityTransform()), (8, DayTransform())))
    rows = _everything(40)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        files = pool.submit(write_files, TableShape.of(table), rows, ORIGIN).result(timeout=120)
    assert {each.spec_id for each in files} == {0}
    again = pickle.loads(pickle.dumps(files))
    assert [each._data for each in again] == [each._data for each in files]
    table = _append(table, files)
    assert _multiset(table.scan().to_arrow(), rows.column_names) == _multiset(rows, rows.column_names)


def test_a_shape_shows_no_secret_and_does_not_grow(catalog: Catalog) -> None:
    table = _table(catalog, EVENTS)
    table.io.properties["s3.secret-access-key"] = "hunter2"
    shape = TableShape.of(table)
    assert "hunter2" not in repr(shape)
    assert dict(shape.io)["s3.secret-access-key"] == "hunter2"
    files = write_files(shape, _events(10), ORIGIN)
    with table.transaction() as transaction:
        transaction.set_properties({"landonce.orders.main": "changes with every commit"})
    table = _append(catalog.load_table(table.name()), files)
    table.io.properties["s3.secret-access-key"] = "hunter2"
    assert TableShape.of(table) == shape


# What is refused.


def test_what_needs_sparks_writer(catalog: Catalog) -> None:
    assert why_spark(_table(catalog, EVENTS)) == ""
    for properties, reason in (
        ({"write.format.default": "orc"}, "files are orc"),
        ({"write.format.default": "avro"}, "files are avro"),
        ({"write.parquet.compression-codec": "lzo"}, "lzo"),
        ({"write.parquet.bloom-filter-enabled.column.id": "true"}, "Bloom"),
        ({"write.location-provider.impl": "com.example.Mine"}, "write.location-provider.impl"),
        ({"write.metadata.metrics.default": "some"}, "write.metadata.metrics"),
    ):
        table = catalog.create_table(f"db.t{uuid.uuid4().hex[:8]}", EVENTS, properties=properties)
        assert reason in why_spark(table)
        with pytest.raises(TableUnfit, match=r"workers cannot write"):
            TableShape.of(table)
    order = SortOrder(SortField(1, IdentityTransform()))
    assert "sort order" in why_spark(catalog.create_table("db.sorted", EVENTS, sort_order=order))
    assert "version is 3" in why_spark(_as_version_3(_table(catalog, EVENTS)))


def _as_version_3(table: Table) -> Table:
    """PyIceberg reads such tables, and makes none."""
    metadata = {**json.loads(table.metadata.model_dump_json()), "format-version": 3, "next-row-id": 0}
    return Table(table.name(), TableMetadataUtil.parse_obj(metadata), table.metadata_location, table.io, table.catalog)


def test_nulls_that_pyiceberg_cannot_record(catalog: Catalog) -> None:
    """It takes a partition value for required when its source is, and fails at the commit."""
    void = _table(catalog, EVENTS, _spec((1, VoidTransform())))
    assert "required" in why_spark(void)
    assert why_spark(void, unpartitioned=True) == ""
    place = StructType(NestedField(2, "city", StringType(), required=True))
    nested = _table(catalog, Schema(_optional(1, "place", place)), _spec((2, IdentityTransform())))
    assert "required" in why_spark(nested)
    always = Schema(NestedField(1, "place", place, required=True))
    assert why_spark(_table(catalog, always, _spec((2, IdentityTransform())))) == ""


def test_rows_that_do_not_belong_to_the_table(catalog: Catalog) -> None:
    table = _table(catalog, EVERYTHING)
    shape = TableShape.of(table)
    number = pa.array([1, 2])
    surplus = pa.array([{"city": "Graz", "planet": "Earth"}, None])
    nested = pa.array([{"city": "Graz", "height": "high"}, None])
    for rows, reason in (
        (pa.table({"id": number, "more": number}), "more"),
        (pa.table({"whole": number}), "id is required"),
        (pa.table({"id": pa.array([1, None])}), "id is required"),
        (pa.table({"id": number, "whole": pa.array([1, 2**40])}), "whole cannot hold"),
        (pa.table({"id": number, "place": surplus}), "place that it does not have: planet"),
        (pa.table({"id": number, "place": nested}), "place cannot hold"),
        (pa.table([number, number], names=["id", "id"]), "twice"),
    ):
        with pytest.raises(TableUnfit, match=reason):
            write_files(shape, rows, ORIGIN)
    assert list(Path(_local(table.location())).rglob("*.parquet")) == []


def test_a_required_field_inside_of_a_column(catalog: Catalog) -> None:
    inner = StructType(NestedField(3, "b", StringType(), required=True))
    table = _table(catalog, Schema(_optional(1, "a", inner), _optional(2, "n", LongType())))
    shape = TableShape.of(table)
    kind = pa.struct([("b", pa.string())])
    fine = pa.table({"a": pa.array([{"b": "x"}, None], kind)})
    assert write_files(shape, fine, ORIGIN)[0].record_count == 2
    with pytest.raises(TableUnfit, match="a cannot hold"):
        write_files(shape, pa.table({"a": pa.array([{"b": None}], kind)}), ORIGIN)


def test_an_unreachable_storage_is_named(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    table = _table(catalog, EVENTS, write_data_path=f"file://{tmp_path}/file/data")
    with pytest.raises(TargetUnavailable, match="did not take a file"):
        write_files(TableShape.of(table), _events(5), ORIGIN)
