"""The rules of content deduplication: what expires, what is late, which runs are merged, and when an accept may commit."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landonce.protocol.dedup import (
    FAN_IN,
    LARGE,
    MOST_KEYS,
    ListedRun,
    bucket_of,
    bucket_seconds,
    expired,
    has_expired,
    has_turn,
    is_late,
    may_commit,
    merge_due,
    merged_level,
)

DAY = 86_400


def run(name: str, rows: int, *, level: int = 0, bucket: int = 0, shard: int = 0) -> ListedRun:
    return ListedRun(name, shard, level, bucket, rows, segments=1, digest="")


def runs(count: int, rows: int, *, level: int = 0, bucket: int = 0, shard: int = 0) -> list[ListedRun]:
    return [run(f"{bucket}-{level}-{at}", rows, level=level, bucket=bucket, shard=shard) for at in range(count)]


@pytest.mark.parametrize(("ttl_s", "length"), [(60 * DAY, 60 * DAY // 8), (8, 1), (7, 1), (1, 1)])
def test_a_bucket_is_an_eighth_of_the_ttl_and_at_least_a_second(ttl_s: int, length: int) -> None:
    assert bucket_seconds(ttl_s) == length


def test_a_bucket_is_dropped_when_its_youngest_key_is_older_than_the_ttl() -> None:
    ask = {"ttl_s": 80, "bucket_s": 10, "horizon_ms": 0}
    assert bucket_of(109, 10) == 10
    assert expired([10, 11], now_s=189, **ask) == ((), 0)
    assert expired([10, 11], now_s=190, **ask) == ((10,), 110_000)
    assert expired([11, 10, 10], now_s=200, **ask) == ((10, 11), 120_000)


def test_what_is_dropped_has_expired_and_what_is_not_has_not() -> None:
    dropped, horizon = expired([10, 11], now_s=190, ttl_s=80, bucket_s=10, horizon_ms=0)
    assert [each for each in (9, 10, 11) if has_expired(each, bucket_s=10, horizon_ms=horizon)] == [9, *dropped]
    assert not has_expired(0, bucket_s=10, horizon_ms=0)


def test_the_horizon_moves_only_if_a_bucket_is_dropped_so_old_topics_can_be_read() -> None:
    assert expired([], now_s=10**9, ttl_s=80, bucket_s=10, horizon_ms=0) == ((), 0)
    assert not is_late(0, 0)


def test_the_horizon_never_moves_back() -> None:
    assert expired([3], now_s=10**6, ttl_s=80, bucket_s=10, horizon_ms=999_000) == ((3,), 999_000)


@given(
    st.lists(st.integers(0, 2_000), min_size=1),
    st.integers(0, 4_000),
    st.integers(1, 1_000),
    st.integers(0, 500_000),
)
def test_no_key_goes_before_its_ttl_and_no_record_whose_key_is_gone_is_judged(
    accepted: list[int], now_s: int, ttl_s: int, horizon_ms: int
) -> None:
    bucket_s = bucket_seconds(ttl_s)
    dropped, horizon = expired(
        [bucket_of(at, bucket_s) for at in accepted], now_s=now_s, ttl_s=ttl_s, bucket_s=bucket_s, horizon_ms=horizon_ms
    )
    assert horizon >= horizon_ms
    for at in accepted:
        if bucket_of(at, bucket_s) in dropped:
            assert now_s - at > ttl_s
            assert is_late(at * 1000 + 999, horizon)
        else:
            assert now_s - at < ttl_s + bucket_s


@pytest.mark.parametrize(
    ("now", "may"), [({1: 4, 2: 9}, True), ({1: 4, 2: 9, 3: 1}, True), ({1: 4, 2: 10}, False), ({1: 4}, False)]
)
def test_an_accept_commits_only_on_the_versions_that_it_saw(now: dict[int, int], may: bool) -> None:
    assert may_commit({1: 4, 2: 9}, now) is may


def due_of(present: list[ListedRun], *, turn: bool = True) -> tuple[ListedRun, ...]:
    return merge_due(present, turn=turn)


def test_runs_of_one_level_are_merged_once_there_are_enough() -> None:
    assert due_of([]) == ()
    assert due_of(runs(FAN_IN - 1, 10)) == ()
    due = due_of([*runs(FAN_IN, 10), *runs(FAN_IN - 1, 80, level=1)])
    assert {each.level for each in due} == {0}
    assert len(due) == FAN_IN
    assert merged_level(due) == 1


def test_the_lowest_level_of_the_oldest_bucket_comes_first() -> None:
    assert {each.level for each in due_of([*runs(8, 100, level=1), *runs(8, 10)])} == {0}
    assert {each.bucket for each in due_of([*runs(9, 10, bucket=5), *runs(9, 10, bucket=4)])} == {4}


def test_small_merges_of_shards_differ_in_their_number_of_runs() -> None:
    first = {shard: next(n for n in range(99) if due_of(runs(n, 10, shard=shard))) for shard in range(16)}
    assert max(Counter(first.values()).values()) == 2
    assert set(first.values()) == set(range(FAN_IN, 2 * FAN_IN))


@pytest.mark.parametrize("shards", [1, 4, 16, 64])
def test_one_shard_at_a_time_has_the_turn_and_each_shard_gets_it(shards: int) -> None:
    turns = [
        [shard for shard in range(shards) if has_turn(shard, version=version, shards=shards)]
        for version in range(max(shards, FAN_IN))
    ]
    assert max(map(len, turns)) == 1
    assert sorted(each for turn in turns for each in turn) == list(range(shards))


def test_a_large_merge_waits_for_the_turn_and_then_goes_first() -> None:
    large, small = runs(8, LARGE, level=1), runs(8, 10)
    assert due_of(large, turn=False) == ()
    assert set(due_of([*large, *small], turn=False)) == set(small)
    assert set(due_of([*large, *small])) == set(large)


def test_where_batches_are_large_so_are_merges() -> None:
    assert len(due_of(runs(8, LARGE), turn=False)) == 8


def test_what_does_not_fit_together_is_not_merged() -> None:
    assert due_of(runs(20, MOST_KEYS // 2 + 1, level=3)) == ()
    assert due_of([*runs(3, 1), *(run(f"large {at}", MOST_KEYS) for at in range(9))]) == ()
    assert due_of([run("too large", MOST_KEYS + 1)]) == ()
    assert len(due_of(runs(20, MOST_KEYS // 8, level=3))) == 8
    assert len(due_of([*runs(8, 1, level=3), run("large", MOST_KEYS, level=3)])) == 8


def test_fewer_are_merged_if_they_fill_a_run() -> None:
    assert len(due_of(runs(8, MOST_KEYS // 6, level=3))) == 6
    assert due_of(runs(7, MOST_KEYS // 6, level=3)) == ()


def test_an_older_bucket_becomes_one_run_across_levels() -> None:
    older = [*runs(3, 10), *runs(5, 80, level=1)]
    assert due_of(older) == ()
    assert set(due_of([*older, *runs(1, 10, bucket=1)])) == set(older)
    assert due_of([run("merged", 430, level=2), *runs(8, 10, bucket=1)]) == tuple(runs(8, 10, bucket=1))


def test_a_late_small_run_does_not_rewrite_a_large_one() -> None:
    large, newer = run("large", 1000, level=4), run("newer", 10, bucket=1)
    assert due_of([large, run("late", 10), newer]) == ()
    twins = [run("late", 10), run("later", 10)]
    assert due_of([large, *twins, newer]) == tuple(twins)


def test_a_run_without_keys_is_not_merged_alone() -> None:
    assert due_of([run("empty", 0), run("newer", 10, bucket=1)]) == ()


@dataclass
class Shard:
    """One shard's list of runs over many accepts, and what its merges cost."""

    number: int
    shards: int = 16
    present: list[ListedRun] = field(default_factory=list)
    depth: Counter[str] = field(default_factory=Counter)
    """By run: how often a key of it was rewritten at most."""
    version: int = 0
    added: int = 0
    rewritten: int = 0
    newest_most: int = 0
    older_most: int = 0

    def accept(self, rows: int, bucket: int = 0, *, turn: bool | None = None) -> int:
        """How many keys were merged."""
        self.present.append(ListedRun(f"{self.version:06}", self.number, 0, bucket, rows, 1, ""))
        in_turn = has_turn(self.number, version=self.version, shards=self.shards) if turn is None else turn
        due = merge_due(self.present, turn=in_turn)
        keys = sum(each.rows for each in due)
        if due:
            (of_bucket,) = {each.bucket for each in due}
            merged = ListedRun(f"m{self.version:06}", self.number, merged_level(due), of_bucket, keys, 1, "")
            self.depth[merged.run] = 1 + max(self.depth[each.run] for each in due)
            self.present = [each for each in self.present if each not in due] + [merged]
        assert keys <= MOST_KEYS
        self.version += 1
        self.added += rows
        self.rewritten += keys
        assert sum(each.rows for each in self.present) == self.added
        return keys

    def accepts(self, batches: int, keys: list[int], per_bucket: int = 10**9) -> None:
        for batch in range(batches):
            bucket = batch // per_bucket
            self.accept(keys[batch % len(keys)], bucket)
            counts = Counter(each.bucket for each in self.present)
            self.newest_most = max(self.newest_most, counts.pop(bucket))
            if batch % per_bucket > 4 * self.shards:  # by now older buckets had their turns
                self.older_most = max([self.older_most, *counts.values()])


