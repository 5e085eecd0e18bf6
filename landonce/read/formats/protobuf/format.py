"""The format `protobuf` of a pipeline file: the schema that a message type suggests for a table that is to be created, and the fields that
it marks as the key of an event, with the option of `landonce/dedup.proto`.

Every suggested field may be absent: a later version of the message may not have it. A message that holds itself, one without fields,
and `Struct`, `Value` and `ListValue` become JSON. Times have microseconds, unless a record shows nanoseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.config.source import ProtobufFormat
from landonce.errors import ConfigError, NothingToInfer
from landonce.packages import require
from landonce.read.formats import Format, RecordType, RecordTypes
from landonce.read.formats.protobuf.decode import VERSION, ProtobufDecoder
from landonce.read.formats.protobuf.shape import DURATION, TIMESTAMP, WRAPPERS
from landonce.read.formats.protobuf.source import (
    Descriptor,
    Messages,
    ProtobufSource,
    message_class,
    message_in,
    newest_messages,
    registered_message,
)
from landonce.read.formats.protobuf.wire import BadFrame, frame_of, frames
from landonce.read.schema.fields import JSON, KEY, VALUE, Field, Path, Schema
from landonce.read.schema.registry import registry_of


@dataclass(frozen=True)
class Protobuf(Format):
    """Each value is a message."""

    source: ProtobufSource

    def decoder(self, schema: Schema, *, max_record_bytes: int) -> ProtobufDecoder:
        return ProtobufDecoder(schema, self.source, max_record_bytes=max_record_bytes)

    def decisive(self) -> tuple[object, ...]:
        of = self.source
        return "protobuf", VERSION, str(of.registry or ""), of.message, hashlib.sha256(of.descriptors).hexdigest()

    def fields(self, values: Sequence[bytes]) -> Schema:
        try:
            return schema_of(self.source, values)
        except TypeError as error:
            raise ConfigError(
                f"no schema is declared, and Protobuf's does not give one: {error}.",
                safe="Nothing was created.",
                command="declare `source.kafka.schema` in {file}",
            ) from None

    def described(self) -> Schema | None:
        if self.source.registry is not None:
            return None
        try:
            return schema_of(self.source)
        except (TypeError, NothingToInfer):
            return None

    @property
    def has_types(self) -> bool:
        return True

    def examples(self, values: pa.BinaryArray) -> list[bytes]:
        there = values.cast(pa.binary()).drop_null()
        if self.source.registry is None:
            return list(there.slice(0, 1).to_pylist())
        return [there[int(members[0])].as_py() for _, members, _ in frames(np.arange(len(there)), there)]

    def types_of(self, values: pa.BinaryArray) -> RecordTypes:
        number, known = np.full(len(values), -1, np.int64), dict[RecordType, int]()
        if self.source.registry is None:
            return RecordTypes(
                number + 1, (record_type(message_in(Messages(self.source.descriptors), self.source.message)),)
            )
        rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        for frame, members, _ in frames(rows, values.cast(pa.binary()).take(pa.array(rows))):
            found = frame if isinstance(frame, str) else registered_message(self.source.registry, frame)
            if not isinstance(found, str) and self.source.message in (None, found.full_name):
                number[members] = known.setdefault(record_type(found), len(known))
        return RecordTypes(number, tuple(known))

    def types(self, values: Sequence[bytes], subjects: Sequence[str]) -> tuple[RecordType, ...]:
        if self.source.registry is None:
            return self.types_of(pa.array([], pa.binary())).types
        found = list(self.types_of(pa.array(values, pa.binary())).types)
        for subject in subjects:
            found += map(record_type, newest_messages(self.source.registry, subject))
        return tuple(dict.fromkeys(each for each in found if self.source.message in (None, each.name)))


def protobuf_of(section: ProtobufFormat) -> Protobuf:
    """The format of this section, with the content of its file."""
    require("protobuf", "`source.kafka.format: protobuf`")
    if section.schema_ is not None:
        return Protobuf(ProtobufSource.of_file(section.schema_, section.message))
    assert section.registry is not None
    return Protobuf(ProtobufSource(message=section.message, registry=registry_of(section.registry)))


OPTION = 50714
"""The number of `dedup_key` in `landonce/dedup.proto`."""


def record_type(descriptor: Descriptor) -> RecordType:
    """The type of records of this message."""
    return RecordType.of(descriptor.full_name, _marks(descriptor, (), ()))


def _marks(descriptor: Descriptor, above: Path, around: tuple[str, ...]) -> Iterator[tuple[int, Path]]:
    """`around`: the messages that this one is in, because a message may hold itself."""
    if descriptor.full_name in around:
        return
    for field in sorted(descriptor.fields, key=lambda each: int(each.number)):
        path = (*above, str(field.name))
        options = field.GetOptions().SerializeToString()
        # Read from their bytes: whoever made the descriptor may not have known the option.
        position = int(_reader().FromString(options).dedup_key) if options else 0
        if position:
            yield position, path
        if field.message_type is not None:
            found = list(_marks(field.message_type, path, (*around, descriptor.full_name)))
            if found and field.is_repeated:
                raise ConfigError(
                    f"{descriptor.full_name} marks field {'.'.join(found[0][1])!r}, which is in a repeated field or a map, and cannot be "
                    "part of a key.",
                    command="remove the option `landonce.dedup_key` from that field",
                )
            yield from found


@cache
def _reader() -> Any:
    """A message that has only the option."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

    file = FileDescriptorProto(name="landonce_marks.proto", package="landonce.marks", syntax="proto3")
    message = file.message_type.add(name="Options")
    message.field.add(name="dedup_key", number=OPTION, type=13, label=1)
    pool = DescriptorPool()
    pool.Add(file)
    return message_class(pool.FindMessageTypeByName("landonce.marks.Options"))


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
