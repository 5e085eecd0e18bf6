"""Partition specs, as a pipeline file writes them: `country`, `day(at)`, `bucket(16, id)`, `truncate(4, name)`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TimeTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import NestedField

from landonce.errors import ConfigError
from landonce.sinks.iceberg.arrow import path_of

_CALL = re.compile(r"\s*(?P<name>[A-Za-z]+)\s*\((?P<arguments>.*)\)\s*", re.DOTALL)
_PLAIN: dict[str, tuple[Callable[[], Transform[Any, Any]], str]] = {
    "identity": (IdentityTransform, ""),
    "void": (VoidTransform, "_null"),
    "year": (YearTransform, "_year"),
    "month": (MonthTransform, "_month"),
    "day": (DayTransform, "_day"),
    "hour": (HourTransform, "_hour"),
}
_SIZED: dict[str, tuple[Callable[[int], Transform[Any, Any]], str]] = {
    "bucket": (BucketTransform, "_bucket"),
    "truncate": (TruncateTransform, "_trunc"),
}
_KNOWN = "identity, bucket(n, …), truncate(n, …), year, month, day, hour and void"


def parse_spec(asked: Sequence[str], schema: Schema) -> PartitionSpec:
    """The spec of a table with this schema."""
    fields: list[PartitionField] = []
    names = set(schema.column_names)
    for number, text in enumerate(asked):
        source, transform, suffix = _term(text, schema)
        _refuse_misfit(text, source, transform, schema)
        _refuse_repetition(text, source, transform, fields)
        full_name = str(schema.find_column_name(source.field_id))
        name = full_name if isinstance(transform, IdentityTransform) else _free(f"{full_name}{suffix}", names)
        names.add(name)
        fields.append(PartitionField(source.field_id, PARTITION_FIELD_ID_START + number, transform, name))
    return PartitionSpec(*fields)


def spec_differs(asked: PartitionSpec, there: PartitionSpec, schema: Schema) -> str:
    """How a table's spec differs from the one that was asked for, in words; empty if it does not.

    The order of the fields and their names do not matter, nor does a field that was dropped and left a void behind.
    """
    wanted, found = _terms(asked, schema), _terms(there, schema)
    if set(wanted) == set(found):
        return ""
    parts = []
    if lacking := [each for each in wanted if each not in found]:
        parts.append(f"it is not partitioned by {', '.join(lacking)}")
    if surplus := [each for each in found if each not in wanted]:
        parts.append(f"it is partitioned by {', '.join(surplus)}, which was not asked for")
    return "; ".join(parts)


def spelled(spec: PartitionSpec, schema: Schema) -> str:
    """A spec as a pipeline file writes it."""
    return ", ".join(_terms(spec, schema)) or "nothing"


def _terms(spec: PartitionSpec, schema: Schema) -> list[str]:
    fields = [each for each in spec.fields if not isinstance(each.transform, VoidTransform)]
    return [spell(each.transform, schema.find_column_name(each.source_id) or "a dropped column") for each in fields]


def spell(transform: Transform[Any, Any], column: str) -> str:
    """One field of a spec, as a pipeline file writes it."""
    if isinstance(transform, IdentityTransform):
        return column
    if isinstance(transform, BucketTransform):
        return f"bucket({transform.num_buckets}, {column})"
    if isinstance(transform, TruncateTransform):
        return f"truncate({transform.width}, {column})"
    return f"{transform}({column})"


def _term(text: str, schema: Schema) -> tuple[NestedField, Transform[Any, Any], str]:
    """The column, the transform, and what the partition's name ends with."""
    if _unquoted(text) in schema.column_names:
        return schema.find_field(_unquoted(text)), IdentityTransform(), ""
    call = _CALL.fullmatch(text)
    if call is None:
        return _column(text, text, schema), IdentityTransform(), ""
    name = call["name"].lower()
    name = name if name in _PLAIN or name in _SIZED else name.removesuffix("s")
    arguments = [each.strip() for each in call["arguments"].rsplit(",", 1)]
    if name in _PLAIN and len(arguments) == 1:
        kind, suffix = _PLAIN[name]
        return _column(arguments[0], text, schema), kind(), suffix
    if name in _SIZED and len(arguments) == 2:
        sized, suffix = _SIZED[name]
        size, column = arguments if arguments[0].isdigit() else arguments[::-1]
        if not size.isdigit() or not 0 < int(size) < 2**31:
            raise _wrong(text, f"{name} takes a number from 1 on and a column, for example {name}(16, id)")
        return _column(column, text, schema), sized(int(size)), suffix
    raise _wrong(text, f"there is no such transform; there are {_KNOWN}")


def _column(name: str, text: str, schema: Schema) -> NestedField:
    try:
        return schema.find_field(_unquoted(name))
    except ValueError:
        known = ", ".join(schema.column_names)
        raise _wrong(text, f"the table has no column {_unquoted(name)!r}; it has {known}") from None


def _refuse_misfit(text: str, source: NestedField, transform: Transform[Any, Any], schema: Schema) -> None:
    if not source.field_type.is_primitive or not transform.can_transform(source.field_type):
        kind = "a column" if isinstance(transform, IdentityTransform) else str(transform)
        raise _wrong(text, f"{kind} of type {source.field_type} cannot partition a table")
    if path_of(schema, source.field_id) is None:
        raise _wrong(text, "a value inside of a list or a map cannot partition a table")


def _refuse_repetition(
    text: str, source: NestedField, transform: Transform[Any, Any], before: list[PartitionField]
) -> None:
    for each in before:
        timed = isinstance(transform, TimeTransform) and isinstance(each.transform, TimeTransform)
        if each.source_id == source.field_id and (timed or each.transform == transform):
            raise _wrong(text, f"{source.name} partitions the table already; of several times, the finest is enough")


def _free(name: str, taken: set[str]) -> str:
    """The name, or one like it that no column and no other partition field has."""
    candidates = [name, *(f"{name}_{number}" for number in range(2, len(taken) + 3))]
    return next(each for each in candidates if each not in taken)


def _unquoted(name: str) -> str:
    name = name.strip()
    return name[1:-1].replace("``", "`") if len(name) > 1 and name[0] == name[-1] == "`" else name


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(f"sink.iceberg.partition_by: {text.strip()!r}: {why}.")
