"""Another key rule: the ids of all accepted events are computed again from the stored payloads, and replace the old ones in one transaction.

    read the runs ─► read the payloads of accepted events ─► new ids ─► write new runs ─► swap runs, rule and epochs

An event is found in the runs by its coordinates. One that is not there was accepted under an earlier rule, and has no key under the present one,
or another event has it: its chunk says when it was accepted. Killed anywhere, the store has the old keys and rule, or the new ones; bytes that no
list names are removed after a day. The swap fences drivers, so none of them goes on with the old rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from landonce.dedup.chunks import VALUE, StoredSequence, accepted_records, columns_of
from landonce.dedup.ids import Coordinates, compute
from landonce.dedup.look import Kept, key_fields, look_again
from landonce.dedup.rule import KeyRule
from landonce.dedup.runs import (
    FIRST_SEEN,
    Keys,
    digest_of,
    encode,
    first_of_each,
    first_seen_of,
    place_of,
    sort_ids,
    split,
)
from landonce.dedup.store import Replacement, Scope, ShardRuns, Store
from landonce.errors import Fenced, NothingToDo, StoreDamaged
from landonce.protocol.dedup import MOST_KEYS, ListedRun, bucket_of, has_expired
from landonce.protocol.ledger import Note, taken
from landonce.protocol.marks import Mark
from landonce.protocol.ranges import NO_END, Partition, Range
from landonce.read.decoding import Decoding, decoder_of
from landonce.read.kafka.records import last_headers
from landonce.read.schema.fields import Schema

_LARGE = 2**30


@dataclass(frozen=True)
class Rekeying:
    """The new keys, and what a person must know before they count."""

    scope: Scope
    shards: dict[int, ShardRuns]
    rule: KeyRule
    marks: dict[str, Mark]
    buckets: dict[int, Keys]
    """The new keys by bucket, sorted, without copies inside a bucket."""
    events: int
    unknown: int
    """Events of the window whose payload is not in the store any more."""
    keyless: int
    """Events that have no key under the new rule."""
    merged: int
    """Events that are copies of another one under the new rule."""
    unreadable: dict[str, int]
    """By pipeline: events whose stored payload cannot be decoded as this file says."""

    def words(self) -> list[str]:
        distinct = self.events - sum(self.unreadable.values()) - self.keyless - self.merged
        return [
            f"the key was: {self.scope.described}",
            f"it becomes:  {self.rule.describe()}",
            f"{self.events:,} accepted events of the window get new ids: {distinct:,} distinct ones",
        ]

    def costs(self) -> list[str]:
        lines = [
            "Copies that the old rule dropped stay dropped, also those that are events of their own under the new rule."
        ]
        if self.merged:
            lines.append(
                f"{self.merged:,} events are copies of another event under the new rule. They were accepted, and stay in the target."
            )
        if self.keyless:
            lines.append(
                f"{self.keyless:,} events have no key under the new rule: what is sent again of them is a dead letter."
            )
        for pipeline, count in self.unreadable.items():
            lines.append(
                f"{count:,} events of pipeline {pipeline} cannot be decoded as this file says, and get no id: a copy of one would land again."
            )
        if self.unknown:
            lines.append(
                f"{self.unknown:,} events of the window have no stored payload any more, and get no id: a copy of one would land again."
            )
        return lines

    def refuse(self, *, forget_unknown: bool) -> None:
        """Raises if keys would be forgotten that nobody said to forget."""
        if self.unreadable and not forget_unknown:
            count, names = sum(self.unreadable.values()), ", ".join(self.unreadable)
            raise StoreDamaged(
                f"{count:,} events get no id: their stored payloads, of {names}, cannot be decoded by the format and the fields of this file.",
                safe="Nothing was changed.",
                command="give all pipelines of a scope one format, or each format a scope; the same command with --forget-unknown goes on "
                "without these keys: a copy of such an event would land again",
            )
        refuse_unknown(self.unknown, forget_unknown=forget_unknown)


@look_again
def prepare(kept: Kept) -> Rekeying:
    """Computes all new ids. Changes nothing."""
    store, scope, rule = kept.store, kept.scope(), kept.rule
    if scope.rule == rule.fingerprint():
        raise NothingToDo(
            f"the keys in the store were made by the rule of the file: {scope.described}.",
            safe="Nothing was changed.",
            command="landonce run {file}",
        )
    marks = {each: mark for each in store.pipelines() if (mark := store.mark(each)) is not None}
    shards = store.shards(range(scope.shards))
    known = Known.of(store, [run for each in shards.values() for run in each.runs])
    found: list[_Ids] = []
    events = matched = keyless = 0
    unreadable: dict[str, int] = {}
    for pipeline, accepted_at, ids in _all_ids(store, marks, rule, key_fields(kept.source, rule), kept.parts.decoding):
        bucket, at, there = known.look_up(ids.first_seen)
        matched += int(there.sum())
        bucket, at, there = _without_run(scope, accepted_at, bucket, at, there)
        ids.first_seen["at"] = at
        events += int(there.sum())
        keyless += int((there & ids.readable & ~ids.valid).sum())
        if lost := int((there & ~ids.readable).sum()):
            unreadable[pipeline] = unreadable.get(pipeline, 0) + lost
        mine = there & ids.valid
        found.append(_Ids(ids.hi[mine], ids.lo[mine], ids.first_seen[mine], bucket[mine]))
    buckets, merged = _by_bucket(found)
    return Rekeying(
        scope=scope,
        shards=shards,
        rule=rule,
        marks=marks,
        buckets=buckets,
        events=events,
        unknown=known.count - matched,
        keyless=keyless,
        merged=merged,
        unreadable=unreadable,
    )


def _without_run(scope: Scope, accepted_at: int, bucket: Any, at: Any, there: Any) -> tuple[Any, Any, Any]:
    """Events of one chunk that the runs lack count from when the chunk was accepted, unless keys of then have expired: the next rule may tell
    them apart again."""
    own = bucket_of(accepted_at, scope.bucket)
    if has_expired(own, bucket_s=scope.bucket, horizon_ms=scope.horizon):
        return bucket, at, there
    moment = at.dtype.type(accepted_at)
    return np.where(there, bucket, own), np.where(there, at, moment), np.ones(len(there), np.bool_)


def carry_out(kept: Kept, new: Rekeying, owner: str, *, forget_unknown: bool) -> None:
    """Writes the new runs and swaps them in."""
    new.refuse(forget_unknown=forget_unknown)
    store, shards = kept.store, new.scope.shards
    old = [run for each in new.shards.values() for run in each.runs]
    runs = [run for bucket, keys in new.buckets.items() for run in written(store, keys, bucket, shards, old)]
    note = Note(now(), "dedup rekey", " ".join((*new.words(), *new.costs())))
    swap(
        store,
        Replacement(
            seen={number: each.version for number, each in new.shards.items()},
            rule=new.scope.rule,
            runs=tuple(runs),
            marks={
                pipeline: (mark.snapshot, replace(mark, state=taken(mark.state, owner)))
                for pipeline, mark in new.marks.items()
            },
            note=note,
            new_rule=(new.rule.fingerprint(), new.rule.describe()),
        ),
    )
    store.forget_runs(old)


def refuse_unknown(unknown: int, *, forget_unknown: bool) -> None:
    if unknown and not forget_unknown:
        raise StoreDamaged(
            f"{unknown:,} events get no id: nothing holds their payloads any more.",
            safe="Nothing was changed.",
            command="the same command with --forget-unknown goes on without them: a copy of one of them would land again",
        )


def swap(store: Store, by: Replacement) -> None:
    if not store.replace(by):
        raise Fenced(
            f"a driver accepted events of scope {store.scope!r} during this command, or its keys expired.",
            safe="Nothing was changed.",
            command="stop the pipelines of this scope, then run the same command again",
        )


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def written(store: Store, keys: Keys, bucket: int, shards: int, before: Iterable[ListedRun]) -> Iterator[ListedRun]:
    """Stores keys of one bucket as runs. They have the level of the largest old ones, so that they are not merged at once."""
    level = max((run.level for run in before), default=0)
    for shard, mine in split(keys, shards).items():
        for first in range(0, len(mine.hi), MOST_KEYS):
            part = mine.only(slice(first, first + MOST_KEYS))
            segments = encode(part)
            yield store.put_run(
                ListedRun("", shard, level, bucket, len(part.hi), len(segments), digest_of(part)), segments
            )


@dataclass(frozen=True)
class _Ids:
    """New ids of some events, with their coordinates."""

    hi: npt.NDArray[np.uint64]
    lo: npt.NDArray[np.uint64]
    first_seen: npt.NDArray[np.void]
    bucket: npt.NDArray[np.int64]
    valid: Any = None
    readable: Any = None
    """Those that could be decoded. A valid one was."""


@dataclass(frozen=True)
class Known:
    """The coordinates of all keys, sorted by place and offset."""

    first_seen: npt.NDArray[np.void]
    bucket: npt.NDArray[np.int64]
    ranges: dict[int, tuple[int, int]]

    @property
    def count(self) -> int:
        return len(self.first_seen)

    @staticmethod
    def of(store: Store, runs: list[ListedRun]) -> Known:
        opened = [store.keys_of(run).first_seen for run in runs]
        seen = np.concatenate([np.empty(0, FIRST_SEEN), *opened])
        bucket = np.concatenate([np.empty(0, np.int64), *(np.full(run.rows, run.bucket, np.int64) for run in runs)])
        order = np.lexsort((seen["offset"], seen["place"]))
        seen, bucket = seen[order], bucket[order]
        places, begins = np.unique(seen["place"], return_index=True)
        ends = np.append(begins, len(seen))[1:]
        return Known(seen, bucket, {int(p): (int(b), int(e)) for p, b, e in zip(places, begins, ends, strict=True)})

    def look_up(self, events: npt.NDArray[np.void]) -> tuple[Any, Any, Any]:
        """Bucket and time of acceptance of events of one partition, and which of them have a key."""
        begin, end = self.ranges.get(int(events["place"][0]) if len(events) else 0, (0, 0))
        offsets = self.first_seen["offset"][begin:end]
        if not len(offsets):
            count = len(events)
            return np.zeros(count, np.int64), np.zeros(count, np.uint32), np.zeros(count, np.bool_)
        at = np.minimum(np.searchsorted(offsets, events["offset"]), len(offsets) - 1)
        return self.bucket[begin + at], self.first_seen["at"][begin + at], offsets[at] == events["offset"]


def _all_ids(
    store: Store, marks: dict[str, Mark], rule: KeyRule, schema: Schema, decoding: Decoding
) -> Iterator[tuple[str, int, _Ids]]:
    """The new ids of all accepted events whose payloads are there, chunk by chunk, each with its pipeline and when it was accepted."""
    decode_values = decoder_of(schema, decoding.with_limit(_LARGE))
    for pipeline, mark in marks.items():
        for chunk in store.chunks(pipeline):
            partition = Partition(chunk.topic, chunk.partition)
            records = accepted_records(store, chunk, Range(partition, 0, NO_END))
            if records.num_rows:
                label = mark.state.labelled(partition)
                of_query = VALUE not in records.column_names
                yield (
                    pipeline,
                    chunk.accepted_at,
                    _ids_of_rows(records, rule, label) if of_query else ids_of(records, rule, decode_values, label),
                )


def _ids_of_rows(records: pa.Table, rule: KeyRule, label: Partition) -> _Ids:
    """The ids of rows of a query, of one partition. If they lack a part of the key, none is readable."""
    offsets, count = records.column("offset").to_numpy(), records.num_rows
    seen, bucket = first_seen_of(place_of(label.topic, label.number), offsets, 0), np.zeros(count, np.int64)
    try:
        ids = compute(rule, columns_of(records), None, {}, Coordinates(label.topic, label.number, offsets))
    except (KeyError, ValueError):
        nothing, none = np.zeros(count, np.uint64), np.zeros(count, np.bool_)
        return _Ids(nothing, nothing, seen, bucket, none, none)
    return _Ids(ids.hi, ids.lo, seen, bucket, ids.valid, np.ones(count, np.bool_))


def ids_of(records: pa.Table, rule: KeyRule, decode_values: Any, label: Partition) -> _Ids:
    """The ids of records of one partition. Those without a key are not `valid`."""
    values = records.column("value").combine_chunks()
    listed = StoredSequence(records)
    decoded = decode_values(values, listed)
    kept, count = decoded.kept, records.num_rows
    offsets = records.column("offset").to_numpy()
    keys = records.column("key").combine_chunks().take(pa.array(kept)) if rule.needs_kafka_key else None
    ids = compute(
        rule,
        decoded.table,
        keys,
        {name: last_headers([listed[at] for at in kept.tolist()], name) for name in rule.headers},
        Coordinates(label.topic, label.number, offsets[kept]),
    )
    hi, lo = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    valid, readable = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    hi[kept], lo[kept], valid[kept], readable[kept] = ids.hi, ids.lo, ids.valid, True
    seen = first_seen_of(place_of(label.topic, label.number), offsets, 0)
    return _Ids(hi, lo, seen, np.zeros(count, np.int64), valid, readable)


def _by_bucket(found: list[_Ids]) -> tuple[dict[int, Keys], int]:
    """One key per id, in the bucket of the last acceptance: no copy is forgotten before the last event that has the id."""
    if not found:
        return {}, 0
    hi, lo, seen, bucket = (
        np.concatenate([getattr(each, name) for each in found]) for name in ("hi", "lo", "first_seen", "bucket")
    )
    order = sort_ids(hi, lo, -bucket, seen["at"], seen["place"], seen["offset"])
    hi, lo, seen, bucket = hi[order], lo[order], seen[order], bucket[order]
    first = first_of_each(hi, lo)
    buckets = {}
    for each in np.unique(bucket[first]).tolist():
        mine = first & (bucket == each)
        buckets[each] = Keys(hi[mine], lo[mine], seen[mine])
    return buckets, int((~first).sum())
