"""One Kafka value is one Protobuf message and becomes one row, or a reject with a reason; never a shifted neighbour.

Two libraries read a record, because neither can do all of it. `google.protobuf` decides whether it is a message: it follows
the specification, and has a limit of depth. Then `ptars` makes columns of many records at once, in native code. Alone it
must not be used: it accepts records that are not whole, and malformed ones can end the process. Records that `ptars` cannot
read as the specification says (groups; several members of one oneof) are read by `google.protobuf` alone.

Both read by a message type with only the fields of the table (`wire`). So what is in other fields does not matter, as long
as it can be skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.protocol.reasons import Code, Reason
from landonce.read.formats import Collected, Decoded, Indexes
from landonce.read.formats.json.decode import blocks
from landonce.read.formats.protobuf.parts import SEVERAL
from landonce.read.formats.protobuf.shape import shape_of
from landonce.read.formats.protobuf.source import (
    Descriptor,
    Messages,
    ProtobufSource,
    message_class,
    message_in,
    registered_message,
)
from landonce.read.formats.protobuf.wire import (
    RECORDS,
    ROOT,
    Frame,
    Wire,
    explain,
    file_of,
    frames,
    full_name,
    is_message,
    varint,
)
from landonce.read.schema.fields import Schema
from landonce.read.schema.texts import Mask
from landonce.read.schema.values import Fault

VERSION = 3
"""Increased whenever the decoder makes other rows from the same bytes: it is part of every plan's fingerprint."""
_TOGETHER = 500  # how many records are checked at once: few enough to stay in the processor's cache
_WAYS = 8


