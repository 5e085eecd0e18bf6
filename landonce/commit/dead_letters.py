"""Dead letters: records that cannot land, one file per block, with all that is needed to mend and resend them.

A worker stages a block's file (written whole, then renamed to `….jsonl.staged`), and the driver's commit publishes it
under its final name. The name comes from the plan and the block, so a replay overwrites and never repeats; a plan that
reads again what an earlier, lost ledger had delivered leaves out what is there already. Only files without `.staged` count.
An unknown outcome never comes here.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from landonce.plan.ranges import Partition

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


def stem(batch: int, lineage: str) -> str:
    """What the files of one plan have in common. The lineage keeps ledgers apart, which count their batches from one."""
    return f"batch-{batch:09d}-{lineage[:8]}"


def stage(folder: Path, plan: str, index: int, letters: Iterable[DeadLetter]) -> str:
    """Writes a block's letters and gives back the name that `publish` needs; empty if there are none."""
    ordered = sorted(letters, key=lambda each: (each.topic, each.partition, each.offset))
    if not ordered:
        return ""
    name = f"{plan}-{index:04d}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, name + _STAGED, (json.dumps(_to_dict(letter), ensure_ascii=False) + "\n" for letter in ordered))
    return name


def publish(folder: Path, plan: str, names: Iterable[str], *, read_again: bool = False) -> None:
    """Makes the staged files of a plan count, and takes away what an earlier attempt of the same plan left.

    `read_again`: the plan covers offsets that may have been delivered before, so letters that count already are left out.
    """
    wanted = {name for name in names if name}
    if not folder.is_dir():
        return
    if read_again:
        _leave_out_known(folder, plan, wanted)
    for name in wanted:
        staged = folder / (name + _STAGED)
        if staged.exists():
            staged.replace(folder / name)
    for left in folder.glob(f"*{plan}-*"):
        if left.name not in wanted:
            left.unlink(missing_ok=True)
    _sync(folder)


def ends(folder: Path) -> dict[Partition, int]:
    """One past the highest offset that has a letter, by what `_topic` would hold. Reads all files: ask once."""
    found: dict[Partition, int] = {}
    for told in committed(folder):
        partition = Partition(told["topic"], told["partition"])
        found[partition] = max(told["offset"] + 1, found.get(partition, 0))
    return found


def _leave_out_known(folder: Path, plan: str, names: Iterable[str]) -> None:
    """Rewrites the staged files without the letters that another plan's files hold."""
    known = {
        (told["topic"], told["partition"], told["offset"])
        for path in folder.glob("batch-*.jsonl")
        if not path.name.startswith(plan)
        for told in _letters(path)
    }
    for name in names:
        staged = folder / (name + _STAGED)
        if known and staged.exists():
            new = [told for told in _letters(staged) if (told["topic"], told["partition"], told["offset"]) not in known]
            _write(folder, staged.name, (json.dumps(told, ensure_ascii=False) + "\n" for told in new))


def _write(folder: Path, name: str, lines: Iterable[str]) -> None:
    """Whole or not at all."""
    temporary = folder / f".{name}.{os.getpid()}"
    with temporary.open("w", encoding="utf-8") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / name)


def committed(folder: Path) -> Iterator[dict[str, Any]]:
    """Every dead letter that counts, as it stands in the files."""
    for path in sorted(folder.glob("*.jsonl")):
        if not path.name.startswith("."):
            yield from _letters(path)


def _letters(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


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
