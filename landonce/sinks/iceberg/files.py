"""Files that workers write: a table's own data files, and rows that wait for Spark's own writer.

A file is written once, under a new name that says which pipeline, epoch, batch and block wrote it. It becomes part of the table
only when the driver commits it. A task that dies or runs twice leaves orphans, which `maintain` can tell from files in flight.

Rows for Spark's writer are plain Parquet files in a folder of the table; a MERGE or INSERT reads them, and they are never part of
the table. The driver removes them once their batch is committed, and `maintain` removes what a kill left.

Two things decide how fast data files are written. Arrow's dictionary encoder hashes every value, and gives up only when the
dictionary is full: columns whose values hardly repeat are written plainly, which also makes smaller files. And rows are sorted by
partition once, see `partitions`. The encodings are those that every reader of Iceberg knows; the delta encodings are smaller and
faster still, but vectorized readers of older releases refuse them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import quote_plus

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import parquet_path_to_id_mapping
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey, PartitionSpec
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import Table
from pyiceberg.table import TableProperties as Named
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record

from landonce.config.secrets import redact
from landonce.errors import TableUnfit, TargetRefused, TargetUnavailable
from landonce.sinks.iceberg.arrow import (
    Path,
    Plan,
    arranged,
    arrow_schema,
    count_nans,
    floats_of,
    measured,
    plain,
    plan_of,
)
from landonce.sinks.iceberg.partitions import by_partition
from landonce.sinks.iceberg.table import TableShape
from landonce.sinks.snapshot import Origin

_SAMPLE = 2_000
_REPEATS = 4  # a dictionary pays if a value stands in this many rows, on average
_FULL = 0.75  # of the target size: what is left is not worth a row group
_LONGEST = 160  # of a folder's name, quoted; a disk takes 255, a bucket 1024 for the whole path
_LEVELLED = ("zstd", "gzip", "brotli")
FOLDER = "landonce-staged"


@dataclass(frozen=True)
class _Target:
    """What a worker derives from a shape, once."""

    name: str
    schema: Schema
    names: tuple[str, ...]
    arrow: pa.Schema
    nested: tuple[str, ...]
    """Parquet's paths of nested columns."""
    plan: Plan
    floats: tuple[tuple[int, Path], ...]
    spec: PartitionSpec
    locations: LocationProvider
    io: FileIO
    options: dict[str, Any]
    file_bytes: int
    group_bytes: int
    group_rows: int


@dataclass(frozen=True)
class _Key(PartitionKey):
    """A partition, for the location provider."""

    record: Record = field(default_factory=Record)

    def to_path(self) -> str:
        try:
            path = self.partition_spec.partition_to_path(self.record, self.schema)
        except (OverflowError, ValueError):  # a year that Python's dates do not reach
            named = zip(self.partition_spec.fields, self.record._data, strict=True)
            path = "/".join(f"{quote_plus(each.name)}={quote_plus(str(value))}" for each, value in named)
        return "/".join(map(_short, path.split("/")))


def _short(folder: str) -> str:
    """Shortens a folder's name, since storages limit it. Readers take a partition's value from the manifest, never from here."""
    if len(folder) <= _LONGEST:
        return folder
    return f"{folder[: _LONGEST - 33]}-{hashlib.sha256(folder.encode()).hexdigest()[:32]}"


def write_files(shape: TableShape, rows: pa.Table, origin: Origin) -> tuple[DataFile, ...]:
    """Writes all the rows, and returns the files that hold them. Columns are matched by name."""
    if rows.num_rows == 0:
        return ()
    target = _target(shape)
    table = arranged(rows, target.names, target.arrow, target.name)
    options = {**target.options, "use_dictionary": [*target.nested, *_repeating(table)]}
    files: list[DataFile] = []
    try:
        for record, part in by_partition(target.spec, target.schema, table):
            files += _write(target, record, part, origin, options)
    except PermissionError as error:
        raise TargetRefused(f"{target.name}: the storage refused a file: {redact(str(error))}") from None
    except pa.ArrowInvalid:
        raise TableUnfit(f"{target.name}: a row does not fit its schema.", safe="Nothing was committed.") from None
    except OSError as error:
        raise TargetUnavailable(f"{target.name}: the storage did not take a file: {redact(str(error))}") from None
    return tuple(files)


@lru_cache(maxsize=512)
def _target(shape: TableShape) -> _Target:
    schema = Schema.model_validate_json(shape.schema)
    properties = dict(shape.properties)
    clean = sanitize_column_names(schema)
    plan = plan_of(schema, properties)
    return _Target(
        name=shape.name,
        schema=schema,
        names=tuple(each.name for each in schema.fields),
        arrow=arrow_schema(clean),
        nested=tuple(path for path in parquet_path_to_id_mapping(clean) if "." in path),
        plan=plan,
        floats=floats_of(schema, plan),
        spec=PartitionSpec.model_validate_json(shape.spec),
        locations=load_location_provider(shape.location, properties),
        io=load_file_io(dict(shape.io), shape.location),
        options=_options(properties),
        file_bytes=_number(properties, Named.WRITE_TARGET_FILE_SIZE_BYTES, Named.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT),
        group_bytes=_number(properties, Named.PARQUET_ROW_GROUP_SIZE_BYTES, Named.PARQUET_ROW_GROUP_SIZE_BYTES_DEFAULT),
        group_rows=_number(properties, Named.PARQUET_ROW_GROUP_LIMIT, Named.PARQUET_ROW_GROUP_LIMIT_DEFAULT),
    )


