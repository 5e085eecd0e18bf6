"""The index of offsets that are there, against a plain counter."""

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from landonce.protocol.ranges import Partition
from landonce.sinks.audit import LAST
from landonce.sinks.iceberg.held import OffsetIndex, split

HERE = Partition("clicks", 0)
FAR = 5_000_000_000
"""More than 32 bits."""


@pytest.mark.parametrize("seed", range(50))
def test_any_multiset_in_any_pieces(seed):
    luck = random.Random(seed)
    base = luck.choice([0, FAR])
    index, there = OffsetIndex(), Counter()
    for _ in range(luck.randint(0, 8)):
        piece = [base + luck.randint(0, 40) for _ in range(luck.randint(1, 30))]
        there.update(piece)
        index.add(HERE, np.array(piece))
        if luck.random() < 0.3:
            index.optimize()
    for _ in range(20):
        first, end = sorted(base + luck.randint(-5 if base else 0, 50) for _ in range(2))
        inside = {at: count for at, count in sorted(there.items()) if first <= at < end}
        found = index.counted(HERE, first, end)
        assert dict(zip(found.offsets.tolist(), found.counts.tolist(), strict=True)) == inside
        again = index.repeated(HERE, first, end)
        assert again.offsets.tolist() == [at for at, count in inside.items() if count > 1]
        assert index.count(HERE, first, end) == sum(inside.values())
        assert index.lowest(HERE, first, end) == min(inside, default=None)
    assert index.count(HERE, 0, LAST) == sum(there.values())
    assert index.rows() == ({HERE: sum(there.values())} if there else {})


def test_what_is_not_there():
    index = OffsetIndex()
    assert not len(index.counted(HERE, 0, 10).offsets)
    assert index.lowest(HERE, 0, LAST) is None
    assert index.count(HERE, 0, LAST) == 0


def test_many_rows_take_little_memory():
    """Two million neighbours are less than a page."""
    index = OffsetIndex()
    for first in range(0, 2_000_000, 100_000):
        index.add(HERE, np.arange(first, first + 100_000))
    index.optimize()
    assert index.count(HERE, 0, LAST) == 2_000_000
    assert len(index.counted(HERE, 0, LAST).offsets) == 2_000_000
    ((bitmap,),) = index._levels.values()
    assert len(bitmap.serialize()) < 4096


@pytest.mark.parametrize("encoded", [False, True])
def test_rows_are_told_apart_by_their_partitions(encoded):
    rows = [("b", 1, 7), ("a", 0, 3), ("b", 0, 1), ("b", 1, 5), ("a", 0, 4)]
    topics, numbers, offsets = (pa.array([row[at] for row in rows]) for at in range(3))
    found = split(topics.dictionary_encode() if encoded else topics, numbers, offsets)
    assert {partition: at.tolist() for partition, at in found} == {
        Partition("b", 1): [7, 5],
        Partition("a", 0): [3, 4],
        Partition("b", 0): [1],
    }
    assert split(topics[:0], numbers[:0], offsets[:0]) == []
