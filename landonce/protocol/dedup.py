"""Content deduplication: who is a copy, when an accept may commit, which ids expire, which runs are merged, what is removed. Pure.

Four functions are mirrors of code that works on many rows at once: `judge` of numpy in `dedup.comparing`, and `committed`, `forgotten` and
`resharded` of SQL in `dedup.store`, on `Lists`. The model checker explores the mirrors, and `tests/unit/test_dedup_decisions.py` holds the
real ones to them. Everything else here is called as it is.

The ids of accepted events are kept in runs: sorted, immutable, one list of runs per shard. Each accept adds one run per
shard. A run belongs to the bucket of its acceptance time, and a merge to one bucket, so expiry deletes whole runs.

A lookup searches every run of its shard, so merges keep the number of runs small. When there are `FAN_IN` runs of one
bucket and level, they are merged into one run of the next level; fewer, if they fill more than half a run of
`MOST_KEYS`. So each level has at most `FAN_IN` - 1 runs (level 0: 2 x `FAN_IN` - 2) of up to `MOST_KEYS` / 2 keys. A
run of level n holds at least `FAN_IN` ** n keys or more than `MOST_KEYS` / 2, so there are at most 8 levels, and a key
is rewritten at most 7 times. An older bucket gets no more runs, so its runs are also merged across levels, if that at
least doubles the size of each of them. For K keys of one shard in a bucket there are at most

    63 + K / 2,000,000 runs in the newest bucket, and 23 + K / 1,300,000 in an older one,

and those that wait for a merge. These are the worst cases. With 16 shards and batches of 100,000 events there are 3
levels, up to 30 runs in the newest bucket, and 1 or 2 in an older one.

Shards grow evenly. If they all merged at the same number of runs, one batch would pay for all of them. So the number
of runs of level 0 that are merged differs by shard, and large merges wait for the shard's turn: one shard per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from typing import NamedTuple, Protocol, TypeVar

from landonce.protocol.ledger import LedgerState
from landonce.protocol.ranges import Partition

P = TypeVar("P")
Content = TypeVar("Content")
Late = TypeVar("Late", covariant=True)

FAN_IN = 8
"""The fewest runs of one level that are merged."""
MOST_KEYS = 4_000_000
"""The most keys of a run, so that no batch waits long for a merge."""
LARGE = MOST_KEYS // 16
"""A merge of more keys than this, and than 16 batches bring, waits for the shard's turn."""
ORPHANED = 24 * 3600
"""Seconds after which bytes that no list names are removed."""


@dataclass(frozen=True)
class ListedRun:
    """What the store's list says of one run."""

    run: str
    shard: int
    level: int
    bucket: int
    rows: int
    segments: int
    digest: str


