"""Sorted runs against Python's dict and set, with ids that share their high halves; and the folder of mapped runs."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from landonce.dedup import runs as module
from landonce.dedup import scratch as scratch_module
from landonce.dedup.runs import (
    FIRST_SEEN,
    KEY_BYTES,
    Keys,
    Segment,
    decode,
    digest_of,
    encode,
    first_of_each,
    first_seen_of,
    look_up,
    merge,
    place_of,
    search,
    shard_of,
    slices_of_shards,
    sort_ids,
    split,
)
from landonce.dedup.scratch import Scratch, scratch_folder
from landonce.errors import ConfigError, RunGone, StoreDamaged
from landonce.protocol.dedup import ListedRun

TOP = 2**64 - 1
HIGHS = st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 2**63, TOP]), st.integers(0, TOP))
IDS = st.tuples(HIGHS, st.one_of(st.integers(0, 255), st.sampled_from([0, TOP])))
CROWDED = st.tuples(st.integers(0, 3), st.integers(0, 255))
"""Many ids per high half."""
SOME_IDS = st.one_of(st.lists(IDS), st.lists(CROWDED), st.lists(CROWDED, min_size=50, max_size=400))

Pair = tuple[int, int]


def halves(ids: list[Pair]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([hi for hi, _ in ids], np.uint64), np.array([lo for _, lo in ids], np.uint64)


def keys_of(first: dict[Pair, int]) -> Keys:
    """Ids, each with the time when it was accepted; place and offset follow from the id."""
    ids = sorted(first)
    hi, lo = halves(ids)
    return Keys(hi, lo, first_seen_of(hi ^ np.uint64(7), np.arange(len(ids)), [first[each] for each in ids]))


def pairs(keys: Keys) -> list[Pair]:
    return list(zip(keys.hi.tolist(), keys.lo.tolist(), strict=True))


def random_keys(count: int, seed: int = 0) -> Keys:
    chance = np.random.default_rng(seed)
    hi, lo = chance.integers(0, TOP, (2, count), dtype=np.uint64, endpoint=True)
    order = sort_ids(hi, lo)
    return Keys(hi[order], lo[order], first_seen_of(3, np.arange(count), 1_800_000_000))


def entry(keys: Keys, **other: object) -> ListedRun:
    given = {"run": str(uuid.uuid4()), "shard": 3, "level": 0, "bucket": 0, "rows": len(keys.hi)}
    return ListedRun(**{**given, "segments": len(encode(keys)), "digest": digest_of(keys), **other})  # type: ignore[arg-type]


def same(one: Keys, two: Keys) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_place_is_the_same_everywhere_and_names_topic_and_partition() -> None:
    assert place_of("orders", 3) == 17740544575091666906
    places = {place_of(label, partition) for label in ("a", "b", "1/a", "a/1") for partition in (0, 1, 10, 11)}
    assert len(places) == 16


@given(st.lists(st.tuples(IDS | CROWDED, st.integers(0, 2), st.integers(0, 2), st.integers(0, 5))))
def test_ids_are_sorted_and_the_first_of_each_has_the_lowest_tie_breakers(events: list) -> None:
    hi, lo = halves([each[0] for each in events])
    ties = [np.array([each[at] for each in events], np.int64) for at in (1, 2, 3)]
    order = sort_ids(hi, lo, *ties)
    assert [events[at] for at in order] == sorted(events)
    first = first_of_each(hi[order], lo[order])
    winners = {each[0]: each for each in sorted(events, reverse=True)}
    assert [events[at] for at in order[first]] == [winners[each] for each in sorted(winners)]


def test_equal_ids_are_one() -> None:
    hi, lo = halves([(5, 6)] * 1000)
    offsets = np.arange(1000)[::-1]
    order = sort_ids(hi, lo, offsets)
    assert first_of_each(hi, lo).tolist() == [True] + [False] * 999
    assert offsets[order[0]] == 0


@settings(max_examples=300)
@given(SOME_IDS, SOME_IDS)
def test_a_search_finds_what_a_dict_finds(held: list[Pair], wanted: list[Pair]) -> None:
    run = keys_of(dict.fromkeys(held, 1))
    where = {each: at for at, each in enumerate(pairs(run))}
    for asked in (sorted({*wanted, *held[::2]}), wanted):
        hi, lo = halves(asked)
        assert search(run.hi, run.lo, hi, lo).tolist() == [where.get(each, -1) for each in asked]


@pytest.mark.parametrize("held", [[(0, 0)], [(TOP, TOP)], [(0, 0), (TOP, TOP)], [(TOP, 0), (TOP, 5), (TOP, TOP)]])
def test_the_least_and_the_greatest_id_are_found(held: list[Pair]) -> None:
    run = keys_of(dict.fromkeys(held, 1))
    asked = [(0, 0), (0, 1), (TOP, 0), (TOP, TOP - 1), (TOP, TOP)]
    assert [at >= 0 for at in search(run.hi, run.lo, *halves(asked))] == [each in held for each in asked]


@given(st.lists(SOME_IDS, max_size=5), SOME_IDS)
def test_a_lookup_in_several_runs_tells_where_each_id_was_first_seen(
    parts: list[list[Pair]], wanted: list[Pair]
) -> None:
    taken: dict[Pair, int] = {}
    runs = []
    for at, part in enumerate(parts):
        new = {each: at for each in part if each not in taken}
        taken |= new
        runs.append(keys_of(new))
    asked = sorted({*wanted, *list(taken)[::3]})
    found, first_seen = look_up(runs, *halves(asked))
    assert found.tolist() == [each in taken for each in asked]
    assert first_seen["at"].tolist() == [taken[each] for each in asked if each in taken]


@given(st.lists(st.dictionaries(IDS | CROWDED, st.integers(0, 9)), max_size=6))
def test_a_merge_loses_no_key_and_keeps_the_earliest_of_repeated_ones(parts: list[dict[Pair, int]]) -> None:
    merged, repeated = merge([keys_of(each) for each in parts])
    earliest = {each: min(part[each] for part in parts if each in part) for part in parts for each in part}
    assert pairs(merged) == sorted(earliest)
    assert merged.first_seen["at"].tolist() == [earliest[each] for each in sorted(earliest)]
    assert repeated == sum(map(len, parts)) - len(earliest)
    assert merged.first_seen.dtype == FIRST_SEEN


def test_merges_of_50_runs_keep_every_key_with_its_place() -> None:
    whole = random_keys(50_000)
    parts = [Keys(*(column[at::50] for column in whole)) for at in range(50)]
    merged, repeated = merge(parts)
    assert (same(merged, whole), repeated) == (True, 0)
    tiers = [merge(parts[at : at + 8]).keys for at in range(0, 50, 8)]
    assert same(merge(tiers).keys, whole)


@pytest.mark.parametrize("shards", [1, 2, 16, 1024])
def test_shards_are_ranges_of_ids(shards: int) -> None:
    keys = random_keys(5_000)
    parts = slices_of_shards(keys.hi, shards)
    expected = [int(hi) * shards >> 64 for hi in keys.hi]
    assert shard_of(keys.hi, shards).tolist() == expected
    assert [shard for shard, part in enumerate(parts) for _ in range(part.stop - part.start)] == expected


def test_twice_as_many_shards_slice_the_runs_of_each_in_two() -> None:
    keys = random_keys(5_000)
    of_16, of_32 = split(keys, 16), split(keys, 32)
    for shard, part in of_16.items():
        halved = split(part, 32)
        assert halved.keys() == {2 * shard, 2 * shard + 1}
        assert all(same(each, of_32[at]) for at, each in halved.items())
    assert sum(len(each.hi) for each in of_32.values()) == 5_000
    assert split(keys_of({}), 16) == {}


@pytest.mark.parametrize("shards", [0, 3, -2])
def test_the_number_of_shards_is_a_power_of_two(shards: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        split(random_keys(10), shards)


@pytest.mark.parametrize("count", [0, 1, 999, 1_000, 1_001, 2_500])
def test_a_run_is_decoded_as_it_was_encoded(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT_KEYS", 1_000)
    keys = random_keys(count)
    segments = encode(keys)
    assert len(segments) == -(-count // 1_000)
    assert all(len(each.ids) <= 16_000 for each in segments)
    assert sum(len(each.ids) + len(each.first_seen) for each in segments) == count * KEY_BYTES == count * 36
    assert same(decode(entry(keys), segments), keys)


def test_the_bytes_are_little_endian_and_stay_as_they_are() -> None:
    keys = Keys(*halves([(1, 2), (3, TOP)]), first_seen_of([4, 5], [6, -1], 7))
    (segment,) = encode(keys)
    assert segment.ids.hex() == "010000000000000003000000000000000200000000000000ffffffffffffffff"
    assert segment.first_seen.hex() == (
        "04000000000000000600000000000000070000000500000000000000ffffffffffffffff07000000"
    )
    assert digest_of(keys) == "10449b73b4e9bfd409085948ce7dcf1f"
    assert digest_of(keys) == hashlib.blake2b(segment.ids + segment.first_seen, digest_size=16).hexdigest()


def broken(segments: list[Segment]) -> Iterator[list[Segment]]:
    first = segments[0]
    yield [first._replace(ids=bytes([first.ids[0] ^ 1]) + first.ids[1:]), *segments[1:]]
    yield [first._replace(first_seen=first.first_seen[:-1] + bytes([first.first_seen[-1] ^ 128])), *segments[1:]]
    yield [first._replace(ids=first.ids[:-16]), *segments[1:]]
    yield [first._replace(ids=first.ids[:-1]), *segments[1:]]
    yield [first._replace(first_seen=first.first_seen[:-20]), *segments[1:]]
    yield segments[1:]
    yield segments[::-1]
    yield [*segments, first]


def test_damaged_bytes_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT_KEYS", 1_000)
    keys = random_keys(2_500)
    for segments in broken(encode(keys)):
        with pytest.raises(StoreDamaged, match="does not match its digest"):
            decode(entry(keys), segments)


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(tmp_path / "scratch")


def fetching(keys: Keys, counts: list[int] | None = None) -> Callable[[], list[Segment]]:
    def fetch() -> list[Segment]:
        (counts if counts is not None else []).append(1)
        return encode(keys)

    return fetch


def never() -> list[Segment]:
    raise AssertionError("fetched again")


def forget_checks() -> None:
    """As in a new process."""
    scratch_module._checked.clear()


@pytest.mark.parametrize("count", [0, 1, 300_000])
def test_a_run_is_fetched_once_and_mapped_without_a_copy(scratch: Scratch, count: int) -> None:
    keys = random_keys(count)
    run = entry(keys)
    assert same(scratch.open(run, fetching(keys)), keys)
    forget_checks()
    opened = scratch.open(run, never)
    assert same(opened, keys)
    assert not any(column.flags.owndata for column in opened if count)
    assert not list(scratch.folder.glob("*.tmp"))


def test_only_the_user_can_read_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch_module.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = Scratch(scratch_folder("lineage")).folder
    assert folder == tmp_path / f"landonce-dedup-{os.getuid()}" / "lineage"
    assert [each.stat().st_mode & 0o777 for each in (folder, folder.parent)] == [0o700, 0o700]
    folder.chmod(0o755)
    assert Scratch(folder).folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(ConfigError, match="a link"):
        Scratch(tmp_path / "link")


def flip(path: Path) -> None:
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 1
    path.write_bytes(held)


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"\0"),
        lambda path: path.write_bytes(b""),
    ],
)
def test_a_damaged_file_is_fetched_again(scratch: Scratch, damage: Callable[[Path], object]) -> None:
    keys = random_keys(1_000)
    run = entry(keys)
    scratch.open(run, fetching(keys))
    forget_checks()
    damage(scratch.folder / f"{run.run}.keys")
    counts: list[int] = []
    assert same(scratch.open(run, fetching(keys, counts)), keys)
    assert len(counts) == 1


def test_a_store_whose_bytes_are_wrong_twice_is_named(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT_KEYS", 400)
    keys = random_keys(1_000)
    run = entry(keys)
    for segments in broken(encode(keys)):
        with pytest.raises(StoreDamaged, match=run.run):
            scratch.open(run, lambda segments=segments: segments)
    answers = iter([next(broken(encode(keys))), encode(keys)])
    assert same(scratch.open(run, lambda: next(answers)), keys)
    assert [each.suffix for each in scratch.folder.iterdir()] == [".keys"]


def test_a_run_that_was_merged_meanwhile_is_gone_not_damaged(scratch: Scratch) -> None:
    keys = random_keys(200_000)
    answers = iter([encode(keys)[:1], []])
    with pytest.raises(RunGone, match="list the runs again"):
        scratch.open(entry(keys), lambda: next(answers))
    assert list(scratch.folder.iterdir()) == []


def test_a_name_that_leaves_the_folder_is_refused(scratch: Scratch) -> None:
    keys = random_keys(10)
    with pytest.raises(StoreDamaged):
        scratch.open(entry(keys, run="../other"), fetching(keys))


def test_the_file_of_a_killed_process_is_never_opened_and_is_removed_later(scratch: Scratch) -> None:
    keys = random_keys(1_000)
    run = entry(keys)
    left, young = (scratch.folder / f"{run.run}.{name}.tmp" for name in ("left", "young"))
    for each in (left, young):
        each.write_bytes(b"half a file")
    os.utime(left, (0, 0))
    assert same(scratch.open(run, fetching(keys)), keys)
    assert (left.exists(), young.exists()) == (False, True)


def test_what_was_not_used_for_longest_is_removed_first(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "scratch", most_bytes=3 * 36_000)
    sets = [random_keys(1_000, seed) for seed in range(5)]
    listed = [entry(keys) for keys in sets]
    for at in range(3):
        scratch.open(listed[at], fetching(sets[at]))
        used(scratch.folder / f"{listed[at].run}.keys", 100 - at)
    scratch.open(listed[0], never)
    scratch.open(listed[3], fetching(sets[3]))
    held = {each.stem for each in scratch.folder.iterdir()}
    assert held == {listed[at].run for at in (0, 2, 3)}
    assert {each.stem for each in scratch_module._checked if each.parent == scratch.folder} <= {*held, listed[1].run}
    scratch.remove([listed[0], listed[4]])
    assert {each.stem for each in scratch.folder.iterdir()} == {listed[2].run, listed[3].run}


def used(path: Path, ago: float) -> None:
    os.utime(path, (time.time() - ago,) * 2)


DAY = 24 * 3600


def test_what_nobody_opened_for_a_day_is_removed(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine whose driver is elsewhere, nobody says which runs were merged. It is looked for every hour."""
    sets = [random_keys(1_000, seed) for seed in range(4)]
    listed = [entry(keys) for keys in sets]
    mapped = scratch.open(listed[0], fetching(sets[0]))
    for run, keys in zip(listed[1:3], sets[1:3], strict=True):
        scratch.open(run, fetching(keys))
    for run, ago in zip(listed[:3], (2 * DAY, 2 * DAY, DAY / 2), strict=True):
        used(scratch.folder / f"{run.run}.keys", ago)
    scratch.open(listed[3], fetching(sets[3]))
    assert len(list(scratch.folder.iterdir())) == 4, "not with every run that is fetched"
    now = time.monotonic()
    monkeypatch.setattr(scratch_module.time, "monotonic", lambda: now + 3601)
    (scratch.folder / f"{listed[3].run}.keys").unlink()
    scratch.open(listed[3], fetching(sets[3]))
    assert {each.stem for each in scratch.folder.iterdir()} == {listed[at].run for at in (0, 2, 3)}
    assert same(mapped, sets[0])


