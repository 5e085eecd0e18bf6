"""The store in real databases: what counts, what a commit compares, what is removed, and another number of shards.

YDB's statements are compiled by its own dialect, because no server can be had here; with `YDB_ENDPOINT`, all of it runs there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cutting_proxy import Cut, CuttingProxy
from sqlalchemy import delete, text

from landonce.dedup.accept import reshard
from landonce.dedup.contents import Chunk
from landonce.dedup.runs import Keys, Segment, decode, digest_of, encode, first_seen_of, shard_of, sort_ids
from landonce.dedup.store import Acceptance, Scope, Store, StorePlace
from landonce.dedup.tables import shard_table
from landonce.errors import Halt, StoreDamaged, TargetUnavailable
from landonce.ledger.database import SqliteDatabase, misplaced, refused
from landonce.local.postgres import LocalPostgres
from landonce.protocol.dedup import ListedRun
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import Mark
from landonce.protocol.ranges import Partition, Range

HOUR = 3600
MARK = Mark(LedgerState("p", lineage="l", epoch=1, owner="o", version=1))


_DATABASES = [
    "sqlite",
    *(pytest.param(each, marks=pytest.mark.integration) for each in ("postgresql", "mariadb")),
    *(["ydb"] if "YDB_ENDPOINT" in os.environ else []),
]


@pytest.fixture(params=_DATABASES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    where: Path | str = tmp_path / "store"
    if request.param == "postgresql":
        where = str(request.getfixturevalue("new_database")())
    if request.param == "mariadb":
        where = str(request.getfixturevalue("mariadb").url)
    if request.param == "ydb":
        where = os.environ["YDB_ENDPOINT"].replace("grpc://", "ydb://", 1)
    made = StorePlace(where, f"clicks-{uuid.uuid4()}").open()
    yield made
    made.close()


@pytest.fixture
def scope(store: Store) -> Scope:
    return store.make("rule", "id (integer)", 4, 8 * HOUR)


def keys_of(seed: int, count: int = 500) -> Keys:
    chance = np.random.default_rng(seed)
    hi, lo = (chance.integers(0, 2**64, count, np.uint64) for _ in range(2))
    order = sort_ids(hi, lo)
    return Keys(hi[order], lo[order], first_seen_of(1, np.arange(count), 7))


def put(store: Store, shard: int, keys: Keys, bucket: int = 0) -> ListedRun:
    return store.put_run(ListedRun("", shard, 0, bucket, len(keys.hi), 0, digest_of(keys)), encode(keys))


def held(store: Store, shards: int) -> list[tuple[int, int]]:
    """All ids that the store lists, each in the shard that it belongs to."""
    found = []
    for number, shard in store.shards(range(shards)).items():
        for run in shard.runs:
            keys = decode(run, store.run_segments(run))
            assert set(shard_of(keys.hi, shards).tolist()) <= {number}
            found += list(zip(keys.hi.tolist(), keys.lo.tolist(), strict=True))
    return sorted(found)


def by_shard(keys: Keys, shards: int) -> dict[int, Keys]:
    return {each: Keys(*(column[shard_of(keys.hi, shards) == each] for column in keys)) for each in range(shards)}


def accept(store: Store, keys: Keys, shards: int, expected: int = 0) -> bool | None:
    runs = tuple(put(store, shard, part) for shard, part in by_shard(keys, shards).items())
    seen = {shard: each.version for shard, each in store.shards(range(shards)).items()}
    return store.commit("p", expected, MARK, Acceptance(seen, runs))


def test_a_run_counts_once_a_commit_lists_it(store: Store, scope: Scope) -> None:
    put(store, 0, keys_of(1))
    assert held(store, 4) == []
    assert accept(store, keys_of(2), 4)
    assert len(held(store, 4)) == 500


@pytest.mark.parametrize("left", [0, 3])
def test_a_scope_that_a_crash_left_without_its_shards_gets_them(store: Store, scope: Scope, left: int) -> None:
    """YDB makes a scope in several steps. Shards that are there stay as they are."""
    assert accept(store, keys_of(1), 4) if left else True
    with store.database.writing() as connection:
        connection.execute(delete(shard_table).where(shard_table.c.scope == store.scope, shard_table.c.shard >= left))
    before = store.shards(range(4))
    assert len(before) == left
    assert store.make("rule", "id (integer)", 16, 8 * HOUR).shards == 4
    after = store.shards(range(16))
    assert sorted(after) == [0, 1, 2, 3]
    assert {number: after[number] for number in before} == before
    assert accept(store, keys_of(2), 4, expected=1 if left else 0)
    reshard(store, 8)
    assert sorted(store.shards(range(16))) == list(range(8))


def test_large_bytes_are_read_without_a_time_limit(store: Store, scope: Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may have 144 MB, and a block 128 MiB: in PostgreSQL, what `reading` gives is cut after 15 seconds."""
    run = put(store, 0, keys_of(1))
    store.put_block("p", 1, 0, "r", 1, b"rows")
    used: list[str] = []
    scanning = store.database.scanning
    monkeypatch.setattr(store.database, "scanning", lambda: (used.append("scanning"), scanning())[1])
    assert len(store.run_segments(run)) == 1
    assert store.block("p", 1, 0, "r") is not None
    assert len(used) == 2


