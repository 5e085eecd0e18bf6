"""Pushes partitions of one name into a PostgreSQL, as test_push.py tells it: a line PARTITION COUNT on its input, and the position, or the
error, on its output."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa

import landonce
from landonce import errors

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


def rows(first: int, end: int, partition: int) -> list[dict[str, Any]]:
    """Those of push_site.py, which loads too much."""
    there = [at for at in range(first, end) if at % 5 not in (0, 4)]
    return [{"_offset": at, "id": 1000 * partition + at, "word": f"w{at}"} for at in there]


def main(url: str) -> None:
    with landonce.ExactlyOnceSink(landonce.sql(url, "events", create=True), name="pushed", schema=SCHEMA) as once:
        print("ready", flush=True)
        for line in sys.stdin:
            partition, count = map(int, line.split())
            try:
                at = begun = once.position(partition) or 0
                while at < begun + count:
                    at = once.push(partition, rows(at, at + 5, partition), first=at, end=at + 5).position
                print(at, flush=True)
            except errors.LandonceError as error:
                print(type(error).__name__, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
