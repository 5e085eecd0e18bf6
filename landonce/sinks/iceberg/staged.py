"""Rows that wait for Spark, read by Spark's Python workers where Spark's own reader cannot: the JVM knows a bucket only through Iceberg."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyiceberg.io import load_file_io
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

Batches = Iterable[pa.RecordBatch]


def staged_rows(session: SparkSession, files: Sequence[str], io: Mapping[str, str]) -> DataFrame:
    """The rows of these files: one task for each. `io`: what opens the storage."""
    columns = pa.unify_schemas([_columns(path, io) for path in files])
    read = _reading(tuple(files), columns, dict(io))
    tasks = session.range(0, len(files), 1, len(files))
    return tasks.mapInArrow(read, from_arrow_schema(columns, prefer_timestamp_ntz=True))


def _columns(path: str, io: Mapping[str, str]) -> pa.Schema:
    """With plain values, and without what Parquet's writer noted of them."""
    with load_file_io(dict(io), path).new_input(path).open() as source:
        held = pq.read_schema(source)
    plain = ((each.name, each.type.value_type if pt.is_dictionary(each.type) else each.type) for each in held)
    return pa.schema([pa.field(name, kind) for name, kind in plain])


def _reading(
    files: tuple[str, ...], columns: pa.Schema, io: dict[str, str]
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    def read(numbers: Batches) -> Iterator[pa.RecordBatch]:
        for path in (files[at] for batch in numbers for at in batch.column(0).to_pylist()):
            with load_file_io(dict(io), path).new_input(path).open() as source:
                rows = pq.read_table(source)
            found = [
                rows.column(each.name).cast(each.type)
                if each.name in rows.column_names
                else pa.nulls(len(rows), each.type)
                for each in columns
            ]
            yield from pa.table(found, schema=columns).to_batches()

    return read
