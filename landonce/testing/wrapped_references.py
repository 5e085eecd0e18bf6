"""Two small wrapped sinks that are sound, and to learn from: one whose pushes may be repeated, and one with a probe.

FilePerBlock   idempotent: a file named by the block's key, written aside and renamed. The same block again is the same file
Appending      not idempotent: rows are added to a table in one transaction; the probe looks for their coordinates
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from landonce.errors import NotPushed
from landonce.sinks.wrapped.block import PushedBlock


@dataclass(frozen=True)
class FilePerBlock:
    """JSON lines, one file per block."""

    folder: Path

    def push(self, block: PushedBlock) -> None:
        aside = self.folder / f".{uuid.uuid4().hex}"
        try:
            with aside.open("xb") as file:
                file.write(block.json_lines())
                file.flush()
                os.fsync(file.fileno())
        except FileNotFoundError as error:
            raise NotPushed(f"the folder {self.folder} is not there") from error
        os.replace(aside, self.folder / f"{block.key}.jsonl")


@dataclass(frozen=True)
class Appending:
    """Rows in a table that takes every row as often as it is sent."""

    path: Path

    def push(self, block: PushedBlock) -> None:
        with closing(self.connected()) as connection, connection:
            connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", values(block))

    def probe(self, block: PushedBlock) -> bool:
        """Rows land all together, so one of them is as good as all."""
        with closing(self.connected()) as connection:
            found = connection.execute(
                "SELECT count(*) FROM events WHERE _topic = ? AND _partition = ? AND _offset >= ? AND _offset < ?",
                (block.topic, block.partition, block.first, block.end),
            )
            return bool(found.fetchone()[0])

    def connected(self) -> sqlite3.Connection:
        """A file that is not there is an error, and is not made."""
        return sqlite3.connect(f"file:{self.path}?mode=rw", uri=True, timeout=60)


def values(block: PushedBlock) -> list[tuple[object, ...]]:
    return list(zip(*block.rows.to_pydict().values(), strict=True))