@pytest.mark.parametrize("number", [0, 5, 15])
def test_2000_batches_leave_few_runs_and_rewrite_each_key_about_three_times(number: int) -> None:
    shard = Shard(number)
    shard.accepts(2_000, [6_250])
    assert shard.newest_most <= 30 + shard.added // MOST_KEYS
    assert shard.rewritten <= 3 * shard.added
    assert max(shard.depth.values()) <= 4
    shard = Shard(number)
    shard.accepts(2_000, [6_250], per_bucket=250)
    assert shard.newest_most <= 30
    assert shard.older_most <= 2
    assert shard.rewritten <= 4 * shard.added


@pytest.mark.uncounted
@pytest.mark.parametrize("number", [0, 7])
def test_batches_of_all_sizes_stay_within_the_bounds(number: int) -> None:
    chance = random.Random(number)
    for keys in ([1], [1, 1_000_000], [MOST_KEYS], [int(10 ** chance.uniform(0, 5.5)) for _ in range(500)]):
        shard = Shard(number)
        shard.accepts(2_000, keys, per_bucket=250)
        of_bucket = 250 * max(sum(keys) / len(keys), sum(keys[:250]) / len(keys[:250]), sum(keys[250:]) / 250)
        assert shard.newest_most <= 63 + 16 + of_bucket / 2_000_000
        assert shard.older_most <= 23 + of_bucket / 1_300_000
        assert max(shard.depth.values(), default=0) <= 7 + math.log2(MOST_KEYS)


@pytest.mark.uncounted
def test_no_batch_pays_for_large_merges_of_several_shards() -> None:
    def most_merged(turn: bool | None) -> int:
        shards = [Shard(number) for number in range(16)]
        return max(sum(shard.accept(25_000, batch // 300, turn=turn) for shard in shards) for batch in range(600))

    assert most_merged(None) <= MOST_KEYS * 1.5
    assert most_merged(True) > MOST_KEYS * 2, "the control: without turns, one batch pays for several"


def test_a_clock_that_jumps_ahead_once_does_not_stop_merges() -> None:
    shard = Shard(0)
    shard.accept(10, bucket=10**6)
    for _ in range(1_000):
        shard.accept(1_000)
    assert len(shard.present) <= 30
    assert shard.rewritten <= 12 * shard.added
