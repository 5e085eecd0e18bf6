"""The offsets of the dead letters that count: one pass over the files, eight bytes for each letter."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from landonce.engine.dead_letters import committed, refused
from landonce.protocol.ranges import Partition
from landonce.sinks.audit import Counted, Offsets


class Letters:
    """The offsets of dead letters, per partition. Topics are labels."""

    def __init__(self, folder: Path, pipeline: str, labels: Collection[str]) -> None:
        counted = _by_partition(committed(folder, pipeline), labels)
        self._counted = {partition: Counted.of(offsets) for partition, offsets in counted.items()}
        self._refused = _by_partition(refused(folder, pipeline), labels)

    def of(self, partition: Partition) -> Counted:
        return self._counted.get(partition, Counted.none())

    def refused(self, partition: Partition) -> Offsets:
        """The records that the target itself refused. Nothing else could predict that."""
        return self._refused.get(partition, np.empty(0, np.int64))

    def partitions(self) -> tuple[Partition, ...]:
        return tuple(sorted(self._counted))


def _by_partition(letters: Iterable[dict[str, Any]], labels: Collection[str]) -> dict[Partition, Offsets]:
    found: dict[Partition, array[int]] = defaultdict(lambda: array("q"))
    for letter in letters:
        if letter["topic"] in labels:
            found[Partition(letter["topic"], int(letter["partition"]))].append(int(letter["offset"]))
    return {partition: np.frombuffer(offsets, np.int64) for partition, offsets in found.items()}
