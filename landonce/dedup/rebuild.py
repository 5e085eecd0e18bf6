"""The store was lost or restored: its keys, events and position are made again from the target and the topics.

    what the target holds (coordinates) ─► ids of these records, from the topics ─► events that are in neither place ─► one transaction

What is settled is known from the target's ledger: a record below its position, or in a block of a pending plan that landed, is in the target,
or never will be. Where the ledger was lost, too, nothing is settled, and the records of the topics are compared with the target:

    record in the target                    its id is taken
    its id is taken by one in the target    a copy
    else, settled or a dead letter          nothing
    else                                    accepted: the first record with this id

Events that wait in a restored store stay, where the topics lack them. The store gets the accepted records from the ledger's position on, so that the push pipeline finds the target ahead, compares, and sends what
is missing. The accept pipeline goes on behind all of them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from landonce.config.dedup import RECORD_TYPE
from landonce.dedup.chunks import MOST, StoredSequence, accepted_records, encode_records, records_table
from landonce.dedup.contents import Chunk
from landonce.dedup.ids import Coordinates, compute
from landonce.dedup.look import Kept, key_fields, look_again
from landonce.dedup.rekey import Known, ids_of, now, refuse_unknown, swap, written
from landonce.dedup.rule import HEADER, KAFKA_KEY, PUSHED, with_doubles
from landonce.dedup.runs import Keys, first_of_each, first_seen_of, look_up, place_of, sort_ids
from landonce.dedup.store import Replacement, Scope
from landonce.engine import dead_letters
from landonce.errors import Fenced, NothingToDo, PlanPending, RetentionOverrun, RunGone, StoreBehind, TableUnfit
from landonce.failpoints import reach
from landonce.protocol.block_rows import landed
from landonce.protocol.dedup import ListedRun, behind, bucket_of
from landonce.protocol.ledger import LedgerState, Note, Position, taken
from landonce.protocol.marks import Mark
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import SourceView, Start, bind
from landonce.protocol.target import TargetView
from landonce.read.decoding import decoder_of
from landonce.read.kafka.records import read
from landonce.sinks.audit import LAST, Held, HeldTables, Offsets
from landonce.sinks.operations import UNCHANGED, Operations

_LARGE = 2**30
_SURE = ("string", "integer", "boolean")
"""Kinds of key parts whose values a table returns as the record had them, without a record to compare with."""
_EMPTY = np.empty(0, np.int64)
_RECORD = np.dtype(
    [("hi", "u8"), ("lo", "u8"), ("place", "i8"), ("offset", "i8"), ("timestamp", "i8"), ("held", "?"), ("open", "?")]
)
"""A record with an id. `place`: which of the partitions. `held`: it is in the target. `open`: it may be an event that is in neither place."""
TopicRecords = npt.NDArray[np.void]
"""Rows of `_RECORD`."""


@dataclass(frozen=True)
class FoundPartition:
    """One partition: what the target holds of it, and what is to be done."""

    partition: Partition
    label: Partition
    held: Offsets
    rows: int
    """Of these offsets, repeated ones included."""
    first: int
    """Where the pipeline began."""
    kept_from: int
    """From here on, the store gets the accepted events: what is below is settled."""
    known: int
    """Up to where the target holds records, or has settled them, or plans to."""
    end: int
    """Where the accept pipeline goes on."""
    start: int
    """Where the topic begins."""


@dataclass(frozen=True)
class Rebuilding:
    """What the store will hold, and what a person must know before."""

    state: LedgerState | None
    view: SourceView
    scope: Scope | None
    mark: Mark | None
    found: tuple[FoundPartition, ...]
    keys: Keys
    missing: Mapping[Partition, Offsets]
    """Events that are in neither place, by partition."""
    unknown: int
    """Records in the target whose keys nothing tells."""
    lost: int
    """Offsets that are settled nowhere, and gone from the topics and the store."""
    rows: tuple[object, ...] = ()
    """Of the pending plan's blocks."""
    old_runs: tuple[Any, ...] = ()
    versions: Mapping[int, int] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    """Pipelines of the scope beside this one, as far as the store knows them. One that was lost knows none."""

    def words(self, scope: str) -> list[str]:
        held = sum(len(each.held) for each in self.found)
        missing = sum(map(len, self.missing.values()))
        lines = [
            f"the target holds {held:,} records of these topics; the store of scope {scope} gets {len(self.keys.hi):,} keys that it lacks",
            f"{missing:,} events of the topics are neither in the target nor settled: the next run sends them"
            if missing
            else "no event that was read is missing in the target",
        ]
        lines += [f"  {each.partition}: accepting goes on at offset {each.end}" for each in self.found]
        return lines

    def costs(self, scope: str) -> list[str]:
        known = f" The store knows {', '.join(self.others)}." if self.others else ""
        lines = [
            f"Only this pipeline is rebuilt. Other pipelines of scope {scope} must be rebuilt, too, before any of them runs, this one included: "
            f"until then, copies of their events land here.{known}",
            "Rows that somebody deleted from the target land again, if the topics still have them and nothing shows that they landed.",
        ]
        if self.state is not None and self.state.pending is not None:
            lines.append(
                f"Batch {self.state.pending.batch} of the target's ledger is pending: the next run settles it."
            )
        if self.unknown:
            lines.append(
                f"{self.unknown:,} records in the target are gone from the topics, and the table's columns do not give their keys: "
                "a copy of one would land again."
            )
        if self.lost:
            lines.append(
                f"{self.lost:,} offsets are gone from the topics, and the target did not get them: an event that was accepted from there, "
                "and waited in the lost store, is lost."
            )
        return lines

    def refuse(self, *, forget_unknown: bool) -> None:
        """Raises if something cannot be known, and nobody said to go on without it."""
        refuse_unknown(self.unknown, forget_unknown=forget_unknown)
        if self.lost and not forget_unknown:
            raise RetentionOverrun(
                f"{self.lost:,} offsets are gone from the topics before the target got them: the lost store may have held events of them.",
                safe=UNCHANGED,
                command="restore the newest store; or the same command with --forget-unknown goes on without them",
            )


