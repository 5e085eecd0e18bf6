"""Accept, on workers: records become ids, and ids are compared with each other and with the store.

    per block     read, decode, compute ids; stage the records (chunks); give ids and coordinates to the shards
    per shard     sort, keep the first of each id, look it up in the runs; stage a run of the new ids, and merge runs if due

A record is new, a copy (another record had its key first), or seen again (the very same record: the topic was read again).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import pairwise
from operator import itemgetter, methodcaller
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from landonce.dedup.chunks import cut, encode_records, headers_of, opened
from landonce.dedup.contents import Chunk
from landonce.dedup.ids import Coordinates, compute
from landonce.dedup.rule import LATE, KeyRule, require_marks
from landonce.dedup.runs import (
    FirstSeen,
    Keys,
    Segment,
    digest_of,
    encode,
    first_of_each,
    first_seen_of,
    look_up,
    merge,
    place_of,
    slices_of_shards,
    sort_ids,
)
from landonce.dedup.scratch import Scratch, remove_old_stores, scratch_folder
from landonce.dedup.store import ShardRuns, Store, StorePlace
from landonce.errors import RunGone, TargetUnavailable
from landonce.failpoints import reach
from landonce.protocol.dedup import ListedRun, Terms, bucket_of, has_turn, is_late, merge_due, merged_level
from landonce.protocol.ranges import Partition, label_of, topics_of
from landonce.protocol.receipt import BlockResult, Fate, FileHandle, Receipt
from landonce.read.block import ReadBlock, Reader
from landonce.read.decoding import Decode, decode_by
from landonce.read.formats import Decoded, Reject
from landonce.read.kafka.records import KafkaMessage, last_headers, read_headers
from landonce.read.schema.fields import Schema
from landonce.sinks.snapshot import StageTask, staged
from landonce.sinks.worker import BlockWorker, ExchangingRecipe, Parts, Refuse

Integers: TypeAlias = npt.NDArray[np.int64]
Ids: TypeAlias = npt.NDArray[np.uint64]
EVENTS = "events"
_COLUMNS = pa.schema(
    [
        ("hi", pa.uint64()),
        ("lo", pa.uint64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.binary()),
    ]
)
_NOT_STORED = ("_topic", "_partition", "hi", "lo")
_timestamp, _key = methodcaller("timestamp"), methodcaller("key")
_offset, _milliseconds = methodcaller("offset"), itemgetter(1)


class LabelledPartition(NamedTuple):
    """A partition, by the name that the target knows its topic by."""

    label: str
    number: int


class Share(NamedTuple):
    """What a block gives to one shard: its records there."""

    block: int
    attempt: str
    """Which run of the block's task it is from."""
    places: tuple[LabelledPartition, ...]
    hi: Ids
    lo: Ids
    timestamps: Integers
    place: npt.NDArray[np.int32]
    """Of each record: which of `places`."""
    offsets: Integers
    rows: npt.NDArray[np.int32]
    """Of each record: which row of the block it is."""


@dataclass(frozen=True)
class StagedBlock:
    """What a worker wrote of a block, and where each chunk begins among its rows."""

    block: int
    attempt: str
    chunks: tuple[tuple[int, Chunk], ...]
    shares: tuple[tuple[int, Share], ...] = ()
    written_at: int = 0
    """When that began, in seconds."""


@dataclass(frozen=True)
class Judged:
    """What became of the records of one block, in some shards."""

    accepted: int = 0
    copies: int = 0
    seen_again: int = 0
    dropped: tuple[npt.NDArray[np.int32], ...] = ()
    attempts: frozenset[str] = frozenset()
    """Which runs of the block's task they are from: one, unless Spark ran it again in the middle."""

    def plus(self, other: Judged) -> Judged:
        return Judged(
            self.accepted + other.accepted,
            self.copies + other.copies,
            self.seen_again + other.seen_again,
            self.dropped + other.dropped,
            self.attempts | other.attempts,
        )


