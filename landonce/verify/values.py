"""Compares the values of one table, stretch by stretch: every row with what its record decodes to.

Rows are found by their coordinates, also if records change rows: a row has the coordinates of its last change, so that
change must have written its values. The audits of coordinates and keys report missing and additional rows.

Both sides are Arrow arrays. The values of the table are converted to the expected type. Equal arrays are recognised in
one step; others are split until the rows that differ are alone.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.ranges import Partition
from landonce.read.changes import BEFORE
from landonce.read.envelopes import DELETE, OPERATION
from landonce.sinks.audit import HeldValues, Offsets, Piece
from landonce.verify.judge import Bounds, Discrepancy, Fates, Whereabouts
from landonce.verify.report import LISTED, Compared, Difference, PartitionReport

_WAYS = 8
_SMALL = 64
_LONGEST = 160
_UNFIT = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


class ValueAudit:
    """Compares the values of one table. Memory is bounded by a window of the topic and a piece of the table."""

    def __init__(self, held: HeldValues) -> None:
        self._held = held
        self._changed: dict[Partition, PartitionReport] = {}
        self.compared = Compared()

    def compare(self, table: str, bound: Bounds, first: int, end: int, fates: Fates) -> None:
        """One stretch."""
        offsets, rows = _expected(table, fates)
        if not len(offsets):
            return
        changed = [np.empty(0, np.int64)]
        for piece in self._held.read(bound.label, first, end, rows.column_names):
            found = np.asarray(piece.rows.column("_offset").to_numpy(), np.int64)
            at = np.minimum(np.searchsorted(offsets, found), len(offsets) - 1)
            known = offsets[at] == found
            if known.any():
                there = piece.rows.filter(pa.array(known))
                of_records = rows.take(pa.array(at[known]))
                changed.append(self._piece(bound, found[known], of_records, replace(piece, rows=there)))
        report = self._changed.setdefault(bound.partition, PartitionReport.of(bound))
        report.note(Discrepancy.CHANGED, Whereabouts.TARGET, np.unique(np.concatenate(changed)))

    def note(self, bound: Bounds, report: PartitionReport) -> None:
        """Adds what was found to the report of a partition."""
        if bound.partition in self._changed:
            report.faults.update(self._changed[bound.partition].faults)

    def _piece(self, bound: Bounds, offsets: Offsets, rows: pa.Table, piece: Piece) -> Offsets:
        """The offsets of the rows that differ."""
        changed = np.zeros(len(offsets), np.bool_)
        self.compared.rows += len(offsets)
        for name in rows.column_names:
            if name in piece.absent:
                self.compared.absent[name] += len(offsets)
            else:
                changed[self._column(bound, name, offsets, rows, piece)] = True
        return offsets[changed]

    def _column(self, bound: Bounds, name: str, offsets: Offsets, rows: pa.Table, piece: Piece) -> Offsets:
        """The rows that differ in one column."""
        expected = self._held.comparable(name, whole(rows.column(name)))
        found = whole(piece.rows.column(name))
        judged = np.arange(len(offsets))
        if expected.null_count and self._held.filled(name):
            judged = np.flatnonzero(expected.is_valid().to_numpy(zero_copy_only=False))
            self.compared.filled[name] += len(offsets) - len(judged)
            expected, found = expected.take(pa.array(judged)), found.take(pa.array(judged))
        self.compared.values += len(judged)
        bad = differing(expected, found, single=name in piece.single)
        if len(bad):
            self.compared.differing[name] += len(bad)
            self.compared.empty[name] += pc.sum(found.take(pa.array(bad)).is_null()).as_py() or 0
            like = as_type(found, expected.type)
            for at in bad[: max(0, LISTED - len(self.compared.listed))].tolist():
                texts = shown(expected, at), shown(like if like is not None else found, at)
                self.compared.listed.append(Difference(bound.label, int(offsets[judged][at]), name, *texts))
        return judged[bad]


def _expected(table: str, fates: Fates) -> tuple[Offsets, pa.Table]:
    """What the rows should hold, by their offsets. Deletions have no row."""
    offsets = fates.offsets[fates.lands.get(table, np.empty(0, np.int64))]
    rows = fates.rows.get(table)
    if rows is not None:
        return offsets, rows
    changes = fates.changes.get(table)
    if changes is None:
        return np.empty(0, np.int64), pa.table({})
    kept = pc.not_equal(changes.column(OPERATION), DELETE)
    left = changes.filter(kept).drop_columns([name for name in (OPERATION, BEFORE) if name in changes.column_names])
    return offsets[kept.to_numpy()], left


def whole(column: pa.ChunkedArray) -> pa.Array:
    chunk = column.combine_chunks()
    return chunk.chunk(0) if isinstance(chunk, pa.ChunkedArray) else chunk


def differing(expected: pa.Array, found: pa.Array, *, single: bool = False) -> Offsets:
    """The rows whose values differ. `single`: the values were written as floats, and became doubles later."""
    type_ = _plain_type(expected.type, single)
    wanted, held = as_type(expected, type_), as_type(found, type_)
    rows: list[int] = []
    _search(wanted if wanted is not None else expected, held if held is not None else found, 0, rows)
    return np.array(rows, np.int64)


def _search(expected: pa.Array, found: pa.Array, first: int, rows: list[int]) -> None:
    if expected.type == found.type and expected.equals(found):
        return
    if len(expected) <= _SMALL:
        pairs = zip(map(_python, expected), map(_python, found), strict=True)
        rows += [first + at for at, (one, other) in enumerate(pairs) if not _same(one, other)]
        return
    step = -(-len(expected) // _WAYS)
    for at in range(0, len(expected), step):
        _search(expected.slice(at, step), found.slice(at, step), first + at, rows)


def _python(scalar: Any) -> Any:
    return scalar.as_py(maps_as_pydicts="lossy")


def _same(one: Any, other: Any) -> bool:
    """Equality in which NaN equals NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _plain_type(type_: pa.DataType, single: bool) -> pa.DataType:
    """A common type in which values compare, and which Python can show."""
    if pt.is_list(type_):
        return pa.list_(_plain_type(type_.value_type, single))
    if pt.is_struct(type_):
        return pa.struct([pa.field(each.name, _plain_type(each.type, single)) for each in type_])
    if pt.is_map(type_):
        return pa.map_(_plain_type(type_.key_type, single), _plain_type(type_.item_type, single))
    if isinstance(type_, pa.BaseExtensionType) or pt.is_fixed_size_binary(type_):
        return pa.binary()
    if pt.is_timestamp(type_):
        return pa.int64() if type_.unit == "ns" else pa.timestamp(type_.unit)
    return pa.float32() if single and pt.is_float64(type_) else type_


