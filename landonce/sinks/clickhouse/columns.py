"""The columns of a table: which of them landonce fills, from which field, and rows as they are sent. Pure.

Columns are matched by name, never by position. A column that ClickHouse computes (MATERIALIZED, ALIAS, EPHEMERAL) is never sent; nor is one
with a DEFAULT whose type cannot be decoded exactly.

A NULL for a column with a DEFAULT that is not Nullable takes the default. For a Nullable column it is a NULL.

Rows are sent as one Arrow record batch, because ClickHouse makes one block of one batch. A value that does not fit exactly is refused by name.
The names and types of a table that is sent along may take at most 128 KiB, so very many columns are sent as several tables, side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from landonce.errors import TableUnfit, TargetRefused
from landonce.read.formats.json.columns import fit
from landonce.read.formats.json.values import Fault
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.clickhouse.address import TableName, quoted
from landonce.sinks.clickhouse.types import Mapped, Unsupported, map_type
from landonce.sinks.clickhouse.wire import MOST_BYTES_OF_A_FIELD, Rows
from landonce.sinks.contract import COORDINATES

ROWS = "landonce_rows"
"""The name of the sent rows in a statement. Further tables have a number after it."""
_COMPUTED = ("MATERIALIZED", "ALIAS", "EPHEMERAL")
COORDINATE_TYPES: dict[str, pa.DataType] = {"_topic": pa.string(), "_partition": pa.int32(), "_offset": pa.int64()}
_FITTING = {
    "_topic": ("String",),
    "_partition": ("Int32", "Int64"),
    "_offset": ("Int64",),
}


@dataclass(frozen=True)
class Column:
    """One column of `system.columns`."""

    name: str
    type: str
    default_kind: str = ""
    default: str = ""
    in_partition_key: bool = False

    @property
    def computed(self) -> bool:
        return self.default_kind in _COMPUTED

    @property
    def mapped(self) -> Mapped:
        return map_type(self.type)

    @property
    def left_out(self) -> bool:
        """Whether it takes its DEFAULT in every row, because its type cannot be decoded exactly."""
        return bool(self.default_kind) and not self.computed and bool(_unsupported(self.type))

    @property
    def optional(self) -> bool:
        """Whether a row may come without it."""
        if pa.types.is_list(self.mapped.arrow):
            return self.default.replace(" ", "") in ("[]", f"CAST([],'{self.type}')".replace(" ", ""))
        return self.mapped.nullable or (bool(self.default_kind) and not pa.types.is_nested(self.mapped.arrow))

    @property
    def wire(self) -> str:
        """The type in which it is sent."""
        mapped = self.mapped
        if self.optional and not mapped.nullable and not pa.types.is_nested(mapped.arrow):
            return f"Nullable({mapped.wire})"
        return mapped.wire

    def field(self) -> Field:
        """What a decoder must produce for this column."""
        return _field(self.name, self.mapped, required=not self.optional)


def filled(columns: Iterable[Column]) -> tuple[Column, ...]:
    """The columns that records fill. Raises `TableUnfit` with every column that they cannot fill."""
    mine = [each for each in columns if not (each.computed or each.left_out or each.name in COORDINATES)]
    reasons = [(each.name, "part of a Nested column" if "." in each.name else _unsupported(each.type)) for each in mine]
    bad = [f"{name}: {why}" for name, why in reasons if why]
    if bad:
        raise TableUnfit(
            "landonce cannot fill these columns exactly: " + "; ".join(bad) + ".",
            safe="Nothing was written.",
            command="give each of them a DEFAULT (landonce then leaves the column to ClickHouse), or change its type",
        )
    return tuple(mine)


def schema_of(columns: Iterable[Column]) -> Schema:
    """The fields that a decoder must produce for a table."""
    return Schema(tuple(each.field() for each in filled(columns)))


def coordinate_faults(columns: Iterable[Column]) -> tuple[str, ...]:
    """The coordinate columns that are missing or have a wrong type."""
    there = {each.name: each for each in columns}
    faults = []
    for name in COORDINATES:
        column = there.get(name)
        if column is None:
            faults.append(f"{name} is missing")
        elif column.computed or _bare(column.type) not in _FITTING[name]:
            faults.append(f"{name} is {column.default_kind} {column.type}".replace("  ", " "))
    return tuple(faults)


def structure(columns: Iterable[Column]) -> str:
    """Names and types of the columns, as they are sent."""
    return ", ".join(f"{quoted(each.name)} {each.wire}" for each in columns)


def names(columns: Iterable[Column]) -> str:
    return ", ".join(quoted(each.name) for each in columns)


def _field(name: str, mapped: Mapped, *, required: bool, nested: bool = False) -> Field:
    return Field(
        name=name,
        type=mapped.arrow,
        required=required,
        allowed=mapped.allowed,
        pattern=mapped.pattern,
        bounds=mapped.bounds,
        digits=mapped.digits,
        scale=None if nested else mapped.scale,
        inner=tuple(_field(part, each, required=not each.nullable, nested=True) for part, each in mapped.inner),
    )


def _unsupported(type_: str) -> str:
    """Why values of a type cannot be decoded exactly. Empty if they can."""
    try:
        map_type(type_)
    except Unsupported as why:
        return str(why)
    return ""


def _bare(type_: str) -> str:
    if type_.startswith("LowCardinality(") and type_.endswith(")"):
        return type_[len("LowCardinality(") : -1]
    return type_


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
        return values.cast(COORDINATE_TYPES[column.name])
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
