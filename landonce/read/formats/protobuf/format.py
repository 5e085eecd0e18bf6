"""The format `protobuf` of a pipeline file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from landonce.config.formats import ProtobufFormat
from landonce.errors import ConfigError
from landonce.packages import require
from landonce.read.formats import Format
from landonce.read.formats.protobuf.decode import VERSION, ProtobufDecoder
from landonce.read.formats.protobuf.source import ProtobufSource
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


def protobuf_of(section: ProtobufFormat) -> Protobuf:
    """The format of this section, with the content of its file."""
    require("protobuf", "`source.kafka.format: protobuf`")
    if section.schema_ is not None:
        return Protobuf(ProtobufSource.of_file(section.schema_, section.message))
    assert section.registry is not None
    return Protobuf(ProtobufSource(message=section.message, registry=registry_of(section.registry)))