@look_again
def prepare(kept: Kept, operations: Operations) -> Rebuilding:
    """Reads the target and the topics. Changes nothing."""
    parts, rule = kept.parts, kept.rule
    state, view = parts.ledger.load(), parts.source()
    state = None if state is None or state.fresh else state
    if state is not None:
        _same_topics(state, view)
    tables = parts.sink.held(parts, state)
    try:
        held = _one_table(kept, tables)
        scope = kept.store.look()
        if scope is not None and scope.rule != rule.fingerprint():
            raise NothingToDo(
                f"the keys in the store were made by another rule: {scope.described}.",
                safe=UNCHANGED,
                command="put the old rule back and rebuild, then change it: landonce dedup rekey {file}",
            )
        mark = kept.store.mark(kept.pipeline) if scope is not None else None
        rows = tuple(operations.rows(state)) if state is not None else ()
        found = tuple(_found(kept, held, state, mark, view))
        _refuse_whole(mark, found)
        _refuse_lost(kept, state, found)
        settled = _settled(state, landed(rows))
        shards = kept.store.shards(range(scope.shards)) if scope is not None else {}
        runs = tuple(run for each in shards.values() for run in each.runs)
        judged, unseen = _read(kept, found, settled)
        from_table, unknown = _from_columns(kept, held, found, _without_key(kept, found, unseen, runs), judged)
        keys, missing = _judge(kept, found, np.concatenate([judged, *from_table]), runs)
        return Rebuilding(
            state=state,
            view=view,
            scope=scope,
            mark=mark,
            found=found,
            keys=keys,
            missing=missing,
            unknown=unknown,
            lost=sum(_lost(kept, each) for each in found),
            rows=rows,
            old_runs=runs,
            versions={number: each.version for number, each in shards.items()},
            others=tuple(each for each in kept.store.pipelines() if each != kept.pipeline) if scope is not None else (),
        )
    finally:
        tables.close()


def _same_topics(state: LedgerState, view: SourceView) -> None:
    known = dict(state.topic_ids)
    changed = [topic for topic, topic_id in view.topic_ids if known.get(topic, topic_id) != topic_id]
    if changed or state.cluster_id != view.cluster_id:
        raise NothingToDo(
            f"the topics are not those that the target's rows came from: {', '.join(changed) or 'another cluster'}.",
            safe=UNCHANGED,
            command="restore the store from a backup, or use a new table and a new pipeline",
        )


