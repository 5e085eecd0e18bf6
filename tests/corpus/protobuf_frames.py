"""Protobuf messages in Confluent's framing. What becomes of each is in `outcomes/protobuf_framed.txt`."""

from corpus.in_memory import holding
from landonce.read.formats.protobuf.format import Protobuf
from landonce.read.formats.protobuf.source import ProtobufSource
from landonce.read.schema.registry import Registered

SCHEMA = "id BIGINT, s STRING"
_TEXT = """
syntax = "proto3";
message Order { int64 id = 1; string s = 2; }
message Visit { message Page { int64 id = 1; } string id = 1; }
"""
REGISTERED = {
    1: Registered("PROTOBUF", _TEXT),
    2: Registered("PROTOBUF", "no schema"),
    3: Registered("AVRO", '"long"'),
    4: Registered("PROTOBUF", 'syntax = "proto3"; import "gone.proto"; message A { Gone gone = 1; }'),
}
FORMAT = Protobuf(ProtobufSource(registry=holding(REGISTERED)))
GOOD = b"\x08\x01\x12\x01x"
_HEAD = b"\x00\x00\x00\x00"
CASES: dict[str, bytes | None] = {
    "plain": _HEAD + b"\x01\x00" + GOOD,
    "first message in full": _HEAD + b"\x01\x02\x00" + GOOD,
    "message inside another": _HEAD + b"\x01\x04\x02\x00\x08\x01",
    "a type that does not fit": _HEAD + b"\x01\x02\x02\x0a\x01x",
    "empty message": _HEAD + b"\x01\x00",
    "index out of range": _HEAD + b"\x01\x02\x04" + GOOD,
    "index inside out of range": _HEAD + b"\x01\x04\x02\x02" + GOOD,
    "index inside a message without any": _HEAD + b"\x01\x04\x00\x00" + GOOD,
    "negative index": _HEAD + b"\x01\x02\x01" + GOOD,
    "negative number of indexes": _HEAD + b"\x01\x01" + GOOD,
    "a million indexes": _HEAD + b"\x01\x80\x89\x7a" + GOOD,
    "index beyond 64 bits": _HEAD + b"\x01\x02" + b"\xff" * 11 + GOOD,
    "no indexes": _HEAD + b"\x01",
    "cut in the indexes": _HEAD + b"\x01\x04\x02",
    "cut in the frame": b"\x00\x00\x00",
    "cut in the message": _HEAD + b"\x01\x00" + GOOD[:-1],
    "unknown id": _HEAD + b"\x09\x00" + GOOD,
    "id 0": _HEAD + b"\x00\x00" + GOOD,
    "largest id": b"\x00\xff\xff\xff\xff\x00" + GOOD,
    "id of no schema": _HEAD + b"\x02\x00" + GOOD,
    "id of Avro": _HEAD + b"\x03\x00" + GOOD,
    "id of a schema that imports what is gone": _HEAD + b"\x04\x00" + GOOD,
    "framed twice": (_HEAD + b"\x01\x00") * 2 + GOOD,
    "no frame": GOOD,
    "another magic byte": b"\x01\x00\x00\x00\x01\x00" + GOOD,
    "JSON": b'{"id":1}',
    "empty": b"",
    "tombstone": None,
}
