"""Batches of ids that are compared and committed as a pipeline does it, in real databases: races, a restored store, damaged files, growth."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psycopg
import pytest
from sqlalchemy import NullPool, create_engine, text

from landonce.config.dedup import MOST_CACHED
from landonce.dedup import comparing
from landonce.dedup import scratch as scratch_module
from landonce.dedup.accept import reshard
from landonce.dedup.chunks import opened
from landonce.dedup.comparing import JoinedShards, Joining, LabelledPartition, Share
from landonce.dedup.contents import Chunk
from landonce.dedup.runs import KEY_BYTES, Keys, digest_of, encode, first_seen_of, slices_of_shards
from landonce.dedup.store import Acceptance, Store, StorePlace
from landonce.errors import TargetUnavailable
from landonce.protocol.dedup import ListedRun
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import Mark

MARK = Mark(LedgerState("p", lineage="l", epoch=1, owner="o", version=1))
TTL, NOW = 80, 1_800_000_000
SHARDS = 4


@pytest.fixture(autouse=True)
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs are kept as files."""
    monkeypatch.setattr(comparing, "scratch_folder", lambda lineage: tmp_path / "runs" / lineage)
    comparing.scratch_of.cache_clear()
    return tmp_path / "runs"


@dataclass
class Accepting:
    """A pipeline that accepts ids, a batch at a time. The id of an event is its number."""

    place: StorePlace
    name: str = "p"
    watched: bool = True
    """The control: without it, a commit compares nothing."""
    cache: int = MOST_CACHED
    number: int = 0
    again: int = 0
    """How often a batch was compared again."""
    merges: int = 0
    accepted: Counter[int] = field(default_factory=Counter)

    @property
    def store(self) -> Store:
        return opened(self.place)

    def accept(self, events: Iterable[int], *, forget: bool = True) -> list[int]:
        """Gives the new ones."""
        numbers = np.array(sorted(set(events)), np.uint64)
        hi = np.sort(numbers * np.uint64(0x9E3779B97F4A7C15))
        while True:
            try:
                joined = self._joined(hi)
            except TargetUnavailable:  # a run was merged or split meanwhile: a driver tries again, too
                self.again += 1
                continue
            terms = joined.terms if self.watched else None
            added = Acceptance(
                joined.seen if self.watched else {}, tuple(joined.runs), tuple(joined.merged), terms=terms
            )
            answer = self.store.commit(self.name, self.number, MARK, added)
            if answer:
                break
            assert answer is None
            self.again += 1
        self.number += 1
        self.merges += len({run.shard for run in joined.merged})
        if forget:
            self.store.forget_runs(joined.merged)
        dropped = {int(row) for judged in joined.blocks.values() for rows in judged.dropped for row in rows}
        by_hi = dict(zip((numbers * np.uint64(0x9E3779B97F4A7C15)).tolist(), numbers.tolist(), strict=True))
        new = [int(by_hi[each]) for at, each in enumerate(hi.tolist()) if at not in dropped]
        self.accepted.update(new)
        return sorted(new)

    def _joined(self, hi: np.ndarray[Any, np.dtype[np.uint64]]) -> JoinedShards:
        scope = self.store.look()
        assert scope is not None
        recipe: Any = SimpleNamespace(
            place=self.place,
            shards=scope.shards,
            lineage=scope.lineage,
            bucket=scope.bucket,
            terms=scope.terms,
            keep_copies=False,
            cache=self.cache,
        )
        parts = {
            shard: [_share(hi[part], part.start)]
            for shard, part in enumerate(slices_of_shards(hi, scope.shards))
            if part.start < part.stop
        }
        return Joining(recipe, NOW).join(parts)


def _share(hi: np.ndarray[Any, np.dtype[np.uint64]], first: int) -> Share:
    rows = np.arange(first, first + len(hi))
    zeros = np.zeros(len(hi), np.int32)
    return Share(0, "a", (LabelledPartition("t", 0),), hi, hi, rows, zeros, rows, rows.astype(np.int32))


def store_in(folder: Path) -> StorePlace:
    made = StorePlace(folder / "store", "clicks")
    opened(made).make("rule", "", SHARDS, TTL)
    return made