def _one_table(kept: Kept, tables: HeldTables) -> Held:
    sink, names = kept.parts.sink, tuple(tables.known())
    if sink.changes_rows or len(names) != 1 or len(tables.routing.rules) != 1:
        raise TableUnfit(
            f"{sink}: only the keys of one table to which rows are added can be rebuilt.",
            safe=UNCHANGED,
            command="restore the store from a backup",
        )
    held = tables.open(names[0])
    if not isinstance(held, Held) or held.replaces_rows:
        raise TableUnfit(
            f"{sink}: the table replaces rows by others, so it does not show which records landed.",
            safe=UNCHANGED,
            command="restore the store from a backup",
        )
    return held


def _refuse_whole(mark: Mark | None, found: tuple[FoundPartition, ...]) -> None:
    """A store that knows all that the target holds is not touched: it may hold events that the topics lack by now."""
    accepted = mark.state.committed() if mark is not None else {}
    if mark is not None and not behind(accepted, {each.partition: each.known for each in found}):
        raise NothingToDo(
            "the store is not behind the target: it knows all that the target holds.",
            safe=UNCHANGED,
            command="landonce run {file}",
        )


def _waiting(kept: Kept, each: FoundPartition) -> Iterator[pa.Table]:
    """Accepted records in the store that are settled nowhere, and that the topic lacks."""
    if each.kept_from >= each.start or kept.store.look() is None:
        return
    within = Range(each.partition, each.kept_from, each.start)
    for chunk in kept.store.chunks(kept.pipeline, within):
        yield accepted_records(kept.store, chunk, within)


def _lost(kept: Kept, each: FoundPartition) -> int:
    """Of the offsets that are settled nowhere, those that the topic, the target and the store lack."""
    stored = [records.column("offset").to_numpy() for records in _waiting(kept, each)]
    known = np.unique(np.concatenate([each.held, *stored]))
    first, end = np.searchsorted(known, (each.kept_from, each.start))
    return max(0, each.start - each.kept_from - int(end - first))


def _refuse_lost(kept: Kept, state: LedgerState | None, found: tuple[FoundPartition, ...]) -> None:
    """A target that keeps the position itself must have it; and a new ledger must begin where the topics do."""
    config, sink = kept.parts.config, kept.parts.sink
    holds = any(len(each.held) for each in found)
    if sink.commits_batches and not config.own_ledger:
        raise TableUnfit(
            f"{sink} has its ledger elsewhere, and commits in steps that only the store knows.",
            safe=UNCHANGED,
            command="restore the store from a backup",
        )
    if state is None and holds and not sink.finds_rows:
        raise StoreBehind(
            f"{sink} holds records of these topics, and the position of this pipeline is gone from it.",
            safe=UNCHANGED,
            command="restore the position with its table, or give the pipeline the name that it had when they landed",
        )
    if state is None and holds and kept.parts.start is not Start.EARLIEST:
        raise StoreBehind(
            "the ledger was lost with the store, and the file has another `start` than earliest: nobody knows where the pipeline began.",
            safe=UNCHANGED,
            command="write `start: earliest` in {file}",
        )


def _found(
    kept: Kept, held: Held, state: LedgerState | None, mark: Mark | None, view: SourceView
) -> Iterator[FoundPartition]:
    positions = dict(state.positions) if state is not None else {}
    accepted = dict(mark.state.positions) if mark is not None else {}
    pending = state.pending.ends() if state is not None and state.pending is not None else {}
    firsts = bind(LedgerState("", ""), kept.parts.begins(view), kept.parts.start).added if state is None else {}
    for partition, extent in view.extents:
        label = state.labelled(partition) if state is not None else partition
        there = held.counted(label, 0, LAST)
        last = int(there.offsets[-1]) + 1 if len(there.offsets) else 0
        own, old = positions.get(partition), accepted.get(partition)
        known = max(last, own.committed if own else 0, pending.get(partition, 0))
        begin = own.first if own else old.first if old else extent.start
        if own is None and old is None and not last:
            begin = firsts.get(partition, begin)
        yield FoundPartition(
            partition,
            label,
            there.offsets,
            int(there.counts.sum()),
            first=begin,
            kept_from=own.committed if own else max(begin, extent.start),
            known=known,
            end=max(known, old.committed if old else 0, begin, extent.start),
            start=extent.start,
        )


