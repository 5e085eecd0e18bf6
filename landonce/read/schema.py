"""What a record must look like: the fields a pipeline lands, as plain values.

A schema says nothing about how records are encoded or where they go; a decoder reads it, a sink declares it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt


@dataclass(frozen=True)
class Field:
    """One field of a record, matched by its exact, case-sensitive name.

    ``type`` is what the decoder produces. ``allowed`` and ``pattern`` apply to every string in the field, so they
    also work for a list of strings; ``pattern`` is RE2 and must match the whole string. ``scale`` lets a temporal
    field take JSON integers as ticks of ``10**-scale`` seconds since the epoch; without it integers are rejected.
    ``bounds`` are the least and the greatest value that the target can hold of a temporal field, in units of ``type``, and
    ``digits`` how many digits after the second it keeps, where these are fewer than ``type`` has.
    """

    name: str
    type: pa.DataType
    required: bool = False
    allowed: frozenset[str] | None = None
    pattern: str | None = None
    scale: int | None = None
    bounds: tuple[int, int] | None = None
    digits: int | None = None

    def __post_init__(self) -> None:
        if self.scale is not None:
            if not (pt.is_timestamp(self.type) or pt.is_date32(self.type)):
                raise ValueError(f"field {self.name!r}: scale needs a timestamp or date32, not {self.type}")
            if not 0 <= self.scale <= 9:
                raise ValueError(f"field {self.name!r}: scale must be between 0 and 9, not {self.scale}")
        if self.bounds is not None and not pt.is_temporal(_innermost(self.type)):
            raise ValueError(f"field {self.name!r}: bounds need a temporal type, not {self.type}")
        if (self.allowed is not None or self.pattern is not None) and not pt.is_string(_innermost(self.type)):
            raise ValueError(f"field {self.name!r}: allowed and pattern need strings, not {self.type}")


@dataclass(frozen=True)
class Schema:
    """The fields of a record, in the order of the table they land in."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        if not self.fields:
            raise ValueError("a schema needs at least one field")
        names = [field.name for field in self.fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"field names must be unique; these occur twice: {', '.join(map(repr, twice))}")

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(field.name, field.type, nullable=not field.required) for field in self.fields])

    def by_name(self) -> dict[str, Field]:
        return {field.name: field for field in self.fields}

    def fingerprint(self) -> str:
        """A SHA-256 over every property of every field: equal schemas agree in any process, unequal ones differ."""
        canonical = [
            [
                field.name,
                _spell(field.type),
                field.required,
                _sorted(field.allowed),
                field.pattern,
                field.scale,
                field.bounds,
                field.digits,
            ]
            for field in self.fields
        ]
        return hashlib.sha256(json.dumps(canonical, ensure_ascii=True).encode()).hexdigest()


def _innermost(type_: pa.DataType) -> pa.DataType:
    while pt.is_list(type_):
        type_ = type_.value_type
    return type_


def _sorted(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _spell(type_: pa.DataType) -> object:
    # Not str(type_): Arrow has changed the default name of a list's child, which means nothing here.
    if pt.is_list(type_):
        return ["list", _spell(type_.value_type), type_.value_field.nullable]
    if pt.is_struct(type_):
        return ["struct", [[child.name, _spell(child.type), child.nullable] for child in type_]]
    return str(type_)
