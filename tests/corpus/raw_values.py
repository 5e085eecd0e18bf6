"""Bytes that are not decoded. What becomes of each is in `outcomes/raw.txt`."""

SCHEMA = "_value BINARY NOT NULL"
FORMAT = "raw"
CASES: dict[str, bytes | None] = {
    "text": b"x",
    "empty": b"",
    "tombstone": None,
    "zero byte": b"\x00",
    "every byte": bytes(range(256)),
    "invalid UTF-8": b"\xff\xfe",
    "framed": b"\x00\x00\x00\x00\x01\x02",
    "line break": b"a\nb",
    "1 MB": b"\xff" * 2**20,
}