def bucket_seconds(ttl_s: int) -> int:
    """An eighth of the ttl. A scope keeps the length that it began with, because runs hold numbers of buckets."""
    return max(1, ttl_s // 8)


def bucket_of(now_s: int, bucket_s: int) -> int:
    """The bucket of events that are accepted now."""
    return now_s // bucket_s


def expired(
    buckets: Iterable[int], *, now_s: int, ttl_s: int, bucket_s: int, horizon_ms: int
) -> tuple[tuple[int, ...], int]:
    """The buckets to drop, and the horizon after that: the end of the last dropped bucket in milliseconds.

    A bucket is dropped when each of its keys is older than the ttl. The horizon moves only if a bucket is dropped, so a
    new scope can read topics that are older than its ttl. It never moves back, whatever the clock does.
    """
    dropped = tuple(sorted({each for each in buckets if (each + 1) * bucket_s + ttl_s <= now_s}))
    return dropped, max([horizon_ms, *((each + 1) * bucket_s * 1000 for each in dropped)])


def has_expired(bucket: int, *, bucket_s: int, horizon_ms: int) -> bool:
    """Whether the keys of a bucket are gone."""
    return (bucket + 1) * bucket_s * 1000 <= horizon_ms


class Moments(Protocol[Late]):
    """A moment, or an array of moments."""

    def __lt__(self, other: int, /) -> Late: ...


def is_late(timestamp_ms: Moments[Late], horizon_ms: int) -> Late:
    """Whether a record cannot be judged, because the key of its first copy may be gone; of many records at once, which of them.

    A record is accepted after its Kafka timestamp. So if the timestamp is at or above the horizon, the record's own key
    was accepted at or above it, and is still there. This does not hold for a timestamp that was in the future when the
    record was accepted.
    """
    return timestamp_ms < horizon_ms


def has_turn(shard: int, *, version: int, shards: int) -> bool:
    """Whether an accept that saw this version of the shard may do a large merge. Versions of shards rise together."""
    return (version + shard) % max(shards, FAN_IN) == 0


def merge_due(runs: Iterable[ListedRun], *, turn: bool) -> tuple[ListedRun, ...]:
    """The runs of one shard to merge next, oldest bucket and lowest level first, or none.

    They are of one bucket and, unless the bucket is an older one, of one level. Together they hold at most `MOST_KEYS`
    keys. Call it once per accept, with the run that the accept adds. `turn` is what `has_turn` says.
    """
    ordered = sorted(runs, key=lambda each: (each.bucket, each.level, each.rows, each.run))
    limit = max([LARGE, *(2 * FAN_IN * each.rows for each in ordered if each.level == 0)])
    small: list[tuple[ListedRun, ...]] = []
    large: list[tuple[ListedRun, ...]] = []
    for due in _due(ordered):
        (small if _keys(due) <= limit else large).append(due)
    return next(iter([*large, *small] if turn else small), ())


def merged_level(runs: Sequence[ListedRun]) -> int:
    """The level of the run that replaces these."""
    return max(each.level for each in runs) + 1


# Who is a copy.


class Judgement(Enum):
    """What a record is. Only new ones are accepted."""

    NEW = "new"
    COPY = "copy"
    SEEN_AGAIN = "seen again"


class RecordPlace(NamedTuple):
    """The coordinates of a record."""

    label: str
    partition: int
    offset: int


class Event(NamedTuple):
    """A record that has an id."""

    id: Hashable
    timestamp: int
    place: RecordPlace


def judge(
    blocks: Sequence[Sequence[Event]], known: Mapping[Hashable, RecordPlace]
) -> tuple[tuple[Judgement, ...], ...]:
    """Judges all records of a batch together, block by block. `known`: where the accepted event of an id is.

        the id is known          the record                                  is
        ───────────────────────  ──────────────────────────────────────────  ──────────
        no                       the first of the batch that has the id      new
        no                       any other                                   a copy
        yes, from this record    the topic is read again                     seen again
        yes, from another one                                                a copy

    The first of a batch has the lowest timestamp; then topic, partition and offset decide.
    """
    first: dict[Hashable, RecordPlace] = {}
    for event in sorted((event for block in blocks for event in block), key=lambda each: each[1:]):
        first.setdefault(event.id, event.place)
    return tuple(tuple(_judged(event, known.get(event.id), first[event.id]) for event in block) for block in blocks)


def _judged(event: Event, known: RecordPlace | None, first: RecordPlace) -> Judgement:
    if known is None:
        return Judgement.NEW if event.place == first else Judgement.COPY
    return Judgement.SEEN_AGAIN if event.place == known else Judgement.COPY


# The lists of a scope, and what changes them.


@dataclass(frozen=True)
class Terms:
    """What a batch was split and judged by. A worker splits by it before it looks at the shards, so versions alone do not show a change."""

    lineage: str
    rule: str
    shards: int
    horizon_ms: int


@dataclass(frozen=True)
class Added:
    """What one commit adds."""

    terms: Terms
    seen: tuple[tuple[int, int], ...]
    """The shards that were searched, and their versions."""
    runs: frozenset[ListedRun] = frozenset()
    merged: frozenset[ListedRun] = frozenset()
    chunks: frozenset[Hashable] = frozenset()


@dataclass(frozen=True)
class Lists:
    """What counts in a scope."""

    terms: Terms
    versions: tuple[int, ...]
    runs: frozenset[ListedRun] = frozenset()
    chunks: frozenset[Hashable] = frozenset()
    marks: tuple[tuple[str, int, Hashable], ...] = ()
    """By pipeline: the number of its commits, and its mark."""

    def number(self, pipeline: str) -> int:
        return next((number for name, number, _ in self.marks if name == pipeline), 0)


def may_commit(
    seen: Mapping[int, int], now: Mapping[int, int], judged: Terms | None = None, current: Terms | None = None
) -> bool:
    """Whether the searched shards still have the versions that the lookup saw, and the scope the terms that the batch was judged by.

    If not, another accept may have added an id that this lookup missed, ids may have expired since records were found not to be late, or
    ids may have been looked up in shards that are not theirs any more: roll back, and compare again.
    """
    return judged == current and all(now.get(shard) == version for shard, version in seen.items())


def committed(lists: Lists, pipeline: str, expected: int, mark: Hashable, added: Added | None = None) -> Lists | bool:
    """The lists after a commit, all of it or nothing. False: the pipeline's mark is not the expected one. True: compare again."""
    if lists.number(pipeline) != expected:
        return False
    marks = tuple(sorted({each[0]: each for each in (*lists.marks, (pipeline, expected + 1, mark))}.values()))
    if added is None:
        return replace(lists, marks=marks)
    if not may_commit(dict(added.seen), dict(enumerate(lists.versions)), added.terms, lists.terms):
        return True
    touched = {run.shard for run in (*added.runs, *added.merged)}
    return replace(
        lists,
        versions=tuple(version + (shard in touched) for shard, version in enumerate(lists.versions)),
        runs=(lists.runs - added.merged) | added.runs,
        chunks=lists.chunks | added.chunks,
        marks=marks,
    )


def forgotten(lists: Lists, buckets: Collection[int], horizon_ms: int) -> Lists:
    """The lists without the ids of these buckets. The horizon never moves back: who found these buckets may be slow."""
    return replace(
        lists,
        terms=replace(lists.terms, horizon_ms=max(horizon_ms, lists.terms.horizon_ms)),
        versions=tuple(version + 1 for version in lists.versions),
        runs=frozenset(run for run in lists.runs if run.bucket not in buckets),
    )


def resharded(lists: Lists, seen: Mapping[int, int], shards: int, runs: Collection[ListedRun]) -> Lists | None:
    """The lists with another number of shards, and these runs in place of all others. None: the shards, or their versions, are not those that
    were seen."""
    if dict(seen) != dict(enumerate(lists.versions)):
        return None
    version = max(lists.versions) + 1
    return replace(lists, terms=replace(lists.terms, shards=shards), versions=(version,) * shards, runs=frozenset(runs))


# What is sent, and what is removed.


def keeps_stored(stored: Hashable | None, made: Hashable) -> bool:
    """Whether a stored block is the one to send. It is known by its ranges, never by its content: code that changed makes other content."""
    return stored is not None and stored == made


class PushStep(Enum):
    """What an attempt does with a block next."""

    FREEZE = "freeze"
    """Store it, and take what is stored then: another attempt may have been faster."""
    SEND = "send"


def next_push_step(stored: Content | None, made: Content) -> tuple[PushStep, Content]:
    """Only what is stored is sent, so every attempt sends the same, whatever the code has become. A block that is not stored was never
    sent."""
    if stored is None:
        return PushStep.FREEZE, made
    return PushStep.SEND, stored


def all_accepted(end: int, accepted_up_to: int) -> bool:
    """Whether the store has accepted a range whole. A plan may be older than a store that was restored: its records are accepted again
    first."""
    return end <= accepted_up_to


def none_removed(first: int, removed_up_to: int) -> bool:
    """Whether the store still holds all chunks of a range."""
    return first >= removed_up_to


def may_remove(last: int, accepted_at: int, *, sent_up_to: int, before: int) -> bool:
    """Whether nobody needs a chunk any more: all of it is in the target, and it was accepted before the moment to which payloads stay."""
    return last < sent_up_to and accepted_at < before


def may_list(written_at: int, now_s: int) -> bool:
    """Whether a commit may list bytes that were written then. After `ORPHANED`, somebody may have removed them; clocks may differ."""
    return written_at > now_s - ORPHANED // 2


def behind(accepted: Mapping[P, int], held: Mapping[P, int]) -> frozenset[P]:
    """The partitions of which the target holds events that the store does not know: it was restored, and has forgotten keys. Both by
    partition, the offset after the last one."""
    return frozenset(partition for partition, end in held.items() if end > accepted.get(partition, 0))


def beyond(known: LedgerState, accepted: Mapping[Partition, int]) -> dict[Partition, int]:
    """How far the ledger of the target is where the store is not: in partitions that it has sent, or has a plan for. A target that cannot be
    asked has a ledger, too."""
    ends = known.committed()
    for partition, end in known.pending.ends().items() if known.pending is not None else ():
        ends[partition] = max(end, ends.get(partition, 0))
    firsts = {partition: position.first for partition, position in known.positions}
    return {
        partition: end
        for partition, end in ends.items()
        if end > max(accepted.get(partition, 0), firsts.get(partition, 0))
    }


def _due(ordered: Sequence[ListedRun]) -> Iterator[tuple[ListedRun, ...]]:
    for bucket, of_bucket in _grouped(ordered, lambda each: each.bucket):
        if bucket < ordered[-1].bucket and (fit := _that_double(_that_fit(of_bucket))):
            yield fit
        for level, of_level in _grouped(of_bucket, lambda each: each.level):
            fan_in = FAN_IN + of_level[0].shard % FAN_IN if level == 0 else FAN_IN
            fit = _that_fit(of_level)
            full = len(fit) > 1 and _keys(fit) > MOST_KEYS // 2
            if len(of_level) >= fan_in and (len(fit) >= FAN_IN or full):
                yield fit


def _grouped(runs: Iterable[ListedRun], by: Callable[[ListedRun], int]) -> list[tuple[int, list[ListedRun]]]:
    return [(key, list(group)) for key, group in groupby(runs, key=by)]


def _keys(runs: Iterable[ListedRun]) -> int:
    return sum(each.rows for each in runs)


def _that_fit(runs: Iterable[ListedRun]) -> tuple[ListedRun, ...]:
    """As many runs as fit into one, smallest first."""
    fit: list[ListedRun] = []
    keys = 0
    for each in sorted(runs, key=lambda each: (each.rows, each.run)):
        keys += each.rows
        if keys > MOST_KEYS:
            break
        fit.append(each)
    return tuple(fit)


def _that_double(runs: tuple[ListedRun, ...]) -> tuple[ListedRun, ...]:
    """The smallest of these runs, as many as at least double in size: a late small run does not rewrite a large one."""
    while runs and runs[-1].rows > _keys(runs[:-1]):
        runs = runs[:-1]
    return runs if len(runs) > 1 else ()
