"""What a store will need once its window is full, at the present rate. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from landonce.config.dedup import Dedup
from landonce.dedup.runs import KEY_BYTES
from landonce.dedup.store import Recent, Scope
from landonce.protocol.dedup import ListedRun, bucket_seconds

DAY = 86_400
SPANS = (600, 3600, DAY)
"""Seconds before now in which the records of a topic are counted, the first in which there are any."""


@dataclass(frozen=True)
class Growth:
    """What the store will hold."""

    per_second: float
    keys: int
    """Once the window is full."""
    payload_bytes: int
    block_bytes: int
    """Of blocks that were sent, as long as they are kept."""

    @property
    def key_bytes(self) -> int:
        """In the database; and as much in files on each machine that compares, mapped into memory: the system drops and reads them again as it
        needs memory."""
        return self.keys * KEY_BYTES

    @property
    def disk(self) -> int:
        """Of the database."""
        return self.key_bytes + self.payload_bytes + self.block_bytes


def growth(
    scope: Scope, runs: Sequence[ListedRun], recent: Recent | None, dedup: Dedup, now: float, event_bytes: float = 0.0
) -> Growth | None:
    """By what was accepted in the last day; by the newest bucket of keys, if events are removed once they are sent. None: nothing tells.

    `event_bytes`: of an event that is kept, if the store holds too few to say.
    """
    if recent is not None and dedup.payloads == "ttl":
        seconds = max(now - recent.began, 1.0)
        return grown(dedup, scope.bucket, recent.events / seconds, recent.size / recent.events)
    if not runs:
        return None
    newest = max(run.bucket for run in runs)
    keys = sum(run.rows for run in runs if run.bucket == newest)
    seconds = min(max(now - newest * scope.bucket, 1.0), float(scope.bucket))
    size = recent.size / recent.events if recent is not None else event_bytes
    return grown(dedup, scope.bucket, keys / seconds, size)


def rate_of(records: Mapping[int, int]) -> tuple[int, float] | None:
    """The span, and records per second in it, by the number of records in each of `SPANS`. None: there are none."""
    return next(((span, records[span] / span) for span in SPANS if records.get(span)), None)


def grown(dedup: Dedup, bucket: int | None, per_second: float, event_bytes: float) -> Growth:
    """What a full window holds at this rate. `event_bytes`: of a new event in the store. `bucket`: of a scope that is there."""
    window = dedup.ttl + (bucket or bucket_seconds(int(dedup.ttl)))
    payloads = window if dedup.payloads == "ttl" else 0.0
    return Growth(
        per_second,
        int(per_second * window),
        int(per_second * payloads * event_bytes),
        int(per_second * dedup.keep_sent * event_bytes),
    )


def growth_words(growth: Growth) -> str:
    return (
        f"at {growth.per_second:,.1f} new events/s, the full window holds {growth.keys:,} keys: {size_words(growth.key_bytes)} in files that are "
        f"mapped into memory, and about {size_words(growth.disk)} in the database (keys {size_words(growth.key_bytes)}, events "
        f"{size_words(growth.payload_bytes)}, stored blocks {size_words(growth.block_bytes)})"
    )


def size_words(size: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