def test_files_of_stores_that_nobody_uses_are_removed(tmp_path: Path) -> None:
    stores = {name: Scratch(tmp_path / name) for name in ("lost", "paused", "other", "mine")}
    keys = random_keys(1_000)
    run = entry(keys)
    for each in stores.values():
        each.open(run, fetching(keys))
    for name in ("lost", "paused", "mine"):
        used(stores[name].folder / f"{run.run}.keys", 2 * DAY)
        used(stores[name].folder, 2 * DAY)
    paused = stores["paused"].open(run, never)
    used(stores["paused"].folder / f"{run.run}.keys", 2 * DAY)
    scratch_module.remove_old_stores(tmp_path, but=stores["mine"].folder)
    assert {each.name for each in tmp_path.iterdir()} == {"other", "mine"}
    assert [len(list(stores[name].folder.iterdir())) for name in ("other", "mine")] == [1, 1]
    assert same(paused, keys)
    assert same(stores["paused"].open(run, fetching(keys)), keys), "it is fetched again"
    scratch_module.remove_old_stores(tmp_path / "nowhere", but=tmp_path)


def test_what_is_mapped_is_not_removed_and_outlives_its_file(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "scratch", most_bytes=36_000)
    sets = [random_keys(1_000, seed) for seed in range(5)]
    listed = [entry(keys) for keys in sets]
    opened = [scratch.open(run, fetching(keys)) for run, keys in zip(listed, sets, strict=True)]
    assert len(list(scratch.folder.iterdir())) == 5
    scratch.remove(listed)
    assert all(same(one, two) for one, two in zip(opened, sets, strict=True))
    del opened
    scratch.open(listed[0], fetching(sets[0]))
    scratch.open(listed[1], fetching(sets[1]))
    assert [each.stem for each in scratch.folder.iterdir()] == [listed[1].run]


