"""Rows as they are sent: fitted to the table's columns, and encoded as one Arrow record batch.

ClickHouse makes one block of one batch. A value that does not fit exactly is refused by name. The names and types of a table that is sent along may
take at most 128 KiB, so very many columns are sent as several tables, side by side.
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
"""The name of the sent rows in a statement. Further tables have a number after it."""


def fitted(rows: pa.Table, columns: Sequence[Column], table: TableName) -> pa.Table:
    """The columns in the types in which they are sent, one chunk each."""
    arrays = [_fit(rows, each, table) for each in columns]
    return pa.table(arrays, names=[each.name for each in columns]).combine_chunks()


def tables_of(rows: pa.Table, columns: Sequence[Column], compression: str | None = None) -> tuple[Rows, ...]:
    """The rows as one table, or as several side by side."""
    return tuple(
        Rows(name, structure(some), encode(rows.select([each.name for each in some]), compression))
        for name, some in _side_by_side(columns)
    )


def rows_in(columns: Sequence[Column]) -> str:
    """The FROM clause for the tables that `tables_of` sends."""
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
    """Values fit already, unless the table was altered since they were decoded: then they are checked again here. Strings are not checked:
    ClickHouse itself refuses one that is no value of an Enum, a UUID, an address or a FixedString."""
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
