"""Text that is not decoded. What becomes of each is in `outcomes/string.txt`."""

SCHEMA = "_value STRING NOT NULL"
FORMAT = "string"
CASES: dict[str, bytes | None] = {
    "text": b"x",
    "empty": b"",
    "tombstone": None,
    "emoji": "😀".encode(),
    "zero byte": b"a\x00b",
    "line break": b"a\nb",
    "invalid UTF-8": b"\xff",
    "cut UTF-8": b"\xe2\x82",
    "surrogate": b"\xed\xa0\x80",
    "byte order mark": b"\xef\xbb\xbfx",
    "1 MB": b"x" * 2**20,
}
