"""How large and how patient the next batch is: limits in bytes become records by the average seen so far. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from landonce.protocol.packing import Limits

_FIRST_GUESS = 64.0 * 1024
"""Bytes per record where none could be glimpsed: far too large, so that the first blocks are far too small.

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
    """Learns from every batch. Forgets in a crash, which costs nothing but another glimpse."""

    batch: BatchSizes
    deadline: float
    """Seconds; the least time that a plan is given."""
    parallelism: int
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
        )

    def glimpsed(self, record_bytes: float) -> None:
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
