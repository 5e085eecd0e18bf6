"""One JSON-lines file per Kafka partition that only grows, and beside it an index that says how much of it counts.

    t.0.jsonl         the records, one JSON object per line
    t.0.index.json    {"end": 1200, "bytes": 90311}: every record below offset 1200 is in the first 90311 bytes

A push appends and then replaces the index. The next push cuts off whatever a crash left beyond the index's bytes. A
block that ends at or below the index is already there. Of a block that reaches beyond it (a ledger was lost and cuts
blocks differently), the push adds only the rest. So pushing a block again, at any later time, changes nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import pyarrow.compute as pc

import landonce


@dataclass(frozen=True)
class JsonLines:
    """The object that `landonce.wrap` calls. A worker gets a copy: it holds a path, and nothing that is open."""

    folder: Path

    def push(self, block: landonce.PushedBlock) -> None:
        place = self.folder / f"{quote(block.topic, safe='')}.{block.partition}"
        with locked(place):
            end, size = read_index(place)
            if block.end <= end:
                return
            new = replace(block, rows=block.rows.filter(pc.field("_offset") >= end))
            size = append(place.with_name(f"{place.name}.jsonl"), size, new.json_lines())
            write_index(place, block.end, size)


def jsonl(path: str) -> landonce.WrappedSink:
    """For a pipeline file: `sink: {wrapped: {sink: jsonl, options: {path: /data/clicks}}}`."""
    folder = Path(path)
    if not folder.is_absolute():
        raise landonce.errors.ConfigError(f"jsonl: {path} must be an absolute path, the same for every worker.")
    if not folder.is_dir():
        raise landonce.errors.ConfigError(f"jsonl: there is no folder {path}.", command=f"mkdir -p {path}")
    return landonce.wrap(JsonLines(folder), idempotent=True, name=f"jsonl in {path}")


@contextmanager
def locked(place: Path) -> Iterator[None]:
    """One writer at a time. The lock ends with its process, even after a crash."""
    try:
        file = place.with_name(f"{place.name}.lock").open("w")
    except FileNotFoundError as error:
        raise landonce.NotPushed(f"the folder {place.parent} is not there") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def append(path: Path, size: int, lines: bytes) -> int:
    """Truncates the file to what counts, adds the lines, and returns the new size once they are on disk."""
    with path.open("ab") as file:
        file.truncate(size)
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())
    return size + len(lines)


def read_index(place: Path) -> tuple[int, int]:
    path = index_of(place)
    if not path.exists():
        return 0, 0
    index = json.loads(path.read_text())
    return index["end"], index["bytes"]


def write_index(place: Path, end: int, size: int) -> None:
    """Writes a temporary file and renames it: readers see the old or the new index, also after a power cut."""
    aside = index_of(place).with_suffix(".aside")
    with aside.open("w") as file:
        json.dump({"end": end, "bytes": size}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, index_of(place))
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def index_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.index.json")
