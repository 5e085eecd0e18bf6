"""Pushes partitions of one name into a PostgreSQL, as test_push.py tells it: a line PARTITION COUNT on its input, and the position, or the
error, on its output."""

from __future__ import annotations

import sys

from push_site import SCHEMA, rows

import landonce
from landonce import errors


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