@dataclass
class JoinedShards:
    """What the workers of some shards found and wrote."""

    terms: Terms
    """What the records were split and judged by."""
    seen: dict[int, int] = field(default_factory=dict)
    runs: list[ListedRun] = field(default_factory=list)
    merged: list[ListedRun] = field(default_factory=list)
    blocks: dict[int, Judged] = field(default_factory=dict)
    copies: list[pa.Table] = field(default_factory=list)


Staged: TypeAlias = StagedBlock | JoinedShards


@dataclass(frozen=True, kw_only=True)
class AcceptRecipe(ExchangingRecipe[StageTask]):
    """How records become ids, and what the store knows of its window."""

    place: StorePlace
    rule: KeyRule
    late: Literal["dead_letter", "accept", "drop"]
    source: Schema
    target: Schema
    lineage: str
    bucket: int
    horizon: int
    version: str
    """Of the schema that records have now, for people: events of several versions wait in the store at once."""
    cache: int
    """Bytes of runs that a machine keeps in files."""
    keep_copies: bool = False

    @property
    def terms(self) -> Terms:
        return Terms(self.lineage, self.rule.fingerprint(), self.shards, self.horizon)

    @property
    def marks(self) -> bool:
        return True

    def late_ones(self, timestamps: Integers) -> npt.NDArray[np.bool_]:
        """Which records of these moments are not accepted, because they are late."""
        if not self.horizon or self.late == "accept":
            return np.zeros(len(timestamps), np.bool_)
        return is_late(timestamps, self.horizon)

    def _decisive(self) -> tuple[object, ...]:
        return self.place.scope, self.source.fingerprint(), self.rule.fingerprint()

    def worker(self, task: StageTask) -> BlockWorker:
        return AcceptWorker(self, task)

    def split(self, result: BlockResult) -> tuple[BlockResult, Parts]:
        """The chunks stay with the block's result, and the shares go to the shards."""
        if result.receipt is None:
            return result, []
        staged_block = _staged_of(result.receipt)
        kept = (EVENTS, (FileHandle(replace(staged_block, shares=())),))
        return replace(result, receipt=replace(result.receipt, files=(kept,))), list(staged_block.shares)

    def join(self, parts: Mapping[int, list[Any]]) -> JoinedShards:
        return Joining(self, int(time.time())).join(parts)

    def whole(self, results: Sequence[BlockResult], joined: Sequence[Any]) -> tuple[BlockResult, ...]:
        """What the shards counted is what landed and was filtered: a record that got lost on the way leaves its block unbalanced."""
        handles = tuple(FileHandle(each) for each in joined)
        found = []
        for place, result in enumerate(results):
            receipt = result.receipt
            if receipt is None:
                raise ValueError(f"block {result.index} has no receipt")
            judged, block = Judged(), _staged_of(receipt)
            for each in joined:
                judged = judged.plus(each.blocks.get(result.index, Judged()))
            if not judged.attempts <= {block.attempt}:
                why = "Spark ran the task of the block again while its parts were compared"
                return tuple(BlockResult(each.index, Fate.DOUBTFUL, why=why) for each in results)
            files = ((EVENTS, (FileHandle(block), *(handles if place == 0 else ()))),)
            filtered = receipt.filtered + judged.copies + judged.seen_again
            found.append(
                replace(result, receipt=replace(receipt, landed=judged.accepted, filtered=filtered, files=files))
            )
        return tuple(found)


def _staged_of(receipt: Receipt) -> StagedBlock:
    for _, files in receipt.files:
        for each in files:
            if isinstance(each, StagedBlock):
                return each
    raise ValueError("the block was not staged")


