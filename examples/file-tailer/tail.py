# tail.py
"""Lands each line of growing files once, however often it is killed.

    python tail.py access.log.1 access.log            up to their ends
    python tail.py --follow access.log                until it is stopped

`TARGET` is a database for SQLAlchemy (default: `sqlite:///lines.db`), or the URL of a ClickHouse.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

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


class WrittenAnew(Exception):
    """What has landed of a file is not in it any more."""


def partition_of(file: BinaryIO) -> str | None:
    """The file itself, whatever it is called: rotation renames it, and its lines stay. None: its first line is still being written.

    The inode alone is not enough: a file that is deleted leaves it to the next one.
    """
    file.seek(0)
    first = file.readline()
    if not first.endswith(b"\n"):
        return None
    status = os.fstat(file.fileno())
    return f"{status.st_dev}-{status.st_ino}-{hashlib.sha256(first).hexdigest()[:16]}"


def refuse_another(file: BinaryIO, position: int) -> None:
    """As long as a file only grows, a line ends just before the position."""
    file.seek(max(position - 1, 0))
    if position and file.read(1) != b"\n":
        size = os.fstat(file.fileno()).st_size
        raise WrittenAnew(
            f"{file.name}: it has landed up to byte {position}, and no line ends there any more (it has {size} bytes): it was truncated or "
            "written again. Nothing more of it was read. A copy of it (cp) is another file, and lands whole."
        )


def read(file: BinaryIO, position: int, at_once: int) -> tuple[list[dict[str, object]], int]:
    """The next whole lines, each with the byte where it begins, and the byte after them."""
    refuse_another(file, position)
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
    landed = 0
    with path.open("rb") as file:
        partition = partition_of(file)
        if partition is None:
            return landed
        position = once.position(partition) or 0
        while True:
            rows, end = read(file, position, at_once)
            if end == position:
                return landed
            landed += once.push(partition, rows, first=position, end=end).landed
            position = end


def work(once: landonce.ExactlyOnceSink, path: Path, follow: bool, ended: threading.Event) -> None:
    print(f"{path.name}: {tail(once, path)} lines landed")
    while follow and not ended.wait(0.5):
        with suppress(FileNotFoundError):  # it was renamed, and the next one is not there yet
            tail(once, path)


def main(arguments: list[str]) -> None:
    follow, paths = "--follow" in arguments, [Path(each) for each in arguments if each != "--follow"]
    ended = threading.Event()
    with open_sink(os.environ.get("TARGET", "sqlite:///lines.db")) as once, ThreadPoolExecutor(len(paths)) as threads:
        working = [threads.submit(work, once, path, follow, ended) for path in paths]
        try:
            wait(working, return_when=FIRST_EXCEPTION)
        finally:
            ended.set()
        for each in working:
            each.result()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except WrittenAnew as error:
        sys.exit(str(error))