Settled = Mapping[Partition, tuple[int, tuple[tuple[int, int], ...]]]
"""By partition: what is below this offset, and what is in these ranges."""


def _settled(state: LedgerState | None, there: frozenset[int]) -> Settled:
    if state is None:
        return {}
    ranges: dict[Partition, list[tuple[int, int]]] = {}
    for block in state.pending.blocks if state.pending is not None else ():
        if block.number in there:
            for each in block.ranges:
                ranges.setdefault(each.partition, []).append((each.first, each.end))
    return {each: (end, tuple(ranges.get(each, ()))) for each, end in state.committed().items()}


def _records(kept: Kept, partition: Partition, first: int, end: int) -> Iterator[pa.Table]:
    """The records of the topic as the store keeps them."""
    if first < end:
        for some in read((Range(partition, first, end),), kept.parts.consumer):
            yield records_table(some.messages)


def _read(kept: Kept, found: tuple[FoundPartition, ...], settled: Settled) -> tuple[TopicRecords, list[Offsets]]:
    """The ids of all records of the topics up to where accepting goes on; and what the target holds of records that the topics lack."""
    rule, source = kept.rule, kept.source
    ids, whole = (
        decoder_of(key_fields(source, rule), kept.parts.decoding.with_limit(_LARGE)),
        decoder_of(source, kept.parts.decoding),
    )
    letters = _letters(kept)
    parts, unseen = [np.empty(0, _RECORD)], []
    for place, each in enumerate(found):
        below, ranges = settled.get(each.partition, (0, ()))
        seen = [_EMPTY]
        for records in _records(kept, each.partition, each.start, each.end):
            made = ids_of(records, rule, ids, each.label)
            offsets = records.column("offset").to_numpy()
            held = np.isin(offsets, each.held, assume_unique=True)
            seen.append(offsets[held & made.valid])
            is_open = made.valid & ~held & (offsets >= below)
            is_open &= ~np.isin(offsets, letters.get(each.label, _EMPTY))
            for first, end in ranges:
                is_open &= ~((offsets >= first) & (offsets < end))
            if is_open.any():
                fit = np.zeros(len(offsets), np.bool_)
                fit[whole(records.column("value").combine_chunks(), StoredSequence(records)).kept] = True
                is_open &= fit
            rows = np.empty(len(offsets), _RECORD)
            rows["hi"], rows["lo"], rows["place"], rows["offset"] = made.hi, made.lo, place, offsets
            rows["timestamp"], rows["held"], rows["open"] = records.column("timestamp").to_numpy(), held, is_open
            parts.append(rows[(held & made.valid) | is_open])
        unseen.append(np.setdiff1d(each.held, np.concatenate(seen), assume_unique=True))
    return np.concatenate(parts), unseen


def _letters(kept: Kept) -> dict[Partition, Offsets]:
    """The offsets of dead letters, of both pipelines."""
    found: dict[Partition, list[int]] = {}
    folder = kept.parts.config.dead_letters.path
    for each in (folder, folder / PUSHED):
        for letter in dead_letters.committed(each, kept.pipeline) if each.is_dir() else ():
            found.setdefault(Partition(letter["topic"], int(letter["partition"])), []).append(int(letter["offset"]))
    return {partition: np.array(offsets, np.int64) for partition, offsets in found.items()}


def _without_key(
    kept: Kept, found: tuple[FoundPartition, ...], unseen: list[Offsets], runs: tuple[ListedRun, ...]
) -> list[Offsets]:
    """Those of these offsets of whose records a restored store has no key."""
    known = Known.of(kept.store, list(runs))
    places = (place_of(each.label.topic, each.label.number) for each in found)
    events = (first_seen_of(place, offsets, 0) for place, offsets in zip(places, unseen, strict=True))
    return [each["offset"].astype(np.int64)[~known.look_up(each)[2]] for each in events]


