"""What people did to dead letters, as an audit takes it into account: values that they corrected, and letters that they dropped.

a record has                       in the target   a letter    then it
─────────────────────────────────  ──────────────  ──────────  ────────────────────────────────────────────────────
a corrected value                                  no          should be there, with that value
a corrected value                                  yes         is judged as any other: it was read again since
been dropped                                       no          counts as filtered
a letter in a replay on its way    yes             yes         landed, with the value that is on its way: its letter goes next
a letter in a replay on its way    no              yes         is a dead letter still
a letter that another file made    no              yes         is a dead letter still, and the report says so if it would land now
a letter that another file made    yes             yes         is judged as any other: it is in both

Once a record is delivered again, what was done to its letter is over, and the folder says nothing of it any more (`engine.replay.forget`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.engine.dead_letters import Place
from landonce.engine.replay import handled
from landonce.protocol.ranges import Partition
from landonce.sinks.audit import CountedOffsets, Offsets
from landonce.verify.topic import Window

_NONE: Mapping[int, bytes | None] = {}


@dataclass
class HandledLetters:
    """By partition, as the target knows it. Memory: what people did by hand."""

    corrected: Mapping[Partition, Mapping[int, bytes | None]] = field(default_factory=dict)
    dropped: Mapping[Partition, Mapping[int, bytes | None]] = field(default_factory=dict)
    landing: Mapping[Partition, Mapping[int, bytes | None]] = field(default_factory=dict)
    corrections: int = 0
    """Records that were compared with what a person made of them."""
    drops: int = 0
    """Records that were left out because a person dropped their letters."""
    waiting: int = 0
    """Letters that the present file would make none of."""
    replayable: bool = True

    @staticmethod
    def of(folders: Sequence[Path], pipeline: str, *, replayable: bool = True) -> HandledLetters:
        found = [handled(folder, pipeline) for folder in folders]
        return HandledLetters(
            _by_partition(each.corrected for each in found),
            _by_partition(dict.fromkeys(each.dropped) for each in found),
            _by_partition(each.landing for each in found),
            replayable=replayable,
        )

    def judged(
        self, label: Partition, window: Window, letters: CountedOffsets, held: Callable[[], Offsets]
    ) -> tuple[Window, CountedOffsets, Offsets]:
        """The window as it should have landed, the letters that still count, and the offsets whose letters were dropped. `held`: what any
        table holds in the window; asked only where a replay is on its way."""
        here = window.offsets
        landing = _within(self.landing.get(label, _NONE), here)
        landed = _within(landing, held()) if landing else {}
        letters = letters.without(landed)
        corrected = _within(self.corrected.get(label, _NONE), here, letters) | landed
        dropped = _within(self.dropped.get(label, _NONE), here, letters)
        self.corrections += len(corrected)
        self.drops += len(dropped)
        if corrected:
            mask = np.isin(here, np.fromiter(corrected, np.int64, len(corrected)))
            given = pa.array([corrected[at] for at in here[mask].tolist()], pa.binary())
            window = replace(window, values=pc.replace_with_mask(window.values, pa.array(mask), given))
        return window, letters, np.array(sorted(dropped), np.int64)

    def notes(self) -> tuple[str, ...]:
        said = []
        if self.corrections:
            said.append(
                f"{self.corrections:,} records landed as dead letters that were replayed; values that a person gave were compared."
            )
        if self.drops:
            said.append(f"{self.drops:,} dead letters were dropped by an operator; their records count as filtered.")
        if self.waiting:
            next_ = (
                "landonce dead replay FILE" if self.replayable else "landonce dead export FILE, and produce them again"
            )
            said.append(
                f"{self.waiting:,} dead letters would land now, or be filtered: the file or the table changed since. {next_}"
            )
        return tuple(said)


def _by_partition(found: Iterable[Mapping[Place, bytes | None]]) -> Mapping[Partition, Mapping[int, bytes | None]]:
    partitions: dict[Partition, dict[int, bytes | None]] = defaultdict(dict)
    for each in found:
        for (topic, number, offset), value in each.items():
            partitions[Partition(topic, number)][offset] = value
    return partitions


def _within(
    found: Mapping[int, bytes | None], offsets: Offsets, but: CountedOffsets | None = None
) -> dict[int, bytes | None]:
    """Those at these offsets, and where there is no letter."""
    if not found:
        return {}
    here = offsets[np.isin(offsets, np.fromiter(found, np.int64, len(found)))]
    if but is not None:
        here = here[~np.isin(here, but.offsets)]
    return {at: found[at] for at in here.tolist()}
