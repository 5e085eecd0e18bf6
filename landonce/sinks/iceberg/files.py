"""Files that workers write: a table's own data files and equality deletes, and rows that wait for Spark's own writer.

A file is written once, under a new name that says which pipeline, epoch, batch and block wrote it. It becomes part of the table
only when the driver commits it. A task that dies or runs twice leaves orphans, which `maintain` can tell from files in flight.

Rows for Spark's writer are plain Parquet files in a folder of the table; a MERGE or INSERT reads them, and they are never part of
the table. The driver removes them once their batch is committed, and `maintain` removes what a kill left.

Two things decide how fast data files are written. Arrow's dictionary encoder hashes every value, and gives up only when the
dictionary is full: columns whose values hardly repeat are written plainly, which also makes smaller files. And rows are sorted by
partition once, see `partitions`. The encodings are those that every reader of Iceberg knows; the delta encodings are smaller and
faster still, but vectorized readers of older releases refuse them.

The statistics of a file are read off the Parquet footer that was just written. Bounds must cover every value of the file, or readers skip
rows. So they are made of the footer's raw values, without a detour through Python's dates, and are left out if a row group does not state
its own: Parquet leaves out those of long strings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote_plus, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    StatisticsCollector,
    compute_statistics_plan,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey, PartitionSpec
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import Table
from pyiceberg.table import TableProperties as Named
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, DoubleType, FloatType, PrimitiveType, StringType

from landonce.errors import TableUnfit
from landonce.read.schema.fields import is_uuid
from landonce.sinks.iceberg.partitions import Path, at_path, by_partition, path_of
from landonce.sinks.iceberg.storage import not_written
from landonce.sinks.iceberg.table import TableShape, whole_number
from landonce.sinks.snapshot import Origin

_SAMPLE = 2_000
_REPEATS = 4  # a dictionary pays if a value is in this many rows, on average
_FULL = 0.75  # of the target size: what is left is not worth a row group
_LONGEST = 160  # of a folder's name, quoted; a disk takes 255, a bucket 1024 for the whole path
_LEVELLED = ("zstd", "gzip", "brotli")
FOLDER = "landonce-staged"
Plan = tuple[StatisticsCollector, ...]
"""Which statistics each column gets, by `write.metadata.metrics.*`, in the order of a Parquet file's columns."""
_UNCASTABLE = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)
_BYTES, _TEXT, _HYPHENS = 16, 36, (8, 13, 18, 23)
_LAST_CHARACTER = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True)
class _Target:
    """What a worker derives from a shape, once."""

    name: str
    schema: Schema
    arrow: pa.Schema
    nested: tuple[str, ...]
    """Parquet's paths of nested columns."""
    plan: Plan
    floats: tuple[tuple[int, Path], ...]
    """The columns that may hold NaN, and where they are, without those inside lists and maps."""
    spec: PartitionSpec
    locations: LocationProvider
    options: dict[str, Any]
    """Of the Parquet writer."""
    file_bytes: int
    group_bytes: int
    group_rows: int


@dataclass(frozen=True)
class _Key(PartitionKey):
    """A partition, for the location provider."""

    record: Record = field(default_factory=Record)

    def to_path(self) -> str:
        """Shortens the folders' names, since storages limit them. Readers take a partition's value from the manifest, never from here."""
        try:
            path = self.partition_spec.partition_to_path(self.record, self.schema)
        except (OverflowError, ValueError):  # a year that Python's dates do not reach
            named = zip(self.partition_spec.fields, self.record._data, strict=True)
            path = "/".join(f"{quote_plus(each.name)}={quote_plus(str(value))}" for each, value in named)
        return "/".join(
            folder
            if len(folder) <= _LONGEST
            else f"{folder[: _LONGEST - 33]}-{hashlib.sha256(folder.encode()).hexdigest()[:32]}"
            for folder in path.split("/")
        )


