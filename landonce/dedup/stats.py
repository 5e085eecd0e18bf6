"""A scope in numbers: what it holds, and what it will need once its window is full, at the present rate. Reads only."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from landonce.config.dedup import Dedup
from landonce.config.model import duration_words
from landonce.dedup.chunks import accepted_records
from landonce.dedup.contents import Chunk
from landonce.dedup.look import Kept, look_again, moment
from landonce.dedup.runs import KEY_BYTES
from landonce.dedup.store import Recent, Scope, Store
from landonce.dedup.tables import NEW
from landonce.protocol.dedup import ListedRun, bucket_seconds
from landonce.protocol.ranges import NO_END, Partition, Range

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


@dataclass(frozen=True)
class WaitingEvents:
    """The accepted events of one partition whose payloads the store keeps."""

    pipeline: str
    partition: Partition
    accepted: int
    waiting: int
    bytes: int


@dataclass(frozen=True)
class Stats:
    """A scope in numbers."""

    place: str
    name: str
    scope: Scope
    runs: tuple[ListedRun, ...]
    partitions: tuple[WaitingEvents, ...]
    blocks: Mapping[str, tuple[int, int]]
    """By status: how many, and how many events they hold."""
    bytes: Mapping[str, int]
    growth: Growth | None

    @property
    def keys(self) -> int:
        return sum(run.rows for run in self.runs)

    def buckets(self) -> list[tuple[int, int, int]]:
        """(begins at, keys, runs), the oldest first."""
        found: dict[int, list[int]] = {}
        for run in self.runs:
            found.setdefault(run.bucket, []).append(run.rows)
        return [(bucket * self.scope.bucket, sum(rows), len(rows)) for bucket, rows in sorted(found.items())]


@look_again
def stats_of(kept: Kept) -> Stats:
    """Everything that `landonce dedup stats` shows."""
    store, scope = kept.store, kept.scope()
    runs = store.runs(scope)
    partitions: list[WaitingEvents] = []
    blocks: dict[str, tuple[int, int]] = {}
    for pipeline in store.pipelines():
        partitions += _waiting(store, pipeline, store.chunks(pipeline), kept.sent(pipeline))
        for each in store.blocks(pipeline):
            count, records = blocks.get(each.status, (0, 0))
            blocks[each.status] = count + 1, records + each.records
    return Stats(
        place=store.database.place,
        name=store.scope,
        scope=scope,
        runs=runs,
        partitions=tuple(partitions),
        blocks=blocks,
        bytes=store.table_bytes(),
        growth=growth(scope, runs, store.recent(int(time.time()) - DAY), kept.dedup, time.time()),
    )


def _waiting(
    store: Store, pipeline: str, chunks: Iterable[Chunk], sent: Mapping[Partition, int]
) -> list[WaitingEvents]:
    found: dict[Partition, WaitingEvents] = {}
    for chunk in chunks:
        partition = Partition(chunk.topic, chunk.partition)
        end = sent.get(partition, 0)
        left = 0 if chunk.last < end else chunk.accepted
        if chunk.first < end <= chunk.last:
            left = accepted_records(store, chunk, Range(partition, end, NO_END)).num_rows
        before = found.get(partition, WaitingEvents(pipeline, partition, 0, 0, 0))
        found[partition] = WaitingEvents(
            pipeline, partition, before.accepted + chunk.accepted, before.waiting + left, before.bytes + chunk.size
        )
    return [found[each] for each in sorted(found)]


def lines_of(found: Stats) -> list[str]:
    """The numbers in words."""
    scope, new = found.scope, found.blocks.get(NEW, (0, 0))
    waiting = sum(each.waiting for each in found.partitions)
    lines = [
        f"scope {found.name} in {found.place}",
        f"key: {scope.described}",
        f"{scope.accepted:,} accepted, {scope.copies:,} copies, {scope.seen_again:,} seen again (a topic that was read again)",
        f"{waiting:,} events wait to be sent; stored blocks: {new[0]:,} NEW, "
        f"{sum(count for status, (count, _) in found.blocks.items() if status != NEW):,} SENT",
        f"window: {duration_words(scope.ttl)}, in steps of {duration_words(scope.bucket)}; "
        + (f"keys from before {moment(scope.horizon / 1000)} are gone" if scope.horizon else "no key has expired yet"),
        f"{found.keys:,} keys in {len(found.runs)} runs of {scope.shards} shards",
        *(f"  accepted since {moment(begin)}: {keys:,} keys in {runs} runs" for begin, keys, runs in found.buckets()),
        *(
            f"  {each.partition}: {each.accepted:,} events are kept ({size_words(each.bytes)}), {each.waiting:,} of them wait"
            for each in found.partitions
        ),
        *(f"  table {name}: {size_words(size)}" for name, size in found.bytes.items()),
    ]
    if found.growth is not None:
        lines.append(growth_words(found.growth))
    return lines


def document_of(found: Stats) -> dict[str, Any]:
    """The same for scripts."""
    scope = found.scope
    return {
        "scope": found.name,
        "store": found.place,
        "rule": scope.described,
        "accepted": scope.accepted,
        "copies": scope.copies,
        "seen_again": scope.seen_again,
        "waiting": sum(each.waiting for each in found.partitions),
        "blocks": {status: {"blocks": count, "events": events} for status, (count, events) in found.blocks.items()},
        "ttl_s": scope.ttl,
        "bucket_s": scope.bucket,
        "horizon": moment(scope.horizon / 1000) if scope.horizon else None,
        "shards": scope.shards,
        "runs": len(found.runs),
        "keys": found.keys,
        "buckets": [{"since": moment(begin), "keys": keys, "runs": runs} for begin, keys, runs in found.buckets()],
        "partitions": [
            {
                "pipeline": each.pipeline,
                "topic": each.partition.topic,
                "partition": each.partition.number,
                "kept": each.accepted,
                "waiting": each.waiting,
                "bytes": each.bytes,
            }
            for each in found.partitions
        ],
        "bytes": dict(found.bytes),
        "growth": None
        if found.growth is None
        else {
            "events_per_second": found.growth.per_second,
            "keys": found.growth.keys,
            "mapped_bytes": found.growth.key_bytes,
            "disk_bytes": found.growth.disk,
        },
    }
