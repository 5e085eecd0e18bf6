"""Protobuf messages: mostly bad ones. What becomes of each is in `outcomes/protobuf.txt`."""

from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Proto
from google.protobuf.descriptor_pb2 import FileDescriptorSet

_FIELDS = (
    ("id", 1, Proto.TYPE_INT64, ""),
    ("s", 2, Proto.TYPE_STRING, ""),
    ("e", 3, Proto.TYPE_ENUM, ".E"),
    ("f", 4, Proto.TYPE_DOUBLE, ""),
    ("inner", 5, Proto.TYPE_MESSAGE, ".Order"),
    ("tags", 6, Proto.TYPE_STRING, ""),
    ("numbers", 7, Proto.TYPE_FIXED32, ""),
    ("a", 8, Proto.TYPE_INT32, ""),
    ("b", 9, Proto.TYPE_STRING, ""),
    ("u", 10, Proto.TYPE_UINT64, ""),
    ("flag", 11, Proto.TYPE_BOOL, ""),
    ("at", 12, Proto.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
    ("k", 13, Proto.TYPE_MESSAGE, ".Order.KEntry"),
)


def _descriptors() -> bytes:
    files = FileDescriptorSet()
    file = files.file.add(name="order.proto", syntax="proto3", dependency=["google/protobuf/timestamp.proto"])
    enum = file.enum_type.add(name="E")
    enum.value.add(name="A", number=0)
    enum.value.add(name="B", number=-1)
    message = file.message_type.add(name="Order")
    message.oneof_decl.add(name="either")
    entry = message.nested_type.add(name="KEntry")
    entry.options.map_entry = True
    for at, (name, type_) in enumerate((("key", Proto.TYPE_STRING), ("value", Proto.TYPE_INT64)), 1):
        entry.field.add(name=name, number=at, type=type_, label=Proto.LABEL_OPTIONAL)
    for name, number, kind, type_name in _FIELDS:
        many = name in ("tags", "numbers", "k")
        made = message.field.add(
            name=name, number=number, type=kind, label=3 if many else 1, type_name=type_name or None
        )
        if name in ("a", "b"):
            made.oneof_index = 0
    return files.SerializeToString()


DESCRIPTORS = _descriptors()
SCHEMA = (
    "id BIGINT NOT NULL, s STRING, e STRING, f DOUBLE, inner STRUCT<id: BIGINT, s: STRING>, tags ARRAY<STRING>, "
    "numbers ARRAY<BIGINT>, a INT, b STRING, u BIGINT, flag BOOLEAN, at TIMESTAMP, k MAP<STRING, BIGINT>"
)
GOOD = b"\x08\x01\x12\x01x"
_TEN = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff"


def _nested(levels: int) -> bytes:
    value = GOOD
    for _ in range(levels):
        size, length = len(value), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        value = b"\x2a" + length + bytes([size]) + value
    return value


CASES: dict[str, bytes | None] = {
    "plain": GOOD,
    "empty": b"",
    "tombstone": None,
    "fields in another order": b"\x12\x01x\x08\x01",
    "a field twice": b"\x08\x01\x08\x02",
    "two messages": GOOD + b"\x08\x02\x1a\x01y",
    "pieces of a message": b"\x2a\x02\x08\x01\x2a\x03\x12\x01x",
    "empty message inside": b"\x2a\x00",
    "unknown fields": b"\xa0\x06\x01\xa2\x06\x01\xff\xa1\x06abcdefgh\xa5\x06abcd" + GOOD,
    "unknown group": b"\xa3\x06\x08\x01\xa4\x06" + GOOD,
    "another wire type": b"\x0d\x01\x00\x00\x00",
    "one byte": b"\x08",
    "cut in a number": b"\x08\xff",
    "cut in a tag": b"\x08\x01\xff",
    "cut in a length": b"\x12\xff",
    "cut in a text": b"\x12\x05x",
    "cut in a double": b"\x21\x00\x00",
    "cut in a message inside": b"\x2a\x03\x12\x05x",
    "longer inside than outside": b"\x2a\x02\x12\x05" + b"x" * 5,
    "length of 2^63 bytes": b"\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01x",
    "length of 2^64 - 1 bytes": b"\x12" + _TEN + b"\x01x",
    "length of 2^31 bytes": b"\x12\x80\x80\x80\x80\x08x",
    "field 0": b"\x00\x01",
    "field beyond 2^29": b"\x80\x80\x80\x80\x10\x01",
    "tag of 6 bytes": b"\x88\x80\x80\x80\x80\x00\x01",
    "wire type 6": b"\x0e\x01",
    "wire type 7": b"\x0f\x01",
    "group that does not end": b"\xa3\x06\x08\x01",
    "group that did not begin": b"\xa4\x06",
    "group that ends as another": b"\xa3\x06\xac\x06",
    "1,000 groups": b"\xa3\x06" * 1_000 + b"\xa4\x06" * 1_000,
    "500,000 groups": b"\xa3\x06" * 500_000,
    "99 messages inside": _nested(99),
    "10,000 messages inside": _nested(10_000),
    "number of 10 bytes": b"\x08" + _TEN + b"\x01",
    "number beyond 64 bits": b"\x08" + _TEN + b"\x02",
    "number of 11 bytes": b"\x08" + _TEN + b"\xff\x01",
    "padded number": b"\x08\x81\x80\x00",
    "int32 beyond 32 bits": b"\x40\xff\xff\xff\xff\x7f",
    "boolean of 2": b"\x58\x02",
    "uint64 beyond int64": b"\x50" + _TEN + b"\x01",
    "negative enum": b"\x18" + _TEN + b"\x01",
    "enum without such a name": b"\x18\x07",
    "NaN": b"\x21\x00\x00\x00\x00\x00\x00\xf8\x7f",
    "infinity": b"\x21\x00\x00\x00\x00\x00\x00\xf0\x7f",
    "negative zero": b"\x21\x00\x00\x00\x00\x00\x00\x00\x80",
    "invalid UTF-8": b"\x12\x01\xff",
    "surrogate": b"\x12\x03\xed\xa0\x80",
    "zero byte in a text": b"\x12\x01\x00",
    "invalid UTF-8 in a list": b"\x32\x01a\x32\x01\xff",
    "invalid UTF-8 in a key": b"\x6a\x03\x0a\x01\xff",
    "packed numbers": b"\x3a\x08\x01\x00\x00\x00\x02\x00\x00\x00",
    "packed and not": b"\x3a\x04\x01\x00\x00\x00\x3d\x02\x00\x00\x00",
    "packed numbers of 5 bytes": b"\x3a\x05\x01\x00\x00\x00\x02",
    "both of a oneof": b"\x40\x01\x4a\x01x",
    "both of a oneof, the other last": b"\x4a\x01x\x40\x01",
    "map key twice": b"\x6a\x05\x0a\x01k\x10\x01\x6a\x05\x0a\x01k\x10\x02",
    "map entry without key and value": b"\x6a\x00",
    "time of 2023": b"\x62\x06\x08\x80\xe2\xcf\xaa\x06",
    "time with nanoseconds": b"\x62\x02\x10\x01",
    "time with negative nanoseconds": b"\x62\x0b\x10" + _TEN + b"\x01",
    "time of year 10000": b"\x62\x07\x08\x80\x83\xd1\xff\xaf\x07",
    "time of second 2^63 - 1": b"\x62\x0a\x08" + _TEN[:8] + b"\x7f",
    "JSON": b'{"id":1}',
    "text": b"hello",
    "framed": b"\x00\x00\x00\x00\x01\x00" + GOOD,
    "zeros": b"\x00" * 16,
    "a text of 1 MB": b"\x12\x80\x80\x40" + b"x" * 2**20,
    "3 MB": b"\x12\x80\x80\xc0\x01" + b"x" * 3 * 2**20,
}