def write_files(
    shape: TableShape, rows: pa.Table, origin: Origin, equality: tuple[int, ...] = ()
) -> tuple[DataFile, ...]:
    """Writes all the rows, and returns the files that hold them: as many for each partition as the target size asks for. Columns are
    matched by name. `equality`: the rows are equality deletes, by the columns with these field ids."""
    if rows.num_rows == 0:
        return ()
    target, io = _target(replace(shape, io=())), _storage(shape.io, urlsplit(shape.location).scheme)
    table = _arranged(rows, target)
    options = {**target.options, "use_dictionary": [*target.nested, *_repeating(table)]}
    files: list[DataFile] = []
    try:
        for record, part in by_partition(target.spec, target.schema, table):
            start = 0
            while start < part.num_rows:
                files.append(_write_one(target, io, record, part.slice(start), origin, options, equality))
                start += files[-1].record_count
    except pa.ArrowInvalid:
        raise TableUnfit(f"{target.name}: a row does not fit its schema.", safe="Nothing was committed.") from None
    except OSError as error:
        raise not_written(error, target.name) from None
    return tuple(files)


@lru_cache(maxsize=32)
def _storage(io: tuple[tuple[str, str], ...], scheme: str) -> FileIO:
    """One for all tables with the same properties. Few are kept, since each has connections of its own, and a catalog that hands out
    temporary credentials does so whenever a table is loaded."""
    return load_file_io(dict(io), f"{scheme}:")


@lru_cache(maxsize=512)
def _target(shape: TableShape) -> _Target:
    schema, properties = Schema.model_validate_json(shape.schema), dict(shape.properties)

    number = partial(whole_number, properties)
    codec = properties.get(Named.PARQUET_COMPRESSION, Named.PARQUET_COMPRESSION_DEFAULT).lower()
    options: dict[str, Any] = {
        "compression": "none" if codec == "uncompressed" else codec,
        "data_page_size": number(Named.PARQUET_PAGE_SIZE_BYTES, Named.PARQUET_PAGE_SIZE_BYTES_DEFAULT),
        "dictionary_pagesize_limit": number(Named.PARQUET_DICT_SIZE_BYTES, Named.PARQUET_DICT_SIZE_BYTES_DEFAULT),
        "write_batch_size": number(Named.PARQUET_PAGE_ROW_LIMIT, Named.PARQUET_PAGE_ROW_LIMIT_DEFAULT),
        "store_decimal_as_integer": True,
        "store_schema": False,
    }
    if Named.PARQUET_COMPRESSION_LEVEL in properties and codec in _LEVELLED:
        options["compression_level"] = number(Named.PARQUET_COMPRESSION_LEVEL, 0)
    clean = sanitize_column_names(schema)
    plan = tuple(compute_statistics_plan(schema, properties).values())
    counted = [
        each.field_id
        for each in plan
        if each.mode.type is not MetricModeTypes.NONE and isinstance(each.iceberg_type, FloatType | DoubleType)
    ]
    return _Target(
        name=shape.name,
        schema=schema,
        arrow=pa.schema([_narrow(each) for each in schema_to_pyarrow(clean)]),
        nested=tuple(path for path in parquet_path_to_id_mapping(clean) if "." in path),
        plan=plan,
        floats=tuple((each, path) for each in counted if (path := path_of(schema, each)) is not None),
        spec=PartitionSpec.model_validate_json(shape.spec),
        locations=load_location_provider(shape.location, properties),
        options=options,
        file_bytes=number(Named.WRITE_TARGET_FILE_SIZE_BYTES, Named.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT),
        group_bytes=number(Named.PARQUET_ROW_GROUP_SIZE_BYTES, Named.PARQUET_ROW_GROUP_SIZE_BYTES_DEFAULT),
        group_rows=number(Named.PARQUET_ROW_GROUP_LIMIT, Named.PARQUET_ROW_GROUP_LIMIT_DEFAULT),
    )


def _narrow(column: pa.Field) -> pa.Field:
    """With 32-bit offsets, as a block's rows have them."""
    kind = column.type
    if pt.is_large_string(kind):
        kind = pa.string()
    elif pt.is_large_binary(kind):
        kind = pa.binary()
    elif pt.is_large_list(kind):
        kind = pa.list_(_narrow(kind.value_field))
    elif pt.is_map(kind):
        kind = pa.map_(_narrow(kind.key_field), _narrow(kind.item_field))
    elif pt.is_struct(kind):
        kind = pa.struct([_narrow(each) for each in kind])
    return column.with_type(kind)


