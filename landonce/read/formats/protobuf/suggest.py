"""The schema that a message type suggests: for a table that is to be created.

Every field may be absent: a later version of the message may not have it. A message that holds itself, one without fields,
and `Struct`, `Value` and `ListValue` become JSON. Times have microseconds, unless a record shows nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.errors import NothingToInfer
from landonce.read.formats.protobuf.decode import ProtobufDecoder
from landonce.read.formats.protobuf.framing import BadFrame, frame_of
from landonce.read.formats.protobuf.shape import DURATION, TIMESTAMP, WRAPPERS
from landonce.read.formats.protobuf.source import (
    Descriptor,
    Messages,
    ProtobufSource,
    message_in,
    registered_message,
)
from landonce.read.schema.fields import JSON, KEY, VALUE, Field, Schema

UINT64 = pa.decimal128(20, 0)
SECONDS = pa.decimal128(21, 9)
_TYPES = {
    1: pa.float64(),
    2: pa.float32(),
    3: pa.int64(),
    4: UINT64,
    5: pa.int32(),
    6: UINT64,
    7: pa.int64(),
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    13: pa.int64(),
    14: pa.string(),
    15: pa.int32(),
    16: pa.int64(),
    17: pa.int32(),
    18: pa.int64(),
}
_JSON = ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")
_FINE, _COMMON = pa.timestamp("ns", tz="UTC"), pa.timestamp("us", tz="UTC")
_SAMPLE_BYTES = 2**30


def schema_of(source: ProtobufSource, values: Sequence[bytes] = ()) -> Schema:
    """The fields of the message; with a registry, of the messages of these records, newest schema last."""
    fields: dict[str, Field] = {}
    for descriptor in _messages(source, values):
        for each in descriptor.fields:
            fields[each.name] = Field(each.name, _type(each, (descriptor.full_name,)))
    if not fields:
        raise NothingToInfer(
            "no schema is declared, the table is to be created, and no Protobuf message with fields is known.",
            safe="Nothing was created.",
            command='declare `source.kafka.schema` in {file}, for example: schema: "id BIGINT NOT NULL, name STRING"',
        )
    fine = Schema(tuple(fields.values()))
    shown = ProtobufDecoder(fine, source, max_record_bytes=_SAMPLE_BYTES).decode(pa.array(values, pa.binary())).table
    columns = zip(fine.fields, shown.columns, strict=True)
    return Schema(tuple(Field(each.name, _as_fine_as(each.type, column.combine_chunks())) for each, column in columns))


def _as_fine_as(type_: pa.DataType, array: pa.Array) -> pa.DataType:
    """The type, with nanoseconds only where the array has some."""
    if type_ == _FINE:
        ticks = array.cast(pa.int64())
        whole = pc.equal(pc.multiply(pc.divide(ticks, 1000), 1000), ticks)
        return _COMMON if pc.all(whole, min_count=0).as_py() else _FINE
    if pt.is_list(type_):
        return pa.list_(type_.value_field.with_type(_as_fine_as(type_.value_type, array.values)))
    if pt.is_map(type_):
        return pa.map_(type_.key_field, type_.item_field.with_type(_as_fine_as(type_.item_type, array.items)))
    if pt.is_struct(type_):
        inside = enumerate(type_)
        return pa.struct([each.with_type(_as_fine_as(each.type, array.field(at))) for at, each in inside])
    return type_


def _messages(source: ProtobufSource, values: Sequence[bytes]) -> list[Descriptor]:
    if source.registry is None:
        return [message_in(Messages(source.descriptors), source.message)]
    found = set()
    for value in values:
        try:
            found.add(frame_of(value)[0])
        except BadFrame:
            continue
    known = (registered_message(source.registry, frame) for frame in sorted(found))
    return [each for each in known if not isinstance(each, str) and source.message in (None, each.full_name)]


def _type(field: Any, around: tuple[str, ...]) -> pa.DataType:
    """`around`: the messages that the field is in."""
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        value = pa.field(VALUE, _single(message.fields_by_name[VALUE], around), nullable=False)
        return pa.map_(pa.field(KEY, pa.string(), nullable=False), value)
    single = _single(field, around)
    return pa.list_(pa.field("element", single, nullable=False)) if field.is_repeated else single


def _single(field: Any, around: tuple[str, ...]) -> pa.DataType:
    message = field.message_type
    if message is None:
        return _TYPES[field.type]
    name = message.full_name
    if name == TIMESTAMP:
        return _FINE
    if name == DURATION:
        return SECONDS
    if name in WRAPPERS:
        return _TYPES[message.fields_by_name["value"].type]
    if name in around or name in _JSON or not message.fields:
        return JSON
    return pa.struct([pa.field(each.name, _type(each, (*around, name))) for each in message.fields])
