"""Some columns of one data file, found by field id, batch by batch and in the order of the file.

Parquet and ORC are read by Arrow, Avro by PyIceberg's reader of manifests, row by row and so more slowly. A missing
column is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping

Positions = npt.NDArray[np.int64]

_IDS = (b"PARQUET:field_id", b"iceberg.id")
_AVRO_ROWS = 50_000
_NONE: Positions = np.empty(0, np.int64)


@dataclass(frozen=True)
class Columns:
    """Which columns are read."""

    schema: Schema
    """Top-level columns only, with the field ids of the table."""
    names: NameMapping | None = None
    """For files without field ids."""

    def of(self, io: FileIO, file: DataFile, deleted: Positions = _NONE) -> Iterator[pa.RecordBatch]:
        """The rows of a file without those at the `deleted` positions, which are in order."""
        read = self._avro if file.file_format == FileFormat.AVRO else self._arrow
        at = 0
        for batch in read(io, file):
            low, high = np.searchsorted(deleted, (at, at + batch.num_rows))
            keep = np.ones(batch.num_rows, np.bool_)
            keep[deleted[low:high] - at] = False
            at += batch.num_rows
            yield batch.filter(pa.array(keep)) if low < high else batch
        if at != file.record_count:
            raise ValueError(f"it holds {at} rows, and the table's metadata say {file.record_count}")

    def _arrow(self, io: FileIO, file: DataFile) -> Iterator[pa.RecordBatch]:
        wanted = schema_to_pyarrow(self.schema, include_field_ids=False)
        with io.new_input(file.file_path).open() as stream:
            form = ds.OrcFileFormat() if file.file_format == FileFormat.ORC else ds.ParquetFileFormat()
            fragment = form.make_fragment(stream)
            there = by_id(fragment.physical_schema, self.names)
            found = {each.name: there[each.field_id] for each in self.schema.fields if each.field_id in there}
            scanner = ds.Scanner.from_fragment(
                fragment, schema=fragment.physical_schema, columns=list(found.values()), batch_readahead=2
            )
            for batch in scanner.to_batches():
                yield _shaped(batch, wanted, found)

    def _avro(self, io: FileIO, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Reads whole records: PyIceberg's reader loses its place in a file if it must skip some kinds of columns."""
        wanted = schema_to_pyarrow(self.schema, include_field_ids=False)
        with AvroFile[Any](io.new_input(file.file_path)) as records:
            places = {each.field_id: at for at, each in enumerate(records.schema.fields)}
            at = [places.get(each.field_id) for each in self.schema.fields]
            once = (each for each in records)  # its own iterator fails if it is called again at its end
            while rows := list(islice(once, _AVRO_ROWS)):
                columns = [None if place is None else [row[place] for row in rows] for place in at]
                yield _turned(columns, wanted, len(rows))


def field_id(field: pa.Field) -> int | None:
    """The field id of a column, or of something inside it, in the file."""
    number = next((field.metadata[key] for key in _IDS if field.metadata and key in field.metadata), None)
    return int(number) if number is not None else None


def by_id(physical: pa.Schema, names: NameMapping | None) -> dict[int, str]:
    """The names of the columns in the file."""
    found = {number: each.name for each in physical if (number := field_id(each)) is not None}
    if not found and names is not None:
        mapped = {name: entry.field_id for entry in names.root for name in entry.names if entry.field_id is not None}
        found = {mapped[each.name]: each.name for each in physical if each.name in mapped}
    return found


def _shaped(batch: pa.RecordBatch, wanted: pa.Schema, found: Mapping[str, str]) -> pa.RecordBatch:
    columns = [
        batch.column(found[each.name]).cast(each.type) if each.name in found else pa.nulls(batch.num_rows, each.type)
        for each in wanted
    ]
    return pa.RecordBatch.from_arrays(columns, names=wanted.names)


def _turned(columns: list[list[Any] | None], wanted: pa.Schema, rows: int) -> pa.RecordBatch:
    arrays = [
        pa.nulls(rows, field.type) if values is None else pa.array(values, field.type)
        for values, field in zip(columns, wanted, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=wanted.names)
