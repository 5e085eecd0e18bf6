"""What a user's function gets: one range of one Kafka partition, with a key that is the same on every retry.

Whatever is made of a block's rows here is byte-identical on every retry, however Kafka cut the records into answers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class PushedBlock:
    """Some records of one partition, in the order of their offsets. `key` names them for ever."""

    key: str
    """Letters, digits and `.-_@`, at most 190 of them: good for a file's name or an idempotency key."""
    topic: str
    """As in `_topic`: the topic's name, unless it was rebased."""
    partition: int
    first: int
    end: int
    """One past the last offset that the block may hold. Offsets have gaps: count rows."""
    rows: pa.Table
    """The fields of the records, and in front `_topic`, `_partition`, `_offset`."""
    attempt: int = 1
    """How often this block was pushed, with this time; 0 where a probe is asked. Nothing but this and `deadline` differs on a retry."""
    deadline: int = 0
    """Milliseconds on the ledger's clock after which landonce takes it that this attempt can take effect no more. A target
    that can refuse what comes later closes the last gap: that of a machine which was stopped just before it pushed."""

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
        """One JSON object per row, UTF-8. Times and decimals are text, bytes are hexadecimal digits."""
        names = self.rows.column_names
        columns = [_plain(column) for column in self.rows.columns]
        lines = (
            json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, separators=(",", ":"), default=_text)
            for row in zip(*columns, strict=True)
        )
        return "".join(f"{line}\n" for line in lines).encode()


def pushed_rows(rows: pa.Table) -> pa.Table:
    """Topics as plain strings, and one chunk per column."""
    at = rows.column_names.index("_topic")
    return rows.set_column(at, "_topic", rows.column(at).cast(pa.string())).combine_chunks()


def _canonical(array: Any) -> pa.Array:
    """The same values in the same bytes: what lies under a null, or behind the last bit, is zero."""
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, _canonical(array.storage))
    if pa.types.is_nested(array.type):
        return pa.array(array.to_pylist(), array.type)
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
    """All bits are zero, or there are none."""
    zeros = pa.py_buffer(bytes(64))
    return pa.Array.from_buffers(type_, 1, [None, *[zeros] * (type_.num_buffers - 1)])[0]


def _plain(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_temporal(column.type) or pa.types.is_decimal(column.type):
        column = column.cast(pa.string())
    return list(column.to_pylist())


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
