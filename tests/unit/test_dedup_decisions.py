"""What numpy and SQL decide in deduplication is what the pure rules say, and a batch that was compared with something else is not committed."""

from __future__ import annotations

import ast
import time
from inspect import isfunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import landonce
from landonce.dedup import comparing
from landonce.dedup.accept import acceptance, reshard
from landonce.dedup.comparing import JoinedShards, Joining, Share, StagedBlock
from landonce.dedup.contents import Chunk
from landonce.dedup.runs import Keys, digest_of, encode, first_seen_of, place_of, sort_ids
from landonce.dedup.store import Acceptance, Scope, ShardRuns, Store, StorePlace
from landonce.engine.exchange import whole
from landonce.protocol import dedup as rules
from landonce.protocol.dedup import (
    ORPHANED,
    Added,
    Event,
    Judgement,
    ListedRun,
    Lists,
    RecordPlace,
    Terms,
    behind,
    committed,
    forgotten,
    judge,
    keeps_stored,
    may_commit,
    may_list,
    may_remove,
    resharded,
)
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import Mark
from landonce.protocol.receipt import BlockResult, Fate, Receipt

NEW, COPY, AGAIN = Judgement.NEW, Judgement.COPY, Judgement.SEEN_AGAIN
TERMS = Terms("l", "rule", 1, 0)
MARK = Mark(LedgerState("p", lineage="l", epoch=1, owner="o", version=1))


def test_the_mirrors_are_those_that_are_compared_below() -> None:
    """All other rules are what runs: a bug that is planted in one of them is in the code in use."""
    public = {name for name, each in vars(rules).items() if isfunction(each) and each.__module__ == rules.__name__}
    imported = {
        name.name
        for path in Path(landonce.__file__).parent.rglob("*.py")
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.ImportFrom) and each.module == rules.__name__
        for name in each.names
    }
    assert {name for name in public - imported if name[0] != "_"} == {"judge", "committed", "forgotten", "resharded"}


def event(key: str, offset: int, *, at: int = 0, partition: int = 0) -> Event:
    return Event(key, at, RecordPlace("t", partition, offset))


def test_the_first_record_of_an_id_is_new_and_others_are_copies() -> None:
    assert judge([[event("a", 0), event("a", 1), event("b", 2)]], {}) == ((NEW, COPY, NEW),)
    assert judge([[event("a", 1, partition=1)], [event("a", 0)]], {}) == ((COPY,), (NEW,))
    assert judge([[event("a", 0, at=2)], [event("a", 0, at=1, partition=1)]], {}) == ((COPY,), (NEW,))


def test_a_record_whose_own_id_is_known_is_seen_again() -> None:
    known = {"a": RecordPlace("t", 0, 0)}
    assert judge([[event("a", 0), event("a", 1), event("b", 2)]], known) == ((AGAIN, COPY, NEW),)


class InMemory(Joining):
    """Runs are kept here, and not in a store."""

    kept: dict[str, Keys]

    def _open(self, run: ListedRun) -> Keys:
        return self.kept[run.run]


def joining() -> InMemory:
    made = InMemory(SimpleNamespace(bucket=10, shards=1, keep_copies=True), 5)  # type: ignore[arg-type]
    object.__setattr__(made, "kept", {})
    return made


def share_of(block: int, events: list[Event]) -> Share:
    places = tuple(sorted({comparing.LabelledPartition(each.place.label, each.place.partition) for each in events}))
    return Share(
        block,
        "first",
        places,
        *(np.array([each.id[half] for each in events], np.uint64) for half in (0, 1)),  # type: ignore[index]
        np.array([each.timestamp for each in events], np.int64),
        np.array([places.index((each.place.label, each.place.partition)) for each in events], np.int32),
        np.array([each.place.offset for each in events], np.int64),
        np.arange(len(events), dtype=np.int32),
    )