def as_type(array: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """The values in another type that holds them exactly; None if it cannot hold one of them."""
    try:
        return _as_type(array, type_)
    except _UNFIT:
        return None


def _as_type(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if array.type == type_:
        return array
    if pt.is_dictionary(array.type):
        return _as_type(array.dictionary_decode(), type_)
    if isinstance(array.type, pa.BaseExtensionType):
        return _as_type(array.storage, type_)
    if not pt.is_nested(type_):
        return _leaf(array, type_)
    array = pa.concat_arrays([array, array.slice(0, 0)]) if array.offset else array
    mask = array.is_null() if array.null_count else None
    if pt.is_struct(type_):
        children = [_as_type(array.field(each.name), each.type) for each in type_]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=mask)
    if pt.is_map(type_) and pt.is_map(array.type):
        keys, items = _as_type(array.keys, type_.key_type), _as_type(array.items, type_.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=type_, mask=mask)
    if pt.is_list(type_) and (pt.is_list(array.type) or pt.is_large_list(array.type)):
        plain = array.cast(pa.list_(array.type.value_field)) if pt.is_large_list(array.type) else array
        values = _as_type(plain.values, type_.value_type)
        return pa.ListArray.from_arrays(plain.offsets, values, type=type_, mask=mask)
    raise pa.ArrowInvalid(f"{array.type} is not {type_}")


def _leaf(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if pt.is_timestamp(array.type) and (pt.is_timestamp(type_) or pt.is_int64(type_)):
        unit = type_.unit if pt.is_timestamp(type_) else "ns"
        return array.cast(pa.timestamp(unit, array.type.tz)).cast(pa.int64()).cast(type_)
    if pt.is_temporal(type_) and pt.is_integer(array.type):
        return array.cast(pa.int32() if pt.is_date32(type_) else pa.int64()).cast(type_)
    if _is_text(array.type) != _is_text(type_):
        raise pa.ArrowInvalid(f"{array.type} is not {type_}")
    if pt.is_fixed_size_binary(array.type):
        return array.cast(pa.binary()).cast(type_)
    return array.cast(type_)


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        pt.is_string(type_)
        or pt.is_large_string(type_)
        or pt.is_binary(type_)
        or pt.is_large_binary(type_)
        or pt.is_fixed_size_binary(type_)
    )


def shown(values: pa.Array, at: int) -> str:
    """One value for people: short, with an unambiguous type."""
    if pt.is_timestamp(values.type):
        text = str(values.slice(at, 1).cast(pa.string())[0].as_py() or "NULL")
    else:
        text = _text(_python(values[at]))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


def _text(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(key)}: {_text(each)}' for key, each in value.items())}}}"
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, list) else str(value)
