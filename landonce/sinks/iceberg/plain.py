"""Rows as Spark can read them from Parquet: it refuses the type `uuid` there, and takes its text for a column of uuids."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.read.schema.fields import is_uuid

_BYTES = 16
_TEXT = 36
_HYPHENS = (8, 13, 18, 23)


def plain(rows: pa.Table) -> pa.Table:
    """The same rows with every uuid as text, nested ones too."""
    for at, column in enumerate(rows.schema):
        if _holds_uuid(column.type):
            chunks = rows.column(at).chunks or [pa.nulls(0, column.type)]
            rows = rows.set_column(at, column.name, pa.chunked_array([_plain(chunk) for chunk in chunks]))
    return rows


def _holds_uuid(type_: pa.DataType) -> bool:
    return is_uuid(type_) or any(_holds_uuid(type_.field(at).type) for at in range(type_.num_fields))


def _plain(array: pa.Array) -> pa.Array:
    type_ = array.type
    if not _holds_uuid(type_):
        return array
    if array.offset and not is_uuid(type_):
        array = array.take(pa.array(np.arange(len(array))))  # lists with nulls cannot be rebuilt from a slice
    mask = array.is_null() if array.null_count else None
    if pt.is_struct(type_):
        names = [child.name for child in type_]
        return pa.StructArray.from_arrays([_plain(array.field(at)) for at in range(len(names))], names, mask=mask)
    if pt.is_list(type_):
        return pa.ListArray.from_arrays(array.offsets, _plain(array.values), mask=mask)
    if pt.is_map(type_):
        return pa.MapArray.from_arrays(array.offsets, _plain(array.keys), _plain(array.items), mask=mask)
    return _texts(array.storage)


def _texts(storage: pa.FixedSizeBinaryArray) -> pa.Array:
    """`00112233-4455-…` for every 16 bytes."""
    count = len(storage)
    raw = memoryview(storage.buffers()[1])[storage.offset * _BYTES : (storage.offset + count) * _BYTES]
    text = np.full((count, _TEXT), ord("-"), dtype=np.uint8)
    text[:, [at for at in range(_TEXT) if at not in _HYPHENS]] = np.frombuffer(raw.hex().encode(), np.uint8).reshape(
        count, 2 * _BYTES
    )
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_TEXT), count, [None, pa.py_buffer(text.tobytes())])
    texts = fixed.cast(pa.binary()).cast(pa.string())
    return pc.if_else(storage.is_valid(), texts, None) if storage.null_count else texts