_events = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3), st.sampled_from("tu"), st.integers(0, 2)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=300)
@given(_events, st.integers(1, 3), st.sets(st.integers(0, 11)))
def test_numpy_judges_as_the_table_says(drawn: list[tuple[Any, ...]], width: int, earlier: set[int]) -> None:
    events = [
        Event((hi, lo), at, RecordPlace(label, partition, offset))
        for offset, (hi, lo, at, label, partition) in enumerate(drawn)
    ]
    blocks = [events[at::width] for at in range(width) if events[at::width]]
    known: dict[Any, RecordPlace] = {}
    for at in sorted(earlier & set(range(len(events)))):
        known.setdefault(events[at].id, events[at].place)
    compare = joining()
    if known:
        hi, lo = (np.array([each[half] for each in known], np.uint64) for half in (0, 1))
        order = sort_ids(hi, lo)
        origin = list(known.values())
        seen = first_seen_of(
            np.array([place_of(each.label, each.partition) for each in origin], np.uint64),
            np.array([each.offset for each in origin], np.int64),
            1,
        )
        compare.kept["earlier"] = Keys(hi[order], lo[order], seen[order])
    found = JoinedShards(TERMS)
    runs = tuple(ListedRun(name, 0, 0, 0, len(keys.hi), 1, "") for name, keys in compare.kept.items())
    keys = compare._judge([share_of(number, block) for number, block in enumerate(blocks)], ShardRuns(0, runs), found)

    expected = judge(blocks, known)
    staged = [
        StagedBlock(number, "first", ((0, Chunk("c", "t", 0, 0, 0, len(block), 0, 0, "v")),))
        for number, block in enumerate(blocks)
    ]
    added = acceptance([*staged, found])
    for number, judged in enumerate(expected):
        counts = found.blocks[number]
        assert (counts.accepted, counts.copies, counts.seen_again) == tuple(map(judged.count, (NEW, COPY, AGAIN)))
    kept = [[each is NEW for each in judged] for judged in expected if NEW in judged]
    assert [_kept(each) for each in added.chunks] == kept
    new = {
        each.id
        for block, judged in zip(blocks, expected, strict=True)
        for each, is_ in zip(block, judged, strict=True)
        if is_ is NEW
    }
    assert [(int(hi), int(lo)) for hi, lo in zip(keys.hi, keys.lo, strict=True)] == sorted(new)
    pairs = [pair for block in zip(blocks, expected, strict=True) for pair in zip(*block, strict=True)]
    originals = {each.id: each.place for each, is_ in pairs if is_ is NEW} | known
    copies = [(*_hashed(each.place), *_hashed(originals[each.id])) for each, is_ in pairs if is_ is COPY]
    names = ("place", "offset", "original_place", "original_offset")
    kept_copies = [tuple(row[name] for name in names) for table in found.copies for row in table.to_pylist()]
    assert sorted(kept_copies) == sorted(copies)


def _hashed(place: RecordPlace) -> tuple[int, int]:
    return place_of(place.label, place.partition), place.offset


def _kept(chunk: Chunk) -> list[bool]:
    if chunk.dropped is None:
        return [True] * chunk.records
    return [not bit for bit in np.unpackbits(np.frombuffer(chunk.dropped, np.uint8), count=chunk.records)]


# The store against `Lists`.


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return StorePlace(tmp_path / "store", "clicks").open()


def put(store: Store, shard: int, bucket: int) -> ListedRun:
    hi = np.array([shard << 63], np.uint64)
    keys = Keys(hi, hi, first_seen_of(1, np.arange(1), 7))
    return store.put_run(ListedRun("", shard, 0, bucket, 1, 0, digest_of(keys)), encode(keys))


def lists_of(store: Store, pipelines: str = "pq") -> Lists:
    scope = looked(store)
    shards = store.shards(range(scope.shards))
    marks = [(each, store.mark(each)) for each in pipelines]
    return Lists(
        scope.terms,
        tuple(shards[number].version for number in range(scope.shards)),
        frozenset(run for each in shards.values() for run in each.runs),
        frozenset(chunk.chunk for each in pipelines for chunk in store.chunks(each)),
        tuple((name, mark.snapshot, "") for name, mark in marks if mark is not None and mark.snapshot is not None),
    )


def looked(store: Store) -> Scope:
    scope = store.look()
    assert scope is not None
    return scope


def test_sql_changes_the_lists_as_the_pure_functions_do(store: Store) -> None:
    store.make("rule", "", 2, 80)
    chance = np.random.default_rng(7)
    answers = []
    for step in range(150):
        before, pipeline = lists_of(store), "pq"[chance.integers(2)]
        kind = chance.integers(10)
        if kind == 0:
            bucket = int(chance.integers(4))
            store.expire(before.terms.shards, {bucket}, 1000 * bucket)
            assert lists_of(store) == forgotten(before, {bucket}, 1000 * bucket), step
            continue
        seen = {shard: version - int(chance.random() < 0.1) for shard, version in enumerate(before.versions)}
        if kind == 1:
            shards = 3 - before.terms.shards
            runs = [run for run in before.runs if run.shard < shards]
            done = store.replace_shards(seen, shards, runs)
            assert lists_of(store) == (resharded(before, seen, shards, runs) if done else before), step
            assert done is (resharded(before, seen, shards, runs) is not None)
            continue
        terms = Terms(
            before.terms.lineage, "rule", before.terms.shards, before.terms.horizon_ms + int(chance.random() < 0.1)
        )
        touched = [shard for shard in seen if chance.random() < 0.6]
        runs = [put(store, shard, int(chance.integers(4))) for shard in touched]
        merged = [run for run in before.runs if run.shard in touched and chance.random() < 0.2]
        chunk = store.put_chunk(Chunk("", "t", 0, step, step, 1, 0, 0, "v", accepted=1), b"x")
        expected = before.number(pipeline) + int(chance.random() < 0.1)
        added = Acceptance(seen, tuple(runs), tuple(merged), (chunk,), terms=terms)
        answer = store.commit(pipeline, expected, MARK, added)
        said = committed(
            before,
            pipeline,
            expected,
            "",
            Added(terms, tuple(seen.items()), frozenset(runs), frozenset(merged), frozenset([chunk.chunk])),
        )
        assert lists_of(store) == (said if isinstance(said, Lists) else before), step
        assert answer is (True if isinstance(said, Lists) else None if said else False)
        answers.append(answer)
    assert set(answers) == {True, False, None}


