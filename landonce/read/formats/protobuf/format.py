"""The format `protobuf` of a pipeline file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from landonce.config.formats import ProtobufFormat
from landonce.errors import ConfigError, NothingToInfer
from landonce.packages import require
from landonce.read.formats import Format, RecordType, RecordTypes
from landonce.read.formats.protobuf.decode import VERSION, ProtobufDecoder
from landonce.read.formats.protobuf.framing import frames
from landonce.read.formats.protobuf.marks import record_type
from landonce.read.formats.protobuf.source import (
    Messages,
    ProtobufSource,
    message_in,
    newest_messages,
    registered_message,
)
from landonce.read.formats.protobuf.suggest import schema_of
from landonce.read.registry import registry_of
from landonce.read.schema.fields import Schema


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