@pytest.fixture(
    params=[
        "sqlite",
        *(pytest.param(each, marks=pytest.mark.integration) for each in ("postgresql", "mariadb")),
        *(["ydb"] if "YDB_ENDPOINT" in os.environ else []),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    where: Path | str = tmp_path / "store"
    if request.param == "postgresql":
        where = str(request.getfixturevalue("new_database")())
    if request.param == "mariadb":
        server, name = request.getfixturevalue("mariadb"), f"store_{uuid.uuid4().hex}"
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        where = server.url_of(name)
    if request.param == "ydb":
        where = os.environ["YDB_ENDPOINT"].replace("grpc://", "ydb://", 1)
    made = StorePlace(where, f"clicks-{uuid.uuid4()}")
    opened(made).make("rule", "", SHARDS, TTL)
    return made


@pytest.mark.parametrize(
    ("place", "cleaned"),
    [
        ("sqlite", True),
        ("sqlite", False),
        pytest.param("postgresql", True, marks=pytest.mark.integration),
        pytest.param("postgresql", False, marks=[pytest.mark.integration, pytest.mark.long]),
    ],
    indirect=["place"],
)
def test_fifty_merges_leave_at_most_twice_the_bytes_of_the_keys(place: StorePlace, cleaned: bool) -> None:
    """And of events and blocks that come and go meanwhile. PostgreSQL does not vacuum by itself here. The controls: SQLite keeps what was
    merged, and PostgreSQL the space of what was removed."""
    pipeline, store, content = Accepting(place), opened(place), np.random.default_rng(1).bytes(2**20)
    in_file = isinstance(place.where, Path)
    removed = cleaned or not in_file
    if not in_file:
        ask_postgres(place, *(f"ALTER TABLE {table} SET ({OFF}, toast.{OFF})" for table in LIVE))
    chunks: list[Chunk] = []
    for number in range(125):
        first = number * 2_000
        assert len(pipeline.accept(range(first, first + 2_000), forget=removed)) == 2_000
        if number % 4 == 0:
            chunks.append(store.put_chunk(Chunk("", "t", 0, number, number, 1, 0, 0, "v"), content))
            store.put_block("p", number, 0, "r", 1, content)
        if number % 4 == 0 and number >= 40 and removed:
            store.forget_unlisted([chunks[-11]])
            store.sent("p", number - 40)
            assert store.forget_sent("p", 2**40) == 1
        if cleaned:
            store.reclaim()
    assert pipeline.merges >= 50
    if isinstance(place.where, Path):
        assert (place.where.stat().st_size <= 2 * (250_000 * KEY_BYTES + 20 * 2**20)) is cleaned
        return
    for table, live in LIVE.items():
        size = ask_postgres(place, f"SELECT pg_total_relation_size('{table}')")
        kept = ask_postgres(place, f"SELECT sum({live}) FROM {table}")
        assert (size <= 2 * kept) is cleaned, (table, size, kept)


LIVE = {
    "landonce_deduplication": "pg_column_size(ids) + pg_column_size(first_seen)",
    "landonce_new_events": "pg_column_size(events)",
    "landonce_batch_pieces": "pg_column_size(content)",
}
"""The tables of bytes, and what counts in the end, as PostgreSQL compressed it."""
OFF = "autovacuum_enabled = off"


def ask_postgres(place: StorePlace, *statements: str) -> int:
    """Gives what the last one answers, if it does."""
    with psycopg.connect(str(place.where).replace("+psycopg", ""), autocommit=True) as connection:
        for each in statements:
            answer = connection.execute(each)
        found = answer.fetchone() if answer.description else None
        return int(found[0]) if found else 0


@pytest.mark.integration
@pytest.mark.parametrize("place", ["mariadb"], indirect=True)
def test_innodb_uses_the_space_of_removed_bytes_again(place: StorePlace) -> None:
    """Once it has purged them, which it does by itself."""
    store, chance = opened(place), np.random.default_rng(1)
    engine = create_engine(str(place.where), poolclass=NullPool)
    keys = Keys(
        *(np.sort(chance.integers(0, 2**64, 60_000, np.uint64)) for _ in range(2)),
        first_seen_of(1, np.arange(60_000), 7),
    )
    history = text("SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'")
    file = text("SELECT file_size FROM information_schema.innodb_sys_tablespaces WHERE name = :name")
    with engine.connect() as connection:
        for number in range(6):
            run = store.put_run(ListedRun("", 0, 0, 1, 60_000, 0, digest_of(keys)), encode(keys))
            chunk = store.put_chunk(Chunk("", "t", 0, number, number, 1, 0, 0, "v"), chance.bytes(2**21))
            store.put_block("p", number, 0, "r", 1, chance.bytes(2**21))
            store.forget_runs([run])
            store.forget_unlisted([chunk])
            store.sent("p", number)
            assert store.forget_sent("p", 2**40) == 1
            until = time.monotonic() + 30
            while connection.scalar(history) and time.monotonic() < until:
                time.sleep(0.05)
        for table in LIVE:
            size = connection.scalar(file, {"name": f"{engine.url.database}/{table}"})
            assert size <= 7 * 2**20, "12 MB were written"


@pytest.mark.parametrize(
    ("place", "watched", "races"),
    [
        ("sqlite", True, 100),
        pytest.param("sqlite", True, 1_000, marks=pytest.mark.long),
        ("sqlite", False, 30),
        pytest.param("postgresql", True, 100, marks=pytest.mark.integration),
        pytest.param("postgresql", True, 1_000, marks=[pytest.mark.integration, pytest.mark.long]),
        pytest.param("postgresql", False, 30, marks=pytest.mark.integration),
    ],
    indirect=["place"],
)
def test_races_accept_every_event_once(place: StorePlace, watched: bool, races: int) -> None:
    """Two pipelines with one scope get the same events at the same time, batch by batch: in SQLite one waits for the other's transaction, in
    PostgreSQL for the rows that it locked. The control compares no versions."""
    both = [Accepting(place, name, watched) for name in ("p", "q")]
    ready = threading.Barrier(2)

    def run(pipeline: Accepting) -> None:
        chance = random.Random(pipeline.name)
        for first in range(0, 10 * races, 10):
            numbers = list(range(first, first + 10))
            chance.shuffle(numbers)
            ready.wait(60)
            pipeline.accept(numbers)

    threads = [threading.Thread(target=run, args=(each,)) for each in both]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    accepted = both[0].accepted + both[1].accepted
    assert set(accepted) == set(range(10 * races))
    twice = [number for number, count in accepted.items() if count > 1]
    if watched:
        assert twice == []
        assert both[0].again + both[1].again > races // 10, "they hardly raced"
    else:
        assert twice


def test_a_restored_store_decides_whatever_files_hold_by_then(tmp_path: Path) -> None:
    """Runs that were cached after the backup belong to a store that is gone."""
    place = store_in(tmp_path)
    pipeline = Accepting(place)
    for first in range(0, 100, 10):
        pipeline.accept(range(first, first + 10))
    shutil.copy(tmp_path / "store", tmp_path / "backup")
    then = replace(pipeline)
    for first in range(100, 400, 10):
        pipeline.accept(range(first, first + 10))
    assert pipeline.accept(range(400)) == [], "all runs are in files"

    shutil.copy(tmp_path / "backup", tmp_path / "store")
    assert then.accept(range(50, 150)) == list(range(100, 150))
    for first in range(150, 400, 10):
        assert len(then.accept(range(first, first + 10))) == 10
    assert then.accept(range(400)) == []


@pytest.mark.parametrize("cache", [KEY_BYTES * 500, MOST_CACHED], ids=["small", "control"])
def test_keys_that_have_no_room_in_files_are_fetched_again(tmp_path: Path, own_files: Path, cache: int) -> None:
    pipeline = Accepting(store_in(tmp_path), cache=cache)
    for first in range(0, 4_000, 800):
        assert len(pipeline.accept(range(first, first + 800))) == 800
    assert pipeline.accept(range(4_000)) == []
    kept = sum(path.stat().st_size for path in own_files.rglob("*.keys"))
    assert (kept < 2_000 * KEY_BYTES) is (cache != MOST_CACHED)


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "control"])
def test_a_flipped_byte_in_a_cached_run_lets_no_event_in_twice(tmp_path: Path, own_files: Path, checked: bool) -> None:
    place = store_in(tmp_path)
    pipeline = Accepting(place)
    pipeline.accept(range(1_000))
    assert pipeline.accept(range(1_000)) == [], "all runs are in files"
    files = sorted(own_files.rglob("*.keys"))
    assert len(files) == SHARDS
    for path in files:
        held = bytearray(path.read_bytes())
        held[5] ^= 1  # of the first id
        path.write_bytes(held)
    if checked:
        scratch_module._checked.clear()  # as in a new process, which checks each file before it reads it
    assert bool(pipeline.accept(range(1_000))) is not checked


def test_shards_are_halved_and_doubled_while_two_pipelines_accept(tmp_path: Path) -> None:
    place = store_in(tmp_path)
    both = [Accepting(place, name) for name in ("p", "q")]
    done = threading.Event()

    def shards() -> None:
        while not done.is_set():
            for number in (8, 16, 32, 16, SHARDS):
                reshard(opened(place), number)

    def run(pipeline: Accepting) -> None:
        for first in range(0, 600, 20):
            pipeline.accept(range(first, first + 20))

    threads = [threading.Thread(target=run, args=(each,)) for each in both]
    changing = threading.Thread(target=shards)
    for each in (changing, *threads):
        each.start()
    for each in threads:
        each.join(120)
    done.set()
    changing.join(60)
    assert both[0].accepted + both[1].accepted == Counter(range(600))
    assert Accepting(place, "r").accept(range(700)) == list(range(600, 700))