class ProtobufDecoder:
    """Decodes arrays of record values; keep one per worker, since it compiles each schema of a registry once."""

    def __init__(self, schema: Schema, source: ProtobufSource, *, max_record_bytes: int) -> None:
        self._schema = schema
        self._arrow = schema.arrow
        self._source = source
        self._max_record_bytes = max_record_bytes
        self._readers: dict[Frame, _Reader] = {}
        self._one: _Reader | None = None
        if source.registry is None:
            descriptor = message_in(Messages(source.descriptors), source.message)
            reader = _reader(descriptor, schema)
            if isinstance(reader, Reason):
                raise TypeError(reader)
            self._one = reader

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decodes every value, or says why not: ``len(kept) + len(rejects) == len(values)``."""
        found = Collected(self._arrow)
        rows, records = found.screen(values, self._max_record_bytes)
        if self._one is not None:
            self._one.read(found, rows, records)
            return found.result()
        for frame, some, payloads in frames(rows, records):
            reader = frame if isinstance(frame, Reason) else self._reader(frame)
            if isinstance(reader, Reason):
                for row in some:
                    found.reject(int(row), reader)
            else:
                reader.read(found, some, payloads)
        return found.result()

    def _reader(self, frame: Frame) -> _Reader | Reason:
        """A reason is not kept: a registry may know the id a moment later."""
        if frame in self._readers:
            return self._readers[frame]
        assert self._source.registry is not None
        descriptor, wanted = registered_message(self._source.registry, frame), self._source.message
        if isinstance(descriptor, Reason):
            return descriptor
        if wanted is not None and descriptor.full_name != wanted:
            return Reason(f"is a {descriptor.full_name}, not a {wanted}", Code.SCHEMA_MISMATCH)
        reader = _reader(descriptor, self._schema)
        if isinstance(reader, _Reader):
            self._readers[frame] = reader
        return reader


def _reader(descriptor: Descriptor, schema: Schema) -> _Reader | Reason:
    shape = shape_of(descriptor, schema)
    if shape.misfits:
        misfits = "; ".join(map(str, shape.misfits))
        return Reason(f"{descriptor.full_name} does not fit: {misfits}", Code.SCHEMA_MISMATCH, shape.misfits[0].path)
    return _Reader(descriptor.full_name, shape.root)


class _Reader:
    """Reads records of one message type."""

    def __init__(self, message: str, root: Any) -> None:
        from google.protobuf.descriptor_pool import DescriptorPool
        from ptars import PtarsConfig
        from ptars._lib import ProtoRegistry

        self._message = message
        self._root = root
        self._wire: Wire = root.wire
        file = file_of(self._wire.inside)
        pool = DescriptorPool()
        pool.Add(file)
        self._class = message_class(pool.FindMessageTypeByName(full_name(ROOT)))
        self._many = message_class(pool.FindMessageTypeByName(full_name(RECORDS)))
        registry = ProtoRegistry([file.SerializeToString()])
        self._native = registry.create_for_message(full_name(ROOT), PtarsConfig())
        self._type = pa.struct(list(self._native.schema()))

    def read(self, found: Collected, rows: Indexes, records: pa.BinaryArray) -> None:
        for start, stop in blocks(records):
            self._read_block(found, rows[start:stop], records.slice(start, stop - start))

    def _read_block(self, found: Collected, rows: Indexes, records: pa.BinaryArray) -> None:
        valid = self._valid(records)
        if not valid.all():
            for at in np.flatnonzero(~valid):
                why = explain(records[at].as_py(), self._wire) or "it cannot be parsed"
                found.reject(int(rows[at]), Reason(f"not a valid {self._message}: {why}", Code.MALFORMED))
            rows, records = rows[valid], records.filter(pa.array(valid))
        if len(rows):
            for some, array in self._arrays(rows, records):
                self._settle(found, some, array, records, rows)

    def _settle(
        self, found: Collected, rows: Indexes, array: pa.Array, records: pa.BinaryArray, around: Indexes
    ) -> None:
        """Keeps or rejects each row. `records` and `around`: all records of the block, and their rows."""
        settled, faults = self._root.settle(array)
        columns = settled.flatten()
        again = np.logical_or.reduce(
            [each.rows for each in faults if each.problem == SEVERAL] or [np.zeros(len(rows), np.bool_)]
        )
        if again.any():
            chosen = records.take(pa.array(np.searchsorted(around, rows[again])))
            self._settle(found, rows[again], self._one_by_one(chosen), records, around)
            rows, columns = rows[~again], [each.filter(pa.array(~again)) for each in columns]
            faults = [Fault(each.rows[~again], each.problem) for each in faults]
        reasons: dict[int, Reason] = {}
        for fault in faults:
            for at in np.flatnonzero(fault.rows).tolist():
                reasons.setdefault(at, fault.problem)
        found.settle(rows, columns, reasons)

    # Is it a message? google.protobuf decides.

    def _valid(self, records: pa.BinaryArray) -> Mask:
        """Checks some hundred records at once, as one message that holds them. If that fails, each by itself."""
        lengths = pc.binary_length(records).to_numpy()
        sizes, size_of = np.unique(lengths, return_inverse=True)
        heads = pa.array([b"\x0a" + varint(int(size)) for size in sizes], pa.binary()).take(pa.array(size_of))
        joined = pc.binary_join_element_wise(heads, records, b"")
        offsets = np.frombuffer(joined.buffers()[1], np.int32, len(joined) + 1, joined.offset * 4)
        data = memoryview(joined.buffers()[2] or b"")
        valid = np.ones(len(records), np.bool_)
        for start in range(0, len(records), _TOGETHER):
            stop = min(start + _TOGETHER, len(records))
            if not _parses(self._many, data[offsets[start] : offsets[stop]]):
                each = records.slice(start, stop - start).to_pylist()
                valid[start:stop] = [_parses(self._class, record) for record in each]
        return valid

    # Valid records become columns.

    def _arrays(self, rows: Indexes, records: pa.BinaryArray) -> Iterator[tuple[Indexes, pa.Array]]:
        """The columns of these records, perhaps in pieces."""
        if self._wire.holds_group:
            yield rows, self._one_by_one(records)
            return
        array = self._natively(records)
        if array is not None:
            yield rows, array
        elif len(rows) == 1:
            yield rows, self._one_by_one(records)
        else:
            step = -(-len(rows) // _WAYS)
            for start in range(0, len(rows), step):
                piece = records.slice(start, step)
                yield from self._arrays(rows[start : start + step], piece)

    def _natively(self, records: pa.BinaryArray) -> pa.Array | None:
        try:
            batch = self._native.array_to_record_batch(records)
        except BaseException as error:
            if isinstance(error, ValueError) or type(error).__name__ == "PanicException":
                return None
            raise
        array = batch.to_struct_array()
        return array if len(array) == len(records) else None

    def _one_by_one(self, records: pa.BinaryArray) -> pa.Array:
        parsed = map(self._class.FromString, records.to_pylist())
        return pa.array([_plain(each, self._wire) for each in parsed], self._type)


def _plain(message: Any, wire: Wire) -> dict[str, Any]:
    """A message as the values that `ptars` makes of it."""
    found: dict[str, Any] = {}
    for each in wire.inside:
        value = getattr(message, each.key)
        if each.repeated:
            found[each.key] = [_plain(item, each) for item in value] if is_message(each) else list(value)
        elif message.HasField(each.key):
            found[each.key] = _plain(value, each) if is_message(each) else value
    return found


def _parses(of: Any, value: bytes | memoryview) -> bool:
    from google.protobuf.message import DecodeError

    try:
        of.FromString(value)
    except DecodeError:
        return False
    return True