def opens_all(folder: Path, seeds: range, times: int, done: object) -> None:
    scratch = Scratch(folder, most_bytes=5 * 36 * 20_000)
    sets = [random_keys(20_000, seed) for seed in seeds]
    for turn in range(times):
        for seed in seeds:
            keys = sets[(seed + turn) % len(sets)]
            run = entry(keys, run=f"run-{(seed + turn) % len(sets)}")
            forget_checks()
            assert same(scratch.open(run, fetching(keys)), keys)
    done.value = 1  # type: ignore[attr-defined]


def test_processes_that_share_the_folder_and_are_killed_open_only_whole_files(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    folder = tmp_path / "scratch"
    flags = [context.Value("i", 0) for _ in range(2)]
    finishing = [context.Process(target=opens_all, args=(folder, range(8), 6, flag)) for flag in flags]
    for each in finishing:
        each.start()
    for wait in (0.05, 0.1, 0.15, 0.2):
        killed = context.Process(target=opens_all, args=(folder, range(8), 1_000, context.Value("i", 0)))
        killed.start()
        time.sleep(wait)
        os.kill(killed.pid, signal.SIGKILL)
        killed.join()
        assert killed.exitcode == -signal.SIGKILL
    for each in finishing:
        each.join()
    assert [flag.value for flag in flags] == [1, 1]
    for path in folder.glob("*.keys"):
        keys = random_keys(20_000, int(path.stem.removeprefix("run-")))
        forget_checks()
        assert same(Scratch(folder).open(entry(keys, run=path.stem), never), keys)
