"""The format `protobuf` of a pipeline file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from landonce.read.formats import Format
from landonce.read.formats.protobuf.decode import VERSION, ProtobufDecoder
from landonce.read.formats.protobuf.source import ProtobufSource
from landonce.read.formats.protobuf.suggest import schema_of
from landonce.read.schema.fields import Schema


@dataclass(frozen=True)
class Protobuf(Format):
    """Each value is a message."""

    source: ProtobufSource

    def decoder(self, schema: Schema, *, max_record_bytes: int) -> ProtobufDecoder:
        return ProtobufDecoder(schema, self.source, max_record_bytes=max_record_bytes)

    def decisive(self) -> tuple[object, ...]:
        registered = self.source.registry is not None
        return "protobuf", VERSION, registered, self.source.message, hashlib.sha256(self.source.descriptors).hexdigest()

    def fields(self, values: Sequence[bytes]) -> Schema:
        return schema_of(self.source, values)