@dataclass(frozen=True)
class AcceptWorker(BlockWorker):
    """Stages the records of one block."""

    recipe: AcceptRecipe
    task: StageTask

    def reader(self) -> Reader:
        decode = decode_by(self.recipe.source, self.recipe.decoding)
        return Reader.of_one(EVENTS, partial(self._decode, decode))

    def _decode(self, decode: Decode, values: pa.BinaryArray, messages: Sequence[KafkaMessage]) -> Decoded:
        """Ids and payloads. A record that the target could not take is rejected here, before its key is taken: when the producer sends it
        again, corrected, it must not count as a copy."""
        recipe, rule = self.recipe, self.recipe.rule
        if rule.marked:
            require_marks(rule, recipe.source, recipe.decoding.format.types_of(values).types)
        decoded = decode(values, messages)
        rejects, filtered = list(decoded.rejects), [decoded.filtered]
        rows, kept = decoded.table, decoded.kept
        timestamps = np.fromiter(map(_milliseconds, map(_timestamp, messages)), np.int64, len(messages))
        late = recipe.late_ones(timestamps[kept])
        if late.any():
            gone = kept[late]
            if recipe.late == "drop":
                filtered.append(gone)
            else:
                rejects += [Reject(int(at), LATE) for at in gone]
            rows, kept = rows.filter(pa.array(~late)), kept[~late]
        chosen = messages if len(kept) == len(messages) else [messages[at] for at in kept]
        ids = compute(
            rule,
            rows,
            keys=pa.array(list(map(_key, chosen)), pa.binary()) if rule.needs_kafka_key else None,
            headers={name: last_headers(chosen, name) for name in rule.headers},
            coordinates=self._coordinates(chosen) if rule.on_null == "unique" else None,
        )
        raw = values.take(pa.array(kept)) if len(kept) < len(values) else values
        hi, lo = ids.hi, ids.lo
        if ids.rejects:
            rejects += [Reject(int(kept[at]), reason) for at, reason in ids.rejects.items()]
            good = ids.valid
            raw, kept, hi, lo = raw.filter(pa.array(good)), kept[good], hi[good], lo[good]
            chosen = [each for each, keep in zip(chosen, good, strict=True) if keep]
        columns = [
            pa.array(hi),
            pa.array(lo),
            pa.array(timestamps[kept]),
            pa.array(list(map(_key, chosen)), pa.binary()),
            raw,
            headers_of(list(map(read_headers, chosen))),
        ]
        table = pa.Table.from_arrays(columns, schema=_COLUMNS)
        return Decoded(table, kept, tuple(sorted(rejects)), np.sort(np.concatenate(filtered)), decoded.without_column)

    def _coordinates(self, records: Sequence[Any]) -> Coordinates:
        """Of records of one partition, as Kafka's client gives them."""
        if not records:
            return Coordinates("", 0, np.empty(0, np.int64))
        partition = Partition(records[0].topic(), records[0].partition())
        offsets = np.fromiter(map(_offset, records), np.int64, len(records))
        return Coordinates(label_of(dict(self.task.labels), partition), partition.number, offsets)

    def write(self, block: ReadBlock, receipt: Receipt, refuse: Refuse | None) -> BlockResult:
        del refuse
        rows = block.rows(EVENTS).unify_dictionaries().combine_chunks()
        attempt = uuid.uuid4().hex
        now = int(time.time())
        files = StagedBlock(
            self.task.index, attempt, tuple(self._chunks(rows)), tuple(self._shares(rows, attempt)), written_at=now
        )
        reach("files.after")
        landed = staged(block, receipt, ((EVENTS, (files,)),), rows.num_rows)
        return BlockResult(self.task.index, Fate.LANDED, landed)

    def _chunks(self, rows: pa.Table) -> list[tuple[int, Chunk]]:
        """The records as they came, in pieces of one partition each."""
        store, topics = opened(self.recipe.place), topics_of(dict(self.task.labels))
        found = []
        for begin, end in _partitions(rows):
            label, number = rows.column("_topic")[begin].as_py(), rows.column("_partition")[begin].as_py()
            mine = rows.slice(begin, end - begin)
            for first, last in cut(self._sizes(mine)):
                piece = mine.slice(first, last - first)
                offsets = piece.column("_offset")
                content = encode_records(piece.drop_columns(list(_NOT_STORED)).rename_columns({"_offset": "offset"}))
                chunk = Chunk(
                    "",
                    topics.get(label, label),
                    number,
                    offsets[0].as_py(),
                    offsets[-1].as_py(),
                    last - first,
                    0,
                    0,
                    self.recipe.version,
                )
                found.append((begin + first, chunk, content))
        stored = store.put_chunks([(chunk, content) for _, chunk, content in found])
        return [(begin, chunk) for (begin, _, _), chunk in zip(found, stored, strict=True)]

    def _sizes(self, rows: pa.Table) -> Integers:
        """About how many bytes each record has."""
        found: Integers = pa.compute.fill_null(pa.compute.binary_length(rows.column("value")), 0).to_numpy()
        return found

    def _shares(self, rows: pa.Table, attempt: str) -> list[tuple[int, Share]]:
        """What each shard gets. Rows sorted by id are slices by shard."""
        if not rows.num_rows:
            return []
        hi, lo = (rows.column(name).to_numpy() for name in ("hi", "lo"))
        order = np.argsort(hi, kind="stable")
        places, place = _places(rows)
        timestamps, offsets = rows.column("timestamp").to_numpy(), rows.column("_offset").to_numpy()
        shares = []
        for shard, part in enumerate(slices_of_shards(hi[order], self.recipe.shards)):
            mine = order[part]
            if len(mine):
                share = Share(
                    self.task.index,
                    attempt,
                    places,
                    hi[mine],
                    lo[mine],
                    timestamps[mine],
                    place[mine],
                    offsets[mine],
                    mine.astype(np.int32),
                )
                shares.append((shard, share))
        return shares


