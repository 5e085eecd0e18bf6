"""Drivers with `dedup` that race: two of one pipeline, zombies of both drivers, and two pipelines that share a scope."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from dedup_scene import ACCEPT, PUSH, Unique, sqlite_store, unique
from harness import Drivers
from plain_driver import PlainDrivers
from scene import scene, wait_for, wake
from sql_scene import postgres_judge

from landonce.errors import Fenced
from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]

SHARED = 1000
_WITHOUT_VERSIONS = str(Path(__file__).with_name("dedup_without_versions.py"))


@pytest.fixture
def play(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    new_database: Callable[[], str],
) -> Iterator[Unique]:
    """Ledger and store are in PostgreSQL: in SQLite, a process that is stopped while it reads stops everyone who writes."""
    url = new_database()
    made = scene(tmp_path, kafka, clickhouse, new_topic(partitions=2), new_table(), drivers=PlainDrivers)
    with unique(made, postgres_judge(url).ask) as opened:
        opened.play.edit("ledger: {sqlite: ledger}", f'ledger: {{postgres: "{url}"}}')
        yield opened


def test_the_later_of_two_drivers_wins(play: Unique, tmp_path: Path) -> None:
    """Both are about to take the pipeline. One of them has it, and the other one is fenced, whichever it is."""
    play.feed.more(100, bad_every=10)
    go = tmp_path / "go"
    both = [play.drivers.start("acquire.before", go=go, once=False, thread=ACCEPT) for _ in range(2)]
    for run in both:
        run.wait_reached()
    go.touch()
    wait_for(lambda: any(run.process.poll() is not None for run in both), "one of them is fenced")
    [loser] = [run for run in both if run.process.poll() is not None]
    [winner] = [run for run in both if run is not loser]
    assert loser.finish() == Fenced.exit_code, loser.tail()
    wait_for(play.complete, "the other one lands everything", winner, every=0.2)
    assert winner.terminate() == 0, winner.tail()
    play.exact()


def test_a_driver_that_lost_the_store_does_not_stop_the_one_that_has_it(play: Unique, tmp_path: Path) -> None:
    """It takes the target's ledger although another one has the store by now, which takes the ledger back."""
    play.feed.more(100, bad_every=10)
    go = tmp_path / "go"
    loser = play.drivers.start("acquire.before", go=go, once=False, thread=PUSH)
    loser.wait_reached()
    winner = play.drivers.start(once=False)
    wait_for(play.complete, "the later one lands everything", winner, every=0.2)
    go.touch()
    assert loser.finish() == Fenced.exit_code, loser.tail()
    play.feed.more(100, bad_every=10)
    wait_for(play.complete, "it goes on", winner, every=0.2)
    assert winner.terminate() == 0, winner.tail()
    play.exact()


def test_zombies_change_nothing(play: Unique) -> None:
    """Each is stopped in the middle of what its predecessor left, and wakes when all is done."""
    zombies = []
    for thread, place, skip in [
        (ACCEPT, "joined.after", 0),
        (ACCEPT, "attempt.before", 1),
        (ACCEPT, "record.before", 0),
        (PUSH, "freeze.after", 0),
        (PUSH, "send.before", 0),
        (PUSH, "record.before", 0),
    ]:
        play.feed.more(20, bad_every=5)
        zombies.append(play.pause_at(place, thread=thread, skip=skip))
        play.unspoiled(place)
    play.drivers.drain()
    play.exact()
    before = traces(play)
    for zombie in zombies:
        wake(zombie)
        assert traces(play) == before, f"{zombie.place}:\n{zombie.tail()}"
    play.exact()


def traces(play: Unique) -> tuple[Any, ...]:
    """What counts: the rows, the dead letters, the positions, and the lists of the store."""
    lists = [
        sorted(play.ask_store(f"SELECT * FROM landonce_{table}"), key=repr)
        for table in ("dedup_scope", "dedup_shard", "dedup_pipeline", "dedup_run", "dedup_chunk", "batches", "pipeline")
    ]
    return sorted(play.rows(), key=repr), sorted(play.letters(), key=repr), *lists


