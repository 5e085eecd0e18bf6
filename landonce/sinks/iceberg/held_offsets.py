"""Which offsets are present, and how often: bitmaps per partition.

The first bitmap of a partition holds every offset that is present, the second those that are present at least twice,
and so on. A bitmap of consecutive offsets takes next to no memory, and any other at most two bytes per offset, so an
audit of a billion rows still fits into memory.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from landonce.protocol.ranges import Partition
from landonce.sinks.audit import Counted, Offsets


class OffsetIndex:
    """A multiset of coordinates."""

    def __init__(self) -> None:
        self._levels: dict[Partition, list[BitMap64]] = defaultdict(list)

    def add(self, partition: Partition, offsets: Offsets) -> None:
        """Adds these offsets, in any order, possibly repeated."""
        left = Counted.of(offsets)
        levels = self._levels[partition]
        while len(left.offsets):
            _raise(levels, BitMap64(left.offsets.astype(np.uint64)))
            again = left.counts > 1
            left = Counted(left.offsets[again], left.counts[again] - 1)

    def optimize(self) -> None:
        """Compresses runs, once all offsets are added."""
        for levels in self._levels.values():
            for each in levels:
                each.run_optimize()

    def counted(self, partition: Partition, first: int, end: int) -> Counted:
        levels = self._levels.get(partition, [])
        if first >= end or not levels:
            return Counted.none()
        window = BitMap64(range(first, end))
        offsets = _numbers(levels[0] & window)
        counts = np.ones(len(offsets), np.int64)
        for each in levels[1:]:
            counts[np.searchsorted(offsets, _numbers(each & window))] += 1
        return Counted(offsets, counts)

    def repeated(self, partition: Partition, first: int, end: int) -> Counted:
        if len(self._levels.get(partition, [])) < 2:
            return Counted.none()
        found = self.counted(partition, first, end)
        again = found.counts > 1
        return Counted(found.offsets[again], found.counts[again])

    def count(self, partition: Partition, first: int, end: int) -> int:
        return sum(each.range_cardinality(first, end) for each in self._levels.get(partition, []))

    def lowest(self, partition: Partition, first: int, end: int) -> int | None:
        levels = self._levels.get(partition)
        if not levels or not levels[0].range_cardinality(first, end):
            return None
        return int(levels[0].next_set_bit(first))

    def rows(self) -> dict[Partition, int]:
        return {partition: sum(map(len, levels)) for partition, levels in sorted(self._levels.items())}


def _raise(levels: list[BitMap64], added: BitMap64) -> None:
    """Adds to the first level; offsets that are already there go one level up."""
    for at, level in enumerate(levels):
        again = level & added
        level |= added
        levels[at] = level
        if not again:
            return
        added = again
    levels.append(added)


def _numbers(bitmap: BitMap64) -> Offsets:
    return np.frombuffer(bitmap.to_array(), np.uint64).astype(np.int64) if bitmap else np.empty(0, np.int64)


def split(topics: pa.Array, numbers: pa.Array, offsets: pa.Array) -> list[tuple[Partition, Offsets]]:
    """The offsets of each partition. None of the columns holds a null."""
    coded = topics if pa.types.is_dictionary(topics.type) else topics.dictionary_encode()
    labels = coded.dictionary.to_pylist()
    number = np.asarray(numbers.to_numpy(zero_copy_only=False), np.int64)
    width = int(number.max(initial=0)) + 1
    code = np.asarray(coded.indices.to_numpy(zero_copy_only=False), np.int64) * width + number
    order = np.argsort(code, kind="stable")
    code, sorted_offsets = code[order], np.asarray(offsets.to_numpy(zero_copy_only=False), np.int64)[order]
    edges = np.flatnonzero(np.diff(code)) + 1
    firsts = code[np.concatenate(([0], edges))] if len(code) else code
    parts = np.split(sorted_offsets, edges) if len(code) else []
    found = zip(firsts.tolist(), parts, strict=True)
    return [(Partition(labels[at // width], at % width), part) for at, part in found]
