"""The store of `dedup` is a PostgreSQL server that goes away while drivers run: killed, and started again or not; COMMITs without an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dedup_scene import ACCEPT, BATCH, PUSH, Unique, unique
from harness import PATIENCE, DriverRun
from plain_driver import PlainDrivers
from scene import wait_for
from sql_scene import base, postgres_judge, sqlite_judge

from landonce.errors import Stalled
from landonce.local import LocalKafka
from landonce.local.postgres import LocalPostgres

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]

PLACES = [
    (ACCEPT, "accepted.before", 1),
    (PUSH, "freeze.after", 0),
    (PUSH, "record.after", 0),
]
MORE_PLACES = [
    (ACCEPT, "joined.after", 0),
    (ACCEPT, "acquire.before", 0),
    (ACCEPT, "files.after", 0),
    (ACCEPT, "accepted.after", 1),
    (ACCEPT, "record.after", 0),
    (PUSH, "acquire.before", 0),
    (PUSH, "read.after", 0),
    (PUSH, "write.after", 0),
]


@pytest.fixture
def play(
    tmp_path: Path,
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    postgres: LocalPostgres,
    new_database: Callable[[], str],
) -> Iterator[Unique]:
    """The target and its ledger are an SQLite file, which stays."""
    url, judge = new_database(), sqlite_judge(tmp_path / "target.db")
    target = "sqlite:///target.db"
    made = base(tmp_path, kafka, new_topic(partitions=2), target, judge, batch=BATCH, drivers=PlainDrivers)
    with unique(made, postgres_judge(url).ask, f'key: [id], store: {{postgres: "{url}"}}') as opened:
        yield opened
    if not postgres.running:
        postgres.start()
    postgres.wait_ready()


def stopped_at(play: Unique, place: str, thread: str, skip: int) -> tuple[DriverRun, Path]:
    """A driver that goes on from there once the file exists. There is always something to accept and to push."""
    play.feed.more(24, bad_every=5)
    go = play.play.site.folder / f"go-{len(play.drivers.runs)}"
    run = play.drivers.start(place, skip=skip, go=go, thread=thread)
    run.wait_reached()
    return run, go


def troubles(run: DriverRun) -> int:
    return sum(event["event"] == "trouble" for event in run.events())


@pytest.mark.parametrize(
    "places", [pytest.param(PLACES, id="places"), pytest.param(MORE_PLACES, id="more-places", marks=pytest.mark.long)]
)
def test_a_store_that_is_killed_and_comes_back(
    play: Unique, postgres: LocalPostgres, places: list[tuple[str, str, int]]
) -> None:
    """No driver ends, and whatever was in the middle of a transaction counts once. One statement is tried again for a while: what waits for
    longer is a driver, which says so."""
    play.play.edit("stall: 60s", "stall: 180s")
    for thread, place, skip in places:
        run, go = stopped_at(play, place, thread, skip)
        before = troubles(run)
        postgres.kill()
        go.touch()
        wait_for(lambda r=run, b=before: troubles(r) > b, f"{place}: the driver noticed", run, limit=PATIENCE)
        postgres.start()
        postgres.wait_ready()
        assert run.finish() == 0, f"{place}:\n{run.tail()}"
        play.unspoiled(place)
    play.settled()


def test_a_store_that_stays_away(play: Unique, postgres: LocalPostgres) -> None:
    """The driver tries again for as long as `stall` says, and so does the next start. Once the store is there, both have lost nothing."""
    play.play.edit("stall: 60s", "stall: 4s")
    run, go = stopped_at(play, "joined.after", ACCEPT, 0)
    postgres.kill()
    for each in (run, None):
        began = time.monotonic()
        if each is None:
            each = play.drivers.start()
        else:
            go.touch()
        assert each.finish() == Stalled.exit_code == 5, each.tail()
        assert time.monotonic() - began > 4, "it gave up early"
        assert "Stalled:" in each.log.read_text(), each.tail()
    postgres.start()
    postgres.wait_ready()
    play.play.edit("stall: 4s", "stall: 60s")
    play.settled()
