"""The columns of a table: which of them landonce fills, and from which field. Pure.

Columns are matched by name, never by position. A column that ClickHouse computes (MATERIALIZED, ALIAS, EPHEMERAL) is never sent; nor is one
with a DEFAULT whose type cannot be decoded exactly.

A NULL for a column with a DEFAULT that is not Nullable takes the default. For a Nullable column it is a NULL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from landonce.errors import TableUnfit
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.clickhouse.address import quoted
from landonce.sinks.clickhouse.types import Mapped, Unsupported, map_type
from landonce.sinks.contract import COORDINATES

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
        return bool(self.default_kind) and not self.computed and not _supported(self.type)

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
    bad = [f"{each.name}: {_why_not(each)}" for each in mine if _why_not(each)]
    if bad:
        raise TableUnfit(
            "landonce cannot fill these columns exactly: " + "; ".join(bad) + ".",
            safe="Nothing was written.",
            command="give each of them a DEFAULT, which landonce then leaves to ClickHouse, or another type",
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


def sent_type(column: Column) -> pa.DataType:
    return COORDINATE_TYPES.get(column.name) or column.mapped.arrow


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


def _why_not(column: Column) -> str:
    if "." in column.name:
        return "part of a Nested column"
    try:
        map_type(column.type)
    except Unsupported as why:
        return str(why)
    return ""


def _supported(type_: str) -> bool:
    try:
        map_type(type_)
    except Unsupported:
        return False
    return True


def _bare(type_: str) -> str:
    if type_.startswith("LowCardinality(") and type_.endswith(")"):
        return type_[len("LowCardinality(") : -1]
    return type_
