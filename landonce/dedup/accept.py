"""Accept: the store as a sink, on the driver. One commit makes what workers staged count, and moves the position.

The transaction compares the pipeline's mark and the versions of the shards that were searched, lists the chunks with their copies marked and
the runs of new ids, and writes the new mark. `comparing` is what workers do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np
import pyarrow as pa

from landonce.dedup.chunks import encode_records, opened
from landonce.dedup.comparing import EVENTS, AcceptRecipe, JoinedShards, Judged, Staged, StagedBlock, scratch_of
from landonce.dedup.contents import TOGETHER, Chunk, groups
from landonce.dedup.rows import RowsRecipe
from landonce.dedup.rule import KeyRule
from landonce.dedup.runs import KEY_BYTES, decode, digest_of, encode, split
from landonce.dedup.store import Acceptance, Scope, Store, StorePlace
from landonce.errors import ConfigError, KeyRuleChanged, StoreDamaged, TableReshaped
from landonce.protocol.dedup import ORPHANED, ListedRun, expired, may_remove
from landonce.protocol.ledger import LedgerState, Note
from landonce.protocol.marks import Mark
from landonce.protocol.own_ledger import OwnView
from landonce.protocol.ranges import Partition
from landonce.read.schema.fields import Schema
from landonce.sinks import run as sink_run
from landonce.sinks.contract import Finding, Level
from landonce.sinks.run import Columns, SparkNeeds
from landonce.sinks.snapshot import MarkedTable, OpenSnapshot, Seen, SnapshotSink, SnapshotTable

_CLEAN_EVERY = 10.0
"""Seconds between two rounds of cleaning."""
_CLEAN_FOR = 0.5
"""Seconds that one kind of cleaning takes in a round, about. There are five, one of them in the pipeline that pushes."""
_SWEEP_EVERY = 3600.0
"""Seconds between two searches for bytes that no list names: a crash leaves them."""
_COPIES_TOGETHER = 100_000
"""Copies of one blob: it has less than 4 MiB."""


@dataclass(frozen=True)
class AcceptSink(SnapshotSink[Staged, int]):
    """The store of one scope, for one pipeline that accepts into it."""

    place: StorePlace
    pipeline: str
    rule: KeyRule
    source: Schema
    """What a record is decoded to. One that cannot be is a dead letter, and its key is not taken."""
    target: Schema
    """What rows of a query must fit."""
    shards: int
    ttl: int
    late: Literal["dead_letter", "accept", "drop"]
    payloads_for: int
    """Seconds that the payloads of sent events stay."""
    version: str
    """Of the schema of records."""
    cache: int
    """Bytes of keys that a machine keeps in files."""
    keep_copies: bool = False
    of_query: bool = False
    """Rows of a user's own query are accepted, and not records."""
    table: str = EVENTS

    @property
    def identity(self) -> str:
        return f"store of scope {self.place.scope}"

    def __str__(self) -> str:
        return self.identity

    def open_table(self) -> StoreTable:
        return StoreTable(self.place, self.pipeline)

    def stage(self, rows: pa.Table, origin: object) -> tuple[tuple[Staged, ...], int]:
        raise TypeError(f"{rows.num_rows} rows of {origin}: records are staged by `AcceptWorker`")

    def open(self, run: sink_run.Run) -> OpenAccept:
        return OpenAccept(self, run)


class StoreTable(SnapshotTable[Staged, int]):
    """The pipeline's mark in the store, and the commit that moves it."""

    def __init__(self, place: StorePlace, pipeline: str) -> None:
        self.name = f"the store of scope {place.scope!r}"
        self._place = place
        self._pipeline = pipeline

    @property
    def store(self) -> Store:
        return opened(self._place)

    def create(self, columns: Schema) -> None:
        del columns

    def creation(self, columns: Schema) -> str:
        del columns
        return self.name

    def schema(self) -> Schema:
        return Schema(())

    def check(self) -> tuple[Finding, ...]:
        return (Finding(Level.OK, f"{self.name}: keys, events and position are one commit"),)

    def holds(self, labels: tuple[str, ...]) -> bool:
        del labels
        return False

    def journal(self) -> tuple[Note, ...]:
        return self.store.journal(self._pipeline) if self.look() is not None else ()

    def look(self) -> Seen[int] | None:
        scope = self.store.look()
        if scope is None:
            return None
        mark = self.store.mark(self._pipeline)
        return Seen(OwnView(scope.lineage, mark, mark), mark.snapshot if mark is not None else 0)

    def attempt(self, seen: Seen[int], mark: Mark, files: Sequence[Staged], note: Note | None) -> bool:
        answer = self.store.commit(self._pipeline, seen.version, mark, acceptance(files) if files else None, note)
        if answer is None:
            raise TableReshaped(
                "another pipeline accepted events, keys expired, or the shards changed, while a batch was compared."
            )
        return answer


