"""The fields that a message type marks as the key of an event, with the option of `landonce/dedup.proto`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from landonce.errors import ConfigError
from landonce.read.formats import RecordType
from landonce.read.formats.protobuf.source import Descriptor, message_class
from landonce.read.schema.fields import Path

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
        position = _position(field)
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


def _position(field: Any) -> int:
    """Read from the bytes of the options: whoever made the descriptor may not have known the option."""
    options = field.GetOptions().SerializeToString()
    return int(_reader().FromString(options).dedup_key) if options else 0


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
