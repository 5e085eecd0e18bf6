# tail.py
"""Lands each line of growing files once, however often it is killed.

    python tail.py access.log.1 access.log            up to their ends
    python tail.py --follow access.log                until it is stopped

`TARGET` is a database for SQLAlchemy (default: `sqlite:///lines.db`), or the URL of a ClickHouse.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

import landonce

SCHEMA = pa.schema([("line", pa.string())])
AT_ONCE = 1 << 20
"""Bytes of one push. After a crash it is the same, so what was in doubt comes again whole."""


def open_sink(target: str) -> landonce.ExactlyOnceSink:
    if target.startswith("http"):
        table = landonce.clickhouse(target, "lines", create=True)
        return landonce.ExactlyOnceSink(table, "sqlite:///lines.ledger", name="lines", schema=SCHEMA)
    return landonce.ExactlyOnceSink(landonce.sql(target, "lines", create=True), name="lines", schema=SCHEMA)


def partition_of(path: Path) -> str:
    """The file itself, whatever it is called: rotation renames it, and its lines stay."""
    status = path.stat()
    return f"{status.st_dev}-{status.st_ino}"


def read(path: Path, position: int, at_once: int) -> tuple[list[dict[str, object]], int]:
    """The next whole lines, each with the byte where it begins, and the byte after them."""
    with path.open("rb") as file:
        file.seek(position)
        chunk = file.read(at_once)
        while b"\n" not in chunk and (more := file.read(at_once)):
            chunk += more
    rows: list[dict[str, object]] = []
    end = position
    for line in chunk.split(b"\n")[:-1]:  # a line that is still being written waits
        if line.strip():  # an empty line is no row
            rows.append({"_offset": end, "line": line.decode(errors="replace")})
        end += len(line) + 1
    return rows, end


def tail(once: landonce.ExactlyOnceSink, path: Path, at_once: int = AT_ONCE) -> int:
    """Pushes what the file holds now, and returns how many lines landed."""
    partition, landed = partition_of(path), 0
    position = once.position(partition) or 0
    while True:
        rows, end = read(path, position, at_once)
        if end == position:
            return landed
        landed += once.push(partition, rows, first=position, end=end).landed
        position = end


def work(once: landonce.ExactlyOnceSink, path: Path, follow: bool) -> None:
    print(f"{path.name}: {tail(once, path)} lines landed")
    while follow:
        time.sleep(0.5)
        tail(once, path)


def main(arguments: list[str]) -> None:
    follow, paths = "--follow" in arguments, [Path(each) for each in arguments if each != "--follow"]
    with open_sink(os.environ.get("TARGET", "sqlite:///lines.db")) as once, ThreadPoolExecutor(len(paths)) as threads:
        for done in [threads.submit(work, once, path, follow) for path in paths]:
            done.result()


if __name__ == "__main__":
    main(sys.argv[1:])
