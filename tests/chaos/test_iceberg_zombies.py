"""A driver is paused between its judgement and its commit, another one goes on, and the first is woken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Drivers
from iceberg_scene import lake
from scene import fenced_for_nothing, one_of_two, thaw, wait_for

from landonce.errors import Fenced
from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]

_TAKEN_AND_BOUND, _TAKEN = 2, 1
"""Commits to a table that is its own ledger, before the first batch of a driver."""


def test_the_successor_commits_the_same_batch_and_other_cuts_of_it(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """Three zombies with files of the same offsets in their hands: of all of them, of the first third, and of all again."""
    with lake(tmp_path, kafka, new_topic(partitions=2), drivers=drivers) as pipeline:
        pipeline.feed.more(600, bad_every=50)
        whole = pipeline.pause_at("attempt.before", skip=_TAKEN_AND_BOUND)
        pipeline.edit("max_rows: 600", "max_rows: 200")
        third = pipeline.pause_at("attempt.before", skip=_TAKEN)
        pipeline.edit("max_rows: 200", "max_rows: 600")
        again = pipeline.pause_at("attempt.before", skip=_TAKEN)
        assert pipeline.count() == 0
        pipeline.drivers.drain()
        fenced_for_nothing(pipeline, whole, third, again)


@pytest.mark.long
def test_the_successor_cuts_otherwise_and_goes_beyond(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """The zombie's batch begins inside of one that is there and ends inside of another."""
    with lake(tmp_path, kafka, new_topic(partitions=2), drivers=drivers) as pipeline:
        pipeline.feed.more(600, bad_every=50)
        pipeline.drivers.drain()
        pipeline.feed.more(600, bad_every=50)
        zombie = pipeline.pause_at("attempt.before", skip=_TAKEN)
        pipeline.feed.more(600, bad_every=50)
        pipeline.edit("max_rows: 600", "max_rows: 250")
        pipeline.drivers.drain()
        fenced_for_nothing(pipeline, zombie)


@pytest.mark.long
def test_zombies_of_a_fan_out(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """One has committed to no table, the other to one of three; both hold files for the rest."""
    with lake(tmp_path, kafka, new_topic(partitions=2), fan_out=True, drivers=drivers) as pipeline:
        pipeline.feed.more(600, bad_every=50)
        none = pipeline.pause_at("attempt.before")
        assert pipeline.count() == 0
        one = pipeline.pause_at("attempt.before", skip=1, until=lambda: pipeline.count() > 0)
        assert sum(bool(rows) for rows in pipeline.landed().values()) == 1
        pipeline.drivers.drain()
        fenced_for_nothing(pipeline, none, one)


@pytest.mark.long
def test_the_head_that_a_zombie_saw_comes_back(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """The successor lands the batch, somebody rolls the table back to where the zombie stood, and the catalog takes the
    zombie's commit. That is one delivery of what was removed, as good as any: its letters do not count twice either."""
    with lake(tmp_path, kafka, new_topic(partitions=2), drivers=drivers) as pipeline:
        pipeline.feed.more(1200, bad_every=50)
        # The first batch is in, the second stands at the door.
        zombie = pipeline.pause_at("attempt.before", skip=_TAKEN_AND_BOUND + 1)
        [first] = pipeline.landings()
        pipeline.edit("max_rows: 600", "max_rows: 400")
        pipeline.drivers.drain()
        pipeline.exact()
        pipeline.roll_back(first)
        thaw(zombie)
        assert zombie.finish() in (0, Fenced.exit_code), zombie.tail()
        pipeline.unspoiled("after the zombie")
        pipeline.drivers.drain()
        pipeline.exact()


@pytest.mark.parametrize(
    "fan_out", [pytest.param(False, id="own-ledger"), pytest.param(True, id="fan-out", marks=pytest.mark.long)]
)
def test_two_that_start_at_the_same_moment(
    fan_out: bool, tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """One of them has the pipeline, and the other hears so, whichever it is."""
    with lake(tmp_path, kafka, new_topic(partitions=2), fan_out=fan_out, drivers=drivers) as pipeline:
        pipeline.feed.more(1200, bad_every=50)
        winner = one_of_two(pipeline, tmp_path / "go")
        pipeline.feed.more(100, bad_every=50)
        wait_for(pipeline.complete, "and goes on", winner, every=0.2)
        assert winner.terminate() == 0, winner.tail()
        pipeline.exact()
