"""The dead letters that count, as numbers: one pass over the files, eight bytes for each letter."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

import numpy as np

from landonce.commit.dead_letters import committed
from landonce.plan.ranges import Partition
from landonce.verify.judge import Counted


class Letters:
    """Where dead letters come from, per partition. Topics go by their labels."""

    def __init__(self, folder: Path, pipeline: str, labels: Collection[str]) -> None:
        found: dict[Partition, array[int]] = defaultdict(lambda: array("q"))
        for told in committed(folder, pipeline):
            if told["topic"] in labels:
                found[Partition(told["topic"], int(told["partition"]))].append(int(told["offset"]))
        self._counted = {
            partition: Counted.of(np.frombuffer(offsets, np.int64)) for partition, offsets in found.items()
        }

    def of(self, partition: Partition) -> Counted:
        return self._counted.get(partition, Counted.none())

    def partitions(self) -> tuple[Partition, ...]:
        return tuple(sorted(self._counted))