def _arranged(rows: pa.Table, target: _Target) -> pa.Table:
    """The rows as the table's files hold them: its columns in its order, in its types, with its field ids. A missing column is null."""
    names = [each.name for each in target.schema.fields]
    strange = sorted(set(rows.column_names) - set(names))
    if strange or len(set(rows.column_names)) < rows.num_columns:
        what = f"the rows have a column that it does not have, or have one twice: {', '.join(strange)}"
        raise _unfit(target.name, what)
    columns, fields = [], []
    for name, wanted in zip(names, target.arrow, strict=True):
        if name in rows.column_names:
            column = _fitted(rows.column(name), wanted.type, name, target.name)
        else:
            column = pa.chunked_array([pa.nulls(rows.num_rows, wanted.type)])
        if column.null_count and not wanted.nullable:
            raise _unfit(target.name, f"its column {name} is required, and a row has no value for it")
        columns.append(column)
        fields.append(wanted.with_type(column.type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _fitted(column: pa.ChunkedArray, wanted: pa.DataType, name: str, table: str) -> pa.ChunkedArray:
    """The column in the table's type, without loss. A dictionary of strings stays one: Parquet takes its indices as they are."""
    if column.type.equals(wanted, check_metadata=True):
        return column
    if pt.is_dictionary(column.type):
        if column.type.value_type == wanted and (pt.is_string(wanted) or pt.is_binary(wanted)):
            return column
        column = column.cast(column.type.value_type)
    surplus = _surplus(column.type, wanted)
    if surplus:
        raise _unfit(table, f"the rows have a field in {name} that it does not have: {surplus}")
    try:
        return column.cast(wanted)
    except _UNCASTABLE:
        raise _unfit(table, f"its column {name} cannot hold every value of the rows as {wanted}") from None


def _surplus(given: pa.DataType, wanted: pa.DataType) -> str:
    """A field inside a column that a cast would drop silently; empty if there is none."""
    if pt.is_struct(given) and pt.is_struct(wanted):
        for each in given:
            at = wanted.get_field_index(each.name)
            inner = _surplus(each.type, wanted.field(at).type) if at >= 0 else each.name
            if inner:
                return inner
    if pt.is_map(given) and pt.is_map(wanted):
        return _surplus(given.key_type, wanted.key_type) or _surplus(given.item_type, wanted.item_type)
    if _is_list(given) and _is_list(wanted):
        return _surplus(given.value_type, wanted.value_type)
    return ""


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _unfit(table: str, what: str) -> TableUnfit:
    return TableUnfit(f"{table}: {what}.", safe="Nothing of this block was committed.")


def _repeating(rows: pa.Table) -> Iterator[str]:
    """The columns for which a dictionary pays, estimated from a sample of the rows.

    Of `sampled` values drawn out of `n` equally frequent ones, about `sampled² / 2n` are there already.
    """
    count = rows.num_rows
    sample = rows
    if count > _SAMPLE:
        sample = rows.take(pa.array(np.sort(np.random.default_rng(count).integers(0, count, _SAMPLE))))
    for name, column in zip(sample.column_names, sample.columns, strict=True):
        if pt.is_nested(column.type) or pt.is_boolean(column.type):
            continue
        if pt.is_dictionary(column.type):
            yield name
            continue
        storage = column.cast(pa.binary(16)) if isinstance(column.type, pa.UuidType) else column
        distinct = pc.count_distinct(storage, mode="all").as_py()
        again = len(column) - distinct
        estimated = max(float(distinct), len(column) ** 2 / (2 * again)) if again else float("inf")
        if estimated * _REPEATS <= count:
            yield name


def _write_one(
    target: _Target,
    io: FileIO,
    record: Record,
    rows: pa.Table,
    origin: Origin,
    options: dict[str, Any],
    equality: tuple[int, ...],
) -> DataFile:
    """Writes as many of the first rows of a partition as make a file of the target size. The first row group shows how well they
    compress."""
    void = all(isinstance(each.transform, VoidTransform) for each in target.spec.fields)
    key = None if void else _Key(field_values=[], partition_spec=target.spec, schema=target.schema, record=record)
    path = target.locations.new_data_location(origin.file_name(), key)
    written, weight = 0, max(1.0, rows.nbytes / rows.num_rows)
    group = min(target.group_rows, int(target.group_bytes / weight))
    with io.new_output(path).create(overwrite=True) as stream:
        sink = stream if isinstance(stream, pa.NativeFile) else pa.PythonFile(stream, mode="w")
        with pq.ParquetWriter(sink, rows.schema, **options) as writer:
            while not written or (written < rows.num_rows and sink.tell() < _FULL * target.file_bytes):
                per_row = sink.tell() / written if written else weight
                count = max(1, min(group, int((target.file_bytes - sink.tell()) / per_row)))
                writer.write_table(rows.slice(written, count), row_group_size=count)
                written = min(rows.num_rows, written + count)
        size = sink.tell()
    held = rows.slice(0, written)
    nans = {number: pc.sum(pc.is_nan(at_path(held, where))).as_py() or 0 for number, where in target.floats}
    data_file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES if equality else DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=record,
        file_size_in_bytes=size,
        sort_order_id=None,
        equality_ids=list(equality) or None,
        key_metadata=None,
        **measured(writer.writer.metadata, target.plan, nans),
    )
    data_file.spec_id = target.spec.spec_id
    return data_file


def measured(footer: pq.FileMetaData, plan: Plan, nans: dict[int, int]) -> dict[str, Any]:
    """The statistics as `DataFile.from_args` takes them."""
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    sizes, counts, nulls = {}, {}, {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for at, column in enumerate(plan):
        chunks = [group.column(at) for group in groups]
        sizes[column.field_id] = sum(chunk.total_compressed_size for chunk in chunks)
        if column.mode.type is MetricModeTypes.NONE:
            continue
        counts[column.field_id] = sum(chunk.num_values for chunk in chunks)
        statistics = [chunk.statistics for chunk in chunks]
        if not all(each is not None and each.has_null_count for each in statistics):
            continue
        nulls[column.field_id] = sum(each.null_count for each in statistics)
        if column.mode.type is not MetricModeTypes.COUNTS:
            least, most = _bounds(column, statistics)
            if least is not None:
                lower[column.field_id] = least
            if most is not None:
                upper[column.field_id] = most
    firsts = [group.column(0) for group in groups]
    return {
        "record_count": footer.num_rows,
        "column_sizes": sizes,
        "value_counts": counts,
        "null_value_counts": nulls,
        "nan_value_counts": nans,
        "lower_bounds": lower,
        "upper_bounds": upper,
        "split_offsets": sorted(
            min(each.data_page_offset, each.dictionary_page_offset)
            if each.has_dictionary_page
            else each.data_page_offset
            for each in firsts
        ),
    }


def _bounds(column: StatisticsCollector, statistics: list[Any]) -> tuple[bytes | None, bytes | None]:
    """The lowest and the highest value. None if a row group with values does not state them; a group of floats that are all NaN has none."""
    kind, length = column.iceberg_type, column.mode.length
    stated = [each for each in statistics if each.has_min_max]
    silent = [each for each in statistics if not each.has_min_max and each.num_values]
    if not stated or any(each.physical_type not in ("FLOAT", "DOUBLE") for each in silent):
        return None, None
    lows, highs = [each.min_raw for each in stated], [each.max_raw for each in stated]
    if isinstance(kind, DecimalType):
        lows, highs = (
            [int.from_bytes(each, "big", signed=True) if isinstance(each, bytes) else each for each in some]
            for some in (lows, highs)
        )
    least, most = min(lows), max(highs)
    if length is None:
        return _encoded(kind, least), _encoded(kind, most)
    if isinstance(kind, StringType):
        return bytes(least).decode()[:length].encode(), _text_above(bytes(most).decode(), length)
    return bytes(least)[:length], _bytes_above(bytes(most), length)


def _encoded(kind: PrimitiveType, value: Any) -> bytes:
    """Iceberg's single-value serialization."""
    if isinstance(kind, DecimalType):
        width = ((value if value >= 0 else ~value).bit_length() + 8) // 8
        return int(value).to_bytes(width, "big", signed=True)
    return bytes(value) if isinstance(value, bytes) else to_bytes(kind, value)


def _text_above(text: str, length: int) -> bytes | None:
    """The text itself if it is short, else the lowest text of that length above everything that begins like it."""
    if len(text) <= length:
        return text.encode()
    for at in reversed(range(length)):
        above = ord(text[at]) + 1
        above = _SURROGATES.stop if above in _SURROGATES else above
        if above <= _LAST_CHARACTER:
            return (text[:at] + chr(above)).encode()
    return None


def _bytes_above(value: bytes, length: int) -> bytes | None:
    if len(value) <= length:
        return value
    kept = value[:length].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


@dataclass(frozen=True)
class StagedFile:
    """Rows that wait for Spark, and how many there are."""

    path: str
    rows: int


WrittenFile = DataFile | StagedFile
"""What a worker returns of a table."""


@dataclass(frozen=True)
class SparkScratch:
    """The folder in which a table's rows wait for Spark. Picklable."""

    folder: str
    io: tuple[tuple[str, str], ...] = field(repr=False)
    """What opens the storage: it may hold credentials."""

    @staticmethod
    def of(table: Table) -> SparkScratch:
        return SparkScratch(f"{table.location().rstrip('/')}/{FOLDER}", tuple(sorted(table.io.properties.items())))

    def write(self, rows: pa.Table, origin: Origin) -> StagedFile:
        """Writes one file with all the rows. The count is that of its footer."""
        path = f"{self.folder}/{origin.file_name()}"
        footers: list[pq.FileMetaData] = []
        try:
            with self._open().new_output(path).create() as stream:
                pq.write_table(plain(rows), stream, compression="lz4", metadata_collector=footers)
        except OSError as error:
            raise not_written(error) from None
        return StagedFile(path, sum(each.num_rows for each in footers))

    def remove(self, files: Iterable[StagedFile]) -> None:
        """Removes files. One that cannot be removed is left for `maintain`."""
        io = self._open()
        for each in files:
            try:
                io.delete(each.path)
            except OSError:
                continue

    def _open(self) -> FileIO:
        return load_file_io(dict(self.io), self.folder)


def plain(rows: pa.Table) -> pa.Table:
    """The same rows with every uuid as text, nested ones too, as Spark reads them."""
    for at, column in enumerate(rows.schema):
        if _holds_uuid(column.type):
            chunks = rows.column(at).chunks or [pa.nulls(0, column.type)]
            rows = rows.set_column(at, column.name, pa.chunked_array([_plain(chunk) for chunk in chunks]))
    return rows


def _holds_uuid(type_: pa.DataType) -> bool:
    return is_uuid(type_) or any(_holds_uuid(type_.field(at).type) for at in range(type_.num_fields))


def _plain(array: pa.Array) -> pa.Array:
    type_ = array.type
    if not _holds_uuid(type_):
        return array
    if is_uuid(type_):
        return _texts(array.storage)
    if array.offset:
        array = array.take(pa.array(np.arange(len(array))))  # lists with nulls cannot be rebuilt from a slice
    mask = array.is_null() if array.null_count else None
    if pt.is_struct(type_):
        names = [child.name for child in type_]
        return pa.StructArray.from_arrays([_plain(array.field(at)) for at in range(len(names))], names, mask=mask)
    if pt.is_list(type_):
        return pa.ListArray.from_arrays(array.offsets, _plain(array.values), mask=mask)
    return pa.MapArray.from_arrays(array.offsets, _plain(array.keys), _plain(array.items), mask=mask)


def _texts(storage: pa.FixedSizeBinaryArray) -> pa.Array:
    """`00112233-4455-…` for every 16 bytes."""
    count = len(storage)
    raw = memoryview(storage.buffers()[1])[storage.offset * _BYTES : (storage.offset + count) * _BYTES]
    text = np.full((count, _TEXT), ord("-"), dtype=np.uint8)
    digits = np.frombuffer(raw.hex().encode(), np.uint8).reshape(count, 2 * _BYTES)
    text[:, [at for at in range(_TEXT) if at not in _HYPHENS]] = digits
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_TEXT), count, [None, pa.py_buffer(text.tobytes())])
    texts = fixed.cast(pa.binary()).cast(pa.string())
    return pc.if_else(storage.is_valid(), texts, None) if storage.null_count else texts
