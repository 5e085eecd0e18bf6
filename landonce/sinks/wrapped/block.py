"""What a user's function gets: one range of one Kafka partition, with a key that is the same on every retry.

`ipc` and `json_lines` return the same bytes on every retry, however Kafka split the records into fetches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class PushedBlock:
    """Records of one partition, in the order of offsets. `key` always names the same records."""

    key: str
    """At most 190 letters, digits and `.-_@`: good for a file name or an idempotency key."""
    topic: str
    """As in `_topic`: the topic's name, unless the topic was rebased."""
    partition: int
    first: int
    end: int
    """One past the last offset that the block may hold. Offsets have gaps: count rows."""
    rows: pa.Table
    """`_topic`, `_partition`, `_offset`, then the fields of the records. If records change rows, `_change` is before the fields: I, U or D.
    Of a deletion only the fields of the key are there, and the others are null."""
    attempt: int = 1
    """How often this block was pushed, this push included; 0 for a probe. On a retry only this and `deadline` differ."""
    deadline: int = 0
    """Milliseconds on the ledger's clock. landonce assumes that after it this attempt can take effect no more. A target that refuses
    later pushes closes the last gap: a machine that was stopped just before it pushed."""

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] [{self.first}, {self.end})"

    def ipc(self) -> bytes:
        """An Arrow IPC stream of one record batch."""
        columns = [_canonical(column.combine_chunks()) for column in self.rows.columns]
        fields = [pa.field(each.name, each.type, each.nullable) for each in self.rows.schema]
        batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, batch.schema) as stream:
            stream.write_batch(batch)
        return bytes(out.getvalue().to_pybytes())

    def json_lines(self) -> bytes:
        """One JSON object per row, UTF-8. Times, decimals, NaN and infinity are text, bytes are hexadecimal digits."""
        names = self.rows.column_names
        columns = [column.cast(_retyped(column.type, _text_type)).to_pylist() for column in self.rows.columns]
        lines = (_line(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True))
        return "".join(f"{line}\n" for line in lines).encode()


def pushed_rows(rows: pa.Table) -> pa.Table:
    """Topics as plain strings, and one chunk per column."""
    at = rows.column_names.index("_topic")
    return rows.set_column(at, "_topic", rows.column(at).cast(pa.string())).combine_chunks()


def _canonical(array: Any) -> pa.Array:
    """The same values in the same bytes: the bytes under a null and after the last bit are zero."""
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, _canonical(array.storage))
    if pa.types.is_nested(array.type) or pa.types.is_dictionary(array.type):
        plain = array.cast(_retyped(array.type, _number))
        return pa.array(plain.to_pylist(), plain.type).cast(array.type)
    if pa.types.is_boolean(array.type):
        filled = pc.fill_null(array, False)
        return pa.Array.from_buffers(array.type, len(array), [_bits(array.is_valid()), _bits(filled)])
    if not array.null_count or pa.types.is_null(array.type):
        return array
    filled = pc.fill_null(array, _zero(array.type))
    return pa.Array.from_buffers(array.type, len(array), [_bits(array.is_valid()), *filled.buffers()[1:]])


def _bits(flags: pa.BooleanArray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags.to_numpy(zero_copy_only=False), bitorder="little").tobytes())


def _zero(type_: pa.DataType) -> pa.Scalar:
    """A value of zero bytes."""
    zeros = pa.py_buffer(bytes(64))
    return pa.Array.from_buffers(type_, 1, [None, *[zeros] * (type_.num_buffers - 1)])[0]


def _retyped(type_: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The same nesting with other types. Python's own times end with the year 9999, so they cannot be used."""
    if pa.types.is_struct(type_):
        return pa.struct([each.with_type(_retyped(each.type, leaf)) for each in type_])
    if pa.types.is_map(type_):
        return pa.map_(*(each.with_type(_retyped(each.type, leaf)) for each in (type_.key_field, type_.item_field)))
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_retyped(type_.value_type, leaf)))
    return leaf(type_)


def _number(type_: pa.DataType) -> pa.DataType:
    """The integer type of a time; other types stay."""
    if not pa.types.is_temporal(type_):
        return type_
    return pa.int32() if type_.bit_width == 32 else pa.int64()


def _text_type(type_: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_temporal(type_) or pa.types.is_decimal(type_) else type_


def _line(row: dict[str, Any]) -> str:
    try:
        return _ENCODER.encode(row)
    except ValueError:
        return _ENCODER.encode(_named(row))


def _named(value: Any) -> Any:
    """JSON has no NaN and no infinity: they are text."""
    if isinstance(value, dict):
        return {name: _named(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_named(each) for each in value]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_text, allow_nan=False)
