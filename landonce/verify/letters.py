"""The dead letters that count, as numbers: one pass over the files, eight bytes for each letter."""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

import numpy as np

from landonce.errors import LettersUnreadable
from landonce.plan.ranges import Partition
from landonce.verify.judge import Counted


class Letters:
    """Where dead letters come from, per partition. Topics go by their labels."""

    def __init__(self, folder: Path, labels: Collection[str]) -> None:
        found: dict[Partition, array[int]] = defaultdict(lambda: array("q"))
        for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
            if not path.name.startswith("."):
                _read(path, labels, found)
        self._counted = {
            partition: Counted.of(np.frombuffer(offsets, np.int64)) for partition, offsets in found.items()
        }

    def of(self, partition: Partition) -> Counted:
        return self._counted.get(partition, Counted.none())

    def partitions(self) -> tuple[Partition, ...]:
        return tuple(sorted(self._counted))


def _read(path: Path, labels: Collection[str], found: dict[Partition, array[int]]) -> None:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                told = json.loads(line)
                partition, offset = Partition(told["topic"], int(told["partition"])), int(told["offset"])
            except (ValueError, KeyError, TypeError):
                raise LettersUnreadable(
                    f"{path}, line {number}: is not a dead letter; the file was cut or changed.",
                    safe="An audit changes nothing.",
                    command="restore the file, or move it away and run verify again, which then names what is missing",
                ) from None
            if partition.topic in labels:
                found[partition].append(offset)
