"""JSON in Confluent's framing. What becomes of each is in `outcomes/framed.txt`."""

SCHEMA = "id BIGINT NOT NULL"
FORMAT = {"json": {"framing": "confluent"}}
CASES: dict[str, bytes | None] = {
    "plain": b'\x00\x00\x00\x00\x01{"id":1}',
    "largest id": b'\x00\xff\xff\xff\xff{"id":1}',
    "no framing": b'{"id":1}',
    "another magic byte": b'\x01\x00\x00\x00\x01{"id":1}',
    "four bytes": b"\x00\x00\x00\x00",
    "five bytes": b"\x00\x00\x00\x00\x01",
    "empty": b"",
    "tombstone": None,
    "framed twice": b'\x00\x00\x00\x00\x01\x00\x00\x00\x00\x01{"id":1}',
    "not JSON": b"\x00\x00\x00\x00\x01\x02\x04",
    "an array": b"\x00\x00\x00\x00\x01[1]",
    "invalid UTF-8": b'\x00\x00\x00\x00\x01{"id":1,"s":"\xff"}',
}