@contextmanager
def two_pipelines(
    folder: Path,
    servers: tuple[LocalKafka, LocalClickHouse],
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    store: str,
    ask: Callable[[str], list[tuple[Any, ...]]],
    drivers: type[Drivers] = PlainDrivers,
) -> Iterator[tuple[Unique, Unique]]:
    """Each has a topic, a target and a ledger of its own. They share a scope."""
    with ExitStack() as stack:
        made = []
        for name in ("first", "second"):
            (folder / name).mkdir()
            one = scene(folder / name, *servers, new_topic(partitions=2), new_table(), drivers=drivers)
            made.append(stack.enter_context(unique(one, ask, f"key: [id], scope: shared, store: {store}")))
        yield made[0], made[1]


def over_both(*plays: Unique) -> Counter[int]:
    """How often each event stands, over both targets."""
    return Counter(row[3] for play in plays for row in play.rows())


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("store", ["sqlite", "postgres", pytest.param("mariadb", marks=pytest.mark.long)])
def test_two_pipelines_share_a_scope(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    request: pytest.FixtureRequest,
    store: str,
    times: int,
) -> None:
    """They get the same events at the same time, and each event lands in one of the two targets, once."""
    where, ask = store_at(store, tmp_path, request)
    with two_pipelines(tmp_path, (kafka, clickhouse), new_topic, new_table, where, ask) as (first, second):
        for each in (first, second):
            each.play.edit("max_rows: 600, block_rows: 300", "max_rows: 60, block_rows: 30")
        for turn in range(times):
            numbers = range(turn * SHARED // times, (turn + 1) * SHARED // times)
            first.feed.events(numbers)
            second.feed.events(reversed(numbers))
            runs = [first.drivers.start(), second.drivers.start()]
            for run in runs:
                assert run.finish() == 0, run.tail()
            assert over_both(first, second) == Counter(range((turn + 1) * SHARED // times))
        assert first.counts() == (SHARED, SHARED)
        again = [each.drivers.drain().tail() for each in (first, second)]
        assert all(": 0 read = " in each for each in again)


def store_at(
    store: str, folder: Path, request: pytest.FixtureRequest
) -> tuple[str, Callable[[str], list[tuple[Any, ...]]]]:
    """A store of this kind for a pipeline file, and a way to ask it."""
    if store == "sqlite":
        return f"{{sqlite: {folder / 'store'}}}", sqlite_store(folder / "store")
    if store == "postgres":
        url = request.getfixturevalue("new_database")()
        return f'{{postgres: "{url}"}}', postgres_judge(url).ask
    server = request.getfixturevalue("mariadb")
    return f'{{mysql: "{server.url}"}}', lambda query: _ask_mariadb(server, query)


def _ask_mariadb(server: Any, query: str) -> list[tuple[Any, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


@pytest.mark.parametrize("versions", [True, False], ids=["versions", "no-versions"])
@pytest.mark.parametrize("place", ["joined.after", "attempt.before"])
def test_another_pipeline_accepts_between_comparing_and_commit(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    place: str,
    versions: bool,
) -> None:
    """The first one has found that nothing is known. Then the second one accepts the same events. The control commits all the same."""
    store = tmp_path / "store"
    with two_pipelines(
        tmp_path, (kafka, clickhouse), new_topic, new_table, f"{{sqlite: {store}}}", sqlite_store(store)
    ) as (first, second):
        first.feed.events(range(50))
        second.feed.events(range(40))
        go = tmp_path / "go"
        if not versions:
            first.drivers.command = (sys.executable, _WITHOUT_VERSIONS, "run", str(first.play.site.file), "--once")
        # A start commits twice, to take the pipeline and to bind it to the topics, before it commits a batch.
        run = first.drivers.start(place, go=go, thread=ACCEPT, skip=2 if place == "attempt.before" else 0)
        run.wait_reached()
        second.drivers.drain()
        assert over_both(second) == Counter(range(40))
        go.touch()
        assert run.finish() == 0, run.tail()
        if versions:
            assert over_both(first, second) == Counter(range(50))
            assert first.counts() == (50, 40)
        else:
            assert over_both(first, second) == Counter(range(50)) + Counter(range(40))