def versions(store: Store) -> dict[int, int]:
    return {shard: each.version for shard, each in store.shards(range(looked(store).shards)).items()}


def test_ids_that_expire_after_records_were_found_not_late_are_not_missed(store: Store) -> None:
    """A worker finds a record not late; its id expires, by another pipeline; the worker finds its id nowhere."""
    scope = store.make("rule", "", 2, 80)
    assert store.commit("p", 0, MARK, Acceptance(versions(store), (put(store, 0, 0),)))
    store.expire(2, {0}, 10_000)
    added = Acceptance(versions(store), (put(store, 0, 9),), terms=scope.terms)
    assert store.commit("p", 1, MARK, added) is None
    again = Acceptance(versions(store), added.runs, terms=looked(store).terms)
    assert store.commit("p", 1, MARK, again)


def test_ids_that_were_split_by_another_number_of_shards_are_not_accepted(store: Store) -> None:
    """A worker splits for 2 shards, and there are 4 when it looks: what it looks for is elsewhere."""
    scope = store.make("rule", "", 2, 80)
    reshard(store, 4)
    seen = {shard: version for shard, version in versions(store).items() if shard < 2}
    assert store.commit("p", 0, MARK, Acceptance(seen, (put(store, 0, 0),), terms=scope.terms)) is None


def test_bytes_that_may_have_been_removed_are_not_listed(store: Store) -> None:
    store.make("rule", "", 2, 80)
    now = int(time.time())
    old = Acceptance(versions(store), (put(store, 0, 0),), written_at=now - ORPHANED)
    assert store.commit("p", 0, MARK, old) is None
    assert store.commit("p", 0, MARK, Acceptance(versions(store), old.runs, written_at=now - 60))


def test_there_is_time_between_the_last_moment_to_list_bytes_and_the_first_to_remove_them() -> None:
    assert may_list(100, 100 + ORPHANED // 2 - 1)
    assert not may_list(100, 100 + ORPHANED // 2)


@pytest.mark.parametrize(
    "changed", [Terms("m", "rule", 1, 0), Terms("l", "other", 1, 0), Terms("l", "rule", 2, 0), Terms("l", "rule", 1, 9)]
)
def test_a_batch_is_committed_on_the_terms_that_it_was_judged_by(changed: Terms) -> None:
    assert may_commit({0: 1}, {0: 1}, TERMS, TERMS)
    assert not may_commit({0: 1}, {0: 1}, TERMS, changed)
    assert not may_commit({0: 1}, {0: 1}, TERMS, None)


def test_where_one_block_could_not_be_read_no_block_of_the_batch_counts() -> None:
    """Otherwise the others would be accepted without being compared, once that block is written alone."""
    landed = BlockResult(0, Fate.LANDED, Receipt(3, landed=3))
    results = whole(None, [None, None], [landed, BlockResult(1, Fate.DOUBTFUL, why="no broker")])  # type: ignore[arg-type,list-item]
    assert [each.fate for each in results] == [Fate.DOUBTFUL, Fate.DOUBTFUL]
    assert all(each.receipt is None for each in results)


def test_a_commit_may_move_only_the_mark() -> None:
    before = Lists(TERMS, (1,), frozenset(), frozenset(), ())
    after = committed(before, "p", 0, "m")
    assert isinstance(after, Lists)
    assert (after.marks, after.versions) == ((("p", 1, "m"),), (1,))


def test_a_block_is_stored_once_and_known_by_its_ranges() -> None:
    assert keeps_stored("t-0 [0, 9]", "t-0 [0, 9]")
    assert not keeps_stored("t-0 [0, 9]", "t-0 [0, 8]")
    assert not keeps_stored(None, "t-0 [0, 9]")


def test_a_chunk_is_removed_when_all_of_it_is_sent_and_its_time_is_over() -> None:
    assert may_remove(9, 100, sent_up_to=10, before=101)
    assert not may_remove(9, 100, sent_up_to=9, before=101)
    assert not may_remove(9, 100, sent_up_to=10, before=100)


def test_a_store_is_behind_where_the_target_holds_what_it_does_not_know() -> None:
    assert behind({"a": 5, "b": 5}, {"a": 5, "b": 6, "c": 1}) == {"b", "c"}
    assert behind({"a": 5}, {"a": 3, "c": 0}) == frozenset()


def test_shards_are_not_split_while_another_accept_adds_to_them() -> None:
    before = Lists(TERMS, (1,), frozenset(), frozenset(), ())
    assert resharded(before, {0: 0}, 2, []) is None
    assert resharded(before, {}, 2, []) is None
    after = resharded(before, {0: 1}, 2, [])
    assert after is not None
    assert (after.terms.shards, after.versions) == (2, (2, 2))
