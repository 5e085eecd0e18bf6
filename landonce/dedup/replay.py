"""Dead letters of a pipeline with `dedup` that land in place: those of events that were accepted and could not be sent.

Such an event has its key taken, so no other record of it lands. Its letter may, for it is the one record of the event, as long as the store
has the key with exactly the letter's coordinates:

    a letter in `pushed`                          then
    ────────────────────────────────────────────  ───────────────────────────────────────────────────────────────────────────
    its key is in the store, from this record     it may land: whatever came since was a copy
    its key is there, from another record         not tried: the key was forgotten, and the event was accepted again
    its key is not there                          not tried: it expired, or the store was rebuilt; the value is produced again
    a person's value for it has another key       refused: it is another event, which may be in the target already

Letters of records that were never accepted do not land in place: their keys are not taken, so their values are produced again.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from landonce.dedup.accept import require_rule
from landonce.dedup.chunks import opened, records_table
from landonce.dedup.comparing import scratch_of
from landonce.dedup.look import Kept, key_fields
from landonce.dedup.pipelines import accepting_ledger, pushing_parts, refuse_target
from landonce.dedup.rekey import ids_of
from landonce.dedup.run import PushObserver
from landonce.dedup.runs import FIRST_SEEN, Keys, look_up, shard_of
from landonce.dedup.store import StorePlace
from landonce.engine import dead_letters
from landonce.engine.dead_letters import Place
from landonce.engine.driver import Driver
from landonce.engine.letter_choice import Filters
from landonce.engine.observe import Observer
from landonce.engine.pipeline import for_letters, land_letters, refuse_replay
from landonce.engine.replay import Entry, LetterRecord, Replay
from landonce.errors import ReplayRefused, RunGone, TargetUnavailable
from landonce.protocol.dedup import ListedRun
from landonce.protocol.ledger import taken
from landonce.protocol.ranges import Partition
from landonce.read.decoding import decoder_of
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import Pipeline

_LARGE = 2**30
_SAFE = "Nothing was written."


def replay_letters(config: Pipeline, replay: Replay, *, observer: Observer) -> Driver:
    """Lands letters of accepted events, as a run of the pipeline that pushes. First nobody else accepts for this pipeline any more."""
    parts = open_parts(for_letters(config))
    refuse_replay(parts)
    refuse_target(parts)
    kept = Kept.of(parts)
    with closing(kept.store):
        require_rule(kept.scope(), kept.store, kept.rule)
        ledger = accepting_ledger(parts)
        if (state := ledger.load()) is not None:
            ledger.change(state, taken(state, uuid.uuid4().hex))
        replay.events = AcceptedEvents(kept)
        store = opened(StorePlace.of(config))
        pushed = PushObserver(observer, store, config.pipeline, kept.dedup.keep_sent, config.stall)
        return land_letters(pushing_parts(parts), replay, pushed)


def refuse_unaccepted(config: Pipeline, filters: Filters) -> None:
    """Raises if the letters that a person asks for are of records that were never accepted."""
    count = sum(map(filters.takes, dead_letters.committed(config.dead_letters.path, config.pipeline)))
    if count:
        raise ReplayRefused(
            f"{count:,} dead letters are of records that were never accepted, and so were never compared with the events that came after them: "
            "landing one now could land an event twice.",
            safe=f"{_SAFE} Their keys are not taken: a corrected record lands as any other.",
            command="landonce dead export {file} --to fixed.jsonl, then produce the values to the topic again",
        )


@dataclass(frozen=True)
class AcceptedEvents:
    """What the store knows of the events of letters."""

    kept: Kept

    def accepted(self, letters: Sequence[Entry]) -> set[Place]:
        scope, store, found = self.kept.scope(), self.kept.store, self._found(letters)
        order = np.argsort(found.hi, kind="stable")
        shards = store.shards(set(shard_of(found.hi, scope.shards).tolist()))
        opened_runs = (self._run(run, scope.lineage) for each in shards.values() for run in each.runs)
        there, seen = look_up(opened_runs, found.hi[order], found.lo[order])
        known = order[there]
        mine = found.first_seen[known]
        same = (mine["place"] == seen["place"]) & (mine["offset"] == seen["offset"]) & found.valid[known]
        return {found.places[at] for at in known[same].tolist()}

    def _run(self, run: ListedRun, lineage: str) -> Keys:
        try:
            return scratch_of(lineage, self.kept.dedup.cache).open(run, lambda: self.kept.store.run_segments(run))
        except RunGone as gone:  # another pipeline of the scope merged it
            raise TargetUnavailable(gone.what) from None

    def require_same(self, letters: Sequence[tuple[Entry, Entry]]) -> None:
        given, before = (self._found([pair[at] for pair in letters]) for at in (0, 1))
        same = given.valid & before.valid & (given.hi == before.hi) & (given.lo == before.lo)
        if not same.all():
            topic, number, offset = given.places[int(np.flatnonzero(~same)[0])]
            raise ReplayRefused(
                f"the value that is given for {topic}:{number}:{offset} has another key than the record: to `dedup` it is another event, "
                "which may be in the target already.",
                safe=_SAFE,
                command="keep the fields of the key as they were; or produce the value to the topic, where it is compared with all others",
            )

    def _found(self, letters: Sequence[Entry]) -> _Found:
        """The places and ids of letters, in one order."""
        rule, decoding = self.kept.rule, self.kept.parts.decoding.with_limit(_LARGE)
        decode = decoder_of(key_fields(self.kept.source, rule), decoding)
        by_partition: dict[Partition, list[Entry]] = defaultdict(list)
        for each in letters:
            by_partition[Partition(each["topic"], each["partition"])].append(each)
        made = [
            ids_of(records_table([LetterRecord(each) for each in entries]), rule, decode, label)
            for label, entries in by_partition.items()
        ]
        places = [dead_letters.place_of(each) for entries in by_partition.values() for each in entries]
        return _Found(
            places,
            np.concatenate([np.empty(0, np.uint64), *(each.hi for each in made)]),
            np.concatenate([np.empty(0, np.uint64), *(each.lo for each in made)]),
            np.concatenate([np.empty(0, FIRST_SEEN), *(each.first_seen for each in made)]),
            np.concatenate([np.empty(0, np.bool_), *(each.valid for each in made)]),
        )


class _Found(NamedTuple):
    """Letters, and the ids of their events. Those without a key are not `valid`."""

    places: list[Place]
    hi: npt.NDArray[np.uint64]
    lo: npt.NDArray[np.uint64]
    first_seen: npt.NDArray[np.void]
    valid: npt.NDArray[np.bool_]
