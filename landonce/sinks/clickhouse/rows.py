"""Rows on their way out: made to fit the table's columns, and written as Arrow record batches.

One batch, because a batch is what ClickHouse makes a block of. What does not fit exactly is refused by name. ClickHouse takes no more than
128 KiB for the names and types of a table that is sent along, so very many columns travel as several tables, side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from landonce.errors import TargetRefused
from landonce.read.formats.json.columns import fit
from landonce.read.formats.json.values import Fault
from landonce.sinks.clickhouse.address import TableName
from landonce.sinks.clickhouse.columns import Column, sent_type, structure
from landonce.sinks.clickhouse.wire import MOST_BYTES_OF_A_FIELD, Rows
from landonce.sinks.contract import COORDINATES

ROWS = "landonce_rows"
"""What rows on their way are called in a statement; where they are several tables, each has its number behind that."""


def fitted(rows: pa.Table, columns: Sequence[Column], table: TableName) -> pa.Table:
    """The columns in the types in which they are sent, as one chunk each."""
    arrays = [_fit(rows, each, table) for each in columns]
    return pa.table(arrays, names=[each.name for each in columns]).combine_chunks()


def tables_of(rows: pa.Table, columns: Sequence[Column], compression: str | None = None) -> tuple[Rows, ...]:
    """The rows as they are sent: as one table, or side by side as several."""
    return tuple(
        Rows(name, structure(some), encode(rows.select([each.name for each in some]), compression))
        for name, some in _side_by_side(columns)
    )


def rows_in(columns: Sequence[Column]) -> str:
    """What a statement selects from to have these columns, as `tables_of` sends them."""
    return " PASTE JOIN ".join(name for name, _ in _side_by_side(columns))


def encode(rows: pa.Table, compression: str | None = None) -> pa.Buffer:
    """Arrow's stream format with exactly one record batch."""
    batches = rows.combine_chunks().to_batches()
    if len(batches) != 1:
        raise ValueError(f"{len(batches)} record batches are not one block")
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batches[0])
    return out.getvalue()


def _side_by_side(columns: Sequence[Column]) -> list[tuple[str, list[Column]]]:
    groups: list[list[Column]] = [[]]
    size = 0
    for each in columns:
        more = len(structure([each]).encode()) + 2
        if groups[-1] and size + more > MOST_BYTES_OF_A_FIELD:
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += more
    return [(f"{ROWS}_{at}" if at else ROWS, group) for at, group in enumerate(groups)]


def _fit(rows: pa.Table, column: Column, table: TableName) -> pa.Array:
    """What decoders and expressions give fits already, unless the table was altered since: then values are judged again here. Strings are
    not: ClickHouse itself refuses one that an Enum, a UUID, an address or a FixedString cannot be."""
    values = rows.column(column.name).combine_chunks()
    if column.name in COORDINATES:
        return values.cast(sent_type(column))
    absent = values.null_count > 0 and not column.optional
    if absent or values.type != column.mapped.arrow or column.mapped.limited:
        try:
            values, faults = fit(values, column.field())
        except pa.ArrowNotImplementedError:
            raise _refused(table, column, f"values of type {values.type} cannot be made one.") from None
        if faults:
            raise _misfit(table, column, rows, faults[0])
    return values


def _misfit(table: TableName, column: Column, rows: pa.Table, fault: Fault) -> TargetRefused:
    at = int(fault.rows.argmax())
    topic, number, offset = (rows.column(name)[at] for name in COORDINATES)
    return _refused(table, column, f"{topic}[{number}], offset {offset}: {fault.reason(column.name)}.")


def _refused(table: TableName, column: Column, why: str) -> TargetRefused:
    return TargetRefused(
        f"{table}, column {column.name} {column.type}: {why}",
        safe="Nothing of this block was sent.",
        command="change the column, or select, filter or cast the field in {file}, then start again",
    )