def _from_columns(
    kept: Kept, held: Held, found: tuple[FoundPartition, ...], unseen: list[Offsets], judged: TopicRecords
) -> tuple[list[TopicRecords], int]:
    """The ids of rows whose records the topics lack, from the table's columns; and how many have none."""
    count = sum(map(len, unseen))
    rule = kept.rule
    fields = [column for column in rule.columns if column.kind not in (KAFKA_KEY, HEADER)]
    fields = [column for column in fields if column.path != (RECORD_TYPE,)]
    plain = len(fields) == len(rule.columns) and all(len(each.path) == 1 for each in fields)
    plain = plain and with_doubles(kept.columns, rule) == kept.columns  # else the table has rounded the key's floats
    if not count or not plain or kept.parts.config.transform.select or rule.on_null == "unique":
        return [], count
    sure = all(each.kind in _SURE for each in fields)
    names = sorted({each.path[0] for each in fields})
    made: list[TopicRecords] = []
    for place, (each, offsets) in enumerate(zip(found, unseen, strict=True)):
        if not len(offsets):
            continue
        mine = judged[(judged["place"] == place) & judged["held"]][:1000]
        compared = mine["offset"]
        wanted = np.union1d(offsets, compared)
        some = _column_ids(kept, held, each, place, wanted, names)
        if not len(compared) and not sure:
            continue
        if len(compared):
            at = np.searchsorted(some["offset"], compared)
            if len(some) != len(wanted) or (some[["hi", "lo"]][at] != mine[["hi", "lo"]]).any():
                continue
        new = some[np.isin(some["offset"], offsets)]
        count -= len(new)
        made.append(new)
    return made, count


def _column_ids(
    kept: Kept, held: Held, each: FoundPartition, place: int, wanted: Offsets, names: list[str]
) -> TopicRecords:
    types = {one.name: one.type for one in kept.source.fields}
    tables = []
    for piece in held.values().read(each.label, int(wanted[0]), int(wanted[-1]) + 1, names):
        rows = piece.rows.filter(pa.array(np.isin(piece.rows.column("_offset").to_numpy(), wanted)))
        tables.append(
            pa.table(
                {**{name: rows.column(name).cast(types[name]) for name in names}, "_offset": rows.column("_offset")}
            )
        )
    rows = pa.concat_tables(tables).combine_chunks() if tables else pa.table({"_offset": pa.array([], pa.int64())})
    if not rows.num_rows:
        return np.empty(0, _RECORD)
    offsets, first = np.unique(rows.column("_offset").to_numpy(), return_index=True)
    rows = rows.take(pa.array(first)).combine_chunks()
    ids = compute(kept.rule, rows, None, {}, Coordinates(each.label.topic, each.label.number, offsets))
    found = np.zeros(len(offsets), _RECORD)
    found["hi"], found["lo"], found["place"], found["offset"], found["held"] = ids.hi, ids.lo, place, offsets, True
    return found[ids.valid]


def _judge(
    kept: Kept, found: tuple[FoundPartition, ...], all_: TopicRecords, runs: tuple[Any, ...]
) -> tuple[Keys, dict[Partition, Offsets]]:
    """One key per id, and the events that are in neither place. Of an event that a restored store knows, only the record from which it was
    accepted may be missing."""
    places = np.array([place_of(each.label.topic, each.label.number) for each in found], np.uint64)
    by_id = sort_ids(all_["hi"], all_["lo"])
    known, original = np.zeros(len(all_), np.bool_), np.zeros(len(all_), np.bool_)
    there, seen = look_up(map(kept.store.keys_of, runs), all_["hi"][by_id], all_["lo"][by_id])
    at = by_id[there]
    known[at] = True
    original[at] = (seen["place"] == places[all_["place"][at]]) & (seen["offset"] == all_["offset"][at])
    coordinates = (all_[name] for name in ("timestamp", "place", "offset"))
    order = sort_ids(all_["hi"], all_["lo"], ~all_["held"], ~original, *coordinates)
    hi, lo, place, offset = (all_[name][order] for name in ("hi", "lo", "place", "offset"))
    first = first_of_each(hi, lo)
    missing = first & ~all_["held"][order] & (original | ~known)[order]
    new = first & ~known[order]
    keys = Keys(hi[new], lo[new], first_seen_of(places[place[new]], offset[new], int(time.time())))
    by_partition = {each.partition: np.sort(offset[missing & (place == number)]) for number, each in enumerate(found)}
    return keys, by_partition


# Carrying it out.