def test_a_commit_needs_the_mark_and_the_versions_that_were_seen(store: Store, scope: Scope) -> None:
    assert accept(store, keys_of(1), 4)
    assert accept(store, keys_of(2), 4, expected=0) is False, "somebody else moved the mark"
    old = dict.fromkeys(range(4), 0)
    assert store.commit("p", 1, MARK, Acceptance(old, (put(store, 0, keys_of(3)),))) is None
    one_old = {0: 1, 1: 1, 2: 0, 3: 1}
    assert store.commit("p", 1, MARK, Acceptance(one_old, (put(store, 0, keys_of(3)),))) is None
    assert len(held(store, 4)) == 500
    assert store.mark("p") is not None


def test_expired_keys_are_gone_and_what_was_compared_before_is_not_committed(store: Store, scope: Scope) -> None:
    assert accept(store, keys_of(1), 4)
    seen = {shard: each.version for shard, each in store.shards(range(4)).items()}
    store.expire(4, {0}, 5000)
    assert held(store, 4) == []
    assert store.look().horizon == 5000  # type: ignore[union-attr]
    assert store.commit("p", 1, MARK, Acceptance(seen)) is None
    store.expire(4, {1}, 4000)
    assert store.look().horizon == 5000, "never backwards"  # type: ignore[union-attr]


@pytest.mark.parametrize(("before", "after"), [(4, 8), pytest.param(4, 64, marks=pytest.mark.long), (8, 2), (4, 1)])
def test_another_number_of_shards_keeps_every_id(store: Store, before: int, after: int) -> None:
    store.make("rule", "", before, HOUR)
    for seed in range(3):
        assert accept(store, keys_of(seed), before, expected=seed)
    ids = held(store, before)
    assert len(ids) == 1500
    reshard(store, after)
    assert held(store, after) == ids
    assert store.look().shards == after  # type: ignore[union-attr]
    seen = dict.fromkeys(range(before), 3)
    assert store.commit("p", 3, MARK, Acceptance(seen)) is None, "who compared with the old shards compares again"


