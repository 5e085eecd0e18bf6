"""What is on the wire: the fields that a schema needs of a message, Confluent's framing, and where bytes are no message.

Records are not read by their own message type but by one that is made for the table:

- it has only the fields that the table needs; the others are skipped like unknown ones;
- every field has presence, so that an absent one is a null;
- strings are bytes and enums are integers, so that a bad value concerns its own row and is named;
- a message that lands as text is bytes. Several pieces of it are one message, so it is a repeated field;
- a map is the repeated entries that it is on the wire;
- a oneof has all of its members, because the last one on the wire clears the others.

Confluent's framing names the schema, which is a `.proto` file, and the message in it: [1, 0] is the first message inside its second one.

    00 | id: 4 bytes, big-endian | indexes: a count and so many numbers, as zigzag varints; 0 alone means [0] | message

`explain` names the first field where bytes break, without their content: `google.protobuf` says no more than that it cannot parse them.
Reasons have no positions and no lengths, so that dead letters can be counted by reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.protocol.reasons import Code, Reason
from landonce.read.formats import Indexes

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


_MOST_INDEXES = 100
_LONGEST_NUMBER = 10


class Frame(NamedTuple):
    """What a framing says."""

    schema_id: int
    indexes: tuple[int, ...]


class BadFrame(ValueError):
    """The message is the reason for a dead letter."""


def frame_of(value: bytes) -> tuple[Frame, int]:
    """The framing at the start of a value, and its length."""
    if not value or value[0] != 0:
        raise BadFrame("does not begin with the zero byte of Confluent's framing")
    if len(value) < 6:
        raise BadFrame("ends inside Confluent's framing")
    count, at = _number(value, 5)
    if not 0 <= count <= _MOST_INDEXES:
        raise BadFrame("has invalid message indexes in Confluent's framing")
    indexes = []
    for _ in range(count):
        index, at = _number(value, at)
        if index < 0:
            raise BadFrame("has invalid message indexes in Confluent's framing")
        indexes.append(index)
    return Frame(int.from_bytes(value[1:5], "big"), tuple(indexes) or (0,)), at


def frames(rows: Indexes, records: pa.BinaryArray) -> Iterator[tuple[Frame | Reason, Indexes, pa.BinaryArray]]:
    """Records by their framing, without it; or the reason why they have none.

    A framing says itself where it ends. So records that begin with the same bytes as one framing have that framing.
    """
    while len(rows):
        first = records[0].as_py()
        try:
            frame, length = frame_of(first)
        except BadFrame as error:
            yield Reason(str(error), Code.BAD_FRAME), rows[:1], records.slice(0, 1)
            rows, records = rows[1:], records.slice(1)
            continue
        same = pc.starts_with(records, pattern=first[:length])
        chosen = np.asarray(same.to_numpy(zero_copy_only=False), np.bool_)
        longest = pc.max(pc.binary_length(records)).as_py()
        yield frame, rows[chosen], pc.binary_slice(records.filter(same), length, max(longest, length + 1))
        rows, records = rows[~chosen], records.filter(pc.invert(same))


def _number(value: bytes, at: int) -> tuple[int, int]:
    found = 0
    for step in range(_LONGEST_NUMBER):
        if at >= len(value):
            raise BadFrame("ends inside Confluent's framing")
        byte = value[at]
        at += 1
        found |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
    raise BadFrame("has invalid message indexes in Confluent's framing")


_VARINT, _EIGHT, _SIZED, _OPEN, _CLOSE, _FOUR = range(6)
_WIDTHS = {1: 8, 6: 8, 16: 8, 2: 4, 7: 4, 15: 4}
"""By type, the bytes of one value of fixed width."""
_DEEPEST = 100
_LARGEST_TAG, _LONGEST_TAG = 2**32 - 1, 5


class _Broken(Exception):
    pass


def explain(value: bytes, wire: Wire) -> str | None:
    """Where the bytes break; None if this finds nothing."""
    try:
        _message(value, 0, len(value), wire, 0, None)
    except _Broken as broken:
        return str(broken)
    return None


def _message(value: bytes, at: int, end: int, wire: Wire | None, depth: int, closing: int | None) -> int:
    """Walks over the fields from `at` to `end`, or to the end of the group `closing`. Returns where it stopped."""
    if depth > _DEEPEST:
        raise _Broken(f"messages are nested deeper than {_DEEPEST} levels")
    fields = {each.number: each for each in wire.inside} if wire is not None else {}
    while at < end:
        start = at
        tag, at = _varint(value, at, end, "the number of a field")
        number, kind = tag >> 3, tag & 7
        if number == 0 or tag > _LARGEST_TAG or kind > _FOUR or at - start > _LONGEST_TAG:
            raise _Broken("it holds a field without a valid number and type")
        if kind == _CLOSE:
            if closing != number:
                raise _Broken("a group ends that did not begin")
            return at
        field = fields.get(number)
        at = _value(value, at, end, kind, number, field, depth)
    if closing is not None:
        raise _Broken("it ends inside a group")
    return at


def _value(value: bytes, at: int, end: int, kind: int, number: int, field: Wire | None, depth: int) -> int:
    name = f"field {field.name!r}" if field is not None else "an unknown field"
    if kind == _VARINT:
        return _varint(value, at, end, name)[1]
    if kind == _OPEN:
        inner = field if field is not None and field.type == GROUP else None
        return _message(value, at, end, inner, depth + 1, number)
    size = {_EIGHT: 8, _FOUR: 4}.get(kind)
    if size is None:
        size, at = _varint(value, at, end, f"the length of {name}")
    if size > end - at:
        raise _Broken(f"it ends inside {name}")
    if kind == _SIZED and field is not None:
        if field.type == MESSAGE:
            _message(value, at, at + size, field, depth + 1, None)
        elif field.repeated and size % _WIDTHS.get(field.type, 1):
            raise _Broken(f"{name} does not hold whole numbers")
    return at + size


def _varint(value: bytes, at: int, end: int, what: str) -> tuple[int, int]:
    found = 0
    for step in range(10):
        if at >= end:
            raise _Broken(f"it ends inside {what}")
        byte = value[at]
        at += 1
        found |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            return found, at
    raise _Broken(f"{what} has more than 10 bytes")