def carry_out(kept: Kept, operations: Operations, new: Rebuilding, owner: str, *, forget_unknown: bool) -> None:
    """Fences drivers, writes events and keys, and makes them count in one transaction. Killed in between: do it again."""
    new.refuse(forget_unknown=forget_unknown)
    note = Note(now(), "dedup rebuild", " ".join(new.words(kept.store.scope)))
    reach("fence.before")
    _fence(kept, operations, new, owner, note)
    reach("fence.after")
    scope = new.scope or kept.store.make(
        kept.rule.fingerprint(), kept.rule.describe(), kept.dedup.shards, int(kept.dedup.ttl)
    )
    versions = dict(new.versions) or {
        number: each.version for number, each in kept.store.shards(range(scope.shards)).items()
    }
    try:
        chunks = tuple(chunk for each in new.found for chunk in _chunks(kept, each, new.missing[each.partition]))
    except RunGone:  # a driver removed events that the target had by then
        raise _changed() from None
    bucket = bucket_of(int(time.time()), scope.bucket)
    runs = (*new.old_runs, *written(kept.store, new.keys, bucket, scope.shards, new.old_runs))
    swap(
        kept.store,
        Replacement(
            seen=versions,
            rule=scope.rule,
            runs=runs,
            marks={kept.pipeline: (new.mark.snapshot if new.mark is not None else 0, Mark(_state(kept, new, owner)))},
            note=note,
            chunks={kept.pipeline: chunks},
            removed={each.partition: each.kept_from for each in new.found},
        ),
    )


def _state(kept: Kept, new: Rebuilding, owner: str) -> LedgerState:
    """Where accepting goes on."""
    before = new.mark.state if new.mark is not None else LedgerState(kept.pipeline, lineage=uuid.uuid4().hex)
    return replace(
        taken(before, owner),
        cluster_id=new.view.cluster_id,
        topic_ids=new.view.topic_ids,
        positions=tuple(sorted((each.partition, Position(each.first, each.end)) for each in new.found)),
        pending=None,
        labels=new.state.labels if new.state is not None else before.labels,
    )


def _fence(kept: Kept, operations: Operations, new: Rebuilding, owner: str, note: Note) -> None:
    """No driver writes to the target any more, and it holds what was looked at."""
    state, sink = new.state, kept.parts.sink
    if state is not None:
        changed = taken(state, owner)
        if state.pending is not None and sink.finds_rows:
            changed = replace(changed, pending=None)

            def ask() -> TargetView:
                return operations.ahead(state, (), [each.partition for each in new.found])

            try:
                operations.give_up(state.pending, ask(), ask)
            except PlanPending:
                raise _changed() from None
        kept.parts.ledger.change(state, changed, note)
        if tuple(operations.rows(changed)) and landed(operations.rows(changed)) != landed(new.rows):  # type: ignore[arg-type]
            raise _changed()
    tables = sink.held(kept.parts, state)
    try:
        table = tables.open(next(iter(tables.known())))
        if not isinstance(table, Held) or any(table.count(each.label, 0) != each.rows for each in new.found):
            raise _changed()
    finally:
        tables.close()


def _changed() -> Fenced:
    return Fenced(
        "the target changed during this command: a driver still wrote to it.",
        safe="The store was not changed.",
        command="stop the drivers of this pipeline, then run the same command again",
    )


def _chunks(kept: Kept, each: FoundPartition, missing: Offsets) -> Iterator[Chunk]:
    """The accepted records from where nothing is settled, as the store keeps them."""
    accepted = np.union1d(each.held, missing)
    moment, version = int(time.time()), kept.source.fingerprint()[:12]
    waiting: list[pa.Table] = []

    def put(records: pa.Table) -> Chunk:
        offsets, count = records.column("offset"), records.num_rows
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        chunk = Chunk("", each.partition.topic, each.partition.number, first, last, count, 0, 0, version, count, moment)
        return kept.store.put_chunk(chunk, encode_records(records))

    read_again = (
        records.filter(pa.array(np.isin(records.column("offset").to_numpy(), accepted)))
        for records in _records(kept, each.partition, max(each.kept_from, each.start), each.end)
    )
    for records in chain(_waiting(kept, each), read_again):
        if records.num_rows:
            waiting.append(records)
        if sum(one.num_rows for one in waiting) >= MOST // 2:
            yield put(pa.concat_tables(waiting))
            waiting = []
    if waiting:
        yield put(pa.concat_tables(waiting))
