"""Offsets at fault as runs, so that a million of them are one line. It counts everything and lists the first runs.

A run consists of neighbours in the sequence of known offsets, not of consecutive numbers: if compaction has left every
tenth record, a hundred missing ones are still one run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from landonce.verify.judge import Mask, Offsets

LISTED = 20
"""How many runs are listed per fault, place and partition."""


@dataclass(frozen=True)
class Run:
    """Offsets `[first, end)`, of which `records` are at fault: all that are known in between."""

    first: int
    end: int
    records: int


@dataclass
class Runs:
    """The runs of one fault in one partition, collected window by window in offset order."""

    records: int = 0
    more: int = 0
    """Runs that are counted and not listed."""
    listed: list[Run] = field(default_factory=list)
    _open: bool = False
    """The last run reached the end of its window, and may continue in the next."""

    def add(self, offsets: Offsets, mask: Mask) -> None:
        """One window: every known offset, and which of them are at fault."""
        edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
        starts, stops = edges[::2], edges[1::2]
        self.records += int(np.count_nonzero(mask))
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            run = Run(int(offsets[start]), int(offsets[stop - 1]) + 1, stop - start)
            self._take(run, goes_on=self._open and start == 0)
        if len(offsets):
            self._open = bool(mask[-1])

    def _take(self, run: Run, *, goes_on: bool) -> None:
        if goes_on and self.more == 0 and self.listed:
            last = self.listed[-1]
            self.listed[-1] = replace(last, end=run.end, records=last.records + run.records)
        elif goes_on and self.more:
            return
        elif len(self.listed) < LISTED:
            self.listed.append(run)
        else:
            self.more += 1