@pytest.mark.parametrize("others", [8, 16, 2])
def test_shards_that_somebody_else_changes_meanwhile_keep_every_id(
    store: Store, scope: Scope, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Two drivers of one scope start at once."""
    for seed in range(3):
        assert accept(store, keys_of(seed), 4, expected=seed)
    ids, replace_shards = held(store, 4), store.replace_shards
    store.forget_orphans(2**40)  # other tests leave some in a shared database

    def late(seen: Mapping[int, int], shards: int, runs: Sequence[ListedRun]) -> bool:
        monkeypatch.setattr(store, "replace_shards", replace_shards)
        reshard(store, others)
        return replace_shards(seen, shards, runs)

    monkeypatch.setattr(store, "replace_shards", late)
    reshard(store, 8)
    assert held(store, 8) == ids
    assert store.forget_orphans(2**40) == 0, "what was split in vain is gone"


def test_a_run_that_is_merged_while_shards_are_split_is_no_damage(
    store: Store, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert accept(store, keys_of(1), 4)
    ids, run_segments = held(store, 4), store.run_segments

    def late(run: ListedRun) -> list[Segment]:
        monkeypatch.setattr(store, "run_segments", run_segments)
        again = put(store, run.shard, decode(run, run_segments(run)))
        seen = {shard: each.version for shard, each in store.shards(range(4)).items()}
        assert store.commit("p", 1, MARK, Acceptance(seen, (again,), (run,)))
        store.forget_runs([run])
        return run_segments(run)

    monkeypatch.setattr(store, "run_segments", late)
    reshard(store, 8)
    assert held(store, 8) == ids
    lost = store.shards([0])[0].runs[0]
    store.forget_runs([lost])
    with pytest.raises(StoreDamaged):
        reshard(store, 16)


def test_a_chunk_is_listed_by_its_offsets_and_removed_with_its_bytes(store: Store, scope: Scope) -> None:
    chunks = [
        store.put_chunk(Chunk("", "t", 0, first, first + 9, 10, 0, 0, "v", accepted=10, accepted_at=first), b"x" * 9)
        for first in (0, 10, 20)
    ]
    assert store.commit("p", 0, MARK, Acceptance({}, chunks=tuple(chunks)))
    within = store.chunks("p", Range(Partition("t", 0), 5, 20))
    assert [each.first for each in within] == [0, 10]
    assert store.chunk_content(within[0]) == b"x" * 9
    assert [each.first for each in store.old_chunks("p", 20)] == [0, 10]
    store.forget_chunks("p", within)
    assert store.removed("p") == {Partition("t", 0): 20}
    with pytest.raises(StoreDamaged):
        store.chunk_content(within[0])


def ask(store: Store, statement: str) -> list[tuple[object, ...]]:
    with store.database.writing() as connection:
        answer = connection.execute(text(statement))
        return [tuple(row) for row in answer] if answer.returns_rows else []


@pytest.mark.skipif("YDB_ENDPOINT" in os.environ, reason="YDB has no view")
def test_people_see_in_a_view_what_waits(store: Store, scope: Scope) -> None:
    """A chunk of which a part is sent waits whole."""
    chunks = [
        store.put_chunk(Chunk("", "t", number, first, first + 9, 10, 0, 0, "v", accepted=8, accepted_at=first), b"x")
        for number, first in ((0, 0), (0, 10), (0, 20), (1, 0))
    ]
    assert store.commit("p", 0, MARK, Acceptance({}, chunks=tuple(chunks)))
    wanted = (
        "SELECT topic, partition_number, accepted, sent, waiting, first_offset, last_offset, accepted_at "
        f"FROM landonce_dedup_waiting WHERE scope = '{store.scope}' AND pipeline = 'p' ORDER BY 2"
    )
    assert ask(store, wanted) == [("t", 0, 24, 0, 24, 0, 29, 20), ("t", 1, 8, 0, 8, 0, 9, 0)]
    store.sent("p", 1, {Partition("t", 0): 15})
    assert ask(store, wanted) == [("t", 0, 24, 8, 16, 0, 29, 20), ("t", 1, 8, 0, 8, 0, 9, 0)]
    store.sent("p", 2, {Partition("t", 0): 30, Partition("t", 1): 10})
    assert [row[3:5] for row in ask(store, wanted)] == [(24, 0), (8, 0)]


@pytest.mark.skipif("YDB_ENDPOINT" in os.environ, reason="YDB has no view")
def test_a_view_that_the_database_refuses_ends_the_start(
    store: Store, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement is landonce's. A user without the right to make views goes without one."""
    ask(store, "DROP VIEW landonce_dedup_waiting")
    monkeypatch.setattr("landonce.dedup.store.WAITING_SQL", "CREATE VIEW landonce_dedup_waiting AS SELEC 1")
    if isinstance(store.database, SqliteDatabase):
        monkeypatch.setattr(store.database, "fault", lambda _: refused("here", "syntax"))
    with pytest.raises(Halt):
        store.make("rule", "id (integer)", 4, 8 * HOUR)
    monkeypatch.setattr(store.database, "fault", lambda _: misplaced("no right", "grant it"))
    assert store.make("rule", "id (integer)", 4, 8 * HOUR) == scope
    monkeypatch.undo()
    store.make("rule", "id (integer)", 4, 8 * HOUR)
    assert ask(store, "SELECT count(*) FROM landonce_dedup_waiting") is not None


def test_the_first_content_of_a_block_stays_for_its_ranges(store: Store, scope: Scope) -> None:
    assert store.block("p", 1, 0, "r") is None
    assert store.put_block("p", 1, 0, "r", 3, b"first").content == b"first"
    assert store.put_block("p", 1, 0, "r", 3, b"other code").content == b"first"
    assert store.put_block("p", 1, 0, "other ranges", 3, b"another plan").content == b"another plan"
    assert store.block("p", 1, 0, "r") is None
    store.sent("p", 1)
    assert store.forget_sent("p", 2**40) == 1
    assert store.block("p", 1, 0, "other ranges") is None


def test_bytes_that_no_list_names_are_removed_after_a_day(store: Store, scope: Scope) -> None:
    run = put(store, 0, keys_of(1))
    assert accept(store, keys_of(2), 4)
    assert store.forget_orphans(0) == 0
    assert store.forget_orphans(2**40) >= 1
    assert store.run_segments(run) == []
    assert len(held(store, 4)) == 500


def test_copies_are_kept_with_the_commit_that_found_them(store: Store, scope: Scope) -> None:
    first, second = (b"a" * 70_000, b"b"), (b"c",)
    assert store.commit("p", 0, MARK, Acceptance({}, kept_copies=first))
    assert store.commit("p", 0, MARK, Acceptance({}, kept_copies=first)) is False, "a retry adds nothing"
    assert store.commit("p", 1, MARK, Acceptance({0: 9}, kept_copies=second)) is None, (
        "nor does a batch to compare again"
    )
    assert store.commit("p", 1, MARK, Acceptance({}, kept_copies=second))
    assert list(store.copies("p")) == [*first, *second]
    assert list(store.copies("q")) == []
    assert store.forget_copies("p", 0) == 0
    assert store.forget_copies("p", 2**40) == 2
    assert list(store.copies("p")) == []


@pytest.mark.integration
class TestLostCommits:
    """The connection to PostgreSQL goes away before, in and after the COMMIT of a batch. As a driver does, the test looks at the mark, and
    commits the same batch again only if the mark is not there."""

    @pytest.fixture
    def proxy(self, postgres: LocalPostgres) -> Iterator[CuttingProxy]:
        made = CuttingProxy(postgres.port)
        yield made
        made.close()

    @pytest.fixture
    def direct(self, new_database: Callable[[], str]) -> Iterator[Store]:
        made = StorePlace(new_database(), "clicks").open()
        made.make("rule", "id (integer)", 4, 8 * HOUR)
        yield made
        made.close()

    @pytest.fixture
    def store(self, direct: Store, postgres: LocalPostgres, proxy: CuttingProxy) -> Iterator[Store]:
        """The same one, as it is seen through the proxy."""
        url = direct.database.engine.url.set(port=proxy.port)  # type: ignore[attr-defined]
        made = StorePlace(url.render_as_string(hide_password=False), "clicks").open()
        yield made
        made.close()

    @pytest.mark.parametrize("cut", Cut, ids=lambda cut: cut.name)
    def test_keys_and_events_count_once(self, direct: Store, store: Store, proxy: CuttingProxy, cut: Cut) -> None:
        """First when the pipeline is taken, and nobody has its mark, then with a batch."""
        for number in range(2):
            added = batch_of(store, number) if number else None
            cut_off(store, proxy, cut, number, mark_of(number + 1), added)
            while store.mark("p") != mark_of(number + 1):
                with suppress(TargetUnavailable):
                    assert store.commit("p", number, mark_of(number + 1), added) in (True, False)
            assert counted(direct) == times(number)
        assert held(direct, 4) == sorted(ids_of(1))
        assert direct.commit("p", 2, mark_of(3), batch_of(direct, 2)), "the next batch follows"

    @pytest.mark.parametrize("cut", Cut, ids=lambda cut: cut.name)
    def test_another_number_of_shards_keeps_every_id(
        self, direct: Store, store: Store, proxy: CuttingProxy, cut: Cut, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is tried again finds other shards than it has seen: they may be its own."""
        assert direct.commit("p", 0, mark_of(1), batch_of(direct, 0))
        replace_shards = store.replace_shards

        def cut_off(seen: Mapping[int, int], shards: int, runs: Sequence[ListedRun]) -> bool:
            monkeypatch.setattr(store, "replace_shards", replace_shards)
            proxy.arm(cut)
            return replace_shards(seen, shards, runs)

        monkeypatch.setattr(store, "replace_shards", cut_off)
        reshard(store, 8)
        assert proxy.cuts == 1
        assert held(direct, 8) == sorted(ids_of(0))
        assert direct.forget_orphans(2**40) == 0, "the runs that were split are gone"

    @pytest.mark.parametrize("cut", [Cut.ANSWER, Cut.ANSWERED], ids=lambda cut: cut.name)
    def test_who_does_not_look_counts_twice(self, direct: Store, store: Store, proxy: CuttingProxy, cut: Cut) -> None:
        """The control: it writes the batch again, and commits it after whatever is there."""
        cut_off(store, proxy, cut, 0, mark_of(1), batch_of(store, 0))
        there = direct.mark("p")
        assert there is not None
        assert store.commit("p", there.snapshot, mark_of(1), batch_of(store, 0))
        assert counted(direct) == times(2)
        assert held(direct, 4) == sorted(2 * ids_of(0))


def times(batches: int) -> list[int]:
    """What `counted` says of so many batches."""
    return [each * batches for each in (500, 7, 3, 500, 1)]


def counted(store: Store) -> list[int]:
    """What the scope says of accepted events, copies, and records that were seen again; events in listed chunks; pieces of kept copies."""
    scope = store.look()
    assert scope is not None
    listed = sum(each.accepted for each in store.chunks("p"))
    return [scope.accepted, scope.copies, scope.seen_again, listed, len(list(store.copies("p")))]


def mark_of(number: int) -> Mark:
    return replace(MARK, state=replace(MARK.state, batch=number), snapshot=number)


def ids_of(number: int) -> list[tuple[int, int]]:
    keys = keys_of(number)
    return list(zip(keys.hi.tolist(), keys.lo.tolist(), strict=True))


def batch_of(store: Store, number: int) -> Acceptance:
    """500 events, whose bytes are written."""
    first = 1000 * number
    runs = tuple(put(store, shard, part) for shard, part in by_shard(keys_of(number), 4).items())
    chunk = store.put_chunk(Chunk("", "t", 0, first, first + 999, 510, 0, 0, "v", accepted=500), b"events")
    seen = {shard: each.version for shard, each in store.shards(range(4)).items()}
    return Acceptance(seen, runs, chunks=(chunk,), copies=7, seen_again=3, kept_copies=(b"copies",))


def cut_off(store: Store, proxy: CuttingProxy, cut: Cut, expected: int, mark: Mark, added: Acceptance | None) -> None:
    """Nobody says what became of this commit."""
    cuts = proxy.cuts
    proxy.arm(cut)
    with pytest.raises(TargetUnavailable):
        store.commit("p", expected, mark, added)
    assert proxy.cuts == cuts + 1
