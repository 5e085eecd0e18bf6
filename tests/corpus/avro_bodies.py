"""Avro bodies: mostly bad ones. What becomes of each is in `outcomes/avro.txt`."""

import json

TEXT = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "n", "type": ["null", "int"]},
            {"name": "s", "type": "string"},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
            {"name": "f", "type": "double"},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "k", "type": {"type": "map", "values": "long"}},
        ],
    }
)
SCHEMA = "id BIGINT NOT NULL, n INT, s STRING, e STRING, f DOUBLE, tags ARRAY<STRING>, k MAP<STRING, BIGINT>"
_DOUBLE = b"\x00\x00\x00\x00\x00\x00\xf8\x3f"
_REST = b"\x00" + _DOUBLE + b"\x00\x00"
GOOD = b"\x02\x00\x02x" + _REST
CASES: dict[str, bytes | None] = {
    "plain": GOOD,
    "with an integer": b"\x02\x02\x0e\x02x" + _REST,
    "with an array and a map": b"\x02\x00\x02x\x00" + _DOUBLE + b"\x04\x02a\x02b\x00" + b"\x02\x02k\x0e\x00",
    "array in a sized block": b"\x02\x00\x02x\x00" + _DOUBLE + b"\x03\x04\x02a\x02b\x00" + b"\x00",
    "empty": b"",
    "tombstone": None,
    "one byte": b"\x02",
    "cut in a text": b"\x02\x00\x0ax",
    "cut in a double": b"\x02\x00\x02x\x00\x00\x00",
    "cut before the last field": GOOD[:-1],
    "one byte too many": GOOD + b"\x00",
    "two bodies": GOOD + GOOD,
    "text of negative length": b"\x02\x00\x01x" + _REST,
    "text of 2^62 bytes": b"\x02\x00" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" + b"x" + _REST,
    "invalid UTF-8": b"\x02\x00\x02\xff" + _REST,
    "zero byte in a text": b"\x02\x00\x02\x00" + _REST,
    "number without an end": b"\xff" * 12,
    "number of 10 bytes": b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x02x" + _REST,
    "number beyond 64 bits": b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02\x00\x02x" + _REST,
    "padded number": b"\x82\x00\x00\x02x" + _REST,
    "int beyond 32 bits": b"\x02\x02\x80\x80\x80\x80\x20\x02x" + _REST,
    "union without such a branch": b"\x02\x04\x02x" + _REST,
    "union with a negative branch": b"\x02\x01\x02x" + _REST,
    "enum without such a symbol": b"\x02\x00\x02x\x08" + _DOUBLE + b"\x00\x00",
    "enum with a negative symbol": b"\x02\x00\x02x\x01" + _DOUBLE + b"\x00\x00",
    "NaN": b"\x02\x00\x02x\x00" + b"\x00\x00\x00\x00\x00\x00\xf8\x7f" + b"\x00\x00",
    "infinity": b"\x02\x00\x02x\x00" + b"\x00\x00\x00\x00\x00\x00\xf0\x7f" + b"\x00\x00",
    "array of 2^40 texts": b"\x02\x00\x02x\x00" + _DOUBLE + b"\x80\x80\x80\x80\x80\x40" + b"\x00" * 8,
    "array without an end": b"\x02\x00\x02x\x00" + _DOUBLE + b"\x02\x02a",
    "block of a wrong size": b"\x02\x00\x02x\x00" + _DOUBLE + b"\x03\x0c\x02a\x02b\x00" + b"\x00",
    "map key twice": b"\x02\x00\x02x\x00" + _DOUBLE + b"\x00" + b"\x04\x02k\x02\x02k\x04\x00",
    "JSON": b'{"id":1}',
    "framed": b"\x00\x00\x00\x00\x01" + GOOD,
    "container file": b"Obj\x01" + GOOD,
}
