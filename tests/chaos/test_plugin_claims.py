"""A wrapped sink with another package's ledger, which knows nothing of claims: killed wherever something changes, two drivers at once, one
that was paused with a block in its hands, and a person who settles what nobody knows.

The package is installed, and landonce finds it by its entry point alone, in the driver and in its workers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from example_scene import install
from plain_driver import PlainDrivers
from scene import fenced_for_nothing, one_of_two
from test_wrapped_kills import ATTEMPTS, BATCH, EMPTY, HARMLESS, RELEASED
from wrapped_scene import Aging, InFolder, wrapped

from landonce.errors import OutcomeUnknown
from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(install("landonce-jsonl", tmp_path_factory.mktemp("package")))


@pytest.fixture(autouse=True)
def _offered(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", site)


def test_killed_wherever_something_changes(tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    """It is not idempotent, and has a probe. Whatever is pushed again is the same, to the byte."""
    topic = new_topic(partitions=2)
    with wrapped(tmp_path, kafka, topic, batch=BATCH, drivers=PlainDrivers, kind=InFolder) as play:
        chain = Aging(play)
        chain.suffer(ATTEMPTS)
        for kill in RELEASED[1:]:
            play.fail("refuse")
            chain.suffer([kill])
        play.an_hour_passes()
        play.drivers.drain()
        play.feed.more(2, bad_every=1)
        for kill in EMPTY[1:]:
            chain.suffered(kill, play.drivers.kill_at(kill.place))
        chain.settled()
        assert play.blocks() == []
        assert play.same_bytes() >= 1


@pytest.mark.long
def test_an_idempotent_one_is_killed(tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=2)
    with wrapped(
        tmp_path, kafka, topic, "file_per_block:sink", batch=BATCH, drivers=PlainDrivers, kind=InFolder
    ) as play:
        chain = Aging(play)
        chain.suffer(HARMLESS)
        chain.settled()
        assert play.blocks() == []


def test_two_drivers_at_once_and_one_that_sleeps(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    """One has claimed a block and not pushed it, one has pushed and not said so; both wake up too late. Time passes as it does: who comes
    next waits for their attempts by its own clock."""
    topic = new_topic(partitions=2)
    with wrapped(tmp_path, kafka, topic, "wrapped_target:sooner", drivers=PlainDrivers, kind=InFolder) as play:
        play.feed.more(300, bad_every=50)
        claimed = play.pause_at("claim.after")
        pushed = play.pause_at("push.after")
        play.drivers.drain()
        fenced_for_nothing(play, claimed, pushed)
        play.feed.more(100, bad_every=50)
        winner = one_of_two(play, tmp_path / "go")
        assert winner.terminate() == 0, winner.tail()
        play.exact()


def test_a_person_settles_what_nobody_knows(tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=1)
    with wrapped(
        tmp_path, kafka, topic, "wrapped_target:blind", partitions=1, drivers=PlainDrivers, kind=InFolder
    ) as play:
        play.feed.more(40, bad_every=10)
        play.fail("raise-after")
        halted = play.drivers.start()
        assert play.finish(halted) == OutcomeUnknown.exit_code, halted.tail()
        command = re.search(r"landonce state settle (\S+) --block (\S+) --landed", halted.log.read_text())
        assert command, halted.tail()
        file, key = command.groups()
        dropped = play.site.landonce("state", "rebase", file, "--drop-pending", "--yes")
        assert dropped.returncode != 0
        assert "can be neither" in dropped.stderr
        assert play.blocks() == [(0, "CLAIMED", 1)]
        said = play.site.landonce("state", "settle", file, "--block", key, "--landed", "--yes")
        assert said.returncode == 0, said.stderr
        play.drivers.drain()
        play.exact()
        assert len(play.ask("SELECT * FROM attempts")) == 1
        assert play.site.state()["totals"]["landed"] == len(play.due()["events"])
        assert play.blocks() == []
