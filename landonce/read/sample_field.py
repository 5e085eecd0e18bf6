"""One field of raw JSON payloads, read before anything else is known of them.

What is found in a payload depends on that payload only, not on those it is read with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.schema.fields import Field, Schema

_KINDS = (pa.string(), pa.int64(), pa.bool_(), pa.float64())
_LOOKS = ('"', r"-?\d+\s*[,}]", "[tf]", r"-?\d")
_SAMPLE = 32

Integers = npt.NDArray[np.int64]


def route_values(payloads: pa.BinaryArray, field: str) -> pa.StringArray:
    """One field of each JSON payload as text; dots lead into objects.

    A number or a boolean becomes its text, a fraction its shortest one. What is not there is null, and so is the field
    of a payload that is not JSON: the decoder says why. A topic nearly always holds one type of value, so the payloads
    are read as the type that a sample of them has, and only those that are not are read again.
    """
    found = pa.nulls(len(payloads), pa.string())
    every = np.arange(len(payloads), dtype=np.int64)
    likely = _sampled(payloads, field)
    left = []
    for kind, rows in _guessed(payloads, field) if len(likely) > 1 else [(likely[0], every)]:
        found, refused = _read(found, payloads, rows, field, kind)
        left.append(refused)
        if pt.is_floating(kind):
            found, _ = _read(found, payloads, _perhaps_whole(found, rows), field, pa.int64())
    rest = np.sort(np.concatenate([every[:0], *left]))
    for kind in (kind for kind in _KINDS if len(rest)):
        found, rest = _read(found, payloads, rest, field, kind)
    return found


def _sampled(payloads: pa.BinaryArray, field: str) -> list[pa.DataType]:
    """The types of the field in a few payloads."""
    spread = np.unique(np.linspace(0, max(0, len(payloads) - 1), _SAMPLE).astype(np.int64))
    kinds = {_kind_in(payload, field) for payload in payloads.take(pa.array(spread[: len(payloads)])).to_pylist()}
    return [kind for kind in _KINDS if kind in kinds] or [_KINDS[0]]


def _kind_in(payload: bytes | None, field: str) -> pa.DataType | None:
    try:
        value = json.loads(payload or b"")
    except (ValueError, RecursionError):
        return None
    for name in field.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return {str: pa.string(), int: pa.int64(), bool: pa.bool_(), float: pa.float64()}.get(type(value))


def _guessed(payloads: pa.BinaryArray, field: str) -> Iterator[tuple[pa.DataType, Integers]]:
    """The payloads by what stands behind the field's name; a wrong guess costs time, nothing else."""
    name = re.escape(json.dumps(field.rpartition(".")[2], ensure_ascii=False))
    left = np.ones(len(payloads), dtype=np.bool_)
    for kind, look in zip(_KINDS, _LOOKS, strict=True):
        seen = pc.match_substring_regex(payloads, pattern=rf"{name}\s*:\s*{look}").fill_null(False)
        rows = np.flatnonzero(seen.to_numpy(zero_copy_only=False) & left)
        left[rows] = False
        yield kind, rows
    yield _KINDS[0], np.flatnonzero(left)


def _read(
    found: pa.StringArray, payloads: pa.BinaryArray, rows: Integers, field: str, kind: pa.DataType
) -> tuple[pa.StringArray, Integers]:
    """The values found so far and those of these rows; and the rows whose value is of another type."""
    whole = len(rows) == len(payloads)
    decoded = _decoder(field, kind).decode(payloads if whole else payloads.take(pa.array(rows)))
    text = _inside(decoded.table.column(0).combine_chunks()).cast(pa.string())
    refused = rows[[reject.index for reject in decoded.rejects]]
    if whole and not len(refused):
        return text, refused
    mask = np.zeros(len(found), dtype=np.bool_)
    mask[rows[decoded.kept.to_numpy()]] = True
    return pc.replace_with_mask(found, pa.array(mask), text), refused


def _perhaps_whole(found: pa.StringArray, rows: Integers) -> Integers:
    """The rows whose number has another text if it was written without a fraction: zeros, for their sign, and those with
    more digits than a double holds."""
    numbers = np.abs(found.take(pa.array(rows)).cast(pa.float64()).to_numpy(zero_copy_only=False))
    chosen: Integers = rows[(numbers == 0) | (numbers >= 2**53)]
    return chosen


def _inside(column: pa.Array) -> pa.Array:
    while pt.is_struct(column.type):
        column = pc.struct_field(column, [0])
    return column


@lru_cache(maxsize=64)
def _decoder(field: str, kind: pa.DataType) -> JsonDecoder:
    first, *rest = field.split(".")
    for name in reversed(rest):
        kind = pa.struct([pa.field(name, kind)])
    return JsonDecoder(Schema((Field(first, kind),)))
