"""TSV records: mostly bad ones. What becomes of each is in `outcomes/tsv.txt`."""

SCHEMA = "id BIGINT NOT NULL, s STRING, f DOUBLE"
FORMAT = {"tsv": {"columns": ["id", "s", "f"], "null": "\\N"}}
CASES: dict[str, bytes | None] = {
    "plain": b"1\tx\t1.5",
    "nulls": b"1\t\\N\t\\N",
    "empty text": b"1\t\t\\N",
    "empty number": b"1\tx\t",
    "commas": b"1,x,1.5",
    "blanks": b"1 x 1.5",
    "commas inside": b"1\ta,b\t1.5",
    "tab in quotes": b'1\t"a\tb"\t1.5',
    "quote in quotes": b'1\t"a""b"\t1.5',
    "escaped tab": b"1\ta\\tb\t1.5",
    "two tabs": b"1\t\tx\t1.5",
    "too few": b"1\tx",
    "too many": b"1\tx\t1.5\t",
    "only tabs": b"\t\t",
    "empty": b"",
    "tombstone": None,
    "two lines": b"1\tx\t1.5\n2\ty\t2.5",
    "trailing line break": b"1\tx\t1.5\n",
    "open quote": b'1\t"x\t1.5',
    "quote in the middle": b'1\ta"b\t1.5',
    "null as a number": b"\\N\tx\t1.5",
    "invalid UTF-8": b"1\t\xff\t1.5",
    "zero byte": b"1\ta\x00b\t1.5",
    "2^63": b"9223372036854775808\tx\t1.5",
    "NaN": b"1\tx\tNaN",
    "too large": b"1\t" + b"x" * (2 * 2**20) + b"\t1.5",
}