def acceptance(files: Sequence[Staged]) -> Acceptance:
    """What a commit of these adds. Chunks of nothing but copies are left out."""
    joined = [each for each in files if isinstance(each, JoinedShards)]
    judged = _judged(joined)
    chunks = [each for each in _marked(files, judged, int(time.time())) if each.accepted]
    if sum(each.accepted for each in chunks) != sum(each.accepted for each in judged.values()):
        raise ValueError("the chunks hold other numbers of events than the shards accepted")
    return Acceptance(
        seen={shard: version for each in joined for shard, version in each.seen.items()},
        runs=tuple(run for each in joined for run in each.runs),
        merged=tuple(run for each in joined for run in each.merged),
        chunks=tuple(chunks),
        copies=sum(each.copies for each in judged.values()),
        seen_again=sum(each.seen_again for each in judged.values()),
        kept_copies=_copies([each for one in joined for each in one.copies]),
        terms=joined[0].terms if joined else None,
        written_at=min((each.written_at for each in files if isinstance(each, StagedBlock)), default=None),
    )


def _judged(joined: Sequence[JoinedShards]) -> dict[int, Judged]:
    """By block: what all shards say of its records."""
    found: dict[int, Judged] = {}
    for each in joined:
        for block, some in each.blocks.items():
            found[block] = found.get(block, Judged()).plus(some)
    return found


def _marked(files: Sequence[Staged], judged: Mapping[int, Judged], now: int) -> Iterator[Chunk]:
    """The chunks of all blocks, with a bit set for each record that is dropped."""
    for block in files:
        if not isinstance(block, StagedBlock):
            continue
        dropped = np.zeros(sum(chunk.records for _, chunk in block.chunks), np.bool_)
        for rows in judged.get(block.block, Judged()).dropped:
            dropped[rows] = True
        for begin, chunk in block.chunks:
            here = dropped[begin : begin + chunk.records]
            bits = np.packbits(here).tobytes() if here.any() else None
            yield replace(chunk, accepted=int(chunk.records - here.sum()), accepted_at=now, dropped=bits)


def _copies(found: Sequence[pa.Table]) -> tuple[bytes, ...]:
    """The copies of one batch as blobs, in the order of their coordinates."""
    if not any(each.num_rows for each in found):
        return ()
    ordered = pa.concat_tables(found).sort_by([("place", "ascending"), ("offset", "ascending")])
    pieces = range(0, ordered.num_rows, _COPIES_TOGETHER)
    return tuple(encode_records(ordered.slice(at, _COPIES_TOGETHER)) for at in pieces)


def for_a_while(step: Callable[[], int]) -> bool:
    """Takes small steps until one finds nothing more to do, or the time is over: the pipeline waits meanwhile. Says whether all is done."""
    until = time.monotonic() + _CLEAN_FOR
    while step():
        if time.monotonic() >= until:
            return False
    return True


def require_rule(scope: Scope, store: Store, rule: KeyRule) -> None:
    """Raises if the keys in the store were made by another rule."""
    if scope.rule != rule.fingerprint():
        raise KeyRuleChanged(
            f"the keys of scope {store.scope!r} were made by another rule: {scope.described}. "
            f"The pipeline file says: {rule.describe()}.",
            safe="Nothing was read or written. Under a new rule, a copy of an accepted event could count as new.",
            command="put the old rule back, or `landonce dedup rekey {file}`, which computes all ids again",
        )


def require_own_window(scope: Scope, store: Store, pipeline: str) -> None:
    """Raises if the window must stay: it belongs to the scope, and so to all of its pipelines."""
    others = sorted(set(store.pipelines()) - {pipeline})
    if others:
        raise ConfigError(
            f"dedup.ttl: the window of scope {store.scope!r} is {scope.ttl} s, and pipeline {others[0]!r} relies on it.",
            command=f"say `ttl: {scope.ttl}s`, or choose another scope",
        )


