"""The fields that a schema needs of a message, as they are on the wire, and the message type with only these fields.

Records are not read by their own message type but by one that is made for the table:

- it has only the fields that the table needs; the others are skipped like unknown ones;
- every field has presence, so that an absent one is a null;
- strings are bytes and enums are integers, so that a bad value concerns its own row and is named;
- a message that lands as text is bytes. Several pieces of it are one message, so it is a repeated field;
- a map is the repeated entries that it is on the wire;
- a oneof has all of its members, because the last one on the wire clears the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ROOT, RECORDS = "Record", "Records"
_PACKAGE = "landonce"
BYTES, ENUM, GROUP, INT32, MESSAGE, STRING = 12, 14, 10, 5, 11, 9
"""Numbers of FieldDescriptorProto.Type."""


@dataclass(frozen=True)
class Wire:
    """A field by its number. ``inside``: the fields of a message or group."""

    number: int
    type: int
    name: str = ""
    """As people know it, for reasons."""
    repeated: bool = False
    oneof: str | None = None
    inside: tuple[Wire, ...] = ()

    @property
    def key(self) -> str:
        """Its name in the message that is made."""
        return f"f{self.number}"

    @property
    def holds_group(self) -> bool:
        return self.type == GROUP or any(each.holds_group for each in self.inside)


def is_message(wire: Wire) -> bool:
    return wire.type in (MESSAGE, GROUP)


def file_of(fields: tuple[Wire, ...]) -> Any:
    """A FileDescriptorProto with the message `ROOT` of these fields, and `RECORDS`, which is many of them."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto(name="landonce.proto", package=_PACKAGE, syntax="proto2")
    numbers = iter(range(1, 1 << 30))
    _add_message(file, ROOT, fields, numbers)
    records = file.message_type.add(name=RECORDS)
    records.field.add(name="f1", number=1, type=MESSAGE, label=3, type_name=f".{_PACKAGE}.{ROOT}")
    return file


def full_name(name: str) -> str:
    return f"{_PACKAGE}.{name}"


def _add_message(file: Any, name: str, fields: tuple[Wire, ...], numbers: Iterator[int]) -> None:
    message = file.message_type.add(name=name)
    oneofs: list[str] = []
    for each in fields:
        made = message.field.add(name=each.key, number=each.number, type=each.type, label=3 if each.repeated else 1)
        if each.oneof is not None:
            if each.oneof not in oneofs:
                oneofs.append(each.oneof)
                message.oneof_decl.add(name=f"o{len(oneofs)}")
            made.oneof_index = oneofs.index(each.oneof)
        if is_message(each):
            inner = f"M{next(numbers)}"
            made.type_name = f".{_PACKAGE}.{inner}"
            _add_message(file, inner, each.inside, numbers)


def varint(number: int) -> bytes:
    """A number that is not negative, as it is on the wire."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))
