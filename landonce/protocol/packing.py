"""Cutting and packing: from what is there to blocks of an even size.

Large partitions are cut, small ones packed together. Nothing is skipped and nothing overlaps: the ranges of the blocks
are exactly the ranges that were taken. Which cut is made is free, for the plan makes it durable before anyone writes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from landonce.protocol.blocks import Block
from landonce.protocol.ranges import Partition, Range


@dataclass(frozen=True)
class Limits:
    """How much one batch and one block may hold, in records; bytes are turned into records by the average seen."""

    max_rows: int
    block_rows: int
    parallelism: int = 1
    paced: bool = False
    """A batch waits for its interval also when it is full."""

    @staticmethod
    def of(
        *,
        max_rows: int,
        max_bytes: int,
        block_rows: int,
        block_bytes: int,
        parallelism: int,
        record_bytes: float,
        paced: bool = False,
    ) -> Limits:
        """Both kinds of limit as one number of records, at least one record."""
        per_record = max(record_bytes, 1.0)
        return Limits(
            max_rows=max(1, min(max_rows, int(max_bytes / per_record))),
            block_rows=max(1, min(block_rows, int(block_bytes / per_record))),
            parallelism=max(1, parallelism),
            paced=paced,
        )


def take(available: Iterable[Range], max_rows: int) -> tuple[Range, ...]:
    """The beginning of each range, `max_rows` in all, shared evenly so that no partition starves.

    Partitions that need less than an even share leave the rest to the others. Where there are more partitions than
    `max_rows`, each still moves by one record: a share of nothing, batch after batch, would be starvation.
    """
    waiting = sorted(available, key=lambda each: each.span)
    taken: list[Range] = []
    left = max_rows
    for index, each in enumerate(waiting):
        share = max(1, math.ceil(left / (len(waiting) - index)))
        span = min(each.span, share)
        taken.append(Range(each.partition, each.first, each.first + span))
        left -= span
    return tuple(sorted(taken))


def pack(ranges: Iterable[Range], table: str, limits: Limits) -> tuple[Block, ...]:
    """Blocks of at most `block_rows`, evened out so that every core has the same number of blocks of the same size."""
    ordered = sorted(ranges)
    total = sum(each.span for each in ordered)
    if total == 0:
        return ()
    number = math.ceil(total / limits.block_rows)
    if number > 1:  # as many blocks as cores, or twice as many, or three times
        number = math.ceil(number / limits.parallelism) * limits.parallelism
    size = math.ceil(total / number)
    blocks: list[Block] = []
    current: list[Range] = []
    room = size
    for each in ordered:
        first = each.first
        while first < each.end:
            end = min(each.end, first + room)
            current.append(Range(each.partition, first, end))
            room -= end - first
            first = end
            if room == 0:
                blocks.append(Block(tuple(current), table, number=len(blocks)))
                current, room = [], size
    if current:
        blocks.append(Block(tuple(current), table, number=len(blocks)))
    return tuple(blocks)


def one_each(ranges: Iterable[Range], table: str, limits: Limits) -> tuple[Block, ...]:
    """One block per partition, which is the beginning of its range: so the blocks of a partition come one after the other."""
    return tuple(
        Block((Range(each.partition, each.first, min(each.end, each.first + limits.block_rows)),), table, number=number)
        for number, each in enumerate(sorted(ranges))
    )


def ready_first(blocks: Sequence[Block], ready: Collection[int]) -> tuple[int, ...]:
    """Those of the `ready` blocks (by index) that can land before the others: no partition has an earlier range in a block that is left.

    So what is taken of each partition is the beginning of its ranges, as if the plan had been made with that from the first.
    """
    kept = set(ready)
    while True:
        begins: dict[Partition, int] = {}
        for index, block in enumerate(blocks):
            for each in block.ranges if index not in kept else ():
                begins[each.partition] = min(each.first, begins.get(each.partition, each.first))
        behind = {
            index
            for index in kept
            if any(each.first > begins.get(each.partition, each.first) for each in blocks[index].ranges)
        }
        if not behind:
            return tuple(sorted(kept))
        kept -= behind


_FIRST_GUESS = 64.0 * 1024
"""Bytes per record where none could be sampled: far too large, so that the first blocks are far too small.

The first plan is replayed literally whatever happens, so one that does not fit into memory could never be got rid of.
"""
_SLACK = 3.0
_ROOM = 2.0


class BatchSizes(Protocol):
    """What the pipeline file says of batches and blocks."""

    @property
    def interval(self) -> float: ...
    @property
    def max_rows(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def block_rows(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...


@dataclass
class Pace:
    """Learns from every batch. Forgets in a crash, which costs nothing but another sample."""

    batch: BatchSizes
    deadline: float
    """Seconds; the least time that a plan is given."""
    parallelism: int
    paced: bool = False
    record_bytes: float = _FIRST_GUESS
    slowest: float = 0.0
    guessing: bool = True

    def limits(self) -> Limits:
        return Limits.of(
            max_rows=self.batch.max_rows,
            max_bytes=self.batch.max_bytes,
            block_rows=self.batch.block_rows,
            block_bytes=self.batch.block_bytes,
            parallelism=self.parallelism,
            record_bytes=self.record_bytes,
            paced=self.paced,
        )

    def sampled(self, record_bytes: float) -> None:
        """What the first records weigh. Those that follow may be larger, so the first batch is made for twice as much."""
        if self.guessing:
            self.record_bytes = record_bytes * _ROOM

    def patience(self) -> int:
        """Milliseconds: as configured, or three times the slowest recent write if that is longer."""
        return int(max(self.deadline, self.slowest * _SLACK) * 1000)

    def saw(self, records: int, bytes_read: int, seconds: float) -> None:
        """One write is done. Large records count at once, small ones by and by; how long the first one took, with workers
        that had to start, says nothing about the next."""
        if not self.guessing:
            self.slowest = max(seconds, self.slowest * 0.9)
        if records:
            average = bytes_read / records
            at_once = self.guessing or average > self.record_bytes
            self.record_bytes = average if at_once else (self.record_bytes + average) / 2
            self.guessing = False