def _partitions(rows: pa.Table) -> list[tuple[int, int]]:
    """Where the rows of each partition begin and end. Rows are in order."""
    if not rows.num_rows:
        return []
    topics = rows.column("_topic").combine_chunks()
    codes = topics.indices.to_numpy() if pa.types.is_dictionary(topics.type) else None
    numbers = rows.column("_partition").to_numpy()
    changes = np.flatnonzero((np.diff(numbers) != 0) | (np.diff(codes) != 0 if codes is not None else False)) + 1
    bounds = [0, *changes.tolist(), rows.num_rows]
    return list(pairwise(bounds))


def _places(rows: pa.Table) -> tuple[tuple[LabelledPartition, ...], npt.NDArray[np.int32]]:
    """The partitions of these rows, and which of them each row is of."""
    places: list[LabelledPartition] = []
    place = np.empty(rows.num_rows, np.int32)
    for begin, end in _partitions(rows):
        place[begin:end] = len(places)
        places.append(LabelledPartition(rows.column("_topic")[begin].as_py(), rows.column("_partition")[begin].as_py()))
    return tuple(places), place


_GONE = ShardRuns(-1, ())
"""Stands for a shard that is not there any more. The commit finds another number of shards, and the batch is compared again."""


@dataclass(frozen=True)
class Joining:
    """Compares the records of a batch with each other and with the store, shard by shard."""

    recipe: AcceptRecipe
    now: int

    @property
    def store(self) -> Store:
        return opened(self.recipe.place)

    def join(self, parts: Mapping[int, list[Share]]) -> JoinedShards:
        found = JoinedShards(self.recipe.terms)
        shards, new = self.store.shards(parts.keys()), []
        for number in sorted(parts):
            shard = shards.get(number, _GONE)
            found.seen[number] = shard.version
            try:
                keys = self._judge(parts[number], shard, found)
                if len(keys.hi):
                    new.append(self._encoded(number, 0, bucket_of(self.now, self.recipe.bucket), keys))
                self._merge(number, shard, found)
            except RunGone as gone:
                raise TargetUnavailable(f"{gone.what} The batch is compared again.") from None
        found.runs += self.store.put_runs(new)
        reach("joined.after")
        return found

    def _judge(self, shares: list[Share], shard: ShardRuns, found: JoinedShards) -> Keys:
        """Judges the records of one shard, and gives the new ids."""
        hi, lo = (np.concatenate([getattr(each, name) for each in shares]) for name in ("hi", "lo"))
        places = sorted({place for each in shares for place in each.places})
        rank = {place: at for at, place in enumerate(places)}
        ranks = np.concatenate(
            [np.array([rank[place] for place in each.places], np.int32)[each.place] for each in shares]
        )
        offsets = np.concatenate([each.offsets for each in shares])
        timestamps = np.concatenate([each.timestamps for each in shares])
        order = sort_ids(hi, lo, timestamps, ranks, offsets)
        hi, lo, ranks, offsets = hi[order], lo[order], ranks[order], offsets[order]
        hashes = np.array([place_of(*place) for place in places], np.uint64)
        first = first_of_each(hi, lo)
        group = np.cumsum(first) - 1
        known, of_known = look_up(map(self._open, shard.runs), hi[first], lo[first])
        origin = first_seen_of(hashes[ranks[first]], offsets[first], self.now)
        origin[known] = of_known
        in_store, of_group = known[group], origin[group]
        again = in_store & (of_group["place"] == hashes[ranks]) & (of_group["offset"] == offsets)
        new = first & ~in_store
        copies = ~new & ~again
        if self.recipe.keep_copies and copies.any():
            found.copies.append(_copies_of(hashes[ranks[copies]], offsets[copies], of_group[copies]))
        attempts = {
            each.block: frozenset(other.attempt for other in shares if other.block == each.block) for each in shares
        }
        blocks = np.concatenate([np.full(len(each.hi), each.block, np.int32) for each in shares])[order]
        rows = np.concatenate([each.rows for each in shares])[order]
        for block in np.unique(blocks):
            mine = blocks == block
            judged = Judged(
                accepted=int((new & mine).sum()),
                copies=int((copies & mine).sum()),
                seen_again=int((again & mine).sum()),
                dropped=(rows[~new & mine],) if (~new & mine).any() else (),
                attempts=attempts[int(block)],
            )
            found.blocks[int(block)] = found.blocks.get(int(block), Judged()).plus(judged)
        return Keys(hi[new], lo[new], of_group[new])

    def _merge(self, number: int, shard: ShardRuns, found: JoinedShards) -> None:
        """Merges runs where that is due."""
        turn = has_turn(number, version=shard.version, shards=self.recipe.shards)
        if due := merge_due(shard.runs, turn=turn):
            merged = merge([self._open(each) for each in due])
            found.runs += self.store.put_runs([self._encoded(number, merged_level(due), due[0].bucket, merged.keys)])
            found.merged += due

    def _open(self, run: ListedRun) -> Keys:
        return scratch_of(self.recipe.lineage, self.recipe.cache).open(run, lambda: self.store.run_segments(run))

    def _encoded(self, shard: int, level: int, bucket: int, keys: Keys) -> tuple[ListedRun, list[Segment]]:
        segments = encode(keys)
        return ListedRun("", shard, level, bucket, len(keys.hi), len(segments), digest_of(keys)), segments


def _copies_of(places: Ids, offsets: Integers, originals: FirstSeen) -> pa.Table:
    """Where copies are, and where and when their originals were accepted. Places are hashes, as `place_of` makes them."""
    return pa.table(
        {
            "place": places,
            "offset": offsets,
            "original_place": np.ascontiguousarray(originals["place"]),
            "original_offset": np.ascontiguousarray(originals["offset"]),
            "accepted_at": np.ascontiguousarray(originals["at"]),
        }
    )


@lru_cache(maxsize=4)
def scratch_of(lineage: str, most_bytes: int) -> Scratch:
    """One per process: it remembers which files it has checked."""
    folder = scratch_folder(lineage)
    remove_old_stores(folder.parent, but=folder)
    return Scratch(folder, most_bytes=most_bytes)