def reshard(store: Store, shards: int) -> None:
    """Changes the number of shards, in one transaction. A crash leaves the old ones, and bytes that no list names.

    A shard is a range of ids by their first bits, so twice as many shards are halves of the old ones: each run is cut where its half begins.
    With half as many shards, the runs stay as they are and belong to the shard that holds both. Others may commit, expire keys or change the
    shards meanwhile: then it looks again, and drivers that compare find other versions when they commit, and compare again. A run is split
    once, so this catches up.
    """
    made: dict[tuple[str, int], list[ListedRun]] = {}
    old: list[ListedRun] = []
    while (scope := store.look()) is not None and scope.shards != shards:
        before = store.shards(range(scope.shards))
        seen = {number: each.version for number, each in before.items()}
        runs = [run for each in before.values() for run in each.runs]
        old += runs
        try:
            for run in runs:
                if (run.run, scope.shards) not in made:
                    made[run.run, scope.shards] = _resharded(store, run, scope.shards, shards)
        except StoreDamaged:
            if {number: each.version for number, each in store.shards(range(scope.shards)).items()} == seen:
                raise
            continue  # the run was merged or has expired, and its bytes are gone
        store.replace_shards(seen, shards, [new for run in runs for new in made[run.run, scope.shards]])
    if scope is not None:
        # What counts is asked for: without an answer, the change is tried again, and then finds itself in place of what it has seen.
        listed = {run.run for run in store.runs(scope)}
        known = {run.run: run for run in chain(old, *made.values())}
        store.forget_runs(run for name, run in known.items() if name not in listed)


