"""Rows on their way out: made to fit the table's columns, and written as one Arrow record batch.

One batch, because a batch is what ClickHouse makes a block of. What does not fit exactly is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from landonce.errors import TargetRefused
from landonce.write.clickhouse.columns import Column, sent_type

ROWS = "landonce_rows"
"""What rows on their way are called in a statement."""


def fitted(rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """The columns in the types in which they are sent, as one chunk each."""
    arrays = [_fit(rows.column(each.name), each) for each in columns]
    return pa.table(arrays, names=[each.name for each in columns]).combine_chunks()


def encode(rows: pa.Table, compression: str | None = None) -> pa.Buffer:
    """Arrow's stream format with exactly one record batch."""
    batches = rows.combine_chunks().to_batches()
    if len(batches) != 1:
        raise ValueError(f"{len(batches)} record batches are not one block")
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batches[0])
    return out.getvalue()


def _fit(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    type_ = sent_type(column)
    if values.type != type_:
        try:
            values = values.cast(type_, safe=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _refused(column, f"a value of type {values.type} does not fit: {error}") from error
    if values.null_count and not column.optional:
        raise _refused(column, f"{values.null_count} rows have no value, and the column takes no NULL")
    _within_bounds(values, column)
    return values


def _within_bounds(values: pa.ChunkedArray, column: Column) -> None:
    bounds = column.mapped.bounds
    if bounds is None or pa.types.is_nested(values.type):
        return
    whole = values.cast(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
    least, most = pc.min_max(whole).as_py().values()
    if least is not None and not bounds[0] <= least <= most <= bounds[1]:
        raise _refused(column, "a value lies outside of what the type can hold")


def _refused(column: Column, why: str) -> TargetRefused:
    return TargetRefused(
        f"column {column.name} {column.type}: {why}.",
        safe="Nothing was sent.",
        command="change the column, or select, filter or cast the field in {file}, then start again",
    )