def _options(properties: dict[str, str]) -> dict[str, Any]:
    """The Parquet writer's options, by the table's properties."""
    codec = properties.get(Named.PARQUET_COMPRESSION, Named.PARQUET_COMPRESSION_DEFAULT).lower()
    options: dict[str, Any] = {
        "compression": "none" if codec == "uncompressed" else codec,
        "data_page_size": _number(properties, Named.PARQUET_PAGE_SIZE_BYTES, Named.PARQUET_PAGE_SIZE_BYTES_DEFAULT),
        "dictionary_pagesize_limit": _number(
            properties, Named.PARQUET_DICT_SIZE_BYTES, Named.PARQUET_DICT_SIZE_BYTES_DEFAULT
        ),
        "write_batch_size": _number(properties, Named.PARQUET_PAGE_ROW_LIMIT, Named.PARQUET_PAGE_ROW_LIMIT_DEFAULT),
        "store_decimal_as_integer": True,
        "store_schema": False,
    }
    if Named.PARQUET_COMPRESSION_LEVEL in properties and codec in _LEVELLED:
        options["compression_level"] = _number(properties, Named.PARQUET_COMPRESSION_LEVEL, 0)
    return options


def _number(properties: dict[str, str], name: str, default: int) -> int:
    try:
        return int(properties.get(name, default))
    except ValueError:
        raise TableUnfit(
            f"`{name}` is not a whole number: {properties[name]!r}.", safe="Nothing was written."
        ) from None


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
        if pt.is_dictionary(column.type) or _estimated(column) * _REPEATS <= count:
            yield name


def _estimated(sample: pa.ChunkedArray) -> float:
    """How many distinct values the whole column has."""
    storage = sample.cast(pa.binary(16)) if isinstance(sample.type, pa.UuidType) else sample
    distinct = pc.count_distinct(storage, mode="all").as_py()
    again = len(sample) - distinct
    return max(float(distinct), len(sample) ** 2 / (2 * again)) if again else float("inf")


def _write(target: _Target, record: Record, rows: pa.Table, origin: Origin, options: dict[str, Any]) -> list[DataFile]:
    """Writes the rows of one partition, in as many files as the target size asks for."""
    files = []
    start = 0
    while start < rows.num_rows:
        data_file = _write_one(target, record, rows.slice(start), origin, options)
        files.append(data_file)
        start += data_file.record_count
    return files


def _write_one(target: _Target, record: Record, rows: pa.Table, origin: Origin, options: dict[str, Any]) -> DataFile:
    """Writes as many of the first rows as make a file of the target size."""
    path = target.locations.new_data_location(origin.file_name(), _key(target, record))
    with target.io.new_output(path).create(overwrite=True) as stream:
        sink = stream if isinstance(stream, pa.NativeFile) else pa.PythonFile(stream, mode="w")
        with pq.ParquetWriter(sink, rows.schema, **options) as writer:
            written = _fill(target, writer, sink, rows)
        size = sink.tell()
    footer = writer.writer.metadata
    nans = count_nans(target.floats, rows.slice(0, written))
    data_file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=record,
        file_size_in_bytes=size,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **measured(footer, target.plan, nans),
    )
    data_file.spec_id = target.spec.spec_id
    return data_file


def _fill(target: _Target, writer: pq.ParquetWriter, sink: pa.NativeFile, rows: pa.Table) -> int:
    """Writes row groups until the file is full. The first one shows how well the rows compress."""
    written = 0
    weight = max(1.0, rows.nbytes / rows.num_rows)
    group = min(target.group_rows, int(target.group_bytes / weight))
    while not written or (written < rows.num_rows and sink.tell() < _FULL * target.file_bytes):
        per_row = sink.tell() / written if written else weight
        count = max(1, min(group, int((target.file_bytes - sink.tell()) / per_row)))
        writer.write_table(rows.slice(written, count), row_group_size=count)
        written = min(rows.num_rows, written + count)
    return written


def _key(target: _Target, record: Record) -> PartitionKey | None:
    if all(isinstance(each.transform, VoidTransform) for each in target.spec.fields):
        return None
    return _Key(field_values=[], partition_spec=target.spec, schema=target.schema, record=record)


@dataclass(frozen=True)
class StagedFile:
    """Rows that wait for Spark, and how many there are."""

    path: str
    rows: int


WrittenFile = DataFile | StagedFile
"""What a worker returns of a table."""


@dataclass(frozen=True)
class Scratch:
    """The folder in which a table's rows wait for Spark. Picklable."""

    folder: str
    io: tuple[tuple[str, str], ...] = field(repr=False)
    """What opens the storage: it may hold credentials."""

    @staticmethod
    def of(table: Table) -> Scratch:
        return Scratch(f"{table.location().rstrip('/')}/{FOLDER}", tuple(sorted(table.io.properties.items())))

    def write(self, rows: pa.Table, origin: Origin) -> StagedFile:
        """Writes one file with all the rows. The count is that of its footer."""
        path = f"{self.folder}/{origin.file_name()}"
        footers: list[pq.FileMetaData] = []
        try:
            with self._open().new_output(path).create() as stream:
                pq.write_table(plain(rows), stream, compression="lz4", metadata_collector=footers)
        except PermissionError as error:
            raise TargetRefused(
                f"the storage refused a file: {redact(str(error))}",
                safe="Nothing was committed.",
                command="give landonce the right to read and write the warehouse",
            ) from None
        except OSError as error:
            raise TargetUnavailable(f"the storage did not take a file: {redact(str(error))}") from None
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
