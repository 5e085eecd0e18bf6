"""Dead letters: records that cannot land, one file per block, with all that is needed to mend and resend them.

A worker stages a block's file (written whole, then renamed to `….jsonl.staged`), and the driver's commit publishes it
under its final name. The name comes from the batch and the block, so a replay overwrites and never repeats. Only files
without `.staged` count. An unknown outcome never comes here.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_STAGED = ".staged"


@dataclass(frozen=True)
class DeadLetter:
    """One record that cannot land. `topic` is what the target would have held in `_topic`."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    reason: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def stage(folder: Path, batch: int, index: int, token: str, letters: Iterable[DeadLetter]) -> str:
    """Writes a block's letters and gives back the name that `publish` needs; empty if there are none."""
    ordered = sorted(letters, key=lambda each: (each.topic, each.partition, each.offset))
    if not ordered:
        return ""
    name = f"{_batch(batch)}-{index:04d}-{token[:16]}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{name}.{os.getpid()}"
    with temporary.open("w", encoding="utf-8") as file:
        for letter in ordered:
            file.write(json.dumps(_to_dict(letter), ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / (name + _STAGED))
    return name


def publish(folder: Path, batch: int, names: Iterable[str]) -> None:
    """Makes the staged files of a batch count, and takes away what an earlier attempt of the same batch left."""
    wanted = {name for name in names if name}
    if not folder.is_dir():
        return
    for name in wanted:
        staged = folder / (name + _STAGED)
        if staged.exists():
            staged.replace(folder / name)
    for left in folder.glob(f"*{_batch(batch)}-*"):
        if left.name not in wanted:
            left.unlink(missing_ok=True)
    _sync(folder)


def committed(folder: Path) -> Iterator[dict[str, Any]]:
    """Every dead letter that counts, as it stands in the files."""
    for path in sorted(folder.glob("*.jsonl")):
        if not path.name.startswith("."):
            with path.open(encoding="utf-8") as file:
                for line in file:
                    yield json.loads(line)


def _batch(batch: int) -> str:
    return f"batch-{batch:09d}"


def _to_dict(letter: DeadLetter) -> dict[str, Any]:
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp,
        "reason": letter.reason,
        **_bytes("key", letter.key),
        **_bytes("value", letter.value),
        "headers": [{"name": name, **_bytes("value", value)} for name, value in letter.headers],
    }


def _bytes(name: str, content: bytes | None) -> dict[str, str | None]:
    """As text where it is text, else as base64 under a name that says so."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
