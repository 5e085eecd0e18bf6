"""Coordinates as SQL and as numbers: asking for ranges, and telling which rows are missing. Pure, no row-wise Python.

Within the ranges of a block every coordinate has one number: where its partition begins in a line of all partitions,
plus its offset from there. So sets of coordinates are compared as sets of integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from landonce.protocol.ranges import Partition, Range

Numbers = npt.NDArray[np.int64]


def condition(topic: str, partition: int, first: int, end: int | None = None) -> str:
    """One range as a condition. `topic` is the name of a parameter; the numbers are numbers."""
    upper = "" if end is None else f" AND _offset < {int(end)}"
    return f"(_topic = {{{topic}:String}} AND _partition = {int(partition)} AND _offset >= {int(first)}{upper})"


def where(wanted: Iterable[tuple[Partition, int, int | None]]) -> tuple[str, dict[str, str]]:
    """Ranges as a condition and its parameters."""
    topics: dict[str, str] = {}
    parts = []
    for partition, first, end in wanted:
        name = topics.setdefault(partition.topic, f"topic_{len(topics)}")
        parts.append(condition(name, partition.number, first, end))
    return " OR ".join(parts), {name: topic for topic, name in topics.items()}


@dataclass(frozen=True)
class Line:
    """All partitions of some ranges, one behind the other."""

    partitions: tuple[Partition, ...]
    lows: Numbers
    highs: Numbers
    bases: Numbers

    @staticmethod
    def of(ranges: Sequence[Range]) -> Line:
        spans: dict[Partition, tuple[int, int]] = {}
        for each in ranges:
            low, high = spans.get(each.partition, (each.first, each.end))
            spans[each.partition] = (min(low, each.first), max(high, each.end))
        partitions = tuple(sorted(spans))
        lows = np.array([spans[each][0] for each in partitions], np.int64)
        highs = np.array([spans[each][1] for each in partitions], np.int64)
        bases = np.concatenate([np.zeros(1, np.int64), np.cumsum(highs - lows)[:-1]]) if partitions else lows
        return Line(partitions, lows, highs, bases)

    def numbers(self, rows: pa.Table) -> Numbers:
        """The number of each row's coordinate. Every row must be within the ranges."""
        topics = sorted({each.topic for each in self.partitions})
        keys = np.array([(topics.index(each.topic) << 32) | each.number for each in self.partitions], np.int64)
        topic = pc.index_in(rows.column("_topic").cast(pa.string()), value_set=pa.array(topics, pa.string()))
        wanted = (_plain(pc.fill_null(topic, -1)) << 32) | _plain(rows.column("_partition"))
        order = np.argsort(keys)
        at = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
        offsets = _plain(rows.column("_offset"))
        if not np.all((keys[at] == wanted) & (offsets >= self.lows[at]) & (offsets < self.highs[at])):
            raise ValueError("a row lies outside of the ranges of its block")
        return np.asarray(self.bases[at] + offsets - self.lows[at], np.int64)


@dataclass(frozen=True)
class Comparison:
    """Which of the expected coordinates are missing, in their order, and how many are there more than once."""

    missing: npt.NDArray[np.bool_]
    found_any: bool
    duplicated: int


def compare(expected: Numbers, found: Numbers) -> Comparison:
    """What is there of what is expected. What is there beyond it (compacted away since) does not matter."""
    there, counts = np.unique(found, return_counts=True)
    return Comparison(
        missing=~np.isin(expected, there, assume_unique=False),
        found_any=len(there) > 0,
        duplicated=int(np.count_nonzero(counts > 1)),
    )


def _plain(column: pa.ChunkedArray | pa.Array) -> Numbers:
    return np.asarray(column.cast(pa.int64()).to_numpy(), np.int64)