def _resharded(store: Store, run: ListedRun, before: int, after: int) -> list[ListedRun]:
    if after <= before:
        return [replace(run, shard=run.shard * after // before)]
    parts = split(decode(run, store.run_segments(run)), after)
    return [
        store.put_run(replace(run, shard=shard, rows=len(keys.hi), digest=digest_of(keys)), encode(keys))
        for shard, keys in parts.items()
    ]


class OpenAccept(OpenSnapshot[Staged]):
    """The store, opened on the driver."""

    recipe: AcceptRecipe

    def __init__(self, sink: AcceptSink, run: sink_run.Run) -> None:
        super().__init__(run)
        self.sink = sink
        self.taken: Callable[[], None] = lambda: None
        """Called whenever the pipeline was taken, before anything is accepted. Raises what must not go on."""
        self.sent_up_to: Callable[[], Mapping[Partition, int]] = dict
        """How far the push pipeline is: what is below is in the target."""
        self.copies = self.seen_again = 0
        """Of the batches that this run committed."""
        self._table = sink.open_table()
        self._expired: list[ListedRun] = []
        """Nothing lists them any more, and their bytes are to be removed."""
        self._clean_after = self._sweep_after = 0.0
        self._swept = 0
        """Bytes that were written before this second were searched for what no list names. The first search is for all of them."""

    @property
    def store(self) -> Store:
        return self._table.store

    @property
    def tables(self) -> tuple[str, ...]:
        return (EVENTS,)

    def table(self, name: str) -> MarkedTable[Staged]:
        del name
        return self._table

    def spark(self) -> SparkNeeds:
        return SparkNeeds(("landonce.dedup.comparing", "landonce.engine.exchange"))

    def make_ready(self, columns: Columns | None) -> None:
        del columns
        sink = self.sink
        scope = self.store.make(sink.rule.fingerprint(), sink.rule.describe(), sink.shards, sink.ttl)
        require_rule(scope, self.store, sink.rule)
        if scope.ttl != sink.ttl:
            require_own_window(scope, self.store, sink.pipeline)
            self.store.set_ttl(sink.ttl)
        if scope.shards != sink.shards:
            reshard(self.store, sink.shards)
        self.refresh()

    def refresh(self) -> None:
        """Keys may have expired."""
        scope = self.store.look()
        if scope is not None:
            self._set_recipe(scope)

    def _set_recipe(self, scope: Scope) -> None:
        kind = RowsRecipe if self.sink.of_query else AcceptRecipe
        self.recipe = kind(
            **self.run.basics,
            shards=scope.shards,
            place=self.sink.place,
            rule=self.sink.rule,
            late=self.sink.late,
            source=self.sink.source,
            target=self.sink.target,
            lineage=scope.lineage,
            bucket=scope.bucket,
            horizon=scope.horizon,
            version=self.sink.version,
            cache=self.sink.cache,
            keep_copies=self.sink.keep_copies,
        )

    def tidy(self, epoch: int) -> None:
        """From here on, a change of the rule fences this driver. One that came before is noticed here."""
        del epoch
        if (scope := self.store.look()) is not None:
            require_rule(scope, self.store, self.sink.rule)
        self.taken()

    def clear(self, files: Mapping[str, tuple[Staged, ...]]) -> None:
        """A batch is committed. Now and then, what is not needed any more is removed, a little at a time."""
        staged = files.get(EVENTS, ())
        joined = [each for each in staged if isinstance(each, JoinedShards)]
        judged = _judged(joined)
        self._forget_runs([run for each in joined for run in each.merged])
        self.store.forget_unlisted(each for each in _marked(staged, judged, 0) if not each.accepted)
        self._clean_if_due()
        self.copies += sum(each.copies for each in judged.values())
        self.seen_again += sum(each.seen_again for each in judged.values())

    def clean_while_idle(self, held: LedgerState) -> None:
        """The same where no batch comes. A driver that was paused, and is not the owner any more, removes nothing: another one may have
        another window."""
        if self.own is not None and time.monotonic() >= self._clean_after:
            self.own.check_owner(held)
            self._clean_if_due()

    def _clean_if_due(self) -> None:
        if time.monotonic() >= self._clean_after:
            self.clean(int(time.time()))
            self._clean_after = time.monotonic() + _CLEAN_EVERY
        self.store.reclaim_beside()

    def clean(self, now: int) -> None:
        """Forgets keys that are older than the window, payloads that nobody needs, and bytes that no commit ever listed."""
        scope, store = self.store.look(), self.store
        if scope is None:
            return
        runs = store.runs(scope)
        buckets, horizon = expired(
            {run.bucket for run in runs},
            now_s=now,
            ttl_s=self.sink.ttl,
            bucket_s=scope.bucket,
            horizon_ms=scope.horizon,
        )
        if buckets:
            self._swept = 0  # should their names be lost, the next search finds their bytes
            store.expire(scope.shards, buckets, horizon)
            self._expired += [run for run in runs if run.bucket in buckets]
            self.refresh()
        for_a_while(self._forget_expired)
        # A key lives up to a bucket longer than the window, and its payload as long as the key.
        keep = self.sink.payloads_for + scope.bucket if self.sink.payloads_for else 0
        for_a_while(lambda: self._forget_payloads(now - keep))
        for_a_while(lambda: store.forget_copies(self.sink.pipeline, now - self.sink.ttl - scope.bucket))
        if time.monotonic() >= self._sweep_after and for_a_while(lambda: store.forget_orphans(now, self._swept)):
            self._swept, self._sweep_after = now - 2 * ORPHANED, time.monotonic() + _SWEEP_EVERY

    def _forget_expired(self) -> int:
        """Of some keys that have expired: their bytes. Gives of how many runs."""
        some = next(groups(self._expired, lambda run: run.rows * KEY_BYTES, TOGETHER), ())
        self._forget_runs(some)
        del self._expired[: len(some)]
        return len(some)

    def _forget_runs(self, runs: Sequence[ListedRun]) -> None:
        """In the store, and in the files of this machine. Other machines remove what they do not use for a day."""
        self.store.forget_runs(runs)
        if runs:
            with suppress(OSError, ConfigError):  # workers say what is wrong with the folder
                scratch_of(self.recipe.lineage, self.recipe.cache).remove(runs)

    def _forget_payloads(self, before: int) -> int:
        """Of some events that were accepted before this moment, and sent. Gives of how many chunks."""
        sent = self.sent_up_to()

        def done(chunk: Chunk) -> bool:
            up_to = sent.get(Partition(chunk.topic, chunk.partition), 0)
            return may_remove(chunk.last, chunk.accepted_at, sent_up_to=up_to, before=before)

        chunks = list(filter(done, self.store.old_chunks(self.sink.pipeline, before)))
        self.store.forget_chunks(self.sink.pipeline, chunks)
        return len(chunks)
